//! The twin of the CPU operations: the same table, but a product that is split in two halves of the inputs when several rows run together, as
//! fast libraries do. Correct to the last few bits, and no longer the same bits at every batch size.

use adaroll::ops::Ops;
use adaroll::ops::cpu::{CpuOps, Matrix, Tensor};

use crate::over_ops::Hooks;

pub struct SplitWhenBatched;

impl Hooks for SplitWhenBatched {
    fn linear(&mut self, cpu: &mut CpuOps, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        let (rows, inputs) = x.shape();
        if rows == 1 {
            return cpu.linear(x, w, out);
        }
        let mut half = cpu.tensor(rows, inputs);
        let mut second = cpu.tensor(rows, out.shape().1);
        for r in 0..rows {
            half.row_mut(r)[..inputs / 2].copy_from_slice(&x.row(r)[..inputs / 2]);
        }
        cpu.linear(&half, w, out);
        for r in 0..rows {
            half.row_mut(r).copy_from_slice(x.row(r));
            half.row_mut(r)[..inputs / 2].fill(0.0);
        }
        cpu.linear(&half, w, &mut second);
        cpu.add(out, &second);
    }
}
