//! Log-probability, entropy and the gradient of the logits.

use adaroll::ops::backward::Slope;
use adaroll::ops::{Ops, TrainOps};

use super::{assert_near, differences, same_everywhere};
use crate::numbers::{Numbers, rows_of, tensor_of};

/// (log-probability of the target, entropy) in f64.
fn exact(logits: &[f64], target: usize, temperature: f64) -> Vec<f64> {
    let z: Vec<f64> = logits.iter().map(|v| v / temperature).collect();
    let max = z.iter().copied().fold(f64::MIN, f64::max);
    let norm = max + z.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
    vec![z[target] - norm, -z.iter().map(|v| (v - norm).exp() * (v - norm)).sum::<f64>()]
}

#[test]
fn scores_and_their_gradients_are_exact() {
    let mut numbers = Numbers(51);
    for vocab in [1, 2, 16, 33, 100] {
        for temperature in [1.0f32, 0.7, 1.5] {
            let m = 3;
            let logits = numbers.rows(m, vocab, 3.0);
            let targets: Vec<u32> = (0..m).map(|_| numbers.below(vocab) as u32).collect();
            let slopes: Vec<Slope> = (0..m).map(|_| Slope { logprob: numbers.near_zero(1.0), entropy: numbers.near_zero(0.5) }).collect();
            let got = same_everywhere("score", &|ops| {
                let mut x = tensor_of(ops, &logits);
                let (mut scored, mut plain) = (Vec::new(), Vec::new());
                ops.score(&x, &targets, temperature, &mut scored);
                let scored: Vec<_> = scored.into_iter().map(Result::unwrap).collect();
                // The sampler's bits.
                let rows: Vec<(usize, u32)> = targets.iter().copied().enumerate().collect();
                ops.logprobs_of(&x, &rows, temperature, &mut plain);
                for (s, p) in scored.iter().zip(&plain) {
                    assert_eq!(s.logprob.to_bits(), p.unwrap().logprob.to_bits());
                }
                ops.score_backward(&mut x, &targets, temperature, &scored, &slopes);
                [rows_of(ops, &x, m), scored.iter().map(|s| vec![s.logprob, s.entropy]).collect()].concat()
            });
            for r in 0..m {
                let f = |v: &[f64]| exact(v, targets[r] as usize, f64::from(temperature));
                let what = format!("vocabulary {vocab}, temperature {temperature}");
                let logits_f64: Vec<f64> = logits[r].iter().map(|&v| f64::from(v)).collect();
                for (got, want) in got[m + r].iter().zip(f(&logits_f64)) {
                    assert!((f64::from(*got) - want).abs() < 1e-6 * (1.0 + want.abs()), "{what}: {got} and not {want}");
                }
                // Where a token is nearly certain the terms of its row cancel: what is left is small beside their rounding.
                assert_near(&got[r], &differences(&f, &logits[r], &[slopes[r].logprob, slopes[r].entropy]), 2e-5, &what);
            }
        }
    }
}

/// Sharp distributions: the gradient is finite, and zero where nothing can be gained.
#[test]
fn a_certain_token_has_no_gradient() {
    let got = same_everywhere("score", &|ops| {
        let mut x = tensor_of(ops, &[vec![0.0, 3e4, -3e4, 7.0]]);
        let mut scored = Vec::new();
        ops.score(&x, &[1], 1.0, &mut scored);
        let scored: Vec<_> = scored.into_iter().map(Result::unwrap).collect();
        assert_eq!((scored[0].logprob, scored[0].entropy), (0.0, 0.0));
        ops.score_backward(&mut x, &[1], 1.0, &scored, &[Slope { logprob: 1.0, entropy: 1.0 }]);
        rows_of(ops, &x, 1)
    });
    assert!(got[0].iter().all(|v| *v == 0.0), "{got:?}");
}

#[test]
fn a_row_that_is_not_finite_has_no_score() {
    for (bad, ok) in [(f32::NAN, false), (f32::INFINITY, false), (1.0, true)] {
        let (_, mut ops) = crate::numbers::instruction_sets().pop().unwrap();
        let x = tensor_of(&ops, &[vec![0.0; 20], [vec![0.0; 19], vec![bad]].concat()]);
        let mut scored = Vec::new();
        ops.score(&x, &[3, 3], 1.0, &mut scored);
        assert_eq!((scored[0].is_ok(), scored[1].is_ok()), (true, ok));
    }
}
