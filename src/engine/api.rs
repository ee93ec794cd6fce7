//! What an engine takes and gives: the seam that rollouts, the server and the commands build on.
//!
//! A sample is a pure function of (weights version, prompt token ids, sampling parameters, stream key, sample index). Nothing else
//! decides its tokens or log-probabilities: not the batch, not the cache, not the clock.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::weights::{StageError, Swapped};
use crate::model::TensorSource;
use crate::ops::handover::{DeviceId, Exported, ImportError};

/// Names one submitted sample within one engine. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Key of a prompt's random stream: the first 64 bits of BLAKE3(job seed as little-endian u64, then the prompt id in UTF-8), read as
/// two little-endian u32, word 0 first. The sample index and the position are in the counter, not in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey(pub [u32; 2]);

impl StreamKey {
    /// The key of prompt `prompt_id` in a job seeded with `job_seed`.
    pub fn new(job_seed: u64, prompt_id: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&job_seed.to_le_bytes());
        hasher.update(prompt_id.as_bytes());
        let digest = hasher.finalize();
        let b = digest.as_bytes();
        StreamKey([u32::from_le_bytes([b[0], b[1], b[2], b[3]]), u32::from_le_bytes([b[4], b[5], b[6], b[7]])])
    }
}

/// How the next token is drawn and when a sample ends. Filters apply in this order: logit bias, `min_tokens` mask, temperature,
/// top-k, top-p, min-p.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 means the most likely token (ties: the lowest id).
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens (ties: the lowest ids); 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely tokens until their probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// At most this many tokens are generated.
    pub max_tokens: u32,
    /// No stop token is drawn, and no stop string looked for, before this many tokens are there.
    pub min_tokens: u32,
    /// The sample ends when its text contains one of these; the text is cut before the match.
    pub stop: Vec<String>,
    /// The sample ends after one of these token ids, beside the model's own stop tokens.
    pub stop_token_ids: Vec<u32>,
    /// Do not end at the model's own stop tokens.
    pub ignore_eos: bool,
    /// Added to the logits of these token ids before everything else.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            max_tokens: 512,
            min_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logit_bias: Vec::new(),
        }
    }
}

/// A value that a caller sent and that cannot be used: which field, what is wrong with it, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct FieldError {
    /// Path of the field as the caller wrote it, for example `sampling.top_p`.
    pub field: String,
    /// A sentence that says what is wrong and what would be right.
    pub problem: String,
}

impl FieldError {
    /// A field error.
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        FieldError { field: field.into(), problem: problem.into() }
    }
}

impl SamplingParams {
    /// Checks every field against what the model allows. Field names are given without a prefix (`top_p`).
    pub fn validate(&self, vocab_size: usize, has_tokenizer: bool) -> Result<(), FieldError> {
        let fail = |field: &str, problem: String| Err(FieldError::new(field, problem));
        if !(self.temperature == 0.0 || (1e-3..=1e3).contains(&self.temperature)) {
            return fail("temperature", format!("is {}; it must be 0 (most likely token) or between 0.001 and 1000", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return fail("top_p", format!("is {}; it must be above 0 and at most 1 (1 keeps every token)", self.top_p));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return fail("min_p", format!("is {}; it must be between 0 (keeps every token) and 1", self.min_p));
        }
        if self.max_tokens == 0 {
            return fail("max_tokens", "is 0; ask for at least 1 token".into());
        }
        if self.min_tokens > self.max_tokens {
            return fail(
                "min_tokens",
                format!("is {}, above max_tokens {}; lower one or raise the other", self.min_tokens, self.max_tokens),
            );
        }
        if self.stop.iter().any(String::is_empty) {
            return fail("stop", "holds an empty string, which would match everywhere; remove it".into());
        }
        if self.stop.len() > 64 || self.stop.iter().any(|s| s.len() > 1024) {
            return fail("stop", "holds more than 64 strings or one of more than 1024 bytes; use fewer or shorter ones".into());
        }
        if !self.stop.is_empty() && !has_tokenizer {
            return fail("stop", "needs text, and this model folder has no tokenizer.json; use stop_token_ids".into());
        }
        if let Some(id) = self.stop_token_ids.iter().find(|&&id| id as usize >= vocab_size) {
            return fail("stop_token_ids", format!("holds {id}, but this model's ids end at {}", vocab_size - 1));
        }
        for (i, &(id, bias)) in self.logit_bias.iter().enumerate() {
            if id as usize >= vocab_size {
                return fail("logit_bias", format!("names token {id}, but this model's ids end at {}", vocab_size - 1));
            }
            if !(-1000.0..=1000.0).contains(&bias) {
                return fail("logit_bias", format!("gives token {id} a bias of {bias}; it must be between -1000 and 1000"));
            }
            if self.logit_bias[..i].iter().any(|&(other, _)| other == id) {
                return fail("logit_bias", format!("names token {id} twice; give it once"));
            }
        }
        Ok(())
    }
}

/// One sample of one prompt.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// Token ids of the prompt, at least one. Samples of one prompt share the allocation and its prefill.
    pub prompt: Arc<[u32]>,
    /// Sampling parameters; checked by `submit`.
    pub params: Arc<SamplingParams>,
    /// Key of the prompt's random stream.
    pub key: StreamKey,
    /// Index of the sample within the prompt, a part of its random counter.
    pub index: u32,
    /// Whether every token is reported as it is drawn ([`Event::Token`]); without it only the finished sample is.
    pub stream_tokens: bool,
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The model gave non-finite logits. Such a sample is failed, never negative.
    Numerics,
    /// The caller cancelled it.
    Cancelled,
}

impl FinishReason {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Numerics => "numerics",
            FinishReason::Cancelled => "cancelled",
        }
    }

    /// The reason with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [FinishReason::Stop, FinishReason::Length, FinishReason::Numerics, FinishReason::Cancelled].into_iter().find(|r| r.name() == name)
    }
}

