//! A model ready to run: configuration, packed weights and text side of one folder.

use std::path::Path;
use std::sync::Arc;

use super::checkpoint::Checkpoint;
use super::config::ModelConfig;
use super::error::ModelError;
use super::stop_tokens::stop_token_ids;
use super::tokenizer::{TextError, Tokenizer};
use super::weights::Weights;
use crate::ops::Ops;

/// Why a folder cannot be loaded: a sentence that names the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Configuration or weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tokenizer, chat template or stop tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The chat template.
    #[error(transparent)]
    Template(Box<super::template::TemplateError>),
    /// The device that was asked for.
    #[error("{0}")]
    Device(String),
    /// The engine did not start: no thread, or no memory on its device.
    #[error("the engine cannot start: {0}")]
    Start(std::io::Error),
    /// The machine has no threads to give.
    #[error("the threads of the engine cannot be started: {0}; lower --threads")]
    Threads(std::io::Error),
    /// A file of the folder.
    #[error("the model's folder cannot be read: {0}")]
    Digest(std::io::Error),
}

/// A loaded model.
pub struct Model<O: Ops> {
    /// Its shape.
    pub config: ModelConfig,
    /// Its weights, packed for `O`.
    pub weights: Weights<O>,
    /// Its tokenizer, if the folder has one.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Token ids that end a text.
    pub stop_token_ids: Vec<u32>,
}

impl<O: Ops> Model<O> {
    /// Reads and verifies a folder and packs its weights. `progress` is called with (layers done, layers in all).
    pub fn load(ops: &O, dir: &Path, progress: impl FnMut(usize, usize)) -> Result<Self, LoadError> {
        let config = ModelConfig::from_folder(dir)?;
        let checkpoint = Checkpoint::open(dir, &config)?;
        checkpoint.verify_finite()?;
        let tokenizer = Tokenizer::from_folder(dir)?.map(Arc::new);
        if let Some(t) = &tokenizer
            && t.vocab_size() > config.vocab_size
        {
            let problem = format!(
                "knows {} token ids, but `vocab_size` in config.json is {}: the embedding has no row for the last ones; use the tokenizer of this checkpoint",
                t.vocab_size(),
                config.vocab_size
            );
            return Err(ModelError::file(dir.join("tokenizer.json"), problem).into());
        }
        let stop_token_ids = stop_token_ids(dir, tokenizer.as_deref())?;
        if let Some(id) = stop_token_ids.iter().find(|&&id| id as usize >= config.vocab_size) {
            let problem = format!("`eos_token_id` names {id}, but the model's ids end at {}; correct it", config.vocab_size - 1);
            return Err(ModelError::file(dir.join("generation_config.json"), problem).into());
        }
        let weights = Weights::load(ops, &config, &checkpoint, progress)?;
        Ok(Model { config, weights, tokenizer, stop_token_ids })
    }
}
