//! `adaroll bench`: how fast this machine samples, and how well the width planner fills it.

pub mod decode;
pub mod schedule;
