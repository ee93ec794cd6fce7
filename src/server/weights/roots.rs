//! Which files of this machine a push may name: those under `weights.roots`, where links that lead out of a root do not count.

use std::path::{Path, PathBuf};

use axum::http::StatusCode;

use crate::server::ApiError;

/// The real path of a folder, all of whose safetensors files lie under a root too.
pub(super) fn folder(roots: &[PathBuf], given: &str) -> Result<PathBuf, ApiError> {
    let (dir, root) = allowed(roots, "dir", given)?;
    let entries = std::fs::read_dir(&dir).map_err(|e| ApiError::field("dir", format!("cannot be read: {e}")))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_read = name.ends_with(".safetensors") || name == "model.safetensors.index.json";
        if is_read && !path.canonicalize().is_ok_and(|real| real.starts_with(&root)) {
            return Err(ApiError::field(
                "dir",
                format!("holds {name}, which is a link to a place outside of weights.roots; put the file itself there"),
            ));
        }
    }
    Ok(dir)
}

/// The real path of a file under a root.
pub(super) fn file(roots: &[PathBuf], field: &str, given: &str) -> Result<PathBuf, ApiError> {
    let (file, _) = allowed(roots, field, given)?;
    if !file.is_file() {
        return Err(ApiError::field(field, "is no regular file; give a safetensors file"));
    }
    Ok(file)
}

/// The real path and the root that holds it. Whether a path outside exists is not told.
fn allowed(roots: &[PathBuf], field: &str, given: &str) -> Result<(PathBuf, PathBuf), ApiError> {
    if roots.is_empty() {
        let message = "this server reads no weights from files; list the folders that it may read in weights.roots, or PUT them";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message).about(field));
    }
    let outside = || {
        let message = format!("{field}: is no path under one of weights.roots that is there; give an absolute one");
        ApiError::new(StatusCode::FORBIDDEN, "forbidden", message).about(field)
    };
    let path = Path::new(given);
    let real = path.is_absolute().then(|| path.canonicalize().ok()).flatten().ok_or_else(outside)?;
    let root = roots.iter().filter_map(|root| root.canonicalize().ok()).find(|root| real.starts_with(root)).ok_or_else(outside)?;
    Ok((real, root))
}
