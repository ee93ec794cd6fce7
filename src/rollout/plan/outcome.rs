//! What a strategy knows of one sample.

/// The outcome of one sample index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Not known yet: not started, running, being scored, or to be scored again. It stops the resolved prefix.
    #[default]
    Unscored,
    /// Its reward is above `positive_above`.
    Positive,
    /// Its reward is not.
    Negative,
    /// It has no reward and will get none: retries are exhausted or the sample ended in `numerics`. Never a zero: the index is passed
    /// over, counted and reported.
    Failed,
    /// Left out by the request's own wish (`mask_truncated`, `limit_counts: skip`).
    Skipped,
}

impl Outcome {
    /// Whether nothing more will be learned about this index.
    pub fn is_resolved(self) -> bool {
        self != Outcome::Unscored
    }

    /// Whether it takes part in pass rates and means.
    pub fn counts(self) -> bool {
        matches!(self, Outcome::Positive | Outcome::Negative)
    }

    /// Every outcome.
    const ALL: [Outcome; 5] = [Outcome::Unscored, Outcome::Positive, Outcome::Negative, Outcome::Failed, Outcome::Skipped];

    /// A number for the store.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The outcome with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.code() == code)
    }
}
