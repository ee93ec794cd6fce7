//! New weights on their way into the running server.
//!
//! A [`Push`] goes through six steps, one push after another: its tensors are verified ([`TensorSet`]), kept in a file ([`home`]), packed
//! beside the live weights ([`Engine::stage`]), committed in the store, waited for as the open jobs ask ([`Versions`]), and swapped in
//! between two steps of the engine. Weights in another process's memory of the engine's device are packed first, by a copy within it, and
//! verified there ([`Engine::import`]); with a store on disk they are then read back, and go on as if their file had been received. Invariants:
//! - Until the swap the old weights serve; whatever fails before the commit leaves nothing behind.
//! - With a store on disk a version is committed, file first, before any job is accepted for it: a restart finds what its jobs need
//!   ([`restore`]).
//! - The last two committed versions are kept, and every version that a job which is open in the store was accepted for.
//! - What is kept has the digest of what was verified: a copy of another process's file is read back.
//!
//! [`restore`]: Updates::start

mod home;
mod start;

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::unix_now;
use super::versions::Versions;
use crate::engine::{Engine, StageError, Swapped};
use crate::failpoint::{self, Point};
use crate::metrics::Metrics;
use crate::model::safetensors_writer::write_header;
use crate::model::{Digests, Dtype, Layout, ModelError, SafetensorsFile, TensorSet};
use crate::ops::handover::{DeviceId, Exported, ImportError};
use crate::store::{Store, StoreError, WeightsRow};

pub use home::Home;
pub use start::StartError;

/// Pushes that may wait for the one before them.
const MOST_WAITING: usize = 4;

/// New weights, as they were handed over.
#[derive(Clone, Debug)]
pub struct Push {
    /// Their version.
    pub version: u64,
    /// The live version, from which the tensors come that are not in the push.
    pub base: Option<u64>,
    /// A version that is not above the live one is meant.
    pub rollback: bool,
    /// Where they lie.
    pub source: Source,
    /// Time that receiving them took.
    pub receive: Duration,
}

/// Where pushed weights lie.
#[derive(Clone, Debug)]
pub enum Source {
    /// A safetensors file in the weights' folder, received over HTTP; it is taken.
    Received(PathBuf),
    /// Another process's safetensors file; it is mapped where it is.
    File(PathBuf),
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// Another process's memory of the engine's device; it stays as it is until the weights are staged.
    Device(Arc<Exported>),
}

/// Why weights were not taken. The old ones serve on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The version is below the live one.
    #[error("version {version} is below the live version {live}; push a higher one, or say rollback=true to go back")]
    Stale {
        /// The push's.
        version: u64,
        /// What serves.
        live: u64,
    },
    /// The live version has this number and other tensors.
    #[error(
        "version {version} is live with other tensors (digest {live}, this push's is {pushed}); push them under a higher version, or say rollback=true to replace it"
    )]
    Conflict {
        /// The number.
        version: u64,
        /// Digest of what serves.
        live: String,
        /// Digest of what was pushed.
        pushed: String,
    },
    /// Version 0 is the model's folder.
    #[error("version 0 is what the server's model folder holds, and these tensors are others; push them under another version")]
    Zero,
    /// What serves lies on the device alone.
    #[error(
        "the live version {0} came through the GPU's memory and this server keeps no files: its tensors cannot be read again; push all tensors, without base="
    )]
    NoFiles(u64),
    /// The engine cannot reach that memory.
    #[error("{field}: {problem}")]
    NoIpc {
        /// The field that names it.
        field: String,
        /// A sentence.
        problem: String,
    },
    /// A field of what was announced.
    #[error("{field}: {problem}")]
    Field {
        /// The field.
        field: String,
        /// A sentence.
        problem: String,
    },
    /// The base does not serve.
    #[error("base version {base} is not live, {live} is; push all tensors, or those that changed since {live} with base={live}")]
    BaseNotLive {
        /// What the push builds on.
        base: u64,
        /// What serves.
        live: u64,
    },
    /// The files.
    #[error("{problem}")]
    Bad {
        /// The tensor that is wrong, where it is one.
        tensor: Option<String>,
        /// A sentence.
        problem: String,
    },
    /// Too many pushes wait.
    #[error("{0} pushes wait for one another already; try again when they are through")]
    Busy(usize),
    /// The weights of this server stay.
    #[error("the weights of this server cannot be changed")]
    Fixed,
    /// The file could not be written.
    #[error("the weights cannot be kept in {0}; make room there, or choose another weights.dir")]
    Keep(String),
    /// The store or the engine has failed.
    #[error("{0}")]
    Failed(String),
}

