//! Promise: a strategy means what it says, is echoed in full, and is refused by the name of the field.

use adaroll::rollout::plan::{Advantage, ExitKind, Group, History, Outcome, Plan, Status, Strategy};
use serde_json::{Value, json};

use crate::fake_engine::{mix, unit};
use crate::plan::seen;

fn read(value: Value) -> Strategy {
    Strategy::read(&value).unwrap()
}

#[test]
fn a_strategy_reads_its_own_echo() {
    for (written, fields) in [
        (json!({}), json!({"kind": "sequential", "exit": "balance", "round_size": 1, "straight_positives": 0, "max_samples": 32})),
        (json!({"kind": "uniform", "group_size": 8, "exit": null, "budget": 100}), json!({"max_samples": 8, "budget": 100})),
        (json!({"kind": "dapo", "groups_wanted": 3, "max_failed": 2}), json!({"groups_wanted": 3, "max_samples": 4, "max_failed": 2})),
        (json!({"exit": {"positives": 3, "negatives": 0}, "positive_above": 2.5}), json!({"positive_above": 2.5})),
        (
            json!({"kind": "estimate", "history_prior": 0.5, "groups_wanted": null}),
            json!({"min_samples": 2, "prior": [1.0, 1.0], "epsilon": 0.01, "max_samples": 32, "history_prior": 0.5, "history_decay": 0.9}),
        ),
        (
            json!({"kind": "estimate", "prior": [0.5, 2], "epsilon": 0, "mask_truncated": true, "limit_counts": "skip"}),
            json!({"epsilon": 0.0}),
        ),
    ] {
        let strategy = read(written);
        let echo = serde_json::to_value(&strategy).unwrap();
        for (name, value) in fields.as_object().unwrap() {
            assert_eq!(&echo[name], value, "{name} in {echo}");
        }
        assert_eq!(read(echo), strategy);
    }
    let echo = serde_json::to_value(read(json!({"kind": "uniform"}))).unwrap();
    assert!(echo.get("exit").is_none() && echo.get("groups_wanted").is_none(), "another kind's field is echoed");
}

#[test]
fn refusals_name_the_field() {
    for (written, path) in [
        (json!([]), ""),
        (json!({"kind": "speed"}), "kind"),
        (json!({"kind": 3}), "kind"),
        (json!({"groups_wanted": 3}), "groups_wanted"),
        (json!({"kind": "dapo"}), "groups_wanted"),
        (json!({"kind": "dapo", "groups_wanted": 0}), "groups_wanted"),
        (json!({"kind": "dapo", "groups_wanted": 2, "exit": "signal"}), "exit"),
        (json!({"kind": "uniform", "round_size": 1}), "round_size"),
        (json!({"kind": "uniform", "straight_positives": 4}), "straight_positives"),
        (json!({"kind": "uniform", "max_samples": 8}), "max_samples"),
        (json!({"kind": "uniform", "min_samples": 8}), "min_samples"),
        (json!({"prior": [1, 1]}), "prior"),
        (json!({"epsilon": 1}), "epsilon"),
        (json!({"kind": "estimate", "epsilon": -1}), "epsilon"),
        (json!({"kind": "estimate", "prior": [0, 1]}), "prior"),
        (json!({"kind": "estimate", "min_samples": 33}), "min_samples"),
        (json!({"group_size": 1}), "group_size"),
        (json!({"group_size": 33}), "group_size"),
        (json!({"max_samples": 0, "group_size": 4}), "max_samples"),
        (json!({"round_size": 33}), "round_size"),
        (json!({"straight_positives": 3}), "straight_positives"),
        (json!({"exit": {"positives": 30, "negatives": 3}}), "exit"),
        (json!({"exit": {"positives": 0, "negatives": 0}}), "exit"),
        (json!({"max_failed": 33}), "max_failed"),
        (json!({"budget": 0}), "budget"),
        (json!({"budget": -1}), "budget"),
        (json!({"history_prior": -0.5}), "history_prior"),
        (json!({"history_decay": 1.5}), "history_decay"),
        (json!({"max_sample": 3}), "max_sample"),
    ] {
        let error = Strategy::read(&written).unwrap_err();
        assert_eq!(error.path, path, "{written}: {error}");
        assert!(error.problem.len() > 8, "{written}: {error}");
    }
    let foreign = Strategy::read(&json!({"groups_wanted": 3})).unwrap_err();
    assert_eq!(foreign.problem, "is only for `dapo`; leave it out");
    let estimate = |budget: u64| read(json!({"kind": "estimate", "budget": budget, "min_samples": 2, "max_samples": 8})).check(5);
    assert!(estimate(10).is_ok() && estimate(40).is_ok());
    assert_eq!((estimate(9).unwrap_err().path, estimate(41).unwrap_err().path), ("budget".into(), "budget".into()));
    let dapo = read(json!({"kind": "dapo", "groups_wanted": 6}));
    assert!(dapo.check(6).is_ok());
    assert_eq!(dapo.check(5).unwrap_err().path, "groups_wanted");
}

