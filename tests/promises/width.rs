//! Promise: the width planner ranks samples by the exact probability that they are needed, proposes none that cannot be, and is fast.

use std::time::{Duration, Instant};

use adaroll::rollout::plan::{Outcome, Plan, Planner, Prior, View, q_needed};

use crate::fake_engine::{mix, unit};
use crate::plan::one_at_a_time;

const P: Outcome = Outcome::Positive;
const N: Outcome = Outcome::Negative;
const U: Outcome = Outcome::Unscored;

fn view<'a>(plan: &'a Plan, outcomes: &'a [Outcome], issued: u32) -> View<'a> {
    View { plan, outcomes, issued, limit: u32::MAX, prior: Prior::default(), weight: 1.0 }
}

/// P(T > issued), by walking every way in which the samples in flight can end. A beta-binomial is Polya's urn: each draw adds itself.
fn q_by_enumeration(plan: &Plan, outcomes: &[Outcome], issued: u32, prior: Prior) -> f64 {
    fn walk(plan: &Plan, all: &mut Vec<Outcome>, missing: &[usize], issued: u32, a: f64, b: f64) -> f64 {
        let Some((first, rest)) = missing.split_first() else {
            return f64::from(u8::from(one_at_a_time(plan, all).t > issued));
        };
        let mut q = 0.0;
        for (outcome, share) in [(P, a / (a + b)), (N, b / (a + b))] {
            all[*first] = outcome;
            let (up, down) = if outcome == P { (1.0, 0.0) } else { (0.0, 1.0) };
            q += share * walk(plan, all, rest, issued, a + up, b + down);
        }
        q
    }
    let count = |what: Outcome| outcomes.iter().filter(|o| **o == what).count() as f64;
    let missing: Vec<usize> = (0..issued as usize).filter(|i| outcomes[*i] == U).collect();
    // Whatever comes at and after `issued` has no say in whether it is needed.
    let mut all = outcomes[..issued as usize].to_vec();
    all.resize(plan.n_max as usize, N);
    walk(plan, &mut all, &missing, issued, 0.5 + prior.positives + count(P), 0.5 + prior.negatives + count(N))
}

/// A plan, the outcomes of `0..issued` with at most ten in flight, and a prior.
fn random_case(case: u64) -> (Plan, Vec<Outcome>, u32, Prior) {
    let draw = |what: u64, n: u64| (mix(&[case, what]) % n) as u32;
    let n_max = 2 + draw(0, 23);
    let mut plan = Plan::new(draw(1, 4), draw(2, 4), n_max, [1, 1, 2, 3, 8][draw(3, 5) as usize].min(n_max));
    plan.max_failed = n_max;
    plan.straight_pos = if draw(4, 2) == 0 { 1 + draw(5, u64::from(n_max.min(8))) } else { 0 };
    let issued = draw(6, u64::from(n_max));
    let (rate, busy) = ([0.1, 0.5, 0.9, 1.0][draw(7, 4) as usize], unit(&[case, 8]));
    let mut in_flight = 0;
    let outcomes = (0..u64::from(issued))
        .map(|i| match unit(&[case, 9, i]) {
            u if u < busy && in_flight < 10 => {
                in_flight += 1;
                U
            }
            u if u > 0.97 => Outcome::Failed,
            u if u > 0.95 => Outcome::Skipped,
            _ if unit(&[case, 10, i]) < rate => P,
            _ => N,
        })
        .collect();
    let prior = Prior { positives: f64::from(draw(11, 6)) / 2.0, negatives: f64::from(draw(12, 6)) / 2.0 };
    (plan, outcomes, issued, prior)
}

