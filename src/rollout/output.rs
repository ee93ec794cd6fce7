//! A group as it is delivered: the JSON that trainers read.
//!
//! Everything outside `timing` is reproducible. Absent numbers are `null`, never NaN; log-probabilities are finite by the engine's
//! contract and checked when a sample arrives.

use serde::Serialize;

use super::plan::{ExitKind, Stats, Status};
use crate::engine::{FinishReason, StopMatch};

/// A group.
#[derive(Debug, Serialize)]
pub struct GroupOut<'a> {
    /// The prompt's id.
    pub prompt_id: &'a str,
    /// How the group ended.
    pub status: Status,
    /// The prompt's tokens.
    pub prompt_token_ids: &'a [u32],
    /// Kept samples (and with `all_samples` the others below the exit), by index.
    pub samples: Vec<SampleOut<'a>>,
    /// Whether the kept rewards differ.
    pub signal: bool,
    /// Why sampling stopped; `null` for a failed group.
    pub exit: Option<ExitKind>,
    /// Whether more than one version of the weights drew its tokens.
    pub mixed_versions: bool,
    /// Statistics over every sample the strategy saw.
    pub stats: &'a Stats,
    /// The only part that depends on timing.
    pub timing: Timing,
}

/// A sample of a group.
#[derive(Debug, Serialize)]
pub struct SampleOut<'a> {
    /// Index within the prompt.
    pub index: u32,
    /// Tokens, the one that ended the sample included.
    pub token_ids: &'a [u32],
    /// One per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<&'a [f32]>,
    /// One per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs_raw: Option<&'a [f32]>,
    /// What the verifier saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
    /// The raw reward, where there is one.
    pub reward: Option<f64>,
    /// Whether there is one.
    pub reward_status: RewardStatus,
    /// Whether it is above `positive_above`; absent for failed and skipped samples.
    pub positive: Option<bool>,
    /// Absent for samples that the group did not keep.
    pub advantage: Option<f64>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// What ended it, if it was a stop.
    pub stop_match: Option<&'a StopMatch>,
    /// Which weights drew which tokens.
    pub weight_versions: Vec<VersionSpan>,
}

/// State of a sample's reward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RewardStatus {
    /// It has a reward.
    Scored,
    /// It was left out before a verifier saw it, or by `limit_counts`.
    Unscored,
    /// It cannot be scored.
    Failed,
}

/// Tokens `start..end` were drawn by this version of the weights.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VersionSpan {
    /// Version.
    pub version: u64,
    /// First token.
    pub start: usize,
    /// Behind the last token.
    pub end: usize,
}

/// What depends on timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Tokens drawn at or above the exit, which no one will see.
    pub tokens_discarded: u64,
    /// Samples ended early because they could no longer matter.
    pub samples_cancelled: u64,
    /// Seconds that the closed group waited for earlier ones to be delivered.
    pub wait_s: f64,
    /// Seconds from the group's first submission to its delivery.
    pub age_s: f64,
    /// Wall-clock timeouts that the group met; above 0 it is not reproducible.
    pub wall_clock_timeouts: u64,
}
