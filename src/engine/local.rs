//! The engine of this process: a handle in front of one loop on its own thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::{mpsc as events, oneshot};

use super::api::*;
use super::runner::{Command, Runner};
use super::settings::EngineSettings;
use super::weights::{Packer, Slot, Stage, StageError, Swapped};
use crate::model::{Model, TensorSource};
use crate::ops::Ops;
use crate::ops::handover::{DeviceId, Exported};

/// What the loop and the handle share.
pub(super) struct Board {
    /// As of the last step.
    pub(super) stats: Mutex<EngineStats>,
    /// Samples taken and not yet finished.
    pub(super) outstanding: AtomicUsize,
    /// When the loop last went round, in microseconds since `start`.
    pub(super) heartbeat: AtomicU64,
    /// Why the loop ended, if it did.
    pub(super) stopped: Mutex<Option<String>>,
    start: Instant,
}

impl Board {
    pub(super) fn beat(&self) {
        self.heartbeat.store(self.start.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    fn since_beat(&self) -> u64 {
        (self.start.elapsed().as_micros() as u64).saturating_sub(self.heartbeat.load(Ordering::Relaxed))
    }
}

/// Locks, also after a panic of another thread: the values are plain counters.
pub(super) fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A running engine. Dropping it stops the loop; samples that are still running end as cancelled.
pub struct LocalEngine {
    info: EngineInfo,
    commands: mpsc::Sender<Command>,
    board: Arc<Board>,
    next_id: AtomicU64,
    max_queue: usize,
    /// Packs new weights, if this engine takes any.
    stage: Option<Box<dyn Stage>>,
    thread: Option<JoinHandle<()>>,
}

impl LocalEngine {
    /// Starts the loop over a loaded model, whose weights serve as version 0 and stay.
    pub fn start<O: Ops + 'static>(ops: O, model: Model<O>, settings: &EngineSettings) -> std::io::Result<LocalEngine> {
        Self::start_with(ops, None, model, settings)
    }

    /// The same with `packer`, operations of their own that pack new weights while the loop goes on with the first.
    pub fn start_with<O: Ops + 'static>(
        ops: O,
        packer: Option<O>,
        model: Model<O>,
        settings: &EngineSettings,
    ) -> std::io::Result<LocalEngine> {
        let staged = Arc::new(Slot::default());
        let config = model.config.clone();
        // New weights lie beside the live ones until they are swapped in.
        let staging = if packer.is_some() { ops.weight_bytes(&config) } else { 0 };
        let stage = packer.map(|ops| Box::new(Packer::new(ops, config, staged.clone())) as Box<dyn Stage>);
        let board = Arc::new(Board {
            stats: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            heartbeat: AtomicU64::new(0),
            stopped: Mutex::new(None),
            start: Instant::now(),
        });
        let (commands, inbox) = mpsc::channel();
        let runner = Runner::new(ops, model, settings, staging, board.clone(), staged).map_err(std::io::Error::other)?;
        let info = runner.info();
        let thread = {
            let board = board.clone();
            std::thread::Builder::new().name("engine".into()).spawn(move || {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runner.run(&inbox)));
                let why = match result {
                    Ok(Ok(())) => "it was asked to".to_owned(),
                    Ok(Err(device)) => {
                        tracing::error!("the engine has stopped: {device}");
                        device
                    }
                    Err(panic) => {
                        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
                        format!("its loop failed: {}", message.unwrap_or("no message"))
                    }
                };
                *lock(&board.stopped) = Some(why);
            })?
        };
        Ok(LocalEngine { info, commands, board, next_id: AtomicU64::new(0), max_queue: settings.max_queue, stage, thread: Some(thread) })
    }

    /// Says why no GPU computes, for [`EngineInfo::why_not_cuda`].
    pub fn say_why_not_cuda(&mut self, reason: Option<String>) {
        self.info.why_not_cuda = reason;
    }

    fn stopped(&self) -> SubmitError {
        SubmitError::Stopped(lock(&self.board.stopped).clone().unwrap_or_else(|| "it is shutting down".into()))
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts one more sample in, if there is room. A loop that has failed leaves its queue as it was, full or not.
    fn enter(&self) -> Result<(), SubmitError> {
        if lock(&self.board.stopped).is_some() {
            return Err(self.stopped());
        }
        let taken = self.board.outstanding.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < self.max_queue).then_some(n + 1));
        taken.map(|_| ()).map_err(SubmitError::QueueFull)
    }

    fn send(&self, command: Command) -> Result<(), SubmitError> {
        self.commands.send(command).map_err(|_| {
            self.board.outstanding.fetch_sub(1, Ordering::AcqRel);
            self.stopped()
        })
    }

    fn check_tokens(&self, field: &str, ids: &[u32]) -> Result<(), FieldError> {
        if ids.is_empty() {
            return Err(FieldError::new(field, "is empty; give at least one token"));
        }
        match ids.iter().position(|&id| id as usize >= self.info.vocab_size) {
            Some(i) => Err(FieldError::new(
                format!("{field}[{i}]"),
                format!("is {}, but this model's ids end at {}; use ids of this model's tokenizer", ids[i], self.info.vocab_size - 1),
            )),
            None => Ok(()),
        }
    }

    /// Checks that `tokens` positions fit the blocks there are.
    fn check_blocks(&self, field: &str, tokens: usize) -> Result<(), FieldError> {
        let room = self.info.kv_tokens;
        if tokens <= room {
            return Ok(());
        }
        Err(FieldError::new(
            field,
            format!("needs {tokens} positions, but the KV cache holds {room} in all; start the engine with more --kv-blocks"),
        ))
    }
}

