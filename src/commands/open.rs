//! From a model folder to a running engine.

use std::path::Path;

use crate::engine::{EngineSettings, LocalEngine};
use crate::model::{Checkpoint, LoadError, Model, ModelText, TensorSet};
use crate::ops::cpu::{CpuOps, Isa};

/// Everything that decides how an engine runs, and nothing that decides what it draws (but for `ignore_eos`).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Threads, the loop's own included.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// The model's stop tokens do not end samples.
    pub ignore_eos: bool,
    /// Batch, blocks and queue.
    pub settings: EngineSettings,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { threads: default_threads(), isa: Isa::detect(), ignore_eos: false, settings: EngineSettings::default() }
    }
}

/// One thread a core.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A running engine and the text side of its model.
pub struct Opened {
    /// The engine.
    pub engine: LocalEngine,
    /// Tokenizer and template.
    pub text: ModelText,
    /// The folder's weights as they lie in its files: version 0.
    pub weights: TensorSet,
    /// Digest of everything in the folder that decides what is drawn, and of the stop tokens.
    pub digest: String,
}

/// Loads `dir` and starts its engine. `progress` is called with (layers packed, layers in all).
pub fn open(dir: &Path, options: &EngineOptions, progress: impl FnMut(usize, usize)) -> Result<Opened, LoadError> {
    let ops = CpuOps::with_isa(options.threads, options.isa).map_err(LoadError::Threads)?;
    let mut model = Model::load(&ops, dir, progress)?;
    if options.ignore_eos {
        model.stop_token_ids.clear();
    }
    let digest = digest(dir, &model.stop_token_ids).map_err(LoadError::Digest)?;
    let text = ModelText::from_folder(dir, model.tokenizer.clone())?;
    let weights = TensorSet::of_model(Checkpoint::open(dir, &model.config)?, &model.config)?;
    let packer = CpuOps::with_isa(1, options.isa).map_err(LoadError::Threads)?;
    let engine = LocalEngine::start_with(ops, Some(packer), model, &options.settings).map_err(LoadError::Threads)?;
    Ok(Opened { engine, text, weights, digest })
}

/// BLAKE3 of the folder's configuration, tokenizer and weights, by name, and of the stop tokens.
fn digest(dir: &Path, stop_token_ids: &[u32]) -> std::io::Result<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.retain(|name| {
        let name = name.to_string_lossy();
        name.ends_with(".safetensors") || name == "config.json" || name.starts_with("tokenizer")
    });
    names.retain(|name| name != "expected.safetensors");
    names.sort();
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(name.as_encoded_bytes());
        hasher.update(&[0]);
        std::io::copy(&mut std::fs::File::open(dir.join(&name))?, &mut hasher)?;
    }
    stop_token_ids.iter().for_each(|id| {
        hasher.update(&id.to_le_bytes());
    });
    Ok(hasher.finalize().to_hex().to_string())
}
