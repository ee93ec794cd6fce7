//! The trainer's configuration: one TOML file, then `--set section.key=value`; each later one wins.
//!
//! What a run does is all here, so the file that a run was started with is kept in its folder and compared on resume. Every refusal
//! names the key, what is wrong and what to do.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toml::Table;

use super::loss::LossSettings;
use super::optimizer::AdamwSettings;
use super::schedule::Schedule;
use crate::commands::device::DeviceChoice;
use crate::model::Dtype;
use crate::model::backward::Recompute;
use crate::ops::cuda::GemmChoice;
use crate::rollout::plan::{Advantage, Strategy};

/// Everything that a training run is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How long, where to.
    pub run: Run,
    /// Who samples.
    pub server: Server,
    /// What is trained.
    pub model: Model,
    /// On what.
    pub data: Data,
    /// How answers are drawn.
    pub rollout: Rollout,
    /// What is minimised.
    pub loss: LossSettings,
    /// AdamW and the gradient's clip.
    pub optimizer: Optimizer,
    /// The learning rate over the updates.
    pub schedule: Schedule,
    /// How a step's rows are cut into updates.
    pub update: Update,
    /// Over how many GPUs.
    pub parallel: Parallel,
    /// Low-rank adapters instead of all parameters.
    pub lora: Lora,
    /// Evaluation.
    pub eval: Eval,
    /// Checkpoints.
    pub checkpoint: Checkpoint,
    /// The trainer's own `/metrics`.
    pub metrics: Metrics,
}

/// What a run minimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Policy gradient over a server's groups.
    #[default]
    Rl,
    /// Negative log-likelihood of given answers; no server.
    Sft,
}

/// How long a run is and where it writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// Reinforcement learning or supervised fine-tuning.
    pub objective: Objective,
    /// Folder of metrics, checkpoints and the trained model.
    pub dir: PathBuf,
    /// Name within the server: jobs are called NAME-step-N. Two runs on one server need two names.
    pub name: String,
    /// Seed of the data order, the shuffles and every job.
    pub seed: u64,
    /// Steps; 0: until the data's samples budget is used.
    pub steps: u64,
    /// Samples that strategies may see in all; the run ends with the step that reaches it. 0: no limit.
    pub samples: u64,
}

impl Default for Run {
    fn default() -> Self {
        Run { objective: Objective::Rl, dir: "run".into(), name: "run".into(), seed: 0, steps: 100, samples: 0 }
    }
}

/// The server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Its address.
    pub url: String,
    /// Seconds without an answer after which the run gives up.
    pub patience_s: u64,
    /// A folder that trainer and server share (a file system in memory is best): weights go through a file there instead of through the
    /// connection. It must be one of the server's `weights.roots`. Empty: over HTTP.
    pub shared_dir: PathBuf,
    /// How weights get to the server.
    pub weights: WeightsWay,
    /// Addresses of further servers that every push goes to after `url`, with the same version. All must take it before the run goes on.
    pub engines: Vec<String>,
}

/// How weights get to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsWay {
    /// The first that is possible: `ipc`, `shared`, `http`.
    #[default]
    Auto,
    /// Within the memory of the GPU on which both compute.
    Ipc,
    /// Through a file in `shared_dir`.
    Shared,
    /// Over the connection.
    Http,
}

impl Default for Server {
    fn default() -> Self {
        Server {
            url: "http://127.0.0.1:8000".into(),
            patience_s: 600,
            shared_dir: PathBuf::new(),
            weights: WeightsWay::Auto,
            engines: Vec::new(),
        }
    }
}

impl Server {
    /// The settings of each of the further servers.
    pub fn each_engine(&self) -> impl Iterator<Item = Server> + '_ {
        self.engines.iter().map(|url| Server { url: url.clone(), engines: Vec::new(), ..self.clone() })
    }
}

