//! `adaroll bench`: how fast this machine and its GPU sample and train, and how well the width planner fills it.

pub mod decode;
pub mod gpu;
mod measure;
pub mod schedule;
pub mod train;
