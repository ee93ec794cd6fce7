//! The demonstration's model, inside the binary: a Hugging Face folder that [`write_to`] puts on disk. How it was made stands in its README.

use std::path::Path;

use super::WriteError;

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