#[test]
fn plans_and_kept_sizes_of_the_kinds() {
    let uniform = read(json!({"kind": "uniform", "group_size": 8}));
    assert_eq!(uniform.plans(&[None, None]), [Plan::new(0, 0, 8, 8); 2]);
    let plan = uniform.plans(&[None])[0];
    let exit = plan.exit(&[Outcome::Negative; 8]).unwrap();
    assert_eq!((exit.t, exit.kind), (8, ExitKind::Plan));
    let group = Group::form(&plan, exit, &seen(&[Outcome::Negative; 8]), uniform.kept_size(&plan), Advantage::default(), None);
    assert_eq!((group.status, group.kept.len(), group.signal), (Status::Resolved, 8, false));
    assert_eq!(read(json!({"kind": "dapo", "groups_wanted": 1})).plans(&[None]), [Plan::new(0, 0, 4, 4)]);
    let strict = read(json!({"kind": "uniform", "group_size": 30, "max_failed": 0}));
    assert_eq!((strict.plans(&[None])[0].max_failed, Plan::new(0, 0, 30, 30).max_failed), (0, 3));
    let estimate = read(json!({"kind": "estimate", "budget": 40}));
    let history = [Some(History { n: 40.0, s: 0.0 }), Some(History { n: 40.0, s: 40.0 })];
    let plans = estimate.plans(&history);
    assert!(plans.iter().all(|p| (p.k_pos, p.k_neg, p.m) == (0, 0, p.n_max) && estimate.kept_size(p) == p.n_max));
    assert!(plans[0].n_max > plans[1].n_max && plans[0].n_max + plans[1].n_max == 40, "{plans:?}");
    let sequential = read(json!({"group_size": 6}));
    assert_eq!(sequential.kept_size(&sequential.plans(&[None])[0]), 6);
}

/// Shares by bisection on the one unknown, then the largest remainders one at a time.
fn shares_by_hand(weights: &[f64], min: u32, max: u32, total: u64) -> Vec<u32> {
    let real = |c: f64| -> Vec<f64> { weights.iter().map(|w| (c * w).clamp(f64::from(min), f64::from(max))).collect() };
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..300 {
        let c = 0.5 * (low + high);
        if real(c).iter().sum::<f64>() < total as f64 { low = c } else { high = c }
    }
    // Bisection leaves noise in the last digits; without rounding it an exact tie would be decided by it.
    let real: Vec<f64> = real(high).iter().map(|x| (x * 1e7).round() / 1e7).collect();
    let mut shares: Vec<u32> = real.iter().map(|x| *x as u32).collect();
    let mut given = vec![false; shares.len()];
    while shares.iter().map(|n| u64::from(*n)).sum::<u64>() < total {
        let next = (0..shares.len())
            .filter(|i| !given[*i] && shares[*i] < max)
            .reduce(|a, b| if real[b].fract() > real[a].fract() { b } else { a });
        let next = next.unwrap();
        given[next] = true;
        shares[next] += 1;
    }
    shares
}

