//! Kernels from their sources to cubins: for the card's own architecture, so that no driver's compiler decides a bit.
//!
//! Three places, in this order: a shipped folder ([`write_shipped`]), used if it was made from this binary's own sources; the user's cache; NVRTC.
//! A cubin depends on source, headers, flags, architecture and NVRTC's build, and on nothing else; the cache's names say all of them.
//! NVRTC must be there for the cache to be used: which cubin is meant depends on its build.

mod cache;
pub mod cubin;
mod manifest;
pub mod nvrtc;
pub mod sources;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cache::{Cache, Cached};
use cubin::CubinError;
pub use manifest::{Entry, Manifest, write_shipped};
use nvrtc::Nvrtc;
use sources::{Architecture, FAMILIES, Family};

/// Names a shipped folder.
pub const KERNELS_VARIABLE: &str = "ADAROLL_KERNELS";
/// Names NVRTC's file.
pub const NVRTC_VARIABLE: &str = "ADAROLL_NVRTC";
/// The shipped folder beside the executable.
const BESIDE: &str = "kernels";

/// Where kernels may come from.
#[derive(Clone, Debug, Default)]
pub struct KernelOptions {
    /// A shipped folder [default: `ADAROLL_KERNELS`, else `kernels` beside the executable].
    pub shipped: Option<PathBuf>,
    /// NVRTC's file [default: `ADAROLL_NVRTC`, else it is looked for].
    pub nvrtc: Option<PathBuf>,
    /// The cache's folder [default: `adaroll/kernels` in the user's cache folder].
    pub cache: Option<PathBuf>,
}

/// Kernels for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// `sm_90`.
    pub arch: String,
    /// Each family's name and image.
    pub families: Vec<(String, Vec<u8>)>,
    /// Where they come from, in words that go on after "from".
    pub origin: String,
}

/// Why there are no kernels: a sentence, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No compiler.
    #[error(
        "NVRTC, CUDA's compiler library, is not found (libnvrtc.so.13 or .12; by the loader, in CUDA_HOME, in /usr/local/cuda): install the CUDA \
         toolkit or the Python package nvidia-cuda-nvrtc and name its file in ADAROLL_NVRTC, or bring kernels that `adaroll kernels build` made \
         elsewhere and name their folder in ADAROLL_KERNELS"
    )]
    NoNvrtc,
    /// A compiler that does not work.
    #[error("NVRTC ({place}) cannot be used: {reason}")]
    BadNvrtc {
        /// Its file or name.
        place: String,
        /// In words.
        reason: String,
    },
    /// A card that is newer than the compiler, or older.
    #[error("NVRTC {version} does not compile for {arch} but for {known}: use a release of CUDA that knows it")]
    UnknownArchitecture {
        /// What was asked for.
        arch: String,
        /// The compiler's.
        version: String,
        /// What it compiles for.
        known: String,
    },
    /// The compiler does not take a source.
    #[error("the kernels of {family} do not compile for {arch}:\n{log}")]
    Source {
        /// Which.
        family: &'static str,
        /// For which architecture.
        arch: String,
        /// The compiler's own words.
        log: String,
    },
    /// An image that is no cubin.
    #[error("the image of {family} is {reason}")]
    Image {
        /// Which.
        family: &'static str,
        /// Why.
        reason: CubinError,
    },
    /// An image without a kernel that the host starts.
    #[error("the image of {family} has no kernel {kernel}")]
    NoKernel {
        /// Which family.
        family: &'static str,
        /// Which kernel.
        kernel: &'static str,
    },
    /// No such family.
    #[error("there is no family of kernels named {0:?}")]
    NoFamily(String),
    /// No such architecture.
    #[error("not an architecture: {0}")]
    Architecture(String),
    /// A file of a shipped folder.
    #[error("{}: cannot be written: {error}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// As another, where a shipped folder was there and not used.
    #[error("{error}; {why_not_shipped}")]
    AlsoNotShipped {
        /// Why none were made.
        error: Box<KernelError>,
        /// Why the folder was not used.
        why_not_shipped: String,
    },
}

