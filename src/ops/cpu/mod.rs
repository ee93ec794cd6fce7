//! The table of operations on a CPU: f32 arithmetic on bf16 or f32 weights.
//!
//! Everything reduces in an order that the row alone fixes: products are one FMA chain per element, other sums are 16 lanes and a
//! tree, transcendental functions are the project's own. Scalar, AVX2 and AVX-512 instances give the same bits, with any number of threads.

mod attention;
mod backward;
mod elementwise;
mod gemm;
mod isa;
mod kv;
mod lanes;
pub mod limits;
pub mod math;
mod matrix;
pub mod pool;
mod sample;
mod tensor;

pub use isa::Isa;
pub use kv::KvCache;
pub use matrix::Matrix;
pub use tensor::Tensor;

use super::{BLOCK_TOKENS, Batch, Draw, Drawn, Heads, NonFinite, Ops};
use crate::model::TensorView;
use pool::Pool;
use tensor::Shared;

/// Raised whenever a change of the kernels changes bits.
const KERNEL_REVISION: u32 = 2;

/// Below this many values an operation on rows is not worth waking a thread for.
const PARALLEL_VALUES: usize = 16 * 1024;

/// The CPU backend.
pub struct CpuOps {
    isa: Isa,
    pool: Pool,
    attention: Vec<attention::Scratch>,
    attention_backward: Vec<backward::attention::Scratch>,
    sampling: Vec<sample::Scratch>,
}

impl CpuOps {
    /// A backend with `threads` threads (the caller's included) and the best instruction set of this machine.
    pub fn new(threads: usize) -> std::io::Result<CpuOps> {
        CpuOps::with_isa(threads, Isa::detect())
    }

    /// The same with a given instruction set, one of [`Isa::available`].
    pub fn with_isa(threads: usize, isa: Isa) -> std::io::Result<CpuOps> {
        assert!(Isa::available().contains(&isa), "{isa} is not available on this machine");
        let pool = Pool::new(threads)?;
        let n = pool.threads();
        Ok(CpuOps { isa, attention: one_each(n), attention_backward: one_each(n), sampling: one_each(n), pool })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `row(r)` for all rows, on several threads if there is enough to do.
    fn rows(&mut self, rows: usize, cols: usize, row: &(dyn Fn(usize) + Sync)) {
        if rows * cols < PARALLEL_VALUES {
            (0..rows).for_each(row);
            return;
        }
        let per_task = rows.div_ceil(4 * self.pool.threads());
        self.pool.run(rows.div_ceil(per_task), &|task, _| {
            for r in task * per_task..((task + 1) * per_task).min(rows) {
                row(r);
            }
        });
    }
}

/// Working memory of `n` threads.
fn one_each<T: Default>(n: usize) -> Vec<T> {
    (0..n).map(|_| T::default()).collect()
}

/// Mutable rows of a tensor for tasks that each take their own.
struct RowsMut {
    data: Shared<f32>,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl RowsMut {
    fn of(t: &mut Tensor) -> RowsMut {
        RowsMut { data: Shared(t.data.as_mut_ptr()), rows: t.rows, cols: t.cols, stride: t.stride }
    }

    /// # Safety
    /// No two live slices of one row; the tensor outlives the slice.
    #[expect(clippy::mut_from_ref)]
    unsafe fn row(&self, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        // SAFETY: row r lies within the tensor; the caller keeps rows apart.
        unsafe { std::slice::from_raw_parts_mut(self.data.get().add(r * self.stride), self.cols) }
    }
}

impl Ops for CpuOps {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type KvCache = KvCache;

    fn numerics_id(&self) -> String {
        // The instruction set is left out: it does not change a bit.
        format!("cpu-f32-r{KERNEL_REVISION}")
    }

    fn tensor(&self, rows: usize, cols: usize) -> Tensor {
        Tensor::new(rows, cols)
    }

    fn set_rows(&self, tensor: &mut Tensor, rows: usize) {
        tensor.set_rows(rows);
    }

