//! Where a job stands: its state, and sums over its groups.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::plan::Status;
use crate::store::GroupRow;

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Accepted, waits for a place.
    Queued,
    /// Sampling.
    Running,
    /// Every group is delivered.
    Done,
    /// It ended with an error.
    Failed,
    /// Its caller ended it.
    Cancelled,
}

impl JobState {
    /// Every state with its name.
    pub const ALL: [(JobState, &'static str); 5] = [
        (JobState::Queued, "queued"),
        (JobState::Running, "running"),
        (JobState::Done, "done"),
        (JobState::Failed, "failed"),
        (JobState::Cancelled, "cancelled"),
    ];

    /// Whether nothing more will come.
    pub fn is_over(self) -> bool {
        matches!(self, JobState::Done | JobState::Failed | JobState::Cancelled)
    }
}

/// Sums over a job's delivered groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Prompts of the job.
    pub prompts: u64,
    /// Groups delivered.
    pub groups: u64,
    /// Groups that `dapo` dropped: all their rewards were equal, or they failed.
    pub dropped: u64,
    /// Of the delivered, resolved.
    pub resolved: u64,
    /// Exhausted.
    pub exhausted: u64,
    /// Failed, dropped ones included.
    pub failed: u64,
    /// With contrast.
    pub signal: u64,
    /// Samples that strategies saw.
    pub samples_seen: u64,
    /// Of these, positive.
    pub samples_positive: u64,
    /// Tokens of the samples seen.
    pub tokens_seen: u64,
    /// Tokens drawn above exits (depends on timing).
    pub tokens_discarded: u64,
    /// Samples cancelled above exits (depends on timing).
    pub samples_cancelled: u64,
    /// Wall-clock deadlines that rewards met. Above 0, the job's groups may not come out the same again.
    pub wall_clock_timeouts: u64,
}

impl Totals {
    /// Counts a prompt's end.
    pub fn add(&mut self, row: &GroupRow) {
        let is = |status: Status| u64::from(row.status == status.name());
        match row.seq {
            Some(_) => {
                self.groups += 1;
                self.resolved += is(Status::Resolved);
                self.exhausted += is(Status::Exhausted);
                self.signal += u64::from(row.signal);
            }
            None => self.dropped += 1,
        }
        // A failed group is no group without contrast, even if `dapo` delivers neither.
        self.failed += is(Status::Failed);
        self.wall_clock_timeouts += u64::from(row.timeouts);
        self.samples_seen += u64::from(row.t);
        self.samples_positive += u64::from(row.positive);
        self.tokens_seen += row.tokens_seen;
    }
}

/// A job and where it stands.
#[derive(Debug, Serialize)]
pub struct JobView<'a> {
    /// What it was accepted as: `job_id`, `events`, `groups` and the effective settings.
    #[serde(flatten)]
    pub header: &'a Map<String, Value>,
    /// Where it stands.
    #[serde(flatten)]
    pub progress: Progress,
}

/// Where a job stands.
#[derive(Clone, Debug, Serialize)]
pub struct Progress {
    /// Its state.
    pub state: JobState,
    /// Why it failed.
    pub error: Option<String>,
    /// Whether it went on after a restart on other kernels or another kind of processor: promise 1 does not reach across that.
    pub numerics_changed: bool,
    /// Sums over its groups.
    pub statistics: Totals,
}
