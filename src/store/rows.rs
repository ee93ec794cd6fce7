//! What goes into the store and comes out of it: plain rows.

/// A job as it is accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct NewJob {
    /// Unique in the store.
    pub id: String,
    /// Of the request: tells a repeated request from another one with the same id.
    pub digest: String,
    /// Whether the client named the job.
    pub named: bool,
    /// Effective settings, JSON, as they are echoed.
    pub settings: String,
    /// What a restarted process needs to run the job; opaque here, compressed inside.
    pub spec: Vec<u8>,
    /// Number of prompts.
    pub prompts: u32,
    /// Whose prompt history it reads and feeds.
    pub namespace: String,
    /// Of the model's files.
    pub model_digest: String,
    /// Backend and kernels whose bits these are.
    pub numerics_id: String,
    /// The version pinned at acceptance; of a job that starts again under other weights, the version of its samples.
    pub weights_version: u64,
    /// Digest of that version's tensors; empty where it is not known.
    pub weights_digest: String,
    /// Name of the API key that sent it.
    pub key: String,
    /// Seconds since 1970.
    pub accepted_unix_s: f64,
}

/// Where a job stands. That an open job is queued or running is known to who runs it, not to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Accepted and not closed.
    Open,
    /// Closed with all its groups.
    Done,
    /// Closed by an error.
    Failed,
    /// Closed by its client.
    Cancelled,
}

impl JobState {
    pub(super) fn code(self) -> i64 {
        self as i64
    }

    pub(super) fn from_code(code: i64) -> Option<Self> {
        [JobState::Open, JobState::Done, JobState::Failed, JobState::Cancelled].into_iter().find(|s| s.code() == code)
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            JobState::Open => "open",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        }
    }
}

/// A job as the store knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Its row key, ascending in order of acceptance, never used again.
    pub job: i64,
    /// What was accepted; the spec of a closed job is left out.
    pub accepted: NewJob,
    /// Where it stands.
    pub state: JobState,
    /// Why it failed.
    pub error: Option<String>,
    /// JSON, given at the close.
    pub totals: Option<String>,
    /// Seconds since 1970.
    pub closed_unix_s: Option<f64>,
}

/// A job in a list.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct JobSummary {
    /// Its row key.
    #[serde(skip)]
    pub job: i64,
    /// Its id.
    pub id: String,
    /// Where it stands.
    pub state: JobState,
    /// Prompts of the request.
    pub prompts: u32,
    /// Groups delivered.
    pub groups: u64,
    /// Groups dropped.
    pub dropped: u64,
    /// Samples that the strategy saw, over all its groups.
    pub samples: u64,
    /// Tokens of those samples.
    pub tokens: u64,
    /// Seconds since 1970.
    pub accepted_unix_s: f64,
    /// Seconds since 1970.
    pub closed_unix_s: Option<f64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// A finished sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleRow {
    /// Row key of the job.
    pub job: i64,
    /// Position of the prompt in the request.
    pub prompt: u32,
    /// The sample's index.
    pub index: u32,
    /// The sampled tokens.
    pub token_ids: Vec<u32>,
    /// One for every token.
    pub logprobs: Vec<f32>,
    /// Of the untouched distribution; costs nothing where it is equal to `logprobs` in every bit.
    pub logprobs_raw: Option<Vec<f32>>,
    /// The answer.
    pub text: String,
    /// Why it ended.
    pub finish_reason: String,
    /// What it ended at, JSON.
    pub stop_match: Option<String>,
    /// (version, start, end): the tokens sampled under one weights version.
    pub weight_versions: Vec<(u64, u32, u32)>,
}

/// What a verifier said. The codes are the caller's.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Outcome code.
    pub outcome: u8,
    /// The reward, finite, where there is one (the sign of a zero is kept).
    pub reward: Option<f64>,
    /// Status code.
    pub status: u8,
    /// Why it failed.
    pub note: Option<String>,
    /// What the verifier read in the answer, JSON.
    pub found: Option<String>,
    /// Deadlines that passed on the way.
    pub timeouts: u32,
}

/// The verdict on a stored sample.
#[derive(Clone, Debug, PartialEq)]
pub struct VerdictRow {
    /// Row key of the job.
    pub job: i64,
    /// Position of the prompt in the request.
    pub prompt: u32,
    /// The sample's index.
    pub index: u32,
    /// What the verifier said.
    pub verdict: Verdict,
}

/// A sample as it comes back.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSample {
    /// As it was stored.
    pub sample: SampleRow,
    /// The last verdict on it.
    pub verdict: Option<Verdict>,
}

/// How a prompt ended.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRow {
    /// Row key of the job.
    pub job: i64,
    /// Position of the prompt in the request.
    pub prompt: u32,
    /// Its place among the delivered groups; `None`: dropped, not delivered.
    pub seq: Option<u64>,
    /// Indices below the exit.
    pub t: u32,
    /// How the strategy left the prompt.
    pub kind: String,
    /// The group's status.
    pub status: String,
    /// Whether it has a signal.
    pub signal: bool,
    /// Positive samples seen.
    pub positive: u32,
    /// Negative samples seen.
    pub negative: u32,
    /// Tokens of the samples seen.
    pub tokens_seen: u64,
    /// Wall-clock deadlines that it met.
    pub timeouts: u32,
    /// The group as it is delivered; compressed inside. `None` in what `resume` returns.
    pub json: Option<String>,
}

/// The end of a job.
#[derive(Clone, Debug)]
pub struct CloseJob {
    /// Row key of the job.
    pub job: i64,
    /// Not `Open`.
    pub state: JobState,
    /// Why it failed.
    pub error: Option<String>,
    /// JSON.
    pub totals: String,
    /// Seconds since 1970.
    pub closed_unix_s: f64,
    /// Whether and how its groups enter the prompt history.
    pub update_history: Option<HistoryUpdate>,
}

/// N <- lambda N + n, S <- lambda S + k for every group, in request order.
#[derive(Clone, Debug)]
pub struct HistoryUpdate {
    /// What an older count is worth.
    pub lambda: f64,
    /// The prompts' ids, by position in the request.
    pub ids: Vec<String>,
}

/// A stored sample without its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumeSample {
    /// Position of the prompt in the request.
    pub prompt: u32,
    /// The sample's index.
    pub index: u32,
    /// Why it ended.
    pub finish_reason: String,
    /// Its length.
    pub tokens: u32,
    /// The last verdict on it.
    pub verdict: Option<Verdict>,
}

/// What a restarted process needs to go on with a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resume {
    /// By (prompt, index). A prompt that has a group has no samples.
    pub samples: Vec<ResumeSample>,
    /// By prompt, without their JSON.
    pub groups: Vec<GroupRow>,
    /// Version of the weights under which a job that starts again under new ones last started, and the digest of its tensors; `None` for a
    /// new job.
    pub weights: Option<(u64, String)>,
}

/// What one key used on one day.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct UsageRow {
    /// Days since 1970, UTC.
    pub day: i64,
    /// Name of the API key.
    pub key: String,
    /// Requests accepted.
    pub requests: u64,
    /// Prompts.
    pub prompts: u64,
    /// Samples.
    pub samples: u64,
    /// Tokens generated.
    pub tokens: u64,
}
