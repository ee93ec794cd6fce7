//! Promise: a strategy reads samples in index order, whatever finishes first, and stops exactly where its plan says.

use adaroll::rollout::plan::{Advantage, Exit, ExitKind, Group, Outcome, Plan, Seen, Status, Strategy};
use serde_json::json;

use crate::fake_engine::{mix, unit};

/// One sample at a time, written as plainly as possible: the reference.
pub fn one_at_a_time(plan: &Plan, all: &[Outcome]) -> Exit {
    for t in 1..=plan.n_max as usize {
        let count = |what: Outcome| all[..t].iter().filter(|o| **o == what).count() as u32;
        if count(Outcome::Failed) > plan.max_failed {
            return Exit { t: t as u32, kind: ExitKind::Failed };
        }
        if !(t as u32).is_multiple_of(plan.m) && t as u32 != plan.n_max {
            continue;
        }
        if count(Outcome::Positive) >= plan.k_pos && count(Outcome::Negative) >= plan.k_neg {
            return Exit { t: t as u32, kind: ExitKind::Plan };
        }
        let straight = plan.straight_pos as usize;
        if straight > 0 && t >= straight && all[..straight].iter().all(|o| *o == Outcome::Positive) {
            return Exit { t: t as u32, kind: ExitKind::Straight };
        }
    }
    Exit { t: plan.n_max, kind: ExitKind::Cap }
}

/// The kept rule, written out one sample at a time.
pub fn kept_by_hand(outcomes: &[Outcome], n: usize) -> Vec<u32> {
    let positives: Vec<u32> = (0..outcomes.len()).filter(|i| outcomes[*i] == Outcome::Positive).map(|i| i as u32).collect();
    let negatives: Vec<u32> = (0..outcomes.len()).filter(|i| outcomes[*i] == Outcome::Negative).map(|i| i as u32).collect();
    let (mut p, mut q) = ((n / 2).min(positives.len()), (n - n / 2).min(negatives.len()));
    while p + q < n && (p < positives.len() || q < negatives.len()) {
        if p < positives.len() { p += 1 } else { q += 1 }
    }
    let mut kept = [&positives[..p], &negatives[..q]].concat();
    kept.sort();
    kept
}

pub fn seen(outcomes: &[Outcome]) -> Vec<Seen> {
    let of = |(i, o): (usize, &Outcome)| Seen {
        outcome: *o,
        reward: f64::from(u8::from(*o == Outcome::Positive)),
        tokens: i as u64 + 1,
        truncated: false,
    };
    outcomes.iter().enumerate().map(of).collect()
}

fn random_case(case: u64) -> (Plan, u32, Vec<Outcome>) {
    let draw = |what: u64, n: u64| (mix(&[case, what]) % n) as u32;
    let n = 2 + draw(0, 7);
    let n_max = n + draw(1, 31);
    let (k_pos, k_neg) = match draw(2, 4) {
        0 => (1, 0),
        1 => (1, 1),
        2 => (n / 2, n - n / 2),
        _ => (draw(3, 3), draw(4, 3)),
    };
    let straight_pos = if draw(5, 3) == 0 { n + draw(6, u64::from(n_max - n) + 1) } else { 0 };
    let m = match draw(7, 4) {
        0 | 1 => 1,
        2 => 8.min(n_max),
        _ => 1 + draw(8, u64::from(n_max)),
    };
    let plan = Plan { k_pos, k_neg, n_max, m, straight_pos, max_failed: draw(9, 5) };
    let (p, failing) = (unit(&[case, 10]), if draw(11, 2) == 0 { 0.0 } else { 0.15 });
    let outcome = |i: u64| match unit(&[case, 12, i]) {
        u if u < failing => Outcome::Failed,
        u if u < failing + failing / 3.0 => Outcome::Skipped,
        _ if unit(&[case, 13, i]) < p => Outcome::Positive,
        _ => Outcome::Negative,
    };
    (plan, n, (0..u64::from(n_max)).map(outcome).collect())
}

/// Reveals outcomes in a shuffled order, with some in flight, and cancels at the bound; the plan decides when to stop.
fn in_any_order(plan: &Plan, all: &[Outcome], order: u64) -> (Exit, Vec<Outcome>) {
    let mut known = vec![Outcome::Unscored; all.len()];
    let (mut next, mut running, mut step) = (0u32, Vec::<u32>::new(), 0u64);
    let mut last_bound = plan.n_max;
    loop {
        if let Some(exit) = plan.exit(&known) {
            return (exit, known[..exit.t as usize].to_vec());
        }
        let bound = plan.bound(&known).t;
        assert!(bound <= last_bound, "the bound rose");
        last_bound = bound;
        assert!(plan.earliest(&known) <= bound);
        running.retain(|index| *index < bound);
        let width = 1 + mix(&[order, 1]) % 12;
        while next < bound && (running.len() as u64) < width {
            running.push(next);
            next += 1;
        }
        assert!(!running.is_empty(), "nothing runs and nothing is resolved");
        step += 1;
        let index = running.swap_remove((mix(&[order, 2, step]) % running.len() as u64) as usize);
        known[index as usize] = all[index as usize];
    }
}

