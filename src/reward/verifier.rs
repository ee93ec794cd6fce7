//! A compiled reward and what it says of an answer.

use std::time::Duration;

use super::{choice, exact, number, pattern, schema, webhook};

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
    /// 1 if the answer is right, else 0.
    pub fn of(right: bool) -> Self {
        Verdict::Scored(if right { 1.0 } else { 0.0 })
    }

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

/// A compiled reward.
#[derive(Clone, Debug)]
pub enum Verifier {
    /// Compares the answer's number with this one.
    Math(number::Number),
    /// Compares the whole text.
    Exact(exact::Exact),
    /// Looks for a pattern.
    Regex(pattern::Pattern),
    /// Compares the choice that the text settles on.
    Choice(choice::Choice),
    /// Validates the answer's JSON.
    Json(schema::Schema),
    /// Asks a grader over HTTP.
    Webhook(webhook::Webhook),
    /// The client posts the scores itself; a sample without one for so long is failed. Never reaches the pool.
    Pull {
        /// How long a sample waits for its score; for ever if there is none.
        timeout: Option<Duration>,
    },
}

impl Verifier {
    /// The reward's kind, as requests and metrics name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Verifier::Math(_) => "math",
            Verifier::Exact(_) => "exact",
            Verifier::Regex(_) => "regex",
            Verifier::Choice(_) => "choice",
            Verifier::Json(_) => "json",
            Verifier::Webhook(_) => "webhook",
            Verifier::Pull { .. } => "pull",
        }
    }

    /// Whether the client posts the scores itself.
    pub fn is_pull(&self) -> bool {
        matches!(self, Verifier::Pull { .. })
    }

    /// How long a sample may wait for the client's score, if the client posts it.
    pub fn pull_timeout(&self) -> Option<Option<Duration>> {
        match self {
            Verifier::Pull { timeout } => Some(*timeout),
            _ => None,
        }
    }

    /// Judges one answer by its text alone. What needs a grader or the client is a failure here: nobody was asked.
    pub fn judge(&self, text: &str) -> Verdict {
        match self {
            Verifier::Math(gold) => number::judge(gold, text),
            Verifier::Exact(exact) => exact.judge(text),
            Verifier::Regex(pattern) => pattern.judge(text),
            Verifier::Choice(choice) => choice.judge(text),
            Verifier::Json(schema) => schema.judge(text),
            Verifier::Webhook(_) => Verdict::Failed("a webhook is judged by its grader, not here".into()),
            Verifier::Pull { .. } => Verdict::Failed("the scores of a \"pull\" reward come from the client; nobody is asked here".into()),
        }
    }
}
