//! What comes of judging: the verdict that counts, and what was read to get there.

use super::{Found, Ruling};

/// What a verifier says of one answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The reward, a finite number.
    Scored(f64),
    /// Not judged yet; retries remain.
    Unscored,
    /// The answer itself exceeds a limit of the verifier: negative or skipped, as the request's `limit_counts` says.
    Limit(String),
    /// It cannot be judged: neither positive nor negative.
    Failed(String),
}

impl Verdict {
    /// A short name for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Scored(_) => "scored",
            Verdict::Unscored => "unscored",
            Verdict::Limit(_) => "limit",
            Verdict::Failed(_) => "failed",
        }
    }
}

/// A verdict and what it rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What counts.
    pub verdict: Verdict,
    /// What was read in the answer. Absent where nobody says: a length, a failure, a grader that gives nothing but a reward.
    pub found: Option<Found>,
}

impl Judgement {
    /// A verdict that rests on nothing that could be shown.
    pub fn bare(verdict: Verdict) -> Self {
        Judgement { verdict, found: None }
    }

    /// Nobody could judge.
    pub fn failed(why: impl Into<String>) -> Self {
        Judgement::bare(Verdict::Failed(why.into()))
    }
}

impl From<Found> for Judgement {
    /// A right answer is worth 1, a wrong one and none at all are worth 0; what is too large has no reward yet, and with a reference that
    /// cannot be used there is none.
    fn from(found: Found) -> Self {
        let verdict = match found.ruling {
            Ruling::Correct => Verdict::Scored(1.0),
            Ruling::Wrong | Ruling::NoAnswer => Verdict::Scored(0.0),
            Ruling::Limit => Verdict::Limit(format!("the answer is too large to judge: {}", found.rule)),
            Ruling::BadGold => Verdict::Failed(format!("the reference answer cannot be used: {}", found.rule)),
        };
        Judgement { verdict, found: Some(found) }
    }
}
