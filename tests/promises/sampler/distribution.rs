//! Draws follow the filtered distribution: chi-square tests with fixed seeds, so they pass or fail for good.

use adaroll::ops::Draw;
use adaroll::ops::cpu::CpuOps;

use super::{Spec, reference, sample};
use crate::numbers::Numbers;

/// Keys x positions x samples.
const KEYS: u32 = 5;
const POSITIONS: u32 = 210;
const SAMPLES: u32 = 200;

/// One in ten thousand on the normal scale.
const LIMIT: f64 = 3.72;

/// Tokens drawn by all keys, positions and samples; key slowest, sample fastest.
fn tokens(logits: &[f32], spec: &Spec) -> Vec<u32> {
    let mut numbers = Numbers(17);
    let mut ops = CpuOps::new(1).unwrap();
    let mut all = Vec::new();
    for _ in 0..KEYS {
        let key = [numbers.word() as u32, numbers.word() as u32];
        let draws: Vec<Draw<'_>> =
            (0..POSITIONS).flat_map(|p| (0..SAMPLES).map(move |s| (p, s))).map(|(p, s)| spec.draw(0, key, p, s)).collect();
        all.extend(sample(&mut ops, &[logits.to_vec()], &draws).into_iter().map(|d| d.unwrap().token));
    }
    all
}

/// How far a chi-square statistic is out, as a standard normal number (Wilson and Hilferty 1931). Cells that are expected to be hit fewer
/// than five times are counted together.
fn out_of_place(counts: &[usize], probabilities: &[f64]) -> f64 {
    let total: usize = counts.iter().sum();
    let (mut cells, mut rare) = (Vec::new(), (0.0, 0.0));
    for (&count, p) in counts.iter().zip(probabilities) {
        let expected = p * total as f64;
        if expected >= 5.0 {
            cells.push((count as f64, expected));
        } else {
            rare = (rare.0 + count as f64, rare.1 + expected);
        }
    }
    if rare.1 >= 5.0 {
        cells.push(rare);
    }
    let statistic: f64 = cells.iter().map(|(n, e)| (n - e) * (n - e) / e).sum();
    let k = cells.len() as f64 - 1.0;
    if k < 1.0 {
        return 0.0;
    }
    ((statistic / k).cbrt() - (1.0 - 2.0 / (9.0 * k))) / (2.0 / (9.0 * k)).sqrt()
}

fn histogram(tokens: &[u32], vocabulary: usize) -> Vec<usize> {
    let mut counts = vec![0; vocabulary];
    tokens.iter().for_each(|&t| counts[t as usize] += 1);
    counts
}

#[track_caller]
fn assert_follows(logits: &[f32], spec: &Spec, kept: usize) {
    let want = reference(logits, spec);
    assert!(!want.ambiguous, "rounding decides this case: {spec:?}");
    assert_eq!(want.probabilities.iter().filter(|p| **p > 0.0).count(), kept, "tokens kept by {spec:?}");
    let counts = histogram(&tokens(logits, spec), logits.len());
    for (token, (count, p)) in counts.iter().zip(&want.probabilities).enumerate() {
        assert!(*p > 0.0 || *count == 0, "token {token} was dropped and drawn {count} times: {spec:?}");
    }
    let out = out_of_place(&counts, &want.probabilities);
    assert!(out < LIMIT, "{spec:?}: {out} standard deviations out; {counts:?}");
}

const SEVEN: [f32; 7] = [1.5, 0.25, -1.0, 2.0, 0.0, 0.25, -3.0];
/// Three tokens share the second place.
const TWELVE: [f32; 12] = [0.0, 1.0, -0.5, 1.0, 2.0, 0.5, -2.0, 1.0, 0.0, -0.5, 0.75, -4.0];

/// Multiples of 1/16 between -4 and 4.
fn fifty() -> Vec<f32> {
    let mut numbers = Numbers(50);
    (0..50).map(|_| numbers.below(128) as f32 / 16.0 - 4.0).collect()
}

#[test]
fn draws_follow_the_softmax_at_every_temperature() {
    for temperature in [0.5, 1.0, 2.0] {
        assert_follows(&SEVEN, &Spec::plain(temperature), 7);
        assert_follows(&TWELVE, &Spec::plain(temperature), 12);
        assert_follows(&fifty(), &Spec::plain(temperature), 50);
    }
}

#[test]
fn draws_follow_top_k_with_ties_to_lower_ids() {
    assert_follows(&SEVEN, &Spec { top_k: 1, ..Spec::plain(1.0) }, 1);
    assert_follows(&SEVEN, &Spec { top_k: 3, ..Spec::plain(1.0) }, 3);
    // The third place is shared by tokens 3 and 7 (after 4 and 1): 3 stays.
    assert_follows(&TWELVE, &Spec { top_k: 3, ..Spec::plain(2.0) }, 3);
    assert_follows(&fifty(), &Spec { top_k: 20, ..Spec::plain(0.5) }, 20);
    assert_follows(&SEVEN, &Spec { top_k: 7, ..Spec::plain(1.0) }, 7);
    assert_follows(&SEVEN, &Spec { top_k: 1000, ..Spec::plain(1.0) }, 7);
}

