//! `adaroll train`: a training run against a server.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::device::DeviceChoice;
use crate::trainer::checkpoint::State;
use crate::trainer::journal::Numbers;
use crate::trainer::settings::{Objective, Settings, SettingsError};

/// Train a model with the groups of an adaroll server, and push the new weights back while it serves.
///
/// The configuration says everything that a run does: server-config/train-*.toml list and explain every key. The run's folder (run.dir) gets
/// metrics.jsonl, timings.jsonl, TensorBoard events, checkpoints and in the end the trained model. Run the same command again to go on after
/// a crash or Ctrl-C: the bytes come out as if nothing had happened. Tokens are read from ADAROLL_TOKEN and ADAROLL_ADMIN_TOKEN.
///
/// Examples:
///   adaroll serve --model models/smollm2 &
///   adaroll train --config server-config/train-gsm8k.toml
///   adaroll train --config server-config/train-gsm8k.toml --set optimizer.lr=1e-6 --set run.dir=runs/lr-1e-6
///   adaroll train --config server-config/train-sft.toml --objective sft
///   adaroll report runs/lr-1e-6
#[derive(Args, Debug, Default)]
#[command(verbatim_doc_comment)]
pub struct TrainArgs {
    /// Configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set one key, after the file: section.key=value. May be given many times.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// What is minimised: rl (groups of a server) or sft (given answers, no server) [run.objective].
    #[arg(long)]
    pub objective: Option<Objective>,
    /// What computes: auto (the first GPU that can be used, else the CPU), cpu, cuda or cuda:N [model.device].
    #[arg(long)]
    pub device: Option<DeviceChoice>,
    /// Be another rank of a run: rank 0 starts such processes, and speaks with them over standard input and output.
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Check the configuration and print it with every default, and start nothing.
    #[arg(long)]
    pub check: bool,
}

impl TrainArgs {
    /// The configuration that these arguments give.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let mut set = self.set.clone();
        if let Some(objective) = self.objective {
            let name = match objective {
                Objective::Rl => "rl",
                Objective::Sft => "sft",
            };
            set.push(format!("run.objective={name}"));
        }
        set.extend(self.device.map(|device| format!("model.device={device}")));
        Settings::load(self.config.as_deref(), &set)
    }
}

/// A line for people about a step or an evaluation.
pub fn describe(numbers: &Numbers, state: &State) -> Option<String> {
    let value = |name: &str| numbers.0.get(name).and_then(Value::as_f64);
    let shown = |name: &str, label: &str, digits: usize| value(name).map(|v| format!("{label} {v:.digits$}"));
    let parts: Vec<String> = match numbers.0.get("kind").and_then(Value::as_str) {
        Some("train") => [
            shown("critic/score/mean", "reward", 3),
            shown("loss", "loss", 4),
            shown("ada/signal_fraction", "signal", 2),
            shown("ada/samples_per_prompt/mean", "samples/prompt", 2),
            shown("actor/grad_norm", "|g|", 3),
            shown("training/rollout_probs_diff_max", "max |p - p'|", 1),
        ]
        .into_iter()
        .flatten()
        .collect(),
        Some("eval") => {
            numbers.iter().filter(|(name, _)| name.starts_with("eval/")).map(|(name, v)| format!("{} {v:.3}", &name[5..])).collect()
        }
        _ => return None,
    };
    Some(format!("step {:>5}  samples {:>7}  {}", state.step, state.samples, parts.join("  ")))
}
