//! Supervised fine-tuning: the mean negative log-likelihood of given answers, without a server.
//!
//! A step takes the next lines of the data, and is one update. [`objective`] is the whole difference from reinforcement learning: the forward
//! pass, the optimizer, checkpoints and resume are the same, and so is the promise that a seed gives the same bytes on any machine with any
//! number of threads.

use std::path::Path;
use std::time::Instant;

use super::checkpoint::{Checkpoints, State};
use super::data::{Data, DataError, Line};
use super::evaluate;
use super::events::EventWriter;
use super::exposition::Exposition;
use super::journal::{Journal, Numbers};
use super::part::{self, Sample};
use super::policy::Policy;
use super::run::{METRICS, Summary, TIMINGS, TrainError, claim};
use super::settings::Settings;
use super::update::UpdateError;
use crate::model::backward::{PackedSequence, Slope, TokenScore};
use crate::model::tokenizer::Tokenizer;

/// The loss of scored answer tokens, `-sum log p / tokens`, and its slope at each of them. `tokens` counts the answer tokens of the whole batch, of
/// which these may be a part.
pub fn objective(scores: &[TokenScore], tokens: usize) -> (f64, Vec<Slope>) {
    let loss = scores.iter().map(|s| -f64::from(s.logprob)).sum::<f64>() / tokens as f64;
    let slope = Slope { logprob: (-1.0 / tokens as f64) as f32, entropy: 0.0 };
    (loss, vec![slope; scores.len()])
}

/// What a step came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Mean negative log-likelihood of the answer tokens, in nats, before the update.
    pub loss: f64,
    /// Mean entropy of the distributions that they were scored under.
    pub entropy: f64,
    /// Answer tokens.
    pub answer_tokens: u64,
    /// Norm of the gradient before the clip.
    pub grad_norm: f64,
}

/// One update on demonstrations (prompt and answer, scored from the answer on) with learning rate `lr`. `step` counts those before, for errors.
pub fn step(policy: &mut Policy, rows: &[PackedSequence], lr: f64, step: u64) -> Result<Report, UpdateError> {
    let answer_tokens: usize = rows.iter().map(|row| row.token_ids.len() - row.from).sum();
    let objective = part::Objective::Sft { tokens: answer_tokens };
    let rows: Vec<Sample> = rows.iter().cloned().map(Sample::demonstration).collect();
    let done = policy.step(&rows, &objective, 1.0, lr).map_err(|error| UpdateError::Training { step, error })?;
    Ok(Report {
        loss: done.sums.loss,
        entropy: done.sums.entropy / answer_tokens as f64,
        answer_tokens: answer_tokens as u64,
        grad_norm: done.norm.ok_or(UpdateError::NonFinite(step))?,
    })
}

/// The data as token ids, in the order of the file.
struct Demonstrations {
    data: Data,
    rows: std::collections::HashMap<String, PackedSequence>,
}

impl Demonstrations {
    fn read(settings: &Settings, context: usize) -> Result<Self, TrainError> {
        let path = &settings.data.path;
        let data = Data::read(path, settings.run.seed, settings.data.shuffle)?;
        let needs_text = data.lines().iter().any(|line| line.token_ids.is_none() || line.answer_ids.is_none());
        let tokenizer = match needs_text {
            true => Some(text_side(settings)?),
            false => None,
        };
        let mut rows = std::collections::HashMap::with_capacity(data.lines().len());
        for line in data.lines() {
            let row = row(line, tokenizer.as_ref(), context).map_err(|problem| DataError {
                path: path.clone(),
                line: None,
                problem: format!("line {:?} {problem}", line.id),
            })?;
            rows.insert(line.id.clone(), row);
        }
        Ok(Demonstrations { data, rows })
    }

    /// The next lines from `cursor` on.
    fn take(&mut self, cursor: u64, wanted: usize) -> Vec<PackedSequence> {
        self.data.take(cursor, wanted).into_iter().filter_map(|line| self.rows.get(&line.id).cloned()).collect()
    }
}

/// A tokenizer and the token that ends an answer.
fn text_side(settings: &Settings) -> Result<(Tokenizer, u32), TrainError> {
    let dir = &settings.model.dir;
    let refuse = |problem: &str| {
        TrainError::Setting(format!("model.dir: {} {problem}; give `token_ids` and `answer_ids` in the data", dir.display()))
    };
    let tokenizer =
        Tokenizer::from_folder(dir).map_err(|e| TrainError::Setting(e.to_string()))?.ok_or_else(|| refuse("has no tokenizer.json"))?;
    let end = tokenizer.special_tokens().get("eos_token").and_then(|text| tokenizer.token_id(text));
    let end = end.ok_or_else(|| refuse("names no eos_token in tokenizer_config.json, so an answer given as text has no end"))?;
    Ok((tokenizer, end))
}