/// The model and the arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Hugging Face folder that the run starts from; the server must serve the same one.
    pub dir: PathBuf,
    /// Type of the weights that are pushed: "F32" or "BF16". The master weights are always f32. Empty: that of the folder. A GPU
    /// computes with BF16 whichever it is; an F32 file then holds those numbers.
    pub serving_dtype: String,
    /// What computes: "auto" (the first GPU that can be used, else the CPU), "cpu", "cuda" or "cuda:N".
    pub device: String,
    /// Folder of kernels made by `adaroll kernels build`; empty: compiled at the first start and kept.
    pub kernels: PathBuf,
    /// What multiplies by weights on a GPU, forward and back: "auto", "own" or "cublaslt", as the server's engine.gemm: both should be the same.
    pub gemm: String,
    /// Most memory of the GPU that the run may take, in GiB; 0: all that is free. A server on the same card takes its share first.
    pub memory_gib: f64,
    /// Keep AdamW's moments in the host's memory: less of the GPU's, and slower updates. Changes no bit.
    pub optimizer_offload: bool,
    /// What is kept between forward and backward: "none" (recompute nothing) or "layer".
    pub recompute: Recompute,
    /// Threads; 0: one a core. Changes no bit.
    pub threads: usize,
}

impl Default for Model {
    fn default() -> Self {
        Model {
            dir: PathBuf::new(),
            serving_dtype: String::new(),
            device: "auto".into(),
            kernels: PathBuf::new(),
            gemm: "auto".into(),
            memory_gib: 0.0,
            optimizer_offload: false,
            recompute: Recompute::None,
            threads: 0,
        }
    }
}

/// The training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// JSON lines: one of `messages`, `text`, `token_ids`; a `reward`; optional `id`, `metadata`, `slice`. For "sft": `text` or
    /// `token_ids`, and `answer` or `answer_ids`.
    pub path: PathBuf,
    /// Draw a new order for every pass over the data.
    pub shuffle: bool,
}

impl Default for Data {
    fn default() -> Self {
        Data { path: PathBuf::new(), shuffle: true }
    }
}

/// How a step's samples are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// Prompts of a step. 0: as many as `samples_per_step` allows.
    pub prompts_per_step: u64,
    /// Samples of a step, charged in request order for indices below each prompt's exit. 0: no limit.
    pub samples_per_step: u64,
    /// The strategy, as in a request. For `dapo`, `groups_wanted` is set by the trainer from `samples_per_step`.
    pub strategy: Value,
    /// The advantage, as in a request.
    pub advantage: Value,
    /// Sampling parameters, as in a request.
    pub sampling: Value,
    /// Where the server keeps per-prompt history.
    pub namespace: String,
    /// 0: sample, then train. 1: sample the next step with the present weights while training.
    pub ahead: u64,
    /// Allow filters (top_p, top_k, min_p), with which the trainer's distribution is not the sampler's.
    pub allow_mismatch: bool,
}

impl Default for Rollout {
    fn default() -> Self {
        Rollout {
            prompts_per_step: 0,
            samples_per_step: 512,
            strategy: json!({"kind": "sequential", "exit": "balance", "group_size": 4, "max_samples": 32}),
            advantage: json!("ada"),
            sampling: json!({"temperature": 1.0, "max_tokens": 512}),
            namespace: "default".into(),
            ahead: 0,
            allow_mismatch: false,
        }
    }
}

/// The optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optimizer {
    /// Learning rate at the top of the schedule.
    pub lr: f64,
    /// Decay of the first and the second moment.
    pub betas: (f64, f64),
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Gradients of a larger global norm are scaled down to this; 0: never.
    pub clip_norm: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Optimizer { lr: 1e-6, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, clip_norm: 1.0 }
    }
}

impl Optimizer {
    /// What AdamW needs.
    pub fn adamw(&self) -> AdamwSettings {
        AdamwSettings { betas: self.betas, eps: self.eps, weight_decay: self.weight_decay }
    }

