//! Promise: the statistics of adaptive groups are honest. Every number here is an exact enumeration, none a simulation.

use std::collections::BTreeMap;

use adaroll::rollout::plan::{Advantage, Exit, ExitKind, Group, Outcome, Plan, Stats, stats};

use crate::plan::seen;

/// Every way a plan can stop at pass rate `p`, with its probability. Prefixes with the same counts, in all and among the first m, and the
/// same straight run behave alike, so one of them stands for all.
fn stops(plan: &Plan, p: f64) -> Vec<(f64, Exit, Vec<Outcome>)> {
    let mut alive = vec![(1.0, Vec::<Outcome>::new())];
    let mut stopped = Vec::new();
    while !alive.is_empty() {
        let mut next = BTreeMap::<(usize, usize, usize, bool), (f64, Vec<Outcome>)>::new();
        for (weight, prefix) in alive {
            for (outcome, q) in [(Outcome::Positive, p), (Outcome::Negative, 1.0 - p)] {
                let mut longer = prefix.clone();
                longer.push(outcome);
                if let Some(exit) = plan.exit(&longer) {
                    stopped.push((weight * q, exit, longer));
                    continue;
                }
                let positives = longer.iter().filter(|o| **o == Outcome::Positive).count();
                let first = longer.iter().take(plan.shortest_stop() as usize).filter(|o| **o == Outcome::Positive).count();
                let straight = longer.iter().take(plan.straight_pos as usize).all(|o| *o == Outcome::Positive);
                next.entry((longer.len(), positives, first, straight)).or_insert((0.0, longer)).0 += weight * q;
            }
        }
        alive = next.into_values().collect();
    }
    stopped
}

fn expectation(plan: &Plan, p: f64, of: impl Fn(&Stats) -> f64) -> f64 {
    stops(plan, p).iter().map(|(w, exit, outcomes)| w * of(&Stats::of(plan, *exit, &seen(outcomes)))).sum()
}

fn plans() -> Vec<Plan> {
    let straight = |plan: Plan, straight_pos| Plan { straight_pos, ..plan };
    vec![
        Plan::new(2, 2, 32, 1),
        Plan::new(2, 2, 32, 8),
        Plan::new(4, 4, 32, 1),
        Plan::new(1, 1, 32, 1),
        Plan::new(1, 0, 32, 1),
        Plan::new(1, 0, 32, 8),
        Plan::new(3, 1, 24, 1),
        Plan::new(2, 2, 30, 4),
        Plan::new(0, 0, 8, 8),
        straight(Plan::new(2, 2, 32, 1), 4),
        straight(Plan::new(2, 2, 32, 4), 6),
    ]
}

#[test]
fn the_unbiased_pass_rate_is_unbiased() {
    for plan in plans() {
        for p in [0.01, 0.1, 0.3, 0.5, 0.8, 0.97] {
            let unbiased = expectation(&plan, p, |s| s.pass_rate_unbiased.unwrap());
            assert!((unbiased - p).abs() < 1e-9, "{plan:?} at {p}: {unbiased}");
            let first = expectation(&plan, p, |s| s.pass_rate_first.unwrap());
            assert!((first - p).abs() < 1e-9, "{plan:?} at {p}: first m {first}");
        }
    }
}

#[test]
fn s_over_n_is_biased_as_derived() {
    let naive = |plan: Plan| expectation(&plan, 0.1, |s| s.pass_rate.unwrap());
    let (one, eight) = (naive(Plan::new(2, 2, 32, 1)), naive(Plan::new(2, 2, 32, 8)));
    assert!((one - 0.154).abs() < 5e-4, "M = 1: {one}");
    assert!((eight - 0.132).abs() < 5e-4, "M = 8: {eight}");
}

