//! The command line.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adaroll::commands::bench::{decode, gpu, schedule, train as bench_train};
use adaroll::commands::device::DeviceChoice;
use adaroll::commands::open::{EngineOptions, Opened, default_threads, open};
use adaroll::commands::{check, demo, generate, inspect, jobs, kernels, prompts, report, rollout, score, serve, train, verify};
use adaroll::config::LogFormat;
use adaroll::engine::{EngineSettings, SamplingParams};
use adaroll::model::backward::Recompute;
use adaroll::ops::cpu::Isa;
use adaroll::ops::cuda::GemmChoice;
use adaroll::trainer::{self, checkpoint::State, journal::Numbers};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

/// Samples answers to prompts with a language model, keeps sampling each prompt until it has both successes and failures, and hands
/// balanced groups to a trainer. The same weights, request and seed give the same tokens, log-probability bits and groups at any load.
#[derive(Parser)]
#[command(name = "adaroll", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    #[command(verbatim_doc_comment)]
    Train(train::TrainArgs),
    #[command(verbatim_doc_comment)]
    Demo(demo::DemoArgs),
    #[command(verbatim_doc_comment)]
    Report(report::ReportArgs),
    #[command(verbatim_doc_comment)]
    Rollout(Box<rollout::RolloutArgs>),
    #[command(verbatim_doc_comment)]
    Verify(Box<verify::VerifyArgs>),
    /// Look at the jobs in a store, export their groups, or delete old ones.
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Sample answers to prompts and print them.
    Generate(GenerateArgs),
    /// Print the log-probabilities that a model gives to sequences.
    Score(ScoreArgs),
    /// Look at a model folder, or check it against reference values.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Compile the kernels of GPUs ahead of time, or see where they would come from.
    #[command(subcommand)]
    Kernels(kernels::KernelsCommand),
    /// Measure speed, beside the ceilings of this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
}

#[derive(Subcommand)]
enum ModelCommand {
    /// Say what a Hugging Face folder holds.
    Inspect {
        /// The folder.
        dir: PathBuf,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Compare a checkpoint with the expected.safetensors beside it (logits and greedy continuations). Exit status 1 if they differ.
    Check {
        /// The folder.
        dir: PathBuf,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        machine: MachineArgs,
    },
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Tokens per second end to end and in decode, for batch 1, 8 and prompts x samples.
    Decode {
        /// Hugging Face folder of the model.
        #[arg(long)]
        model: PathBuf,
        /// Prompts.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
        prompts: u32,
        /// Samples of each prompt.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
        samples: u32,
        /// Tokens of each sample.
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..))]
        tokens: u32,
        /// Make up prompts of so many tokens [default: grade-school problems].
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
        prompt_tokens: Option<u32>,
        /// Repetitions; medians are printed.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        reps: u32,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// Tokens per second of whole training steps: forward, backward, AdamW and packing the new weights, in f32.
    Train {
        /// Hugging Face folder of the model.
        #[arg(long)]
        model: PathBuf,
        /// Tokens of each sequence.
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
        sequence_length: u32,
        /// Sequences of a step.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=65536))]
        batch: u32,
        /// Steps; medians are printed.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        steps: u32,
        /// Keep only the input of each layer between forward and backward.
        #[arg(long)]
        recompute: bool,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        machine: MachineArgs,
    },
    /// A GPU alone: its limits, decode and prefill steps, kernels and the engine, on random weights of Qwen3's shapes.
    Gpu {
        /// The GPU: cuda or cuda:N.
        #[arg(long, default_value_t = DeviceChoice::Cuda(0))]
        device: DeviceChoice,
        /// Folder of kernels made by `adaroll kernels build` [default: compiled at the first start and kept].
        #[arg(long, value_name = "DIR")]
        kernels: Option<PathBuf>,
        /// What multiplies: auto, own or cublaslt.
        #[arg(long, default_value_t = GemmChoice::Auto)]
        gemm: GemmChoice,
        /// Models: 0.6b, 1.7b, 4b, 8b; tiny is for emulated cards.
        #[arg(long, value_delimiter = ',', default_value = "0.6b,1.7b,4b,8b")]
        shapes: Vec<gpu::Shape>,
        /// Sequences of decode steps [default: 1,16,64,256; for tiny 1,4].
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
        batches: Vec<u32>,
        /// Positions of each sequence [default: 1024,4096; for tiny 32,96].
        #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=40_960))]
        contexts: Vec<u32>,
        /// Seconds that all of it may take, about; what does not fit is left out.
        #[arg(long, default_value_t = 240, value_parser = clap::value_parser!(u32).range(1..=86_400))]
        seconds: u32,
        /// Write every figure to this file, as JSON.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Hold weights of the first shape on the card for a bench in another process.
        #[arg(long, hide = true)]
        hold: bool,
    },
    /// Engine steps that the width planner needs, beside rounds and one sample at a time: the real job on a simulated engine.
    Schedule {
        /// Prompts of a job; engines have a quarter as many slots, as many, and four times as many.
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=16384))]
        prompts: u32,
        /// Workloads of each mix; means are printed.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
        reps: u32,
        /// The planner starts a sample that is needed with at least this probability.
        #[arg(long, default_value_t = schedule::Q_MIN, value_parser = probability)]
        q_min: f64,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err("give a number from 0 to 1".into()),
    }
}

