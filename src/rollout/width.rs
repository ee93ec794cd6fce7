//! How many samples of a prompt are in flight.
//!
//! The rule, until a planner that weighs probabilities replaces it:
//!
//! 1. Every index below the plan's earliest possible exit is needed for certain; these come first, prompt by prompt in request order.
//! 2. While the engine has nothing waiting, up to [`Width::speculate`] further indices per prompt are started, never at or above the
//!    bound `T_ub`.
//!
//! It looks at the engine's load and so at timing, which is allowed: width decides how soon a group closes and never what is in it.

use super::plan::Exit;

/// Limits of a job's samples in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// Samples in flight per job.
    pub max_in_flight: usize,
    /// Indices per prompt beyond what is needed for certain, while the engine has room.
    pub speculate: u32,
    /// Prompts that may be open beyond the first undelivered one.
    pub look_ahead: usize,
}

impl Default for Width {
    fn default() -> Self {
        Width { max_in_flight: 256, speculate: 2, look_ahead: 1024 }
    }
}

/// Indices below this are worth starting now.
pub fn frontier(earliest: u32, bound: Exit, speculate: u32) -> u32 {
    earliest.saturating_add(speculate).min(bound.t)
}