#[test]
fn draws_follow_top_p_with_ties_to_lower_ids() {
    assert_follows(&SEVEN, &Spec { top_p: 0.8, ..Spec::plain(1.0) }, 3);
    assert_follows(&fifty(), &Spec { top_p: 0.9, ..Spec::plain(1.0) }, 12);
    // Shares of exactly 1/12: three of them are exactly a quarter, and a little more takes four.
    assert_follows(&[0.5; 12], &Spec { top_p: 0.25, ..Spec::plain(1.0) }, 3);
    assert_follows(&[0.5; 12], &Spec { top_p: 0.25 + 1e-6, ..Spec::plain(1.0) }, 4);
    assert_follows(&[0.5; 12], &Spec { top_p: 1e-9, ..Spec::plain(1.0) }, 1);
    // Token 4 and two of the three that share the second place.
    assert_follows(&TWELVE, &Spec { top_p: 0.55, ..Spec::plain(1.0) }, 3);
}

#[test]
fn draws_follow_min_p() {
    assert_follows(&SEVEN, &Spec { min_p: 0.1, ..Spec::plain(1.0) }, 5);
    assert_follows(&fifty(), &Spec { min_p: 0.05, ..Spec::plain(2.0) }, 37);
    // Only the most likely are as likely as the most likely one; there are four of them.
    assert_follows(&[1.0, 0.5, 1.0, 1.0, 0.0, 1.0, -1.0], &Spec { min_p: 1.0, ..Spec::plain(1.0) }, 4);
}

#[test]
fn draws_follow_bias_and_bans() {
    assert_follows(&SEVEN, &Spec { bias: vec![(6, 5.0), (3, -1.5)], ..Spec::plain(1.0) }, 7);
    assert_follows(&TWELVE, &Spec { banned: vec![4, 0, 11], ..Spec::plain(0.5) }, 9);
    // Bias cannot bring back what is banned.
    assert_follows(&SEVEN, &Spec { bias: vec![(3, 100.0), (0, 0.5)], banned: vec![3], ..Spec::plain(1.0) }, 6);
}

#[test]
fn draws_follow_all_filters_together() {
    let bias = vec![(0, 2.0), (6, 4.5), (9, -0.25)];
    let spec = Spec { temperature: 2.0, top_k: 8, top_p: 0.9, min_p: 0.25, bias: bias.clone(), banned: vec![4] };
    assert_follows(&TWELVE, &spec, 7);
    let spec = Spec { temperature: 0.5, top_k: 25, top_p: 0.95, min_p: 0.01, bias, banned: vec![1, 2, 3] };
    assert_follows(&fifty(), &spec, 8);
    // Top-p is taken of what top-k left: 0.6 of three tokens is two of them.
    assert_follows(&[0.0; 12], &Spec { top_k: 3, top_p: 0.6, ..Spec::plain(1.0) }, 2);
}

/// Draws of neighbouring positions, samples and keys are independent: pairs follow the product of the distributions.
#[test]
fn neighbouring_draws_are_independent() {
    let spec = Spec::plain(1.0);
    let all = tokens(&SEVEN, &spec);
    let p = reference(&SEVEN, &spec).probabilities;
    let joint: Vec<f64> = p.iter().flat_map(|a| p.iter().map(move |b| a * b)).collect();
    for (what, apart) in [("sample", 1), ("position", SAMPLES as usize), ("key", (POSITIONS * SAMPLES) as usize)] {
        // Disjoint pairs: every second run of `apart` draws with the run after it.
        let firsts = (0..all.len() - apart).filter(|i| (i / apart).is_multiple_of(2));
        let pairs: Vec<u32> = firsts.map(|i| all[i] * 7 + all[i + apart]).collect();
        let out = out_of_place(&histogram(&pairs, 49), &joint);
        assert!(out < LIMIT, "neighbours by {what}: {out} standard deviations out");
    }
}

/// The twin: the same test turns down distributions that are a little wrong, so passing it means something.
#[test]
fn a_slightly_wrong_distribution_would_be_turned_down() {
    let counts = histogram(&tokens(&SEVEN, &Spec::plain(1.0)), 7);
    let warmer = reference(&SEVEN, &Spec::plain(1.02)).probabilities;
    assert!(out_of_place(&counts, &warmer) > LIMIT);
    let biased = reference(&SEVEN, &Spec { bias: vec![(3, 0.03)], ..Spec::plain(1.0) }).probabilities;
    assert!(out_of_place(&counts, &biased) > LIMIT);
    // Pairs that share their noise are not independent.
    let p = reference(&SEVEN, &Spec::plain(1.0)).probabilities;
    let joint: Vec<f64> = p.iter().flat_map(|a| p.iter().map(move |b| a * b)).collect();
    let mut same = vec![0; 49];
    counts.iter().enumerate().for_each(|(t, n)| same[t * 8] = *n);
    assert!(out_of_place(&same, &joint) > LIMIT);
}
