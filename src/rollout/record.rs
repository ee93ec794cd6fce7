//! A job as its readers see it: an append-only log of groups, its state, and a way to cancel it.
//!
//! Groups are serialized once and shared by every reader. A reader pulls at its own pace from a cursor, so a slow one costs no memory
//! beyond the log itself and never holds the job up. Part of the log's contract: event 0 is the job's header, then one event per group,
//! then the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::watch;

use super::plan::{Stats, Status};
use super::prompt::Waste;
use super::spec::{JobSpec, Settings};

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

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every group is delivered.
    Done,
    /// A sentence that says why not.
    Failed(String),
    /// Its caller ended it.
    Cancelled,
}

/// Sums over a job's delivered groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Prompts of the job.
    pub prompts: u64,
    /// Groups delivered.
    pub groups: u64,
    /// Of these, resolved.
    pub resolved: u64,
    /// Exhausted.
    pub exhausted: u64,
    /// Failed.
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
}

/// What a job was accepted as. The first event of its stream.
#[derive(Debug, Serialize)]
pub struct JobHeader<'a> {
    /// The job's id.
    pub job_id: &'a str,
    /// Where its stream is.
    pub events: String,
    /// Where its groups are.
    pub groups: String,
    /// Its effective settings.
    #[serde(flatten)]
    pub settings: &'a Settings,
}

/// A job and where it stands.
#[derive(Debug, Serialize)]
pub struct JobView<'a> {
    /// What it was accepted as.
    #[serde(flatten)]
    pub header: JobHeader<'a>,
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
    /// Sums over its groups.
    pub statistics: Totals,
}

/// What an event of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `{"job": {...}}`
    Job,
    /// A group.
    Group,
    /// `{"end": {...}}`
    End,
}

/// A job in memory.
#[derive(Debug)]
pub struct JobRecord {
    /// The job's id.
    pub id: String,
    /// Whether the caller chose the id.
    pub named: bool,
    /// Digest of the request.
    pub digest: String,
    settings: Arc<Settings>,
    header: Arc<str>,
    created: Instant,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
    cancel: watch::Sender<bool>,
}

#[derive(Debug)]
struct Log {
    state: JobState,
    error: Option<String>,
    totals: Totals,
    groups: Vec<Arc<str>>,
    bytes: usize,
    end: Option<Arc<str>>,
}

impl JobRecord {
    /// The record of a job that was just accepted.
    pub fn new(spec: &JobSpec) -> Result<Self, serde_json::Error> {
        #[derive(Serialize)]
        struct First<'a> {
            job: JobHeader<'a>,
        }
        let header = serde_json::to_string(&First { job: header(&spec.id, &spec.settings) })?;
        let totals = Totals { prompts: spec.prompts.len() as u64, ..Totals::default() };
        Ok(JobRecord {
            id: spec.id.clone(),
            named: spec.named,
            digest: spec.digest.clone(),
            settings: spec.settings.clone(),
            header: header.into(),
            created: Instant::now(),
            log: Mutex::new(Log { state: JobState::Queued, error: None, totals, groups: Vec::new(), bytes: 0, end: None }),
            changed: watch::channel(()).0,
            cancel: watch::channel(false).0,
        })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job left the queue; gives the time it waited.
    pub fn start(&self) -> Duration {
        self.log().state = JobState::Running;
        self.changed.send_replace(());
        self.created.elapsed()
    }

    /// Appends a delivered group.
    pub fn append(&self, json: String, status: Status, signal: bool, stats: &Stats, waste: Waste) {
        let mut log = self.log();
        let totals = &mut log.totals;
        totals.groups += 1;
        totals.resolved += u64::from(status == Status::Resolved);
        totals.exhausted += u64::from(status == Status::Exhausted);
        totals.failed += u64::from(status == Status::Failed);
        totals.signal += u64::from(signal);
        totals.samples_seen += u64::from(stats.seen);
        totals.samples_positive += u64::from(stats.positive);
        totals.tokens_seen += stats.tokens_seen;
        totals.tokens_discarded += waste.tokens;
        totals.samples_cancelled += waste.cancelled;
        log.bytes += json.len();
        log.groups.push(json.into());
        drop(log);
        self.changed.send_replace(());
    }

    /// Closes the log. The first ending counts.
    pub fn finish(&self, ending: Ending) {
        let mut log = self.log();
        if log.state.is_over() {
            return;
        }
        (log.state, log.error) = match ending {
            Ending::Done => (JobState::Done, None),
            Ending::Failed(sentence) => (JobState::Failed, Some(sentence)),
            Ending::Cancelled => (JobState::Cancelled, None),
        };
        #[derive(Serialize)]
        struct End<'a> {
            job_id: &'a str,
            #[serde(flatten)]
            progress: Progress,
        }
        #[derive(Serialize)]
        struct Last<'a> {
            end: End<'a>,
        }
        let last = Last { end: End { job_id: &self.id, progress: log.progress() } };
        log.end = Some(serde_json::to_string(&last).unwrap_or_else(|_| "{\"end\":{}}".into()).into());
        drop(log);
        self.changed.send_replace(());
    }

    /// Asks the job to end; it does so after its samples' blocks are free.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Resolves when the job is asked to end.
    pub async fn cancelled(&self) {
        let mut asked = self.cancel.subscribe();
        let _ = asked.wait_for(|asked| *asked).await;
    }

    /// Resolves when the job is over.
    pub async fn over(&self) {
        let mut changed = self.changed.subscribe();
        while !self.state().is_over() {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Its state.
    pub fn state(&self) -> JobState {
        self.log().state
    }

    /// Bytes that its groups occupy.
    pub fn bytes(&self) -> usize {
        self.log().bytes
    }

    /// Where the job stands, for `GET`.
    pub fn view(&self) -> JobView<'_> {
        JobView { header: header(&self.id, &self.settings), progress: self.log().progress() }
    }

    /// At most `limit` groups from position `cursor` on.
    pub fn groups(&self, cursor: usize, limit: usize) -> Vec<Arc<str>> {
        self.log().groups.iter().skip(cursor).take(limit).cloned().collect()
    }

    /// Event `cursor` of the stream, when it is there; nothing behind the end.
    pub async fn event(&self, cursor: usize) -> Option<(EventKind, Arc<str>)> {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let log = self.log();
                let groups = log.groups.len();
                match cursor {
                    0 => return Some((EventKind::Job, self.header.clone())),
                    n if n <= groups => return Some((EventKind::Group, log.groups[n - 1].clone())),
                    n => {
                        if let Some(end) = &log.end {
                            return (n == groups + 1).then(|| (EventKind::End, end.clone()));
                        }
                    }
                }
            }
            changed.changed().await.ok()?;
        }
    }
}

impl Log {
    fn progress(&self) -> Progress {
        Progress { state: self.state, error: self.error.clone(), statistics: self.totals }
    }
}

fn header<'a>(id: &'a str, settings: &'a Settings) -> JobHeader<'a> {
    JobHeader { job_id: id, events: format!("/v1/rollouts/{id}/events"), groups: format!("/v1/rollouts/{id}/groups"), settings }
}
