//! The whole answer equals the reference: character by character, but for the space around it and, if asked, upper and lower case.

use super::{Found, Ruling};

/// A reference text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    answer: String,
    ignore_case: bool,
    trim: bool,
}

impl Exact {
    /// Says what is wrong with a reference that cannot be used.
    pub fn new(answer: &str, ignore_case: bool, trim: bool) -> Result<Self, String> {
        let mut exact = Exact { answer: String::new(), ignore_case, trim };
        exact.answer = exact.normal(answer);
        match exact.answer.is_empty() {
            true => Err("is empty, so that only an empty answer would be right; give the reference answer".into()),
            false => Ok(exact),
        }
    }

    /// Whether `text` is the reference. An empty text is no answer.
    pub fn judge(&self, text: &str) -> Found {
        let text = if self.trim { text.trim() } else { text };
        if text.is_empty() {
            return Found::new(Ruling::NoAnswer, None, "exact");
        }
        Found::new(Ruling::of(self.normal(text) == self.answer), Some(text), "exact")
    }

    fn normal(&self, text: &str) -> String {
        let text = if self.trim { text.trim() } else { text };
        if self.ignore_case { text.to_lowercase() } else { text.to_owned() }
    }
}
