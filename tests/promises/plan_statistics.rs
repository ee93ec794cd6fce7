//! Promise: the statistics of adaptive groups are honest. Every number here is an exact enumeration, none a simulation.

use std::collections::BTreeMap;

use adaroll::rollout::plan::advantage::Rewards;
use adaroll::rollout::plan::{Advantage, Exit, ExitKind, Group, History, Outcome, Plan, Stats, stats};
use serde_json::{Value, json};

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
fn weight(plan: &Plan, p: f64, n: u32, advantage: &Advantage) -> f64 {
    let (mut positive, mut negative) = (0.0, 0.0);
    for (probability, exit, outcomes) in stops(plan, p) {
        let group = Group::form(plan, exit, &seen(&outcomes), n, advantage, None);
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
    let balance = || Plan::new(2, 2, 32, 8);
    let log = |p: &str| json!({"objective": "log", "form": "stratified", "p": p});
    let rows = [
        (json!("grpo"), Plan::new(0, 0, 4, 4), [1.07, 1.06, 1.05, 1.01, 1.00, 1.01, 1.05, 1.06, 1.07]),
        (json!("ada"), balance(), [7.52, 6.75, 3.95, 1.35, 1.00, 1.35, 3.95, 6.75, 7.52]),
        (json!("ada"), Plan::new(1, 0, 32, 8), [6.80, 5.40, 2.88, 1.26, 1.00, 1.18, 1.62, 1.76, 1.79]),
        (json!("ada_v3"), balance(), [91.24, 62.41, 18.45, 2.28, 1.00, 0.92, 2.06, 3.25, 3.52]),
        (log("plan"), balance(), [13.32, 10.05, 4.63, 1.60, 1.00, 0.78, 0.73, 0.65, 0.57]),
        (log("unbiased"), balance(), [13.38, 10.18, 4.81, 1.67, 1.00, 0.71, 0.56, 0.52, 0.51]),
    ];
    for (name, plan, expected) in rows {
        let advantage = Advantage::read(&name).unwrap();
        let middle = weight(&plan, 0.5, 4, &advantage);
        for (p, expected) in ps.into_iter().zip(expected) {
            let relative = weight(&plan, p, 4, &advantage) / middle;
            assert!((relative - expected).abs() < 0.00501, "{name} at {p}: {relative}, table {expected}");
        }
    }
}

#[test]
fn advantages_by_name() {
    let of = |advantage: Value, pass_rate: f64| {
        let rewards = Rewards {
            kept: &[1.0, 0.0, 0.0, 1.0],
            positive: &[true, false, false, true],
            seen_mean: pass_rate,
            pass_rate,
            unbiased: 0.2,
            history: Some(History { n: 10.0, s: 1.0 }),
        };
        Advantage::read(&advantage).unwrap().of(rewards)
    };
    let close = |got: Vec<f64>, right: f64, wrong: f64| {
        let expected = [right, wrong, wrong, right];
        assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-12), "{got:?}, expected {expected:?}");
    };
    close(of(json!("ada"), 0.25).0, 0.75, -0.25);
    close(of(json!("drgrpo"), 0.25).0, 0.5, -0.5);
    close(of(json!("rloo"), 0.25).0, 2.0 / 3.0, -2.0 / 3.0);
    let grpo = 0.5 / ((1.0f64 / 3.0).sqrt() + 1e-6);
    close(of(json!("grpo"), 0.25).0, grpo, -grpo);
    close(of(json!("ada_v3"), 0.25).0, 3.0, -1.0);
    close(of(json!("ada_est"), 0.24).0, 0.76 / 0.5, -0.24 / 0.5);
    close(of(json!("maxrl"), 0.25).0, 1.0, -1.0);
    close(of(json!({"baseline": "history"}), 0.25).0, 0.9, -0.1);
    // s = 1/2, p = .2: the balance is (.64 + .04)/2 = .34; C of the logarithm is .8.
    let (kappa, effective) = of(json!({"objective": "log"}), 0.25);
    close(kappa, 0.75 * 0.8 / 0.34, -0.25 * 0.8 / 0.34);
    assert!((effective.unwrap() - 5.0).abs() < 1e-9, "f' = 1/p: {effective:?}");
    let (clipped, effective) = of(json!({"objective": "logit", "clip": 1.0}), 0.25);
    close(clipped, 0.75, -0.25);
    assert!((effective.unwrap() - 0.34 / 0.16).abs() < 1e-9, "what was clipped shows in the weight: {effective:?}");
    close(of(json!({"objective": {"power": 2.0}, "form": "stratified"}), 0.25).0, 2.0 * 0.04 * 0.8, -2.0 * 0.04 * 0.8);
    close(of(json!({"objective": "std", "form": "stratified", "p": "plan"}), 0.5).0, 1.0, -1.0);
}

#[test]
fn advantages_read_their_own_echo_and_refuse_by_field() {
    for advantage in [
        json!("ada"),
        json!("ada_est"),
        json!({"baseline": "leave_one_out"}),
        json!({"objective": "log"}),
        json!({"baseline": "history", "objective": {"power": 0.5}, "clip": 3.0, "p": "plan"}),
        json!({"objective": "logit", "form": "stratified"}),
    ] {
        let read = Advantage::read(&advantage).unwrap();
        assert_eq!(Advantage::read(&serde_json::to_value(read).unwrap()).unwrap(), read, "{advantage}");
    }
    for (advantage, path) in [
        (json!("gpo"), ""),
        (json!(3), ""),
        (json!({"baseline": "median"}), "baseline"),
        (json!({"objective": "exp"}), "objective"),
        (json!({"objective": {"power": -1.0}}), "objective.power"),
        (json!({"objective": "log", "form": "sharp"}), "form"),
        (json!({"objective": "log", "form": "stratified", "baseline": "group"}), "baseline"),
        (json!({"objective": "log", "clip": 0.0}), "clip"),
        (json!({"clip": 2.0}), "clip"),
        (json!({"base": "group"}), "base"),
    ] {
        let error = Advantage::read(&advantage).unwrap_err();
        assert_eq!(error.path, path, "{advantage}: {error}");
    }
}
