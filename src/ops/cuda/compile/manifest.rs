//! Kernels that were compiled elsewhere: `DIR/<architecture>/<family>.cubin`, and beside them `manifest.json` with what they were made from.
//!
//! A folder is used whole or not at all: every family must have been made from this binary's own sources, and every cubin must be the one that the
//! manifest means.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cubin::{self, Resources};
use super::sources::{Architecture, FAMILIES, FLAGS, Family, sha256};
use super::{KernelError, Kernels, whole_file};

const NAME: &str = "manifest.json";

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program that wrote it.
    pub adaroll: String,
    /// `sm_90`.
    pub architecture: String,
    /// By name.
    pub families: BTreeMap<String, Entry>,
}

/// One cubin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Digest of source, headers and flags.
    pub source: String,
    /// The compiler's flags, without the architecture.
    pub flags: Vec<String>,
    /// The compiler's build, where the cubin names it.
    pub nvrtc: Option<String>,
    /// SHA-256 of the file.
    pub cubin: String,
    /// Its kernels.
    pub kernels: BTreeMap<String, Resources>,
}

/// Writes the folder of one architecture. Images that are no ELF files are written too, without a word about their kernels.
pub fn write_shipped<N: AsRef<str>, B: AsRef<[u8]>>(
    dir: &Path,
    arch: &str,
    families: impl IntoIterator<Item = (N, B)>,
) -> Result<Manifest, KernelError> {
    let arch: Architecture = arch.parse().map_err(KernelError::Architecture)?;
    let folder = dir.join(arch.to_string());
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error| KernelError::Write { path, error }
    };
    std::fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let mut manifest = Manifest { adaroll: env!("CARGO_PKG_VERSION").into(), architecture: arch.to_string(), families: BTreeMap::new() };
    for (name, image) in families {
        let (name, image) = (name.as_ref(), image.as_ref());
        let family = Family::named(name).ok_or_else(|| KernelError::NoFamily(name.to_owned()))?;
        let contents = match cubin::is_elf(image) {
            true => Some(cubin::read(image).map_err(|reason| KernelError::Image { family: family.name, reason })?),
            false => None,
        };
        let path = image_path(&folder, family);
        whole_file(&path, &[image]).map_err(failed(&path))?;
        let (kernels, nvrtc) = contents.map_or_else(Default::default, |c| (c.kernels, c.tools));
        let entry = Entry {
            source: family.digest(),
            flags: FLAGS.map(str::to_owned).to_vec(),
            nvrtc,
            cubin: sha256(image),
            kernels: kernels.into_iter().collect(),
        };
        manifest.families.insert(name.to_owned(), entry);
    }
    // Last: until then the folder is refused.
    let path = folder.join(NAME);
    let text = serde_json::to_string_pretty(&manifest).map_err(|e| KernelError::Write { path: path.clone(), error: e.into() })?;
    whole_file(&path, &[text.as_bytes(), b"\n"]).map_err(failed(&path))?;
    Ok(manifest)
}

/// The kernels of a folder, or a sentence that says why it is not used.
pub(super) fn read_shipped(dir: &Path, arch: Architecture) -> Result<Kernels, String> {
    let folder = dir.join(arch.to_string());
    if !folder.is_dir() {
        let has = architectures(dir)?;
        let has = if has.is_empty() { "no kernels at all".to_owned() } else { format!("only {}", has.join(", ")) };
        return Err(format!("{} has no kernels for {arch}, {has}", dir.display()));
    }
    let path = folder.join(NAME);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
    let manifest: Manifest = serde_json::from_str(&text).map_err(|e| format!("{}: is no manifest of kernels: {e}", path.display()))?;
    let mut families = Vec::new();
    for family in &FAMILIES {
        let name = family.name;
        let Some(entry) = manifest.families.get(name) else {
            return Err(format!("{} has no kernels of {name}", folder.display()));
        };
        if entry.source != family.digest() {
            return Err(format!("the kernels in {} were made from other sources of {name} than this program's", folder.display()));
        }
        let path = image_path(&folder, family);
        let image = std::fs::read(&path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
        if sha256(&image) != entry.cubin {
            return Err(format!("{}: is not the file that its manifest means", path.display()));
        }
        families.push((name.to_owned(), image));
    }
    Ok(Kernels { arch: arch.to_string(), families, origin: format!("the folder {}", folder.display()) })
}

/// The architectures that a folder has kernels for.
pub(super) fn architectures(dir: &Path) -> Result<Vec<String>, String> {
    let entries = dir.read_dir().map_err(|e| format!("{}: cannot be read: {e}", dir.display()))?;
    let mut found: Vec<Architecture> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    Ok(found.iter().map(Architecture::to_string).collect())
}

fn image_path(folder: &Path, family: &Family) -> PathBuf {
    folder.join(format!("{}.cubin", family.name))
}