    /// The clip as a number to compare with.
    pub fn clip_norm(&self) -> f64 {
        if self.clip_norm > 0.0 { self.clip_norm } else { f64::INFINITY }
    }

    fn check(&self) -> Result<(), SettingsError> {
        let refuse =
            |wrong: bool, key: &str, problem: &str| if wrong { Err(SettingsError(format!("optimizer.{key} {problem}"))) } else { Ok(()) };
        let good = |v: f64, least: f64, below: f64| v.is_finite() && v >= least && v < below;
        refuse(!good(self.lr, 0.0, 10.0), "lr", "must be a number from 0 to 10")?;
        refuse(!good(self.betas.0, 0.0, 1.0) || !good(self.betas.1, 0.0, 1.0), "betas", "must be two numbers from 0 to below 1")?;
        refuse(!good(self.eps, 0.0, 1.0) || self.eps == 0.0, "eps", "must be above 0, such as 1e-8")?;
        refuse(!good(self.weight_decay, 0.0, 10.0), "weight_decay", "must be a number from 0 to 10")?;
        refuse(!good(self.clip_norm, 0.0, f64::INFINITY), "clip_norm", "must be a number above 0, or 0 for no clip")
    }
}

/// How a step's rows are cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Update {
    /// Passes over a step's rows.
    pub epochs: u64,
    /// Groups of an update; 0: all of the step's.
    pub mini_batch_groups: usize,
    /// Tokens that go through the model at once.
    pub micro_batch_tokens: usize,
    /// Parts of an update whose gradients are summed apart and then added in order. It decides bits, wherever the parts are computed.
    pub parts: usize,
}

impl Default for Update {
    fn default() -> Self {
        Update { epochs: 1, mini_batch_groups: 0, micro_batch_tokens: 4096, parts: 1 }
    }
}

/// Where the parts of an update are computed. Changes no bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parallel {
    /// Processes, each with a GPU and the whole model: 1, or `update.parts`, of which each then computes one.
    pub ranks: usize,
    /// The GPU of each rank; empty: 0, 1, ...
    pub gpus: Vec<u16>,
}

impl Default for Parallel {
    fn default() -> Self {
        Parallel { ranks: 1, gpus: Vec::new() }
    }
}

impl Parallel {
    /// Most ranks, and so most parts that are worth having.
    const MOST: usize = 64;

    /// Whether there are several ranks.
    pub fn is_on(&self) -> bool {
        self.ranks > 1
    }

    /// The GPU of a rank.
    pub fn gpu(&self, rank: usize) -> usize {
        self.gpus.get(rank).map_or(rank, |gpu| (*gpu).into())
    }

    fn check(&self, parts: usize, device: DeviceChoice) -> Result<(), SettingsError> {
        let refuse = |wrong: bool, key: &str, problem: &str| if wrong { Err(SettingsError(format!("{key} {problem}"))) } else { Ok(()) };
        let most = Self::MOST;
        refuse(parts == 0 || parts > most, "update.parts", &format!("is {parts}; it must be from 1 to {most}"))?;
        let ranks = self.ranks;
        refuse(
            ranks != 1 && ranks != parts,
            "parallel.ranks",
            &format!(
                "is {ranks}, and update.parts is {parts}; each rank computes one part: set both to the same number, or parallel.ranks to 1"
            ),
        )?;
        refuse(
            !self.gpus.is_empty() && self.gpus.len() != ranks,
            "parallel.gpus",
            &format!("lists {} GPUs for {ranks} ranks; give one for each, or none for 0, 1, ...", self.gpus.len()),
        )?;
        match device {
            DeviceChoice::Cpu => refuse(ranks > 1, "parallel.ranks", "needs GPUs, and model.device is \"cpu\"; leave out one of the two"),
            DeviceChoice::Cuda(n) if n > 0 => refuse(
                ranks > 1,
                "model.device",
                "names one GPU, and parallel.ranks is above 1; write \"cuda\", and the GPUs into parallel.gpus",
            ),
            DeviceChoice::Cuda(_) | DeviceChoice::Auto => Ok(()),
        }
    }
}