/// Token ids of a line. The error continues "line ...".
fn row(line: &Line, tokenizer: Option<&(Tokenizer, u32)>, context: usize) -> Result<PackedSequence, String> {
    let encode = |text: &str, start: bool| match tokenizer {
        Some((tokenizer, _)) => tokenizer.encode(text, start).map_err(|e| format!("cannot be encoded: {e}")),
        None => Err("is text, and there is no tokenizer".into()),
    };
    let prompt = match (&line.token_ids, line.prompt.get("text").and_then(|text| text.as_str())) {
        (Some(ids), _) => ids.clone(),
        (None, Some(text)) => encode(text, true)?,
        (None, None) => return Err("has neither `token_ids` nor `text`, one of which fine-tuning needs".into()),
    };
    let answer = match (&line.answer_ids, &line.answer) {
        (Some(ids), _) => ids.clone(),
        (None, Some(text)) => {
            let mut ids = encode(text, false)?;
            ids.extend(tokenizer.map(|(_, end)| *end));
            ids
        }
        (None, None) => return Err("has neither `answer_ids` nor `answer`, one of which fine-tuning needs".into()),
    };
    if prompt.is_empty() || answer.is_empty() {
        return Err("has an empty prompt or answer; correct or remove it".into());
    }
    let from = prompt.len();
    let token_ids = [prompt, answer].concat();
    match token_ids.len() > context {
        true => Err(format!("has {} tokens, and the model's context is {context}; shorten or remove it", token_ids.len())),
        false => Ok(PackedSequence { token_ids, from }),
    }
}

/// Fine-tunes to the end of the run, or goes on from its last checkpoint. A step takes `rollout.prompts_per_step` lines.
pub async fn run(
    settings: &Settings,
    observer: &mut (dyn FnMut(&Numbers, &State) + Send),
    interrupt: impl Future<Output = ()>,
) -> Result<Summary, TrainError> {
    let mut run = Run::open(settings, observer).await?;
    let resumed_at = run.state.step;
    let interrupted = {
        let mut interrupt = std::pin::pin!(interrupt);
        tokio::select! {
            biased;
            () = &mut interrupt => true,
            done = run.drive() => { done?; false }
        }
    };
    run.checkpoint()?;
    if interrupted {
        return Err(TrainError::Interrupted(run.state.step));
    }
    let model = settings.run.dir.join("model");
    if model.exists() {
        std::fs::remove_dir_all(&model).map_err(|error| TrainError::Io { path: model.clone(), error })?;
    }
    run.policy.export(&model)?;
    Ok(Summary { state: run.state, resumed_at, model })
}

struct Run<'a> {
    settings: &'a Settings,
    policy: Policy,
    data: Demonstrations,
    problems: Option<Data>,
    checkpoints: Checkpoints,
    metrics: Journal,
    timings: Journal,
    exposition: Exposition,
    events: Option<EventWriter>,
    state: State,
    /// Step of the last checkpoint.
    kept: u64,
    config: String,
    observer: &'a mut (dyn FnMut(&Numbers, &State) + Send),
    _lock: std::fs::File,
}

impl<'a> Run<'a> {
    async fn open(settings: &'a Settings, observer: &'a mut (dyn FnMut(&Numbers, &State) + Send)) -> Result<Self, TrainError> {
        let (lock, config) = claim(settings)?;
        let dir = &settings.run.dir;
        let mut policy = Policy::load(settings)?;
        let data = Demonstrations::read(settings, policy.config.context_length)?;
        let problems = match settings.eval_on() {
            true => Some(Data::read(&settings.eval.path, 0, false)?),
            false => None,
        };
        let checkpoints = Checkpoints::open(dir, settings.checkpoint.keep)?;
        let mut state = State { numerics_id: policy.numerics_id.clone(), ..State::default() };
        if let Some((last, tensors)) = checkpoints.read_last(&policy.shapes())? {
            if last.numerics_id != state.numerics_id {
                let (then, now) = (&last.numerics_id, &state.numerics_id);
                tracing::warn!(
                    "the checkpoint was written by {then} and the run goes on under {now}: its bytes will differ from an undisturbed run's"
                );
            }
            policy.restore(&checkpoints.path(last.step), &tensors, last.updates)?;
            state = State { numerics_id: state.numerics_id, ..last };
        }
        let open = |name: &str, len: u64| {
            let path = dir.join(name);
            Journal::open(&path, len).map_err(|error| TrainError::Io { path, error })
        };
        let (metrics, timings) = (open(METRICS, state.metrics_bytes)?, open(TIMINGS, state.timings_bytes)?);
        let exposition = Exposition::default();
        if !settings.metrics.listen.is_empty() {
            exposition.listen(&settings.metrics.listen).await.map_err(TrainError::Setting)?;
        }
        let path = dir.join("tensorboard");
        let events = Some(EventWriter::open(&path, state.step).map_err(|error| TrainError::Io { path, error })?);
        let kept = state.step;
        Ok(Run {
            settings,
            policy,
            data,
            problems,
            checkpoints,
            metrics,
            timings,
            exposition,
            events,
            state,
            kept,
            config,
            observer,
            _lock: lock,
        })
    }

