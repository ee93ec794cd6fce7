//! Weights packed once per version: panels `[outputs / 16][inputs][16]`, so that sixteen outputs are one vector at every input.

use super::pool::Pool;
use super::tensor::{Aligned, Shared};
use crate::model::{Dtype, TensorView};

/// Columns of a panel.
pub(super) const PANEL: usize = 16;

/// Packed weights of a linear map. bf16 checkpoints stay bf16 (widening is exact); f16 and f32 become f32 (also exact).
pub struct Matrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) panels: Panels,
}

pub(super) enum Panels {
    Bf16(Aligned<u16>),
    F32(Aligned<f32>),
}

impl Matrix {
    /// Packs tensors `[outputs_i, inputs]` one below the other. All slabs have the same number of inputs.
    pub(super) fn pack(slabs: &[TensorView<'_>]) -> Matrix {
        let inputs = slabs[0].shape[1];
        let outputs: usize = slabs.iter().map(|s| s.shape[0]).sum();
        assert!(slabs.iter().all(|s| s.shape.len() == 2 && s.shape[1] == inputs), "slabs of one matrix share their inputs");
        let len = outputs.div_ceil(PANEL) * inputs * PANEL;
        let panels = if slabs.iter().all(|s| s.dtype == Dtype::Bf16) {
            let mut packed = Aligned::zeroed(len);
            let mut first = 0;
            for slab in slabs {
                let value = |i: usize| u16::from_le_bytes([slab.bytes[2 * i], slab.bytes[2 * i + 1]]);
                scatter(&mut packed, first, slab.shape[0], inputs, value);
                first += slab.shape[0];
            }
            Panels::Bf16(packed)
        } else {
            let mut packed = Aligned::zeroed(len);
            let mut first = 0;
            for slab in slabs {
                let values = slab.to_f32();
                scatter(&mut packed, first, slab.shape[0], inputs, |i| values[i]);
                first += slab.shape[0];
            }
            Panels::F32(packed)
        };
        Matrix { outputs, inputs, panels }
    }

    /// Packs other tensors of the same shapes into the same memory, if the panels hold their type; else anew.
    pub(super) fn repack(&mut self, pool: &mut Pool, slabs: &[TensorView<'_>]) {
        let outputs: usize = slabs.iter().map(|s| s.shape[0]).sum();
        assert!(outputs == self.outputs && slabs.iter().all(|s| s.shape[1..] == [self.inputs]), "repack: other shapes than before");
        let all = |dtype| slabs.iter().all(|s| s.dtype == dtype);
        match &mut self.panels {
            Panels::Bf16(p) if all(Dtype::Bf16) => fill(pool, p, slabs, self.inputs, u16::from_le_bytes),
            Panels::F32(p) if all(Dtype::F32) => fill(pool, p, slabs, self.inputs, f32::from_le_bytes),
            _ => *self = Matrix::pack(slabs),
        }
    }

    /// Row `output` of the unpacked matrix.
    pub(super) fn copy_row(&self, output: usize, out: &mut [f32]) {
        assert!(output < self.outputs && out.len() == self.inputs);
        let base = (output / PANEL) * self.inputs * PANEL + output % PANEL;
        match &self.panels {
            Panels::Bf16(p) => {
                for (k, o) in out.iter_mut().enumerate() {
                    *o = f32::from_bits(u32::from(p[base + k * PANEL]) << 16);
                }
            }
            Panels::F32(p) => {
                for (k, o) in out.iter_mut().enumerate() {
                    *o = p[base + k * PANEL];
                }
            }
        }
    }

    /// Bytes that one pass over the weights reads.
    pub fn bytes(&self) -> usize {
        match &self.panels {
            Panels::Bf16(p) => p.len() * 2,
            Panels::F32(p) => p.len() * 4,
        }
    }
}

/// Writes panel by panel, each from its sixteen rows side by side.
fn fill<T: Copy + Send + Sync, const N: usize>(
    pool: &mut Pool,
    packed: &mut [T],
    slabs: &[TensorView<'_>],
    inputs: usize,
    read: impl Fn([u8; N]) -> T + Sync,
) {
    let rows: Vec<&[[u8; N]]> = slabs.iter().flat_map(|s| s.bytes.as_chunks::<N>().0.chunks_exact(inputs)).collect();
    let to = Shared(packed.as_mut_ptr());
    assert!(packed.len() == rows.len().div_ceil(PANEL) * inputs * PANEL);
    pool.run(rows.len().div_ceil(PANEL), &|p, _| {
        let rows = &rows[p * PANEL..rows.len().min((p + 1) * PANEL)];
        // SAFETY: panel p lies within `packed`, and each task has its own.
        let panel = unsafe { std::slice::from_raw_parts_mut(to.get().add(p * inputs * PANEL), inputs * PANEL) };
        if let Ok(rows) = <[&[[u8; N]]; PANEL]>::try_from(rows) {
            for (k, to) in panel.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
                *to = std::array::from_fn(|j| read(rows[j][k]));
            }
        } else {
            for (k, to) in panel.as_chunks_mut::<PANEL>().0.iter_mut().enumerate() {
                to.iter_mut().zip(rows).for_each(|(to, row)| *to = read(row[k]));
            }
        }
    });
}

fn scatter<T: Copy>(packed: &mut [T], first: usize, outputs: usize, inputs: usize, value: impl Fn(usize) -> T) {
    for n in 0..outputs {
        let base = ((first + n) / PANEL) * inputs * PANEL + (first + n) % PANEL;
        for k in 0..inputs {
            packed[base + k * PANEL] = value(n * inputs + k);
        }
    }
}
