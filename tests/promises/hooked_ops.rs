//! The CPU operations, and a say in when a step runs and whether it does.

use adaroll::ops::Ops;
use adaroll::ops::cpu::{CpuOps, Matrix, Tensor};

use crate::over_ops::{Hooks, Over};

/// Calls the closure with the tokens of each step before the step computes anything.
pub struct OnStep<F>(F);

pub fn hooked<F: FnMut(&[u32]) + Send>(ops: CpuOps, on_step: F) -> Over<OnStep<F>> {
    Over(ops, OnStep(on_step))
}

impl<F: FnMut(&[u32]) + Send> Hooks for OnStep<F> {
    fn embed(&mut self, cpu: &mut CpuOps, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        (self.0)(ids);
        cpu.embed(table, ids, out);
    }
}
