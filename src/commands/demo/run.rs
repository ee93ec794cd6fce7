//! One run of the demonstration: a folder with the model, the data and two configurations, then a server and a trainer over it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::DemoError;
use super::arms::Arm;
use super::processes::Process;
use crate::commands::device::DeviceChoice;
use crate::demo::data::{self, Form, prompt_line};
use crate::demo::task::{ANSWER_TOKENS, Mix, Stream, held_out};
use crate::trainer::settings::{EvalKind, Settings};

/// What a run is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How samples are spent.
    pub arm: Arm,
    /// Seed of the prompts and the samples.
    pub seed: u64,
    /// Learning rate.
    pub lr: f64,
    /// Steps; 0: as many as `samples` allows.
    pub steps: u64,
    /// Samples in all; 0: no limit.
    pub samples: u64,
    /// Samples of a step; 0: as many as its prompts take.
    pub samples_per_step: u64,
    /// Prompts of a step; 0: as many as its samples allow.
    pub prompts_per_step: u64,
    /// Steps between evaluations.
    pub eval_every: u64,
    /// Which problems it trains on.
    pub mix: Mix,
    /// Its folder.
    pub dir: PathBuf,
    /// Port of the server; 0: any free one.
    pub port: u16,
    /// Threads of each process; 0: one a core.
    pub threads: usize,
    /// What computes.
    pub device: DeviceChoice,
}

/// Prompts that are written for a run whose strategies may take one sample of each.
fn prompts(plan: &Plan) -> u64 {
    let steps = if plan.steps > 0 { plan.steps } else { plan.samples.div_ceil(plan.samples_per_step.max(1)) };
    // Twice what one sample a prompt would take: a job lists more prompts than it reaches.
    let per_step = if plan.prompts_per_step > 0 { plan.prompts_per_step } else { 2 * plan.samples_per_step };
    ((steps + 2) * per_step).max(1024)
}

impl Plan {
    /// The trainer's folder.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// The trainer's configuration.
    pub fn settings(&self, url: &str) -> Settings {
        let mut s = Settings::default();
        s.run.dir = self.run_dir();
        s.run.name = "demo".into();
        (s.run.seed, s.run.steps, s.run.samples) = (self.seed, self.steps, self.samples);
        s.server.url = url.to_owned();
        s.server.patience_s = 60;
        s.model.dir = self.dir.join("model");
        s.model.serving_dtype = if self.device == DeviceChoice::Cpu { "F32".into() } else { "BF16".into() };
        s.model.device = self.device.to_string();
        s.model.threads = self.threads;
        s.data.path = self.dir.join("train.jsonl");
        // The stream is in no order already, and it is the same for every arm.
        s.data.shuffle = false;
        s.rollout.samples_per_step = self.samples_per_step;
        s.rollout.prompts_per_step = self.prompts_per_step;
        s.rollout.strategy = self.arm.strategy();
        s.rollout.advantage = self.arm.advantage();
        s.rollout.sampling = json!({"temperature": 1.0, "max_tokens": ANSWER_TOKENS});
        s.optimizer.lr = self.lr;
        s.schedule.warmup_steps = 5;
        s.eval.path = self.dir.join("held-out.jsonl");
        s.eval.every = self.eval_every;
        s.eval.kind = EvalKind::Exact;
        s.checkpoint.every = 20;
        s
    }

    /// Writes model and data.
    pub fn prepare(&self) -> Result<(), DemoError> {
        std::fs::create_dir_all(&self.dir).map_err(|e| DemoError::io(&self.dir, e))?;
        let model = self.dir.join("model");
        crate::demo::model::write_to(&model)?;
        if self.device != DeviceChoice::Cpu {
            // A GPU computes with BF16: so that server and trainer hand the very bytes to each other, the folder holds it too.
            crate::demo::model::round_to_bf16(&model)?;
        }
        let stream = Stream::new(self.seed, self.mix);
        let lines = (0..prompts(self)).map(|i| prompt_line(&stream.prompt(i), Form::TokenIds));
        data::write(&self.dir.join("train.jsonl"), lines)?;
        let problems = held_out().into_iter().map(|problem| {
            let mut line = prompt_line(&problem, Form::TokenIds);
            line["answer_ids"] = json!(problem.answer_ids);
            line
        });
        data::write(&self.dir.join("held-out.jsonl"), problems)?;
        Ok(())
    }
}

/// A run whose processes live.
pub struct Live {
    /// Kept for its end.
    server: Process,
    trainer: Process,
    dir: PathBuf,
    started: Instant,
}

/// A port that is free now.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

impl Live {
    /// Starts a run; one that was begun in the same folder goes on.
    pub fn start(plan: &Plan) -> Result<Self, DemoError> {
        plan.prepare()?;
        let dir = &plan.dir;
        let port = match plan.port {
            0 => free_port().map_err(|e| DemoError::io(dir, e))?,
            port => port,
        };
        let settings = plan.settings(&format!("http://127.0.0.1:{port}"));
        let config = dir.join("train.toml");
        let text = toml::to_string(&settings).map_err(|e| DemoError::Setting(e.to_string()))?;
        std::fs::write(&config, text).map_err(|e| DemoError::io(&config, e))?;
        let show = |path: PathBuf| path.to_string_lossy().into_owned();
        let mut server: Vec<String> =
            ["serve", "--device", &plan.device.to_string(), "--port", &port.to_string(), "--max-sequences", "512", "--kv-blocks", "2048"]
                .map(str::to_owned)
                .to_vec();
        server.extend(["--model".into(), show(dir.join("model")), "--store".into(), show(dir.join("server.db"))]);
        if plan.threads > 0 {
            server.extend(["--threads".into(), plan.threads.to_string()]);
        }
        let trainer = ["train".to_owned(), "--config".into(), show(config)];
        let start = |arguments: &[String], log: &str| Process::start(arguments, &dir.join(log)).map_err(|e| DemoError::io(dir, e));
        Ok(Live {
            server: start(&server, "server.log")?,
            trainer: start(&trainer, "trainer.log")?,
            dir: plan.run_dir(),
            started: Instant::now(),
        })
    }

    /// Seconds since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the run is over; an error where a process has failed.
    pub fn poll(&mut self) -> Result<bool, DemoError> {
        match self.trainer.ended().map_err(|e| DemoError::io(&self.dir, e))? {
            Some(status) if status.success() => {
                self.server.stop();
                Ok(true)
            }
            Some(status) => Err(DemoError::Process { what: "trainer", status: status.to_string(), words: self.trainer.last_words() }),
            None => match self.server.ended().map_err(|e| DemoError::io(&self.dir, e))? {
                Some(status) => Err(DemoError::Process { what: "server", status: status.to_string(), words: self.server.last_words() }),
                None => Ok(false),
            },
        }
    }
}

/// Every line of a run so far; none before it has begun. A run that goes on cuts the file back first, so it is always read as a whole.
pub fn metrics(run_dir: &Path) -> Result<Vec<Value>, DemoError> {
    let path = run_dir.join(crate::trainer::run::METRICS);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(DemoError::io(&path, e)),
    }
}
