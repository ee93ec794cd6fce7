//! Which tokens the filters keep, seen through the log-probability of what was drawn: it changes with every token kept or dropped.

use adaroll::ops::cpu::CpuOps;

use super::{Spec, reference, sample};
use crate::numbers::Numbers;

/// Random filters over random logits with many ties: the token is one that the rules keep, and its log-probability is the one that exactly
/// the kept set gives it.
#[test]
fn filters_keep_exactly_what_the_rules_keep() {
    let mut numbers = Numbers(3);
    let mut ops = CpuOps::new(1).unwrap();
    let mut checked = 0;
    for i in 0..20_000 {
        let vocabulary = 1 + numbers.below(if i % 10 == 0 { 700 } else { 40 });
        // Coarse steps make ties.
        let step = [0.5, 0.125, 1e-3][numbers.below(3)];
        let logits: Vec<f32> = (0..vocabulary).map(|_| (numbers.near_zero(2.0) / step).round() * step).collect();
        let ids: Vec<u32> = (0..vocabulary as u32).collect();
        let mut some = |n: usize| (0..numbers.below(n + 1)).map(|_| ids[numbers.below(vocabulary)]).collect::<Vec<u32>>();
        let (mut biased, mut banned) = (some(3), some(vocabulary / 2));
        biased.sort_unstable();
        biased.dedup();
        banned.truncate(vocabulary - 1);
        let spec = Spec {
            temperature: [0.25, 0.5, 0.7, 1.0, 1.0, 1.3, 2.0][numbers.below(7)],
            top_k: [0, 0, 1, 2, 5, 20, vocabulary as u32][numbers.below(7)],
            top_p: [1.0, 1.0, 0.999, 0.9, 0.5, 0.25, 0.1][numbers.below(7)],
            min_p: [0.0, 0.0, 0.01, 0.1, 0.3, 0.9, 1.0][numbers.below(7)],
            bias: biased.into_iter().map(|id| (id, [-2.0, 0.5, 3.0][numbers.below(3)])).collect(),
            banned,
        };
        let want = reference(&logits, &spec);
        if want.ambiguous {
            continue;
        }
        checked += 1;
        let key = [numbers.word() as u32, i];
        let drawn = sample(&mut ops, std::slice::from_ref(&logits), &[spec.draw(0, key, i, 0)])[0].unwrap();
        let p = want.probabilities[drawn.token as usize];
        assert!(p > 0.0, "draw {i}: token {} is not kept by {spec:?} of {logits:?}", drawn.token);
        let error = (f64::from(drawn.logprob) - p.ln()).abs();
        assert!(error < 4e-6, "draw {i}: {} and not {}, {spec:?} of {logits:?}", drawn.logprob, p.ln());
    }
    assert!(checked > 18_000, "{checked} cases were decided by more than rounding");
}

/// Zero and minus zero are equal, so a tie between them goes to the lower id, as at temperature 0.
#[test]
fn minus_zero_ties_with_zero() {
    let mut ops = CpuOps::new(1).unwrap();
    for logits in [[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0]] {
        for spec in [Spec { top_k: 1, ..Spec::plain(1.0) }, Spec { top_p: 0.3, ..Spec::plain(1.0) }, Spec::plain(0.0)] {
            for position in 0..20 {
                let drawn = sample(&mut ops, &[logits.to_vec()], &[spec.draw(0, [1, 2], position, 0)])[0].unwrap();
                assert_eq!(drawn.token, 0, "{logits:?}, {spec:?}");
            }
        }
    }
}

/// Where nothing is left to draw from, the draw says so.
#[test]
fn a_row_with_every_token_banned_gives_no_token() {
    let mut ops = CpuOps::new(1).unwrap();
    for temperature in [0.0, 0.7, 1.0] {
        for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (2, 0.9, 0.1)] {
            let spec = Spec { top_k, top_p, min_p, banned: vec![0, 1, 2], ..Spec::plain(temperature) };
            assert!(sample(&mut ops, &[vec![1.0, 2.0, 3.0]], &[spec.draw(0, [1, 2], 0, 0)])[0].is_err(), "{spec:?}");
        }
    }
}
