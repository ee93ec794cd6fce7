//! Verifiers: text in, a verdict out.
//!
//! A request names a reward per prompt ([`Spec`]); it is compiled once, with its reference answer ("gold"), into a [`Verifier`], which
//! then judges every sample of the prompt on a [`Pool`] of bounded size, retries included. A verdict is never a silent zero: what could
//! not be judged says so. Kinds that need nothing but the text are judged here ([`math`], [`exact`], [`pattern`], [`choice`], [`schema`],
//! [`format`], and [`length`] by the number of tokens); [`webhook`] asks a grader over HTTP; [`compose`] makes one reward of several; the
//! scores of `pull` come from the client and never reach the pool. Beside its reward a sample shows what was read in it ([`Found`]).

pub mod choice;
pub mod compose;
pub mod exact;
pub mod format;
mod found;
mod judge;
pub mod length;
pub mod math;
pub mod pattern;
mod pool;
pub mod schema;
mod settings;
mod spec;
mod verdict;
mod verifier;
pub mod webhook;

pub use found::{Found, Ruling};
pub use judge::{Asked, Judge, Judged};
pub use pool::Pool;
pub use settings::PoolSettings;
pub use spec::{BadGold, KINDS, Spec, Weighted};
pub use verdict::{Judgement, Verdict};
pub use verifier::Verifier;

/// At most 80 characters of `text`.
fn shortened(text: &str) -> String {
    if text.chars().count() <= 80 { text.to_owned() } else { text.chars().take(77).chain("...".chars()).collect() }
}
