//! The jobs: admission, idempotency, recovery, and the way to find one.
//!
//! A job is in the store, durably, before it is acknowledged. Open jobs have a record and a task in this process; closed ones are read
//! back from the store when somebody asks for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::job::{self, Context};
use super::plan::History;
use super::progress::JobState;
use super::record::{Asked, Ending, JobRecord};
use super::spec::{JobSpec, Origin};
use super::unix_now;
use super::versions::{Pin, Versions};
use crate::store::{CloseJob, HistoryUpdate, JobState as StoredState, Resume, Store, StoreError};

/// Bounds on jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobLimits {
    /// Jobs that are queued or running.
    pub max_open: usize,
    /// Jobs that run at once; the others queue in order of acceptance.
    pub max_running: usize,
}

impl Default for JobLimits {
    fn default() -> Self {
        JobLimits { max_open: 64, max_running: 64 }
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
    /// The job was written down a moment ago and has not started.
    #[error("the job is being started; ask again in a moment")]
    Starting,
    /// The store takes nothing.
    #[error("the store takes nothing: {0}")]
    Store(String),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Refusal::Store(error.to_string())
    }
}

/// Why the store's open jobs cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The store.
    #[error("the store cannot be read: {0}")]
    Store(#[from] StoreError),
    /// Another model.
    #[error(
        "the store holds the open job {id:?}, which was accepted for another model than this one; start the server with that model, \
         end the job with `adaroll jobs cancel {id}`, or use another --store"
    )]
    OtherModel {
        /// The job.
        id: String,
    },
    /// A job cannot be read.
    #[error("the open job {id:?} in the store cannot be read back ({problem}); end it with `adaroll jobs cancel {id}`")]
    Damaged {
        /// The job.
        id: String,
        /// What is wrong.
        problem: String,
    },
}

/// The jobs of one server.
pub struct Jobs {
    context: Context,
    store: Store,
    origin: Origin,
    limits: JobLimits,
    places: Arc<Semaphore>,
    /// Only one request at a time looks whether its id is free and takes it.
    admission: tokio::sync::Mutex<()>,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Default)]
struct Shelf {
    /// Open jobs, by the order of their acceptance.
    open: BTreeMap<i64, Arc<JobRecord>>,
    by_id: HashMap<String, i64>,
    ended: [usize; 3],
    closing: bool,
}

impl Shelf {
    fn insert(&mut self, record: &Arc<JobRecord>) {
        self.by_id.insert(record.id.clone(), record.key);
        self.open.insert(record.key, record.clone());
    }

    fn remove(&mut self, record: &JobRecord) {
        self.open.remove(&record.key);
        self.by_id.remove(&record.id);
        let state = record.state();
        let over = JobState::ALL.iter().filter(|(state, _)| state.is_over()).position(|(s, _)| *s == state);
        if let Some(count) = over.and_then(|over| self.ended.get_mut(over)) {
            *count += 1;
        }
    }
}

fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// The jobs over a store; [`Jobs::recover`] starts those that are open in it.
    pub fn new(context: Context, store: Store, origin: Origin, limits: JobLimits) -> Self {
        let places = Arc::new(Semaphore::new(limits.max_running.max(1)));
        Jobs { context, store, origin, limits, places, admission: tokio::sync::Mutex::new(()), shelf: Arc::default() }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The versions of the weights.
    pub fn versions(&self) -> &Versions {
        &self.context.versions
    }

    /// Places for samples, in all and in use.
    pub fn slots(&self) -> (usize, usize) {
        self.context.slots.usage()
    }

    /// Goes on with the jobs that an earlier process left open; gives their number. Must be called within a runtime, before any admission.
    pub fn recover(&self) -> Result<usize, RecoverError> {
        let stored = self.store.open_jobs()?;
        let mut starts = Vec::with_capacity(stored.len());
        for job in stored {
            let id = job.accepted.id.clone();
            if job.accepted.model_digest != self.origin.model_digest {
                return Err(RecoverError::OtherModel { id });
            }
            // The row lists every numerics under which the job has run.
            let (was, now) = (&job.accepted.numerics_id, &self.origin.numerics_id);
            let numerics_changed = was != now;
            if !was.split(' ').any(|id| id == now) {
                self.store.note_numerics(job.job, now);
                tracing::warn!(job = %id, was = %job.accepted.numerics_id, is = %self.origin.numerics_id, "a job goes on under other numerics");
            }
            let damaged = |problem: String| RecoverError::Damaged { id: id.clone(), problem };
            let spec = Arc::new(JobSpec::from_stored(&job).map_err(|e| damaged(e.to_string()))?);
            let resume = self.store.resume(job.job)?;
            let record = JobRecord::open(spec.clone(), job.job, self.store.clone()).map_err(|e| damaged(e.to_string()))?;
            record.restore(&resume.groups, numerics_changed);
            let pin =
                self.context.versions.adopt(job.accepted.weights_version, &job.accepted.weights_digest, spec.settings.on_weight_update);
            starts.push((Arc::new(record), resume, pin));
        }
        let count = starts.len();
        for (record, resume, pin) in starts {
            tracing::info!(job = %record.id, groups = resume.groups.len(), samples = resume.samples.len(), "job goes on");
            self.start(record, resume, pin);
        }
        Ok(count)
    }

    /// The job called `id`, if the request with this digest may attach to it.
    pub fn attach(&self, id: &str, digest: &str) -> Result<Option<Arc<JobRecord>>, Refusal> {
        match self.find(id) {
            // Whoever asks now is told by `admit`, which waits until the job is there.
            Err(Refusal::Starting) => Ok(None),
            Err(refusal) => Err(refusal),
            Ok(found) => Self::same(found, digest),
        }
    }

    fn same(found: Option<Arc<JobRecord>>, digest: &str) -> Result<Option<Arc<JobRecord>>, Refusal> {
        match found {
            Some(record) if record.digest == digest => Ok(Some(record)),
            Some(_) => Err(Refusal::OtherRequest),
            None => Ok(None),
        }
    }

    /// Writes the job down and starts it, or attaches to the one that is there. `pin` holds the version that the job's settings name.
    pub async fn admit(&self, mut spec: JobSpec, pin: Pin) -> Result<Admission, Refusal> {
        let _one_at_a_time = self.admission.lock().await;
        if let Some(record) = self.attach(&spec.id, &spec.digest)? {
            return Ok(Admission::Attached(record));
        }
        {
            let shelf = lock(&self.shelf);
            if shelf.closing {
                return Err(Refusal::Closing);
            }
            let open = shelf.open.values().filter(|record| !record.state().is_over()).count();
            if open >= self.limits.max_open {
                return Err(Refusal::Full(open));
            }
        }
        let ids: Vec<String> = spec.prompts.iter().map(|prompt| prompt.id.clone()).collect();
        let histories = self.store.history(&spec.settings.namespace, &ids)?;
        for (prompt, history) in spec.prompts.iter_mut().zip(histories) {
            prompt.history = history.map(|(n, s)| History { n, s });
        }
        let cannot = |e: serde_json::Error| Refusal::Store(format!("the job cannot be written as JSON: {e}"));
        let key = self.store.admit(spec.to_stored(&self.origin, pin.digest()).map_err(cannot)?).await?;
        self.store.usage(&spec.key, 1, spec.prompts.len() as u64, 0, 0);
        let record = Arc::new(JobRecord::open(Arc::new(spec), key, self.store.clone()).map_err(cannot)?);
        self.start(record.clone(), Resume::default(), pin);
        Ok(Admission::Started(record))
    }

    fn start(&self, record: Arc<JobRecord>, resume: Resume, pin: Pin) {
        lock(&self.shelf).insert(&record);
        let task = tokio::spawn(run(self.context.clone(), self.store.clone(), self.places.clone(), record.clone(), resume, pin));
        let shelf = self.shelf.clone();
        tokio::spawn(async move {
            // A job that panics stays open in the store; its readers must not wait for it.
            if task.await.is_err() {
                record.finish(Ending::Lost("the job stopped with an internal error; please report this".into()));
            }
            // Suspended and lost jobs stay on the shelf: they are open in the store, and go on in another process.
            if record.is_closed() {
                lock(&shelf).remove(&record);
            }
        });
    }

    /// The job called `id`, open or closed.
    pub fn find(&self, id: &str) -> Result<Option<Arc<JobRecord>>, Refusal> {
        let open = {
            let shelf = lock(&self.shelf);
            shelf.by_id.get(id).and_then(|key| shelf.open.get(key)).cloned()
        };
        if open.is_some() {
            return Ok(open);
        }
        let Some(stored) = self.store.find(id)? else { return Ok(None) };
        if stored.state == StoredState::Open {
            return Err(Refusal::Starting);
        }
        let cannot = |e: serde_json::Error| Refusal::Store(format!("job {id:?} cannot be read back: {e}"));
        JobRecord::closed(&stored, self.store.clone()).map(|record| Some(Arc::new(record))).map_err(cannot)
    }

    /// Ends a job for good and resolves when its samples' blocks are free. A job whose run has ended while the store holds it as open (the
    /// server shuts down, or the engine has stopped) is closed there.
    pub async fn cancel(&self, record: &JobRecord) -> Result<(), Refusal> {
        record.cancel();
        record.over().await;
        if record.is_closed() {
            return Ok(());
        }
        let Some(spec) = &record.spec else { return Ok(()) };
        match close(&self.store, spec, record, Ending::Cancelled).await {
            Ending::Lost(sentence) => Err(Refusal::Store(sentence)),
            _ => {
                record.cancelled_in_store();
                lock(&self.shelf).remove(record);
                Ok(())
            }
        }
    }

    /// Open jobs, oldest first.
    pub fn open(&self) -> Vec<Arc<JobRecord>> {
        lock(&self.shelf).open.values().cloned().collect()
    }

    /// Number of jobs in each state; those that are over, since the start of this process.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let shelf = lock(&self.shelf);
        let states: Vec<JobState> = shelf.open.values().map(|record| record.state()).collect();
        let mut ended = shelf.ended.iter();
        let count = |(state, name): &(JobState, &'static str)| {
            let before = if state.is_over() { ended.next().copied().unwrap_or(0) } else { 0 };
            (*name, before + states.iter().filter(|s| *s == state).count())
        };
        JobState::ALL.iter().map(count).collect()
    }

    /// Whether no job is taken any more.
    pub fn is_closing(&self) -> bool {
        lock(&self.shelf).closing
    }

    /// Takes no more jobs and gives the open ones `grace` to finish. What is open then stays open in a store on disk and goes on after the
    /// next start; jobs of a store in memory end as cancelled.
    pub async fn close(&self, grace: Duration) {
        lock(&self.shelf).closing = true;
        let open = self.open();
        let all_over = || futures::future::join_all(open.iter().map(|record| record.over()));
        if tokio::time::timeout(grace, all_over()).await.is_err() {
            let keeps = self.store.is_durable();
            open.iter().for_each(|record| if keeps { record.suspend() } else { record.cancel() });
            all_over().await;
        }
        self.store.flush().await;
    }
}

