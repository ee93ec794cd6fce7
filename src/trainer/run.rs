//! The loop of a run: sample, update, push, evaluate, keep.
//!
//! One step: the server samples under version `step + 1`; the rows that carry signal become one or more updates; the numbers go to
//! metrics.jsonl; the new weights are pushed as version `step + 2`; every so often the model is evaluated and a checkpoint written. In
//! this order a crash anywhere loses nothing: everything after the last checkpoint is done again, with the same jobs, and gives the same bytes.
//!
//! One step ahead (`rollout.ahead = 1`): the next step's job is started before the update, under the weights before it. Jobs pin their
//! version, so this too is reproducible; the checkpoint keeps what was sampled ahead.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::checkpoint::{Ahead, CheckpointError, Checkpoints, State};
use super::data::{Data, DataError};
use super::evaluate::{self, EvalError};
use super::exposition::Exposition;
use super::journal::{Journal, Numbers};
use super::policy::{Policy, PolicyError};
use super::rollout::{self, Asker, Rollout, Started};
use super::server::{Server, ServerError};
use super::settings::{EvalKind, Settings};
use super::summary::put_rollout;
use super::update::{UpdateError, Updater};
use crate::failpoint::{self, Point};
use crate::model::backward::TrainingError;

/// Why a run stopped. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// The data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A pass over it, or the device.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The server.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// An update.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// An evaluation.
    #[error(transparent)]
    Eval(#[from] EvalError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The run's folder.
    #[error("{}: {error}; check the disk and its permissions", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: std::io::Error,
    },
    /// Ctrl-C.
    #[error("interrupted; run the same command to go on after step {0}, the last that has a checkpoint")]
    Interrupted(u64),
}

/// The files of a run's folder.
pub const METRICS: &str = "metrics.jsonl";
/// What clocks say.
pub const TIMINGS: &str = "timings.jsonl";
/// The configuration that the folder belongs to.
pub const CONFIG: &str = "config.toml";

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Where it stands.
    pub state: State,
    /// The step that it went on from; 0 for a new one.
    pub resumed_at: u64,
    /// The trained model.
    pub model: PathBuf,
}

/// Opens the run's folder for this process alone, and checks that it belongs to these settings.
pub(super) fn claim(settings: &Settings) -> Result<(File, String), TrainError> {
    let dir = &settings.run.dir;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| TrainError::Io { path: path.clone(), error }
    };
    std::fs::create_dir_all(dir).map_err(at(dir))?;
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(at(&path))?;
    if lock.try_lock().is_err() {
        return Err(TrainError::Setting(format!(
            "run.dir: {} is in use by another trainer; end it, or choose another folder",
            dir.display()
        )));
    }
    let text = toml::to_string(settings).map_err(|e| TrainError::Setting(format!("the configuration cannot be written: {e}")))?;
    let path = dir.join(CONFIG);
    match std::fs::read_to_string(&path) {
        Ok(earlier) => {
            if let Some(key) = difference(&earlier, &text) {
                let problem = format!(
                    "run.dir: {} holds a run with another {key}; give the same settings to go on, or another folder",
                    dir.display()
                );
                return Err(TrainError::Setting(problem));
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            // Whole or not at all: half a configuration would be another one.
            let part = dir.join(format!("{CONFIG}.part"));
            let written = File::create(&part).and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
            written.and_then(|()| std::fs::rename(&part, &path)).map_err(at(&path))?;
        }
        Err(e) => return Err(at(&path)(e)),
    }
    Ok((lock, text))
}

/// The first key that differs and matters: how long a run is, where it listens, and what changes its speed and memory alone may change.
fn difference(earlier: &str, now: &str) -> Option<String> {
    const FREE: [&str; 19] = [
        "run.steps",
        "run.samples",
        "run.dir",
        "server.url",
        "server.patience_s",
        "server.shared_dir",
        "server.engines",
        "server.weights",
        "model.threads",
        "model.kernels",
        "model.memory_gib",
        "model.optimizer_offload",
        "model.recompute",
        "update.micro_batch_tokens",
        "parallel.ranks",
        "parallel.gpus",
        "metrics.listen",
        "checkpoint.keep",
        "checkpoint.every",
    ];
    let table = |text: &str| text.parse::<toml::Table>().unwrap_or_default();
    let (earlier, now) = (table(earlier), table(now));
    for (section, keys) in &now {
        for (key, value) in keys.as_table().into_iter().flatten() {
            let path = format!("{section}.{key}");
            if !FREE.contains(&path.as_str()) && earlier.get(section).and_then(|s| s.get(key)) != Some(value) {
                return Some(path);
            }
        }
        let gone = earlier.get(section).and_then(|s| s.as_table()).and_then(|s| s.keys().find(|key| keys.get(key.as_str()).is_none()));
        if let Some(key) = gone {
            return Some(format!("{section}.{key}"));
        }
    }
    None
}

