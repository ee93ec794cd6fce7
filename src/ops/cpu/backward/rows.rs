//! Backward of the operations on rows: norms, rotation, activation, embedding. Gradients of activations go row by row; gradients of weights go
//! column by column, each column walking all rows in ascending order.

use std::ops::Range;

use crate::ops::Heads;
use crate::ops::cpu::elementwise::sum_of_squares;
use crate::ops::cpu::isa::per_isa;
use crate::ops::cpu::math::{exp, tree_sum};
use crate::ops::cpu::tensor::{Shared, Tensor};
use crate::ops::cpu::{CpuOps, RowsMut};

/// Columns of a gradient that one task walks down.
const COLUMNS: usize = 64;

#[inline(always)]
fn norm_scale(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt()
}

/// Sum of `dy * weight * x` in lanes, times `s^2 / n`: what is taken from each direction of x.
#[inline(always)]
fn norm_mean(x: &[f32], weight: &[f32], dy: &[f32], scale: f32) -> f32 {
    let mut lanes = [0f32; 16];
    for ((x, w), dy) in x.chunks(16).zip(weight.chunks(16)).zip(dy.chunks(16)) {
        for (((lane, x), w), dy) in lanes.iter_mut().zip(x).zip(w).zip(dy) {
            *lane = (dy * w).mul_add(*x, *lane);
        }
    }
    tree_sum(lanes) * scale * scale / x.len() as f32
}

#[inline(always)]
fn rmsnorm_backward_body(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) -> f32 {
    let scale = norm_scale(x, eps);
    let mean = norm_mean(x, weight, dy, scale);
    for (((dx, x), w), dy) in dx.iter_mut().zip(x).zip(weight).zip(dy) {
        *dx += scale * x.mul_add(-mean, dy * w);
    }
    scale
}
per_isa! {
    /// Adds the gradient of one row; returns its `1 / sqrt(mean(x^2) + eps)`.
    fn rmsnorm_backward_row(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) -> f32 = rmsnorm_backward_body
}

#[inline(always)]
fn head_norm_backward_body(x: &[f32], weight: &[f32], eps: f32, dy: &mut [f32]) -> f32 {
    let scale = norm_scale(x, eps);
    let mean = norm_mean(x, weight, dy, scale);
    for ((dy, x), w) in dy.iter_mut().zip(x).zip(weight) {
        *dy = scale * x.mul_add(-mean, *dy * w);
    }
    scale
}
per_isa! {
    /// Replaces the gradient of a normed head by that of the head.
    fn head_norm_backward(x: &[f32], weight: &[f32], eps: f32, dy: &mut [f32]) -> f32 = head_norm_backward_body
}

#[inline(always)]
fn weight_grad_body(dy: &[f32], x: &[f32], scale: f32, dw: &mut [f32]) {
    for ((dw, dy), x) in dw.iter_mut().zip(dy).zip(x) {
        *dw = dy.mul_add(x * scale, *dw);
    }
}
per_isa! {
    /// `dw += dy * (x * scale)`.
    fn weight_grad(dy: &[f32], x: &[f32], scale: f32, dw: &mut [f32]) = weight_grad_body
}

#[inline(always)]
fn add_body(x: &mut [f32], delta: &[f32]) {
    for (v, d) in x.iter_mut().zip(delta) {
        *v += d;
    }
}
per_isa! {
    fn add_row(x: &mut [f32], delta: &[f32]) = add_body
}

#[inline(always)]
fn rope_backward_body(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), c), s) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x.mul_add(*c, y * s);
        *b = y.mul_add(*c, -(x * s));
    }
}
per_isa! {
    /// Rotates one head back.
    fn rope_backward_head(head: &mut [f32], cos: &[f32], sin: &[f32]) = rope_backward_body
}

