//! Promise: the scheduling bench replays the design's workload on the real job, its figures do not depend on the machine, and timing never
//! shows in a group.

use std::sync::Arc;

use adaroll::commands::bench::schedule::baselines::{self, Planned, Rounds};
use adaroll::commands::bench::schedule::drive::{Driven, Run, drive};
use adaroll::commands::bench::schedule::machine::Machine;
use adaroll::commands::bench::schedule::world::{MAX_SAMPLES, MAX_TOKENS, Mix, World};
use adaroll::commands::bench::schedule::{Q_MIN, Workload, plan, schedule};
use adaroll::rollout::plan::Outcome;

fn run(world: &Arc<World>, slots: usize, disturb: Option<u32>) -> Driven {
    drive(world, Run { slots, q_min: 0.1, disturb }).unwrap()
}

#[test]
fn the_workload_is_the_designs() {
    for (mix, rate) in [(Mix::Uniform, 0.5), (Mix::Early, 0.265), (Mix::Late, 0.531)] {
        let world = World::new(2000, mix, 7);
        let fates: Vec<_> = (0..2000).flat_map(|prompt| world.of(prompt).to_vec()).collect();
        let right = fates.iter().filter(|fate| fate.right).count() as f64 / fates.len() as f64;
        // A truncated answer is not right, which costs a little.
        assert!((right - rate).abs() < 0.03, "{mix:?}: {right}, by the design {rate}");
        assert!(fates.iter().all(|fate| (8..=MAX_TOKENS).contains(&fate.tokens) && (fate.tokens < MAX_TOKENS || !fate.right)));
        let mean = |right: bool| {
            let lengths: Vec<f64> = fates.iter().filter(|fate| fate.right == right).map(|fate| f64::from(fate.tokens)).collect();
            lengths.iter().sum::<f64>() / lengths.len() as f64
        };
        // 500 times the mean of the prompts' factors, e^(.35^2 / 2).
        assert!((mean(true) - 500.0 * (0.35f64 * 0.35 / 2.0).exp()).abs() < 30.0, "{mix:?}: {}", mean(true));
        // About 1.6: truncation shortens wrong answers, and makes the longest right ones wrong.
        assert!((1.5..1.75).contains(&(mean(false) / mean(true))), "{mix:?}: {}", mean(false) / mean(true));
    }
    let (one, other) = (World::new(3, Mix::Late, 1), World::new(3, Mix::Late, 2));
    assert_eq!(one.of(2), World::new(3, Mix::Late, 1).of(2));
    assert_ne!(one.of(2), other.of(2));
    // Rates spread as they should: in the late mix many prompts are all right or all wrong.
    let world = World::new(1000, Mix::Late, 3);
    let pure = (0..1000).filter(|prompt| world.of(*prompt).iter().all(|fate| fate.right == world.of(*prompt)[0].right)).count();
    assert!((300..550).contains(&pure), "{pure}");
}

#[test]
fn a_machine_gives_one_token_per_slot_and_step() {
    let mut machine = Machine::new(2);
    [(1, 10), (2, 4), (3, 5)].into_iter().for_each(|(name, tokens)| machine.submit(name, tokens));
    assert_eq!((machine.running(), machine.waiting()), (2, 1));
    assert_eq!((machine.advance(), machine.now()), (vec![2], 4));
    assert_eq!((machine.running(), machine.waiting()), (2, 0), "a freed slot is refilled at once");
    machine.timer(9, 2);
    assert_eq!((machine.advance(), machine.now()), (vec![9], 6), "a timer takes no slot");
    machine.submit(4, 7);
    assert_eq!(machine.cancel(4), Some(0), "it had no slot yet");
    // 1 has drawn 6 of 10 and comes back behind 5 with 4 to go.
    machine.submit(5, 3);
    machine.preempt(0);
    assert_eq!((machine.advance(), machine.now()), (vec![3, 5], 9));
    assert_eq!((machine.advance(), machine.now()), (vec![1], 13));
    assert_eq!((machine.tokens(), machine.advance()), (10 + 4 + 5 + 3, vec![]));
    machine.submit(6, 100);
    machine.submit(7, 10);
    machine.advance();
    assert_eq!((machine.cancel(6), machine.cancel(6)), (Some(10), None));
    assert_eq!(machine.tokens(), 22 + 20);
}

#[test]
fn baselines_draw_what_they_must() {
    let (plan, prompts) = (plan(), 64);
    let world = World::new(prompts, Mix::Uniform, 5);
    let exit = |prompt: usize, m: u32| {
        let outcomes: Vec<Outcome> = (0..MAX_SAMPLES).map(|index| world.outcome(prompt, index)).collect();
        adaroll::rollout::plan::Plan { m, ..plan }.bound(&outcomes).t
    };
    let tokens = |m: u32| -> u64 {
        (0..prompts)
            .flat_map(|prompt| (0..exit(prompt, m)).map(move |index| (prompt, index)))
            .map(|(p, i)| u64::from(world.fate(p, i).tokens))
            .sum()
    };
    assert_eq!(tokens(1), world.needed_tokens(&plan));
    for slots in [16, 64, 1000] {
        let one = baselines::run(&world, slots, &mut Planned::new(prompts, &plan, 1, 0.1));
        assert_eq!(one.tokens(), tokens(1), "one at a time wastes nothing");
        let barrier = baselines::run(&world, slots, &mut Rounds::new(prompts, &plan, true));
        let rounds = baselines::run(&world, slots, &mut Rounds::new(prompts, &plan, false));
        assert_eq!((barrier.tokens(), rounds.tokens()), (tokens(8), tokens(8)), "whole rounds of 8");
        assert!(rounds.now() <= barrier.now());
    }
}

