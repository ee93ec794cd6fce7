//! Reinforce-Ada, pure: no clock, no channel, no engine.
//!
//! A request's [`strategy`] gives a [`Plan`]. The plan reads [`Outcome`]s in index order and says where to stop and which indices may
//! still matter; the [`ledger`] says what the request as a whole leaves to it. Below the exit, [`Group::form`] keeps a balanced group, with its [`Stats`] and [`Advantage`]s.

pub mod advantage;
pub mod group;
pub mod ledger;
pub mod outcome;
#[allow(clippy::module_inception)]
pub mod plan;
pub mod stats;
pub mod strategy;
pub mod width;

pub use advantage::{Advantage, Baseline, Form, Objective, RateSource, Scale};
pub use group::{Group, Kept, Status};
pub use ledger::{Allowance, Ledger, Place, Wanted};
pub use outcome::Outcome;
pub use plan::{Exit, ExitKind, Plan};
pub use stats::{Seen, Stats};
pub use strategy::{ExitRule, History, Kind, LimitCounts, Strategy};
pub use width::{Need, Planner, Prior, View, q_needed};