/// What ended a sample whose reason is [`FinishReason::Stop`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum StopMatch {
    /// This token id.
    Token(u32),
    /// This string.
    Text(String),
}

/// Tokens `start..end` of a sample were drawn by this version of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct VersionSpan {
    /// Version.
    pub version: u64,
    /// First token.
    pub start: u32,
    /// Behind the last token.
    pub end: u32,
}

/// A finished sample. `token_ids`, `logprobs` and `logprobs_raw` have the same length, and every log-probability is finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Index of the sample within its prompt.
    pub index: u32,
    /// The tokens drawn, the one that ended the sample included.
    pub token_ids: Vec<u32>,
    /// Log-probability of each token under the distribution that it was drawn from (the raw one at temperature 0).
    pub logprobs: Vec<f32>,
    /// Log-probability of each token under the model's untouched distribution at temperature 1.
    pub logprobs_raw: Vec<f32>,
    /// The text, special tokens skipped, cut before a stop match; empty for a model without tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What ended it, if it was a stop.
    pub stop_match: Option<StopMatch>,
    /// Which weights drew which tokens: spans that cover all tokens in order, one unless the weights changed on the way. A sample without
    /// tokens has an empty one.
    pub weight_versions: Vec<VersionSpan>,
}

/// What a sample's stream carries. The last event is always [`Event::Finished`], also after a cancel; a stream that ends without it says that
/// the engine's loop has failed.
#[derive(Clone, Debug)]
pub enum Event {
    /// One token was drawn (only with `stream_tokens`).
    Token {
        /// The token.
        token_id: u32,
        /// As in [`Sample::logprobs`].
        logprob: f32,
        /// As in [`Sample::logprobs_raw`].
        logprob_raw: f32,
        /// Text that has become certain with this token: never half a character, never a part of a stop string.
        text: String,
    },
    /// The sample has ended and its blocks are free.
    Finished(Box<Sample>),
}

/// The events of one sample.
#[derive(Debug)]
pub struct SampleStream {
    /// The sample's name, for [`Engine::cancel`].
    pub id: RequestId,
    /// Its events. The engine never waits for a reader: at most `max_tokens + 1` events are ever queued.
    pub events: mpsc::UnboundedReceiver<Event>,
}

/// Resolves after the cancelled sample's blocks are free; `true` if it was still there to be cancelled.
pub type CancelAck = oneshot::Receiver<bool>;

/// Sequences to score: the log-probability that the model gives to tokens that are already there.
#[derive(Clone, Debug)]
pub struct ScoreRequest {
    /// The whole sequence, prompt and continuation.
    pub token_ids: Arc<[u32]>,
    /// Values are returned for positions `from..`; at least 1, since the first token has none.
    pub from: usize,
    /// Temperature of `logprobs`, as a sampler with no filters would have used it.
    pub temperature: f32,
}

/// Log-probabilities of one sequence: `token_ids.len() - from` values each, by the same operations as sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// At the request's temperature (the raw ones at temperature 0).
    pub logprobs: Vec<f32>,
    /// At temperature 1.
    pub logprobs_raw: Vec<f32>,
    /// Version of the weights.
    pub weights_version: u64,
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A field cannot be used.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The bounded queue is full; try again later.
    #[error("the engine's queue holds {0} requests and is full; try again when some have finished")]
    QueueFull(usize),
    /// The engine has stopped.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
    /// The model gave non-finite numbers while scoring.
    #[error("the model gave non-finite logits at position {0}; check the weights")]
    Numerics(usize),
}

