//! How a call reaches a grader. Behind a trait, so that the logic of retries and deadlines can be tested on a virtual clock.

use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::Url;

/// A grader's answer to one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// What `Retry-After` says, if it says a number of seconds.
    pub retry_after: Option<Duration>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// Why a call has no answer; reads on from "the grader".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(pub String);

/// Sends one call. Deadlines and retries are the caller's; dropping the future gives the call up.
pub trait Transport: Send + Sync {
    /// Posts a JSON body and reads the whole answer.
    fn post(&self, url: Url, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, Unanswered>>;
}
