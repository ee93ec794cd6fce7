//! From a request to balanced groups.
//!
//! A [`JobSpec`] (every default filled in, every prompt tokenized) is admitted by [`Jobs`], which gives it a [`JobRecord`] that readers
//! follow and a task that runs [`job::run`]. The job keeps an [`prompt::OpenPrompt`] per prompt, submits as many samples as [`width`]
//! says, and stops each prompt where its [`plan`] says, reading outcomes in index order. Closed groups become JSON ([`output`]) and are
//! appended to the record.

pub mod job;
pub mod jobs;
pub mod output;
pub mod pause;
pub mod plan;
pub mod prompt;
pub mod record;
pub mod spec;
pub mod text;
pub mod width;

pub use job::Context;
pub use jobs::{Admission, JobLimits, Jobs, Refusal};
pub use pause::Pause;
pub use record::{Ending, EventKind, JobRecord, JobState};
pub use spec::{BadGoldRule, JobSpec, Order, PromptSpec, Return, Settings};
pub use text::TextModel;
pub use width::Width;
