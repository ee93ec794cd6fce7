//! `adaroll demo`: a model learns to sort in front of your eyes, through the real server and the real trainer.
//!
//! [`run`] prepares a folder and starts the two processes ([`processes`]), [`view`] shows what they write, [`compare`] does this for
//! every arm ([`arms`]), seed and learning rate, and writes the comparison.

pub mod arms;
pub mod compare;
pub mod processes;
pub mod run;
pub mod view;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

pub use arms::Arm;
use run::{Live, Plan};
use view::{Seen, View};

use crate::commands::device::DeviceChoice;
use crate::demo::WriteError;
use crate::demo::model::RoundError;
use crate::demo::task::Mix;
use crate::demo::warm::{self, WarmError};
use crate::trainer::report;

/// Watch a small model learn: no downloads, no GPU, about three minutes.
///
/// Starts a server and a trainer as two processes over a model of 104 thousand parameters that can copy digits and cannot sort them, and
/// trains it with Reinforce-Ada: prompts that are already solved get one sample, the others up to 32. What was learned is printed, and a
/// report with plots is written to --out. Everything there is real: the folder holds the configuration, the metrics, the jobs and the model.
///
/// --compare trains every arm (GRPO, DAPO, Reinforce-Ada with two exits) on the same prompts with the same number of samples a step, for every
/// seed and learning rate, and writes one page that compares them on every axis.
///
/// Examples:
///   adaroll demo
///   adaroll demo --steps 20 --out /tmp/quick
///   adaroll demo --compare --seeds 5 --out comparison
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct DemoArgs {
    /// Folder of everything that is written; a run that it holds goes on.
    #[arg(long, default_value = "adaroll-demo", value_name = "DIR")]
    pub out: PathBuf,
    /// Steps of 512 samples [default: until 40,000 samples are used].
    #[arg(long)]
    pub steps: Option<u64>,
    /// Samples in all.
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: u64,
    /// Train every arm and compare them.
    #[arg(long)]
    pub compare: bool,
    /// How samples are spent; with --compare, may be given several times.
    #[arg(long)]
    pub arm: Vec<Arm>,
    /// Seeds 0 to N-1 of every arm, with --compare.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000), requires = "compare")]
    pub seeds: u64,
    /// Seed, without --compare.
    #[arg(long, default_value_t = 0, conflicts_with = "compare")]
    pub seed: u64,
    /// Learning rate; with --compare, may be given several times [default: 1e-3; with --compare 5e-4 and 1e-3].
    #[arg(long)]
    pub lr: Vec<f64>,
    /// The paper's regime: 64 hard prompts a step however many samples they take, GRPO with 4 samples against balance.
    #[arg(long, requires = "compare")]
    pub paper: bool,
    /// Runs at a time, with --compare [default: one for every core].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), requires = "compare")]
    pub parallel: Option<u16>,
    /// What computes, in the server and in the trainer: cpu (the published figures are the CPU's), cuda or cuda:N.
    #[arg(long, default_value_t = DeviceChoice::Cpu, conflicts_with = "compare")]
    pub device: DeviceChoice,
    /// Port of the server [default: any free one].
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Write what the model was made from to DIR, and stop: `adaroll train --config DIR/train.toml` then makes it again, to the byte.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["compare", "steps", "arm", "lr"])]
    pub warm_up: Option<PathBuf>,
}

/// Why the demonstration failed. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A file.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The model.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// The warm-up's files.
    #[error(transparent)]
    Warm(#[from] WarmError),
    /// A file or a process.
    #[error("{}: {error}; check the folder, its permissions and the free space", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: std::io::Error,
    },
    /// A process that failed.
    #[error("the {what} ended with {status}; its last words:\n{words}")]
    Process {
        /// Which.
        what: &'static str,
        /// How.
        status: String,
        /// What it said.
        words: String,
    },
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// The report.
    #[error("the report cannot be written: {0}")]
    Report(String),
    /// Ctrl-C.
    #[error("interrupted; run the same command to go on")]
    Interrupted,
}

impl DemoError {
    fn io(path: &Path, error: std::io::Error) -> Self {
        DemoError::Io { path: path.to_owned(), error }
    }
}

/// How often the processes are looked at.
const GLANCE: Duration = Duration::from_millis(200);

/// Runs the demonstration; `interrupted` says whether it should end early.
pub fn run(args: &DemoArgs, interrupted: &dyn Fn() -> bool) -> Result<String, DemoError> {
    if let Some(dir) = &args.warm_up {
        warm::prepare(dir)?;
        let shown = dir.display();
        return Ok(format!("`adaroll train --config {shown}/train.toml` makes the demonstration's model again, in {shown}/run/model"));
    }
    if args.compare {
        return compare::run(args, interrupted);
    }
    let plan = Plan {
        arm: args.arm.first().copied().unwrap_or(Arm::Pos1M1N8),
        seed: args.seed,
        lr: args.lr.first().copied().unwrap_or(1e-3),
        steps: args.steps.unwrap_or(0),
        samples: if args.steps.is_some() { 0 } else { args.samples },
        samples_per_step: 512,
        prompts_per_step: 0,
        eval_every: 2,
        mix: Mix::TRAIN,
        dir: args.out.clone(),
        port: args.port,
        threads: 0,
        device: args.device,
    };
    let total = if plan.steps > 0 { plan.steps } else { plan.samples.div_ceil(512) };
    let (mut live, mut seen, mut view) = (Live::start(&plan)?, Seen::default(), View::default());
    loop {
        let over = live.poll()?;
        let now = Seen::of(&run::metrics(&plan.run_dir())?);
        let news = now.hard.len() != seen.hard.len();
        seen = now;
        view.show(&format!("learning to sort ({})", plan.arm), &seen, total, live.elapsed(), news);
        if over {
            break;
        }
        if interrupted() {
            return Err(DemoError::Interrupted);
        }
        std::thread::sleep(GLANCE);
    }
    view.leave();
    let page = plan.dir.join("report.html");
    report::write(&plan.run_dir(), &page).map_err(|e| DemoError::Report(e.to_string()))?;
    Ok(told(&plan, &seen, live.elapsed(), &page))
}

/// What was learned, in words.
fn told(plan: &Plan, seen: &Seen, took: Duration, page: &Path) -> String {
    let ends = |values: &[(f64, f64)]| (values.first().map_or(0.0, |v| v.1), values.last().map_or(0.0, |v| v.1));
    let ((hard0, hard1), (easy0, easy1)) = (ends(&seen.hard), ends(&seen.easy));
    let samples = seen.hard.last().map_or(0.0, |v| v.0);
    format!(
        "Sorting five digits (hard): {hard0:.3} -> {hard1:.3} right. Copying, adding, doubling (easy): {easy0:.3} -> {easy1:.3}.\n\
         {samples:.0} samples in {} steps and {:.0} s; the trainer's log-probabilities differed from the sampler's by at most {}.\n\
         The page: {}\nThe model: {}\nThe numbers: {}",
        seen.steps,
        took.as_secs_f64(),
        seen.worst_difference,
        page.display(),
        plan.run_dir().join("model").display(),
        plan.run_dir().join(crate::trainer::run::METRICS).display(),
    )
}
