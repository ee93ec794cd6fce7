//! The backward entries of the table, and the optimizer's, on a CPU: `product` (matrix products), `attention`, `rows` (everything that goes
//! row by row), `score` (the head) and `update` (AdamW). The order of every sum is fixed by the shapes alone, see [`TrainOps`].

pub(super) mod attention;
mod product;
mod rows;
mod score;
mod update;

use std::ops::Range;

use super::{CpuOps, Matrix, PARALLEL_VALUES, RowsMut, Tensor, per_item};
use crate::model::TensorView;
use crate::ops::backward::{AdamwStep, Scored, Slope, TrainOps};
use crate::ops::{Batch, Heads, NonFinite};

impl TrainOps for CpuOps {
    fn repack(&mut self, matrix: &mut Matrix, slabs: &[TensorView<'_>]) {
        matrix.repack(&mut self.pool, slabs);
    }

    fn copy(&mut self, x: &Tensor, out: &mut Tensor) {
        rows::copy(self, x, out);
    }

    fn clear(&mut self, x: &mut Tensor) {
        rows::clear(self, x);
    }

    fn scatter_rows(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) {
        rows::scatter_rows(x, rows, out);
    }

    fn linear_dx(&mut self, dy: &Tensor, w: &Matrix, dx: &mut Tensor) {
        product::linear_dx(self.isa, &mut self.pool, dy, w, dx);
    }

    fn linear_dw(&mut self, dy: &Tensor, rows: Range<usize>, columns: Range<usize>, x: &Tensor, x_row: usize, dw: &mut [f32]) {
        product::linear_dw(self.isa, &mut self.pool, dy, rows, columns, x, x_row, dw);
    }

    fn bias_backward(&mut self, dy: &Tensor, columns: Range<usize>, db: &mut [f32]) {
        rows::bias_backward(self, dy, columns, db);
    }

    fn rmsnorm_backward(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32, dy: &Tensor, dx: &mut Tensor, dweight: &mut [f32]) {
        rows::rmsnorm_backward(self, x, weight, eps, dy, dx, dweight);
    }

    fn qk_norm_backward(
        &mut self,
        raw: &Tensor,
        heads: Heads,
        q: &Vec<f32>,
        k: &Vec<f32>,
        eps: f32,
        dqkv: &mut Tensor,
        dq: &mut [f32],
        dk: &mut [f32],
    ) {
        rows::qk_norm_backward(self, raw, heads, q, k, eps, dqkv, dq, dk);
    }

    fn rope_backward(&mut self, dqkv: &mut Tensor, heads: Heads, angles: &Tensor) {
        rows::rope_backward(self, dqkv, heads, angles);
    }

    fn attention_backward(&mut self, qkv: &Tensor, heads: Heads, batch: &Batch, dout: &Tensor, dqkv: &mut Tensor) {
        attention::attention_backward(self.isa, &mut self.pool, &mut self.attention_backward, qkv, heads, batch, dout, dqkv);
    }

    fn swiglu_backward(&mut self, gate_up: &mut Tensor, dact: &mut Tensor) {
        rows::swiglu_backward(self, gate_up, dact);
    }

    fn embed_backward(&mut self, ids: &[u32], dx: &Tensor, first: usize, dtable: &mut [f32]) {
        rows::embed_backward(self, ids, dx, first, dtable);
    }

    fn score(&mut self, logits: &Tensor, targets: &[u32], temperature: f32, out: &mut Vec<Result<Scored, NonFinite>>) {
        assert!(targets.len() == logits.rows && targets.iter().all(|&t| (t as usize) < logits.cols), "score: a target for each row");
        let isa = self.isa;
        per_item(&mut self.pool, &mut self.sampling, targets.len(), out, &|r, scratch| {
            score::score(isa, logits.row(r), targets[r], temperature, scratch)
        });
    }

    fn score_backward(&mut self, logits: &mut Tensor, targets: &[u32], temperature: f32, scored: &[Scored], slopes: &[Slope]) {
        let rows = logits.rows;
        assert!(targets.len() == rows && scored.len() == rows && slopes.len() == rows, "score_backward: one of each for each row");
        let (isa, to) = (self.isa, RowsMut::of(logits));
        self.pool.run(rows, &|r, _| {
            // SAFETY: each task takes its own row.
            score::score_backward(isa, unsafe { to.row(r) }, targets[r], temperature, scored[r], slopes[r]);
        });
    }

    fn adamw(&mut self, step: &AdamwStep, values: &mut [f32], gradient: &[f32], m: &mut [f32], v: &mut [f32]) {
        update::adamw(self.isa, &mut self.pool, step, values, gradient, m, v);
    }

    fn sum_of_squares(&mut self, values: &[f32]) -> f64 {
        update::sum_of_squares(self.isa, &mut self.pool, values)
    }

    fn scale(&mut self, values: &mut [f32], factor: f32) {
        update::scale(self.isa, &mut self.pool, values, factor);
    }
}
