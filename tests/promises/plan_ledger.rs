//! Promise: what one prompt leaves to another follows from the order of the request, never from what finishes first.

use adaroll::rollout::plan::{Exit, ExitKind, Ledger, Outcome, Place, Plan, Wanted};

use crate::fake_engine::{mix, unit};
use crate::plan::one_at_a_time;

struct Request {
    plans: Vec<Plan>,
    all: Vec<Vec<Outcome>>,
    budget: u64,
}

fn request(case: u64) -> Request {
    let draw = |what: u64, n: u64| mix(&[case, what]) % n;
    let (prompts, failing) = (1 + draw(0, 9), if draw(1, 2) == 0 { 0.0 } else { 0.15 });
    let plan = |i: u64| {
        let n_max = 1 + draw(10 + i, 12) as u32;
        let m = 1 + draw(30 + i, u64::from(n_max)) as u32;
        Plan { max_failed: draw(50 + i, 4) as u32, ..Plan::new(draw(70 + i, 3) as u32, draw(90 + i, 3) as u32, n_max, m) }
    };
    let outcome = |i: u64, j: u64| match unit(&[case, 3, i, j]) {
        u if u < failing => Outcome::Failed,
        u if u < failing + 0.4 => Outcome::Positive,
        _ => Outcome::Negative,
    };
    let plans: Vec<Plan> = (0..prompts).map(plan).collect();
    let all = (0u64..).zip(&plans).map(|(i, plan)| (0..u64::from(plan.n_max)).map(|j| outcome(i, j)).collect()).collect();
    let most: u64 = plans.iter().map(|p| u64::from(p.n_max)).sum();
    Request { plans, all, budget: 1 + draw(2, most) }
}

/// The definition: prompt after prompt, one sample at a time, until the budget is spent.
fn one_after_another(request: &Request) -> Vec<(u32, Exit)> {
    let mut left = request.budget;
    let exits = request.plans.iter().zip(&request.all).map(|(plan, all)| {
        let allowed = left.min(u64::from(plan.n_max)) as u32;
        let exit = one_at_a_time(plan, all).within(allowed);
        left -= u64::from(exit.t);
        (allowed, exit)
    });
    exits.collect()
}

/// Draws in a random order across prompts, as far as the ledger lets it, and closes a prompt as soon as it says.
fn in_any_order(request: &Request, expected: &[(u32, Exit)], order: u64) -> Vec<Exit> {
    let prompts = request.plans.len();
    let mut ledger = Ledger::new(Some(request.budget), &request.plans);
    let mut known: Vec<Vec<Outcome>> = request.plans.iter().map(|p| vec![Outcome::Unscored; p.n_max as usize]).collect();
    let mut exits: Vec<Option<Exit>> = vec![None; prompts];
    let mut last: Vec<_> = (0..prompts).map(|p| ledger.allowance(p)).collect();
    for step in 0.. {
        for prompt in 0..prompts {
            let plan = &request.plans[prompt];
            let allowance = ledger.allowance(prompt);
            let (least, most) = (allowance.least, allowance.most);
            assert!(least <= expected[prompt].0 && expected[prompt].0 <= most, "{allowance:?}, final {}", expected[prompt].0);
            assert!(least >= last[prompt].least && most <= last[prompt].most, "{:?} became {allowance:?}", last[prompt]);
            last[prompt] = allowance;
            if exits[prompt].is_some() {
                continue;
            }
            let early = plan.exit(&known[prompt]).filter(|exit| exit.t <= least);
            let below = &known[prompt][..most as usize];
            let ended = least == most && below.iter().all(|o| o.is_resolved());
            exits[prompt] = early.or_else(|| ended.then(|| plan.bound(below).within(most)));
            match exits[prompt] {
                Some(exit) => ledger.set(prompt, exit.t, exit.t),
                None => ledger.set(prompt, plan.earliest_end(&known[prompt]), plan.bound(&known[prompt]).t),
            }
        }
        if exits.iter().all(Option::is_some) {
            break;
        }
        // Any index below what a prompt may still get: order within a prompt is free as well.
        let open: Vec<(usize, usize)> = (0..prompts)
            .filter(|p| exits[*p].is_none())
            .flat_map(|p| {
                let end = ledger.allowance(p).most.min(request.plans[p].bound(&known[p]).t) as usize;
                (0..end).filter(|j| !known[p][*j].is_resolved()).map(|j| (p, j)).collect::<Vec<_>>()
            })
            .collect();
        if let Some((prompt, index)) = open.get((mix(&[order, step]) % open.len().max(1) as u64) as usize) {
            known[*prompt][*index] = request.all[*prompt][*index];
        }
        assert!(step < 1000, "stuck: {exits:?}");
    }
    exits.into_iter().flatten().collect()
}

/// The twin: one sample of each prompt in turn, and whoever comes first takes from the budget.
fn by_completion(request: &Request) -> Vec<Exit> {
    let mut left = request.budget;
    let mut drawn = vec![0usize; request.plans.len()];
    loop {
        let before = left;
        for (prompt, plan) in request.plans.iter().enumerate() {
            if left > 0 && plan.exit(&request.all[prompt][..drawn[prompt]]).is_none() {
                drawn[prompt] += 1;
                left -= 1;
            }
        }
        if before == left {
            let exit = |(prompt, plan): (usize, &Plan)| plan.bound(&request.all[prompt][..drawn[prompt]]).within(drawn[prompt] as u32);
            return request.plans.iter().enumerate().map(exit).collect();
        }
    }
}