/// Reference: an independent simulation of the same workload (uniform mix, 512 prompts), within what other random numbers change.
#[test]
fn steps_agree_with_an_independent_simulation() {
    let plan = plan();
    let worlds: Vec<World> = (0..3).map(|seed| World::new(512, Mix::Uniform, 100 + seed)).collect();
    for (slots, barrier, rounds, planner) in
        [(128, 42918.0, 38861.0, 31579.0), (512, 15422.0, 12744.0, 9642.0), (2048, 8990.0, 8432.0, 4554.0)]
    {
        let mean = |policy: &dyn Fn() -> Box<dyn baselines::Policy>| {
            worlds.iter().map(|world| baselines::run(world, slots, &mut *policy()).now() as f64).sum::<f64>() / 3.0
        };
        for (expected, found) in [
            (barrier, mean(&|| Box::new(Rounds::new(512, &plan, true)))),
            (rounds, mean(&|| Box::new(Rounds::new(512, &plan, false)))),
            (planner, mean(&|| Box::new(Planned::new(512, &plan, u32::MAX, 0.1)))),
        ] {
            assert!((found / expected - 1.0).abs() < 0.12, "{slots} slots: {found} steps, the other simulation {expected}");
        }
    }
}

#[test]
fn the_job_does_as_well_as_its_planner_alone() {
    let world = Arc::new(World::new(256, Mix::Uniform, 11));
    for slots in [64, 256, 1024] {
        let alone = baselines::run(&world, slots, &mut Planned::new(256, &plan(), u32::MAX, 0.1));
        let job = run(&world, slots, None);
        let (steps, tokens) = (job.steps as f64 / alone.now() as f64, job.tokens as f64 / alone.tokens() as f64);
        assert!(steps < 1.05 && tokens < 1.02, "{slots} slots: {steps} of the planner's steps, {tokens} of its tokens");
        assert_eq!((job.steps, job.tokens), (run(&world, slots, None).steps, run(&world, slots, None).tokens), "no clock has a say");
    }
}

#[test]
fn delays_retries_and_preemptions_never_show_in_a_group() {
    let mut moved = 0;
    for seed in 0..6 {
        let world = Arc::new(World::new(24, Mix::ALL[seed as usize % 3], u64::from(seed)));
        let one = run(&world, 1, None);
        assert_eq!(one.groups.len(), 24);
        for slots in [7, 24, 96] {
            let disturbed = run(&world, slots, Some(seed));
            assert_eq!(disturbed.groups, one.groups, "seed {seed}, {slots} slots");
            moved += u32::from(disturbed.steps != run(&world, slots, Some(seed + 100)).steps);
        }
    }
    assert!(moved > 12, "the disturbances change nothing at all: {moved}");
}

#[test]
fn the_report_has_every_row_and_goal() {
    let workload = Workload { prompts: 48, reps: 1, q_min: Q_MIN };
    let mut last = (0, 0);
    let report = schedule(workload, |done, all| last = (done, all)).unwrap();
    assert_eq!(last.0, last.1);
    let json = serde_json::to_value(&report).unwrap();
    let (rows, goals) = (json["rows"].as_array().unwrap(), json["goals"].as_array().unwrap());
    assert_eq!(rows.len(), 3 * 3 * 4);
    for row in rows {
        for field in ["steps", "tokens", "utilisation", "wasted"] {
            assert!(row[field].as_f64().is_some_and(|value| value >= 0.0), "{row}");
        }
        assert!(row["utilisation"].as_f64().unwrap() <= 1.0 && row["mix"].is_string() && row["policy"].is_string());
        assert!(row["policy"] != "one_at_a_time" || row["wasted"] == 0.0, "{row}");
    }
    for goal in ["G1", "G2", "G3", "G4", "G5"] {
        let of: Vec<_> = goals.iter().filter(|found| found["name"].as_str().unwrap().starts_with(goal)).collect();
        assert!(!of.is_empty() && of.iter().all(|goal| goal["value"].is_number() && goal["holds"].is_boolean()), "{goal}");
    }
    assert!(0.0 < report.decision_us && report.decision_us < report.job_us, "a decision is a part of a job's work");
    assert_eq!(goals[0]["holds"], true, "{}", goals[0]);
    let text = report.to_string();
    assert!(text.contains("planner") && text.contains("G5"), "{text}");
}
