//! Graders over HTTP.
//!
//! `POST url` with `{"items": [{"job_id", "prompt_id", "index", "text", "metadata", "data"}, ...]}`; the answer is
//! `{"rewards": [{"reward": 0.5} | {"error": "why"}, ...]}`, as many and in the same order. How a sample passes through: it joins the queue
//! of its host ([`lane`]), shares a call with others for the same URL, and is sent again, alone or with others that failed, until it has a
//! reward or no attempt is left ([`protocol`] says what a call came to). A host has its own queue and its own number of calls at once, so
//! that one that hangs holds up no other. The deadline of a call starts when the call starts, not while it waits for its place.

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
