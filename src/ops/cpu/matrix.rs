//! Weights packed once per version: panels `[outputs / 16][inputs][16]`, so that sixteen outputs are one vector at every input.

use super::tensor::Aligned;
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

fn scatter<T: Copy>(packed: &mut [T], first: usize, outputs: usize, inputs: usize, value: impl Fn(usize) -> T) {
    for n in 0..outputs {
        let base = ((first + n) / PANEL) * inputs * PANEL + (first + n) % PANEL;
        for k in 0..inputs {
            packed[base + k * PANEL] = value(n * inputs + k);
        }
    }
}
