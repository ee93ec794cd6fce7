//! The loop: schedule, run, postprocess.
//!
//! A backend that is not late ([`Ops::late`]) answers in the step itself. From one that is, the answers of a step are read and booked when the
//! next step has been launched: between the two the step is *open*, and its tokens are promises to the scheduler. Whatever ends a sample ends
//! it at once; what was asked for it meanwhile is dropped when it comes. A step is booked under the weights it ran with, and no step is open
//! when the weights change.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc as events, oneshot};

use super::api::*;
use super::asks::{Asked, Asker, answer};
use super::blocks::Blocks;
use super::local::{Board, Scoring, lock};
use super::output::Output;
use super::scheduler::{Limits, Outcome, Purpose, Scheduler};
use super::settings::EngineSettings;
use super::weights::{Slot, Swapped};
use crate::model::Model;
use crate::model::forward::Forward;
use crate::model::weights::heads;
use crate::ops::{Ask, BLOCK_TOKENS, Batch, Drawn, NonFinite, Ops};

/// How long an idle loop sleeps between two heartbeats.
const IDLE: Duration = Duration::from_millis(50);
/// A burst of requests is over when none has come for this long.
const GATHER: Duration = Duration::from_micros(300);
/// And the first step waits for it no longer than this after the last look at an idle engine.
const LONGEST_GATHER: Duration = Duration::from_millis(60);

/// What the handle asks of the loop.
pub(super) enum Command {
    /// A new sample.
    Sample(RequestId, SampleRequest, events::UnboundedSender<Event>),
    /// A new sequence to score.
    Score(RequestId, ScoreRequest, oneshot::Sender<Result<Scores, SubmitError>>),
    /// End a sample.
    Cancel(RequestId, oneshot::Sender<bool>),
    /// Serve the staged weights.
    Swap(oneshot::Sender<Swapped>),
    /// End the loop.
    Stop,
}

/// A sequence that is being scored.
pub(super) struct ScoreState {
    request: ScoreRequest,
    scores: Scores,
    reply: oneshot::Sender<Result<Scores, SubmitError>>,
}

/// Everything the loop owns.
pub(super) struct Runner<O: Ops> {
    ops: O,
    model: Model<O>,
    forward: Forward<O>,
    cache: O::KvCache,
    scheduler: Scheduler,
    outputs: HashMap<RequestId, Output>,
    scoring: Scoring,
    board: Arc<Board>,
    stats: EngineStats,
    weights_version: u64,
    staged: Arc<Slot<O>>,
    /// What the last step asked, where its answers are still to come.
    open: Option<Asked>,
    // Memory that steps use again.
    batch: Batch,
    outcomes: Vec<Outcome>,
    answers: Vec<Result<Drawn, NonFinite>>,
}

