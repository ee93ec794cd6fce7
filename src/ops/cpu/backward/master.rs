//! Serving weights out of master parameters: adapters merged, every number rounded once, and packed. And the adapters' gradients.
//!
//! Rows of a weight are independent but for `da`, whose chains run over ascending rows: there a task takes a range of columns.

use half::bf16;

use crate::model::{Dtype, TensorView};
use crate::ops::backward::{Adapter, Slab};
use crate::ops::cpu::isa::{Isa, per_isa};
use crate::ops::cpu::matrix::Matrix;
use crate::ops::cpu::pool::Pool;
use crate::ops::cpu::tensor::Shared;

/// Numbers that a task rounds.
const PIECE: usize = 1 << 14;
/// Columns of `da` that a task takes.
const COLUMNS: usize = 64;

#[inline(always)]
fn merge_body(base: &[f32], a: &[f32], b: &[f32], scale: f32, to: &mut [f32]) {
    to.fill(0.0);
    for (weight, a) in b.iter().zip(a.chunks_exact(base.len())) {
        to.iter_mut().zip(a).for_each(|(s, a)| *s += weight * a);
    }
    to.iter_mut().zip(base).for_each(|(to, base)| *to = base + scale * *to);
}
per_isa! {
    /// One row of `base + scale B A`; `b` is the row of B.
    fn merge(base: &[f32], a: &[f32], b: &[f32], scale: f32, to: &mut [f32]) = merge_body
}

/// The parameters that a slab stands for, in f32.
fn merged<'a>(isa: Isa, pool: &mut Pool, slab: Slab<'a, Vec<f32>>, inputs: usize) -> std::borrow::Cow<'a, [f32]> {
    let Some(Adapter { a, b, rank, scale }) = slab.adapter else { return slab.base.into() };
    let outputs = slab.base.len() / inputs;
    assert!(slab.base.len() == outputs * inputs && a.len() == rank * inputs && b.len() == outputs * rank, "an adapter of another weight");
    let mut out = vec![0f32; slab.base.len()];
    let to = Shared(out.as_mut_ptr());
    pool.run(outputs, &|o, _| {
        // SAFETY: each task has a row of its own.
        let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(o * inputs), inputs) };
        merge(isa, &slab.base[o * inputs..][..inputs], a, &b[o * rank..][..rank], scale, to);
    });
    out.into()
}

fn round(pool: &mut Pool, values: &[f32], dtype: Dtype) -> Vec<u8> {
    let size = dtype.size();
    let mut bytes = vec![0u8; values.len() * size];
    let to = Shared(bytes.as_mut_ptr());
    pool.run(values.len().div_ceil(PIECE), &|i, _| {
        let from = &values[i * PIECE..values.len().min((i + 1) * PIECE)];
        // SAFETY: pieces are disjoint and within the bytes.
        let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(i * PIECE * size), from.len() * size) };
        match dtype {
            Dtype::F32 => to.as_chunks_mut::<4>().0.iter_mut().zip(from).for_each(|(to, v)| *to = v.to_le_bytes()),
            Dtype::Bf16 => to.as_chunks_mut::<2>().0.iter_mut().zip(from).for_each(|(to, v)| *to = bf16::from_f32(*v).to_le_bytes()),
            other => panic!("serving weights are BF16 or F32, not {other}"),
        }
    });
    bytes
}

pub(super) fn rounded(isa: Isa, pool: &mut Pool, slab: Slab<'_, Vec<f32>>, inputs: usize, dtype: Dtype) -> Vec<u8> {
    let values = merged(isa, pool, slab, inputs);
    round(pool, &values, dtype)
}

pub(super) fn round_matrix(isa: Isa, pool: &mut Pool, slabs: &[Slab<'_, Vec<f32>>], dtype: Dtype, matrix: &mut Matrix) {
    let inputs = matrix.inputs;
    let bytes: Vec<Vec<u8>> = slabs.iter().map(|slab| rounded(isa, pool, *slab, inputs, dtype)).collect();
    let view = |bytes| TensorView { name: "", dtype, shape: vec![<[u8]>::len(bytes) / dtype.size() / inputs, inputs], bytes };
    let views: Vec<TensorView<'_>> = bytes.iter().map(|bytes| view(bytes)).collect();
    matrix.repack(pool, &views);
}

pub(super) fn round_vector(parts: &[&Vec<f32>], dtype: Dtype, vector: &mut Vec<f32>) {
    let round = |v: &f32| if dtype == Dtype::Bf16 { bf16::from_f32(*v).to_f32() } else { *v };
    let values: Vec<f32> = parts.iter().flat_map(|part| part.iter().map(round)).collect();
    assert!(values.len() == vector.len(), "a vector of another shape");
    *vector = values;
}

#[inline(always)]
fn dot_body(x: &[f32], y: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for (x, y) in x.chunks(16).zip(y.chunks(16)) {
        lanes.iter_mut().zip(x.iter().zip(y)).for_each(|(lane, (x, y))| *lane += x * y);
    }
    lanes.iter().sum()
}
per_isa! {
    /// 16 lanes, then the lanes in order.
    fn dot(x: &[f32], y: &[f32]) -> f32 = dot_body
}

pub(super) fn adapter_backward(
    isa: Isa,
    pool: &mut Pool,
    adapter: Adapter<'_, Vec<f32>>,
    inputs: usize,
    dw: &[f32],
    da: &mut [f32],
    db: &mut [f32],
) {
    let Adapter { a, b, rank, scale } = adapter;
    let outputs = dw.len() / inputs;
    assert!(
        a.len() == rank * inputs && da.len() == a.len() && b.len() == outputs * rank && db.len() == b.len(),
        "an adapter of another weight"
    );
    let to = Shared(db.as_mut_ptr());
    pool.run(outputs, &|o, _| {
        for r in 0..rank {
            let sum = dot(isa, &dw[o * inputs..][..inputs], &a[r * inputs..][..inputs]);
            // SAFETY: each task has a row of its own.
            unsafe { *to.get().add(o * rank + r) = scale * sum };
        }
    });
    let to = Shared(da.as_mut_ptr());
    pool.run(inputs.div_ceil(COLUMNS), &|i, _| {
        let (first, len) = (i * COLUMNS, COLUMNS.min(inputs - i * COLUMNS));
        for r in 0..rank {
            let mut sums = [0f32; COLUMNS];
            for (o, row) in dw.chunks_exact(inputs).enumerate() {
                let weight = b[o * rank + r];
                sums.iter_mut().zip(&row[first..][..len]).for_each(|(sum, dw)| *sum += weight * dw);
            }
            // SAFETY: each task has columns of its own.
            let to = unsafe { std::slice::from_raw_parts_mut(to.get().add(r * inputs + first), len) };
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = scale * sum);
        }
    });
}
