//! `adaroll bench decode`: how fast this machine samples, and how much of what it could do that is.
//!
//! End to end is everything from the first submit to the last finished sample. Decode alone is the time beyond that of the same prompts with one
//! token each: `batch * (tokens - 1) / (end to end - prefill)`. The ceilings are measured by the same command on the same threads; a GPU's are for
//! `adaroll bench gpu` to say.

use std::path::Path;
use std::time::Instant;

use super::measure::{median, peak_memory_mib};
use crate::commands::generate::{Request, generate};
use crate::commands::open::{EngineOptions, Opened, open};
use crate::engine::{Engine, EngineSettings, SamplingParams, SubmitError};
use crate::model::weights::matrix_parameters;
use crate::model::{Dtype, LoadError, ModelConfig, TensorSource};
use crate::ops::cpu::limits::{Ceilings, measure};

/// The workload.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Workload {
    /// Prompts.
    pub prompts: usize,
    /// Samples of each.
    pub samples: u32,
    /// Tokens of each sample; stop tokens are ignored.
    pub tokens: u32,
    /// Tokens of each prompt, which are then made up; `None` takes the peers' prompts.
    pub prompt_tokens: Option<u32>,
    /// Repetitions; medians are reported.
    pub reps: usize,
}

/// One batch size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BatchFigures {
    /// Sequences at a time.
    pub batch: usize,
    /// Generated tokens over the whole time.
    pub end_to_end_tokens_per_s: f64,
    /// Generated tokens over the time beyond prefill.
    pub decode_tokens_per_s: f64,
}

/// Everything that the command prints.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The device.
    pub device: String,
    /// Instruction set of the host.
    pub isa: String,
    /// Threads.
    pub threads: usize,
    /// The workload.
    pub workload: Workload,
    /// Batch 1, 8 and prompts x samples.
    pub batches: Vec<BatchFigures>,
    /// Tokens of all prompts, each once.
    pub prompt_tokens: usize,
    /// Prompt tokens that the engine computed in one run of the full batch.
    pub prompt_tokens_computed: u64,
    /// Prompt tokens over the time to each prompt's first token.
    pub prefill_tokens_per_s: f64,
    /// Reading, verifying and packing the model.
    pub startup_s: f64,
    /// Most memory that the process ever held.
    pub peak_memory_mib: Option<f64>,
    /// Weight bytes that one step reads.
    pub weight_bytes: usize,
    /// What the CPU can do at best, where it computes.
    pub cpu: Option<CpuShare>,
}

/// The CPU's ceilings, and the share of them that decode reaches.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct CpuShare {
    /// The machine's ceilings.
    pub ceilings: Ceilings,
    /// Bytes of weights read per second in decode at batch 1, over the read bandwidth.
    pub bandwidth_fraction: f64,
    /// Operations of the matrix products per second in decode at the full batch, over the FMA rate.
    pub flops_fraction: f64,
}

/// Why a bench failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A request.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The prompts.
    #[error("{0}")]
    Prompts(String),
}

/// Eight chat prompts of grade-school problems, separated by 0x1e; the peers' programs read the same file.
const PROMPTS: &str = include_str!("../../../benches/peers/prompts.txt");

/// Runs the bench. `say` is told what is being measured.
pub async fn bench(dir: &Path, workload: Workload, options: &EngineOptions, say: impl Fn(&str)) -> Result<Report, BenchError> {
    say("loading the model");
    let config = ModelConfig::from_folder(dir).map_err(LoadError::from)?;
    let full = workload.prompts * workload.samples as usize;
    let mut options = options.clone();
    options.ignore_eos = true;
    // Every repetition computes its prompts again; samples of one prompt still share them.
    options.settings = EngineSettings { prefix_cache: false, max_sequences: options.settings.max_sequences.max(full), ..options.settings };
    let start = Instant::now();
    let opened = open(dir, &options, |_, _| {})?;
    let startup_s = start.elapsed().as_secs_f64();
    let device = opened.engine.info().device.clone();
    let on_cpu = device == "cpu";
    let ceilings = on_cpu.then(|| {
        say("measuring this machine's ceilings");
        measure(options.isa, options.threads)
    });
    let prompts = prompts(&opened, &workload, config.vocab_size)?;
    let prompt_tokens = prompts.iter().map(Vec::len).sum();

    let mut batches = Vec::new();
    let mut prefill = Vec::new();
    let mut computed = 0;
    for (batch, taken, samples) in [(1, 1, 1), (8, 8.min(workload.prompts), 1), (full, workload.prompts, workload.samples)] {
        if batches.iter().any(|b: &BatchFigures| b.batch == batch) || batch > full {
            continue;
        }
        say(&format!("batch {batch}: {} repetitions", workload.reps));
        let (mut whole, mut alone) = (Vec::new(), Vec::new());
        for rep in 0..workload.reps as u64 {
            let (first, _) = run(&opened, &prompts[..taken], samples, 1, rep).await?;
            let (total, tokens) = run(&opened, &prompts[..taken], samples, workload.tokens, rep).await?;
            if taken == workload.prompts {
                prefill.push(prompt_tokens as f64 / first);
            }
            let generated = (batch as u32 * workload.tokens) as f64;
            whole.push(generated / total);
            alone.push((generated - batch as f64) / (total - first).max(1e-9));
            computed = tokens;
        }
        batches.push(BatchFigures { batch, end_to_end_tokens_per_s: median(&mut whole), decode_tokens_per_s: median(&mut alone) });
    }
    let parameters = matrix_parameters(&config);
    // A GPU holds BF16 whatever the folder holds.
    let weight_bytes = parameters * if !on_cpu || is_bf16(dir, &config)? { 2 } else { 4 };
    let one = batches.first().map_or(0.0, |b| b.decode_tokens_per_s);
    let many = batches.last().map_or(0.0, |b| b.decode_tokens_per_s);
    Ok(Report {
        device,
        isa: options.isa.to_string(),
        threads: options.threads,
        workload,
        batches,
        prompt_tokens,
        prompt_tokens_computed: computed,
        prefill_tokens_per_s: median(&mut prefill),
        startup_s,
        peak_memory_mib: peak_memory_mib(),
        weight_bytes,
        cpu: ceilings.map(|ceilings| CpuShare {
            ceilings,
            bandwidth_fraction: one * weight_bytes as f64 / 1e9 / ceilings.read_gb_per_s,
            flops_fraction: many * 2.0 * parameters as f64 / 1e9 / ceilings.fma_gflop_per_s,
        }),
    })
}