impl PushError {
    fn keep(place: &Path, error: &std::io::Error) -> Self {
        PushError::Keep(format!("{}: {error}", place.display()))
    }
}

/// The sentence without the path of a file that the caller does not know.
impl From<ModelError> for PushError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Tensor { tensor, problem, .. } => {
                PushError::Bad { problem: format!("tensor `{tensor}` {problem}"), tensor: Some(tensor) }
            }
            ModelError::NonFinite { tensor, index, value, .. } => {
                let problem = format!("tensor `{tensor}` holds {value} at flat index {index}; weights must be finite");
                PushError::Bad { problem, tensor: Some(tensor) }
            }
            ModelError::File { problem, .. } => {
                // The header's reader names the tensor within its sentence.
                let tensor = problem.split_once("tensor `").and_then(|(_, rest)| rest.split_once('`')).map(|(name, _)| name.to_owned());
                PushError::Bad { problem: format!("the safetensors file {problem}"), tensor }
            }
            ModelError::Config { field, problem, .. } => {
                PushError::Bad { problem: format!("field `{field}` of config.json {problem}"), tensor: None }
            }
        }
    }
}

impl From<StageError> for PushError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Fixed => PushError::Fixed,
            StageError::Model(error) => error.into(),
            StageError::Import(error) => error.into(),
            StageError::Device(_) => PushError::Failed(error.to_string()),
            StageError::Stopped(why) => PushError::Failed(why),
        }
    }
}

impl From<ImportError> for PushError {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Unavailable { field, problem } => PushError::NoIpc { field, problem },
            ImportError::Field(error) => PushError::Field { field: error.path, problem: error.problem },
            ImportError::Tensor(error) => error.into(),
        }
    }
}

impl From<StoreError> for PushError {
    fn from(error: StoreError) -> Self {
        PushError::Failed(format!("the store failed: {error}"))
    }
}

/// Seconds that the steps of a push took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seconds {
    /// To receive it.
    pub receive: f64,
    /// To check names, shapes, types and numbers, and to take digests.
    pub verify: f64,
    /// To write its file to the disk.
    pub keep: f64,
    /// To pack it beside the live weights.
    pub stage: f64,
    /// To commit it in the store.
    pub commit: f64,
    /// That it waited for open jobs.
    pub wait: f64,
    /// From the order to swap until it had happened, the step that ran included.
    pub swap: f64,
    /// Of these, the time that the engine's loop spent on it.
    pub pause: f64,
}

impl Seconds {
    /// Each step with its name.
    pub fn steps(&self) -> [(&'static str, f64); 8] {
        let Seconds { receive, verify, keep, stage, commit, wait, swap, pause } = *self;
        [
            ("receive", receive),
            ("verify", verify),
            ("keep", keep),
            ("stage", stage),
            ("commit", commit),
            ("wait", wait),
            ("swap", swap),
            ("pause", pause),
        ]
    }
}

/// A push that is through.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Update {
    /// The version that serves.
    pub version: u64,
    /// Digest of its tensors.
    pub digest: String,
    /// Their bytes.
    pub bytes: u64,
    /// Whether it served already and nothing was done.
    pub unchanged: bool,
    /// Time of each step.
    pub seconds: Seconds,
}

/// A push that waits for open jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Staged {
    /// Its version.
    pub version: u64,
    /// Digest of its tensors.
    pub digest: String,
    /// Their bytes.
    pub bytes: u64,
}

/// A push that has not been looked at yet: another one waits for open jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Queued {
    /// Its version.
    pub version: u64,
    /// Says so.
    pub state: &'static str,
}

/// What a push has come to for who does not wait for open jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Pushed {
    /// It waits for a push that waits for them.
    Queued(Queued),
    /// It waits for them.
    Staged(Staged),
    /// It serves.
    Serves(Update),
}