/// A job's task: waits for its version of the weights and a place, runs, closes the job in the store, then in the record.
async fn run(context: Context, store: Store, places: Arc<Semaphore>, record: Arc<JobRecord>, resume: Resume, pin: Pin) {
    let Some(spec) = record.spec.clone() else { return };
    let place = tokio::select! {
        biased;
        asked = record.asked_to_stop() => Err(asked),
        place = async { pin.ready().await; places.acquire().await } => Ok(place),
        () = job::deadline(&spec) => Err(Asked::GoOn),
    };
    let ending = match &place {
        Ok(_) => {
            context.metrics.job_started(record.start());
            job::run(&context, &spec, &record, resume).await
        }
        Err(Asked::Suspend) => Ending::Suspended,
        Err(Asked::GoOn) => {
            Ending::Failed("its deadline_s has passed before its weights served and it had a place among the running jobs".into())
        }
        Err(Asked::Cancel) => Ending::Cancelled,
    };
    let ending = close(&store, &spec, &record, ending).await;
    match &ending {
        Ending::Failed(sentence) | Ending::Lost(sentence) => tracing::warn!(job = %record.id, "job failed: {sentence}"),
        Ending::Suspended => tracing::info!(job = %record.id, "job stays open in the store"),
        Ending::Done | Ending::Cancelled => {}
    }
    record.finish(ending);
    // New weights that waited for this job wait no longer.
    drop(pin);
}

/// Closes a job in the store, unless it stays open there.
async fn close(store: &Store, spec: &JobSpec, record: &JobRecord, ending: Ending) -> Ending {
    let (state, error) = match &ending {
        Ending::Done => (StoredState::Done, None),
        Ending::Failed(sentence) => (StoredState::Failed, Some(sentence.clone())),
        Ending::Cancelled => (StoredState::Cancelled, None),
        Ending::Suspended | Ending::Lost(_) => return ending,
    };
    let totals = record.totals();
    // What a job had delivered when it was ended early depends on timing, and history must not.
    let update_history = (ending == Ending::Done).then(|| HistoryUpdate {
        lambda: spec.settings.strategy.history_decay,
        ids: spec.prompts.iter().map(|prompt| prompt.id.clone()).collect(),
    });
    store.usage(&spec.key, 0, 0, totals.samples_seen, totals.tokens_seen + totals.tokens_discarded);
    let totals = match serde_json::to_string(&totals) {
        Ok(totals) => totals,
        Err(error) => return Ending::Lost(format!("the job's statistics cannot be written: {error}")),
    };
    let job = CloseJob { job: record.key, state, error, totals, closed_unix_s: unix_now(), update_history };
    match store.close(job).await {
        Ok(()) => ending,
        Err(error) => Ending::Lost(format!("the store failed: {error}")),
    }
}