    fn matrix(&self, slabs: &[TensorView<'_>]) -> Matrix {
        Matrix::pack(slabs)
    }

    fn vector(&self, parts: &[TensorView<'_>]) -> Vec<f32> {
        parts.iter().flat_map(|p| p.to_f32()).collect()
    }

    fn kv_block_bytes(&self, layers: usize, heads: Heads) -> usize {
        KvCache::block_bytes(layers, heads)
    }

    fn kv_cache(&self, layers: usize, blocks: usize, heads: Heads) -> KvCache {
        KvCache::new(layers, blocks, heads)
    }

    fn embed(&mut self, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        assert!(out.rows == ids.len() && out.cols == table.inputs);
        let to = RowsMut::of(out);
        // SAFETY: each task takes its own row.
        self.rows(ids.len(), table.inputs, &|r| unsafe { table.copy_row(ids[r] as usize, to.row(r)) });
    }

    fn rmsnorm(&mut self, x: &Tensor, weight: &Vec<f32>, eps: f32, out: &mut Tensor) {
        assert!(x.cols == weight.len() && out.cols == x.cols && out.rows == x.rows);
        let (isa, to) = (self.isa, RowsMut::of(out));
        // SAFETY: each task takes its own row.
        self.rows(x.rows, x.cols, &|r| unsafe { elementwise::rmsnorm_row(isa, x.row(r), weight, eps, to.row(r)) });
    }

    fn add_rmsnorm(&mut self, residual: &mut Tensor, delta: &Tensor, weight: &Vec<f32>, eps: f32, out: &mut Tensor) {
        assert!(residual.cols == weight.len() && delta.cols == residual.cols && out.cols == residual.cols);
        assert!(delta.rows == residual.rows && out.rows == residual.rows);
        let (isa, n, cols) = (self.isa, residual.rows, residual.cols);
        let (x, to) = (RowsMut::of(residual), RowsMut::of(out));
        self.rows(n, cols, &|r| {
            // SAFETY: each task takes its own row of both.
            let (x, to) = unsafe { (x.row(r), to.row(r)) };
            elementwise::add_row(isa, x, delta.row(r));
            elementwise::rmsnorm_row(isa, x, weight, eps, to);
        });
    }

    fn add(&mut self, x: &mut Tensor, delta: &Tensor) {
        assert!(delta.cols == x.cols && delta.rows == x.rows);
        let (isa, n, cols, x) = (self.isa, x.rows, x.cols, RowsMut::of(x));
        // SAFETY: each task takes its own row.
        self.rows(n, cols, &|r| unsafe { elementwise::add_row(isa, x.row(r), delta.row(r)) });
    }

    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        gemm::linear(self.isa, &mut self.pool, x, w, out);
    }

    fn add_bias(&mut self, x: &mut Tensor, bias: &Vec<f32>) {
        assert!(x.cols == bias.len());
        let (isa, n, cols, x) = (self.isa, x.rows, x.cols, RowsMut::of(x));
        // SAFETY: each task takes its own row.
        self.rows(n, cols, &|r| unsafe { elementwise::add_row(isa, x.row(r), bias) });
    }

    fn qk_norm(&mut self, qkv: &mut Tensor, heads: Heads, q: &Vec<f32>, k: &Vec<f32>, eps: f32) {
        assert!(qkv.cols == heads.qkv_cols() && q.len() == heads.dim && k.len() == heads.dim);
        let (isa, n, cols, x) = (self.isa, qkv.rows, qkv.cols, RowsMut::of(qkv));
        self.rows(n, cols, &|r| {
            // SAFETY: each task takes its own row.
            let row = unsafe { x.row(r) };
            for (h, head) in row.chunks_exact_mut(heads.dim).take(heads.query + heads.kv).enumerate() {
                elementwise::rmsnorm_in_place(isa, head, if h < heads.query { q } else { k }, eps);
            }
        });
    }

    fn rope_angles(&mut self, positions: &[u32], frequencies: &[f32], angles: &mut Tensor) {
        let half = frequencies.len();
        assert!(angles.cols == 2 * half && angles.rows == positions.len());
        let to = RowsMut::of(angles);
        // One sine costs about as much as a hundred additions.
        self.rows(positions.len(), 100 * half, &|r| {
            // SAFETY: each task takes its own row.
            let (cos, sin) = unsafe { to.row(r) }.split_at_mut(half);
            for (i, f) in frequencies.iter().enumerate() {
                let (s, c) = libm::sincos(f64::from(positions[r] as f32 * f));
                cos[i] = c as f32;
                sin[i] = s as f32;
            }
        });
    }

    fn rope(&mut self, qkv: &mut Tensor, heads: Heads, angles: &Tensor) {
        assert!(qkv.cols == heads.qkv_cols() && angles.cols == heads.dim && angles.rows == qkv.rows);
        let (isa, n, cols, x) = (self.isa, qkv.rows, qkv.cols, RowsMut::of(qkv));
        self.rows(n, cols, &|r| {
            let (cos, sin) = angles.row(r).split_at(heads.dim / 2);
            // SAFETY: each task takes its own row.
            let row = unsafe { x.row(r) };
            for head in row.chunks_exact_mut(heads.dim).take(heads.query + heads.kv) {
                elementwise::rope_head(isa, head, cos, sin);
            }
        });
    }

    fn kv_write(&mut self, qkv: &Tensor, heads: Heads, layer: usize, slots: &[u32], cache: &mut KvCache) {
        assert!(qkv.rows == slots.len() && qkv.cols == heads.qkv_cols() && heads == cache.heads);
        cache.write(qkv, layer, slots);
    }

    fn attention(&mut self, qkv: &Tensor, heads: Heads, layer: usize, batch: &Batch, cache: &KvCache, out: &mut Tensor) {
        attention::attention(self.isa, &mut self.pool, &mut self.attention, qkv, heads, layer, batch, cache, out);
    }

    fn swiglu(&mut self, gate_up: &Tensor, out: &mut Tensor) {
        assert!(gate_up.cols == 2 * out.cols && gate_up.rows == out.rows);
        let (isa, n, cols, to) = (self.isa, out.rows, out.cols, RowsMut::of(out));
        self.rows(n, cols, &|r| {
            let (gate, up) = gate_up.row(r).split_at(cols);
            // SAFETY: each task takes its own row.
            elementwise::swiglu_row(isa, gate, up, unsafe { to.row(r) });
        });
    }

    fn gather_rows(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) {
        assert!(out.rows == rows.len() && out.cols == x.cols);
        for (i, &r) in rows.iter().enumerate() {
            out.row_mut(i).copy_from_slice(x.row(r as usize));
        }
    }

    fn copy_blocks(&mut self, cache: &mut KvCache, pairs: &[(u32, u32)]) {
        for &(from, to) in pairs {
            cache.copy(from, to);
        }
    }

    fn sample(&mut self, logits: &Tensor, draws: &[Draw<'_>], out: &mut Vec<Result<Drawn, NonFinite>>) {
        let isa = self.isa;
        per_item(&mut self.pool, &mut self.sampling, draws.len(), out, &|i, scratch| {
            sample::draw(isa, logits.row(draws[i].row), &draws[i], scratch)
        });
    }

    fn logprobs_of(&mut self, logits: &Tensor, rows: &[(usize, u32)], temperature: f32, out: &mut Vec<Result<Drawn, NonFinite>>) {
        let isa = self.isa;
        per_item(&mut self.pool, &mut self.sampling, rows.len(), out, &|i, scratch| {
            let (row, token) = rows[i];
            sample::logprob_of(isa, logits.row(row), token, temperature, scratch)
        });
    }

    fn read_row(&self, x: &Tensor, row: usize) -> Vec<f32> {
        x.row(row).to_vec()
    }
}

/// Fills `out` with `item(i)` for every `i`, one scratch a thread.
fn per_item<T: Copy>(
    pool: &mut Pool,
    scratch: &mut [sample::Scratch],
    n: usize,
    out: &mut Vec<Result<T, NonFinite>>,
    item: &(dyn Fn(usize, &mut sample::Scratch) -> Result<T, NonFinite> + Sync),
) {
    out.clear();
    out.resize(n, Err(NonFinite));
    let (results, scratch) = (Shared(out.as_mut_ptr()), Shared(scratch.as_mut_ptr()));
    // SAFETY: each item writes its own result; there is one scratch per worker.
    pool.run(n, &|i, worker| unsafe { *results.get().add(i) = item(i, &mut *scratch.get().add(worker)) });
}

const _: () = assert!(BLOCK_TOKENS == 16, "the CPU kernels hold one block of keys in one vector");