    async fn drive(&mut self) -> Result<(), TrainError> {
        if self.state.step == 0 {
            self.evaluate()?;
        }
        while self.state.step < self.settings.run.steps {
            self.step()?;
            if self.state.step.is_multiple_of(self.settings.checkpoint.every) {
                self.checkpoint()?;
            }
            // Ctrl-C is heard between steps.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), TrainError> {
        let begun = Instant::now();
        let done = self.state.step;
        let rows = self.data.take(self.state.cursor, self.settings.rollout.prompts_per_step as usize);
        let lr = self.settings.optimizer.lr * self.settings.schedule.factor(self.state.updates);
        let report = step(&mut self.policy, &rows, lr, done)?;
        self.state.step += 1;
        self.state.updates += 1;
        self.state.cursor += rows.len() as u64;
        self.state.rows += rows.len() as u64;
        let mut numbers = Numbers::new(self.state.step, "train");
        for (name, value) in [
            ("loss", report.loss),
            ("actor/entropy", report.entropy),
            ("actor/grad_norm", report.grad_norm),
            ("actor/lr", lr),
            ("ada/rows", rows.len() as f64),
        ] {
            numbers.put(name, value);
        }
        self.write(numbers)?;
        let seconds = begun.elapsed().as_secs_f64();
        let tokens: usize = rows.iter().map(|row| row.token_ids.len()).sum();
        let mut timing = Numbers::new(self.state.step, "timing");
        timing.put("timing_s/step", seconds);
        timing.put("perf/throughput", tokens as f64 / seconds.max(1e-9));
        self.exposition.set(&timing);
        self.timings.append(&timing).map_err(self.at(TIMINGS))?;
        if self.state.step.is_multiple_of(self.settings.eval.every.max(1)) || self.state.step == self.settings.run.steps {
            self.evaluate()?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<(), TrainError> {
        let Some(problems) = &self.problems else { return Ok(()) };
        let mut numbers = Numbers::new(self.state.step, "eval");
        numbers.put("ada/rows_total", self.state.rows as f64);
        numbers.put("ada/updates_total", self.state.updates as f64);
        evaluate::put_exact(&mut self.policy, problems, self.settings, &mut numbers)?;
        self.write(numbers)
    }

    fn write(&mut self, numbers: Numbers) -> Result<(), TrainError> {
        self.metrics.append(&numbers).map_err(self.at(METRICS))?;
        self.exposition.set(&numbers);
        if let Some(events) = &mut self.events {
            let step = self.state.step;
            let written = numbers.iter().try_for_each(|(name, value)| events.scalar(step, name, value)).and_then(|()| events.flush());
            if let Err(error) = written {
                tracing::warn!("TensorBoard events can no longer be written: {error}");
                self.events = None;
            }
        }
        (self.observer)(&numbers, &self.state);
        Ok(())
    }

    /// Keeps where the run stands, unless that is kept already.
    fn checkpoint(&mut self) -> Result<(), TrainError> {
        if self.kept == self.state.step {
            return Ok(());
        }
        self.state.metrics_bytes = self.metrics.sync().map_err(self.at(METRICS))?;
        self.state.timings_bytes = self.timings.sync().map_err(self.at(TIMINGS))?;
        self.state.settings.clone_from(&self.config);
        let policy = &mut self.policy;
        let tensors = policy.tensors()?;
        self.checkpoints.write(&self.state, &tensors, |dir| policy.export(dir))?;
        self.kept = self.state.step;
        Ok(())
    }

    fn at(&self, name: &str) -> impl FnOnce(std::io::Error) -> TrainError + use<> {
        let path = Path::new(&self.settings.run.dir).join(name);
        move |error| TrainError::Io { path, error }
    }
}