#[inline(always)]
fn swiglu_backward_body(gate: &mut [f32], up: &mut [f32], dact: &mut [f32]) {
    for ((g, u), d) in gate.iter_mut().zip(up).zip(dact) {
        let e = if -*g > 88.3 { f32::INFINITY } else { exp(-*g) };
        let (gate, up, dy) = (*g, *u, *d);
        let silu = gate / (1.0 + e);
        let sigmoid = 1.0 / (1.0 + e);
        *d = silu * up;
        *u = dy * silu;
        // d silu = sigmoid (1 + gate (1 - sigmoid)) = sigmoid + silu (1 - sigmoid)
        *g = dy * up * silu.mul_add(1.0 - sigmoid, sigmoid);
    }
}
per_isa! {
    /// Gate and up become their gradients, the gradient of the output becomes the output.
    fn swiglu_backward_row(gate: &mut [f32], up: &mut [f32], dact: &mut [f32]) = swiglu_backward_body
}

/// Walks `count` rows down each of the columns, some columns a task.
fn down_columns(ops: &mut CpuOps, columns: usize, rows: usize, walk: &(dyn Fn(Range<usize>) + Sync)) {
    let tasks = columns.div_ceil(COLUMNS);
    if columns * rows < super::PARALLEL_VALUES {
        return walk(0..columns);
    }
    ops.pool.run(tasks, &|task, _| walk(task * COLUMNS..((task + 1) * COLUMNS).min(columns)));
}

pub(super) fn rmsnorm_backward(ops: &mut CpuOps, x: &Tensor, weight: &[f32], eps: f32, dy: &Tensor, dx: &mut Tensor, dweight: &mut [f32]) {
    assert!(weight.len() == x.cols && dy.cols == x.cols && dx.cols == x.cols && dweight.len() == x.cols, "rmsnorm: shapes do not fit");
    assert!(dy.rows == x.rows && dx.rows == x.rows);
    let (isa, rows, cols) = (ops.isa, x.rows, x.cols);
    let mut scales = vec![0f32; rows];
    let (to, kept) = (RowsMut::of(dx), Shared(scales.as_mut_ptr()));
    // SAFETY: each task takes its own row and its own scale.
    ops.rows(rows, cols, &|r| unsafe { *kept.get().add(r) = rmsnorm_backward_row(isa, x.row(r), weight, eps, dy.row(r), to.row(r)) });
    let to = Shared(dweight.as_mut_ptr());
    down_columns(ops, cols, rows, &|c| {
        // SAFETY: each task has its own columns.
        let dw = unsafe { std::slice::from_raw_parts_mut(to.get().add(c.start), c.len()) };
        for (r, scale) in scales.iter().enumerate() {
            weight_grad(isa, &dy.row(r)[c.clone()], &x.row(r)[c.clone()], *scale, dw);
        }
    });
}

pub(super) fn qk_norm_backward(
    ops: &mut CpuOps,
    raw: &Tensor,
    heads: Heads,
    q: &[f32],
    k: &[f32],
    eps: f32,
    dqkv: &mut Tensor,
    dq: &mut [f32],
    dk: &mut [f32],
) {
    let dim = heads.dim;
    assert!(raw.cols == heads.qkv_cols() && dqkv.cols == raw.cols && dqkv.rows == raw.rows, "qk_norm: shapes do not fit");
    assert!([q.len(), k.len(), dq.len(), dk.len()] == [dim; 4]);
    let (isa, normed) = (ops.isa, heads.query + heads.kv);
    // The weights' gradients need the incoming gradient, the others replace it. One walk: it is small beside the products around it.
    let mut row = vec![0f32; normed * dim];
    for r in 0..raw.rows {
        let dy = &mut dqkv.row_mut(r)[..normed * dim];
        row.copy_from_slice(dy);
        for (h, (dy, x)) in dy.chunks_exact_mut(dim).zip(raw.row(r).chunks_exact(dim)).enumerate() {
            let (weight, dw) = if h < heads.query { (q, &mut *dq) } else { (k, &mut *dk) };
            let scale = head_norm_backward(isa, x, weight, eps, dy);
            weight_grad(isa, &row[h * dim..][..dim], x, scale, dw);
        }
    }
}

