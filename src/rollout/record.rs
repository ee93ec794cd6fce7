//! A job as its readers see it: an append-only log of groups, its state, and ways to end it.
//!
//! The log's groups are in the store; what is here is their number. A reader pulls at its own pace from a cursor, so a slow one costs one
//! group at a time and never holds the job up. Part of the log's contract: event 0 is the job's header, then one event per group in the
//! order of delivery, then the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot, watch};

use super::progress::{JobState, JobView, Progress, Totals};
use super::scores::{Posted, PostedScore, ScoreAnswer};
use super::spec::JobSpec;
use crate::store::{GroupRow, Store, StoredJob};

/// A page of groups ends with the group that reaches so many bytes.
const PAGE_BYTES: usize = 16 << 20;

/// How a job's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every group is delivered.
    Done,
    /// A sentence that says why not.
    Failed(String),
    /// Its caller ended it.
    Cancelled,
    /// The server shuts down: the job stays open in the store and goes on after the next start.
    Suspended,
    /// The store or the engine does not go on. The job stays open, as the store knows it.
    Lost(String),
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

/// What a running job is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To go on.
    GoOn,
    /// To end for good.
    Cancel,
    /// To stop and stay open in the store.
    Suspend,
}

/// A job of this process, or a closed one from the store.
#[derive(Debug)]
pub struct JobRecord {
    /// The job's id.
    pub id: String,
    /// Its row in the store.
    pub key: i64,
    /// Whether the caller chose the id.
    pub named: bool,
    /// Digest of the request.
    pub digest: String,
    /// The job, while it is open.
    pub spec: Option<Arc<JobSpec>>,
    store: Store,
    head: Map<String, Value>,
    header: Arc<str>,
    created: Instant,
    log: Mutex<Log>,
    changed: watch::Sender<()>,
    asked: watch::Sender<Asked>,
    waiting: watch::Sender<()>,
    scores: mpsc::UnboundedSender<Posted>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Posted>>>,
}

#[derive(Debug)]
struct Log {
    state: JobState,
    /// The run has ended and the job has not.
    suspended: bool,
    error: Option<String>,
    numerics_changed: bool,
    totals: Totals,
    end: Option<Arc<str>>,
}

impl JobRecord {
    /// The record of an open job.
    pub fn open(spec: Arc<JobSpec>, key: i64, store: Store) -> Result<Self, serde_json::Error> {
        // By way of text: an f32 must be echoed as it was sent, not as the f64 that it is.
        let settings = serde_json::from_str(&serde_json::to_string(&*spec.settings)?)?;
        let totals = Totals { prompts: spec.prompts.len() as u64, ..Totals::default() };
        let (id, named, digest) = (spec.id.clone(), spec.named, spec.digest.clone());
        Self::build(id, key, named, digest, settings, Some(spec), store, totals)
    }

    /// The record of a job that the store has closed.
    pub fn closed(stored: &StoredJob, store: Store) -> Result<Self, serde_json::Error> {
        use crate::store::JobState as Stored;
        let accepted = &stored.accepted;
        let totals = stored.totals.as_deref().map(serde_json::from_str).transpose()?.unwrap_or_default();
        let ending = match stored.state {
            Stored::Done => Ending::Done,
            Stored::Cancelled => Ending::Cancelled,
            Stored::Failed => Ending::Failed(stored.error.clone().unwrap_or_else(|| "the store does not say why".into())),
            Stored::Open => return Err(serde::ser::Error::custom("the job is not closed")),
        };
        let settings = serde_json::from_str(&accepted.settings)?;
        let (id, digest) = (accepted.id.clone(), accepted.digest.clone());
        let record = Self::build(id, stored.job, accepted.named, digest, settings, None, store, totals)?;
        record.log().numerics_changed = accepted.numerics_id.contains(' ');
        record.finish(ending);
        Ok(record)
    }