/// Where the last push stands, for `GET /v1/weights`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Progress {
    /// It is being verified, kept and packed.
    Staging {
        /// Its version.
        version: u64,
    },
    /// It waits for open jobs.
    Waiting {
        /// Its version.
        version: u64,
    },
    /// It serves.
    Done(Update),
    /// It was not taken.
    Failed {
        /// Its version.
        version: u64,
        /// Why.
        message: String,
        /// The tensor that was wrong.
        tensor: Option<String>,
    },
}

/// A version that serves or served.
pub struct Version {
    /// Its number.
    pub number: u64,
    /// Its tensors as they lie in files; none where it lies on the device alone.
    files: Option<Files>,
    /// The digest of the whole.
    pub digest: String,
    /// Digest of its announcement, where it came through the device's memory.
    announced: Option<String>,
    /// Its file in the weights' folder; empty where it has none there.
    file: String,
    /// When it was loaded, in seconds since 1970.
    pub loaded_unix_s: f64,
}

/// Tensors in files.
struct Files {
    tensors: TensorSet,
    /// Their digests when they were loaded.
    digests: Digests,
}

impl Version {
    fn files(&self) -> Result<&Files, PushError> {
        self.files.as_ref().ok_or(PushError::NoFiles(self.number))
    }
}

/// What is wrong with the version that serves, where it lies in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Digest of each tensor now.
    pub digests: Digests,
    /// Names of those that differ from what was loaded.
    pub changed: Vec<String>,
}

/// A push under way.
struct Spawned {
    /// Set when its turn has come.
    begun: Arc<AtomicBool>,
    /// Resolves when it waits for open jobs.
    staged: oneshot::Receiver<Staged>,
    /// Resolves when it serves.
    through: JoinHandle<Result<Update, PushError>>,
}