/// A run in progress.
pub struct Run<'a> {
    settings: &'a Settings,
    server: Server,
    /// Servers that get every push after the first.
    engines: Vec<Server>,
    policy: Policy,
    updater: Updater,
    data: Data,
    problems: Option<Data>,
    checkpoints: Checkpoints,
    metrics: Journal,
    timings: Journal,
    exposition: Exposition,
    events: Option<super::events::EventWriter>,
    state: State,
    config: String,
    /// First digits of the digest of the pushed weights.
    digest: String,
    /// Steps that the last checkpoint holds.
    checkpointed: u64,
    /// What was sampled ahead of the next step.
    ahead: Option<(Rollout, Ahead)>,
    observer: &'a mut (dyn FnMut(&Numbers, &State) + Send),
    _lock: File,
}

/// Runs to the end, from the last checkpoint if there is one. `observer` sees every line as it is written; `interrupt` ends the run early,
/// in the middle of a step; the same run again goes on from its last checkpoint.
pub async fn run(
    settings: &Settings,
    observer: &mut (dyn FnMut(&Numbers, &State) + Send),
    interrupt: impl Future<Output = ()>,
) -> Result<Summary, TrainError> {
    let mut run = Run::open(settings, observer).await?;
    let resumed_at = run.state.step;
    let interrupted = {
        let mut interrupt = std::pin::pin!(interrupt);
        tokio::select! {
            done = run.drive() => { done?; false }
            () = &mut interrupt => true,
        }
    };
    if interrupted {
        return Err(TrainError::Interrupted(run.checkpointed));
    }
    let model = settings.run.dir.join("model");
    if model.exists() {
        std::fs::remove_dir_all(&model).map_err(|error| TrainError::Io { path: model.clone(), error })?;
    }
    run.policy.export(&model)?;
    Ok(Summary { state: run.state, resumed_at, model })
}

impl<'a> Run<'a> {
    async fn open(settings: &'a Settings, observer: &'a mut (dyn FnMut(&Numbers, &State) + Send)) -> Result<Self, TrainError> {
        let (lock, config) = claim(settings)?;
        let dir = &settings.run.dir;
        let data = Data::read(&settings.data.path, settings.run.seed, settings.data.shuffle)?;
        let problems = match settings.eval_on() {
            true => Some(Data::read(&settings.eval.path, 0, false)?),
            false => None,
        };
        let mut policy = Policy::load(settings)?;
        let checkpoints = Checkpoints::open(dir, settings.checkpoint.keep)?;
        let mut state = State { numerics_id: policy.numerics_id.clone(), ..State::default() };
        if let Some((last, tensors)) = checkpoints.read_last(&policy.shapes())? {
            if last.numerics_id != state.numerics_id {
                tracing::warn!(
                    "the checkpoint was written by {} and the run goes on under {}: its bytes will differ from an undisturbed run's",
                    last.numerics_id,
                    state.numerics_id
                );
            }
            policy.restore(&checkpoints.path(last.step), &tensors, last.updates)?;
            state = State { numerics_id: state.numerics_id, ..last };
        }
        let open = |name: &str, len: u64| {
            let path = dir.join(name);
            Journal::open(&path, len).map_err(|error| TrainError::Io { path, error })
        };
        let (metrics, timings) = (open(METRICS, state.metrics_bytes)?, open(TIMINGS, state.timings_bytes)?);
        let exposition = Exposition::default();
        if !settings.metrics.listen.is_empty() {
            let address = exposition.listen(&settings.metrics.listen).await.map_err(TrainError::Setting)?;
            tracing::info!("the trainer's metrics are at http://{address}/metrics");
        }
        let events_dir = dir.join("tensorboard");
        let events =
            super::events::EventWriter::open(&events_dir, state.step).map_err(|error| TrainError::Io { path: events_dir, error })?;
        let ahead = match &state.ahead {
            Some(kept) => {
                let rollout =
                    rollout::restore(kept).map_err(|e| TrainError::Setting(format!("the checkpoint's groups cannot be read: {e}")))?;
                Some((rollout, kept.clone()))
            }
            None => None,
        };
        Ok(Run {
            settings,
            server: Server::new(&settings.server)?,
            engines: settings.server.each_engine().map(|engine| Server::new(&engine)).collect::<Result<_, _>>()?,
            updater: Updater::new(settings),
            checkpointed: state.step,
            policy,
            data,
            problems,
            checkpoints,
            metrics,
            timings,
            exposition,
            events: Some(events),
            state,
            config,
            digest: String::new(),
            ahead,
            observer,
            _lock: lock,
        })
    }

