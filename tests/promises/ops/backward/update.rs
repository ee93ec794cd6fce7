//! AdamW, the norm of a gradient, scaling.

use adaroll::ops::TrainOps;
use adaroll::ops::backward::AdamwStep;

use super::{assert_near, same_everywhere};
use crate::numbers::Numbers;

/// PyTorch's formula in f64.
fn exact(step: &AdamwStep, p: &mut f64, g: f64, m: &mut f64, v: &mut f64) {
    *p *= 1.0 - step.lr * step.weight_decay;
    *m += (g - *m) * (1.0 - step.beta1);
    *v = *v * step.beta2 + (1.0 - step.beta2) * g * g;
    let (c1, c2) = (1.0 - step.beta1.powi(step.step as i32), 1.0 - step.beta2.powi(step.step as i32));
    *p -= step.lr / c1 * *m / (v.sqrt() / c2.sqrt() + step.eps);
}

#[test]
fn adamw_is_its_formula() {
    let mut numbers = Numbers(61);
    for n in [1, 17, 40_000] {
        let (p, gradients) = (numbers.row(n, 0.1), numbers.rows(4, n, 1e-3));
        let steps = (1..=4).map(|step| AdamwStep { lr: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step });
        let steps: Vec<AdamwStep> = steps.collect();
        let got = same_everywhere("adamw", &|ops| {
            let (mut p, mut m, mut v) = (p.clone(), vec![0.0; n], vec![0.0; n]);
            for (step, g) in steps.iter().zip(&gradients) {
                ops.adamw(step, &mut p, g, &mut m, &mut v);
            }
            vec![p, m, v]
        });
        let mut want = [vec![0f64; n], vec![0f64; n], vec![0f64; n]];
        for i in 0..n {
            let (mut p, mut m, mut v) = (f64::from(p[i]), 0.0, 0.0);
            for (step, g) in steps.iter().zip(&gradients) {
                exact(step, &mut p, f64::from(g[i]), &mut m, &mut v);
            }
            (want[0][i], want[1][i], want[2][i]) = (p, m, v);
        }
        for (got, want) in got.iter().zip(&want) {
            assert_near(got, want, 1e-6, &format!("{n} numbers"));
        }
    }
}

/// A number without gradient only decays.
#[test]
fn a_number_without_gradient_only_decays() {
    let step = AdamwStep { lr: 0.5, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.5, step: 1 };
    let got = same_everywhere("adamw", &|ops| {
        let (mut p, mut m, mut v) = (vec![1.0, -2.0], vec![0.0; 2], vec![0.0; 2]);
        ops.adamw(&step, &mut p, &vec![0.0; 2], &mut m, &mut v);
        vec![p]
    });
    assert_eq!(got, [[0.75, -1.5]]);
}

#[test]
fn the_norm_is_the_same_everywhere_and_scaling_is_exact() {
    let mut numbers = Numbers(62);
    for n in [0, 1, 16_384, 50_001] {
        let x = numbers.row(n, 1.0);
        let exact: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let mut first = None;
        for (name, mut ops) in crate::numbers::backends() {
            let sum = ops.sum_of_squares(&x);
            assert!((sum - exact).abs() <= 1e-12 * exact, "{name}");
            assert_eq!(sum.to_bits(), *first.get_or_insert(sum.to_bits()), "{name}");
            let mut scaled = x.clone();
            ops.scale(&mut scaled, 0.3);
            assert!(x.iter().zip(&scaled).all(|(x, y)| x * 0.3 == *y), "{name}");
        }
    }
}

/// The twin: a sum of one part for each thread has other bits with another number of threads.
#[test]
fn a_sum_of_each_threads_part_would_change_bits() {
    let mut numbers = Numbers(62);
    let x = numbers.row(50_001, 1.0);
    let usual = |threads: usize| -> f64 {
        let part = |x: &[f32]| x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
        x.chunks(x.len().div_ceil(threads)).map(part).sum()
    };
    assert_ne!(usual(1).to_bits(), usual(2).to_bits());
}
