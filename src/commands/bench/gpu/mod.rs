//! `adaroll bench gpu`: how fast a GPU runs models of random weights, beside what the same card does at best.
//!
//! Limits first: copies within the card, and its largest products. Then, for each shape: decode steps and prefill steps, the cost of invariance, every
//! kernel alone, and the engine. What does not fit the card's memory or the time given is left out, and the report says so.

mod engine;
mod handover;
mod invariance;
mod kernels;
mod limits;
mod report;
mod rig;
mod shapes;
mod steps;
mod stopwatch;
mod training;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::commands::jobs::utc;
use crate::model::backward::Recompute;
use crate::model::{ModelConfig, ModelError};
use crate::ops::BLOCK_TOKENS;
use crate::ops::cuda::compile::{KernelOptions, kernels_for};
use crate::ops::cuda::{CudaOps, CudaSettings, Device, GemmChoice, Unavailable};

pub use engine::EngineFigure;
pub use handover::{HandoverFigure, hold};
pub use invariance::CostFigure;
pub use kernels::KernelFigure;
pub use limits::Limits;
pub use report::Report;
pub use shapes::{SHAPES, Shape};
pub use steps::{DecodeFigure, PrefillFigure};
pub use training::TrainFigure;

use rig::Rig;
use stopwatch::Deadline;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Which of the machine's cards.
    pub ordinal: usize,
    /// A folder of kernels, looked at before anything is compiled.
    pub kernels: Option<PathBuf>,
    /// What multiplies.
    pub gemm: GemmChoice,
    /// Models.
    pub shapes: Vec<Shape>,
    /// Sequences of decode steps.
    pub batches: Vec<usize>,
    /// Positions of each sequence.
    pub contexts: Vec<usize>,
    /// Seconds that all of it may take, about.
    pub seconds: u64,
}

/// Figures of one shape.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ShapeReport {
    /// Its name.
    pub shape: &'static str,
    /// Numbers in its tensors.
    pub parameters: usize,
    /// Bytes of weights that a step reads.
    pub weight_bytes: f64,
    /// Bytes of keys and values that a position takes.
    pub kv_bytes_per_token: f64,
    /// Decode steps.
    pub decode: Vec<DecodeFigure>,
    /// Prefill steps.
    pub prefill: Vec<PrefillFigure>,
    /// Training steps.
    pub training: Vec<TrainFigure>,
    /// Weights from a trainer.
    pub handover: Vec<HandoverFigure>,
    /// What invariance costs.
    pub invariance: Vec<CostFigure>,
    /// The engine.
    pub engine: Vec<EngineFigure>,
    /// Kernels alone.
    pub kernels: Vec<KernelFigure>,
    /// What was not measured for want of time or memory.
    pub left_out: Vec<String>,
    /// What went wrong.
    pub failed: Vec<String>,
}

/// Why the bench failed.
#[derive(Debug, thiserror::Error)]
pub enum GpuBenchError {
    /// No card.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// No kernels.
    #[error("{0}")]
    Kernels(String),
    /// The shape.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The card or the engine on it.
    #[error("{0}")]
    Card(String),
}

/// How much is measured at a time.
struct Sizes {
    /// Seconds of a measurement; 0 measures once.
    effort: f64,
    /// Rows of the largest step.
    rows: usize,
    product_rows: &'static [usize],
    by_row: Vec<usize>,
    /// Prompts of prefill steps, and their lengths.
    prefills: Vec<(usize, usize)>,
    /// Sequences of a training step, and their length.
    training: (usize, usize),
    /// Prompt and answer of the engine's requests.
    request: (usize, usize),
    /// Most requests at a time.
    requests: usize,
}

/// Parameters of the largest model whose training is measured.
const MOST_TRAINED: usize = 2_500_000_000;

const FULL_ROWS: usize = 8192;
const TINY_ROWS: usize = 128;