pub(super) fn bias_backward(ops: &mut CpuOps, dy: &Tensor, columns: Range<usize>, db: &mut [f32]) {
    assert!(columns.end <= dy.cols && db.len() == columns.len(), "bias: shapes do not fit");
    let (isa, rows, to) = (ops.isa, dy.rows, Shared(db.as_mut_ptr()));
    down_columns(ops, columns.len(), rows, &|c| {
        // SAFETY: each task has its own columns.
        let db = unsafe { std::slice::from_raw_parts_mut(to.get().add(c.start), c.len()) };
        for r in 0..rows {
            add_row(isa, db, &dy.row(r)[columns.start + c.start..][..c.len()]);
        }
    });
}

pub(super) fn rope_backward(ops: &mut CpuOps, dqkv: &mut Tensor, heads: Heads, angles: &Tensor) {
    assert!(dqkv.cols == heads.qkv_cols() && angles.cols == heads.dim && angles.rows == dqkv.rows, "rope: shapes do not fit");
    let (isa, n, cols, x) = (ops.isa, dqkv.rows, dqkv.cols, RowsMut::of(dqkv));
    ops.rows(n, cols, &|r| {
        let (cos, sin) = angles.row(r).split_at(heads.dim / 2);
        // SAFETY: each task takes its own row.
        let row = unsafe { x.row(r) };
        for head in row.chunks_exact_mut(heads.dim).take(heads.query + heads.kv) {
            rope_backward_head(isa, head, cos, sin);
        }
    });
}

pub(super) fn swiglu_backward(ops: &mut CpuOps, gate_up: &mut Tensor, dact: &mut Tensor) {
    assert!(gate_up.cols == 2 * dact.cols && gate_up.rows == dact.rows, "swiglu: shapes do not fit");
    let (isa, n, cols) = (ops.isa, dact.rows, dact.cols);
    let (x, d) = (RowsMut::of(gate_up), RowsMut::of(dact));
    ops.rows(n, 4 * cols, &|r| {
        // SAFETY: each task takes its own row of both.
        let (row, d) = unsafe { (x.row(r), d.row(r)) };
        let (gate, up) = row.split_at_mut(cols);
        swiglu_backward_row(isa, gate, up, d);
    });
}

pub(super) fn embed_backward(ops: &mut CpuOps, ids: &[u32], dx: &Tensor, first: usize, dtable: &mut [f32]) {
    let cols = dx.cols;
    assert!(first + ids.len() <= dx.rows, "embed: shapes do not fit");
    assert!(ids.iter().all(|&id| (id as usize + 1) * cols <= dtable.len()), "embed: an id is outside the table");
    let (isa, to) = (ops.isa, Shared(dtable.as_mut_ptr()));
    down_columns(ops, cols, ids.len(), &|c| {
        for (i, &id) in ids.iter().enumerate() {
            // SAFETY: the id is within the table; each task has its own columns.
            let row = unsafe { std::slice::from_raw_parts_mut(to.get().add(id as usize * cols + c.start), c.len()) };
            add_row(isa, row, &dx.row(first + i)[c.clone()]);
        }
    });
}

/// The instruction set does not matter to a copy.
pub(super) fn copy(ops: &mut CpuOps, x: &Tensor, out: &mut Tensor) {
    assert!(out.cols == x.cols && out.rows == x.rows, "copy: shapes do not fit");
    let to = RowsMut::of(out);
    // SAFETY: each task takes its own row.
    ops.rows(x.rows, x.cols, &|r| unsafe { to.row(r).copy_from_slice(x.row(r)) });
}

pub(super) fn clear(ops: &mut CpuOps, x: &mut Tensor) {
    let (rows, cols, to) = (x.rows, x.cols, RowsMut::of(x));
    // SAFETY: each task takes its own row.
    ops.rows(rows, cols, &|r| unsafe { to.row(r).fill(0.0) });
}

pub(super) fn scatter_rows(x: &Tensor, rows: &[u32], out: &mut Tensor) {
    assert!(x.rows == rows.len() && out.cols == x.cols, "scatter: shapes do not fit");
    for (i, &r) in rows.iter().enumerate() {
        out.row_mut(r as usize).copy_from_slice(x.row(i));
    }
}
