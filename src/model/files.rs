//! Opening the files of a model folder: regular files only (links followed), texts with a size limit, and a sentence for each failure.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::ModelError;

/// Opens a regular file. A directory, pipe or device is refused before it is opened, since opening a pipe would wait for a writer.
/// `advice` ends the sentence when the file is not there.
pub(crate) fn open(path: &Path, advice: &str) -> Result<(File, u64), ModelError> {
    let fail = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound if path.is_symlink() => ModelError::file(path, format!("is a link to nothing; {advice}")),
        std::io::ErrorKind::NotFound => ModelError::file(path, format!("there is no such file; {advice}")),
        _ => ModelError::file(path, format!("cannot be read ({error}); check the path and its permissions")),
    };
    let metadata = std::fs::metadata(path).map_err(fail)?;
    if !metadata.is_file() {
        let kind = if metadata.is_dir() { "a directory" } else { "not a regular file" };
        return Err(ModelError::file(path, format!("is {kind}, and a file is needed here; {advice}")));
    }
    let file = File::open(path).map_err(fail)?;
    // The length of what was opened, not of what the name pointed at a moment ago.
    let len = file.metadata().map_err(fail)?.len();
    Ok((file, len))
}

/// Reads a UTF-8 text of at most `limit` bytes.
pub(crate) fn read_text(path: &Path, limit: u64, advice: &str) -> Result<String, ModelError> {
    let (file, len) = open(path, advice)?;
    let too_large =
        || ModelError::file(path, format!("is larger than {limit} bytes, which no such file needs; check that it is the right one"));
    if len > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| ModelError::file(path, format!("cannot be read ({error}); check the disk and the permissions")))?;
    if bytes.len() as u64 > limit {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        ModelError::file(path, format!("is not UTF-8 text (byte {at}); download or export it again"))
    })
}

/// Checks that a path is a folder, as every model is.
pub(crate) fn require_folder(dir: &Path) -> Result<(), ModelError> {
    match std::fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(ModelError::file(dir, "is a file; give the folder that holds config.json and the safetensors files")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(ModelError::file(dir, "there is no such folder; give the folder of a Hugging Face checkpoint"))
        }
        Err(error) => Err(ModelError::file(dir, format!("cannot be read ({error}); check the path and its permissions"))),
    }
}

/// The message of a JSON error, cut to a readable length: it may quote the file.
pub(crate) fn brief(error: &serde_json::Error) -> String {
    cut(&error.to_string(), 300)
}

/// A text cut to at most `limit` characters, with control characters made visible, so that a sentence stays one line.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    let mut short: String = text.chars().take(limit).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect();
    if text.chars().nth(limit).is_some() {
        short += "...";
    }
    short
}