impl Engine for LocalEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn submit(&self, request: SampleRequest) -> Result<SampleStream, SubmitError> {
        request.params.validate(self.info.vocab_size, self.info.has_tokenizer)?;
        self.check_tokens("prompt", &request.prompt)?;
        let (prompt, context) = (request.prompt.len(), self.info.context_length);
        if prompt >= context {
            let problem = format!("has {prompt} tokens, which leaves no room in the model's context of {context}; shorten it");
            return Err(FieldError::new("prompt", problem).into());
        }
        // The last token drawn is never computed.
        let longest = (prompt + request.params.max_tokens as usize).min(context) - 1;
        self.check_blocks(if prompt > self.info.kv_tokens { "prompt" } else { "max_tokens" }, longest)?;
        self.enter()?;
        let id = self.next_id();
        let (sender, receiver) = events::unbounded_channel();
        self.send(Command::Sample(id, request, sender))?;
        Ok(SampleStream { id, events: receiver })
    }

    fn cancel(&self, id: RequestId) -> CancelAck {
        let (sender, receiver) = oneshot::channel();
        // If the loop is gone the receiver resolves to an error, which says so.
        let _ = self.commands.send(Command::Cancel(id, sender));
        receiver
    }

    fn score(&self, request: ScoreRequest) -> Result<oneshot::Receiver<Result<Scores, SubmitError>>, SubmitError> {
        self.check_tokens("token_ids", &request.token_ids)?;
        let (n, context) = (request.token_ids.len(), self.info.context_length);
        if n > context {
            return Err(
                FieldError::new("token_ids", format!("has {n} tokens, more than the model's context of {context}; shorten it")).into()
            );
        }
        if request.from == 0 || request.from >= n {
            let problem =
                format!("is {}; it must be at least 1 (the first token has no log-probability) and below the length {n}", request.from);
            return Err(FieldError::new("prompt_len", problem).into());
        }
        let plain = SamplingParams { temperature: request.temperature, ..SamplingParams::default() };
        plain.validate(self.info.vocab_size, true)?;
        self.check_blocks("token_ids", n - 1)?;
        self.enter()?;
        let (sender, receiver) = oneshot::channel();
        self.send(Command::Score(self.next_id(), request, sender))?;
        Ok(receiver)
    }

    fn stats(&self) -> EngineStats {
        let mut stats = lock(&self.board.stats).clone();
        stats.heartbeat_us = self.board.since_beat();
        stats.stopped = lock(&self.board.stopped).clone();
        stats
    }

    fn stage(&self, version: u64, source: &dyn TensorSource) -> Result<(), StageError> {
        let stage = self.stage.as_ref().ok_or(StageError::Fixed)?;
        stage.stage(version, source)
    }

    fn ipc_device(&self) -> Option<DeviceId> {
        self.stage.as_ref()?.device_id()
    }

    fn import(&self, version: u64, exported: &Exported) -> Result<(), StageError> {
        self.stage.as_ref().ok_or(StageError::Fixed)?.import(version, exported)
    }

    fn staged_tensor(&self, name: &str) -> Result<Vec<u8>, StageError> {
        self.stage.as_ref().ok_or(StageError::Fixed)?.staged_tensor(name)
    }

    fn swap(&self) -> Result<oneshot::Receiver<Swapped>, StageError> {
        if self.stage.is_none() {
            return Err(StageError::Fixed);
        }
        if lock(&self.board.stopped).is_some() {
            return Err(StageError::Stopped(self.stopped().to_string()));
        }
        let (sender, receiver) = oneshot::channel();
        self.commands.send(Command::Swap(sender)).map_err(|_| StageError::Stopped(self.stopped().to_string()))?;
        Ok(receiver)
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Scores under way.
pub(super) type Scoring = HashMap<RequestId, super::runner::ScoreState>;
