//! The optimizer's operations: elementwise over flat parameters, cut into pieces of a fixed size.

use crate::ops::backward::AdamwStep;
use crate::ops::cpu::isa::Isa;
use crate::ops::cpu::isa::per_isa;
use crate::ops::cpu::math::tree_sum;
use crate::ops::cpu::pool::Pool;
use crate::ops::cpu::tensor::Shared;

/// Elements of a piece. The order of sums depends on it.
const PIECE: usize = 1 << 14;

/// An AdamW step's numbers as they enter the f32 arithmetic.
#[derive(Clone, Copy)]
struct Factors {
    keep: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    root_correction: f32,
    eps: f32,
    step_size: f32,
}

impl Factors {
    fn of(s: &AdamwStep) -> Factors {
        let t = s.step as f64;
        Factors {
            keep: (1.0 - s.lr * s.weight_decay) as f32,
            one_minus_beta1: (1.0 - s.beta1) as f32,
            beta2: s.beta2 as f32,
            one_minus_beta2: (1.0 - s.beta2) as f32,
            root_correction: (1.0 - libm::pow(s.beta2, t)).sqrt() as f32,
            eps: s.eps as f32,
            step_size: (s.lr / (1.0 - libm::pow(s.beta1, t))) as f32,
        }
    }
}

#[inline(always)]
fn adamw_body(f: Factors, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]) {
    for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(m).zip(v) {
        *m += (g - *m) * f.one_minus_beta1;
        *v = *v * f.beta2 + f.one_minus_beta2 * g * g;
        let root = v.sqrt() / f.root_correction + f.eps;
        *p = *p * f.keep - f.step_size * *m / root;
    }
}
per_isa! {
    fn adamw_piece(f: Factors, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]) = adamw_body
}

#[inline(always)]
fn squares_body(x: &[f32]) -> f64 {
    let mut lanes = [0f64; 16];
    for chunk in x.chunks(16) {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            let v = f64::from(*v);
            *lane = v.mul_add(v, *lane);
        }
    }
    tree_sum(lanes)
}
per_isa! {
    fn squares(x: &[f32]) -> f64 = squares_body
}

#[inline(always)]
fn scale_body(x: &mut [f32], factor: f32) {
    for v in x {
        *v *= factor;
    }
}
per_isa! {
    fn scale_piece(x: &mut [f32], factor: f32) = scale_body
}

/// Runs `piece(from, len)` for all pieces of `len` elements.
fn pieces(pool: &mut Pool, len: usize, piece: &(dyn Fn(usize, usize) + Sync)) {
    pool.run(len.div_ceil(PIECE), &|i, _| piece(i * PIECE, PIECE.min(len - i * PIECE)));
}

pub(super) fn adamw(isa: Isa, pool: &mut Pool, step: &AdamwStep, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]) {
    let n = values.len();
    assert!(gradient.len() == n && m.len() == n && v.len() == n, "adamw: shapes do not fit");
    let factors = Factors::of(step);
    let [p, m, v] = [values, m, v].map(|x| Shared(x.as_mut_ptr()));
    pieces(pool, n, &|from, len| {
        // SAFETY: pieces are disjoint and within the slices.
        let [p, m, v] = [&p, &m, &v].map(|x| unsafe { std::slice::from_raw_parts_mut(x.get().add(from), len) });
        adamw_piece(isa, factors, p, &gradient[from..][..len], m, v);
    });
}

pub(super) fn sum_of_squares(isa: Isa, pool: &mut Pool, values: &[f32]) -> f64 {
    let mut sums = vec![0f64; values.len().div_ceil(PIECE)];
    let to = Shared(sums.as_mut_ptr());
    // SAFETY: each piece has its own sum.
    pieces(pool, values.len(), &|from, len| unsafe { *to.get().add(from / PIECE) = squares(isa, &values[from..][..len]) });
    sums.iter().sum()
}

pub(super) fn scale(isa: Isa, pool: &mut Pool, values: &mut [f32], factor: f32) {
    let to = Shared(values.as_mut_ptr());
    pieces(pool, values.len(), &|from, len| {
        // SAFETY: pieces are disjoint and within the slice.
        scale_piece(isa, unsafe { std::slice::from_raw_parts_mut(to.get().add(from), len) }, factor);
    });
}
