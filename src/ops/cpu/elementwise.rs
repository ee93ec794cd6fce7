//! Operations on single rows: norms, rotation, activation. Plain loops over fixed-width lanes; each instruction set gets its own instance.

use super::isa::per_isa;
use super::math::{exp, tree_sum};

/// Sum of squares: element i in lane i mod 16, FMA in ascending order, then the tree.
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (whole, rest) = x.as_chunks::<16>();
    for chunk in whole {
        for j in 0..16 {
            lanes[j] = chunk[j].mul_add(chunk[j], lanes[j]);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = v.mul_add(*v, *lane);
    }
    tree_sum(lanes)
}

#[inline(always)]
fn rmsnorm_body(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = w * (v * scale);
    }
}
per_isa! {
    /// `out = x / sqrt(mean(x^2) + eps) * weight` for one row.
    pub(super) fn rmsnorm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rmsnorm_body
}

#[inline(always)]
fn rmsnorm_in_place_body(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    for (v, w) in x.iter_mut().zip(weight) {
        *v = w * (*v * scale);
    }
}
per_isa! {
    /// RMSNorm of one head, in place.
    pub(super) fn rmsnorm_in_place(x: &mut [f32], weight: &[f32], eps: f32) = rmsnorm_in_place_body
}

#[inline(always)]
fn add_body(x: &mut [f32], delta: &[f32]) {
    for (v, d) in x.iter_mut().zip(delta) {
        *v += d;
    }
}
per_isa! {
    /// `x += delta` for one row.
    pub(super) fn add_row(x: &mut [f32], delta: &[f32]) = add_body
}

#[inline(always)]
fn rope_body(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x.mul_add(*c, -(y * s));
        *b = y.mul_add(*c, x * s);
    }
}
per_isa! {
    /// Rotates one head: (x, y) -> (x cos - y sin, y cos + x sin), the second product rounded first.
    pub(super) fn rope_head(head: &mut [f32], cos: &[f32], sin: &[f32]) = rope_body
}

#[inline(always)]
fn swiglu_body(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
        // The largest value of `exp` is too small for the most negative gates.
        let e = if -*g > 88.3 { f32::INFINITY } else { exp(-*g) };
        *o = *g / (1.0 + e) * *u;
    }
}
per_isa! {
    /// `out = gate / (1 + exp(-gate)) * up` for one row.
    pub(super) fn swiglu_row(gate: &[f32], up: &[f32], out: &mut [f32]) = swiglu_body
}
