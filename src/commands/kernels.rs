//! `adaroll kernels`: compiles the GPU's kernels ahead of time, and says what there is. Neither needs a GPU.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::ops::cuda::Device;
use crate::ops::cuda::compile::cubin::{self, Resources};
use crate::ops::cuda::compile::sources::{Architecture, FAMILIES, Family};
use crate::ops::cuda::compile::{
    KERNELS_VARIABLE, KernelError, KernelOptions, cached, make, shipped, shipped_architectures, write_shipped,
};

/// The arguments of `adaroll kernels`.
#[derive(Clone, Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compile the kernels for GPUs that need not be in this machine, into a folder that can be shipped.
    ///
    /// A machine with NVRTC (the CUDA toolkit, or the Python package nvidia-cuda-nvrtc) needs no such folder: the first start there compiles for its
    /// own GPU and keeps the result. Build where there is NVRTC, run where there is none; the program must be the same build on both. DIR gets
    /// sm_90/attention.cubin and so on, and sm_90/manifest.json with what each was made from and takes. It is used if it is named in ADAROLL_KERNELS
    /// or with --kernels, or if it is called `kernels` and stands beside the executable. The table shows registers and local memory of a thread and
    /// shared memory of a block; local memory in attention or gemm would be spilled registers.
    ///
    /// The architecture is the GPU's compute capability without its point: A100 sm_80, RTX 30xx and A10 sm_86, RTX 40xx and L40 sm_89,
    /// H100 and H200 sm_90, B200 sm_100, RTX 50xx sm_120.
    ///
    /// Examples:
    ///   adaroll kernels build --arch sm_90 -o kernels
    ///   adaroll kernels build --arch sm_80 --arch sm_90 --nvrtc /opt/cuda/lib64/libnvrtc.so.13 -o kernels
    ///   adaroll serve --model models/smollm2 --device cuda --kernels kernels
    #[command(verbatim_doc_comment)]
    Build(BuildArgs),
    /// List the kernels, and say where this machine would take them from and what is missing.
    ///
    /// Kernels are looked for in a shipped folder (see `adaroll kernels build --help`), then in the cache of earlier starts, and are compiled
    /// otherwise. Without --arch, for the GPUs of this machine and for what the shipped folder has.
    ///
    /// Examples:
    ///   adaroll kernels list
    ///   adaroll kernels list --arch sm_90 --kernels kernels
    #[command(verbatim_doc_comment)]
    List(ListArgs),
}

/// The arguments of `adaroll kernels build`.
#[derive(Args, Clone, Debug)]
pub struct BuildArgs {
    /// Architecture, sm_80 or newer; may be given several times.
    #[arg(long, required = true, value_name = "SM")]
    arch: Vec<Architecture>,
    /// The folder to write.
    #[arg(short = 'o', long = "out", value_name = "DIR")]
    out: PathBuf,
    /// NVRTC's library [default: ADAROLL_NVRTC, else the loader's, else in CUDA_HOME and /usr/local/cuda].
    #[arg(long, value_name = "FILE")]
    nvrtc: Option<PathBuf>,
    /// One JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `adaroll kernels list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// Architecture, sm_80 or newer; may be given several times.
    #[arg(long, value_name = "SM")]
    arch: Vec<Architecture>,
    /// A shipped folder [default: ADAROLL_KERNELS, else `kernels` beside the executable].
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,
    /// NVRTC's library [default: ADAROLL_NVRTC, else the loader's, else in CUDA_HOME and /usr/local/cuda].
    #[arg(long, value_name = "FILE")]
    nvrtc: Option<PathBuf>,
    /// One JSON object on stdout.
    #[arg(long)]
    pub json: bool,
}

/// A kernel and what it takes.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The file of `kernels/`.
    pub family: &'static str,
    /// Its name.
    pub kernel: &'static str,
    /// Shared memory that a block asks for at its start, beside the static.
    pub dynamic_shared_bytes: u32,
    /// From the cubin.
    #[serde(flatten)]
    pub resources: Resources,
}