/// What runs the arithmetic. Changes no bit of any result.
#[derive(Args)]
struct MachineArgs {
    /// Threads [default: one a core].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Instruction set: scalar, avx2 or avx512 [default: the best this machine has].
    #[arg(long)]
    isa: Option<Isa>,
}

impl MachineArgs {
    fn threads(&self) -> usize {
        self.threads.map_or_else(default_threads, usize::from)
    }

    fn isa(&self) -> Isa {
        self.isa.unwrap_or_else(Isa::detect)
    }
}

/// How an engine runs. Changes no bit of any result, but for --ignore-eos, and for --device and --gemm: a GPU rounds to BF16, and cuBLASLt adds in
/// an order of its own.
#[derive(Args)]
struct EngineArgs {
    /// What computes: auto (the first GPU that can be used, else the CPU), cpu, cuda or cuda:N.
    #[arg(long, default_value_t = DeviceChoice::Auto)]
    device: DeviceChoice,
    /// Folder of kernels made by `adaroll kernels build` [default: compiled at the first start and kept].
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,
    /// Matrix products on a GPU: auto (cuBLASLt where it is exact and faster), own or cublaslt.
    #[arg(long, default_value_t = GemmChoice::Auto)]
    gemm: GemmChoice,
    #[command(flatten)]
    machine: MachineArgs,
    /// Tokens computed in one step, prompts and answers together [default: 512 on a CPU, 8192 on a GPU].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_batch_tokens: Option<u32>,
    /// Sequences that run at a time.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    max_sequences: u32,
    /// KV blocks of 16 tokens [default: a quarter of the free memory, at most 4 GiB].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    kv_blocks: Option<u32>,
    /// Do not look for prefixes that were computed before.
    #[arg(long)]
    no_prefix_cache: bool,
    /// The model's own stop tokens do not end a sample.
    #[arg(long)]
    ignore_eos: bool,
}

impl EngineArgs {
    fn options(&self) -> EngineOptions {
        EngineOptions {
            device: self.device,
            kernels: self.kernels.clone(),
            gemm: self.gemm,
            threads: self.machine.threads(),
            isa: self.machine.isa(),
            ignore_eos: self.ignore_eos,
            settings: EngineSettings {
                max_batch_tokens: self.max_batch_tokens.unwrap_or(0) as usize,
                max_sequences: self.max_sequences as usize,
                kv_blocks: self.kv_blocks.map(|n| n as usize),
                prefix_cache: !self.no_prefix_cache,
                ..EngineSettings::default()
            },
        }
    }
}