    fn build(
        id: String,
        key: i64,
        named: bool,
        digest: String,
        settings: Value,
        spec: Option<Arc<JobSpec>>,
        store: Store,
        totals: Totals,
    ) -> Result<Self, serde_json::Error> {
        let mut head = Map::new();
        head.insert("job_id".into(), id.clone().into());
        head.insert("events".into(), format!("/v1/rollouts/{id}/events").into());
        head.insert("groups".into(), format!("/v1/rollouts/{id}/groups").into());
        if let Value::Object(settings) = settings {
            head.extend(settings);
        }
        #[derive(Serialize)]
        struct First<'a> {
            job: &'a Map<String, Value>,
        }
        let header = serde_json::to_string(&First { job: &head })?.into();
        let (scores, inbox) = mpsc::unbounded_channel();
        let log = Log { state: JobState::Queued, suspended: false, error: None, numerics_changed: false, totals, end: None };
        Ok(JobRecord {
            id,
            key,
            named,
            digest,
            spec,
            store,
            head,
            header,
            created: Instant::now(),
            log: Mutex::new(log),
            changed: watch::channel(()).0,
            asked: watch::channel(Asked::GoOn).0,
            waiting: watch::channel(()).0,
            scores,
            inbox: Mutex::new(Some(inbox)),
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

    /// Counts groups that an earlier process delivered.
    pub fn restore(&self, groups: &[GroupRow], numerics_changed: bool) {
        let mut log = self.log();
        groups.iter().for_each(|row| log.totals.add(row));
        log.numerics_changed = numerics_changed;
    }

    /// A prompt's end was written to the store.
    pub fn appended(&self, row: &GroupRow, tokens_discarded: u64, samples_cancelled: u64) {
        let mut log = self.log();
        log.totals.add(row);
        log.totals.tokens_discarded += tokens_discarded;
        log.totals.samples_cancelled += samples_cancelled;
        drop(log);
        self.changed.send_replace(());
    }

    /// Closes the log. The first ending counts.
    pub fn finish(&self, ending: Ending) {
        let mut log = self.log();
        if log.state.is_over() {
            return;
        }
        // The process must not forget a job that it has lost: the store still holds it as open.
        log.suspended = matches!(ending, Ending::Suspended | Ending::Lost(_));
        (log.state, log.error) = match ending {
            Ending::Done => (JobState::Done, None),
            Ending::Failed(sentence) | Ending::Lost(sentence) => (JobState::Failed, Some(sentence)),
            Ending::Cancelled => (JobState::Cancelled, None),
            Ending::Suspended => {
                drop(log);
                self.changed.send_replace(());
                return;
            }
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
        // Nobody scores a job that is over.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        if log.suspended && self.store.is_durable() {
            // The job goes on in another process: an end in the stream would make its readers miss what follows.
            drop(log);
            self.changed.send_replace(());
            return;
        }
        let last = Last { end: End { job_id: &self.id, progress: log.progress() } };
        log.end = Some(serde_json::to_string(&last).unwrap_or_else(|_| "{\"end\":{}}".into()).into());
        drop(log);
        self.changed.send_replace(());
    }

    /// Asks the job to end; it does so after its samples' blocks are free.
    pub fn cancel(&self) {
        self.asked.send_replace(Asked::Cancel);
    }

    /// Asks the job to stop and to stay open in the store. A cancel that came before stands.
    pub fn suspend(&self) {
        self.asked.send_if_modified(|asked| {
            let suspend = *asked == Asked::GoOn;
            if suspend {
                *asked = Asked::Suspend;
            }
            suspend
        });
    }

    /// Resolves when the job is asked to stop.
    pub async fn asked_to_stop(&self) -> Asked {
        let mut asked = self.asked.subscribe();
        match asked.wait_for(|asked| *asked != Asked::GoOn).await {
            Ok(asked) => *asked,
            Err(_) => Asked::Suspend,
        }
    }

    /// Resolves when the job is over, or its run has ended.
    pub async fn over(&self) {
        let mut changed = self.changed.subscribe();
        loop {
            {
                let log = self.log();
                if log.state.is_over() || log.suspended {
                    return;
                }
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// The store has closed it as cancelled although its run had stopped before: its log gets the end that it did not have.
    pub fn cancelled_in_store(&self) {
        let mut log = self.log();
        (log.state, log.suspended) = (JobState::Queued, false);
        drop(log);
        self.finish(Ending::Cancelled);
    }

    /// Whether the store has closed it, too.
    pub fn is_closed(&self) -> bool {
        let log = self.log();
        log.state.is_over() && !log.suspended
    }

    /// Its state.
    pub fn state(&self) -> JobState {
        self.log().state
    }

    /// Sums over its groups so far.
    pub fn totals(&self) -> Totals {
        self.log().totals
    }

    /// Where the job stands, for `GET`.
    pub fn view(&self) -> JobView<'_> {
        JobView { header: &self.head, progress: self.log().progress() }
    }

    /// A sample waits for a client's score.
    pub fn waits_for_scores(&self) {
        self.waiting.send_replace(());
    }

    /// Resolves when a sample after this call waits for a client's score, or when the job's state or groups change.
    pub fn next_waiting(&self) -> impl Future<Output = ()> + use<> {
        let (mut waiting, mut changed) = (self.waiting.subscribe(), self.changed.subscribe());
        async move {
            tokio::select! {
                _ = waiting.changed() => {}
                _ = changed.changed() => {}
            }
        }
    }

    /// Hands scores to the job's loop; nothing if the job is over.
    pub async fn post_scores(&self, scores: Vec<PostedScore>) -> Option<Vec<ScoreAnswer>> {
        match self.state() {
            JobState::Queued => return Some(vec![ScoreAnswer::NotFinished; scores.len()]),
            state if state.is_over() => return None,
            _ => {}
        }
        let (answer, answers) = oneshot::channel();
        self.scores.send((scores, answer)).ok()?;
        answers.await.ok()
    }

    /// The scores' way in; the job's loop takes it once.
    pub fn take_inbox(&self) -> Option<mpsc::UnboundedReceiver<Posted>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// At most `limit` delivered groups from position `cursor` on, and no more of them than a page's bytes need.
    pub async fn groups(&self, cursor: usize, limit: usize) -> Result<Vec<String>, String> {
        let delivered = self.log().totals.groups;
        let wanted = (delivered.saturating_sub(cursor as u64)).min(limit as u64);
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let (store, key) = (self.store.clone(), self.key);
        let read = move || {
            let (mut groups, mut bytes, mut at) = (Vec::new(), 0, cursor as u64);
            let end = at + wanted;
            while at < end && bytes < PAGE_BYTES {
                let part = store.groups(key, at, (end - at).min(16) as u32).map_err(|e| e.to_string())?;
                if part.is_empty() {
                    break;
                }
                at += part.len() as u64;
                bytes += part.iter().map(String::len).sum::<usize>();
                groups.extend(part);
            }
            Ok(groups)
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|_| Err("reading groups stopped with an internal error".into()))
    }

    /// Event `cursor` of the stream, when it is there; nothing behind the end, or when the server shuts down first.
    pub async fn event(&self, cursor: usize) -> Option<(EventKind, Arc<str>)> {
        let mut changed = self.changed.subscribe();
        loop {
            let found = {
                let log = self.log();
                let groups = log.totals.groups as usize;
                match cursor {
                    0 => return Some((EventKind::Job, self.header.clone())),
                    n if n <= groups => true,
                    n => {
                        if let Some(end) = &log.end {
                            return (n == groups + 1).then(|| (EventKind::End, end.clone()));
                        }
                        if log.suspended {
                            return None;
                        }
                        false
                    }
                }
            };
            if found {
                return match self.groups(cursor - 1, 1).await {
                    Ok(mut groups) => groups.pop().map(|json| (EventKind::Group, json.into())),
                    Err(error) => {
                        tracing::error!(job = %self.id, "a group cannot be read back: {error}");
                        None
                    }
                };
            }
            changed.changed().await.ok()?;
        }
    }
}

impl Log {
    fn progress(&self) -> Progress {
        let (state, error) = (self.state, self.error.clone());
        Progress { state, error, numerics_changed: self.numerics_changed, statistics: self.totals }
    }
}
