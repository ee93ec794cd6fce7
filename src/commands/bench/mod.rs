//! `adaroll bench`: how fast this machine samples and trains, and how well the width planner fills it.

pub mod decode;
mod measure;
pub mod schedule;
pub mod train;