#[derive(Args)]
struct GenerateArgs {
    /// Hugging Face folder of the model.
    #[arg(long)]
    model: PathBuf,
    /// One prompt as plain text.
    #[arg(long, required_unless_present = "prompts", conflicts_with = "prompts")]
    prompt: Option<String>,
    /// The prompt is the user's message of a conversation: put it through the chat template.
    #[arg(long, requires = "prompt")]
    chat: bool,
    /// Prompts, one JSON object a line with `messages`, `text` or `token_ids`.
    #[arg(long)]
    prompts: Option<PathBuf>,
    /// Samples of each prompt.
    #[arg(short = 'n', long = "samples", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    samples: u32,
    /// 0 takes the most likely token.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Keep the most likely tokens up to this probability.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Drop tokens less likely than this share of the most likely one.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Seed of the random streams.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most tokens of a sample.
    #[arg(long, default_value_t = 256)]
    max_tokens: u32,
    /// Fewest tokens of a sample.
    #[arg(long, default_value_t = 0)]
    min_tokens: u32,
    /// End a sample where its text holds this string; may be given several times.
    #[arg(long)]
    stop: Vec<String>,
    /// End a sample after this token id; may be given several times.
    #[arg(long)]
    stop_token_id: Vec<u32>,
    /// One JSON object a sample on stdout, in (prompt, index) order.
    #[arg(long)]
    json: bool,
    /// For tests: submit the samples in an order shuffled with this seed. Changes nothing in the output.
    #[arg(long)]
    submit_order_seed: Option<u64>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Args)]
struct ScoreArgs {
    /// Hugging Face folder of the model.
    #[arg(long)]
    model: PathBuf,
    /// Sequences, one JSON object a line with `token_ids`.
    #[arg(long)]
    sequences: PathBuf,
    /// One JSON object a sequence on stdout.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("error: the process cannot start its threads: {e}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(Cli::parse().command)) {
        Ok(code) => code,
        // A reader that went away (`| head`) is no failure worth a message.
        Err(e) if e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Logs go to stderr; ADAROLL_LOG sets the level.
fn start_logs(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("ADAROLL_LOG").unwrap_or_else(|_| "info".into());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).init(),
        LogFormat::Text => logs.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}