#[test]
fn the_estimate_shares_its_budget_in_proportion_and_exactly() {
    let (mut at_min, mut at_max) = (0, 0);
    for case in 0..400u64 {
        let draw = |what: u64, n: u64| mix(&[case, what]) % n;
        let prompts = 1 + draw(0, 30);
        let (min, max) = (1 + draw(1, 3) as u32, 4 + draw(2, 30) as u32);
        let least = u64::from(min) * prompts;
        let total = least + draw(3, u64::from(max - min) * prompts + 1);
        let strategy =
            read(json!({"kind": "estimate", "group_size": 2, "min_samples": min, "max_samples": max, "budget": total, "epsilon": 0.001}));
        strategy.check(prompts as usize).unwrap();
        let history: Vec<Option<History>> = (0..prompts)
            .map(|i| {
                (draw(10 + i, 4) > 0).then(|| {
                    let n = draw(100 + i, 50) as f64;
                    History { n, s: (n * unit(&[case, 200 + i])).floor() }
                })
            })
            .collect();
        let weights: Vec<f64> = history
            .iter()
            .map(|h| h.map_or((0.0, 0.0), |h| (h.n, h.s)))
            .map(|(n, s)| ((s + 1.0) / (n + 2.0) + 0.001f64).powf(-0.5))
            .collect();
        let found: Vec<u32> = strategy.plans(&history).iter().map(|p| p.n_max).collect();
        assert_eq!(found.iter().map(|n| u64::from(*n)).sum::<u64>(), total);
        assert_eq!(found, shares_by_hand(&weights, min, max, total), "case {case}: {weights:?} in {min}..={max}, {total}");
        at_min += found.iter().filter(|n| **n == min).count();
        at_max += found.iter().filter(|n| **n == max).count();
    }
    assert!(at_min > 100 && at_max > 100, "the limits were hardly met: {at_min}, {at_max}");
    // Ties go to the first prompts.
    let equal = read(json!({"kind": "estimate", "budget": 14})).plans(&[None; 4]);
    assert_eq!(equal.iter().map(|p| p.n_max).collect::<Vec<_>>(), [4, 4, 3, 3]);
}

/// Reinforce-Ada as printed: rounds of m for every prompt still active, a prompt retires when its pool satisfies the exit.
struct Paper {
    pool: Vec<bool>,
    mean: f64,
    kept: Vec<usize>,
    retired: bool,
}

fn paper(answers: &[bool], n: usize, m: usize, rounds: usize, balance: bool) -> Paper {
    let mut pool: Vec<bool> = Vec::new();
    let mut retired = false;
    for round in 0..rounds {
        pool.extend(&answers[round * m..(round + 1) * m]);
        let right = pool.iter().filter(|a| **a).count();
        retired = if balance { right >= n / 2 && pool.len() - right >= n - n / 2 } else { right >= 1 };
        if retired {
            break;
        }
    }
    let mut right: Vec<usize> = (0..pool.len()).filter(|i| pool[*i]).collect();
    let mut wrong: Vec<usize> = (0..pool.len()).filter(|i| !pool[*i]).collect();
    let mean = right.len() as f64 / pool.len() as f64;
    let mut kept: Vec<usize> = right.drain(..right.len().min(n / 2)).collect();
    kept.extend(wrong.drain(..wrong.len().min(n - n / 2)));
    let spare = if right.is_empty() { wrong } else { right };
    let short = n - kept.len();
    kept.extend(spare.into_iter().take(short));
    kept.sort();
    Paper { pool, mean, kept, retired }
}

