//! Promises of the backward operations: each is the derivative of its forward (plain f64 arithmetic, differenced), with the same bits on every
//! instruction set and number of threads, whatever rows are beside a row and however a batch was cut.

mod attention;
mod products;
mod rows;
mod score;
mod update;

use adaroll::ops::cpu::CpuOps;

use crate::numbers::{Numbers, assert_same_bits, backends};

/// A function of f64 numbers to f64 numbers.
type Function<'a> = &'a dyn Fn(&[f64]) -> Vec<f64>;

/// Gradient of `sum(weights * f(x))` by central differences: good to about 1e-9 of the values' size.
fn differences(f: Function<'_>, x: &[f32], weights: &[f32]) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let sum = |x: &[f64]| f(x).iter().zip(weights).map(|(y, w)| y * f64::from(*w)).sum::<f64>();
    (0..x.len())
        .map(|i| {
            let (at, step) = (x[i], 1e-5);
            x[i] = at + step;
            let up = sum(&x);
            x[i] = at - step;
            let down = sum(&x);
            x[i] = at;
            (up - down) / (2.0 * step)
        })
        .collect()
}

/// Near the exact gradient, relative to its largest number.
#[track_caller]
fn assert_near(got: &[f32], want: &[f64], bound: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(1e-3f64, |a, b| a.max(b.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() <= bound * size, "{what}: number {i} is {g} and not {w}");
    }
}

/// Runs on every instruction set with one, two and three threads; all must give the same bits, which come back.
#[track_caller]
fn same_everywhere(what: &str, run: &dyn Fn(&mut CpuOps) -> Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    let mut first: Option<Vec<Vec<f32>>> = None;
    for (name, mut ops) in backends() {
        let got = run(&mut ops);
        match &first {
            None => first = Some(got),
            Some(want) => assert_same_bits(&got, want, &|| format!("{what}, {name}")),
        }
    }
    first.unwrap()
}

/// One row a row.
fn rows(flat: &[f32], cols: usize) -> Vec<Vec<f32>> {
    flat.chunks(cols).map(<[f32]>::to_vec).collect()
}

/// Norm weights near 1.
fn norm_weights(numbers: &mut Numbers, n: usize) -> Vec<f32> {
    numbers.row(n, 0.3).into_iter().map(|w| w + 1.0).collect()
}
