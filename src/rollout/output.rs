//! A group as it is delivered: the JSON that trainers read.
//!
//! Everything outside `timing` is reproducible. Absent numbers are `null`, never NaN; log-probabilities are finite by the engine's
//! contract and checked when a sample arrives.

use std::collections::BTreeMap;

use serde::Serialize;

use super::plan::{ExitKind, Group, History, Outcome, Stats, Status};
use super::prompt::OpenPrompt;
use super::spec::{PromptSpec, Return, Settings};
use crate::engine::{FinishReason, Sample, StopMatch, VersionSpan};
use crate::reward::Found;
use crate::store::{SampleRow, StoredSample};

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
    /// Why the group failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether more than one version of the weights drew its tokens.
    pub mixed_versions: bool,
    /// Statistics over every sample the strategy saw.
    pub stats: &'a Stats,
    /// Weight that the group puts on the gradient of its prompt's pass rate, where an objective sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective_weight: Option<f64>,
    /// What earlier jobs saw of the prompt, where the strategy or the baseline used it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
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
    /// `verdict`, `extracted` and `rule`; absent where no verifier spoke: samples that were cut off or broken, scores that the client gave.
    #[serde(flatten)]
    pub found: Option<Found>,
    /// Absent for samples that the group did not keep.
    pub advantage: Option<f64>,
    /// Why the sample ended.
    pub finish_reason: FinishReason,
    /// What ended it, if it was a stop.
    pub stop_match: Option<StopMatch>,
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

impl RewardStatus {
    const ALL: [RewardStatus; 3] = [RewardStatus::Scored, RewardStatus::Unscored, RewardStatus::Failed];

    /// A number for the store.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The status with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }
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

/// The JSON of a closed group; `samples` are those that it shows, `state` knows what came of them. `mixed_versions`: whether more than one
/// version drew what the strategy saw; `error`: why the group failed.
pub fn group_json(
    settings: &Settings,
    prompt: &PromptSpec,
    group: &Group,
    state: &OpenPrompt,
    samples: &[StoredSample],
    mixed_versions: bool,
    error: Option<String>,
    timing: Timing,
) -> Result<String, serde_json::Error> {
    let advantages: BTreeMap<u32, f64> = group.kept.iter().map(|kept| (kept.index, kept.advantage)).collect();
    let shown = |stored| sample_out(&settings.fields, state, &advantages, stored).transpose();
    let samples = samples.iter().filter_map(shown).collect::<Result<_, _>>()?;
    serde_json::to_string(&GroupOut {
        prompt_id: &prompt.id,
        status: group.status,
        prompt_token_ids: &prompt.token_ids,
        samples,
        signal: group.signal,
        exit: group.exit,
        error,
        mixed_versions,
        stats: &group.stats,
        effective_weight: group.effective_weight,
        history: prompt.history.filter(|_| settings.uses_history()),
        timing,
    })
}

/// Why a group failed, if it did: a sentence. `samples` hold the first one that failed.
pub fn failure(prompt: &PromptSpec, group: &Group, state: &OpenPrompt, samples: &[StoredSample]) -> Option<String> {
    if group.status != Status::Failed {
        return None;
    }
    if let Err(bad) = &prompt.verifier {
        return Some(format!("bad gold: reward.{bad}"));
    }
    let (failed, most) = (group.stats.failed, state.plan().max_failed);
    let first = state.first_failed(u32::MAX).and_then(|index| samples.iter().find(|stored| stored.sample.index == index));
    let why = first.and_then(|stored| Some((stored.sample.index, stored.verdict.as_ref()?.note.as_deref()?)));
    let why = why.map_or_else(String::new, |(index, note)| format!("; sample {index}: {note}"));
    Some(format!("{failed} samples failed, more than max_failed ({most}){why}"))
}

/// A sample as the group shows it; nothing if the prompt does not know it.
fn sample_out<'a>(
    fields: &Return,
    state: &OpenPrompt,
    advantages: &BTreeMap<u32, f64>,
    stored: &'a StoredSample,
) -> Result<Option<SampleOut<'a>>, serde_json::Error> {
    let sample = &stored.sample;
    let Some(ended) = state.sample(sample.index) else { return Ok(None) };
    let outcome = state.outcome(sample.index);
    let found = stored.verdict.as_ref().and_then(|verdict| verdict.found.as_deref());
    Ok(Some(SampleOut {
        index: sample.index,
        token_ids: &sample.token_ids,
        logprobs: fields.logprobs.then_some(&sample.logprobs),
        logprobs_raw: sample.logprobs_raw.as_deref().filter(|_| fields.logprobs_raw),
        text: fields.text.then_some(sample.text.as_str()),
        reward: ended.reward,
        reward_status: ended.status,
        positive: outcome.counts().then_some(outcome == Outcome::Positive),
        found: found.map(serde_json::from_str).transpose()?,
        advantage: advantages.get(&sample.index).copied(),
        finish_reason: ended.finish_reason,
        stop_match: sample.stop_match.as_deref().map(serde_json::from_str).transpose()?,
        weight_versions: spans(sample),
    }))
}

/// Whether more than one version of the weights drew the tokens of these samples.
pub fn are_mixed(samples: &[StoredSample]) -> bool {
    let spans = samples.iter().flat_map(|stored| &stored.sample.weight_versions).filter(|(_, start, end)| start < end);
    let mut versions = spans.map(|(version, _, _)| version);
    let first = versions.next();
    versions.any(|version| Some(version) != first)
}

fn spans(sample: &SampleRow) -> Vec<VersionSpan> {
    let span = |&(version, start, end): &(u64, u32, u32)| VersionSpan { version, start, end };
    sample.weight_versions.iter().map(span).collect()
}

/// Non-finite numbers never reach JSON: a sample that holds one, or whose lists differ in length, has failed and shows nothing else.
pub fn withhold_nonfinite(sample: &mut Sample) {
    let n = sample.token_ids.len();
    let finite = sample.logprobs.iter().chain(&sample.logprobs_raw).all(|l| l.is_finite());
    if finite && sample.logprobs.len() == n && sample.logprobs_raw.len() == n {
        return;
    }
    *sample = Sample {
        token_ids: Vec::new(),
        logprobs: Vec::new(),
        logprobs_raw: Vec::new(),
        text: String::new(),
        finish_reason: FinishReason::Numerics,
        stop_match: None,
        weight_versions: sample.weight_versions.first().map(|span| VersionSpan { start: 0, end: 0, ..*span }).into_iter().collect(),
        index: sample.index,
    };
}
