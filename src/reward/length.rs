//! A penalty for answers that are too long, in the sample's tokens: the soft overlong punishment of DAPO.

use serde::{Deserialize, Serialize};

use super::Judgement;
use super::verdict::Verdict;
use crate::field::FieldError;

/// Where the penalty begins and where it is whole. A length says nothing of right or wrong: it comes without a ruling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Length {
    /// An answer of so many tokens, or more, is worth -1.
    pub max_tokens: u32,
    /// So many tokens before that the penalty begins, and grows with every token.
    pub buffer: u32,
}

impl Length {
    /// Refuses a penalty that would begin before the answer does.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.max_tokens == 0 {
            return Err(FieldError::new("max_tokens", "is 0; give the most tokens of an answer, such as sampling.max_tokens"));
        }
        if self.buffer > self.max_tokens {
            let problem = format!("is {}, more than max_tokens ({}); give at most that", self.buffer, self.max_tokens);
            return Err(FieldError::new("buffer", problem));
        }
        Ok(())
    }

    /// 0 up to `max_tokens - buffer` tokens, then linearly down to -1 at `max_tokens`, and -1 beyond.
    pub fn reward(&self, tokens: u32) -> f64 {
        let over = tokens.saturating_sub(self.max_tokens - self.buffer);
        match over {
            0 => 0.0,
            over if over >= self.buffer => -1.0,
            over => -f64::from(over) / f64::from(self.buffer),
        }
    }

    /// The penalty, where the number of tokens is known.
    pub fn judge(&self, tokens: Option<u32>) -> Judgement {
        match tokens {
            Some(tokens) => Judgement::bare(Verdict::Scored(self.reward(tokens))),
            None => Judgement::failed("the answer's length in tokens is not known here: only its text is"),
        }
    }
}
