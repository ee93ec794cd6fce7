//! Times of calls on the card. A single call is shorter than what it takes to start it, so calls are timed many at a time: as a step of a sequence a
//! row, which is recorded as one graph and replayed where it has a size of those that are, as in real decode steps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::ops::cuda::CudaOps;
use crate::ops::{Batch, Heads, Ops, Place};

use super::super::measure::median;

/// Rounds; the median counts.
const ROUNDS: usize = 3;
/// Most repetitions of a round.
const MOST: usize = 400;

/// Measures on one backend.
pub(super) struct Stopwatch<'a> {
    pub(super) ops: &'a mut CudaOps,
    pub(super) heads: Heads,
    /// Seconds that a measurement should take; 0 measures once.
    pub(super) effort: f64,
}

/// Names the next kind of step, counting down: forwards count up.
static NEXT: AtomicU64 = AtomicU64::new(u64::MAX);

impl<'a> Stopwatch<'a> {
    pub(super) fn new(ops: &'a mut CudaOps, heads: Heads, effort: f64) -> Self {
        Stopwatch { ops, heads, effort }
    }

    /// Seconds of a step that makes these calls; `None` where the card has failed.
    pub(super) fn step(&mut self, batch: &Batch, calls: &mut dyn FnMut(&mut CudaOps)) -> Option<f64> {
        let place = Place { forward: NEXT.fetch_sub(1, Ordering::Relaxed), memory: 0, heads: self.heads };
        self.repeat(&mut |ops| ops.step(place, batch, &mut |ops, _| calls(ops)))
    }

    /// Seconds of `work` on the card.
    pub(super) fn repeat(&mut self, work: &mut dyn FnMut(&mut CudaOps)) -> Option<f64> {
        // The first call makes what is needed, the second is recorded, the third is what is measured.
        for _ in 0..3 {
            work(self.ops);
        }
        let once = self.ops.timed(&mut *work)?;
        if self.effort == 0.0 {
            return Some(once);
        }
        let times = repetitions(self.effort / ROUNDS as f64, once);
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let round = self.ops.timed(|ops| (0..times).for_each(|_| work(ops)))?;
            rounds.push(round / times as f64);
        }
        Some(median(&mut rounds))
    }
}

/// How often something of `once` seconds is to run.
pub(super) fn repetitions(seconds: f64, once: f64) -> usize {
    ((seconds / once.max(1e-7)) as usize).clamp(1, MOST)
}

/// The time there is.
#[derive(Clone, Copy)]
pub(super) struct Deadline(pub(super) Instant);

impl Deadline {
    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.0
    }
}
