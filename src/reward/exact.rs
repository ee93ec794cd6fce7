//! The answer equals the reference: character by character, but for what the fields say does not count.
//!
//! The answer is the whole text, or what stands at one mark (`\\boxed{...}`, `<answer>...</answer>`, `####`): then a text without that mark
//! gives no answer.

use serde::Serialize;

use super::math::extract::{Extraction, extract};
use super::math::{Mark, Options};
use super::{Found, Ruling};

/// A reference text.
#[derive(Clone, Debug, PartialEq)]
pub struct Exact {
    answer: String,
    rules: Rules,
    search: Option<Options>,
}

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// White space around the answer does not count.
    pub trim: bool,
    /// Nothing but letters and digits counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub letters_and_digits: bool,
    /// Where the answer stands; the whole text if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
}

impl Exact {
    /// Says what is wrong with a reference that cannot be used.
    pub fn new(answer: &str, rules: Rules) -> Result<Self, String> {
        let search = rules.mark.map(|mark| Options { marks: vec![mark], ..Options::default() });
        let mut exact = Exact { answer: String::new(), rules, search };
        exact.answer = exact.normal(answer);
        match exact.answer.is_empty() {
            true => Err("is empty, so that only an empty answer would be right; give the reference answer".into()),
            false => Ok(exact),
        }
    }

    /// Whether the answer in `text` is the reference. An empty one is no answer.
    pub fn judge(&self, text: &str) -> Found {
        let marked = match &self.search {
            None => None,
            Some(options) => match extract(text, options) {
                Extraction::Found(found) => Some(found.text),
                Extraction::None(why) => return Found::new(Ruling::NoAnswer, None, why),
                Extraction::Limit(why) => return Found::new(Ruling::Limit, None, why),
            },
        };
        let text = marked.as_deref().unwrap_or(text);
        let text = if self.rules.trim { text.trim() } else { text };
        if text.is_empty() {
            return Found::new(Ruling::NoAnswer, None, "exact");
        }
        Found::new(Ruling::of(self.normal(text) == self.answer), Some(text), "exact")
    }

    fn normal(&self, text: &str) -> String {
        let text = if self.rules.trim { text.trim() } else { text };
        let counts = |c: &char| !self.rules.letters_and_digits || c.is_alphanumeric();
        let text: String = text.chars().filter(counts).collect();
        if self.rules.ignore_case { text.to_lowercase() } else { text }
    }
}
