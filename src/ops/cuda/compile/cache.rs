//! Cubins of earlier runs: `<family>-<architecture>-<key>.cubin` in the user's cache folder.
//!
//! The key is the SHA-256 of everything that decides the bytes: source, headers, flags, architecture, and the compiler's build. A file is the
//! cubin and behind it its SHA-256 in 32 bytes, by which a damaged or half-written one is seen. Files appear under their names when they are whole.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::sources::{Architecture, Family, digest};
use super::whole_file;

const DIGEST_BYTES: usize = 32;

/// The cache's folder, which need not exist yet.
pub(super) struct Cache {
    pub(super) folder: PathBuf,
}

/// What the cache says about a family.
pub(super) enum Cached {
    Image(Vec<u8>),
    Absent,
    /// There is a file, and it is not what was written.
    Damaged(PathBuf),
}

impl Cache {
    /// At this place, else at the user's; none where there is no home folder.
    pub(super) fn open(named: Option<&Path>) -> Option<Cache> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let user = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let folder = named.map(Path::to_owned).or_else(|| Some(user()?.join("adaroll").join("kernels")))?;
        Some(Cache { folder })
    }

    pub(super) fn file(&self, family: &Family, arch: Architecture, compiler: &str) -> PathBuf {
        let (source, arch) = (family.digest(), arch.to_string());
        let key = digest([source.as_bytes(), arch.as_bytes(), compiler.as_bytes()]);
        self.folder.join(format!("{}-{arch}-{key}.cubin", family.name))
    }

    pub(super) fn get(&self, family: &Family, arch: Architecture, compiler: &str) -> Cached {
        let file = self.file(family, arch, compiler);
        let Ok(mut bytes) = std::fs::read(&file) else {
            return Cached::Absent;
        };
        match bytes.split_last_chunk::<DIGEST_BYTES>() {
            Some((image, digest)) if Sha256::digest(image)[..] == digest[..] => {
                bytes.truncate(bytes.len() - DIGEST_BYTES);
                Cached::Image(bytes)
            }
            _ => Cached::Damaged(file),
        }
    }

    pub(super) fn put(&self, family: &Family, arch: Architecture, compiler: &str, image: &[u8]) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        whole_file(&self.file(family, arch, compiler), &[image, &Sha256::digest(image)])
    }
}
