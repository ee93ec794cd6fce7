//! Where weights are kept: a folder of safetensors files, one a version.
//!
//! A file appears under its name only when it is whole and on the disk; what is being received or written ends in `.part` and is swept away
//! at the next start. Every name carries the store that it belongs to, so that servers which share a folder leave each other's files alone.
//! Without a store on disk nothing is kept: a received file loses its name as soon as it is mapped, and lives as long as the mapping.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::{Files, PushError, Source, Version};
use crate::model::{ModelError, SafetensorsFile, TensorSet};

/// The weights' folder.
#[derive(Clone, Debug)]
pub struct Home {
    dir: PathBuf,
    /// Of the store's place; absent if nothing is kept.
    store: Option<String>,
}

const PART: &str = ".part";

impl Home {
    /// `dir`, made when it is needed; versions are kept there if there is a store on disk.
    pub fn new(dir: PathBuf, store: Option<&Path>) -> Self {
        let of = |path: &Path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex()[..8].to_owned()
        };
        Home { dir, store: store.map(of) }
    }

    /// Where files are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A new file to write into.
    pub fn receive(&self) -> io::Result<(PathBuf, File)> {
        std::fs::create_dir_all(&self.dir)?;
        let path = self.dir.join(format!("{}-{}{PART}", self.store.as_deref().unwrap_or("memory"), uuid::Uuid::new_v4()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok((path, file))
    }

    /// Gives a verified version its file.
    pub(super) fn keep(&self, version: Version, source: &Source) -> Result<Version, PushError> {
        let received = if let Source::Received(path) = source { Some(path) } else { None };
        let cannot = |error: io::Error| PushError::keep(&self.dir, &error);
        let Some(store) = &self.store else {
            if let Some(path) = received {
                std::fs::remove_file(path).map_err(cannot)?;
            }
            return Ok(version);
        };
        let files = version.files()?;
        // A digest is "blake3:" and hexadecimal.
        let name = format!("v{}-{}-{store}.safetensors", version.number, version.digest.get(7..23).unwrap_or_default());
        let place = self.dir.join(&name);
        match (received, files.tensors.only_file()) {
            (Some(path), Some(_)) => {
                File::open(path).and_then(|file| file.sync_all()).and_then(|()| std::fs::rename(path, &place)).map_err(cannot)?;
            }
            _ => {
                let (path, file) = self.receive().map_err(cannot)?;
                let written = files.tensors.write(&file).and_then(|()| file.sync_all()).map_err(cannot);
                let written = written.and_then(|()| self.same_as_verified(files, &path));
                let written = written.and_then(|()| std::fs::rename(&path, &place).map_err(cannot));
                written.inspect_err(|_| drop(std::fs::remove_file(&path)))?;
            }
        }
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(cannot)?;
        // From here on the version is what is in its own file.
        let tensors = TensorSet::of_checked_file(files.tensors.layout(), SafetensorsFile::open(&place)?)?;
        if let Some(path) = received {
            let _ = std::fs::remove_file(path);
        }
        let files = version.files.map(|files| Files { tensors, ..files });
        Ok(Version { files, file: name, ..version })
    }

    /// Another process's file may be written over between its check and its copy.
    fn same_as_verified(&self, files: &Files, copy: &Path) -> Result<(), PushError> {
        let layout = files.tensors.layout();
        let digests = TensorSet::of_checked_file(layout, SafetensorsFile::open(copy)?)?.digests()?;
        match layout.names().enumerate().find(|(i, _)| !digests.same(&files.digests, *i)) {
            None => Ok(()),
            Some((_, name)) => {
                let problem =
                    format!("tensor `{name}` changed while it was read; push it again, and leave its file alone until the answer");
                Err(PushError::Bad { tensor: Some(name.to_owned()), problem })
            }
        }
    }

    /// Opens a kept file.
    pub(super) fn open(&self, name: &str) -> Result<SafetensorsFile, ModelError> {
        SafetensorsFile::open(&self.dir.join(name))
    }

    /// Removes a kept file.
    pub(super) fn remove(&self, name: &str) {
        if !name.is_empty()
            && let Err(error) = std::fs::remove_file(self.dir.join(name))
        {
            tracing::warn!(file = name, "old weights could not be removed: {error}");
        }
    }

    /// Removes what an earlier process was writing, and files of versions that were never committed or are forgotten.
    pub(super) fn sweep(&self, kept: &[&str]) {
        let Some(store) = &self.store else { return };
        let (part, whole) = (format!("{store}-"), format!("-{store}.safetensors"));
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = (name.starts_with(&part) && name.ends_with(PART)) || (name.starts_with('v') && name.ends_with(&whole));
            if ours && !kept.contains(&name.as_str()) {
                self.remove(&name);
            }
        }
    }
}