impl Sizes {
    fn of(shape: Shape, workload: &Workload) -> Sizes {
        let (rows, longest) = if shape.is_tiny() { (TINY_ROWS, 96) } else { (FULL_ROWS, 4096) };
        let prefills = workload.contexts.iter().filter(|&&n| n <= longest).map(|&n| ((rows / n).max(1), n)).collect();
        match shape.is_tiny() {
            true => Sizes {
                effort: 0.0,
                rows,
                product_rows: &[1, 16, 64],
                by_row: vec![1, 16],
                prefills,
                training: (2, 48),
                request: (32, 8),
                requests: 4,
            },
            false => Sizes {
                effort: 0.03,
                rows,
                product_rows: &[1, 16, 64, 256, 2048, 8192],
                by_row: workload.batches.iter().copied().chain([FULL_ROWS]).collect(),
                prefills,
                training: (4, 2048),
                request: (1024, 128),
                requests: 64,
            },
        }
    }
}

/// Runs the bench; blocks. `say` is told what is being measured, `keep` is shown the report whenever a shape is done.
pub fn bench(workload: &Workload, say: impl Fn(&str), keep: impl Fn(&Report)) -> Result<Report, GpuBenchError> {
    let start = Instant::now();
    let end = start + Duration::from_secs(workload.seconds);
    say("the kernels");
    let (base, origin) = open(workload)?;
    let device = base.device().clone();
    let tiny = workload.shapes.iter().all(|s| s.is_tiny());
    say("the card's limits");
    let limits = limits::measure(&base, if tiny { 0.0 } else { 0.05 }, tiny)?;
    let mut report = Report {
        card: device.name.clone(),
        compute_capability: format!("{}.{}", device.arch.0, device.arch.1),
        multiprocessors: device.multiprocessors,
        memory_gib: device.memory().map_or(0, |(_, total)| total) as f64 / f64::from(1 << 30),
        driver: driver(),
        kernels: origin,
        gemm: workload.gemm.to_string(),
        date: utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())),
        seconds: 0.0,
        limits,
        shapes: Vec::new(),
    };
    for (done, &shape) in workload.shapes.iter().enumerate() {
        let now = Instant::now();
        let share = end.saturating_duration_since(now) / (workload.shapes.len() - done) as u32;
        let say = |what: &str| say(&format!("{}: {what}", shape.name));
        let found = one_shape(&base, shape, workload, &report.limits, now, share, say)?;
        report.shapes.push(found);
        report.seconds = start.elapsed().as_secs_f64();
        keep(&report);
    }
    Ok(report)
}

/// The card's operations, and where their kernels come from.
fn open(workload: &Workload) -> Result<(CudaOps, String), GpuBenchError> {
    let device = Device::open(workload.ordinal)?;
    let options = KernelOptions { shipped: workload.kernels.clone(), ..KernelOptions::default() };
    let images = kernels_for(device.arch, &options).map_err(|e| GpuBenchError::Kernels(e.to_string()))?;
    let tiny = workload.shapes.iter().all(|s| s.is_tiny());
    let usual = CudaSettings::default();
    let settings = CudaSettings { chunk_bytes: if tiny { 1 << 20 } else { usual.chunk_bytes }, ..usual };
    Ok((CudaOps::new(&device, &images, settings)?, images.origin.to_string()))
}

/// The driver's version, where the system tells.
fn driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let version = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(version).map(str::to_owned)
}

