//! Where a trainer computes: the CPU or a GPU, what was asked for and what there is; and whether a run fits its memory, before anything is allocated.

use std::path::Path;

use super::learner::{Learn, Learner, Plan, PolicyError, Score};
use super::settings;
use crate::commands::device::DeviceChoice;
use crate::commands::open::{default_threads, products};
use crate::engine::EngineSettings;
use crate::model::backward::{Recompute, Training};
use crate::model::params::Params;
use crate::model::weights::heads;
use crate::model::{ModelConfig, TensorSource};
use crate::ops::cpu::CpuOps;
use crate::ops::cuda::compile::{KernelOptions, kernels_for};
use crate::ops::cuda::gemm_choice::Products;
use crate::ops::cuda::{Communicator, CudaOps, CudaSettings, Device, GemmChoice, Unavailable, UniqueId};
use crate::ops::{Ops, TrainOps};

/// A device that models are trained on.
pub enum Backend {
    /// The CPU, with so many threads.
    Cpu(usize),
    /// A GPU. Every model gets operations of its own out of these, with the same kernels; and what multiplies on its way forward.
    Cuda(Box<CudaOps>, GemmChoice),
}

impl Backend {
    /// The device that the settings ask for. The error names the setting.
    pub fn open(settings: &settings::Model) -> Result<Backend, String> {
        let threads = if settings.threads == 0 { default_threads() } else { settings.threads };
        let choice: DeviceChoice = settings.device.parse().map_err(|problem| format!("model.device: {problem}"))?;
        let gemm: GemmChoice = settings.gemm.parse().map_err(|problem| format!("model.gemm: {problem}"))?;
        let cuda = |ordinal| Device::open(ordinal).and_then(|device| cuda_on(&device, &settings.kernels));
        match choice {
            DeviceChoice::Cpu => Ok(Backend::Cpu(threads)),
            DeviceChoice::Cuda(ordinal) => match cuda(ordinal) {
                Ok(ops) => Ok(Backend::Cuda(Box::new(ops), gemm)),
                Err(reason) => Err(format!("model.device: {choice}: {reason}")),
            },
            DeviceChoice::Auto => match cuda(0) {
                Ok(ops) => Ok(Backend::Cuda(Box::new(ops), gemm)),
                Err(reason) => {
                    tracing::info!("training runs on the CPU: {reason}");
                    Ok(Backend::Cpu(threads))
                }
            },
        }
    }

    /// The device in words.
    pub fn name(&self) -> String {
        match self {
            Backend::Cpu(threads) => format!("cpu, {threads} threads"),
            Backend::Cuda(ops, _) => ops.device_name(),
        }
    }

    /// Joins the other ranks of a run, as one of `ranks`. Learners made after this sum their gradients over all of them.
    pub fn join(&mut self, id: &UniqueId, ranks: usize, rank: usize) -> Result<Communicator, String> {
        let Backend::Cuda(ops, _) = self else { return Err("parallel.ranks needs GPUs".into()) };
        let communicator = Communicator::join(ops.device(), id, ranks, rank).map_err(|e| e.to_string())?;
        ops.join(communicator.clone());
        Ok(communicator)
    }

    /// Whether it is a GPU.
    pub fn is_cuda(&self) -> bool {
        matches!(self, Backend::Cuda(..))
    }

    /// Why the device has no kernels for the model.
    pub fn refuses(&self, config: &ModelConfig) -> Option<String> {
        let Backend::Cuda(ops, _) = self else { return None };
        ops.refuses(heads(config)).map(|reason| format!("model.device: {reason}"))
    }