/// Passed-over indices must not bias it either: every sequence of a small plan, with failures at fixed places.
#[test]
fn the_unbiased_pass_rate_survives_passed_over_samples() {
    for (plan, holes) in [
        (Plan::new(2, 2, 12, 1), vec![0, 3]),
        (Plan::new(2, 2, 12, 4), vec![1, 2, 7]),
        (Plan { straight_pos: 4, ..Plan::new(2, 1, 10, 3) }, vec![5]),
        (Plan::new(1, 0, 9, 1), vec![0]),
        (Plan { max_failed: 1, ..Plan::new(3, 3, 12, 1) }, vec![2, 6]),
    ] {
        let plan = Plan { max_failed: if plan.k_pos == 3 { 1 } else { 12 }, ..plan };
        for p in [0.2, 0.7] {
            let (mut unbiased, mut total) = (0.0, 0.0);
            let free: Vec<usize> = (0..plan.n_max as usize).filter(|i| !holes.contains(i)).collect();
            for word in 0u32..1 << free.len() {
                let mut all = vec![Outcome::Failed; plan.n_max as usize];
                let mut weight = 1.0;
                for (bit, index) in free.iter().enumerate() {
                    let positive = word >> bit & 1 == 1;
                    all[*index] = if positive { Outcome::Positive } else { Outcome::Negative };
                    weight *= if positive { p } else { 1.0 - p };
                }
                let exit = plan.exit(&all).unwrap();
                unbiased += weight * stats::unbiased(&plan, exit, &all[..exit.t as usize]).unwrap();
                total += weight;
            }
            assert!((total - 1.0).abs() < 1e-9 && (unbiased - p).abs() < 1e-9, "{plan:?} holes {holes:?} at {p}: {unbiased}");
        }
    }
}

#[test]
fn closed_form_and_table_agree_and_long_plans_do_not_underflow() {
    let plan = Plan::new(2, 2, 32, 1);
    for (_, exit, outcomes) in stops(&plan, 0.4) {
        let closed = stats::unbiased(&plan, exit, &outcomes).unwrap();
        // The same plan behind a straight run that never happens takes the table.
        let table = stats::unbiased(&Plan { straight_pos: 33, ..plan }, exit, &outcomes).unwrap();
        assert!((closed - table).abs() < 1e-12, "{outcomes:?}: {closed} and {table}");
    }
    let long = Plan::new(3, 2, 1024, 16);
    let never = vec![Outcome::Negative; 1024];
    assert_eq!(stats::unbiased(&long, Exit { t: 1024, kind: ExitKind::Cap }, &never), Some(0.0));
}

/// Effective weight of a prompt: E[gradient] = w(p) grad p, from the sums of positive and negative advantages that reach the trainer.
fn weight(plan: &Plan, p: f64, n: u32, advantage: Advantage) -> f64 {
    let (mut positive, mut negative) = (0.0, 0.0);
    for (probability, exit, outcomes) in stops(plan, p) {
        let group = Group::form(plan, exit, &seen(&outcomes), n, advantage);
        for kept in &group.kept {
            let share = probability * kept.advantage / f64::from(n);
            if outcomes[kept.index as usize] == Outcome::Positive { positive += share } else { negative += share }
        }
    }
    (positive - p / (1.0 - p) * negative) / p
}

#[test]
fn effective_weights_are_those_of_the_table() {
    let ps = [0.01, 0.03, 0.10, 0.30, 0.50, 0.70, 0.90, 0.97, 0.99];
    let rows = [
        ("grpo", Plan::new(0, 0, 4, 4), Advantage::Grpo, [1.07, 1.06, 1.05, 1.01, 1.00, 1.01, 1.05, 1.06, 1.07]),
        ("ada balance", Plan::new(2, 2, 32, 8), Advantage::Ada, [7.52, 6.75, 3.95, 1.35, 1.00, 1.35, 3.95, 6.75, 7.52]),
        ("ada positive", Plan::new(1, 0, 32, 8), Advantage::Ada, [6.80, 5.40, 2.88, 1.26, 1.00, 1.18, 1.62, 1.76, 1.79]),
    ];
    for (name, plan, advantage, expected) in rows {
        let middle = weight(&plan, 0.5, 4, advantage);
        for (p, expected) in ps.into_iter().zip(expected) {
            let relative = weight(&plan, p, 4, advantage) / middle;
            assert!((relative - expected).abs() < 0.00501, "{name} at {p}: {relative}, table {expected}");
        }
    }
}

#[test]
fn advantages_by_name() {
    let kept = [1.0, 0.0, 0.0, 1.0];
    assert_eq!(Advantage::Ada.of(&kept, 0.25), [0.75, -0.25, -0.25, 0.75]);
    assert_eq!(Advantage::Drgrpo.of(&kept, 0.25), [0.5, -0.5, -0.5, 0.5]);
    let rloo = Advantage::Rloo.of(&kept, 0.25);
    assert!((rloo[0] - 2.0 / 3.0).abs() < 1e-12 && (rloo[1] + 2.0 / 3.0).abs() < 1e-12);
    let grpo = Advantage::Grpo.of(&kept, 0.25);
    assert!((grpo[0] - 0.5 / ((1.0f64 / 3.0).sqrt() + 1e-6)).abs() < 1e-12);
    assert!(Advantage::from_name("maxrl").is_none());
    assert!(Advantage::NAMES.iter().all(|name| Advantage::from_name(name).is_some()));
}
