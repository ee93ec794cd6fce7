//! What the server takes at most. Everything beyond is refused with a sentence, never dropped.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a request body.
    pub max_body_bytes: usize,
    /// Seconds a body may take to arrive.
    pub body_seconds: u64,
    /// Prompts of a job.
    pub max_prompts: usize,
    /// Prompt tokens of a job.
    pub max_prompt_tokens: usize,
    /// `strategy.max_samples`.
    pub max_samples: u32,
    /// Sequences of a score request.
    pub max_score_sequences: usize,
    /// Tokens of a score request.
    pub max_score_tokens: usize,
    /// Groups in one answer.
    pub max_groups_page: usize,
    /// The engine counts as stuck after so many seconds without a heartbeat.
    pub heartbeat_seconds: u64,
    /// Seconds that open jobs get to finish at shutdown.
    pub shutdown_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_body_bytes: 64 << 20,
            body_seconds: 60,
            max_prompts: 8192,
            max_prompt_tokens: 16 << 20,
            max_samples: 1024,
            max_score_sequences: 4096,
            max_score_tokens: 4 << 20,
            max_groups_page: 1000,
            heartbeat_seconds: 60,
            shutdown_seconds: 30,
        }
    }
}

impl Limits {
    /// Time a body may take to arrive.
    pub fn body_deadline(&self) -> Duration {
        Duration::from_secs(self.body_seconds)
    }
}
