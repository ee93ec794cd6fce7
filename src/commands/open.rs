//! From a model folder to a running engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::device::DeviceChoice;
use crate::engine::{EngineSettings, LocalEngine};
use crate::model::weights::heads;
use crate::model::{Checkpoint, Dtype, LoadError, Model, ModelConfig, ModelText, TensorSet, TensorSource};
use crate::ops::Ops;
use crate::ops::cpu::{CpuOps, Isa};
use crate::ops::cuda::compile::{KernelOptions, kernels_for};
use crate::ops::cuda::gemm_choice::{Products, WeightShape};
use crate::ops::cuda::{CudaOps, CudaSettings, Device, GemmChoice, Unavailable};

/// Rows of a step where nothing else is asked for: a GPU's matrix units want more at a time.
const BATCH_TOKENS: (usize, usize) = (512, 8192);

/// Everything that decides how an engine runs, and nothing that decides what it draws (but for `ignore_eos`).
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The device.
    pub device: DeviceChoice,
    /// A folder of kernels made by `adaroll kernels build`, looked at before anything is compiled.
    pub kernels: Option<PathBuf>,
    /// What computes matrix products on a GPU.
    pub gemm: GemmChoice,
    /// Threads, the loop's own included.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// The model's stop tokens do not end samples.
    pub ignore_eos: bool,
    /// Batch, blocks and queue; `max_batch_tokens` 0 is the device's own: 512 on a CPU, 8192 on a GPU.
    pub settings: EngineSettings,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            // Who starts an engine from code says so if it is to be a GPU; the commands look for one.
            device: DeviceChoice::Cpu,
            kernels: None,
            gemm: GemmChoice::Auto,
            threads: default_threads(),
            isa: Isa::detect(),
            ignore_eos: false,
            settings: EngineSettings::default(),
        }
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
    let why_not_cuda = match options.device {
        DeviceChoice::Cpu => None,
        DeviceChoice::Cuda(ordinal) => match cuda(dir, ordinal, options)? {
            Ok((ops, packer)) => return start(dir, ops, packer, options, BATCH_TOKENS.1, None, progress),
            Err(reason) => return Err(LoadError::Device(format!("--device {}: {reason}", options.device))),
        },
        DeviceChoice::Auto => match cuda(dir, 0, options)? {
            Ok((ops, packer)) => return start(dir, ops, packer, options, BATCH_TOKENS.1, None, progress),
            Err(reason) => Some(reason.to_string()),
        },
    };
    if let Some(reason) = &why_not_cuda {
        tracing::info!("the model runs on the CPU: {reason}");
    }
    let ops = CpuOps::with_isa(options.threads, options.isa).map_err(LoadError::Threads)?;
    let packer = CpuOps::with_isa(1, options.isa).map_err(LoadError::Threads)?;
    start(dir, ops, packer, options, BATCH_TOKENS.0, why_not_cuda, progress)
}

/// What would compute, without a look at the model: a device in words, or why it is not there.
pub fn look_for(choice: DeviceChoice) -> Result<String, String> {
    let found = |ordinal| Device::open(ordinal).map(|d| format!("cuda:{ordinal} {}", d.name)).map_err(|e| e.to_string());
    match choice {
        DeviceChoice::Cpu => Ok("cpu".into()),
        DeviceChoice::Cuda(ordinal) => found(ordinal),
        DeviceChoice::Auto => Ok(found(0).unwrap_or_else(|reason| format!("cpu: {reason}"))),
    }
}

/// A GPU's operations for the model in `dir`, and others that pack its new weights; or why there are none. The outer error is the model's.
fn cuda(dir: &Path, ordinal: usize, options: &EngineOptions) -> Result<Result<(CudaOps, CudaOps), Unavailable>, LoadError> {
    let opened = Device::open(ordinal).and_then(|device| cuda_on(&device, options));
    let (mut ops, packer) = match opened {
        Ok(both) => both,
        Err(reason) => return Ok(Err(reason)),
    };
    let config = ModelConfig::from_folder(dir)?;
    if let Some(reason) = ops.refuses(heads(&config)) {
        return Ok(Err(Unavailable::because(reason)));
    }
    if let Some(dtype) = stored_dtype(dir, &config)? {
        tracing::info!("the weights are {dtype}; the GPU computes with their values rounded to BF16");
    }
    let products = products(&config, &options.settings);
    ops.prepare_products(options.gemm, &products).map_err(|reason| LoadError::Device(format!("--gemm {}: {reason}", options.gemm)))?;
    Ok(Ok((ops, packer)))
}

/// The matrix products of a model's steps.
pub(crate) fn products(config: &ModelConfig, settings: &EngineSettings) -> [Products; 5] {
    let heads = heads(config);
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    let rows = if settings.max_batch_tokens == 0 { BATCH_TOKENS.1 } else { settings.max_batch_tokens };
    let layer = |outputs, inputs| Products { shape: WeightShape { outputs, inputs, wide: false, back: false }, most_rows: rows };
    let head = WeightShape { outputs: config.vocab_size, inputs: hidden, wide: true, back: false };
    [
        layer(heads.qkv_cols(), hidden),
        layer(hidden, heads.query * heads.dim),
        layer(2 * wide, hidden),
        layer(hidden, wide),
        Products { shape: head, most_rows: settings.max_sequences },
    ]
}

fn cuda_on(device: &Arc<Device>, options: &EngineOptions) -> Result<(CudaOps, CudaOps), Unavailable> {
    let kernel_options = KernelOptions { shipped: options.kernels.clone(), ..KernelOptions::default() };
    let images = kernels_for(device.arch, &kernel_options).map_err(|e| Unavailable::because(e.to_string()))?;
    tracing::info!("GPU {} is a {}; its kernels come from {}", device.ordinal, device.name, images.origin);
    let ops = CudaOps::new(device, &images, CudaSettings::default())?;
    let packer = ops.another()?;
    Ok((ops, packer))
}

/// The type of a checkpoint's weights where it is not BF16.
fn stored_dtype(dir: &Path, config: &ModelConfig) -> Result<Option<Dtype>, LoadError> {
    let checkpoint = Checkpoint::open(dir, config)?;
    let other = config.tensors().iter().find_map(|(name, _)| match checkpoint.tensor(name) {
        Ok(tensor) if tensor.dtype != Dtype::Bf16 => Some(tensor.dtype),
        _ => None,
    });
    Ok(other)
}

/// Loads the model for these operations and starts its engine.
fn start<O: Ops + 'static>(
    dir: &Path,
    ops: O,
    packer: O,
    options: &EngineOptions,
    batch_tokens: usize,
    why_not_cuda: Option<String>,
    progress: impl FnMut(usize, usize),
) -> Result<Opened, LoadError> {
    let mut model = Model::load(&ops, dir, progress)?;
    if let Some(reason) = ops.failure() {
        return Err(LoadError::Device(reason));
    }
    if options.ignore_eos {
        model.stop_token_ids.clear();
    }
    let digest = digest(dir, &model.stop_token_ids).map_err(LoadError::Digest)?;
    let text = ModelText::from_folder(dir, model.tokenizer.clone())?;
    let weights = TensorSet::of_model(Checkpoint::open(dir, &model.config)?, &model.config)?;
    let mut settings = options.settings.clone();
    if settings.max_batch_tokens == 0 {
        settings.max_batch_tokens = batch_tokens;
    }
    let mut engine = LocalEngine::start_with(ops, Some(packer), model, &settings).map_err(LoadError::Start)?;
    engine.say_why_not_cuda(why_not_cuda);
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