#[test]
fn the_budget_is_charged_in_request_order() {
    let (mut cut, mut failed, mut twin_differs) = (0, 0, 0);
    for case in 0..1500 {
        let request = request(case);
        let expected = one_after_another(&request);
        let exits: Vec<Exit> = expected.iter().map(|(_, exit)| *exit).collect();
        for order in 0..4 {
            assert_eq!(in_any_order(&request, &expected, mix(&[case, order])), exits, "case {case}, order {order}");
        }
        cut += exits.iter().filter(|exit| exit.kind == ExitKind::Budget).count();
        failed += exits.iter().filter(|exit| exit.kind == ExitKind::Failed).count();
        twin_differs += u32::from(by_completion(&request) != exits);
    }
    assert!(cut > 200 && failed > 200 && twin_differs > 200, "{cut} cut, {failed} failed, the twin differs in {twin_differs}");
}

#[test]
fn without_a_budget_everyone_gets_all() {
    let plans = [Plan::new(2, 2, 32, 1), Plan::new(0, 0, 4, 4)];
    let ledger = Ledger::new(None, &plans);
    assert_eq!([0, 1].map(|p| (ledger.allowance(p).least, ledger.allowance(p).most)), [(32, 32), (4, 4)]);
    // A uniform plan always ends at 4, unless failures end it at 2: the next prompt must not count on either.
    let ledger = Ledger::new(Some(6), &[plans[1], plans[1]]);
    assert_eq!((ledger.allowance(1).least, ledger.allowance(1).most), (2, 4));
}

/// Every way the open groups can turn out.
fn completions(groups: &[Option<bool>]) -> Vec<Vec<bool>> {
    groups.iter().fold(vec![Vec::new()], |all, group| {
        let ways: &[bool] = match group {
            Some(true) => &[true],
            Some(false) => &[false],
            None => &[true, false],
        };
        all.iter().flat_map(|done| ways.iter().map(|way| [&done[..], &[*way]].concat())).collect()
    })
}

fn final_place(groups: &[bool], prompt: usize, wanted: usize) -> Place {
    match groups[..prompt].iter().filter(|g| **g).count() {
        earlier if earlier >= wanted => Place::Unneeded,
        _ if groups[prompt] => Place::Kept,
        _ => Place::Dropped,
    }
}

#[test]
fn the_first_groups_with_signal_by_request_order_are_kept() {
    let mut twin_differs = 0;
    for case in 0..300u64 {
        let draw = |what: u64, n: u64| mix(&[case, what]) % n;
        let prompts = 1 + draw(0, 8) as usize;
        let wanted = 1 + draw(1, prompts as u64) as usize;
        let signal: Vec<bool> = (0..prompts as u64).map(|i| draw(10 + i, 2) == 0).collect();
        let mut order: Vec<usize> = (0..prompts).collect();
        order.sort_by_key(|i| mix(&[case, 3, *i as u64]));
        let mut state = Wanted::new(wanted as u32, prompts);
        let mut groups = vec![None; prompts];
        for next in std::iter::once(None).chain(order.iter().copied().map(Some)) {
            if let Some(next) = next {
                groups[next] = Some(signal[next]);
                state.set(next, signal[next]);
            }
            let ways = completions(&groups);
            for prompt in 0..prompts {
                let place = final_place(&ways[0], prompt, wanted);
                let certain = ways.iter().all(|way| final_place(way, prompt, wanted) == place);
                assert_eq!(state.place(prompt), if certain { place } else { Place::Unknown }, "case {case}: {groups:?}, wanted {wanted}");
                let needed = needed_by_hand(&groups, prompt, wanted);
                assert!((state.needed_probability(prompt) - needed).abs() < 1e-12, "{groups:?}: {needed}");
            }
        }
        let kept: Vec<usize> = (0..prompts).filter(|p| state.place(*p) == Place::Kept).collect();
        let mut first: Vec<usize> = order.iter().copied().filter(|p| signal[*p]).take(wanted).collect();
        first.sort_unstable();
        twin_differs += u32::from(kept != first);
    }
    assert!(twin_differs > 50, "the first to finish are hardly other groups: {twin_differs}");
}

/// Polya's urn, group after group, over every way the earlier open ones can turn out.
fn needed_by_hand(groups: &[Option<bool>], prompt: usize, wanted: usize) -> f64 {
    let seen = |what: bool| groups.iter().filter(|g| **g == Some(what)).count() as f64 + 0.5;
    let mut needed = 0.0;
    for way in completions(&groups[..prompt]) {
        let (mut with, mut without, mut probability) = (seen(true), seen(false), 1.0);
        for (group, signal) in groups.iter().zip(&way) {
            if group.is_none() {
                let count = if *signal { &mut with } else { &mut without };
                let one = *count;
                *count += 1.0;
                probability *= one / (with + without - 1.0);
            }
        }
        if way.iter().filter(|signal| **signal).count() < wanted {
            needed += probability;
        }
    }
    needed
}

#[test]
fn needed_probability_survives_long_requests() {
    let mut state = Wanted::new(4000, 20_000);
    for prompt in 10_000..20_000 {
        state.set(prompt, prompt % 2 == 0);
    }
    // About half of the 9,999 earlier groups will have signal; far more than wanted.
    assert!(state.needed_probability(9_999) < 1e-6 && state.needed_probability(4_000) > 0.999_999);
    let middle = state.needed_probability(8_000);
    assert!((0.3..0.7).contains(&middle), "{middle}");
}