/// Low-rank adapters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lora {
    /// Rank; 0: train all parameters.
    pub rank: usize,
    /// The adapters count alpha / rank.
    pub alpha: f32,
    /// Projections that get an adapter.
    pub targets: Vec<String>,
}

impl Default for Lora {
    fn default() -> Self {
        let all = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
        Lora { rank: 0, alpha: 16.0, targets: all.map(str::to_owned).to_vec() }
    }
}

/// How an evaluation counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvalKind {
    /// pass@1 and pass@k over samples that the server draws and judges.
    #[default]
    Sampled,
    /// The probability of the one right answer (`answer_ids`), by the trainer's own forward pass: pass@1 at temperature 1, exactly.
    Exact,
}

/// Evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Eval {
    /// JSON lines as for training; `slice` names the group of problems that a line is averaged with. Empty: no evaluation.
    pub path: PathBuf,
    /// Every so many steps, before the first and after the last. 0: never.
    pub every: u64,
    /// How it counts.
    pub kind: EvalKind,
    /// Samples of each prompt.
    pub samples: u32,
    /// The k of pass@k; each at most `samples`.
    pub k: Vec<u32>,
    /// Longest answer. 0: as in training.
    pub max_tokens: u32,
}

impl Default for Eval {
    fn default() -> Self {
        Eval { path: PathBuf::new(), every: 10, kind: EvalKind::Sampled, samples: 4, k: vec![1, 4], max_tokens: 0 }
    }
}

/// Checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Every so many steps, and after the last.
    pub every: u64,
    /// How many are kept.
    pub keep: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Checkpoint { every: 10, keep: 2 }
    }
}

/// The trainer's `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Address such as "127.0.0.1:9100"; empty: none.
    pub listen: String,
}

/// A configuration that cannot be used: every line is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

impl Settings {
    /// Reads a file and then `section.key=value` pairs, whose values are TOML (a bare word is a string).
    pub fn load(file: Option<&Path>, set: &[String]) -> Result<Self, SettingsError> {
        let mut table = match file {
            None => Table::new(),
            Some(path) => {
                let fail = |problem: String| SettingsError(format!("{}: {problem}", path.display()));
                let text = std::fs::read_to_string(path).map_err(|e| fail(format!("cannot be read: {e}; check --config")))?;
                text.parse().map_err(|e: toml::de::Error| fail(format!("is not TOML: {}", e.message())))?
            }
        };
        for pair in set {
            let wrong =
                || SettingsError(format!("--set {pair}: is not of the form section.key=value; write for example optimizer.lr=1e-3"));
            let (path, text) = pair.split_once('=').ok_or_else(wrong)?;
            let (section, key) = path.split_once('.').ok_or_else(wrong)?;
            let value = format!("value = {text}").parse::<Table>().ok().and_then(|mut t| t.remove("value"));
            let value = value.unwrap_or_else(|| toml::Value::String(text.to_owned()));
            let entry = table.entry(section).or_insert_with(|| toml::Value::Table(Table::new()));
            let mut inner = entry.as_table_mut().ok_or_else(wrong)?;
            let mut keys = key.split('.').peekable();
            while let Some(part) = keys.next() {
                if keys.peek().is_none() {
                    inner.insert(part.to_owned(), value);
                    break;
                }
                inner = inner.entry(part).or_insert_with(|| toml::Value::Table(Table::new())).as_table_mut().ok_or_else(wrong)?;
            }
        }
        let settings: Settings = serde_path_to_error::deserialize(table).map_err(|e| {
            SettingsError(format!("{}: {}; see server-config/train-*.toml for every key", e.path(), e.inner().message().trim()))
        })?;
        settings.check()?;
        Ok(settings)
    }