#[test]
fn q_is_the_probability_of_being_needed() {
    let (mut between, mut straight, mut rounds, mut impossible) = (0, 0, 0, 0);
    for case in 0..6000 {
        let (plan, outcomes, issued, prior) = random_case(case);
        let expected = q_by_enumeration(&plan, &outcomes, issued, prior);
        let q = q_needed(View { prior, ..view(&plan, &outcomes, issued) });
        assert!((q - expected).abs() < 1e-12, "case {case}: q {q}, by enumeration {expected}; {plan:?} {issued} {outcomes:?}");
        let without = Plan { straight_pos: 0, ..plan };
        let open = q > 1e-9 && q < 1.0 - 1e-9;
        between += u32::from(open);
        straight += u32::from(open && (q - q_needed(View { prior, ..view(&without, &outcomes, issued) })).abs() > 1e-6);
        rounds += u32::from(open && issued % plan.m != 0);
        impossible += u32::from(q == 0.0);
    }
    // The cases are not trivial, and dropping `straight_positives` or rounds would be seen.
    assert!(between > 1000 && straight > 150 && rounds > 300 && impossible > 300, "{between} {straight} {rounds} {impossible}");
}

#[test]
fn well_known_values() {
    let balance = Plan::new(2, 2, 32, 1);
    // Fewer than K+ + K- samples: certain. Then P(X < 2 or 4 - X < 2), X ~ BetaBin(4, 1/2, 1/2) with P(X) = 35, 20, 18, 20, 35 in 128.
    assert_eq!(q_needed(view(&balance, &[U; 3], 3)), 1.0);
    assert!((q_needed(view(&balance, &[U; 4], 4)) - 110.0 / 128.0).abs() < 1e-14);
    // Rounds of 8: certain inside the first, and the same within the second wherever it stands.
    let paper = Plan::new(2, 2, 32, 8);
    assert_eq!(q_needed(view(&paper, &[P, N, P, N, P, N, P], 7)), 1.0);
    assert_eq!(q_needed(view(&paper, &[U; 8], 8)), q_needed(view(&paper, &[U; 15], 15)));
    // What later indices showed moves the pass rate even where it does not count for the exit.
    assert!(q_needed(view(&paper, &[U, U, U, U, U, U, U, U, N, N, N], 11)) > q_needed(view(&paper, &[U; 11], 11)));
    // A uniform plan: certain below n, never above.
    let uniform = Plan::new(0, 0, 8, 8);
    assert_eq!(q_needed(view(&uniform, &[N; 7], 7)), 1.0);
    assert_eq!(q_needed(view(&uniform, &[U; 8], 8)), 0.0);
    // A positive exit, one in flight, no history: an even chance.
    assert!((q_needed(view(&Plan::new(1, 0, 32, 1), &[U], 1)) - 0.5).abs() < 1e-14);
    // Weight and history.
    let history = Prior { positives: 0.0, negatives: 1.0 };
    assert!((q_needed(View { weight: 0.5, prior: history, ..view(&Plan::new(1, 0, 32, 1), &[U], 1) }) - 0.375).abs() < 1e-14);
}

#[test]
fn q_falls_with_the_index_and_rises_with_what_is_wanted() {
    for case in 0..2000 {
        let (plan, outcomes, issued, prior) = random_case(case);
        let q = |plan: &Plan, outcomes: &[Outcome], issued| q_needed(View { prior, ..view(plan, outcomes, issued) });
        let mut longer = outcomes.clone();
        let mut last = q(&plan, &outcomes, issued);
        for next in issued + 1..plan.n_max {
            longer.push(U);
            let now = q(&plan, &longer, next);
            assert!(now <= last + 1e-12, "case {case}: q rose from {last} to {now} at {next}: {plan:?} {outcomes:?}");
            last = now;
        }
        let here = q(&plan, &outcomes, issued);
        assert!(q(&Plan { k_pos: plan.k_pos + 1, ..plan }, &outcomes, issued) >= here - 1e-12);
        assert!(q(&Plan { k_neg: plan.k_neg + 1, ..plan }, &outcomes, issued) >= here - 1e-12);
        assert!(q(&Plan { straight_pos: 0, ..plan }, &outcomes, issued) >= here - 1e-12);
        // What is expected to be learned is expected not to change it.
        if let Some(missing) = outcomes.iter().position(|o| *o == U) {
            let count = |what: Outcome| outcomes.iter().filter(|o| **o == what).count() as f64;
            let (a, b) = (0.5 + prior.positives + count(P), 0.5 + prior.negatives + count(N));
            let with = |outcome| {
                let mut known = outcomes.clone();
                known[missing] = outcome;
                q(&plan, &known, issued)
            };
            assert!((here - (a * with(P) + b * with(N)) / (a + b)).abs() < 1e-12, "case {case}");
        }
    }
}