/// The kernels of one architecture.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// `sm_90`.
    pub architecture: String,
    /// Where they come from, or would come from.
    pub origin: String,
    /// Why a shipped folder is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_shipped: Option<String>,
    /// Of the cubins that there are.
    pub kernels: Vec<Row>,
}

impl Table {
    fn new(
        arch: Architecture,
        origin: String,
        not_shipped: Option<String>,
        images: &[(&'static Family, Vec<u8>)],
    ) -> Result<Table, KernelError> {
        let mut kernels = Vec::new();
        for (family, image) in images {
            let contents = cubin::read(image).map_err(|reason| KernelError::Image { family: family.name, reason })?;
            // In the host's order: by size and not by letters.
            for (kernel, dynamic_shared_bytes) in family.kernels() {
                let found = contents.kernels.iter().find(|(name, _)| name == kernel);
                let (_, resources) = found.ok_or(KernelError::NoKernel { family: family.name, kernel })?.clone();
                kernels.push(Row { family: family.name, kernel, dynamic_shared_bytes, resources });
            }
        }
        Ok(Table { architecture: arch.to_string(), origin, not_shipped, kernels })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: from {}", self.architecture, self.origin)?;
        if let Some(reason) = &self.not_shipped {
            write!(f, "\n  {reason}")?;
        }
        if self.kernels.is_empty() {
            return Ok(());
        }
        let width = self.kernels.iter().map(|row| row.kernel.len()).max().unwrap_or(0);
        write!(
            f,
            "\n  {:<9}  {:width$}  {:>9}  {:>14}  {:>15}  {:>11}  {:>15}",
            "family", "kernel", "registers", "static shared", "dynamic shared", "local bytes", "parameter bytes"
        )?;
        for row in &self.kernels {
            let Resources { registers, shared_bytes, local_bytes, parameter_bytes, .. } = row.resources;
            write!(
                f,
                "\n  {:<9}  {:width$}  {registers:>9}  {shared_bytes:>14}  {:>15}  {local_bytes:>11}  {parameter_bytes:>15}",
                row.family, row.kernel, row.dynamic_shared_bytes
            )?;
        }
        Ok(())
    }
}

/// What `build` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Built {
    /// The folder.
    pub dir: PathBuf,
    /// Each architecture's.
    pub architectures: Vec<Table>,
}

impl fmt::Display for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.architectures.iter().try_for_each(|table| writeln!(f, "{table}\n"))?;
        write!(f, "written to {}", self.dir.display())
    }
}

/// Compiles and writes; `progress` hears a line about each family.
pub fn build(args: &BuildArgs, progress: &(dyn Fn(&str) + Sync)) -> Result<Built, KernelError> {
    let options = KernelOptions { nvrtc: args.nvrtc.clone(), ..KernelOptions::default() };
    let compiler = options.compiler()?;
    let mut archs = args.arch.clone();
    archs.sort_unstable();
    archs.dedup();
    let mut architectures = Vec::new();
    for arch in archs {
        let done = |family: &'static str, compiled: bool| {
            progress(&format!("{arch} {family}: {}", if compiled { "compiled" } else { "from the cache" }));
        };
        let made = make(arch, &compiler, &options, |_| {}, &done)?;
        write_shipped(&args.out, &made.arch, made.families.iter().map(|(name, image)| (name, image)))?;
        let images = made.families.into_iter().filter_map(|(name, image)| Some((Family::named(&name)?, image)));
        let mut images: Vec<_> = images.collect();
        images.sort_by_key(|(family, _)| family.name);
        architectures.push(Table::new(arch, made.origin, None, &images)?);
    }
    Ok(Built { dir: args.out.clone(), architectures })
}

