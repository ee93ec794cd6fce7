//! The demonstration's model, inside the binary: a Hugging Face folder that [`write_to`] puts on disk. How it was made stands in its README.

use std::path::Path;

use super::WriteError;
use crate::model::params::{Params, Rounded};
use crate::model::{Checkpoint, Dtype, ModelConfig, ModelError, TensorView};
use crate::trainer::checkpoint::file_bytes;
use crate::trainer::learner::ServingTensor;

/// Files of the folder, each with its contents.
pub const FILES: [(&str, &[u8]); 6] = [
    ("README.md", include_bytes!("model/README.md")),
    ("config.json", include_bytes!("model/config.json")),
    ("generation_config.json", include_bytes!("model/generation_config.json")),
    ("tokenizer.json", include_bytes!("model/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("model/tokenizer_config.json")),
    ("model.safetensors", include_bytes!("model/model.safetensors")),
];

/// The text of config.json.
pub const CONFIG: &str = include_str!("model/config.json");

/// Writes the folder, which need not be there yet. Each file appears whole or not at all: somebody may have the old one mapped.
pub fn write_to(dir: &Path) -> Result<(), WriteError> {
    std::fs::create_dir_all(dir).map_err(WriteError::at(dir))?;
    for (name, contents) in FILES {
        let (path, part) = (dir.join(name), dir.join(format!(".{name}.part")));
        std::fs::write(&part, contents).and_then(|()| std::fs::rename(&part, &path)).map_err(WriteError::at(&path))?;
    }
    Ok(())
}

/// Rounds the weights of the folder once, to BF16.
pub fn round_to_bf16(dir: &Path) -> Result<(), RoundError> {
    let config = ModelConfig::from_json(CONFIG)?;
    let params = Params::from_source(&config, &Checkpoint::open(dir, &config)?)?;
    let tensor = |view: TensorView<'_>| ServingTensor { name: view.name.to_owned(), shape: view.shape.clone(), bytes: view.bytes.to_vec() };
    let rounded: Vec<ServingTensor> = Rounded::new(&params, Dtype::Bf16).tensors().map(tensor).collect();
    let (path, part) = (dir.join("model.safetensors"), dir.join(".model.safetensors.part"));
    let written = std::fs::write(&part, file_bytes(&rounded, Dtype::Bf16)).and_then(|()| std::fs::rename(&part, &path));
    Ok(written.map_err(WriteError::at(&path))?)
}

/// Why the weights cannot be rounded.
#[derive(Debug, thiserror::Error)]
pub enum RoundError {
    /// The folder.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file.
    #[error(transparent)]
    Write(#[from] WriteError),
}
