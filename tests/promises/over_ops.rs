//! The CPU operations, and hooks where a test wants something else: a twin, a device that is late or fails, a say in when a step runs.

use adaroll::model::TensorView;
use adaroll::ops::cpu::{CpuOps, KvCache, Matrix, Tensor};
use adaroll::ops::{Ask, Batch, Draw, Drawn, Heads, Late, NonFinite, Ops};

pub type Answers = Vec<Result<Drawn, NonFinite>>;

/// What a backend does differently. Each call has the CPU operations at hand and does what they do, unless it is overwritten.
pub trait Hooks: Send {
    fn failure(&self) -> Option<String> {
        None
    }
    fn free_memory(&self) -> Option<u64> {
        None
    }
    fn tensor(&self, cpu: &CpuOps, rows: usize, cols: usize) -> Tensor {
        cpu.tensor(rows, cols)
    }
    fn matrix(&self, cpu: &CpuOps, slabs: &[TensorView<'_>]) -> Matrix {
        cpu.matrix(slabs)
    }
    fn kv_cache(&self, cpu: &CpuOps, layers: usize, blocks: usize, heads: Heads) -> KvCache {
        cpu.kv_cache(layers, blocks, heads)
    }
    fn embed(&mut self, cpu: &mut CpuOps, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        cpu.embed(table, ids, out);
    }
    fn linear(&mut self, cpu: &mut CpuOps, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        cpu.linear(x, w, out);
    }
    fn sample(&mut self, cpu: &mut CpuOps, logits: &Tensor, draws: &[Draw<'_>], out: &mut Answers) {
        cpu.sample(logits, draws, out);
    }
    fn logprobs_of(&mut self, cpu: &mut CpuOps, logits: &Tensor, rows: &[(usize, u32)], temperature: f32, out: &mut Answers) {
        cpu.logprobs_of(logits, rows, temperature, out);
    }
    /// Called when weights are put in the place of others.
    fn adopts(&mut self) {}
    fn settle(&mut self) {}
    /// Whether [`Ops::late`] gives what follows.
    fn is_late(&self) -> bool {
        false
    }
    fn start(&mut self, _cpu: &mut CpuOps, _logits: &Tensor, _asks: &[Ask<'_>]) {
        unreachable!("it is not late")
    }
    fn finish(&mut self, _out: &mut Answers) {
        unreachable!("it is not late")
    }
}

pub struct Over<H>(pub CpuOps, pub H);

impl<H: Hooks> Late<Tensor> for Over<H> {
    fn start(&mut self, logits: &Tensor, asks: &[Ask<'_>]) {
        self.1.start(&mut self.0, logits, asks);
    }
    fn finish(&mut self, out: &mut Answers) {
        self.1.finish(out);
    }
}

impl<H: Hooks> Ops for Over<H> {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type KvCache = KvCache;

    fn numerics_id(&self) -> String {
        self.0.numerics_id()
    }
    fn failure(&self) -> Option<String> {
        self.1.failure()
    }
    fn free_memory(&self) -> Option<u64> {
        self.1.free_memory()
    }
    fn tensor(&self, rows: usize, cols: usize) -> Tensor {
        self.1.tensor(&self.0, rows, cols)
    }
    fn set_rows(&self, tensor: &mut Tensor, rows: usize) {
        self.0.set_rows(tensor, rows);
    }
    fn matrix(&self, slabs: &[TensorView<'_>]) -> Matrix {
        self.1.matrix(&self.0, slabs)
    }
    fn vector(&self, parts: &[TensorView<'_>]) -> Vec<f32> {
        self.0.vector(parts)
    }
    fn adopt_matrix(&mut self, live: &mut Matrix, staged: &mut Matrix) {
        self.1.adopts();
        self.0.adopt_matrix(live, staged);
    }
    fn adopt_vector(&mut self, live: &mut Vec<f32>, staged: &mut Vec<f32>) {
        self.1.adopts();
        self.0.adopt_vector(live, staged);
    }
    fn settle(&mut self) {
        self.1.settle();
    }
    fn kv_block_bytes(&self, layers: usize, heads: Heads) -> usize {
        self.0.kv_block_bytes(layers, heads)
    }
    fn kv_cache(&self, layers: usize, blocks: usize, heads: Heads) -> KvCache {
        self.1.kv_cache(&self.0, layers, blocks, heads)
    }
    fn late(&mut self) -> Option<&mut dyn Late<Tensor>> {
        if self.1.is_late() { Some(self) } else { None }
    }
    fn embed(&mut self, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        self.1.embed(&mut self.0, table, ids, out);
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
    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        self.1.linear(&mut self.0, x, w, out);
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
    fn sample(&mut self, logits: &Tensor, draws: &[Draw<'_>], out: &mut Answers) {
        self.1.sample(&mut self.0, logits, draws, out);
    }
    fn logprobs_of(&mut self, logits: &Tensor, rows: &[(usize, u32)], temperature: f32, out: &mut Answers) {
        self.1.logprobs_of(&mut self.0, logits, rows, temperature, out);
    }
    fn read_row(&self, x: &Tensor, row: usize) -> Vec<f32> {
        self.0.read_row(x, row)
    }
}
