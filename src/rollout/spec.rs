//! A job as it was accepted: every default filled in, every prompt tokenized, every limit checked.
//!
//! It is written to the store before the request is answered, and read back after a restart: [`JobSpec::to_stored`] and
//! [`JobSpec::from_stored`] are each other's inverse.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::plan::{Advantage, Baseline, History, Kind, Strategy};
use super::versions::OnWeightUpdate;
use crate::engine::SamplingParams;
use crate::field::FieldError;
use crate::reward::{self, BadGold, Verifier};
use crate::store::{NewJob, StoredJob};

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// When to stop and what to keep.
    #[serde(deserialize_with = "read_strategy")]
    pub strategy: Strategy,
    /// How kept samples are compared with their baseline.
    #[serde(deserialize_with = "read_advantage")]
    pub advantage: Advantage,
    /// Version of the weights, pinned when the job was accepted.
    pub weights_version: u64,
    /// Where per-prompt history is kept.
    pub namespace: String,
    /// Importance among jobs: the higher gets the engine's places first.
    pub priority: i64,
    /// Seconds from acceptance after which the job ends.
    pub deadline_s: Option<f64>,
    /// Order of delivery.
    pub order: Order,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Seed of every random stream of the job.
    pub seed: u64,
    /// What a change of weights does to the job.
    pub on_weight_update: OnWeightUpdate,
    /// What an unusable reference answer does.
    pub bad_gold: BadGoldRule,
    /// What groups carry.
    #[serde(rename = "return")]
    pub fields: Return,
}

impl Settings {
    /// Whether the groups depend on what earlier jobs saw.
    pub fn uses_history(&self) -> bool {
        matches!(self.strategy.kind, Kind::Estimate { .. }) || self.advantage.baseline == Baseline::History
    }
}

fn read_strategy<'de, D: Deserializer<'de>>(reader: D) -> Result<Strategy, D::Error> {
    Strategy::read(&Value::deserialize(reader)?).map_err(serde::de::Error::custom)
}

fn read_advantage<'de, D: Deserializer<'de>>(reader: D) -> Result<Advantage, D::Error> {
    Advantage::read(&Value::deserialize(reader)?).map_err(serde::de::Error::custom)
}

/// One prompt of a job.
#[derive(Clone, Debug, Serialize)]
pub struct PromptSpec {
    /// Its id, unique within the job.
    pub id: String,
    /// Its tokens, at least one.
    pub token_ids: Arc<[u32]>,
    /// Its reward as the request names it.
    pub reward: reward::Spec,
    /// The caller's notes, handed to webhooks.
    pub metadata: Arc<Value>,
    /// What earlier jobs of the namespace saw of this prompt, as of acceptance.
    pub history: Option<History>,
    /// The compiled reward, or why its reference answer cannot be used (`bad_gold: fail_group`): the prompt's group is then failed.
    #[serde(skip)]
    pub verifier: Result<Arc<Verifier>, BadGold>,
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
    /// Label of the key that sent the request, for usage counts.
    pub key: String,
    /// When it was accepted, seconds since 1970.
    pub accepted_unix_s: f64,
}

/// What identifies the arithmetic and the weights behind a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Digest of the model's files.
    pub model_digest: String,
    /// Backend and kernels.
    pub numerics_id: String,
}

impl JobSpec {
    /// What earlier jobs saw of the prompts, in request order.
    pub fn histories(&self) -> Vec<Option<History>> {
        self.prompts.iter().map(|prompt| prompt.history).collect()
    }

    /// The job as the store keeps it; `weights_digest` is of the tensors of its version.
    pub fn to_stored(&self, origin: &Origin, weights_digest: &str) -> Result<NewJob, serde_json::Error> {
        Ok(NewJob {
            id: self.id.clone(),
            digest: self.digest.clone(),
            named: self.named,
            settings: serde_json::to_string(&*self.settings)?,
            spec: serde_json::to_vec(&self.prompts)?,
            prompts: self.prompts.len() as u32,
            namespace: self.settings.namespace.clone(),
            model_digest: origin.model_digest.clone(),
            numerics_id: origin.numerics_id.clone(),
            weights_version: self.settings.weights_version,
            weights_digest: weights_digest.to_owned(),
            key: self.key.clone(),
            accepted_unix_s: self.accepted_unix_s,
        })
    }

    /// The job as it was accepted.
    pub fn from_stored(stored: &StoredJob) -> Result<Self, FieldError> {
        #[derive(Deserialize)]
        struct Kept {
            id: String,
            token_ids: Vec<u32>,
            reward: Value,
            metadata: Value,
            history: Option<History>,
        }
        let damaged = |part: &'static str| move |e: serde_json::Error| FieldError::new(part, format!("cannot be read back: {e}"));
        let accepted = &stored.accepted;
        let settings: Settings = serde_json::from_str(&accepted.settings).map_err(damaged("settings"))?;
        let kept: Vec<Kept> = serde_json::from_slice(&accepted.spec).map_err(damaged("prompts"))?;
        let bad_gold = settings.bad_gold;
        let prompts = kept.into_iter().map(move |kept| {
            let reward = reward::Spec::read(&kept.reward)?;
            let verifier = match (reward.compile(), bad_gold) {
                (Err(bad), BadGoldRule::Refuse) => return Err(FieldError::new(bad.field, bad.problem)),
                (compiled, _) => compiled.map(Arc::new),
            };
            let (token_ids, metadata) = (kept.token_ids.into(), Arc::new(kept.metadata));
            Ok(PromptSpec { id: kept.id, token_ids, reward, metadata, history: kept.history, verifier })
        });
        Ok(JobSpec {
            id: accepted.id.clone(),
            named: accepted.named,
            digest: accepted.digest.clone(),
            sampling: Arc::new(settings.sampling.clone()),
            settings: Arc::new(settings),
            prompts: prompts.collect::<Result<_, FieldError>>()?,
            key: accepted.key.clone(),
            accepted_unix_s: accepted.accepted_unix_s,
        })
    }
}
