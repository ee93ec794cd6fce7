//! Log-probabilities: right to f32's accuracy, and the same bits from sampler and scorer.

use adaroll::ops::NonFinite;
use adaroll::ops::cpu::{CpuOps, Isa};

use super::{Spec, bits, log_softmax, sample, score};
use crate::numbers::{Numbers, backends, instruction_sets};

/// Rows of logits of one size: ordinary, extreme and degenerate.
fn rows(numbers: &mut Numbers, n: usize) -> Vec<(&'static str, Vec<f32>)> {
    let mut all = vec![("ordinary", numbers.row(n, 3.0)), ("flat", numbers.row(n, 0.01))];
    all.push(("eighties", (0..n).map(|_| if numbers.below(2) == 0 { 80.0 } else { -80.0 }).collect()));
    all.push(("spread over eighties", (0..n).map(|_| (numbers.unit() * 160.0 - 80.0) as f32).collect()));
    all.push(("all equal", vec![-7.3; n]));
    // The rest of a dominating token is small beside it, and matters where there is a lot of it.
    for (name, above) in [("dominated by 1", 1.234), ("dominated by 10", 10.0), ("dominated by 17", 17.0), ("dominated by 60", 60.0)] {
        for at in [0, n / 2, n - 1] {
            let mut row = vec![0.1; n];
            row[at] += above;
            all.push((name, row));
            let mut row = numbers.row(n, 0.5);
            row[at] = above + 1.0;
            all.push((name, row));
        }
    }
    all
}

/// Both log-probabilities are within 2e-6 of the exact ones, plus the rounding of a number of their size (and, beside temperatures,
/// of the divided logits), for small and large vocabularies and for extreme logits.
#[test]
fn log_probabilities_are_accurate() {
    let mut numbers = Numbers(21);
    let mut ops = CpuOps::new(2).unwrap();
    let half_ulp = 2f64.powi(-24);
    for n in [1, 2, 7, 16, 50, 1000, 32_000, 50_257] {
        for (name, row) in rows(&mut numbers, n) {
            let tokens: Vec<(usize, u32)> =
                [0, n / 2, n - 1].into_iter().chain((0..5).map(|_| numbers.below(n))).map(|t| (0, t as u32)).collect();
            for temperature in [1.0f32, 0.5, 0.7, 1.3, 2.0] {
                let exact = |t: f64| log_softmax(&row.iter().map(|&v| f64::from(v) / t).collect::<Vec<_>>());
                let (raw, warm) = (exact(1.0), exact(f64::from(temperature)));
                let largest = row.iter().map(|v| f64::from(v.abs() / temperature)).fold(0.0, f64::max);
                for (d, &(_, token)) in score(&mut ops, std::slice::from_ref(&row), &tokens, temperature).iter().zip(&tokens) {
                    let d = d.unwrap();
                    let (raw, warm) = (raw[token as usize], warm[token as usize]);
                    let bound = 2e-6 + 2.0 * half_ulp * raw.abs();
                    assert!((f64::from(d.logprob_raw) - raw).abs() < bound, "{n} tokens, {name}: {} and not {raw}", d.logprob_raw);
                    let bound = 2e-6 + half_ulp * (2.0 * warm.abs() + if temperature == 1.0 { 0.0 } else { 2.0 * largest });
                    let error = (f64::from(d.logprob) - warm).abs();
                    assert!(error < bound, "{n} tokens, {name}, temperature {temperature}: {} and not {warm}", d.logprob);
                }
            }
        }
    }
}

/// The twin: a sum of exponentials in one f32 chain, as it is often written, misses the bound on these rows.
#[test]
fn a_plain_f32_sum_would_miss_the_bound() {
    let mut numbers = Numbers(21);
    let misses = rows(&mut numbers, 50_257).into_iter().filter(|(_, row)| {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|v| (v - top).exp()).sum();
        let exact = log_softmax(&row.iter().map(|&v| f64::from(v)).collect::<Vec<_>>())[0];
        let got = f64::from(row[0] - top - sum.ln());
        (got - exact).abs() > 2e-6 + 2f64.powi(-23) * exact.abs()
    });
    assert!(misses.count() > 3);
}

/// Scoring a drawn token at the temperature it was drawn with gives back the sampler's log-probabilities to the bit, on every backend, in
/// any batch.
#[test]
fn scores_equal_the_samplers_log_probabilities_to_the_bit() {
    let mut numbers = Numbers(22);
    let logits: Vec<Vec<f32>> = (0..6).map(|_| numbers.row(1003, 3.0)).collect();
    let temperatures = [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0, 1.000_1, 1.1, 1.5, 2.0, 3.3, 10.0, 1000.0];
    let mut first: Vec<Vec<Option<(u32, u32, u32)>>> = Vec::new();
    for (name, mut ops) in backends() {
        let mut all = Vec::new();
        for temperature in temperatures {
            let spec = Spec::plain(temperature);
            let draws: Vec<_> = (0..24).map(|i| spec.draw(i % 6, [9, 8], i as u32, 3)).collect();
            let drawn = sample(&mut ops, &logits, &draws);
            // The tokens in another order and with other rows around.
            let mut tokens: Vec<(usize, u32)> = drawn.iter().enumerate().map(|(i, d)| (i % 6, d.unwrap().token)).collect();
            tokens.reverse();
            let mut scored = score(&mut ops, &logits, &tokens, temperature);
            scored.reverse();
            let (drawn, scored): (Vec<_>, Vec<_>) = (drawn.iter().map(bits).collect(), scored.iter().map(bits).collect());
            assert_eq!(drawn, scored, "temperature {temperature}, {name}");
            all.push(drawn);
        }
        if first.is_empty() {
            first = all;
        } else {
            assert_eq!(all, first, "{name}");
        }
    }
}

/// Filters that drop nothing leave the distribution, and its bits, as they are.
#[test]
fn filters_that_keep_all_change_no_bit() {
    let mut numbers = Numbers(23);
    let row = vec![numbers.row(300, 1.0)];
    for (name, mut ops) in instruction_sets() {
        for temperature in [0.5, 1.0, 1.7] {
            let plain = Spec::plain(temperature);
            let wide = Spec { top_k: 300, min_p: 1e-9, bias: vec![(5, 0.0)], ..plain.clone() };
            for position in 0..50 {
                let drawn = sample(&mut ops, &row, &[plain.draw(0, [4, 4], position, 1), wide.draw(0, [4, 4], position, 1)]);
                assert_eq!(bits(&drawn[0]), bits(&drawn[1]), "temperature {temperature}, {name}");
            }
        }
    }
}

/// Finite logits that lie further apart than f32 reaches give no log-probability rather than an infinite one.
#[test]
fn a_log_probability_is_never_infinite() {
    for isa in Isa::available() {
        let mut ops = CpuOps::with_isa(1, isa).unwrap();
        let rows = vec![vec![3e38f32, -3e38]];
        for temperature in [0.0, 1.0, 2.0] {
            assert_eq!(score(&mut ops, &rows, &[(0, 1)], temperature), [Err(NonFinite)], "{isa}, temperature {temperature}");
            assert!(score(&mut ops, &rows, &[(0, 0)], temperature)[0].is_ok());
        }
    }
}
