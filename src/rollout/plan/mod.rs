//! Reinforce-Ada, pure: no clock, no channel, no engine.
//!
//! A request's [`strategy`] gives a [`Plan`]. The plan reads [`Outcome`]s in index order and says where to stop and which indices may
//! still matter. Below the exit, [`Group::form`] keeps a balanced group, with its [`Stats`] and [`Advantage`]s.

pub mod advantage;
pub mod estimate;
pub mod group;
pub mod ledger;
pub mod outcome;
#[allow(clippy::module_inception)]
pub mod plan;
pub mod stats;
pub mod strategy;
pub mod width;

pub use advantage::Advantage;
pub use estimate::History;
pub use group::{Group, Kept, Status};
pub use outcome::Outcome;
pub use plan::{Exit, ExitKind, Plan};
pub use stats::{Seen, Stats};
pub use strategy::{ExitRule, Kind, LimitCounts, Strategy};
pub use width::{Need, Planner, Prior, View, q_needed};