/// What does not change while an engine serves one set of weights.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct EngineInfo {
    /// Number of token ids.
    pub vocab_size: usize,
    /// Longest sequence: prompt and generated tokens together.
    pub context_length: usize,
    /// Positions that the whole KV cache holds: no sequence can be longer, whatever the context.
    pub kv_tokens: usize,
    /// Backend and instruction set, part of the reproducibility record.
    pub numerics_id: String,
    /// What computes: `cpu`, or a GPU's number and name.
    pub device: String,
    /// Why no GPU computes, where one was looked for.
    pub why_not_cuda: Option<String>,
    /// Token ids that end a sample unless `ignore_eos`.
    pub stop_token_ids: Vec<u32>,
    /// Whether text (stop strings, decoded text) is available.
    pub has_tokenizer: bool,
}

/// Counters and gauges of an engine. Counters only grow.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct EngineStats {
    /// Version of the weights that serve.
    pub weights_version: u64,
    /// Samples in the running batch.
    pub running: usize,
    /// Samples that wait for blocks, for a place, or for another's prefill.
    pub waiting: usize,
    /// KV blocks in all.
    pub blocks_total: usize,
    /// KV blocks that no sample uses (those kept for the prefix cache included: they are given up on demand).
    pub blocks_free: usize,
    /// Of the free ones, those that hold a reusable prefix.
    pub blocks_cached: usize,
    /// Steps run.
    pub steps: u64,
    /// Rows of all steps.
    pub batch_tokens: u64,
    /// Prompt tokens whose keys and values were computed.
    pub prompt_tokens_computed: u64,
    /// Prompt tokens that were found in the prefix cache or shared with another sample.
    pub prompt_tokens_cached: u64,
    /// Tokens drawn.
    pub generated_tokens: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Samples that lost their blocks to others.
    pub preemptions: u64,
    /// Samples ended by the caller.
    pub cancelled: u64,
    /// Samples ended by non-finite logits.
    pub nonfinite: u64,
    /// Microseconds since the loop last went round; small while it is healthy.
    pub heartbeat_us: u64,
    /// Why the engine has stopped, if it has: a sentence. It takes nothing any more.
    pub stopped: Option<String>,
}

/// An engine's handle: the only way in. Cheap to share; every method may be called from any thread and none waits for a step.
pub trait Engine: Send + Sync {
    /// What the engine serves.
    fn info(&self) -> &EngineInfo;
    /// Queues one sample. Fails at once on a bad field or a full queue.
    fn submit(&self, request: SampleRequest) -> Result<SampleStream, SubmitError>;
    /// Ends a sample. Its stream still gets its `Finished` event (reason `cancelled`).
    fn cancel(&self, id: RequestId) -> CancelAck;
    /// Scores a sequence with the kernels that sample.
    fn score(&self, request: ScoreRequest) -> Result<oneshot::Receiver<Result<Scores, SubmitError>>, SubmitError>;
    /// Counters and gauges as of the last step.
    fn stats(&self) -> EngineStats;

    /// Packs verified tensors beside the live weights, in the calling thread; what was staged before and not swapped in is dropped.
    fn stage(&self, _version: u64, _source: &dyn TensorSource) -> Result<(), StageError> {
        Err(StageError::Fixed)
    }

    /// The device from whose memory [`Engine::import`] takes weights of another process, where there is one.
    fn ipc_device(&self) -> Option<DeviceId> {
        None
    }

    /// Stages weights that another process holds in the memory of this engine's device: a copy of its own, checked there.
    fn import(&self, _version: u64, _exported: &Exported) -> Result<(), StageError> {
        Err(ImportError::no_device().into())
    }

    /// Reads a tensor of the staged weights back, as [`crate::ops::Handover::read_place`] gives it.
    fn staged_tensor(&self, _name: &str) -> Result<Vec<u8>, StageError> {
        Err(ImportError::no_device().into())
    }

    /// Asks for the staged weights to serve. Requests sent before this call may start under the old weights; those sent after it run under
    /// the new ones alone. Samples that run keep their tokens and go on: their keys and values are computed again. Scores start again.
    fn swap(&self) -> Result<oneshot::Receiver<Swapped>, StageError> {
        Err(StageError::Fixed)
    }
}