#[test]
fn any_completion_order_gives_the_group_of_one_at_a_time() {
    let (mut kinds, mut paper) = (std::collections::HashMap::<ExitKind, u32>::new(), 0);
    for case in 0..1500 {
        let (plan, n, all) = random_case(case);
        let exit = one_at_a_time(&plan, &all);
        let expected = &all[..exit.t as usize];
        let group = Group::form(&plan, exit, &seen(expected), n, &Advantage::default(), None);
        if group.status != Status::Failed {
            let kept: Vec<u32> = group.kept.iter().map(|k| k.index).collect();
            assert_eq!(kept, kept_by_hand(expected, n as usize), "case {case}: {plan:?} n {n} {expected:?}");
        }
        *kinds.entry(exit.kind).or_default() += 1;
        paper += u32::from(plan.m == 8);
        for order in 0..4 {
            let (found, outcomes) = in_any_order(&plan, &all, mix(&[case, order]));
            assert_eq!(found, exit, "case {case}, order {order}: {plan:?} {all:?}");
            assert_eq!(Group::form(&plan, found, &seen(&outcomes), n, &Advantage::default(), None), group);
        }
    }
    for kind in [ExitKind::Plan, ExitKind::Straight, ExitKind::Cap, ExitKind::Failed] {
        assert!(kinds.get(&kind).copied().unwrap_or(0) > 20, "too few cases end by {kind:?}: {kinds:?}");
    }
    assert!(paper > 100, "too few cases have rounds of 8");
}

#[test]
fn paper_mode_keeps_whole_rounds_and_the_first_of_each_class() {
    let strategy = Strategy::read(&json!({"exit": "balance", "round_size": 8, "max_samples": 32})).unwrap();
    let plan = strategy.plan_of(32);
    for case in 0..300u64 {
        let p = unit(&[case, 1]);
        let all: Vec<Outcome> = (0..32).map(|i| if unit(&[case, 2, i]) < p { Outcome::Positive } else { Outcome::Negative }).collect();
        // The paper's loop, round by round.
        let mut t = 0;
        loop {
            t += 8;
            let positives = all[..t].iter().filter(|o| **o == Outcome::Positive).count();
            if (positives >= 2 && t - positives >= 2) || t == 32 {
                break;
            }
        }
        let exit = plan.exit(&all).unwrap();
        assert_eq!(exit.t as usize, t);
        let group = Group::form(&plan, exit, &seen(&all[..t]), 4, &Advantage::default(), None);
        let positives = all[..t].iter().filter(|o| **o == Outcome::Positive).count();
        assert_eq!((group.stats.seen as usize, group.stats.positive as usize), (t, positives));
        assert_eq!(group.stats.pass_rate, Some(positives as f64 / t as f64));
        let kept: Vec<u32> = group.kept.iter().map(|k| k.index).collect();
        assert_eq!(kept, kept_by_hand(&all[..t], 4));
        for kept in &group.kept {
            let reward = f64::from(u8::from(all[kept.index as usize] == Outcome::Positive));
            let expected = if group.signal { reward - positives as f64 / t as f64 } else { 0.0 };
            assert_eq!(kept.advantage, expected);
        }
    }
}