#[test]
fn every_prompt_reaches_its_exit_and_no_index_beyond_it_is_proposed() {
    let (mut closed, mut at_the_limit) = (0, 0);
    for job in 0..200u64 {
        let draw = |what: &[u64], n: u64| (mix(&[job, 77, mix(what)]) % n) as u32;
        let prompts = 1 + draw(&[0], 12) as usize;
        let cases: Vec<(Plan, Vec<Outcome>, u32)> = (0..prompts as u64)
            .map(|prompt| {
                let (plan, ..) = random_case(mix(&[job, prompt]));
                let rate = unit(&[job, prompt, 1]);
                let all = (0..u64::from(plan.n_max)).map(|i| if unit(&[job, prompt, 2, i]) < rate { P } else { N }).collect();
                let limit = if draw(&[1, prompt], 3) == 0 { draw(&[2, prompt], u64::from(plan.n_max)) } else { u32::MAX };
                (plan, all, limit)
            })
            .collect();
        let mut known: Vec<Vec<Outcome>> = cases.iter().map(|(plan, ..)| vec![U; plan.n_max as usize]).collect();
        let (mut issued, mut running) = (vec![0u32; prompts], Vec::<(usize, u32)>::new());
        let floor = [0.0, 0.1, 0.5, 1.0][draw(&[3], 4) as usize];
        let mut planner = if draw(&[4], 2) == 0 { Planner::with_floor(floor) } else { Planner::new() };
        fn of<'a>(cases: &'a [(Plan, Vec<Outcome>, u32)], known: &'a [Vec<Outcome>], issued: &[u32], i: usize) -> View<'a> {
            View { limit: cases[i].2, ..view(&cases[i].0, &known[i], issued[i]) }
        }
        (0..prompts).for_each(|i| planner.update(i, of(&cases, &known, &issued, i)));
        let mut step = 0;
        loop {
            while running.len() < 24 {
                let Some(need) = planner.best() else { break };
                if need.q < floor {
                    break;
                }
                let (i, index) = (need.prompt, issued[need.prompt]);
                assert_eq!(need.q, q_needed(of(&cases, &known, &issued, i)), "job {job}: a stale entry");
                let (plan, _, limit) = &cases[i];
                assert!(index < plan.bound(&known[i]).t && index < *limit && index < plan.n_max, "job {job}: {i}.{index} cannot matter");
                running.push((i, index));
                issued[i] += 1;
                planner.update(i, of(&cases, &known, &issued, i));
            }
            if running.is_empty() {
                break;
            }
            step += 1;
            let (i, index) = running.swap_remove(draw(&[5, step], running.len() as u64) as usize);
            known[i][index as usize] = cases[i].1[index as usize];
            let bound = cases[i].0.bound(&known[i]).t;
            running.retain(|(prompt, index)| *prompt != i || *index < bound);
            planner.update(i, of(&cases, &known, &issued, i));
        }
        assert_eq!(planner.best(), None);
        for (i, (plan, all, limit)) in cases.iter().enumerate() {
            let reference = one_at_a_time(plan, all);
            if reference.t <= *limit {
                assert_eq!(plan.exit(&known[i]), Some(reference), "job {job}, prompt {i}");
                closed += 1;
            } else {
                assert_eq!(issued[i], *limit, "job {job}, prompt {i}");
                at_the_limit += 1;
            }
        }
    }
    assert!(closed > 500 && at_the_limit > 50, "{closed} {at_the_limit}");
}

