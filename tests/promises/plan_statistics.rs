//! Promise: the statistics of adaptive groups are honest. Every number here is an exact enumeration, none a simulation.

use std::collections::BTreeMap;

use adaroll::rollout::plan::advantage::Observed;
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
        Plan::new(1, 1, 16, 2),
        Plan::new(4, 4, 32, 8),
        Plan::new(5, 3, 20, 1),
        Plan::new(0, 2, 32, 1),
        Plan::new(2, 0, 31, 7),
        Plan::new(0, 0, 4, 4),
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
        let group = Group::form(plan, exit, &seen(&outcomes), n, advantage, None);
        for kept in &group.kept {
            let share = probability * kept.advantage / f64::from(n);
            if outcomes[kept.index as usize] == Outcome::Positive { positive += share } else { negative += share }
        }
    }
    (positive - p / (1.0 - p) * negative) / p
}

fn read(value: Value) -> Advantage {
    Advantage::read(&value).unwrap()
}

#[test]
fn effective_weights_are_those_of_the_table() {
    let ps = [0.01, 0.03, 0.10, 0.30, 0.50, 0.70, 0.90, 0.97, 0.99];
    let log = |p| read(json!({"objective": "log", "form": "stratified", "p": p}));
    let (balance, positive) = (Plan::new(2, 2, 32, 8), Plan::new(1, 0, 32, 8));
    let rows = [
        ("grpo", Plan::new(0, 0, 4, 4), read(json!("grpo")), [1.07, 1.06, 1.05, 1.01, 1.00, 1.01, 1.05, 1.06, 1.07]),
        ("ada balance", balance, read(json!("ada")), [7.52, 6.75, 3.95, 1.35, 1.00, 1.35, 3.95, 6.75, 7.52]),
        ("ada positive", positive, read(json!("ada")), [6.80, 5.40, 2.88, 1.26, 1.00, 1.18, 1.62, 1.76, 1.79]),
        ("ada_v3 balance", balance, read(json!("ada_v3")), [91.24, 62.41, 18.45, 2.28, 1.00, 0.92, 2.06, 3.25, 3.52]),
        ("stratified log, S/N", balance, log("plan"), [13.32, 10.05, 4.63, 1.60, 1.00, 0.78, 0.73, 0.65, 0.57]),
        ("stratified log, unbiased", balance, log("unbiased"), [13.38, 10.18, 4.81, 1.67, 1.00, 0.71, 0.56, 0.52, 0.51]),
    ];
    for (name, plan, advantage, expected) in rows {
        let middle = weight(&plan, 0.5, 4, advantage);
        for (p, expected) in ps.into_iter().zip(expected) {
            let relative = weight(&plan, p, 4, advantage) / middle;
            assert!((relative - expected).abs() < 0.00501, "{name} at {p}: {relative}, table {expected}");
        }
    }
}

/// Four kept samples, two of each, of a plan that saw a pass rate of a quarter.
const TWO_OF_EACH: Observed = Observed {
    rewards: &[1.0, 0.0, 0.0, 1.0],
    positive: &[true, false, false, true],
    reward_mean: 0.25,
    pass_rate: 0.25,
    pass_rate_unbiased: 0.2,
    history: None,
};

fn close(found: &[f64], expected: [f64; 4]) {
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}, expected {expected:?}");
}

#[test]
fn advantages_by_name() {
    let of = |name: &str| Advantage::from_name(name).unwrap().of(&TWO_OF_EACH);
    close(&of("ada"), [0.75, -0.25, -0.25, 0.75]);
    close(&of("drgrpo"), [0.5, -0.5, -0.5, 0.5]);
    close(&of("rloo"), [2.0 / 3.0, -2.0 / 3.0, -2.0 / 3.0, 2.0 / 3.0]);
    let grpo = 0.5 / ((1.0f64 / 3.0).sqrt() + 1e-6);
    close(&of("grpo"), [grpo, -grpo, -grpo, grpo]);
    let root = 0.250_001f64.sqrt();
    close(&of("ada_est"), [0.75 / root, -0.25 / root, -0.25 / root, 0.75 / root]);
    close(&of("ada_v3"), [3.0, -1.0, -1.0, 3.0]);
    close(&of("maxrl"), [1.0, -1.0, -1.0, 1.0]);
    assert!(Advantage::from_name("ppo").is_none());
    assert!(Advantage::NAMES.iter().all(|name| Advantage::from_name(name).unwrap().name() == Some(name)));
}

