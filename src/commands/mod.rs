//! The commands of the binary, without the command line: each takes its arguments as values and returns what is to be printed.

pub mod bench;
pub mod check;
pub mod demo;
pub mod device;
pub mod generate;
pub mod inspect;
pub mod jobs;
pub mod kernels;
pub mod open;
pub mod prompts;
pub mod report;
pub mod rollout;
pub mod score;
pub mod serve;
pub mod train;
pub mod verify;
