//! Supervised fine-tuning: negative log-likelihood of given answers.
use super::journal::Numbers;
use super::run::{Summary, TrainError};
use super::{State, settings::Settings};

/// To come.
pub async fn run(_: &Settings, _: &mut (dyn FnMut(&Numbers, &State) + Send), _: impl Future<Output = ()>) -> Result<Summary, TrainError> {
    Err(TrainError::Setting("not yet".into()))
}