/// kappa makes the group's weight f'(p), whatever was kept; so does the stratified form.
#[test]
fn an_objective_sets_the_weight_of_a_group() {
    let p = 0.25f64;
    for (objective, slope) in [
        (json!("linear"), 1.0),
        (json!("log"), 1.0 / p),
        (json!({"power": 0.5}), p.powf(-0.5)),
        (json!("std"), 1.0 / (p * (1.0 - p)).sqrt()),
        (json!("logit"), 1.0 / (p * (1.0 - p))),
    ] {
        for form in ["kappa", "stratified"] {
            let advantage = read(json!({"objective": objective, "form": form, "p": "plan"}));
            for positive in [&[true, false, false, true], &[true, false, false, false], &[true, true, false, true]] {
                let rewards = positive.map(|p| f64::from(u8::from(p)));
                let seen = Observed { rewards: &rewards, positive, ..TWO_OF_EACH };
                let weight = advantage.effective_weight(&seen, &advantage.of(&seen)).unwrap();
                assert!((weight - slope).abs() < 1e-9, "{objective} {form} {positive:?}: {weight}, expected {slope}");
            }
        }
    }
    // The twin: without an objective the weight is that of the balanced group, and none is logged.
    assert_eq!(read(json!("ada")).effective_weight(&TWO_OF_EACH, &[0.75, -0.25, -0.25, 0.75]), None);
    // log at p = .25, two of each: .75 / (.5 * .5625 + .5 * .0625) = 2.4, cut at 2.
    close(&read(json!({"objective": "log"})).of(&TWO_OF_EACH), [1.8, -0.6, -0.6, 1.8]);
    close(&read(json!({"objective": "log", "clip": 2})).of(&TWO_OF_EACH), [1.5, -0.5, -0.5, 1.5]);
}

#[test]
fn the_history_is_a_baseline_and_falls_back_to_the_plan() {
    let history = read(json!({"baseline": "history"}));
    close(&history.of(&TWO_OF_EACH), [0.75, -0.25, -0.25, 0.75]);
    close(&history.of(&Observed { history: Some(History { n: 0.0, s: 0.0 }), ..TWO_OF_EACH }), [0.75, -0.25, -0.25, 0.75]);
    close(&history.of(&Observed { history: Some(History { n: 10.0, s: 4.0 }), ..TWO_OF_EACH }), [0.6, -0.4, -0.4, 0.6]);
}

/// Rewards need not be 0 or 1, and no reward may make an advantage that is not a number.
#[test]
fn advantages_of_any_reward_are_finite_and_zero_without_contrast() {
    let mut all: Vec<Advantage> = Advantage::NAMES.iter().map(|n| Advantage::from_name(n).unwrap()).collect();
    for objective in [json!("linear"), json!("log"), json!({"power": 0}), json!("std"), json!("logit")] {
        for (form, p) in [("kappa", "plan"), ("kappa", "unbiased"), ("stratified", "plan"), ("stratified", "unbiased")] {
            all.push(read(json!({"objective": objective, "form": form, "p": p})));
        }
    }
    let raw = Observed { rewards: &[3.5, -1.0, -2.5, 2.0], reward_mean: -0.75, ..TWO_OF_EACH };
    close(&read(json!("ada")).of(&raw), [4.25, -0.25, -1.75, 2.75]);
    let no = [false; 4];
    for advantage in all {
        for seen in [
            raw,
            Observed { pass_rate_unbiased: 0.0, ..raw },
            Observed { pass_rate_unbiased: 1.0, ..raw },
            Observed { positive: &no, pass_rate: 0.0, pass_rate_unbiased: 0.0, ..raw },
            Observed { positive: &[true; 4], pass_rate: 1.0, pass_rate_unbiased: 1.0, ..raw },
        ] {
            assert!(advantage.of(&seen).iter().all(|a| a.is_finite()), "{advantage:?} {seen:?}");
            assert!(advantage.effective_weight(&seen, &advantage.of(&seen)).is_none_or(f64::is_finite));
        }
        let flat = Observed { rewards: &[0.5; 4], positive: &no, pass_rate: 0.0, ..raw };
        assert!(!advantage.has_signal(&flat) && advantage.of(&flat) == [0.0; 4], "{advantage:?}");
    }
}

#[test]
fn an_advantage_reads_its_own_echo_and_refuses_by_field() {
    for (written, echo) in [
        (json!("rloo"), json!("rloo")),
        (json!({"baseline": "plan"}), json!("ada")),
        (json!({}), json!("ada")),
        (json!({"baseline": "history", "objective": "none"}), json!({"baseline": "history", "objective": "none"})),
        (json!({"objective": "log"}), json!({"baseline": "plan", "objective": "log", "form": "kappa", "p": "plan", "clip": 10.0})),
        (
            json!({"objective": {"power": 0.5}, "baseline": "leave_one_out", "clip": 3, "form": null}),
            json!({"baseline": "leave_one_out", "objective": {"power": 0.5}, "form": "kappa", "p": "plan", "clip": 3.0}),
        ),
        (json!({"objective": "std", "form": "stratified"}), json!({"objective": "std", "form": "stratified", "p": "unbiased"})),
    ] {
        let advantage = read(written);
        assert_eq!(serde_json::to_value(advantage).unwrap(), echo);
        assert_eq!(read(echo), advantage);
    }
    for (written, path) in [
        (json!("ppo"), ""),
        (json!(3), ""),
        (json!({"baseline": "value"}), "baseline"),
        (json!({"objective": "entropy"}), "objective"),
        (json!({"objective": {"power": -1}}), "objective.power"),
        (json!({"objective": "log", "clip": 0}), "clip"),
        (json!({"clip": 2}), "clip"),
        (json!({"objective": "none", "form": "kappa"}), "form"),
        (json!({"p": "plan"}), "p"),
        (json!({"objective": "log", "form": "stratified", "baseline": "plan"}), "baseline"),
        (json!({"objective": "log", "form": "stratified", "clip": 2}), "clip"),
        (json!({"objectives": "log"}), "objectives"),
    ] {
        assert_eq!(Advantage::read(&written).unwrap_err().path, path, "{written}");
    }
}
