//! Promise: new weights come into the running server without a stop, and nothing of two versions is ever mixed unnoticed.

mod crash;
mod ipc;
pub mod kit;
mod load;
mod refused;
mod restarts;
mod rules;
mod stale;
mod ways;
