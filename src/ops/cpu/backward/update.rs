//! The optimizer's operations: elementwise over flat parameters, cut into pieces of a fixed size.

use crate::ops::backward::{AdamwFactors, AdamwStep};
use crate::ops::cpu::isa::Isa;
use crate::ops::cpu::isa::per_isa;
use crate::ops::cpu::math::tree_sum;
use crate::ops::cpu::pool::Pool;
use crate::ops::cpu::tensor::Shared;

/// Elements of a piece. The order of sums depends on it.
const PIECE: usize = 1 << 14;

#[inline(always)]
fn adamw_body(f: AdamwFactors, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]) {
    for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(m).zip(v) {
        *m += (g - *m) * f.one_minus_beta1;
        *v = *v * f.beta2 + f.one_minus_beta2 * g * g;
        let root = v.sqrt() / f.root_correction + f.eps;
        *p = *p * f.keep - f.step_size * *m / root;
    }
}
per_isa! {
    fn adamw_piece(f: AdamwFactors, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]) = adamw_body
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
#[inline(always)]
fn add_body(to: &mut [f32], from: &[f32]) {
    for (to, v) in to.iter_mut().zip(from) {
        *to += v;
    }
}
per_isa! {
    fn add_piece(to: &mut [f32], from: &[f32]) = add_body
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
    let factors = AdamwFactors::of(step);
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

pub(super) fn add(isa: Isa, pool: &mut Pool, to: &mut [f32], from: &[f32]) {
    assert!(to.len() == from.len(), "add: {} numbers to {}", from.len(), to.len());
    let shared = Shared(to.as_mut_ptr());
    pieces(pool, from.len(), &|first, len| {
        // SAFETY: pieces are disjoint and within the slice.
        add_piece(isa, unsafe { std::slice::from_raw_parts_mut(shared.get().add(first), len) }, &from[first..][..len]);
    });
}

pub(super) fn clear(pool: &mut Pool, values: &mut [f32]) {
    let to = Shared(values.as_mut_ptr());
    // SAFETY: pieces are disjoint and within the slice.
    pieces(pool, values.len(), &|from, len| unsafe { std::slice::from_raw_parts_mut(to.get().add(from), len) }.fill(0.0));
}