    /// Whether the run has reached its length.
    fn is_done(&self) -> bool {
        let run = &self.settings.run;
        (run.steps > 0 && self.state.step >= run.steps) || (run.samples > 0 && self.state.samples >= run.samples)
    }

    async fn drive(&mut self) -> Result<(), TrainError> {
        for server in std::iter::once(&self.server).chain(&self.engines) {
            server.ready().await?;
            self.compare_numerics(server).await?;
        }
        // The server may hold another run's weights, or those of steps that this run has to take again.
        self.push(true, true).await?;
        if self.state.step == 0 {
            self.evaluate().await?;
        }
        while !self.is_done() {
            self.step().await?;
            if self.state.step.is_multiple_of(self.settings.checkpoint.every) || self.is_done() {
                self.checkpoint()?;
                self.checkpointed = self.state.step;
            }
        }
        Ok(())
    }

    /// Warns where sampler and trainer compute differently: log-probabilities are then near, and not the same to the bit.
    async fn compare_numerics(&self, server: &Server) -> Result<(), TrainError> {
        let weights = server.weights().await?;
        let theirs = weights["numerics_id"].as_str().unwrap_or_default();
        // What follows a `+` is how gradients are computed.
        let own = self.policy.numerics_id.split('+').next().unwrap_or_default();
        // All instruction sets of CPUs give the same bits.
        let on_gpu = [theirs, own].iter().any(|id| id.starts_with("cuda"));
        if on_gpu && !theirs.is_empty() && theirs != own {
            tracing::warn!(
                "the server computes with {theirs} and this trainer with {own}: log-probabilities will differ in their last bits; give both the same \
                 device and gemm"
            );
        }
        Ok(())
    }

    /// The version of the weights after so many steps.
    fn version(step: u64) -> u64 {
        step + 1
    }

    async fn push(&mut self, rollback: bool, waits: bool) -> Result<(), TrainError> {
        self.digest = self.policy.digest()?;
        failpoint::visit(Point::TrainBeforePush);
        let version = Self::version(self.state.step);
        for server in std::iter::once(&self.server).chain(&self.engines) {
            server.push(version, &mut self.policy, rollback, waits).await?;
        }
        failpoint::visit(Point::TrainAfterPush);
        Ok(())
    }

    async fn begin(&mut self, cursor: u64, step: u64, version: u64) -> Result<Started, TrainError> {
        let asker = Asker { server: &self.server, settings: self.settings, weights: &self.digest };
        Ok(asker.start(&mut self.data, &self.state, cursor, step, version).await?)
    }

    async fn collect(&mut self, cursor: u64, started: Started) -> Result<(Rollout, Ahead), TrainError> {
        let keep = self.settings.rollout.ahead > 0;
        let asker = Asker { server: &self.server, settings: self.settings, weights: &self.digest };
        Ok(asker.finish(&mut self.data, &self.state, cursor, started, keep).await?)
    }

    async fn step(&mut self) -> Result<(), TrainError> {
        let (step, begun) = (self.state.step, Instant::now());
        failpoint::visit(Point::TrainBeforeRollout);
        let rollout = match self.ahead.take() {
            Some((rollout, _)) => rollout,
            None => {
                let started = self.begin(self.state.cursor, step, Self::version(step)).await?;
                self.collect(self.state.cursor, started).await?.0
            }
        };
        let sampled = begun.elapsed();
        failpoint::visit(Point::TrainAfterRollout);
        let cursor = self.state.cursor + rollout.taken;
        let next = match self.settings.rollout.ahead > 0 && !self.ends_with(&rollout) {
            true => Some(self.begin(cursor, step + 1, Self::version(step)).await?),
            false => None,
        };
        let mut numbers = Numbers::new(step + 1, "train");
        let (updater, policy) = (&mut self.updater, &mut self.policy);
        let updated = Instant::now();
        let report = tokio::task::block_in_place(|| updater.update(policy, &rollout, step, self.state.updates))?;
        let updating = updated.elapsed();
        failpoint::visit(Point::TrainAfterUpdate);
        self.count(&rollout, &report);
        put_rollout(&mut numbers, &rollout, &self.state, step);
        report.put(&mut numbers);
        self.write(numbers)?;
        let pushed = Instant::now();
        self.push(false, next.is_none()).await?;
        let pushing = pushed.elapsed();
        if let Some(started) = next {
            self.ahead = Some(self.collect(cursor, started).await?);
        }
        let evaluated = Instant::now();
        if self.state.step.is_multiple_of(self.settings.eval.every.max(1)) || self.is_done() {
            self.evaluate().await?;
        }
        let mut timing = Numbers::new(self.state.step, "timing");
        timing.put("timing_s/gen", sampled.as_secs_f64());
        timing.put("timing_s/update_actor", updating.as_secs_f64());
        timing.put("timing_s/update_weights", pushing.as_secs_f64());
        timing.put("timing_s/testing", evaluated.elapsed().as_secs_f64());
        timing.put("timing_s/step", begun.elapsed().as_secs_f64());
        timing.put("perf/throughput", report.tokens as f64 / updating.as_secs_f64().max(1e-9));
        self.exposition.set(&timing);
        self.append(true, &timing)
    }