impl KernelOptions {
    /// The shipped folder that is named, or the one beside the executable if it is there.
    pub fn shipped_folder(&self) -> Option<PathBuf> {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.join(BESIDE)).filter(|folder| folder.is_dir());
        self.shipped.clone().or_else(|| variable(KERNELS_VARIABLE)).or_else(beside)
    }

    /// The compiler.
    pub fn compiler(&self) -> Result<Nvrtc, KernelError> {
        Nvrtc::find(self.nvrtc.clone().or_else(|| variable(NVRTC_VARIABLE)).as_deref())
    }

    /// The cache's folder, where there is one.
    pub fn cache_folder(&self) -> Option<PathBuf> {
        Cache::open(self.cache.as_deref()).map(|cache| cache.folder)
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The kernels for a card of this compute capability.
pub fn kernels_for(arch: (i32, i32), options: &KernelOptions) -> Result<Kernels, KernelError> {
    let arch = Architecture::from(arch);
    let why_not_shipped = match shipped(arch, options) {
        Some(Ok(kernels)) => return Ok(kernels),
        Some(Err(reason)) => {
            tracing::warn!("shipped kernels are not used: {reason}");
            Some(reason)
        }
        None => None,
    };
    let made = options.compiler().and_then(|compiler| {
        let begin = |missing: usize| {
            tracing::info!("compiling {missing} families of kernels for {arch} with NVRTC {}: half a minute, once", compiler.version);
        };
        make(arch, &compiler, options, begin, &|_, _| {})
    });
    made.map_err(|error| match why_not_shipped {
        Some(why_not_shipped) => KernelError::AlsoNotShipped { error: Box::new(error), why_not_shipped },
        None => error,
    })
}

/// The kernels of the shipped folder, if there is one: or why it is not used.
pub fn shipped(arch: Architecture, options: &KernelOptions) -> Option<Result<Kernels, String>> {
    options.shipped_folder().map(|folder| manifest::read_shipped(&folder, arch))
}

/// The architectures that the shipped folder, if there is one, has kernels for.
pub fn shipped_architectures(options: &KernelOptions) -> Vec<Architecture> {
    let names = options.shipped_folder().and_then(|folder| manifest::architectures(&folder).ok()).unwrap_or_default();
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

/// The kernels that the cache has of this architecture and compiler.
pub fn cached(arch: Architecture, compiler: &Nvrtc, options: &KernelOptions) -> Vec<(&'static Family, Vec<u8>)> {
    let Some(cache) = Cache::open(options.cache.as_deref()) else {
        return Vec::new();
    };
    let found = FAMILIES.iter().filter_map(|family| match cache.get(family, arch, &compiler.version) {
        Cached::Image(image) => Some((family, image)),
        Cached::Damaged(file) => {
            tracing::warn!("{}: is damaged, and not used", file.display());
            None
        }
        Cached::Absent => None,
    });
    found.collect()
}

/// Takes kernels from the cache and compiles the others, several at a time. `begin` hears how many are to be compiled, if any; `done` hears of each
/// family, and whether it was compiled.
pub fn make(
    arch: Architecture,
    compiler: &Nvrtc,
    options: &KernelOptions,
    begin: impl FnOnce(usize),
    done: &(dyn Fn(&'static str, bool) + Sync),
) -> Result<Kernels, KernelError> {
    let mut images = cached(arch, compiler, options);
    images.iter().for_each(|(family, _)| done(family.name, false));
    let missing: Vec<&'static Family> = FAMILIES.iter().filter(|f| images.iter().all(|(has, _)| has.name != f.name)).collect();
    let origin = match missing.is_empty() {
        true => format!("the cache, made by NVRTC {}", compiler.version),
        false => format!("NVRTC {}", compiler.version),
    };
    if !missing.is_empty() {
        begin(missing.len());
        let made = compile(arch, compiler, &missing, done)?;
        keep(arch, compiler, options, &made);
        images.extend(made);
    }
    let families = images.into_iter().map(|(family, image)| (family.name.to_owned(), image)).collect();
    Ok(Kernels { arch: arch.to_string(), families, origin })
}

fn compile(
    arch: Architecture,
    compiler: &Nvrtc,
    families: &[&'static Family],
    done: &(dyn Fn(&'static str, bool) + Sync),
) -> Result<Vec<(&'static Family, Vec<u8>)>, KernelError> {
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(&family) = families.get(next.fetch_add(1, Ordering::Relaxed)) {
            let image = compiler.compile(family, arch);
            if image.is_ok() {
                done(family.name, true);
            }
            made.lock().unwrap_or_else(|e| e.into_inner()).push((family, image));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(families.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let made = made.into_inner().unwrap_or_else(|e| e.into_inner());
    made.into_iter().map(|(family, image)| Ok((family, image?))).collect()
}

/// Puts images into the cache; one that cannot be written costs time at the next start, and nothing else.
fn keep(arch: Architecture, compiler: &Nvrtc, options: &KernelOptions, images: &[(&'static Family, Vec<u8>)]) {
    let Some(cache) = Cache::open(options.cache.as_deref()) else {
        tracing::warn!("compiled kernels are not kept: neither XDG_CACHE_HOME nor HOME names a folder");
        return;
    };
    let failed = images.iter().find_map(|(family, image)| cache.put(family, arch, &compiler.version, image).err());
    if let Some(error) = failed {
        tracing::warn!("compiled kernels are not kept: {}: cannot be written: {error}", cache.folder.display());
    }
}

/// Writes a file that appears under its name when it is whole. Several processes may do so at once.
fn whole_file(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}-{number}", std::process::id()));
    let write = || {
        let mut file = std::fs::File::create(&temporary)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        std::fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}