/// The twin: stopping at whichever samples finish first. 32 in flight, p = .3, wrong answers 1.6 times longer.
#[test]
fn first_to_finish_would_be_another_rule_and_a_biased_one() {
    let plan = Plan::new(2, 2, 32, 1);
    let normal = |a: f64, b: f64| (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos();
    let (mut by_index, mut by_finish, mut differ, mut counted) = (0.0, 0.0, 0, 0);
    for case in 0..20_000u64 {
        let all: Vec<Outcome> = (0..32).map(|i| if unit(&[case, 1, i]) < 0.3 { Outcome::Positive } else { Outcome::Negative }).collect();
        let length = |i: usize| {
            let right = all[i] == Outcome::Positive;
            (0.55 * normal(unit(&[case, 2, i as u64]), unit(&[case, 3, i as u64]))).exp() * if right { 1.0 } else { 1.6 }
        };
        let mut finished: Vec<usize> = (0..32).collect();
        finished.sort_by(|a, b| length(*a).total_cmp(&length(*b)));
        let shuffled: Vec<Outcome> = finished.iter().map(|i| all[*i]).collect();
        let (a, b) = (one_at_a_time(&plan, &all), one_at_a_time(&plan, &shuffled));
        if a.kind != ExitKind::Plan || b.kind != ExitKind::Plan {
            continue;
        }
        counted += 1;
        by_index += rate(&all[..a.t as usize]);
        by_finish += rate(&shuffled[..b.t as usize]);
        let kept = kept_by_hand(&all[..a.t as usize], 4);
        let twin: Vec<u32> = kept_by_hand(&shuffled[..b.t as usize], 4).iter().map(|i| finished[*i as usize] as u32).collect();
        differ += u32::from(kept.iter().any(|i| !twin.contains(i)));
    }
    let (by_index, by_finish) = (by_index / f64::from(counted), by_finish / f64::from(counted));
    println!("pass rate seen: index order {by_index:.3}, first to finish {by_finish:.3}; {differ} of {counted} groups differ");
    assert!((by_index - 0.359).abs() < 0.01, "index order sees {by_index}");
    assert!((by_finish - 0.555).abs() < 0.01, "first to finish sees {by_finish}");
    assert!(f64::from(differ) > 0.9 * f64::from(counted));
}

fn rate(outcomes: &[Outcome]) -> f64 {
    outcomes.iter().filter(|o| **o == Outcome::Positive).count() as f64 / outcomes.len() as f64
}

#[test]
fn failed_samples_are_passed_over_and_counted() {
    use Outcome::{Failed as F, Negative as N, Positive as P, Skipped as S};
    let plan = Plan { max_failed: 2, ..Plan::new(1, 1, 8, 1) };
    let group = |all: &[Outcome]| {
        let exit = plan.exit(all).unwrap();
        Group::form(&plan, exit, &seen(&all[..exit.t as usize]), 2, &Advantage::default(), None)
    };
    let passed_over = group(&[P, F, S, F, N]);
    assert_eq!((passed_over.status, passed_over.exit), (Status::Resolved, Some(ExitKind::Plan)));
    let stats = &passed_over.stats;
    assert_eq!((stats.seen, stats.positive, stats.negative, stats.failed, stats.skipped), (5, 1, 1, 2, 1));
    assert_eq!(stats.pass_rate, Some(0.5));
    let too_many = group(&[P, F, F, F, N]);
    assert_eq!((too_many.status, too_many.exit, too_many.stats.seen), (Status::Failed, None, 4));
    assert!(too_many.kept.is_empty() && !too_many.signal);
    // Nothing but failures, within the allowance: no rate, and no NaN.
    let none = Plan { max_failed: 8, ..plan };
    let exit = none.exit(&[F; 8]).unwrap();
    let group = Group::form(&none, exit, &seen(&[F; 8]), 2, &Advantage::default(), None);
    assert_eq!(
        (group.status, group.stats.pass_rate, group.stats.pass_rate_unbiased, group.stats.reward_mean),
        (Status::Exhausted, None, None, None)
    );
}

#[test]
fn defaults_and_budget() {
    let strategy = Strategy::read(&json!({})).unwrap();
    assert_eq!(strategy.plan_of(32), Plan { k_pos: 2, k_neg: 2, n_max: 32, m: 1, straight_pos: 0, max_failed: 3 });
    assert_eq!(Plan::new(1, 1, 5, 1).max_failed, 1);
    assert_eq!(Strategy::read(&json!({"exit": {"positives": 3, "negatives": 1}})).unwrap().plan_of(32).k_pos, 3);
    let exit = Exit { t: 10, kind: ExitKind::Plan };
    assert_eq!((exit.within(10), exit.within(4)), (exit, Exit { t: 4, kind: ExitKind::Budget }));
    let plan = Plan::new(2, 2, 32, 1);
    let half = [Outcome::Unscored, Outcome::Positive, Outcome::Positive, Outcome::Negative, Outcome::Negative];
    assert_eq!(plan.bound(&half).t, 5, "finished samples satisfy the exit although one below is missing");
    assert_eq!(plan.exit(&half), None);
    assert!(plan.may_matter(&half, 4) && !plan.may_matter(&half, 5));
    assert_eq!((plan.shortest_stop(), Plan::new(2, 2, 32, 8).shortest_stop(), Plan::new(1, 0, 32, 1).shortest_stop()), (4, 8, 1));
}
