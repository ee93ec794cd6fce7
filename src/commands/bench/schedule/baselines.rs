//! What the planner is compared with, driven on the [`Machine`] directly: the paper's rounds, and one sample at a time.

use std::time::{Duration, Instant};

use super::machine::Machine;
use super::world::{MAX_SAMPLES, World};
use crate::rollout::plan::{Outcome, Plan, Planner, Prior, View};

/// Samples of a round.
pub const ROUND: u32 = 8;

/// Decides what starts next.
pub trait Policy {
    /// The next sample, if one is to start now.
    fn next(&mut self) -> Option<(usize, u32)>;
    /// A sample has ended. Gives the running samples that are to be cancelled.
    fn ended(&mut self, prompt: usize, index: u32, outcome: Outcome) -> Vec<(usize, u32)>;
}

/// Runs a policy to its end and gives the machine as it stands then.
pub fn run(world: &World, slots: usize, policy: &mut dyn Policy) -> Machine {
    let mut machine = Machine::new(slots);
    let width = u64::from(MAX_SAMPLES);
    loop {
        while machine.running() < slots {
            let Some((prompt, index)) = policy.next() else { break };
            machine.submit(prompt as u64 * width + u64::from(index), world.fate(prompt, index).tokens);
        }
        let ended = machine.advance();
        if ended.is_empty() {
            return machine;
        }
        for name in ended {
            let (prompt, index) = ((name / width) as usize, (name % width) as u32);
            for (prompt, index) in policy.ended(prompt, index, world.outcome(prompt, index)) {
                machine.cancel(prompt as u64 * width + u64::from(index));
            }
        }
    }
}

/// Rounds of 8: a prompt that is short of its exit after a round gets another. With a barrier, once the last prompt has ended its round.
pub struct Rounds {
    plan: Plan,
    barrier: bool,
    queue: std::collections::VecDeque<(usize, u32)>,
    outcomes: Vec<Vec<Outcome>>,
    /// Samples in flight or queued: of each prompt, and of all.
    open: Vec<u32>,
    all_open: u32,
}

impl Rounds {
    /// Every prompt's first round is queued.
    pub fn new(prompts: usize, plan: &Plan, barrier: bool) -> Self {
        let plan = Plan { m: ROUND, ..*plan };
        let mut rounds =
            Rounds { plan, barrier, queue: Default::default(), outcomes: vec![Vec::new(); prompts], open: vec![0; prompts], all_open: 0 };
        (0..prompts).for_each(|prompt| rounds.start(prompt));
        rounds
    }

    fn start(&mut self, prompt: usize) {
        let from = self.outcomes[prompt].len() as u32;
        if self.open[prompt] > 0 || from >= self.plan.n_max || self.plan.exit(&self.outcomes[prompt]).is_some() {
            return;
        }
        let to = (from + ROUND).min(self.plan.n_max);
        self.queue.extend((from..to).map(|index| (prompt, index)));
        self.outcomes[prompt].resize(to as usize, Outcome::Unscored);
        self.open[prompt] = to - from;
        self.all_open += to - from;
    }
}

impl Policy for Rounds {
    fn next(&mut self) -> Option<(usize, u32)> {
        self.queue.pop_front()
    }

    fn ended(&mut self, prompt: usize, index: u32, outcome: Outcome) -> Vec<(usize, u32)> {
        self.outcomes[prompt][index as usize] = outcome;
        self.open[prompt] -= 1;
        self.all_open -= 1;
        if !self.barrier {
            self.start(prompt);
        } else if self.all_open == 0 {
            (0..self.open.len()).for_each(|prompt| self.start(prompt));
        }
        Vec::new()
    }
}

/// The planner without a job around it, with at most `width` samples of a prompt in flight.
pub struct Planned {
    plan: Plan,
    width: u32,
    planner: Planner,
    outcomes: Vec<Vec<Outcome>>,
    issued: Vec<u32>,
    running: Vec<Vec<u32>>,
    spent: Duration,
}

impl Planned {
    /// Nothing has started.
    pub fn new(prompts: usize, plan: &Plan, width: u32, q_min: f64) -> Self {
        let mut planned = Planned {
            plan: *plan,
            width,
            planner: Planner::with_floor(q_min),
            outcomes: vec![vec![Outcome::Unscored; plan.n_max as usize]; prompts],
            issued: vec![0; prompts],
            running: vec![Vec::new(); prompts],
            spent: Duration::ZERO,
        };
        (0..prompts).for_each(|prompt| planned.update(prompt));
        planned
    }

    /// Microseconds in the planner per sample started.
    pub fn cost(&self) -> f64 {
        self.spent.as_secs_f64() * 1e6 / f64::from(self.issued.iter().sum::<u32>().max(1))
    }

    fn update(&mut self, prompt: usize) {
        let issued = self.issued[prompt];
        let limit = issued.saturating_add(self.width.saturating_sub(self.running[prompt].len() as u32));
        let view = View { plan: &self.plan, outcomes: &self.outcomes[prompt], issued, limit, prior: Prior::default(), weight: 1.0 };
        let started = Instant::now();
        self.planner.update(prompt, view);
        self.spent += started.elapsed();
    }
}

impl Policy for Planned {
    fn next(&mut self) -> Option<(usize, u32)> {
        let started = Instant::now();
        let best = self.planner.best();
        self.spent += started.elapsed();
        let prompt = best?.prompt;
        let index = self.issued[prompt];
        self.issued[prompt] += 1;
        self.running[prompt].push(index);
        self.update(prompt);
        Some((prompt, index))
    }

    fn ended(&mut self, prompt: usize, index: u32, outcome: Outcome) -> Vec<(usize, u32)> {
        if !self.running[prompt].contains(&index) {
            return Vec::new();
        }
        self.outcomes[prompt][index as usize] = outcome;
        let bound = self.plan.bound(&self.outcomes[prompt]).t;
        let moot: Vec<(usize, u32)> = self.running[prompt].iter().filter(|i| **i >= bound && **i != index).map(|i| (prompt, *i)).collect();
        self.running[prompt].retain(|i| *i < bound && *i != index);
        self.update(prompt);
        moot
    }
}
