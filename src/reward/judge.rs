//! The seam between jobs and rewards: what a job asks of one sample, and what it hears.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::{Found, Judgement, Verdict, Verifier};

/// One sample to be judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The job that the sample belongs to.
    pub job_id: Arc<str>,
    /// Its prompt.
    pub prompt_id: Arc<str>,
    /// The sample's index within the prompt.
    pub index: u32,
    /// The answer, as graders see it.
    pub text: String,
    /// Its length, the token that ended it included.
    pub tokens: u32,
    /// What the request gave with the prompt, passed on as it is.
    pub metadata: Arc<Value>,
}

/// The last word on one sample. No retries remain.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// What was read in the answer, where that can be said.
    pub found: Option<Found>,
    /// Deadlines that passed on the way, whatever the verdict is: a group that met one is not reproducible and says so.
    pub wall_clock_timeouts: u32,
}

impl Judged {
    /// A judgement after so many deadlines.
    pub fn after(judgement: Judgement, wall_clock_timeouts: u32) -> Self {
        Judged { verdict: judgement.verdict, found: judgement.found, wall_clock_timeouts }
    }

    /// A judgement that met no deadline.
    pub fn at_once(judgement: Judgement) -> Self {
        Judged::after(judgement, 0)
    }
}

impl From<Judged> for Judgement {
    fn from(judged: Judged) -> Self {
        Judgement { verdict: judged.verdict, found: judged.found }
    }
}

/// Whoever judges samples: the [`Pool`](super::Pool), or a script in its place.
pub trait Judge: Send + Sync {
    /// Judges one sample, retries included. Dropping the future gives the sample up.
    fn judge(&self, verifier: Arc<Verifier>, asked: Asked) -> BoxFuture<'static, Judged>;
}
