//! The backward entries of the table, and the optimizer's, on a CPU: `product` (matrix products), `attention`, `rows` (everything that goes
//! row by row), `score` (the head), `update` (AdamW) and `master` (what serves, out of what is trained). The order of every sum is fixed by the shapes alone, see [`TrainOps`].

pub(super) mod attention;
mod master;
mod product;
mod rows;
mod score;
mod update;

use std::ops::Range;

use super::{CpuOps, Matrix, PARALLEL_VALUES, RowsMut, Tensor, per_item};
use crate::model::{Dtype, TensorView};
use crate::ops::backward::{AdamwStep, Adapter, Scored, Slab, Slope, TrainOps};
use crate::ops::{Batch, Heads, NonFinite};

impl TrainOps for CpuOps {
    type Flat = Vec<f32>;

    fn flat(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn zeros(&self, len: usize) -> Vec<f32> {
        vec![0.0; len]
    }

    fn read_flat(&self, values: &Vec<f32>) -> Vec<f32> {
        values.clone()
    }

    fn write_flat(&mut self, values: &mut Vec<f32>, from: &[f32]) {
        values.copy_from_slice(from);
    }

    fn clear_flat(&mut self, values: &mut Vec<f32>) {
        update::clear(&mut self.pool, values);
    }

    fn add_flat(&mut self, to: &mut Vec<f32>, from: &Vec<f32>) {
        update::add(self.isa, &mut self.pool, to, from);
    }

    fn round_matrix(&mut self, slabs: &[Slab<'_, Vec<f32>>], dtype: Dtype, matrix: &mut Matrix) {
        master::round_matrix(self.isa, &mut self.pool, slabs, dtype, matrix);
    }

    fn round_vector(&mut self, parts: &[&Vec<f32>], dtype: Dtype, vector: &mut Vec<f32>) {
        master::round_vector(parts, dtype, vector);
    }

    fn rounded(&mut self, slab: Slab<'_, Vec<f32>>, inputs: usize, dtype: Dtype) -> Vec<u8> {
        master::rounded(self.isa, &mut self.pool, slab, inputs, dtype)
    }

    fn adapter_backward(&mut self, adapter: Adapter<'_, Vec<f32>>, inputs: usize, dw: &Vec<f32>, da: &mut Vec<f32>, db: &mut Vec<f32>) {
        master::adapter_backward(self.isa, &mut self.pool, adapter, inputs, dw, da, db);
    }

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

    fn linear_dw(&mut self, dy: &Tensor, rows: Range<usize>, columns: Range<usize>, x: &Tensor, x_row: usize, dw: &mut Vec<f32>) {
        product::linear_dw(self.isa, &mut self.pool, dy, rows, columns, x, x_row, dw);
    }

    fn bias_backward(&mut self, dy: &Tensor, columns: Range<usize>, db: &mut Vec<f32>) {
        rows::bias_backward(self, dy, columns, db);
    }

    fn rmsnorm_backward(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32, dy: &Tensor, dx: &mut Tensor, dweight: &mut Vec<f32>) {
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
        dq: &mut Vec<f32>,
        dk: &mut Vec<f32>,
    ) {
        rows::qk_norm_backward(self, raw, heads, q, k, eps, dqkv, dq, dk);
    }

    fn rope_backward(&mut self, dqkv: &mut Tensor, heads: Heads, angles: &Tensor) {
        rows::rope_backward(self, dqkv, heads, angles);
    }

    fn attention_backward(&mut self, qkv: &Tensor, heads: Heads, batch: &Batch, _: &Tensor, dout: &Tensor, dqkv: &mut Tensor) {
        attention::attention_backward(self.isa, &mut self.pool, &mut self.attention_backward, qkv, heads, batch, dout, dqkv);
    }

    fn swiglu_backward(&mut self, gate_up: &mut Tensor, dact: &mut Tensor) {
        rows::swiglu_backward(self, gate_up, dact);
    }

    fn embed_backward(&mut self, ids: &[u32], dx: &Tensor, first: usize, dtable: &mut Vec<f32>) {
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

    fn adamw(&mut self, step: &AdamwStep, values: &mut Vec<f32>, gradient: &Vec<f32>, m: &mut Vec<f32>, v: &mut Vec<f32>) {
        update::adamw(self.isa, &mut self.pool, step, values, gradient, m, v);
    }

    fn sums_of_squares(&mut self, values: &[&Vec<f32>]) -> Vec<f64> {
        values.iter().map(|values| update::sum_of_squares(self.isa, &mut self.pool, values)).collect()
    }

    fn scale(&mut self, values: &mut Vec<f32>, factor: f32) {
        update::scale(self.isa, &mut self.pool, values, factor);
    }
}
