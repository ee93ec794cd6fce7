//! A job as it was accepted: every default filled in, every prompt tokenized, every limit checked.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::plan::{Advantage, Sequential};
use crate::engine::SamplingParams;
use crate::reward::Verifier;

/// In which order groups are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As the request lists the prompts.
    #[default]
    Request,
    /// As they close; this order depends on timing, the groups do not.
    Completion,
}

/// What happens to a prompt whose reference answer cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadGoldRule {
    /// The request is refused.
    #[default]
    Refuse,
    /// The prompt's group is failed and nothing is sampled for it.
    FailGroup,
}

/// What a delivered group carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Return {
    /// The samples' text.
    pub text: bool,
    /// Log-probabilities of the distribution sampled from.
    pub logprobs: bool,
    /// Log-probabilities of the model's untouched distribution.
    pub logprobs_raw: bool,
    /// Every sample below the exit, not only the kept ones.
    pub all_samples: bool,
}

impl Default for Return {
    fn default() -> Self {
        Return { text: true, logprobs: true, logprobs_raw: false, all_samples: false }
    }
}

/// A job's effective settings, echoed to the caller: nothing is inherited silently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// When to stop and what to keep.
    pub strategy: Sequential,
    /// How kept samples are compared with their baseline.
    pub advantage: Advantage,
    /// Version of the weights, pinned when the job was accepted.
    pub weights_version: u64,
    /// Where per-prompt history is kept.
    pub namespace: String,
    /// Importance among jobs.
    pub priority: i64,
    /// Seconds after which the job ends.
    pub deadline_s: Option<f64>,
    /// Order of delivery.
    pub order: Order,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Seed of every random stream of the job.
    pub seed: u64,
    /// What a change of weights does to the job.
    pub on_weight_update: String,
    /// What an unusable reference answer does.
    pub bad_gold: BadGoldRule,
    /// What groups carry.
    #[serde(rename = "return")]
    pub fields: Return,
}

/// One prompt of a job.
#[derive(Clone, Debug)]
pub struct PromptSpec {
    /// Its id, unique within the job.
    pub id: String,
    /// Its tokens, at least one.
    pub token_ids: Arc<[u32]>,
    /// Its reward; absent if the reference answer cannot be used (`bad_gold: fail_group`).
    pub verifier: Option<Arc<Verifier>>,
}

/// An accepted job.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The job's id.
    pub id: String,
    /// Whether the caller chose the id; such a job goes on when its stream is gone.
    pub named: bool,
    /// SHA-256 of the request, in hexadecimal, for idempotency.
    pub digest: String,
    /// Effective settings.
    pub settings: Arc<Settings>,
    /// The sampling parameters among them, as the engine shares them.
    pub sampling: Arc<SamplingParams>,
    /// Prompts in request order.
    pub prompts: Vec<PromptSpec>,
}
