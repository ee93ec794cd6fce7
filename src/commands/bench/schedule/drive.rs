//! The real job on a simulated engine, polled by hand on one thread: whenever it waits, the engine goes to the next completion.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::sim_engine::SimEngine;
use super::world::{MAX_SAMPLES, MAX_TOKENS, World};
use crate::engine::{Engine, SamplingParams};
use crate::metrics::Metrics;
use crate::ops::philox::philox;
use crate::reward::{Asked, Judge, Judged, Judgement, Spec, Verdict, Verifier};
use crate::rollout::plan::{Advantage, Strategy};
use crate::rollout::{
    BadGoldRule, Context, Ending, JobRecord, JobSpec, MemoryJournal, OnWeightUpdate, Order, Pause, PromptSpec, Return, Settings, Slots,
    Versions, Width, job,
};
use crate::store::{Resume, Store, StorePath};

/// How a job runs.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Slots of the engine.
    pub slots: usize,
    /// As in [`Width`].
    pub q_min: f64,
    /// Seed of preemptions, and of delays of samples and verdicts.
    pub disturb: Option<u32>,
}

/// What a job did.
#[derive(Debug)]
pub struct Driven {
    /// Engine steps to its end.
    pub steps: u64,
    /// Tokens drawn, wasted ones included.
    pub tokens: u64,
    /// Samples submitted.
    pub submitted: u64,
    /// Time spent in the job: everything but the engine.
    pub busy: Duration,
    /// Its groups by position, without what may depend on timing.
    pub groups: Vec<Value>,
}

/// Samples every prompt of `world` until it is balanced.
///
/// # Errors
/// A sentence; it is a defect of this program.
pub fn drive(world: &Arc<World>, run: Run) -> Result<Driven, String> {
    let sentence = |e: &dyn std::fmt::Display| format!("the job could not be set up: {e}");
    let engine = Arc::new(SimEngine::new(world.clone(), run.slots, run.disturb));
    let journal = Arc::new(MemoryJournal::default());
    let spec = Arc::new(spec(world).map_err(|e| sentence(&e))?);
    let store = Store::open(&StorePath::Memory).map_err(|e| sentence(&e))?;
    let record = JobRecord::open(spec.clone(), 0, store).map_err(|e| sentence(&e))?;
    let context = Context {
        engine: engine.clone(),
        rewards: Arc::new(SimJudge { engine: engine.clone(), disturb: run.disturb }),
        journal: journal.clone(),
        metrics: Arc::new(Metrics::new().map_err(|e| sentence(&e))?),
        slots: Slots::new(run.slots),
        pause: Pause::default(),
        versions: Versions::new(0, ""),
        width: Width { q_min: run.q_min, look_ahead: world.prompts() },
    };
    let start = Resume::default();
    let (ending, busy) = poll_by_hand(job::run(&context, &spec, &record, start), &engine)?;
    if ending != Ending::Done {
        return Err(format!("the job ended by {ending:?}"));
    }
    let mut rows = journal.groups();
    rows.sort_by_key(|row| row.prompt);
    let reproducible = |json: &str| {
        let mut group: Value = serde_json::from_str(json).map_err(|e| format!("a group is no JSON: {e}"))?;
        group.as_object_mut().map(|group| group.remove("timing"));
        Ok(group)
    };
    let groups = rows.iter().map(|row| reproducible(row.json.as_deref().unwrap_or("{}"))).collect::<Result<_, String>>()?;
    Ok(Driven { steps: engine.steps(), tokens: engine.stats().generated_tokens, submitted: engine.submitted(), busy, groups })
}

/// Polls to the end. Time passes only when there is nothing else to do, so that the job's own speed does not count.
fn poll_by_hand<T>(future: impl Future<Output = T>, engine: &SimEngine) -> Result<(T, Duration), String> {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    // Tokio's budget would make a future that is polled from within a runtime wait for a pause that never comes.
    let mut future = pin!(tokio::task::unconstrained(future));
    let mut busy = Duration::ZERO;
    loop {
        while woken.0.swap(false, Ordering::Relaxed) {
            let started = Instant::now();
            let polled = future.as_mut().poll(&mut TaskContext::from_waker(&waker));
            busy += started.elapsed();
            if let Poll::Ready(output) = polled {
                return Ok((output, busy));
            }
        }
        if !engine.advance() {
            return Err("the job waits, and the engine has nothing left to do".into());
        }
    }
}

fn spec(world: &World) -> Result<JobSpec, crate::field::FieldError> {
    let sampling = SamplingParams { max_tokens: MAX_TOKENS, ..SamplingParams::default() };
    let strategy = json!({"kind": "sequential", "exit": "balance", "group_size": 4, "max_samples": MAX_SAMPLES, "round_size": 1});
    let settings = Settings {
        strategy: Strategy::read(&strategy)?,
        advantage: Advantage::read(&json!("ada"))?,
        weights_version: 0,
        namespace: "bench".into(),
        priority: 0,
        deadline_s: None,
        order: Order::Completion,
        sampling: sampling.clone(),
        seed: 0,
        on_weight_update: OnWeightUpdate::Finish,
        bad_gold: BadGoldRule::Refuse,
        fields: Return { text: false, logprobs: false, logprobs_raw: false, all_samples: false },
    };
    let reward = Spec::read(&json!({"kind": "math", "answer": "1"}))?;
    let verifier = reward.compile().map(Arc::new);
    let prompt = |position: usize| PromptSpec {
        id: position.to_string(),
        token_ids: Arc::new([position as u32]),
        reward: reward.clone(),
        metadata: Arc::new(Value::Object(Map::new())),
        history: None,
        verifier: verifier.clone(),
    };
    Ok(JobSpec {
        id: "bench".into(),
        named: false,
        digest: String::new(),
        settings: Arc::new(settings),
        sampling: Arc::new(sampling),
        prompts: (0..world.prompts()).map(prompt).collect(),
        key: String::new(),
        accepted_unix_s: 0.0,
    })
}

/// Reads the verdict off the answer. A disturbed one takes its time, and now and then asks again.
struct SimJudge {
    engine: Arc<SimEngine>,
    disturb: Option<u32>,
}

/// Longest time that a disturbed verdict takes.
const LONGEST_VERDICT: u32 = 800;

impl Judge for SimJudge {
    fn judge(&self, _: Arc<Verifier>, asked: Asked) -> BoxFuture<'static, Judged> {
        let judged = Judged::at_once(Judgement::bare(Verdict::Scored(if asked.text == "1" { 1.0 } else { 0.0 })));
        let Some(seed) = self.disturb else { return futures::future::ready(judged).boxed() };
        let prompt = asked.prompt_id.parse().unwrap_or(0);
        let [tries, steps, again, ..] = philox([prompt, asked.index, 0, 0], [seed, 1]);
        let delays = [steps % LONGEST_VERDICT, again % LONGEST_VERDICT];
        let engine = self.engine.clone();
        async move {
            for steps in &delays[..(tries % 3) as usize] {
                // The engine outlives this future.
                let _ = engine.after(u64::from(*steps)).await;
            }
            judged
        }
        .boxed()
    }
}