    /// The dtype of the pushed weights, where the file names one.
    pub fn serving_dtype(&self) -> Option<Dtype> {
        Dtype::from_name(&self.model.serving_dtype)
    }

    /// Refuses what cannot work, before anything is loaded.
    pub fn check(&self) -> Result<(), SettingsError> {
        let refuse = |wrong: bool, key: &str, problem: &str| if wrong { Err(SettingsError(format!("{key} {problem}"))) } else { Ok(()) };
        let dtype = &self.model.serving_dtype;
        let known = dtype.is_empty() || matches!(Dtype::from_name(dtype), Some(Dtype::F32 | Dtype::Bf16));
        refuse(!known, "model.serving_dtype", "must be \"F32\", \"BF16\", or \"\" for the folder's own")?;
        let device = self.model.device.parse::<DeviceChoice>();
        let device = device.map_err(|problem| SettingsError(format!("model.device is {:?}; {problem}", self.model.device)))?;
        self.parallel.check(self.update.parts, device)?;
        let gemm = self.model.gemm.parse::<GemmChoice>().err().unwrap_or_default();
        refuse(!gemm.is_empty(), "model.gemm", &format!("is {:?}; {gemm}", self.model.gemm))?;
        let memory = self.model.memory_gib;
        refuse(!memory.is_finite() || memory < 0.0, "model.memory_gib", "must be a number above 0, or 0 for all that is free")?;
        refuse(self.model.dir.as_os_str().is_empty(), "model.dir", "is not set; give the folder that training starts from")?;
        refuse(self.data.path.as_os_str().is_empty(), "data.path", "is not set; give a file of JSON lines")?;
        refuse(self.run.steps == 0 && self.run.samples == 0, "run.steps", "and run.samples are both 0; give one of them")?;
        refuse(self.update.epochs == 0, "update.epochs", "is 0; every row must be seen at least once")?;
        refuse(self.update.micro_batch_tokens == 0, "update.micro_batch_tokens", "is 0; give at least the longest row's tokens")?;
        refuse(self.checkpoint.every == 0, "checkpoint.every", "is 0; a run without checkpoints cannot go on after a crash")?;
        refuse(self.checkpoint.keep == 0, "checkpoint.keep", "is 0; keep at least the last one")?;
        refuse(self.lora.rank > 0 && self.lora.alpha <= 0.0, "lora.alpha", "must be above 0")?;
        self.loss.check().map_err(|e| SettingsError(e.within("loss").to_string()))?;
        self.optimizer.check()?;
        self.schedule.check().map_err(|e| SettingsError(e.within("schedule").to_string()))?;
        if self.run.objective == Objective::Sft {
            return self.check_sft();
        }
        let rollout = &self.rollout;
        refuse(
            rollout.prompts_per_step == 0 && rollout.samples_per_step == 0,
            "rollout.prompts_per_step",
            "and samples_per_step are both 0",
        )?;
        let no_folder = self.server.weights == WeightsWay::Shared && self.server.shared_dir.as_os_str().is_empty();
        refuse(no_folder, "server.weights", "is \"shared\" and server.shared_dir is not set; give the folder")?;
        refuse(rollout.ahead > 1, "rollout.ahead", "must be 0 (sample, then train) or 1 (one step ahead)")?;
        refuse(!rollout.sampling.is_object(), "rollout.sampling", "must be a table such as { temperature = 1.0, max_tokens = 160 }")?;
        let sampling = |name: &str| rollout.sampling.get(name).and_then(Value::as_f64);
        let biased = sampling("min_tokens").is_some_and(|n| n > 0.0)
            || rollout.sampling.get("logit_bias").is_some_and(|bias| bias.as_object().is_none_or(|bias| !bias.is_empty()));
        let filtered = sampling("top_p").is_some_and(|p| p < 1.0)
            || sampling("top_k").is_some_and(|k| k > 0.0)
            || sampling("min_p").is_some_and(|p| p > 0.0);
        refuse(
            (filtered || biased) && !rollout.allow_mismatch,
            "rollout.sampling",
            "filters or biases tokens (top_p, top_k, min_p, min_tokens or logit_bias): the sampler's distribution would not be the trainer's; leave that out, or set rollout.allow_mismatch = true",
        )?;
        let temperature = sampling("temperature").unwrap_or(1.0);
        refuse(
            temperature <= 0.0,
            "rollout.sampling.temperature",
            "must be above 0: a greedy sampler has no log-probabilities to train on",
        )?;
        let strategy = rollout.strategy.as_object();
        refuse(strategy.is_none(), "rollout.strategy", "must be a table such as { kind = \"sequential\", exit = \"balance\" }")?;
        refuse(
            strategy.is_some_and(|s| s.contains_key("budget")),
            "rollout.strategy.budget",
            "is set by rollout.samples_per_step; leave it out",
        )?;
        // The server would say the same, at the first step.
        let mut strategy = rollout.strategy.clone();
        if strategy.get("kind").and_then(Value::as_str) == Some("dapo") && strategy.get("groups_wanted").is_none() {
            strategy["groups_wanted"] = 1.into();
        }
        Strategy::read(&strategy).map_err(|e| SettingsError(e.within("rollout.strategy").to_string()))?;
        Advantage::read(&rollout.advantage).map_err(|e| SettingsError(e.within("rollout.advantage").to_string()))?;
        if self.eval.kind == EvalKind::Sampled && self.eval_on() {
            refuse(self.eval.samples < 2, "eval.samples", "must be at least 2: a group of one sample is none")?;
            let fits = self.eval.k.iter().all(|&k| k >= 1 && k <= self.eval.samples);
            refuse(!fits, "eval.k", "must be numbers from 1 to eval.samples")?;
        }
        Ok(())
    }

