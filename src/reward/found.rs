//! What a verifier read in an answer and what it makes of it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Longest extracted text that is reported, in bytes.
const EXTRACTED_BYTES: usize = 1000;

/// The verdict on one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// It is right.
    Correct,
    /// It is wrong.
    Wrong,
    /// The text gives none.
    NoAnswer,
    /// The reference cannot be used: no verdict, and never a reward.
    BadGold,
    /// It is too large to judge.
    Limit,
}

impl Ruling {
    /// All of them.
    pub const ALL: [Ruling; 5] = [Ruling::Correct, Ruling::Wrong, Ruling::NoAnswer, Ruling::BadGold, Ruling::Limit];

    /// The ruling of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ruling| ruling.name() == name)
    }

    /// Right or wrong.
    pub fn of(right: bool) -> Self {
        if right { Ruling::Correct } else { Ruling::Wrong }
    }

    /// As requests, groups and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Ruling::Correct => "correct",
            Ruling::Wrong => "wrong",
            Ruling::NoAnswer => "no_answer",
            Ruling::BadGold => "bad_gold",
            Ruling::Limit => "limit",
        }
    }
}

/// What a verifier found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The verdict.
    #[serde(rename = "verdict")]
    pub ruling: Ruling,
    /// The text that was taken for the answer; long ones are cut.
    pub extracted: Option<String>,
    /// Where the answer was found and what decided, such as `boxed/number`; for a limit what was too large.
    pub rule: Cow<'static, str>,
}

impl Found {
    /// A verdict on `extracted`, cut to a length that can be reported.
    pub fn new(ruling: Ruling, extracted: Option<&str>, rule: impl Into<Cow<'static, str>>) -> Self {
        let extracted = extracted.map(|text| match text.len() > EXTRACTED_BYTES {
            true => text[..(0..=EXTRACTED_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)].to_owned() + "...",
            false => text.to_owned(),
        });
        Found { ruling, extracted, rule: rule.into() }
    }
}
