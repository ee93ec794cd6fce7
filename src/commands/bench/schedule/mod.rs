//! `adaroll bench schedule`: how well the width planner fills an engine, on the real rollout code with a simulated engine.
//!
//! The workload is that of the design: prompts with pass rates from three mixes, groups of 4 with 2 of each, at most 32 samples, lognormal
//! lengths, wrong answers 1.6 times longer. Time is counted in engine steps, so every figure but the cost of a decision is the same on
//! every machine.

pub mod baselines;
pub mod drive;
pub mod machine;
mod report;
pub mod sim_engine;
pub mod world;

use std::sync::Arc;

pub use report::{Goal, Report, Row};

use self::baselines::{Planned, Policy, Rounds};
use self::drive::{Run, drive};
use self::world::{MAX_SAMPLES, Mix, World};
use crate::rollout::plan::{Outcome, Plan};

/// Positives and negatives wanted of each prompt.
const WANTED: u32 = 2;
/// The default of [`Workload::q_min`]. The design's .1 is for idle slots as this is, but leaves G3 on the early mix at its edge: 1.69 over 12
/// workloads, just above 1.7 over the first 3. Half of it costs under 1 % of tokens there.
pub const Q_MIN: f64 = 0.05;
/// Disturbed runs that are compared with one sample at a time.
const SEEDS: u32 = 20;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Workload {
    /// Prompts of a job. Engines have a quarter as many slots, as many, and four times as many.
    pub prompts: usize,
    /// Workloads of each mix; means are reported.
    pub reps: u32,
    /// The planner starts a sample that is needed with at least this probability.
    pub q_min: f64,
}

/// Who decides what starts next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The paper's 4 rounds of 8, with a barrier between rounds.
    Barrier,
    /// Rounds of 8 per prompt.
    Rounds,
    /// One sample of a prompt at a time.
    OneAtATime,
    /// The job with its width planner.
    Planner,
}

impl Who {
    /// Every policy, in the order of the table.
    pub const ALL: [Who; 4] = [Who::Barrier, Who::Rounds, Who::OneAtATime, Who::Planner];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Who::Barrier => "rounds, barrier",
            Who::Rounds => "rounds",
            Who::OneAtATime => "one at a time",
            Who::Planner => "planner",
        }
    }
}

/// "Two of each", tested after every sample.
pub fn plan() -> Plan {
    Plan::new(WANTED, WANTED, MAX_SAMPLES, 1)
}

/// Runs the bench. `progress` hears how many of how many runs are done.
///
/// # Errors
/// A sentence; it is a defect of this program.
pub fn schedule(workload: Workload, mut progress: impl FnMut(u64, u64)) -> Result<Report, String> {
    let (plan, Workload { prompts, reps, q_min }) = (plan(), workload);
    let slots = [(prompts / 4).max(1), prompts, prompts * 4];
    let runs = Mix::ALL.len() as u64 * slots.len() as u64 * Who::ALL.len() as u64 * u64::from(reps) + u64::from(SEEDS);
    let mut done = 0;
    let mut tick = || {
        done += 1;
        progress(done, runs);
    };
    let (mut rows, mut decisions, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
    for mix in Mix::ALL {
        let worlds: Vec<Arc<World>> = (0..reps).map(|rep| Arc::new(World::new(prompts, mix, 100 + u64::from(rep)))).collect();
        let needed: u64 = worlds.iter().map(|world| world.needed_tokens(&plan)).sum();
        for slots in slots {
            for policy in Who::ALL {
                let (mut steps, mut tokens) = (0, 0);
                for world in &worlds {
                    let (took, drew) = match policy {
                        Who::Barrier => run_policy(world, slots, &mut Rounds::new(prompts, &plan, true)),
                        Who::Rounds => run_policy(world, slots, &mut Rounds::new(prompts, &plan, false)),
                        Who::OneAtATime => run_policy(world, slots, &mut Planned::new(prompts, &plan, 1, q_min)),
                        Who::Planner => {
                            let driven = drive(world, Run { slots, q_min, disturb: None })?;
                            jobs.push(driven.busy.as_secs_f64() * 1e6 / driven.submitted as f64);
                            // The same decisions with a clock around each, which the job does not carry.
                            let mut alone = Planned::new(prompts, &plan, u32::MAX, q_min);
                            run_policy(world, slots, &mut alone);
                            decisions.push(alone.cost());
                            (driven.steps, driven.tokens)
                        }
                    };
                    steps += took;
                    tokens += drew;
                    tick();
                }
                rows.push(Row::new(mix, slots, policy, reps, steps, tokens, needed));
            }
        }
    }
    let mut identical = 0;
    for seed in 0..SEEDS {
        identical += u32::from(is_identical(seed, q_min, (prompts / 4).clamp(1, 128), &plan)?);
        tick();
    }
    let decision_us = median(&mut decisions);
    let goals = report::goals(&rows, prompts, (identical, SEEDS), decision_us);
    Ok(Report { workload, rows, decision_us, job_us: median(&mut jobs), goals })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn run_policy(world: &World, slots: usize, policy: &mut dyn Policy) -> (u64, u64) {
    let machine = baselines::run(world, slots, policy);
    (machine.now(), machine.tokens())
}

/// Whether a job with delays, retries and preemptions gives the groups of one sample at a time, and these end where the plan says.
fn is_identical(seed: u32, q_min: f64, prompts: usize, plan: &Plan) -> Result<bool, String> {
    let world = Arc::new(World::new(prompts, Mix::ALL[seed as usize % Mix::ALL.len()], 1000 + u64::from(seed)));
    let slots = [prompts / 4 + 1, prompts, prompts * 4][seed as usize / 3 % 3];
    let reference = drive(&world, Run { slots: 1, q_min, disturb: None })?;
    let disturbed = drive(&world, Run { slots, q_min, disturb: Some(seed) })?;
    let ends_right = |(prompt, group): (usize, &serde_json::Value)| {
        let outcomes: Vec<Outcome> = (0..MAX_SAMPLES).map(|index| world.outcome(prompt, index)).collect();
        group["stats"]["seen"] == plan.bound(&outcomes).t
    };
    Ok(reference.groups.len() == prompts && reference.groups.iter().enumerate().all(ends_right) && reference.groups == disturbed.groups)
}