    /// What fine-tuning needs, which has no server.
    fn check_sft(&self) -> Result<(), SettingsError> {
        let refuse = |wrong: bool, key: &str, problem: &str| if wrong { Err(SettingsError(format!("{key} {problem}"))) } else { Ok(()) };
        refuse(self.run.steps == 0, "run.steps", "is 0; fine-tuning draws no samples that could end it, so give the number of steps")?;
        refuse(
            self.rollout.prompts_per_step == 0,
            "rollout.prompts_per_step",
            "is 0; give the number of lines that a step of fine-tuning takes",
        )?;
        let sampled = self.eval_on() && self.eval.kind == EvalKind::Sampled;
        refuse(sampled, "eval.kind", "must be \"exact\" with run.objective \"sft\": there is no server to sample from")
    }

    /// Temperature of the sampler, which is that of the trainer's log-probabilities.
    pub fn temperature(&self) -> f32 {
        self.rollout.sampling.get("temperature").and_then(Value::as_f64).unwrap_or(1.0) as f32
    }

    /// The same for the process of a rank: on its GPU.
    pub fn of_rank(&self, rank: usize) -> Settings {
        let mut settings = self.clone();
        if self.parallel.is_on() {
            settings.model.device = DeviceChoice::Cuda(self.parallel.gpu(rank)).to_string();
        }
        settings
    }

    /// Parts of an update that one process computes.
    pub fn parts_here(&self) -> usize {
        if self.parallel.is_on() { 1 } else { self.update.parts }
    }

    /// Whether a model stays as it was at the start, for the KL penalty.
    pub fn wants_reference(&self) -> bool {
        self.run.objective == Objective::Rl && self.loss.wants_reference()
    }

    /// Whether there are evaluations.
    pub fn eval_on(&self) -> bool {
        self.eval.every > 0 && !self.eval.path.as_os_str().is_empty()
    }
}
