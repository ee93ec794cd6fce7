//! The loop: schedule, run, postprocess.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc as events, oneshot};

use super::api::*;
use super::blocks::Blocks;
use super::local::{Board, Scoring, lock};
use super::output::Output;
use super::scheduler::{Limits, Outcome, Purpose, Scheduler};
use super::settings::EngineSettings;
use super::weights::{Slot, Swapped};
use crate::model::Model;
use crate::model::forward::Forward;
use crate::model::weights::heads;
use crate::ops::{Batch, Draw, Drawn, NonFinite, Ops};

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
    // Memory that steps use again.
    batch: Batch,
    outcomes: Vec<Outcome>,
    drawn: Vec<Result<Drawn, NonFinite>>,
}

impl<O: Ops + 'static> Runner<O> {
    pub(super) fn new(ops: O, model: Model<O>, settings: &EngineSettings, blocks: usize, board: Arc<Board>, staged: Arc<Slot<O>>) -> Self {
        let limits = Limits { batch_tokens: settings.max_batch_tokens.max(1), sequences: settings.max_sequences.max(1) };
        let forward = Forward::new(&ops, &model.config, limits.batch_tokens, limits.sequences);
        let cache = ops.kv_cache(model.config.num_layers, blocks, heads(&model.config));
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
            batch: Batch::default(),
            outcomes: Vec::new(),
            drawn: Vec::new(),
        };
        runner.publish_stats();
        runner
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self, inbox: &mpsc::Receiver<Command>) {
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
                    Ok(Command::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return self.end(),
                    Ok(command) => self.take(command),
                    Err(mpsc::RecvTimeoutError::Timeout) => break,
                }
            }
            if !self.scheduler.is_idle() {
                self.step();
            }
            self.publish_stats();
        }
    }

    fn take(&mut self, command: Command) {
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
            Command::Swap(reply) => self.swap(reply),
            Command::Stop => {}
        }
    }

    /// Puts the staged weights in the place of the live ones; nothing of the old ones is used again. Where nothing is staged the reply is
    /// dropped, which says so.
    fn swap(&mut self, reply: oneshot::Sender<Swapped>) {
        let began = Instant::now();
        let Some((version, weights)) = self.staged.take() else { return };
        let retired = std::mem::replace(&mut self.model.weights, weights);
        self.weights_version = version;
        let lost_tokens = self.scheduler.computed_tokens();
        self.scheduler.new_version();
        for (id, state) in &mut self.scoring {
            // A score is of one version.
            state.scores = Scores { logprobs: Vec::new(), logprobs_raw: Vec::new(), weights_version: version };
            self.scheduler.score_again(*id, state.request.from);
        }
        self.publish_stats();
        let _ = reply.send(Swapped { version, pause: began.elapsed(), lost_tokens, retired: Box::new(retired) });
    }

    /// Every token id that ends a sample with these parameters.
    fn stops(&self, params: &SamplingParams) -> Arc<[u32]> {
        let own: &[u32] = if params.ignore_eos { &[] } else { &self.model.stop_token_ids };
        own.iter().chain(&params.stop_token_ids).copied().collect()
    }

    /// One step.
    fn step(&mut self) {
        let step = self.scheduler.schedule(&mut self.batch);
        // The block tables have changed already: the copies are due also where nothing runs.
        self.ops.copy_blocks(&mut self.cache, &step.copies);
        if step.parts.is_empty() {
            return;
        }
        let logits = self.forward.run(&mut self.ops, &self.model.weights, &self.batch, &mut self.cache);
        self.stats.steps += 1;
        self.stats.batch_tokens += self.batch.rows() as u64;
        self.scheduler.complete(&step, &mut self.outcomes);

        let mut draws: Vec<Draw<'_>> = Vec::new();
        let mut drawers = Vec::new();
        for outcome in &self.outcomes {
            if let Outcome::Draw { id, logits } = outcome
                && let Some(output) = self.outputs.get(id)
            {
                draws.push(output.draw(*logits));
                drawers.push(*id);
            }
        }
        self.ops.sample(logits, &draws, &mut self.drawn);
        drop(draws);
        for (i, id) in drawers.into_iter().enumerate() {
            self.postprocess(id, self.drawn[i]);
        }
        self.score();
    }

    /// Books one drawn token.
    fn postprocess(&mut self, id: RequestId, drawn: Result<Drawn, NonFinite>) {
        let Some(output) = self.outputs.get_mut(&id) else { return };
        let ended = match drawn {
            Err(NonFinite) => {
                self.stats.nonfinite += 1;
                Some(FinishReason::Numerics)
            }
            Ok(drawn) => {
                self.stats.generated_tokens += 1;
                self.scheduler.push(id, drawn.token);
                output.push(drawn, self.weights_version)
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

    /// Books the scored rows of a step.
    fn score(&mut self) {
        for outcome in std::mem::take(&mut self.outcomes) {
            let Outcome::Scored { id, logits, rows, from, done } = outcome else { continue };
            let Some(state) = self.scoring.get_mut(&id) else { continue };
            let wanted: Vec<(usize, u32)> = (0..rows).map(|i| (logits + i, state.request.token_ids[from + i])).collect();
            self.ops.logprobs_of(self.forward.logits(), &wanted, state.request.temperature, &mut self.drawn);
            let mut failed = None;
            for (i, drawn) in self.drawn.iter().enumerate() {
                match drawn {
                    Ok(d) => {
                        state.scores.logprobs.push(d.logprob);
                        state.scores.logprobs_raw.push(d.logprob_raw);
                    }
                    Err(NonFinite) => failed = failed.or(Some(from + i)),
                }
            }
            // Nobody cancels a score: one whose caller is gone ends by itself.
            if !done && failed.is_none() && !state.reply.is_closed() {
                continue;
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