/// The peers' prompts, or made-up ids where the model has no tokenizer, more prompts are wanted, or prompts of a given length;
/// `benches/peers/transformers_batch.py` makes up the same.
fn prompts(opened: &Opened, workload: &Workload, vocab: usize) -> Result<Vec<Vec<u32>>, BenchError> {
    let texts: Vec<&str> = PROMPTS.split('\u{1e}').collect();
    let real = opened.text.has_tokenizer() && workload.prompt_tokens.is_none();
    let length = workload.prompt_tokens.unwrap_or(96);
    (0..workload.prompts)
        .map(|i| match texts.get(i) {
            Some(text) if real => opened.text.encode_text(text).map_err(BenchError::Prompts),
            _ => Ok((0..length).map(|t| (t * 31 + i as u32 * 7 + 3) % vocab as u32).collect()),
        })
        .collect()
}

/// Seconds of one run, and the prompt tokens that it computed.
async fn run(opened: &Opened, prompts: &[Vec<u32>], samples: u32, tokens: u32, seed: u64) -> Result<(f64, u64), SubmitError> {
    let before = opened.engine.stats().prompt_tokens_computed;
    let params = SamplingParams { max_tokens: tokens, ..SamplingParams::default() };
    let request = Request { prompts: prompts.to_vec(), samples, seed, params, submit_order_seed: None };
    let start = Instant::now();
    generate(&opened.engine, &request, |_| {}, |_, _| {}).await?;
    let seconds = start.elapsed().as_secs_f64();
    // The loop publishes its counters after it has sent the last event.
    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    Ok((seconds, opened.engine.stats().prompt_tokens_computed - before))
}

fn is_bf16(dir: &Path, config: &ModelConfig) -> Result<bool, LoadError> {
    let checkpoint = crate::model::Checkpoint::open(dir, config)?;
    Ok(checkpoint.tensor("model.embed_tokens.weight")?.dtype == Dtype::Bf16)
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let w = &self.workload;
        writeln!(
            f,
            "{} prompts x {} samples x {} tokens on {}, {} threads, {}, median of {}",
            w.prompts, w.samples, w.tokens, self.device, self.threads, self.isa, w.reps
        )?;
        if let Some(cpu) = &self.cpu {
            writeln!(f, "ceilings       read {:.1} GB/s, FMA {:.1} GFLOP/s", cpu.ceilings.read_gb_per_s, cpu.ceilings.fma_gflop_per_s)?;
        }
        for b in &self.batches {
            writeln!(
                f,
                "batch {:<8} {:>8.1} tokens/s end to end, {:>8.1} tokens/s in decode",
                b.batch, b.end_to_end_tokens_per_s, b.decode_tokens_per_s
            )?;
        }
        writeln!(
            f,
            "prefill        {:.1} tokens/s ({} prompt tokens, {} computed for all samples)",
            self.prefill_tokens_per_s, self.prompt_tokens, self.prompt_tokens_computed
        )?;
        write!(f, "start-up       {:.2} s", self.startup_s)?;
        if let Some(mib) = self.peak_memory_mib {
            write!(f, "\npeak memory    {mib:.0} MiB")?;
        }
        if let Some(cpu) = &self.cpu {
            write!(f, "\nbandwidth      {:.0} % of the read ceiling in decode at batch 1", 100.0 * cpu.bandwidth_fraction)?;
            write!(f, "\narithmetic     {:.0} % of the FMA ceiling in decode at the full batch", 100.0 * cpu.flops_fraction)?;
        }
        Ok(())
    }
}