#[test]
fn paper_mode_is_the_paper() {
    for exit in ["positive", "balance"] {
        let strategy = read(json!({"exit": exit, "round_size": 8, "max_samples": 32}));
        let plan = strategy.plans(&[None])[0];
        let (mut unfinished, mut later, mut filled) = (0, 0, 0);
        for case in 0..400u64 {
            // Pass rates crowd at the ends, where rounds are many.
            let p = unit(&[case, 1]).powi(3);
            let p = if case % 2 == 0 { p } else { 1.0 - p };
            let answers: Vec<bool> = (0..32).map(|i| unit(&[case, 2, i]) < p).collect();
            let expected = paper(&answers, 4, 8, 4, exit == "balance");
            let outcomes: Vec<Outcome> = answers.iter().map(|a| if *a { Outcome::Positive } else { Outcome::Negative }).collect();
            let stop = plan.exit(&outcomes).unwrap();
            let group =
                Group::form(&plan, stop, &seen(&outcomes[..stop.t as usize]), strategy.kept_size(&plan), Advantage::default(), None);
            let right = expected.pool.iter().filter(|a| **a).count();
            assert_eq!(group.status, if expected.retired { Status::Resolved } else { Status::Exhausted }, "case {case}");
            let stats = &group.stats;
            assert_eq!(
                (stats.seen as usize, stats.positive as usize, stats.negative as usize),
                (expected.pool.len(), right, expected.pool.len() - right)
            );
            assert_eq!((stats.pass_rate, stats.reward_mean), (Some(expected.mean), Some(expected.mean)));
            assert_eq!(group.kept.iter().map(|k| k.index as usize).collect::<Vec<_>>(), expected.kept, "case {case}: {answers:?}");
            let kept_right = expected.kept.iter().filter(|i| answers[**i]).count();
            assert_eq!(group.signal, kept_right > 0 && kept_right < 4);
            for kept in &group.kept {
                let advantage = f64::from(u8::from(answers[kept.index as usize])) - expected.mean;
                assert_eq!(kept.advantage, if group.signal { advantage } else { 0.0 });
            }
            unfinished += u32::from(!expected.retired);
            later += u32::from(expected.retired && expected.pool.len() > 8);
            filled += u32::from(kept_right != 2);
        }
        assert!(unfinished > 10 && later > 10 && filled > 10, "{exit}: {unfinished} unfinished, {later} later rounds, {filled} filled");
    }
}

/// By hand: what the outcomes are, where it stops, what is kept.
#[test]
fn paper_mode_golden_cases() {
    type Case = (&'static str, &'static str, u32, Status, &'static [u32], u32);
    let cases: [Case; 8] = [
        ("balance", "+--+----", 8, Status::Resolved, &[0, 1, 2, 3], 2),
        ("balance", "++++++++--------", 16, Status::Resolved, &[0, 1, 8, 9], 8),
        ("balance", "+++++++--+++++++", 16, Status::Resolved, &[0, 1, 7, 8], 14),
        ("balance", "-------+--------", 32, Status::Exhausted, &[0, 1, 2, 7], 1),
        ("balance", "--------------------------------", 32, Status::Exhausted, &[0, 1, 2, 3], 0),
        ("positive", "-------+", 8, Status::Resolved, &[0, 1, 2, 7], 1),
        ("positive", "--------++", 16, Status::Resolved, &[0, 1, 8, 9], 2),
        ("positive", "++++++++", 8, Status::Resolved, &[0, 1, 2, 3], 8),
    ];
    for (exit, answers, t, status, kept, positive) in cases {
        let strategy = read(json!({"exit": exit, "round_size": 8, "max_samples": 32}));
        let plan = strategy.plans(&[None])[0];
        let outcomes: Vec<Outcome> =
            format!("{answers:-<32}").chars().map(|c| if c == '+' { Outcome::Positive } else { Outcome::Negative }).collect();
        let stop = plan.exit(&outcomes).unwrap();
        let group = Group::form(&plan, stop, &seen(&outcomes[..stop.t as usize]), 4, Advantage::default(), None);
        assert_eq!((stop.t, group.status, group.stats.positive), (t, status, positive), "{exit} {answers}");
        assert_eq!(group.kept.iter().map(|k| k.index).collect::<Vec<_>>(), kept, "{exit} {answers}");
    }
}
