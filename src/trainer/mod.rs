//! The trainer: a process of its own that talks to a server over HTTP only.
//!
//! [`settings`] says what a run does. [`run`] is its loop: [`rollout`] asks the server ([`server`]) for a step's groups from the [`data`];
//! [`update`] turns them into rows, cuts them ([`batch`]), and takes each [`part`] through forward, [`loss`] and backward, and their sum through
//! the [`optimizer`], on the [`policy`]: a [`learner`] on some [`backend`], or several that are [`ranks`]; [`evaluate`] measures, [`checkpoint`] keeps. Numbers ([`summary`], [`names`]) go to [`journal`], [`exposition`] and [`events`], and
//! [`report`] draws them.

pub mod backend;
pub mod batch;
pub mod checkpoint;
pub mod data;
pub mod evaluate;
pub mod events;
pub mod exposition;
pub mod journal;
pub mod learner;
pub mod lora;
pub mod loss;
pub mod names;
pub mod optimizer;
pub mod part;
pub mod policy;
pub mod ranks;
pub mod report;
pub mod rollout;
pub mod run;
pub mod schedule;
pub mod server;
pub mod settings;
pub mod sft;
pub mod summary;
pub mod update;

use checkpoint::State;
use journal::Numbers;
use run::{Summary, TrainError};
use settings::{Objective, Settings};

use crate::failpoint;

/// Trains to the end of the run, or goes on with one that was begun. `observer` sees every line of numbers as it is written.
pub async fn train(
    settings: &Settings,
    observer: &mut (dyn FnMut(&Numbers, &State) + Send),
    interrupt: impl Future<Output = ()>,
) -> Result<Summary, TrainError> {
    failpoint::arm_from_env().map_err(TrainError::Setting)?;
    match settings.run.objective {
        Objective::Rl => run::run(settings, observer, interrupt).await,
        Objective::Sft => sft::run(settings, observer, interrupt).await,
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { step, updates, samples, rows, .. } = self.state;
        write!(f, "{step} steps, {updates} updates, {samples} samples, {rows} rows; the model is in {}", self.model.display())?;
        match self.resumed_at {
            0 => Ok(()),
            at => write!(f, " (went on from step {at})"),
        }
    }
}
