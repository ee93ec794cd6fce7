//! The trainer: groups in, new weights out.

pub mod optimizer;