async fn run(command: Command) -> Result<ExitCode, Failure> {
    if let Command::Serve(args) = command {
        return run_serve(&args).await;
    }
    start_logs(LogFormat::Text);
    match command {
        Command::Serve(_) => {}
        Command::Train(args) => return run_train(&args).await,
        Command::Demo(args) => return run_demo(args).await,
        Command::Report(args) => println!("{}", args.run()?),
        Command::Rollout(args) => return run_rollout(&args).await,
        Command::Verify(args) => return run_verify(&args),
        Command::Jobs(command) => command.run(&mut std::io::stdout().lock())?,
        Command::Kernels(kernels::KernelsCommand::Build(args)) => {
            let json = args.json;
            let built = tokio::task::spawn_blocking(move || kernels::build(&args, &|line| eprintln!("{line}"))).await??;
            print(&built, json)?;
        }
        Command::Kernels(kernels::KernelsCommand::List(args)) => print(&kernels::list(&args)?, args.json)?,
        Command::Generate(args) => run_generate(&args).await?,
        Command::Score(args) => run_score(&args).await?,
        Command::Model(ModelCommand::Inspect { dir, json }) => {
            let found = inspect::inspect(&dir)?;
            print(&found, json)?;
        }
        Command::Model(ModelCommand::Check { dir, json, machine }) => {
            let report = check::check(&dir, machine.threads(), machine.isa())?;
            print(&report, json)?;
            if !report.ok {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Bench(BenchCommand::Decode { model, prompts, samples, tokens, prompt_tokens, reps, json, engine }) => {
            let workload = decode::Workload { prompts: prompts as usize, samples, tokens, prompt_tokens, reps: reps as usize };
            let spinner = ProgressBar::new_spinner();
            spinner.enable_steady_tick(std::time::Duration::from_millis(200));
            let report = decode::bench(&model, workload, &engine.options(), |what| spinner.set_message(what.to_owned())).await?;
            spinner.finish_and_clear();
            print(&report, json)?;
        }
        Command::Bench(BenchCommand::Train { model, sequence_length, batch, steps, recompute, json, machine }) => {
            let recompute = if recompute { Recompute::Layer } else { Recompute::None };
            let [sequence_length, batch, steps] = [sequence_length, batch, steps].map(|n| n as usize);
            let workload = bench_train::Workload { sequence_length, batch, steps, recompute };
            let spinner = ProgressBar::new_spinner();
            spinner.enable_steady_tick(std::time::Duration::from_millis(200));
            let shown = spinner.clone();
            let run =
                move || bench_train::bench(&model, workload, machine.threads(), machine.isa(), |what| shown.set_message(what.to_owned()));
            let report = tokio::task::spawn_blocking(run).await??;
            spinner.finish_and_clear();
            print(&report, json)?;
        }
        Command::Bench(BenchCommand::Gpu { device, kernels, gemm, shapes, batches, contexts, seconds, json, hold }) => {
            let DeviceChoice::Cuda(ordinal) = device else {
                return Err("--device: this bench measures a GPU; give cuda or cuda:N".into());
            };
            let or = |given: Vec<u32>, usual: [&[usize]; 2]| match given.is_empty() {
                true => usual[usize::from(shapes.iter().all(|s| s.is_tiny()))].to_vec(),
                false => given.into_iter().map(|n| n as usize).collect(),
            };
            let (batches, contexts) = (or(batches, [&[1, 16, 64, 256], &[1, 4]]), or(contexts, [&[1024, 4096], &[32, 96]]));
            let workload = gpu::Workload { ordinal, kernels, gemm, shapes, batches, contexts, seconds: seconds.into() };
            if hold {
                tokio::task::spawn_blocking(move || gpu::hold(&workload)).await??;
                return Ok(ExitCode::SUCCESS);
            }
            let spinner = ProgressBar::new_spinner();
            spinner.enable_steady_tick(std::time::Duration::from_millis(200));
            let shown = spinner.clone();
            // Lines where nobody watches: whoever reads them later sees how far it came.
            let watched = std::io::stderr().is_terminal();
            let say = move |what: &str| match watched {
                true => shown.set_message(what.to_owned()),
                false => eprintln!("{what}"),
            };
            let write = |path: &Path, report: &gpu::Report| -> Result<(), String> {
                let text = serde_json::to_string_pretty(report).map_err(|e| e.to_string())?;
                std::fs::write(path, text + "\n").map_err(|e| format!("{}: cannot be written: {e}", path.display()))
            };
            let kept = json.clone();
            let keep = move |report: &gpu::Report| {
                if let Some(Err(e)) = kept.as_deref().map(|path| write(path, report)) {
                    eprintln!("{e}");
                }
            };
            let report = tokio::task::spawn_blocking(move || gpu::bench(&workload, say, keep)).await??;
            spinner.finish_and_clear();
            if let Some(path) = json {
                write(&path, &report)?;
            }
            print(&report, false)?;
            if !report.ok() {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Bench(BenchCommand::Schedule { prompts, reps, q_min, json }) => {
            let workload = schedule::Workload { prompts: prompts as usize, reps, q_min };
            let progress = bar(0, "runs");
            let shown = progress.clone();
            let run = move || {
                schedule::schedule(workload, |done, all| {
                    shown.set_length(all);
                    shown.set_position(done);
                })
            };
            let report = tokio::task::spawn_blocking(run).await??;
            progress.finish_and_clear();
            print(&report, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one thing, as text or as one JSON object.
fn print<T: std::fmt::Display + serde::Serialize>(thing: &T, json: bool) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(thing)?)?
    } else {
        writeln!(out, "{thing}")?
    }
    Ok(())
}

/// A bar on stderr that disappears when it is done.
fn bar(len: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(len);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len} {elapsed}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(what.to_owned());
    bar
}

/// Loads a model with a bar.
fn open_with_bar(dir: &Path, options: &EngineOptions) -> Result<Opened, Failure> {
    let loading = bar(0, "loading");
    let opened = open(dir, options, |done, all| {
        loading.set_length(all as u64);
        loading.set_position(done as u64);
    })?;
    loading.finish_and_clear();
    Ok(opened)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: cannot be read: {e}", path.display()).into())
}

async fn run_serve(args: &serve::ServeArgs) -> Result<ExitCode, Failure> {
    let loaded = args.load()?;
    start_logs(loaded.config.server.log_format);
    if args.check {
        let checked = serve::check(loaded).await;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{checked}")?;
        return Ok(if checked.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let config = loaded.config;
    let dir = serve::model_dir(&config)?.to_owned();
    let opened = open_with_bar(&dir, &config.engine.options())?;
    let listening = move |address| tracing::info!("serving {} on http://{address}", dir.display());
    serve::serve(opened, config, listening, stop_signal()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn run_rollout(args: &rollout::RolloutArgs) -> Result<ExitCode, Failure> {
    let progress = match std::io::stderr().is_terminal() {
        true => rollout::Progress::bars(),
        false => rollout::Progress::lines(|line| eprintln!("{line}")),
    };
    let summary = rollout::run(args, progress, stop_signal()).await?;
    eprintln!("{summary}\nwritten to {}", args.out.display());
    Ok(if summary.is_done() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_verify(args: &verify::VerifyArgs) -> Result<ExitCode, Failure> {
    let progress = bar(0, "rows");
    let shows_lines = args.json && args.out.is_none() && std::io::stdout().is_terminal();
    let show = |done, all| {
        if !shows_lines {
            progress.set_length(all);
            progress.set_position(done);
        }
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let told = args.run(&mut out, &show);
    progress.finish_and_clear();
    match told {
        Ok(told) => {
            if !told.text.is_empty() {
                writeln!(out, "{}", told.text)?;
            }
            out.flush()?;
            Ok(ExitCode::from(told.code))
        }
        Err(verify::VerifyError::Output(error)) => Err(error.into()),
        Err(error) => {
            out.flush()?;
            eprintln!("error: {error}");
            Ok(ExitCode::from(2))
        }
    }
}

async fn run_train(args: &train::TrainArgs) -> Result<ExitCode, Failure> {
    if args.worker {
        tokio::task::spawn_blocking(trainer::ranks::worker::run).await??;
        return Ok(ExitCode::SUCCESS);
    }
    let settings = args.settings()?;
    if args.check {
        println!("{}", toml::to_string(&settings)?);
        return Ok(ExitCode::SUCCESS);
    }
    let steps = bar(settings.run.steps, "steps");
    let shown = steps.clone();
    let mut observer = move |numbers: &Numbers, state: &State| {
        shown.set_position(state.step);
        if let Some(line) = train::describe(numbers, state) {
            shown.suspend(|| eprintln!("{line}"));
        }
    };
    let summary = trainer::train(&settings, &mut observer, stop_signal()).await?;
    steps.finish_and_clear();
    eprintln!("{summary}");
    Ok(ExitCode::SUCCESS)
}

async fn run_demo(args: demo::DemoArgs) -> Result<ExitCode, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let asked = interrupted.clone();
    tokio::spawn(async move {
        stop_signal().await;
        asked.store(true, Ordering::Relaxed);
    });
    let told = tokio::task::spawn_blocking(move || demo::run(&args, &|| interrupted.load(Ordering::Relaxed))).await??;
    println!("{told}");
    Ok(ExitCode::SUCCESS)
}

/// Resolves at Ctrl-C or SIGTERM.
async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! { _ = interrupt => {}, _ = terminate.recv() => {} }
            return;
        }
    }
    let _ = interrupt.await;
}

async fn run_generate(args: &GenerateArgs) -> Result<(), Failure> {
    let params = SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        max_tokens: args.max_tokens,
        min_tokens: args.min_tokens,
        stop: args.stop.clone(),
        stop_token_ids: args.stop_token_id.clone(),
        ignore_eos: args.engine.ignore_eos,
        logit_bias: Vec::new(),
    };
    let file = args.prompts.as_deref().map(|p| Ok::<_, Failure>((p, read(p)?))).transpose()?;
    let mut options = args.engine.options();
    options.settings.max_queue = usize::MAX;
    let Opened { engine, text, .. } = open_with_bar(&args.model, &options)?;
    let prompts = match (&file, &args.prompt) {
        (Some((path, file)), _) => prompts::parse_prompts(file, &text).map_err(|e| format!("{}: {e}", path.display()))?,
        (None, Some(prompt)) if args.chat => {
            vec![text.encode_messages(&[serde_json::json!({"role": "user", "content": prompt})])?]
        }
        (None, Some(prompt)) => vec![text.encode_text(prompt)?],
        (None, None) => Vec::new(),
    };
    let request = generate::Request { prompts, samples: args.samples, seed: args.seed, params, submit_order_seed: args.submit_order_seed };
    let progress = bar(request.prompts.len() as u64 * u64::from(args.samples), "samples");
    let mut failed: Result<(), Failure> = Ok(());
    let mut out = std::io::stdout().lock();
    let show_bar = progress.clone();
    generate::generate(
        &engine,
        &request,
        |_| show_bar.inc(1),
        |prompt, s| {
            let line = generate::Line {
                prompt,
                index: s.index,
                token_ids: &s.token_ids,
                logprobs: &s.logprobs,
                text: &s.text,
                finish_reason: s.finish_reason,
            };
            let written = if args.json {
                serde_json::to_string(&line).map_err(Failure::from).and_then(|l| Ok(writeln!(out, "{l}")?))
            } else {
                let body = if text.has_tokenizer() { s.text.clone() } else { format!("{:?}", s.token_ids) };
                progress
                    .suspend(|| {
                        writeln!(
                            out,
                            "--- prompt {prompt}, sample {}: {:?} after {} tokens\n{body}",
                            s.index,
                            s.finish_reason,
                            s.token_ids.len()
                        )
                    })
                    .map_err(Failure::from)
            };
            if failed.is_ok() {
                failed = written;
            }
        },
    )
    .await?;
    progress.finish_and_clear();
    failed
}

async fn run_score(args: &ScoreArgs) -> Result<(), Failure> {
    let file = read(&args.sequences)?;
    let sequences = prompts::parse_sequences(&file).map_err(|e| format!("{}: {e}", args.sequences.display()))?;
    let mut options = args.engine.options();
    options.settings.max_queue = usize::MAX;
    let Opened { engine, .. } = open_with_bar(&args.model, &options)?;
    let progress = bar(sequences.len() as u64, "sequences");
    let mut failed: Result<(), Failure> = Ok(());
    let mut out = std::io::stdout().lock();
    score::score(&engine, &sequences, |i, scores| {
        progress.inc(1);
        let written = if args.json {
            serde_json::to_string(&score::Line { logprobs: &scores.logprobs })
                .map_err(Failure::from)
                .and_then(|l| Ok(writeln!(out, "{l}")?))
        } else {
            let sum: f64 = scores.logprobs.iter().map(|l| f64::from(*l)).sum();
            writeln!(
                out,
                "sequence {i}: {} tokens, sum of log-probabilities {sum:.4}, mean {:.4}",
                scores.logprobs.len(),
                sum / scores.logprobs.len() as f64
            )
            .map_err(Failure::from)
        };
        if failed.is_ok() {
            failed = written;
        }
    })
    .await?;
    progress.finish_and_clear();
    failed
}
