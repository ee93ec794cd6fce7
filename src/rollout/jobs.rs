//! The jobs in memory: admission, idempotency, and a bounded shelf of finished ones.
//!
//! A durable store would stand here: [`Jobs::admit`] is where a job is written before it is acknowledged, and
//! [`JobRecord::append`] where a group is.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::job::{self, Context};
use super::record::{Ending, JobRecord, JobState};
use super::spec::JobSpec;

/// Bounds on jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct JobLimits {
    /// Jobs that are queued or running.
    pub max_open: usize,
    /// Jobs that run at once; the others queue in order.
    pub max_running: usize,
    /// Finished jobs kept for their readers; the oldest go first.
    pub max_finished: usize,
    /// Bytes of groups that all jobs may hold before finished jobs are dropped, oldest first.
    pub max_bytes: usize,
}

impl Default for JobLimits {
    fn default() -> Self {
        JobLimits { max_open: 64, max_running: 16, max_finished: 256, max_bytes: 1 << 30 }
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub enum Admission {
    /// A new job.
    Started(Arc<JobRecord>),
    /// The same request under the same id was there already.
    Attached(Arc<JobRecord>),
}

impl Admission {
    /// The job's record.
    pub fn record(&self) -> &Arc<JobRecord> {
        match self {
            Admission::Started(record) | Admission::Attached(record) => record,
        }
    }
}

/// Why a job was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The id is taken by another request.
    #[error("belongs to a job with another request; use another id, or send the same request to attach to it")]
    OtherRequest,
    /// Too many open jobs.
    #[error("{0} jobs are open, the most this server takes; try again when one has finished")]
    Full(usize),
    /// The server shuts down.
    #[error("the server is shutting down; send the job again when it is back")]
    Closing,
    /// The job could not be recorded.
    #[error("the job could not be recorded: {0}")]
    Record(String),
}

/// Every job in memory.
pub struct Jobs {
    context: Context,
    limits: JobLimits,
    places: Arc<Semaphore>,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    by_id: HashMap<String, Arc<JobRecord>>,
    /// Ids by age.
    order: VecDeque<String>,
    closing: bool,
}

impl Jobs {
    /// No jobs yet.
    pub fn new(context: Context, limits: JobLimits) -> Self {
        Jobs { context, limits, places: Arc::new(Semaphore::new(limits.max_running.max(1))), shelf: Mutex::default() }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The job called `id`, if the request with this digest may attach to it.
    pub fn attach(&self, id: &str, digest: &str) -> Result<Option<Arc<JobRecord>>, Refusal> {
        match self.find(id) {
            Some(record) if record.digest == digest => Ok(Some(record)),
            Some(_) => Err(Refusal::OtherRequest),
            None => Ok(None),
        }
    }

    /// Starts the job, or attaches to the one that is there. Must be called within a runtime.
    pub fn admit(&self, spec: JobSpec) -> Result<Admission, Refusal> {
        let mut shelf = self.shelf();
        match shelf.by_id.get(&spec.id) {
            Some(record) if record.digest == spec.digest => return Ok(Admission::Attached(record.clone())),
            Some(_) => return Err(Refusal::OtherRequest),
            None if shelf.closing => return Err(Refusal::Closing),
            None => {}
        }
        let open = shelf.by_id.values().filter(|record| !record.state().is_over()).count();
        if open >= self.limits.max_open {
            return Err(Refusal::Full(open));
        }
        shelf.make_room(&self.limits);
        let record = Arc::new(JobRecord::new(&spec).map_err(|error| Refusal::Record(error.to_string()))?);
        shelf.by_id.insert(record.id.clone(), record.clone());
        shelf.order.push_back(record.id.clone());
        drop(shelf);
        let task = tokio::spawn(run(self.context.clone(), self.places.clone(), spec, record.clone()));
        let watched = record.clone();
        tokio::spawn(async move {
            // A job that panics fails; its readers must not wait forever.
            if task.await.is_err() {
                watched.finish(Ending::Failed("the job stopped with an internal error; please report this".into()));
            }
        });
        Ok(Admission::Started(record))
    }

    /// The job called `id`.
    pub fn find(&self, id: &str) -> Option<Arc<JobRecord>> {
        self.shelf().by_id.get(id).cloned()
    }

    /// Every job, oldest first.
    pub fn list(&self) -> Vec<Arc<JobRecord>> {
        let shelf = self.shelf();
        shelf.order.iter().filter_map(|id| shelf.by_id.get(id).cloned()).collect()
    }

    /// Number of jobs in each state.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let states: Vec<JobState> = self.list().iter().map(|record| record.state()).collect();
        JobState::ALL.iter().map(|(state, name)| (*name, states.iter().filter(|s| *s == state).count())).collect()
    }

    /// Whether no job is taken any more.
    pub fn is_closing(&self) -> bool {
        self.shelf().closing
    }

    /// Takes no more jobs, gives the open ones `grace` to finish, and then cancels them.
    pub async fn close(&self, grace: Duration) {
        self.shelf().closing = true;
        let open = self.list();
        let all_over = futures::future::join_all(open.iter().map(|record| record.over()));
        if tokio::time::timeout(grace, all_over).await.is_ok() {
            return;
        }
        open.iter().for_each(|record| record.cancel());
        futures::future::join_all(open.iter().map(|record| record.over())).await;
    }
}

impl Shelf {
    /// Drops finished jobs, oldest first, down to the limits.
    fn make_room(&mut self, limits: &JobLimits) {
        let finished = |shelf: &Shelf, id: &String| shelf.by_id.get(id).is_none_or(|record| record.state().is_over());
        loop {
            let over: Vec<&String> = self.order.iter().filter(|id| finished(self, id)).collect();
            let bytes: usize = self.by_id.values().map(|record| record.bytes()).sum();
            let Some(oldest) = over.first().filter(|_| over.len() > limits.max_finished || bytes > limits.max_bytes) else { return };
            let oldest = (*oldest).clone();
            self.order.retain(|id| *id != oldest);
            self.by_id.remove(&oldest);
        }
    }
}

/// A job's task: waits for a place, runs, closes the record.
async fn run(context: Context, places: Arc<Semaphore>, spec: JobSpec, record: Arc<JobRecord>) {
    let place = tokio::select! {
        biased;
        () = record.cancelled() => None,
        place = places.acquire() => place.ok(),
    };
    let Some(_place) = place else { return record.finish(Ending::Cancelled) };
    context.metrics.job_started(record.start());
    let ending = job::run(&context, &spec, &record).await;
    if let Ending::Failed(sentence) = &ending {
        tracing::warn!(job = %record.id, "job failed: {sentence}");
    }
    record.finish(ending);
}