    /// A model in training, and the backend and kernels that compute it.
    pub fn learner(&self, base: &Params, plan: &Plan<'_>, offload: bool) -> Result<(Box<dyn Learn>, String), PolicyError> {
        fn boxed<O: TrainOps + 'static>(ops: O, base: &Params, plan: &Plan<'_>) -> Result<(Box<dyn Learn>, String), PolicyError> {
            let id = ops.numerics_id();
            Ok((Box::new(Learner::new(ops, base, plan)?), id))
        }
        match self {
            Backend::Cpu(threads) => boxed(cpu(*threads)?, base, plan),
            Backend::Cuda(ops, gemm) => {
                let communicator = ops.communicator().cloned();
                let mut ops = another(ops, *gemm, plan.config)?;
                if let Some(communicator) = communicator {
                    ops.join(communicator);
                }
                if offload {
                    ops.offload_moments();
                }
                boxed(ops, base, plan)
            }
        }
    }

    /// A model that only scores.
    pub fn scorer(&self, config: &ModelConfig, weights: &dyn TensorSource) -> Result<Box<dyn Score>, PolicyError> {
        fn boxed<O: TrainOps + 'static>(ops: O, config: &ModelConfig, weights: &dyn TensorSource) -> Result<Box<dyn Score>, PolicyError> {
            let mut scorer = Training::new(ops, config, Recompute::Layer);
            scorer.set_weights(weights)?;
            Ok(Box::new(scorer))
        }
        match self {
            Backend::Cpu(threads) => boxed(cpu(*threads)?, config, weights),
            Backend::Cuda(ops, gemm) => boxed(another(ops, *gemm, config)?, config, weights),
        }
    }

    /// Whether a run fits the card. `reference`: another model stays for the KL penalty. The error says how much is missing, of what, and which
    /// setting would make it fit.
    pub fn check_memory(&self, config: &ModelConfig, settings: &settings::Settings, reference: bool) -> Result<Option<Need>, String> {
        let Backend::Cuda(ops, _) = self else { return Ok(None) };
        let free = ops.free_memory().unwrap_or(u64::MAX);
        let budget = match settings.model.memory_gib {
            0.0 => free,
            gib => free.min((gib * GIB) as u64),
        };
        let need = |change: &dyn Fn(&mut settings::Settings)| {
            let mut changed = settings.clone();
            change(&mut changed);
            Need::of(ops, config, &changed, reference)
        };
        let now = need(&|_| {});
        if now.total() <= budget {
            return Ok(Some(now));
        }
        let layer = |s: &mut settings::Settings| s.model.recompute = Recompute::Layer;
        let offload = |s: &mut settings::Settings| s.model.optimizer_offload = true;
        let tokens = |s: &mut settings::Settings| s.update.micro_batch_tokens = s.update.micro_batch_tokens.min(1024);
        type Change<'a> = &'a dyn Fn(&mut settings::Settings);
        let recipes: [(&str, Change<'_>); 5] = [
            ("set model.recompute = \"layer\"", &layer),
            ("set update.micro_batch_tokens = 1024", &tokens),
            ("set model.optimizer_offload = true", &offload),
            ("set model.recompute = \"layer\" and model.optimizer_offload = true", &|s| {
                layer(s);
                offload(s);
            }),
            ("set model.recompute = \"layer\", model.optimizer_offload = true and update.micro_batch_tokens = 1024", &|s| {
                layer(s);
                offload(s);
                tokens(s);
            }),
        ];
        let remedy = recipes.iter().find(|(_, change)| need(*change).total() <= budget).map_or(
            "no setting of this run would make it fit: use a smaller model, or a card with more memory".to_owned(),
            |(words, change)| format!("{words} (then {})", gib(need(*change).total())),
        );
        let limit = if budget < free { " within model.memory_gib" } else { "" };
        Err(format!("training on {} needs {} ({now}), {} free{limit}: {remedy}", self.name(), gib(now.total()), gib(budget)))
    }
}

fn cpu(threads: usize) -> Result<CpuOps, PolicyError> {
    let refused = |e| PolicyError::Setting(format!("the threads of the trainer cannot be started: {e}; lower model.threads"));
    CpuOps::new(threads).map_err(refused)
}

/// Operations that multiply as an engine's do which was started with the same choice: the same bits. Gradients of weights are our own kernels' alone:
/// a library adds what a gradient held at the end, and a batch that is cut would have other bits.
fn another(ops: &CudaOps, gemm: GemmChoice, config: &ModelConfig) -> Result<CudaOps, PolicyError> {
    let mut ops = ops.another().map_err(|e| PolicyError::Setting(format!("model.device: {e}")))?;
    let refused = |reason| PolicyError::Setting(format!("model.gemm: {gemm}: {reason}"));
    ops.prepare_products(gemm, &training_products(config, ops.chunk_logits())).map_err(refused)?;
    Ok(ops)
}