/// What `list` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Families, each with the kernels that the host starts.
    pub families: Vec<(&'static str, Vec<&'static str>)>,
    /// The GPUs of this machine, or why there is none that can be used.
    pub gpus: String,
    /// The shipped folder, or that there is none.
    pub folder: String,
    /// The cache's folder, or that there is none.
    pub cache: String,
    /// The compiler, or why there is none.
    pub nvrtc: String,
    /// What there is for each architecture.
    pub architectures: Vec<Table>,
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: usize = self.families.iter().map(|(_, kernels)| kernels.len()).sum();
        writeln!(f, "{count} kernels in {} families", self.families.len())?;
        for (family, kernels) in &self.families {
            writeln!(f, "  {family:<9}  {}", kernels.join(" "))?;
        }
        writeln!(f, "\nwhere they come from on this machine, the first that has them")?;
        writeln!(f, "  folder  {}", self.folder)?;
        writeln!(f, "  cache   {}", self.cache)?;
        writeln!(f, "  NVRTC   {}", self.nvrtc)?;
        write!(f, "\nGPUs      {}", self.gpus)?;
        self.architectures.iter().try_for_each(|table| write!(f, "\n\n{table}"))
    }
}

/// Looks at folder, cache, compiler and GPUs; compiles nothing.
pub fn list(args: &ListArgs) -> Result<Listed, KernelError> {
    let options = KernelOptions { shipped: args.kernels.clone(), nvrtc: args.nvrtc.clone(), cache: None };
    let compiler = options.compiler();
    let (cards, why_no_more) = cards();
    let mut archs = args.arch.clone();
    if archs.is_empty() {
        archs = cards.iter().map(|card| Architecture::from(card.arch)).chain(shipped_architectures(&options)).collect();
    }
    archs.sort_unstable();
    archs.dedup();
    let mut architectures = Vec::new();
    for arch in archs {
        let (not_shipped, shipped) = match shipped(arch, &options) {
            Some(Ok(kernels)) => (None, Some(kernels)),
            Some(Err(reason)) => (Some(reason), None),
            None => (None, None),
        };
        let mut images = Vec::new();
        let origin = match (shipped, &compiler) {
            (Some(kernels), _) => {
                let known = kernels.families.into_iter().filter_map(|(name, image)| Some((Family::named(&name)?, image)));
                images.extend(known);
                kernels.origin
            }
            (None, Ok(compiler)) => {
                images = cached(arch, compiler, &options);
                match FAMILIES.len() - images.len() {
                    0 => "the cache".to_owned(),
                    missing => format!("NVRTC at the first start, which compiles {missing} of {} families", FAMILIES.len()),
                }
            }
            (None, Err(_)) => "nowhere: there is neither a folder that has them nor NVRTC".to_owned(),
        };
        images.retain(|(_, image)| cubin::is_elf(image));
        images.sort_by_key(|(family, _)| family.name);
        architectures.push(Table::new(arch, origin, not_shipped, &images)?);
    }
    let named = |card: &std::sync::Arc<Device>| format!("GPU {}: {}, {}", card.ordinal, card.name, Architecture::from(card.arch));
    Ok(Listed {
        families: FAMILIES.iter().map(|f| (f.name, f.kernels().into_iter().map(|(kernel, _)| kernel).collect())).collect(),
        gpus: match cards.is_empty() {
            true => why_no_more,
            false => cards.iter().map(named).collect::<Vec<_>>().join("; "),
        },
        folder: options.shipped_folder().map_or_else(
            || format!("none: {KERNELS_VARIABLE} names none, and there is no `kernels` beside the executable"),
            |folder| folder.display().to_string(),
        ),
        cache: options
            .cache_folder()
            .map_or_else(|| "none: neither XDG_CACHE_HOME nor HOME names a folder".into(), |f| f.display().to_string()),
        nvrtc: compiler.map_or_else(|e| format!("none: {e}"), |found| format!("{}, {}", found.version, found.place)),
        architectures,
    })
}

/// The cards that can be used, and why there are no more.
fn cards() -> (Vec<std::sync::Arc<Device>>, String) {
    let mut cards = Vec::new();
    loop {
        match Device::open(cards.len()) {
            Ok(card) => cards.push(card),
            Err(reason) => return (cards, reason.to_string()),
        }
    }
}