#[test]
fn the_surest_first_then_the_longest_then_the_lowest_number() {
    let short = Plan::new(2, 2, 32, 1);
    let mut planner = Planner::new();
    // Certain, with equal work: by number, whatever the order of arrival.
    for prompt in [5, 3, 4] {
        planner.update(prompt, view(&short, &[], 0));
    }
    assert_eq!(planner.best().unwrap().prompt, 3);
    assert_eq!(planner.best().unwrap().prompt, 3, "to look is not to take");
    // Certain, with more to come: four negatives say that positives are rare.
    planner.update(9, view(&short, &[N, N, N, N], 4));
    assert_eq!(planner.best().unwrap().prompt, 9);
    // Less than certain comes after, however long.
    planner.update(9, view(&short, &[N, N, N, N, U, U], 6));
    let need = planner.best().unwrap();
    assert_eq!((need.prompt, need.q), (3, 1.0));
    [3, 4, 5].into_iter().for_each(|prompt| planner.remove(prompt));
    assert_eq!(planner.best().unwrap().prompt, 9);
    planner.remove(9);
    // Within a bin of .05 the longer work decides; beyond it, q does.
    let negatives = [N, N, N, N, N, N];
    let longer = Plan::new(2, 2, 64, 1);
    planner.update(1, View { weight: 0.99, ..view(&short, &negatives, 6) });
    planner.update(2, View { weight: 0.96, ..view(&longer, &negatives, 6) });
    assert_eq!(planner.best().unwrap().prompt, 2);
    planner.update(2, View { weight: 0.94, ..view(&longer, &negatives, 6) });
    assert_eq!(planner.best().unwrap().prompt, 1);
    planner.remove(1);
    assert_eq!(planner.best().unwrap().prompt, 2);
    planner.remove(2);
    assert_eq!(planner.best(), None);
}

#[test]
fn entries_of_the_past_are_dropped() {
    let plan = Plan::new(2, 2, 32, 1);
    let mut planner = Planner::new();
    (0..4).for_each(|prompt| planner.update(prompt, view(&plan, &[], 0)));
    // Prompt 3 is worse each time, so that its past entries would all stand before its present one.
    let mut size = 0;
    for round in 0..10_000u32 {
        planner.update(3, View { weight: 0.9 - f64::from(round) * 8e-5, ..view(&plan, &[], 0) });
        size = size.max(format!("{planner:?}").len());
    }
    assert!(size < 50_000, "the heap grew to {size} characters");
    (0..3).for_each(|prompt| planner.remove(prompt));
    let need = planner.best().unwrap();
    assert_eq!((need.prompt, need.q), (3, 0.9 - 9999.0 * 8e-5));
    planner.update(3, view(&plan, &[P, N, P, N], 4));
    assert_eq!(planner.best(), None, "an exit that is reached");
    // Below the floor a candidate does not exist, and does not hide another of its bin.
    let mut planner = Planner::with_floor(0.12);
    planner.update(0, View { weight: 0.11, ..view(&plan, &[N, N, N, N], 4) });
    planner.update(1, View { weight: 0.13, ..view(&plan, &[], 0) });
    assert_eq!(planner.best().unwrap().prompt, 1);
    planner.remove(7);
}

/// 512 prompts as wide as they go, everything ending in a shuffled order: what one decision costs.
fn cost_of_a_decision(seed: u64) -> Duration {
    let plan = Plan::new(2, 2, 32, 1);
    let mut known = vec![[U; 32]; 512];
    let (mut issued, mut running, mut submitted) = (vec![0u32; 512], Vec::<(usize, u32)>::new(), 0);
    let started = Instant::now();
    let mut planner = Planner::with_floor(0.1);
    (0..512).for_each(|i| planner.update(i, view(&plan, &known[i], 0)));
    loop {
        while let (true, Some(need)) = (running.len() < 2048, planner.best()) {
            let i = need.prompt;
            running.push((i, issued[i]));
            issued[i] += 1;
            submitted += 1;
            planner.update(i, view(&plan, &known[i], issued[i]));
        }
        if running.is_empty() {
            break;
        }
        let (i, index) = running.swap_remove((mix(&[seed, running.len() as u64, submitted]) % running.len() as u64) as usize);
        known[i][index as usize] = if unit(&[seed, i as u64, u64::from(index)]) < unit(&[seed, i as u64]) { P } else { N };
        planner.update(i, view(&plan, &known[i], issued[i]));
    }
    assert!(submitted > 2048);
    started.elapsed() / submitted as u32
}

#[test]
fn a_decision_costs_at_most_twenty_microseconds() {
    // The best of a few, for what else the machine does is not the planner's cost.
    let best = (0..5).map(cost_of_a_decision).min().unwrap();
    println!("{best:?} per submitted sample");
    assert!(best <= Duration::from_micros(20), "{best:?}");
}
