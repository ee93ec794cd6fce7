//! adaroll: the rollout server that stands between a trainer and its language model.
//!
//! Dependencies point one way: `server -> rollout -> engine -> model -> ops`. `rollout::plan`, `reward` and `verify` know nothing of engines;
//! `trainer -> model -> ops`.
//!
//! The public surface is what the binary uses; see ARCHITECTURE in the README's tour for how a rollout flows.

pub mod commands;
pub mod config;
pub mod demo;
pub mod engine;
pub mod failpoint;
pub mod field;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod reward;
pub mod rollout;
pub mod server;
pub mod store;
pub mod trainer;
pub mod verify;
