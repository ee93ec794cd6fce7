//! From a request to balanced groups.
//!
//! A [`JobSpec`] (every default filled in, every prompt tokenized) is admitted by [`Jobs`]: it is written to the store, gets a
//! [`JobRecord`] that readers follow and a task that runs [`job::run`]. The job keeps a [`prompt::OpenPrompt`] per prompt, submits the
//! samples that [`plan::width`] thinks most needed into the places that [`slots`] leaves it, and stops each prompt where its [`plan`] says,
//! reading outcomes in index order. Finished samples and verdicts go to the [`journal`]; [`delivery`] turns closed groups into JSON
//! ([`output`]) and writes them there; [`restore`] goes on from it after a restart. [`versions`] says which weights serve and which jobs new ones
//! wait for.

mod delivery;
pub mod job;
pub mod jobs;
pub mod journal;
pub mod output;
pub mod pause;
pub mod plan;
pub mod progress;
pub mod prompt;
pub mod record;
mod restart;
mod restore;
pub mod scores;
pub mod slots;
pub mod spec;
pub mod text;
pub mod updates;
pub(crate) mod verdicts;
pub mod versions;

pub use job::{Context, Width};
pub use jobs::{Admission, JobLimits, Jobs, RecoverError, Refusal};
pub use journal::{Journal, MemoryJournal};
pub use pause::Pause;
pub use progress::JobState;
pub use record::{Ending, EventKind, JobRecord};
pub use slots::Slots;
pub use spec::{BadGoldRule, JobSpec, Order, Origin, PromptSpec, Return, Settings};
pub use text::TextModel;
pub use updates::Updates;
pub use versions::{OnWeightUpdate, Versions};

/// Seconds since 1970.
pub fn unix_now() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