impl<O: Ops + 'static> Runner<O> {
    /// Takes the memory that the steps need, and leaves `staging` bytes of a device's for new weights; says what is wrong with a device that does
    /// not have it.
    pub(super) fn new(
        ops: O,
        model: Model<O>,
        settings: &EngineSettings,
        staging: u64,
        board: Arc<Board>,
        staged: Arc<Slot<O>>,
    ) -> Result<Self, String> {
        let limits = Limits { batch_tokens: settings.max_batch_tokens.max(1), sequences: settings.max_sequences.max(1) };
        let forward = Forward::new(&ops, &model.config, limits.batch_tokens, limits.sequences);
        // The cache takes a share of what is free beside everything else.
        let (layers, heads) = (model.config.num_layers, heads(&model.config));
        let free = ops.free_memory().map(|free| free.saturating_sub(staging));
        let blocks = settings.blocks(ops.kv_block_bytes(layers, heads), model.config.context_length, free);
        let cache = ops.kv_cache(layers, blocks, heads);
        if let Some(why) = ops.failure() {
            return Err(why);
        }
        let scheduler = Scheduler::new(limits, Blocks::new(blocks, settings.prefix_cache));
        let mut runner = Runner {
            ops,
            model,
            forward,
            cache,
            scheduler,
            outputs: HashMap::new(),
            scoring: HashMap::new(),
            board,
            stats: EngineStats::default(),
            weights_version: 0,
            staged,
            open: None,
            batch: Batch::default(),
            outcomes: Vec::new(),
            answers: Vec::new(),
        };
        runner.publish_stats();
        Ok(runner)
    }

    /// What it serves.
    pub(super) fn info(&self) -> EngineInfo {
        EngineInfo {
            vocab_size: self.model.config.vocab_size,
            context_length: self.model.config.context_length,
            kv_tokens: self.scheduler.blocks().total() * BLOCK_TOKENS,
            numerics_id: self.ops.numerics_id(),
            device: self.ops.device_name(),
            why_not_cuda: None,
            stop_token_ids: self.model.stop_token_ids.clone(),
            has_tokenizer: self.model.tokenizer.is_some(),
        }
    }

    /// Runs until told to stop, or until the device fails; then it says how, and the streams end without a last event.
    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Command>) -> Result<(), String> {
        loop {
            self.board.beat();
            // Requests come in bursts. The first step after a pause waits a moment for the rest of its burst, so that samples of one prompt
            // find each other before its prefill; later steps never wait.
            let gathering = self.scheduler.is_idle().then(Instant::now);
            loop {
                let patience = match gathering {
                    _ if self.scheduler.is_idle() => IDLE,
                    Some(since) if since.elapsed() < LONGEST_GATHER => GATHER,
                    _ => Duration::ZERO,
                };
                match inbox.recv_timeout(patience) {
                    Ok(Command::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                        self.end();
                        return Ok(());
                    }
                    Ok(command) => self.take(command)?,
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                }
            }
            if !self.scheduler.is_idle() || self.open.is_some() {
                self.step()?;
            }
            self.publish_stats();
        }
    }

    fn take(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Sample(id, request, events) => {
                let stops = self.stops(&request.params);
                self.scheduler.add(id, request.prompt.clone(), Purpose::Sample);
                let context = self.model.config.context_length;
                let output = Output::new(request, events, self.model.tokenizer.as_ref(), stops, context, self.weights_version);
                self.outputs.insert(id, output);
            }
            Command::Score(id, request, reply) => {
                self.scheduler.add(id, request.token_ids.clone(), Purpose::Score(request.from));
                let scores = Scores { logprobs: Vec::new(), logprobs_raw: Vec::new(), weights_version: self.weights_version };
                self.scoring.insert(id, ScoreState { request, scores, reply });
            }
            Command::Cancel(id, reply) => {
                let was_there = self.outputs.contains_key(&id);
                if was_there {
                    self.stats.cancelled += 1;
                    self.finish(id, FinishReason::Cancelled);
                }
                self.publish_stats();
                let _ = reply.send(was_there);
            }
            Command::Swap(reply) => self.swap(reply)?,
            Command::Stop => {}
        }
        Ok(())
    }

    /// Puts the staged weights in the place of the live ones; nothing of the old ones is used again. Where nothing is staged the reply is
    /// dropped, which says so.
    fn swap(&mut self, reply: oneshot::Sender<Swapped>) -> Result<(), String> {
        let began = Instant::now();
        let Some((version, mut weights)) = self.staged.take() else { return Ok(()) };
        self.close()?;
        self.ops.settle();
        self.model.weights.adopt(&mut self.ops, &mut weights);
        self.ops.settle();
        self.check()?;
        let retired = Box::new(weights);
        self.weights_version = version;
        let lost_tokens = self.scheduler.computed_tokens();
        self.scheduler.new_version();
        for (id, state) in &mut self.scoring {
            // A score is of one version.
            state.scores = Scores { logprobs: Vec::new(), logprobs_raw: Vec::new(), weights_version: version };
            self.scheduler.score_again(*id, state.request.from);
        }
        self.publish_stats();
        let _ = reply.send(Swapped { version, pause: began.elapsed(), lost_tokens, retired });
        Ok(())
    }

    /// Every token id that ends a sample with these parameters.
    fn stops(&self, params: &SamplingParams) -> Arc<[u32]> {
        let own: &[u32] = if params.ignore_eos { &[] } else { &self.model.stop_token_ids };
        own.iter().chain(&params.stop_token_ids).copied().collect()
    }

    /// One step, and the booking of what is known after it.
    fn step(&mut self) -> Result<(), String> {
        let step = self.scheduler.schedule(&mut self.batch);
        // The block tables have changed already: the copies are due also where nothing runs.
        self.ops.copy_blocks(&mut self.cache, &step.copies);
        if step.parts.is_empty() {
            return self.close();
        }
        self.forward.run(&mut self.ops, &self.model.weights, &self.batch, &mut self.cache);
        self.stats.steps += 1;
        self.stats.batch_tokens += self.batch.rows() as u64;
        self.scheduler.complete(&step, &mut self.outcomes);
        let asked = self.ask();
        let known = if self.ops.late().is_some() { self.open.replace(asked) } else { Some(asked) };
        self.book(known)?;
        self.promise();
        Ok(())
    }

    /// Books the step that is open, if one is.
    fn close(&mut self) -> Result<(), String> {
        let open = self.open.take();
        self.book(open)
    }

    /// Fails if the device has.
    fn check(&self) -> Result<(), String> {
        self.ops.failure().map_or(Ok(()), Err)
    }

    /// Asks what the step that has just run is for.
    fn ask(&mut self) -> Asked {
        let (mut asks, mut askers) = (Vec::new(), Vec::new());
        for outcome in &self.outcomes {
            if let Outcome::Draw { id, logits } = *outcome
                && let Some(output) = self.outputs.get(&id)
            {
                asks.push(Ask::Draw(output.draw(logits)));
                askers.push(Asker::Draw(id));
            }
        }
        for outcome in &self.outcomes {
            if let Outcome::Scored { id, logits, rows, from, done } = *outcome
                && let Some(state) = self.scoring.get(&id)
            {
                let ScoreRequest { ref token_ids, temperature, .. } = state.request;
                asks.extend((0..rows).map(|i| Ask::Token { row: logits + i, token: token_ids[from + i], temperature }));
                askers.push(Asker::Scored { id, from, rows, done });
            }
        }
        let logits = self.forward.logits();
        match self.ops.late() {
            Some(late) => late.start(logits, &asks),
            None => answer(&mut self.ops, logits, &asks, &mut self.answers),
        }
        drop(asks);
        for asker in &askers {
            if let Asker::Draw(id) = asker
                && let Some(output) = self.outputs.get_mut(id)
            {
                output.asked();
            }
        }
        Asked { version: self.weights_version, askers }
    }

    /// Tells the scheduler what the open step keeps to itself.
    fn promise(&mut self) {
        let Some(Asked { askers, .. }) = &self.open else { return };
        for (number, asker) in askers.iter().enumerate() {
            match asker {
                Asker::Draw(id) => {
                    if let Some(output) = self.outputs.get(id) {
                        self.scheduler.promise(*id, (!output.asked_all()).then_some(number as u32));
                    }
                }
                Asker::Scored { id, done: true, .. } => self.scheduler.promise(*id, None),
                Asker::Scored { .. } => {}
            }
        }
    }

    /// Books what a step asked, once the answers are there.
    fn book(&mut self, asked: Option<Asked>) -> Result<(), String> {
        if asked.is_some()
            && let Some(late) = self.ops.late()
        {
            late.finish(&mut self.answers);
        }
        // The answers of a device that has failed may be anything.
        self.check()?;
        let Some(Asked { version, askers }) = asked else { return Ok(()) };
        let answers = std::mem::take(&mut self.answers);
        let mut rest = answers.as_slice();
        for asker in askers {
            let (own, others) = rest.split_at(asker.answers());
            rest = others;
            match asker {
                Asker::Draw(id) => self.postprocess(id, own[0], version),
                Asker::Scored { id, from, done, .. } => self.score(id, from, own, done),
            }
        }
        self.answers = answers;
        Ok(())
    }

    /// Books one token that this version drew.
    fn postprocess(&mut self, id: RequestId, drawn: Result<Drawn, NonFinite>, weights_version: u64) {
        let Some(output) = self.outputs.get_mut(&id) else { return };
        let ended = match drawn {
            Err(NonFinite) => {
                self.stats.nonfinite += 1;
                Some(FinishReason::Numerics)
            }
            Ok(drawn) => {
                self.stats.generated_tokens += 1;
                self.scheduler.push(id, drawn.token);
                output.push(drawn, weights_version)
            }
        };
        if let Some(reason) = ended {
            self.finish(id, reason);
        }
    }

    /// Frees a sample's blocks, then tells.
    fn finish(&mut self, id: RequestId, reason: FinishReason) {
        self.scheduler.remove(id);
        if let Some(output) = self.outputs.remove(&id) {
            self.board.outstanding.fetch_sub(1, Ordering::AcqRel);
            output.finish(reason);
        }
    }

    /// Books the scores of the tokens from `from` on; `done` if they are the last.
    fn score(&mut self, id: RequestId, from: usize, answers: &[Result<Drawn, NonFinite>], done: bool) {
        let Some(state) = self.scoring.get_mut(&id) else { return };
        let mut failed = None;
        for (i, answer) in answers.iter().enumerate() {
            match answer {
                Ok(scored) => {
                    state.scores.logprobs.push(scored.logprob);
                    state.scores.logprobs_raw.push(scored.logprob_raw);
                }
                Err(NonFinite) => failed = failed.or(Some(from + i)),
            }
        }
        // Nobody cancels a score: one whose caller is gone ends by itself.
        if !done && failed.is_none() && !state.reply.is_closed() {
            return;
        }
        self.scheduler.remove(id);
        self.board.outstanding.fetch_sub(1, Ordering::AcqRel);
        if let Some(state) = self.scoring.remove(&id) {
            if failed.is_some() {
                self.stats.nonfinite += 1;
            }
            let _ = state.reply.send(match failed {
                Some(position) => Err(SubmitError::Numerics(position)),
                None => Ok(state.scores),
            });
        }
    }

    fn publish_stats(&mut self) {
        let blocks = self.scheduler.blocks();
        let counters = self.scheduler.counters;
        self.stats.weights_version = self.weights_version;
        self.stats.running = self.scheduler.running();
        self.stats.waiting = self.scheduler.waiting();
        self.stats.blocks_total = blocks.total();
        self.stats.blocks_free = blocks.available();
        self.stats.blocks_cached = blocks.kept();
        self.stats.prompt_tokens_computed = counters.prompt_computed;
        self.stats.prompt_tokens_cached = counters.prompt_cached;
        self.stats.recomputed_tokens = counters.recomputed;
        self.stats.preemptions = counters.preemptions;
        lock(&self.board.stats).clone_from(&self.stats);
    }

    /// Tells everyone who still waits.
    fn end(mut self) {
        let ids: Vec<RequestId> = self.outputs.keys().copied().collect();
        for id in ids {
            self.finish(id, FinishReason::Cancelled);
        }
    }
}