    /// Whether a step with these samples is the run's last.
    fn ends_with(&self, rollout: &Rollout) -> bool {
        let run = &self.settings.run;
        (run.steps > 0 && self.state.step + 1 >= run.steps) || (run.samples > 0 && self.state.samples + rollout.samples >= run.samples)
    }

    /// Counts a step in.
    fn count(&mut self, rollout: &Rollout, report: &super::update::Report) {
        let state = &mut self.state;
        state.step += 1;
        state.updates += report.updates;
        state.cursor += rollout.taken;
        state.samples += rollout.samples;
        state.rows += report.rows;
        let blend = |old: Option<f64>, new: f64| Some(old.map_or(new, |old| 0.5 * (old + new)));
        if rollout.taken > 0 {
            state.samples_per_prompt = blend(state.samples_per_prompt, rollout.samples as f64 / rollout.taken as f64);
            let signal = rollout.groups.iter().filter(|group| group.signal).count();
            state.signal_share = blend(state.signal_share, signal as f64 / rollout.taken as f64);
        }
    }

    fn write(&mut self, numbers: Numbers) -> Result<(), TrainError> {
        self.append(false, &numbers)?;
        self.exposition.set(&numbers);
        if let Some(events) = &mut self.events {
            let step = self.state.step;
            let written = numbers.iter().try_for_each(|(name, value)| events.scalar(step, name, value)).and_then(|()| events.flush());
            if let Err(error) = written {
                tracing::warn!("TensorBoard events can no longer be written: {error}");
                self.events = None;
            }
        }
        (self.observer)(&numbers, &self.state);
        Ok(())
    }

    fn append(&mut self, timing: bool, numbers: &Numbers) -> Result<(), TrainError> {
        let (journal, name) = if timing { (&mut self.timings, TIMINGS) } else { (&mut self.metrics, METRICS) };
        journal.append(numbers).map_err(|error| TrainError::Io { path: self.settings.run.dir.join(name), error })
    }

    async fn evaluate(&mut self) -> Result<(), TrainError> {
        let Some(problems) = &self.problems else { return Ok(()) };
        let step = self.state.step;
        let mut numbers = Numbers::new(step, "eval");
        for (name, value) in [
            ("ada/samples_total", self.state.samples),
            ("ada/rows_total", self.state.rows),
            ("ada/updates_total", self.state.updates),
            ("ada/prompts_total", self.state.cursor),
        ] {
            numbers.put(name, value as f64);
        }
        match self.settings.eval.kind {
            EvalKind::Exact => {
                let (policy, settings) = (&mut self.policy, self.settings);
                tokio::task::block_in_place(|| evaluate::put_exact(policy, problems, settings, &mut numbers))?;
            }
            EvalKind::Sampled => {
                evaluate::put_sampled(&self.server, problems, self.settings, (step, Self::version(step), &self.digest), &mut numbers)
                    .await?;
            }
        }
        self.write(numbers)
    }

    fn checkpoint(&mut self) -> Result<(), TrainError> {
        let at = |name: &str| {
            let path = self.settings.run.dir.join(name);
            move |error| TrainError::Io { path, error }
        };
        self.state.metrics_bytes = self.metrics.sync().map_err(at(METRICS))?;
        self.state.timings_bytes = self.timings.sync().map_err(at(TIMINGS))?;
        self.state.ahead = self.ahead.as_ref().map(|(_, kept)| kept.clone());
        self.state.settings.clone_from(&self.config);
        let policy = &mut self.policy;
        let tensors = policy.tensors()?;
        self.checkpoints.write(&self.state, &tensors, |dir| policy.export(dir))?;
        Ok(())
    }
}
