//! A compiled reward and what it says of an answer.

use std::time::Duration;

use super::{Judgement, choice, compose, exact, format, length, math, pattern, schema, webhook};

/// A compiled reward.
#[derive(Clone, Debug)]
pub enum Verifier {
    /// Compares the answer with this one, as mathematics.
    Math(Box<math::Gold>),
    /// Compares the whole text.
    Exact(exact::Exact),
    /// Looks for a pattern.
    Regex(pattern::Pattern),
    /// Compares the choice that the text settles on.
    Choice(choice::Choice),
    /// Validates the answer's JSON.
    Json(schema::Schema),
    /// Looks at the text's form.
    Format(format::Form),
    /// Looks at the answer's length.
    Length(length::Length),
    /// Makes one reward of several.
    Composition(compose::Composition),
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
            Verifier::Format(_) => "format",
            Verifier::Length(_) => "length",
            Verifier::Composition(composition) => composition.kind(),
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

    /// Whether [`Verifier::judge_counted`] can judge: nobody else is asked.
    pub fn is_local(&self) -> bool {
        match self {
            Verifier::Webhook(_) | Verifier::Pull { .. } => false,
            Verifier::Composition(composition) => composition.parts().all(|(_, part)| part.is_local()),
            _ => true,
        }
    }

    /// Judges one answer by its text alone: [`Verifier::judge_counted`] where the number of its tokens is not known.
    pub fn judge(&self, text: &str) -> Judgement {
        self.judge_counted(text, None)
    }

    /// Judges one answer by its text and its length in tokens. What needs a grader or the client is a failure here: nobody was asked.
    pub fn judge_counted(&self, text: &str, tokens: Option<u32>) -> Judgement {
        match self {
            Verifier::Math(gold) => gold.judge(text).into(),
            Verifier::Exact(exact) => exact.judge(text).into(),
            Verifier::Regex(pattern) => pattern.judge(text).into(),
            Verifier::Choice(choice) => choice.judge(text).into(),
            Verifier::Json(schema) => schema.judge(text).into(),
            Verifier::Format(form) => form.judge(text).into(),
            Verifier::Length(length) => length.judge(tokens),
            Verifier::Composition(composition) => composition.judge(text, tokens),
            Verifier::Webhook(_) => Judgement::failed("a webhook is judged by its grader, not here"),
            Verifier::Pull { .. } => Judgement::failed("the scores of a \"pull\" reward come from the client; nobody is asked here"),
        }
    }

    /// The reward of a sample that was cut off after so many tokens, which no verifier is asked about: it is right in nothing, and as long
    /// as it is. Never above 0.
    pub fn of_truncated(&self, tokens: u32) -> f64 {
        match self {
            Verifier::Length(length) => length.reward(tokens),
            Verifier::Composition(composition) => composition.of_truncated(tokens).min(0.0),
            _ => 0.0,
        }
    }
}
