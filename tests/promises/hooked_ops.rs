//! The CPU operations, and a say in when a step runs and whether it does.

use adaroll::model::TensorView;
use adaroll::ops::cpu::{CpuOps, KvCache, Matrix, Tensor};
use adaroll::ops::{Batch, Draw, Drawn, Heads, NonFinite, Ops};

/// Calls the second with the tokens of each step before the step computes anything.
pub struct Hooked<H>(pub CpuOps, pub H);

impl<H: FnMut(&[u32]) + Send> Ops for Hooked<H> {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type KvCache = KvCache;

    fn numerics_id(&self) -> String {
        self.0.numerics_id()
    }
    fn tensor(&self, rows: usize, cols: usize) -> Tensor {
        self.0.tensor(rows, cols)
    }
    fn set_rows(&self, tensor: &mut Tensor, rows: usize) {
        self.0.set_rows(tensor, rows);
    }
    fn matrix(&self, slabs: &[TensorView<'_>]) -> Matrix {
        self.0.matrix(slabs)
    }
    fn vector(&self, parts: &[TensorView<'_>]) -> Vec<f32> {
        self.0.vector(parts)
    }
    fn kv_block_bytes(&self, layers: usize, heads: Heads) -> usize {
        self.0.kv_block_bytes(layers, heads)
    }
    fn kv_cache(&self, layers: usize, blocks: usize, heads: Heads) -> KvCache {
        self.0.kv_cache(layers, blocks, heads)
    }
    fn embed(&mut self, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        (self.1)(ids);
        self.0.embed(table, ids, out);
    }
    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        self.0.linear(x, w, out);
    }
    fn rmsnorm(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32, out: &mut Tensor) {
        self.0.rmsnorm(x, weight, eps, out);
    }
    fn add_rmsnorm(&mut self, residual: &mut Tensor, delta: &Tensor, weight: &Vec<f32>, eps: f32, out: &mut Tensor) {
        self.0.add_rmsnorm(residual, delta, weight, eps, out);
    }
    fn add(&mut self, x: &mut Tensor, delta: &Tensor) {
        self.0.add(x, delta);
    }
    fn add_bias(&mut self, x: &mut Tensor, bias: &Vec<f32>) {
        self.0.add_bias(x, bias);
    }
    fn qk_norm(&mut self, qkv: &mut Tensor, heads: Heads, q: &Vec<f32>, k: &Vec<f32>, eps: f32) {
        self.0.qk_norm(qkv, heads, q, k, eps);
    }
    fn rope_angles(&mut self, positions: &[u32], frequencies: &[f32], angles: &mut Tensor) {
        self.0.rope_angles(positions, frequencies, angles);
    }
    fn rope(&mut self, qkv: &mut Tensor, heads: Heads, angles: &Tensor) {
        self.0.rope(qkv, heads, angles);
    }
    fn kv_write(&mut self, qkv: &Tensor, heads: Heads, layer: usize, slots: &[u32], cache: &mut KvCache) {
        self.0.kv_write(qkv, heads, layer, slots, cache);
    }
    fn attention(&mut self, qkv: &Tensor, heads: Heads, layer: usize, batch: &Batch, cache: &KvCache, out: &mut Tensor) {
        self.0.attention(qkv, heads, layer, batch, cache, out);
    }
    fn swiglu(&mut self, gate_up: &Tensor, out: &mut Tensor) {
        self.0.swiglu(gate_up, out);
    }
    fn gather_rows(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) {
        self.0.gather_rows(x, rows, out);
    }
    fn copy_blocks(&mut self, cache: &mut KvCache, pairs: &[(u32, u32)]) {
        self.0.copy_blocks(cache, pairs);
    }
    fn sample(&mut self, logits: &Tensor, draws: &[Draw<'_>], out: &mut Vec<Result<Drawn, NonFinite>>) {
        self.0.sample(logits, draws, out);
    }
    fn logprobs_of(&mut self, logits: &Tensor, rows: &[(usize, u32)], temperature: f32, out: &mut Vec<Result<Drawn, NonFinite>>) {
        self.0.logprobs_of(logits, rows, temperature, out);
    }
    fn read_row(&self, x: &Tensor, row: usize) -> Vec<f32> {
        self.0.read_row(x, row)
    }
}