/// The weights of one server.
pub struct Updates {
    engine: Arc<dyn Engine>,
    versions: Versions,
    store: Store,
    metrics: Arc<Metrics>,
    home: Home,
    layout: Arc<Layout>,
    /// Digest of version 0, the model's folder.
    zero: String,
    live: Mutex<Arc<Version>>,
    /// Digest of the model's files.
    model_digest: String,
    /// What an earlier process had committed and not swapped in, in the order in which it was.
    left: Mutex<VecDeque<Arc<Version>>>,
    last: Mutex<Option<Progress>>,
    /// Held by the push that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
    waiting: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Updates {
    /// What serves.
    pub fn live(&self) -> Arc<Version> {
        lock(&self.live).clone()
    }

    /// Where the last push stands.
    pub fn last(&self) -> Option<Progress> {
        lock(&self.last).clone()
    }

    /// What a version must hold.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Where files are received.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Refuses what cannot be taken whatever its tensors are; worth asking before they are received.
    pub fn check(&self, version: u64, base: Option<u64>, rollback: bool) -> Result<(), PushError> {
        let waiting = self.waiting.load(Ordering::Acquire);
        if waiting >= MOST_WAITING {
            return Err(PushError::Busy(waiting));
        }
        self.check_order(version, base, rollback)
    }

    fn check_order(&self, version: u64, base: Option<u64>, rollback: bool) -> Result<(), PushError> {
        let live = self.live().number;
        if version < live && !rollback {
            return Err(PushError::Stale { version, live });
        }
        match base {
            // A push that comes again finds its own version live.
            Some(base) if base != live && version != live => Err(PushError::BaseNotLive { base, live }),
            _ => Ok(()),
        }
    }

    /// Backend and kernels of the engine.
    pub fn numerics_id(&self) -> String {
        self.engine.info().numerics_id.clone()
    }

    /// The device from whose memory weights are taken, if they are.
    pub fn ipc_device(&self) -> Option<DeviceId> {
        let narrow = self.layout.tensors().iter().all(|tensor| tensor.dtype == Dtype::Bf16);
        self.engine.ipc_device().filter(|_| narrow)
    }

    /// Refuses memory that the engine cannot reach: the same push may come in another way.
    pub fn check_device(&self, exported: &Exported) -> Result<(), PushError> {
        let none = |field: &str, problem: String| Err(PushError::NoIpc { field: field.into(), problem });
        match (self.engine.ipc_device(), self.ipc_device()) {
            (None, _) => Err(ImportError::no_device().into()),
            (Some(_), None) => none("ipc", "carries BF16, and this model's files hold other types; push a file or over HTTP".into()),
            (_, Some(own)) if own != exported.device => {
                let problem = format!("is GPU {}, and this engine computes on GPU {own}; push a file or over HTTP", exported.device);
                none("ipc.device", problem)
            }
            _ => Ok(()),
        }
    }

    /// Takes new weights; resolves when they serve. Goes on when nobody waits for it any more.
    pub async fn push(self: &Arc<Self>, push: Push) -> Result<Update, PushError> {
        self.spawn(push).through.await.unwrap_or_else(|_| Err(broken()))
    }

    /// The same, but waits for no open job: resolves when that is all that is left to do (jobs are accepted for the new version from then on,
    /// and where a received version came from may go), or as soon as another push, which waits for open jobs, is before it.
    pub async fn push_until_staged(self: &Arc<Self>, push: Push) -> Result<Pushed, PushError> {
        let version = push.version;
        let Spawned { begun, staged, through } = self.spawn(push);
        let staged = tokio::select! {
            biased;
            staged = staged => staged,
            () = self.versions.another_waits(|| !begun.load(Ordering::Acquire)) => {
                return Ok(Pushed::Queued(Queued { version, state: "queued" }));
            }
        };
        match staged {
            Ok(staged) => Ok(Pushed::Staged(staged)),
            // It did not get so far, or there was nothing to do.
            Err(_) => through.await.unwrap_or_else(|_| Err(broken())).map(Pushed::Serves),
        }
    }

    fn spawn(self: &Arc<Self>, mut push: Push) -> Spawned {
        let this = self.clone();
        let (tell_staged, staged) = oneshot::channel();
        let begun = Arc::<AtomicBool>::default();
        let begins = begun.clone();
        let through = tokio::spawn(async move {
            let version = push.version;
            let outcome = this.push_in_turn(&mut push, &begins, tell_staged).await;
            if let (Source::Received(path), Err(_) | Ok(Update { unchanged: true, .. })) = (&push.source, &outcome) {
                let _ = std::fs::remove_file(path);
            }
            this.tell(version, &outcome);
            outcome
        });
        Spawned { begun, staged, through }
    }

    fn tell(&self, version: u64, outcome: &Result<Update, PushError>) {
        self.metrics.weights_updated(outcome.as_ref().map(|update| (update.unchanged, update.seconds)).map_err(PushError::is_callers));
        let progress = match outcome {
            Ok(update) => {
                tracing::info!(version, digest = update.digest, unchanged = update.unchanged, seconds = ?update.seconds, "weights serve");
                Progress::Done(update.clone())
            }
            Err(error) => {
                tracing::warn!(version, "weights were not taken: {error}");
                let tensor = if let PushError::Bad { tensor, .. } = error { tensor.clone() } else { None };
                Progress::Failed { version, message: error.to_string(), tensor }
            }
        };
        *lock(&self.last) = Some(progress);
    }

    async fn push_in_turn(
        self: &Arc<Self>,
        push: &mut Push,
        begins: &AtomicBool,
        tell_staged: oneshot::Sender<Staged>,
    ) -> Result<Update, PushError> {
        let waiting = self.waiting.fetch_add(1, Ordering::AcqRel);
        let turn = match waiting < MOST_WAITING {
            true => Ok(self.turn.lock().await),
            false => Err(PushError::Busy(waiting)),
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let _turn = turn?;
        begins.store(true, Ordering::Release);
        self.check_order(push.version, push.base, push.rollback)?;
        *lock(&self.last) = Some(Progress::Staging { version: push.version });
        let mut seconds = Seconds { receive: push.receive.as_secs_f64(), ..Seconds::default() };
        let live = self.live();

        let (version, bytes) = (push.version, self.layout.num_bytes());
        let mut announced = None;
        if let Source::Device(exported) = &push.source {
            let digest = exported.digest();
            if version == live.number && live.announced.as_ref() == Some(&digest) {
                return Ok(Update { version, digest: live.digest.clone(), bytes, unchanged: true, seconds });
            }
            announced = Some(digest);
            let (this, exported, began) = (self.clone(), exported.clone(), Instant::now());
            blocking(move || Ok(this.engine.import(version, &exported)?)).await?;
            seconds.stage = began.elapsed().as_secs_f64();
        }
        let began = Instant::now();
        if announced.is_some() && self.store.is_durable() {
            let this = self.clone();
            push.source = Source::Received(blocking(move || this.read_back()).await?);
        }
        let (this, asked, under) = (self.clone(), push.clone(), live.clone());
        let verified = blocking(move || this.verify_push(&asked, announced, &under)).await?;
        seconds.verify = began.elapsed().as_secs_f64();
        let digest = verified.digest.clone();
        if version == live.number && digest == live.digest {
            return Ok(Update { version, digest, bytes, unchanged: true, seconds });
        }
        if let Some(base) = push.base.filter(|base| *base != live.number) {
            return Err(PushError::BaseNotLive { base, live: live.number });
        }
        if version == live.number && !push.rollback {
            return Err(PushError::Conflict { version, live: live.digest.clone(), pushed: digest });
        }
        if version == 0 && digest != self.zero {
            return Err(PushError::Zero);
        }

        let began = Instant::now();
        let (this, source) = (self.clone(), push.source.clone());
        let kept = Arc::new(blocking(move || this.home.keep(verified, &source)).await?);
        seconds.keep = began.elapsed().as_secs_f64();
        failpoint::visit(Point::WeightsAfterFile);
        if let Err(error) = self.stage(&kept, &mut seconds).await {
            // Unless it is the file of a version that is committed already.
            if self.store.weights().is_ok_and(|rows| rows.iter().all(|row| row.file != kept.file)) {
                self.home.remove(&kept.file);
            }
            return Err(error);
        }
        let _ = tell_staged.send(Staged { version, digest: digest.clone(), bytes });
        self.serve(kept, &mut seconds).await?;
        Ok(Update { version, digest, bytes, unchanged: false, seconds })
    }

    /// Writes what is staged to a file, as a client would have sent it.
    fn read_back(&self) -> Result<PathBuf, PushError> {
        let cannot = |error: std::io::Error| PushError::keep(self.home.dir(), &error);
        let (path, file) = self.home.receive().map_err(cannot)?;
        let write = || -> Result<(), PushError> {
            let mut out = BufWriter::new(file);
            let header = self.layout.tensors().iter().map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.shape.as_slice()));
            write_header(&mut out, header).map_err(cannot)?;
            for name in self.layout.names() {
                out.write_all(&self.engine.staged_tensor(name)?).map_err(cannot)?;
            }
            out.flush().map_err(cannot)
        };
        match write() {
            Ok(()) => Ok(path),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// Opens and checks what was pushed; `announced` is staged already.
    fn verify_push(&self, push: &Push, announced: Option<String>, live: &Version) -> Result<Version, PushError> {
        let base = push.base.map(|_| live.files()).transpose()?;
        let from = base.map(|files| &files.tensors);
        let tensors = match &push.source {
            Source::Device(exported) => {
                let (number, digest) = (push.version, exported.digest());
                return Ok(Version { number, files: None, digest, announced, file: String::new(), loaded_unix_s: unix_now() });
            }
            Source::Received(path) | Source::File(path) => TensorSet::of_file(&self.layout, SafetensorsFile::open(path)?, from)?,
            Source::Folder(dir) => TensorSet::of_folder(&self.layout, dir)?,
        };
        let digests = tensors.digests()?;
        if let Some(base) = base {
            // What was mapped from another process's file may have been written over since.
            let changed = |(i, _): &(usize, &str)| tensors.is_from_base(*i) && !digests.same(&base.digests, *i);
            if let Some((_, name)) = self.layout.names().enumerate().find(changed) {
                let problem = format!(
                    "tensor `{name}` of the live version {} is no longer what was pushed: its file was written over; push all tensors",
                    live.number
                );
                return Err(PushError::Bad { tensor: Some(name.to_owned()), problem });
            }
        }
        let digest = tensors.digest(&digests);
        let files = Some(Files { tensors, digests });
        Ok(Version { number: push.version, files, digest, announced, file: String::new(), loaded_unix_s: unix_now() })
    }

    /// Packs a version beside the one that serves.
    async fn pack(self: &Arc<Self>, version: &Arc<Version>, seconds: &mut Seconds) -> Result<(), PushError> {
        let began = Instant::now();
        let (this, packed) = (self.clone(), version.clone());
        blocking(move || Ok(this.engine.stage(packed.number, &packed.files()?.tensors)?)).await?;
        seconds.stage = began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Packs a version that is not packed yet, and commits it.
    async fn stage(self: &Arc<Self>, version: &Arc<Version>, seconds: &mut Seconds) -> Result<(), PushError> {
        if version.announced.is_none() {
            self.pack(version, seconds).await?;
        }
        if self.store.is_durable() {
            let began = Instant::now();
            let Version { number, digest, file, .. } = &**version;
            let model_digest = self.model_digest.clone();
            let row = WeightsRow { version: *number, digest: digest.clone(), file: file.clone(), model_digest };
            self.store.commit_weights(row).await?;
            seconds.commit = began.elapsed().as_secs_f64();
        }
        self.versions.stage(version.number, &version.digest);
        Ok(())
    }

    /// Waits for the jobs that keep the live version, then puts the staged one in its place.
    async fn serve(&self, version: Arc<Version>, seconds: &mut Seconds) -> Result<(), PushError> {
        *lock(&self.last) = Some(Progress::Waiting { version: version.number });
        let began = Instant::now();
        let swapping = self.versions.swap(|| self.engine.swap()).await?;
        seconds.wait = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let Swapped { pause, lost_tokens, retired, .. } =
            swapping.await.map_err(|_| PushError::Failed("the engine stopped before it took the new weights".into()))?;
        seconds.swap = began.elapsed().as_secs_f64();
        seconds.pause = pause.as_secs_f64();
        tracing::debug!(version = version.number, lost_tokens, "weights swapped");
        *lock(&self.live) = version;
        failpoint::visit(Point::WeightsAfterSwap);
        // Freeing gigabytes takes its time, and nobody waits for it.
        tokio::task::spawn_blocking(move || drop(retired));
        self.prune().await;
        Ok(())
    }

    /// Forgets versions that nobody can ask for any more.
    async fn prune(&self) {
        if !self.store.is_durable() {
            return;
        }
        // What the store says, not who runs: a job that this process could not run goes on in another.
        let (rows, pinned) = match self.store.weights().and_then(|rows| Ok((rows, self.store.weights_of_open_jobs()?))) {
            Ok(read) => read,
            Err(error) => return tracing::warn!("old weights are kept: {error}"),
        };
        let rows = rows.into_iter().filter(|row| is_of(row, &self.model_digest)).enumerate();
        let (kept, old): (Vec<_>, Vec<_>) =
            rows.partition(|(i, row)| *i < 2 || pinned.iter().any(|(version, digest)| is_version(row, *version, digest)));
        let kept: BTreeSet<String> = kept.into_iter().map(|(_, row)| row.file).collect();
        for (_, row) in old.into_iter().filter(|(_, row)| !kept.contains(&row.file)) {
            // The row first: a row without a file would be a version that is promised and not there.
            match self.store.forget_weights(&row.file).await {
                Ok(()) => self.home.remove(&row.file),
                Err(error) => return tracing::warn!("old weights are kept: {error}"),
            }
        }
    }

    /// Reads the live version's files again.
    pub async fn verify(&self) -> Result<(Arc<Version>, Verified), PushError> {
        let live = self.live();
        blocking(move || {
            let files = live.files()?;
            let digests = files.tensors.digests()?;
            let differs = |(i, name): (usize, &str)| (!digests.same(&files.digests, i)).then(|| name.to_owned());
            let changed = files.tensors.layout().names().enumerate().filter_map(differs).collect();
            Ok((live, Verified { digests, changed }))
        })
        .await
    }
}

impl PushError {
    /// Whether the caller can mend it.
    pub fn is_callers(&self) -> bool {
        !matches!(self, PushError::Keep(_) | PushError::Failed(_))
    }
}

/// Whether a committed version belongs to the model with this digest.
fn is_of(row: &WeightsRow, model_digest: &str) -> bool {
    row.model_digest.is_empty() || row.model_digest == model_digest
}

/// Whether a row is `version` as it was when its tensors had `digest`.
fn is_version(row: &WeightsRow, version: u64, digest: &str) -> bool {
    row.version == version && (digest.is_empty() || row.digest == digest)
}

fn broken() -> PushError {
    PushError::Failed("the push stopped with an internal error; please report this".into())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, PushError> + Send + 'static) -> Result<T, PushError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(broken()),
    }
}
