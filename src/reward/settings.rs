//! How much the pool may do at once, and whom it may ask.

use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};

/// Settings of the [`Pool`](super::Pool): the `[reward]` table of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSettings {
    /// Verifiers of text that run at once.
    pub workers: usize,
    /// A verifier of text that runs longer, in seconds, makes a failure. It is far above what any of them needs.
    pub local_timeout_s: f64,
    /// Graders that may be asked: "host" (any port) or "host:port". None may be while it is empty.
    pub webhook_hosts: Vec<String>,
    /// Most samples in one call.
    pub webhook_batch: usize,
    /// A sample waits so long for others to share its call.
    pub webhook_linger_ms: u64,
    /// Calls to one host at once.
    pub webhook_concurrency: usize,
    /// Samples of one host between its queue and their verdict; others wait before the queue.
    pub webhook_queue: usize,
    /// Calls that a sample is sent in before it is failed.
    pub webhook_attempts: u32,
    /// The wait before the second call; it doubles with every further one.
    pub webhook_backoff_ms: u64,
    /// The longest wait between two calls, `Retry-After` included.
    pub webhook_backoff_most_ms: u64,
    /// Longest answer of a grader, in bytes.
    pub webhook_answer_bytes: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            workers: 4,
            local_timeout_s: 60.0,
            webhook_hosts: Vec::new(),
            webhook_batch: 32,
            webhook_linger_ms: 5,
            webhook_concurrency: 8,
            webhook_queue: 1024,
            webhook_attempts: 3,
            webhook_backoff_ms: 250,
            webhook_backoff_most_ms: 30_000,
            webhook_answer_bytes: 4 << 20,
        }
    }
}

impl PoolSettings {
    /// Whether an entry of the allow-list names a host.
    pub fn names_host(entry: &str) -> bool {
        Host::parse(entry).is_some()
    }

    pub(super) fn local_timeout(&self) -> Duration {
        // What is no time at all is refused by the configuration; here it means none is left.
        Duration::try_from_secs_f64(self.local_timeout_s).unwrap_or_default()
    }

    /// Whether the allow-list names the URL's host.
    pub(super) fn allows(&self, url: &Url) -> bool {
        let (name, port) = (url.host_str(), url.port_or_known_default());
        let listed = self.webhook_hosts.iter().filter_map(|entry| Host::parse(entry));
        listed.into_iter().any(|host| Some(host.name.as_str()) == name && (host.port.is_none() || host.port == port))
    }
}

/// An entry of the allow-list, its name as URLs write it.
struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    fn parse(entry: &str) -> Option<Self> {
        let plain = |c: char| !c.is_whitespace() && !"/\\?#@*".contains(c);
        let url = Url::parse(&format!("http://{entry}/")).ok().filter(|_| !entry.is_empty() && entry.chars().all(plain))?;
        // A URL forgets the port that its scheme implies; the entry does not.
        let port = match entry.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((_, port)) => Some(port.parse::<u16>().ok()?),
            None => None,
        };
        Some(Host { name: url.host_str()?.to_owned(), port })
    }
}
