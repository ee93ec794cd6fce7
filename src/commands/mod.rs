//! The commands of the binary, without the command line: each takes its arguments as values and returns what is to be printed.

pub mod inspect;
pub mod check;
