//! Graders over HTTP.
//!
//! `POST url` with
//! ```json
//! {"deadline_s": 30.0, "items": [
//!   {"id": "job/prompt/0", "job_id": "job", "prompt_id": "prompt", "index": 0, "text": "...", "metadata": {}, "data": null}, ...]}
//! ```
//! where `id` is unique within the call, `text` is the answer, `metadata` came with the prompt and `data` with the reward. After `deadline_s`
//! seconds nobody listens any more. Items of several jobs may share a call. The answer holds an item per id, in any order:
//! ```json
//! {"items": [
//!   {"id": "job/prompt/0", "reward": 0.5},
//!   {"id": "job/prompt/1", "reward": 1.0, "verdict": "correct", "extracted": "42", "rule": "unit tests"},
//!   {"id": "job/prompt/2", "verdict": "wrong"},
//!   {"id": "job/prompt/3", "verdict": "limit", "rule": "more than 64 kB of code"},
//!   {"id": "job/prompt/4", "verdict": "bad_gold"},
//!   {"id": "job/prompt/5", "error": "no compiler"}]}
//! ```
//! - `reward`: any finite number. Without one the verdict says it: `correct` is 1, `wrong` and `no_answer` are 0.
//! - `verdict` (`correct`, `wrong`, `no_answer`, `limit`, `bad_gold`), `extracted` and `rule` are shown with the sample; the last two only
//!   beside a verdict. `limit` counts as the request's `limit_counts` says; `bad_gold` fails the sample at once; neither has a reward.
//! - `error`: the sample is sent again, and failed after the last attempt. So is one without an item, or with two that differ. An item
//!   with an id that was not asked for is passed over, with a warning in the log.
//!
//! How a sample passes through: it joins the queue of its host ([`lane`]), shares a call with others for the same URL, and is sent again,
//! alone or with others that failed, until it has a verdict or no attempt is left ([`protocol`] says what a call came to). A failure is
//! never a zero. A host has its own queue and its own number of calls at once, so that one that hangs holds up no other. The deadline of a
//! call starts when the call starts, not while it waits for its place.

mod http;
mod lane;
mod protocol;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use serde_json::Value;

pub use http::Http;
pub(super) use lane::Lanes;
pub use transport::{Reply, Transport, Unanswered};

use super::shortened;

/// A grader and what it is told with every sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    /// Where it listens.
    pub url: Url,
    /// How long one call may take.
    pub timeout: Duration,
    /// Passed through as it is.
    pub data: Arc<Value>,
}

impl Webhook {
    /// Says why the URL cannot be used.
    pub fn new(url: &str, timeout: Duration, data: Value) -> Result<Self, String> {
        Ok(Webhook { url: Self::parse_url(url)?, timeout, data: Arc::new(data) })
    }

    /// Reads a grader's URL: http or https, a host, no credentials.
    pub fn parse_url(url: &str) -> Result<Url, String> {
        const LIKE: &str = "give one such as \"http://127.0.0.1:9000/grade\"";
        let parsed = Url::parse(url).map_err(|error| format!("is {:?}, which is no URL ({error}); {LIKE}", shortened(url)))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(format!("has the scheme {:?}; use http or https", shortened(parsed.scheme())));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("holds a user name or a password, which would be stored and shown; leave them out".into());
        }
        if parsed.fragment().is_some() {
            return Err("holds a part behind \"#\", which is never sent; leave it out".into());
        }
        Ok(parsed)
    }

    /// The host and port, each with a queue of its own.
    fn host(&self) -> String {
        format!("{}:{}", self.url.host_str().unwrap_or_default(), self.url.port_or_known_default().unwrap_or_default())
    }
}