fn one_shape(
    base: &CudaOps,
    shape: Shape,
    workload: &Workload,
    limits: &Limits,
    start: Instant,
    time: Duration,
    say: impl Fn(&str),
) -> Result<ShapeReport, GpuBenchError> {
    let config: ModelConfig = shape.config()?;
    let sizes = Sizes::of(shape, workload);
    let most = workload.batches.iter().copied().max().unwrap_or(1);
    let longest = workload.contexts.iter().copied().max().unwrap_or(1);
    let mut report = ShapeReport {
        shape: shape.name,
        parameters: config.num_parameters(),
        weight_bytes: shapes::weight_bytes(&config),
        kv_bytes_per_token: shapes::kv_bytes(&config),
        decode: Vec::new(),
        prefill: Vec::new(),
        training: Vec::new(),
        handover: Vec::new(),
        invariance: Vec::new(),
        engine: Vec::new(),
        kernels: Vec::new(),
        left_out: Vec::new(),
        failed: Vec::new(),
    };
    let until = |share: f64| Deadline(start + time.mul_f64(share));
    // First, while the card holds nothing else.
    for recompute in [Recompute::None, Recompute::Layer] {
        let (sequences, length) = sizes.training;
        let kept = if recompute == Recompute::None { "activations kept" } else { "layers recomputed" };
        let name = format!("training {sequences} x {length}, {kept}");
        if config.num_parameters() > MOST_TRAINED || report.is_late(&name, until(0.25)) {
            continue;
        }
        say(&name);
        if let Some(found) = report.part(&name, training::measure(base, workload.gemm, shape, limits, sequences, length, recompute)) {
            let found = report.in_memory(&name, found);
            report.training.extend(found);
        }
    }
    let name = "weights from a trainer";
    if !report.is_late(name, until(0.3)) {
        say(name);
        if let Some(found) = report.part(name, handover::measure(base, shape, workload)) {
            let found = report.in_memory(name, found);
            report.handover.extend(found);
        }
    }
    say("making the weights");
    // A batch as large as a prefill step may have as many rows; a block a sequence is the least that the kernels' own batches need.
    let rows = sizes.rows.max(most);
    let blocks = (most * longest.div_ceil(BLOCK_TOKENS)).max(rows / BLOCK_TOKENS + 1);
    let rig = Rig::new(base, workload.gemm, shape, rows, most.max(16), blocks);
    let Some(mut rig) = report.part("everything", rig) else { return Ok(report) };
    for &context in &workload.contexts {
        for &batch in &workload.batches {
            let name = format!("decode {batch} x {context}");
            if report.is_late(&name, until(0.45)) {
                continue;
            }
            say(&name);
            if let Some(found) = report.part(&name, steps::decode(&mut rig, limits, batch, context, 10.0 * sizes.effort)) {
                let found = report.in_memory(&name, found);
                report.decode.extend(found);
            }
        }
    }
    for &(prompts, length) in &sizes.prefills {
        let name = format!("prefill {prompts} x {length}");
        if report.is_late(&name, until(0.55)) {
            continue;
        }
        say(&name);
        if let Some(found) = report.part(&name, steps::prefill(&mut rig, limits, prompts, length, 4.0 * sizes.effort)) {
            let found = report.in_memory(&name, found);
            report.prefill.extend(found);
        }
    }
    let name = "what invariance costs";
    say(name);
    let found = invariance::measure(&mut rig, &report.decode, &report.prefill, &mut report.invariance, sizes.effort, until(0.7));
    if let Some(true) = report.part(name, found) {
        report.left_out.push(format!("{name}, in part: no time"));
    }
    let name = "the kernels alone";
    say(name);
    let at = kernels::Sizes {
        product_rows: sizes.product_rows,
        rows: &sizes.by_row,
        batches: &workload.batches,
        contexts: &workload.contexts,
        prefills: &sizes.prefills,
    };
    let found = kernels::measure(&mut rig, limits, &at, &mut report.kernels, sizes.effort, until(0.85));
    if let Some(true) = report.part(name, found) {
        report.left_out.push(format!("{name}, in part: no time"));
    }
    let batch = workload.batches.iter().copied().filter(|&b| b <= sizes.requests).max().unwrap_or(1);
    let name = format!("the engine, {batch} requests");
    if !report.is_late(&name, until(0.95)) {
        say(&name);
        let (prompt, generated) = sizes.request;
        let measured = engine::measure(rig, limits, batch, prompt, generated, sizes.rows);
        let found = tokio::runtime::Handle::current().block_on(measured);
        let found = report.part(&name, found);
        report.engine.extend(found);
    }
    Ok(report)
}

impl ShapeReport {
    /// What a part gave; a part that failed is noted, and the others go on.
    fn part<T>(&mut self, name: &str, found: Result<T, GpuBenchError>) -> Option<T> {
        found.map_err(|e| self.failed.push(format!("{name}: {e}"))).ok()
    }

    fn is_late(&mut self, name: &str, deadline: Deadline) -> bool {
        let late = deadline.is_over();
        if late {
            self.left_out.push(format!("{name}: no time"));
        }
        late
    }

    fn in_memory<T>(&mut self, name: &str, found: Option<T>) -> Option<T> {
        if found.is_none() {
            self.left_out.push(format!("{name}: no room on this card"));
        }
        found
    }
}
