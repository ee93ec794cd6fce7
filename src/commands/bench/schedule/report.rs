//! What the scheduling bench prints: a row per mix, size of the engine and policy, and the goals of the design.

use super::world::Mix;
use super::{Who, Workload};

/// One policy on one engine: means over the repetitions.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Row {
    /// How pass rates are spread.
    pub mix: Mix,
    /// Slots of the engine.
    pub slots: usize,
    /// Who decides.
    pub policy: Who,
    /// Engine steps until the last group is there.
    pub steps: f64,
    /// Tokens drawn.
    pub tokens: f64,
    /// Tokens per slot and step.
    pub utilisation: f64,
    /// Share of the tokens that index order would not have drawn one sample at a time.
    pub wasted: f64,
}

impl Row {
    /// From sums over `reps` repetitions; `needed` are the tokens below the exits.
    pub fn new(mix: Mix, slots: usize, policy: Who, reps: u32, steps: u64, tokens: u64, needed: u64) -> Self {
        let (steps, tokens, reps) = (steps as f64, tokens as f64, f64::from(reps));
        Row {
            mix,
            slots,
            policy,
            steps: steps / reps,
            tokens: tokens / reps,
            utilisation: tokens / (steps * slots as f64),
            wasted: 1.0 - needed as f64 / tokens,
        }
    }
}

/// Something that the design wants of the figures.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Goal {
    /// What.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// What it must be.
    pub wanted: String,
    /// Whether it is.
    pub holds: bool,
}

impl Goal {
    fn at_least(name: impl Into<String>, value: f64, least: f64) -> Self {
        Goal { name: name.into(), value, wanted: format!("at least {least}"), holds: value >= least }
    }

    fn at_most(name: impl Into<String>, value: f64, most: f64) -> Self {
        Goal { name: name.into(), value, wanted: format!("at most {most}"), holds: value <= most }
    }
}

/// Everything that the command prints.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// What ran.
    pub workload: Workload,
    /// The table.
    pub rows: Vec<Row>,
    /// Microseconds that the planner's calls take per submitted sample: median of the planner's runs. Depends on the machine.
    pub decision_us: f64,
    /// The same of everything in the job: planner, verdicts, journal in memory, JSON. Depends on the machine.
    pub job_us: f64,
    /// The goals.
    pub goals: Vec<Goal>,
}

/// The design's goals. `identical` of so many disturbed runs; `decision_us` as in [`Report`].
pub fn goals(rows: &[Row], prompts: usize, identical: (u32, u32), decision_us: f64) -> Vec<Goal> {
    let row = |mix: Mix, slots: usize, policy: Who| rows.iter().find(|row| row.mix == mix && row.slots == slots && row.policy == policy);
    // A row that is missing makes every goal fail.
    let ratio = |mix: Mix, slots: usize, over: Who, under: Who, what: fn(&Row) -> f64| match (row(mix, slots, over), row(mix, slots, under))
    {
        (Some(over), Some(under)) => what(over) / what(under),
        _ => f64::NAN,
    };
    let tokens = |mix, slots, under| ratio(mix, slots, Who::Planner, under, |row| row.tokens);
    let faster = |mix, slots| ratio(mix, slots, Who::Barrier, Who::Planner, |row| row.steps);
    let mut goals =
        vec![Goal::at_least("G1 disturbed runs with the groups of one at a time", f64::from(identical.0), f64::from(identical.1))];
    for mix in Mix::ALL {
        let (name, least) = (mix.name(), if mix == Mix::Uniform { 1.5 } else { 1.3 });
        goals.push(Goal::at_least(format!("G2 slots = prompts, {name}: barrier's steps / planner's"), faster(mix, prompts), least));
        goals.push(Goal::at_most(
            format!("G2 slots = prompts, {name}: planner's tokens / barrier's"),
            tokens(mix, prompts, Who::Barrier),
            0.95,
        ));
    }
    for mix in Mix::ALL {
        let (name, slots) = (mix.name(), prompts * 4);
        goals.push(Goal::at_least(format!("G3 slots = 4 x prompts, {name}: barrier's steps / planner's"), faster(mix, slots), 1.7));
        goals.push(Goal::at_most(
            format!("G3 slots = 4 x prompts, {name}: planner's tokens / barrier's"),
            tokens(mix, slots, Who::Barrier),
            1.06,
        ));
    }
    for mix in Mix::ALL {
        let (name, slots) = (mix.name(), (prompts / 4).max(1));
        let utilisation = row(mix, slots, Who::Planner).map_or(f64::NAN, |row| row.utilisation);
        goals.push(Goal::at_least(format!("G4 slots = prompts / 4, {name}: utilisation"), utilisation, 0.95));
        goals.push(Goal::at_most(
            format!("G4 slots = prompts / 4, {name}: planner's tokens / one at a time's"),
            tokens(mix, slots, Who::OneAtATime),
            1.03,
        ));
    }
    goals.push(Goal::at_most("G5 microseconds of decisions per submitted sample", decision_us, 20.0));
    goals
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Workload { prompts, reps, q_min } = self.workload;
        writeln!(f, "{prompts} prompts, 2 positives and 2 negatives each, at most 32 samples, q_min {q_min}, mean of {reps}")?;
        writeln!(f, "{:<9}{:>7}  {:<17}{:>9}{:>12}{:>13}{:>9}", "mix", "slots", "policy", "steps", "tokens", "utilisation", "wasted")?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<9}{:>7}  {:<17}{:>9.0}{:>12.0}{:>13.3}{:>9.3}",
                row.mix.name(),
                row.slots,
                row.policy.name(),
                row.steps,
                row.tokens,
                row.utilisation,
                row.wasted
            )?;
        }
        write!(f, "{:.1} us per submitted sample in the planner, {:.1} us in the whole job", self.decision_us, self.job_us)?;
        for goal in &self.goals {
            let holds = if goal.holds { "holds" } else { "MISSED" };
            write!(f, "\n{:<70} {:>8.3}  {:<14} {holds}", goal.name, goal.value, goal.wanted)?;
        }
        Ok(())
    }
}
