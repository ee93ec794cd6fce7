//! An [`Engine`] whose time is counted in steps: the real job runs on it without a clock.
//!
//! A prompt's first token id is its position in the [`World`]. A disturbed engine also preempts samples and holds back ended ones, by dice
//! that only its seed decides: nothing of that may show in a group.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::machine::Machine;
use super::world::{MAX_TOKENS, World};
use crate::engine::api::FieldError;
use crate::engine::{
    CancelAck, Engine, EngineInfo, EngineStats, Event, FinishReason, RequestId, Sample, SampleRequest, SampleStream, ScoreRequest, Scores,
    StopMatch, SubmitError, VersionSpan,
};
use crate::ops::philox::philox;

/// Longest time that a disturbed engine holds an ended sample back.
const LONGEST_HOLD: u64 = 1500;

/// The engine. [`SimEngine::advance`] is its clock.
pub struct SimEngine {
    info: EngineInfo,
    world: Arc<World>,
    /// Seed of the disturbances.
    disturb: Option<u32>,
    state: Mutex<State>,
}

struct State {
    machine: Machine,
    next_name: u64,
    submitted: u64,
    cancelled: u64,
    preemptions: u64,
    dice: u32,
    samples: HashMap<u64, Live>,
    timers: HashMap<u64, Timer>,
}

struct Live {
    prompt: usize,
    index: u32,
    events: mpsc::UnboundedSender<Event>,
}

enum Timer {
    /// Tell whoever waits.
    Wake(oneshot::Sender<()>),
    /// Deliver this ended sample.
    Deliver(Live),
}

impl SimEngine {
    /// An engine with `slots` slots.
    pub fn new(world: Arc<World>, slots: usize, disturb: Option<u32>) -> Self {
        let info = EngineInfo {
            vocab_size: world.prompts().max(2),
            context_length: MAX_TOKENS as usize + 1,
            kv_tokens: slots * (MAX_TOKENS as usize + 1),
            numerics_id: "simulated".into(),
            device: "none".into(),
            why_not_cuda: None,
            stop_token_ids: vec![0],
            has_tokenizer: true,
        };
        let state = State {
            machine: Machine::new(slots),
            next_name: 0,
            submitted: 0,
            cancelled: 0,
            preemptions: 0,
            dice: 0,
            samples: HashMap::new(),
            timers: HashMap::new(),
        };
        SimEngine { info, world, disturb, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes to the next completion and tells its readers; `false` if nothing is left to happen.
    pub fn advance(&self) -> bool {
        let mut state = self.state();
        let ended = state.machine.advance();
        for name in &ended {
            match state.timers.remove(name) {
                Some(Timer::Wake(waiter)) => drop(waiter.send(())),
                Some(Timer::Deliver(live)) => self.deliver(live),
                None => {
                    let Some(live) = state.samples.remove(name) else { continue };
                    match self.roll(&mut state) {
                        Some([hold, steps, ..]) if hold % 3 == 0 => {
                            state.start_timer(1 + u64::from(steps) % LONGEST_HOLD, Timer::Deliver(live));
                        }
                        _ => self.deliver(live),
                    }
                }
            }
        }
        if let Some([preempt, which, ..]) = self.roll(&mut state)
            && preempt % 3 == 0
        {
            state.preemptions += 1;
            state.machine.preempt(u64::from(which));
        }
        !ended.is_empty()
    }

    /// Resolves after `steps` steps.
    pub fn after(&self, steps: u64) -> oneshot::Receiver<()> {
        let (waiter, receiver) = oneshot::channel();
        self.state().start_timer(steps, Timer::Wake(waiter));
        receiver
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.state().machine.now()
    }

    /// Samples submitted so far.
    pub fn submitted(&self) -> u64 {
        self.state().submitted
    }

    /// Four random words, if this engine is disturbed.
    fn roll(&self, state: &mut State) -> Option<[u32; 4]> {
        let seed = self.disturb?;
        state.dice += 1;
        Some(philox([state.dice, 0, 0, 0], [seed, 0]))
    }

    fn deliver(&self, live: Live) {
        let fate = self.world.fate(live.prompt, live.index);
        let reason = if fate.tokens >= MAX_TOKENS { FinishReason::Length } else { FinishReason::Stop };
        self.finish(live, fate.tokens as usize, reason);
    }

    fn finish(&self, live: Live, tokens: usize, finish_reason: FinishReason) {
        let right = self.world.fate(live.prompt, live.index).right;
        let sample = Sample {
            index: live.index,
            token_ids: vec![live.index; tokens],
            logprobs: vec![-1.0; tokens],
            logprobs_raw: vec![-1.0; tokens],
            text: if right { "1" } else { "0" }.into(),
            finish_reason,
            stop_match: (finish_reason == FinishReason::Stop).then_some(StopMatch::Token(0)),
            weight_versions: vec![VersionSpan { version: 0, start: 0, end: tokens as u32 }],
        };
        // A job that was dropped no longer listens.
        let _ = live.events.send(Event::Finished(Box::new(sample)));
    }
}

impl State {
    fn name(&mut self) -> u64 {
        self.next_name += 1;
        self.next_name
    }

    fn start_timer(&mut self, steps: u64, timer: Timer) {
        let name = self.name();
        self.timers.insert(name, timer);
        self.machine.timer(name, steps);
    }
}

impl Engine for SimEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn submit(&self, request: SampleRequest) -> Result<SampleStream, SubmitError> {
        let prompt = request.prompt.first().map_or(usize::MAX, |id| *id as usize);
        if prompt >= self.world.prompts() || request.index as usize >= self.world.of(prompt).len() {
            return Err(FieldError::new("prompt", "is not in the simulated world; its first token id is its position there").into());
        }
        let (events, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        let name = state.name();
        state.submitted += 1;
        state.samples.insert(name, Live { prompt, index: request.index, events });
        state.machine.submit(name, self.world.fate(prompt, request.index).tokens);
        Ok(SampleStream { id: RequestId(name), events: receiver })
    }

    fn cancel(&self, id: RequestId) -> CancelAck {
        let (ack, receiver) = oneshot::channel();
        let mut state = self.state();
        let drawn = state.machine.cancel(id.0);
        if let (Some(drawn), Some(live)) = (drawn, state.samples.remove(&id.0)) {
            state.cancelled += 1;
            self.finish(live, drawn as usize, FinishReason::Cancelled);
        }
        let _ = ack.send(drawn.is_some());
        receiver
    }

    fn score(&self, _: ScoreRequest) -> Result<oneshot::Receiver<Result<Scores, SubmitError>>, SubmitError> {
        Err(SubmitError::Stopped("a simulated engine has no model to score with".into()))
    }

    fn stats(&self) -> EngineStats {
        let state = self.state();
        EngineStats {
            running: state.machine.running(),
            waiting: state.machine.waiting(),
            steps: state.machine.now(),
            generated_tokens: state.machine.tokens(),
            preemptions: state.preemptions,
            cancelled: state.cancelled,
            ..EngineStats::default()
        }
    }
}