/// The products of the way forward as an engine has them, so that the same is chosen, and those of the way back, which come with as many logits at a
/// time.
pub(crate) fn training_products(config: &ModelConfig, logits: usize) -> Vec<Products> {
    let forward = products(config, &EngineSettings::default());
    let rows = |p: &Products| if p.shape.wide { (logits / config.vocab_size).max(1) } else { p.most_rows };
    let back = forward.map(|p| Products { shape: p.shape.backwards(), most_rows: rows(&p) });
    forward.into_iter().chain(back).collect()
}

fn cuda_on(device: &std::sync::Arc<Device>, kernels: &Path) -> Result<CudaOps, Unavailable> {
    let shipped = (!kernels.as_os_str().is_empty()).then(|| kernels.to_owned());
    let options = KernelOptions { shipped, ..KernelOptions::default() };
    let images = kernels_for(device.arch, &options).map_err(|e| Unavailable::because(e.to_string()))?;
    tracing::info!("GPU {} is a {}; its kernels come from {}", device.ordinal, device.name, images.origin);
    CudaOps::new(device, &images, CudaSettings { graphs: false, ..CudaSettings::default() })
}

const GIB: f64 = (1u64 << 30) as f64;

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB)
}

/// Bytes that a run takes on a card at its peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Serving weights, the reference's too.
    pub weights: u64,
    /// f32 masters, and the base under adapters.
    pub masters: u64,
    /// Gradients of all parameters, and of adapters; and the sum of an update's parts.
    pub gradients: u64,
    /// What AdamW keeps.
    pub moments: u64,
    /// Activations of a micro-batch, both ways.
    pub activations: u64,
    /// What operations need between two kernels.
    pub scratch: u64,
}

impl Need {
    fn of(ops: &CudaOps, config: &ModelConfig, settings: &settings::Settings, reference: bool) -> Need {
        let flat = |n: usize| (4 * n).next_multiple_of(256) as u64;
        let all: u64 = config.tensors().iter().map(|(_, shape)| flat(shape.iter().product())).sum();
        let adapted = |(name, shape): &(String, Vec<usize>)| {
            let projection = name.strip_suffix(".weight").and_then(|module| module.rsplit('.').next()).unwrap_or_default();
            let adapts = shape.len() == 2 && settings.lora.targets.iter().any(|target| target == projection);
            if adapts { flat(settings.lora.rank * shape[0]) + flat(settings.lora.rank * shape[1]) } else { 0 }
        };
        let adapters: u64 = config.tensors().iter().map(adapted).sum();
        let lora = settings.lora.rank > 0;
        let trained = if lora { adapters } else { all };
        let rows = rows_of(settings);
        let scoring = Training::<CudaOps>::activation_bytes(ops, config, Recompute::Layer, rows);
        let models = if reference { 2 } else { 1 };
        Need {
            weights: models * ops.weight_bytes(config),
            masters: if lora { all + adapters } else { all },
            gradients: if lora { all + adapters } else { all } + if settings.parts_here() > 1 { trained } else { 0 },
            moments: if settings.model.optimizer_offload { 0 } else { 2 * trained },
            activations: Training::<CudaOps>::activation_bytes(ops, config, settings.model.recompute, rows)
                + if reference { scoring } else { 0 },
            scratch: ops.training_scratch_bytes(config, rows, settings.model.optimizer_offload),
        }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.masters + self.gradients + self.moments + self.activations + self.scratch
    }
}

impl std::fmt::Display for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Need { weights, masters, gradients, moments, activations, scratch } = *self;
        let parts = [
            ("weights", weights),
            ("masters", masters),
            ("gradients", gradients),
            ("moments", moments),
            ("activations", activations),
            ("scratch", scratch),
        ];
        let parts: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {:.2}", *bytes as f64 / GIB)).collect();
        f.write_str(&parts.join(", "))
    }
}

/// Rows of the largest micro-batch: its tokens, where sequences begin at whole groups of rows.
pub fn rows_of(settings: &settings::Settings) -> usize {
    // A sequence of n tokens has n - 1 rows; a group of rows is 16 tokens, and sequences shorter than that are rare.
    settings.update.micro_batch_tokens.next_multiple_of(16)
}
