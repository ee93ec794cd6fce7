//! From a step's groups to new weights: rows, mini-batches, forward, loss, backward, AdamW.
//!
//! Only groups with contrast become rows, and only they count in the loss's denominator. `logprob_old` is the policy at the start of the
//! step, by the trainer's own forward pass; where a step is one update it is the very pass that the gradient goes through, so the ratio is 1
//! exactly. `logprob_sampler` is what the server said; on samples of the current version the two are equal to the bit, and the difference
//! is among the step's numbers.

use super::batch;
use super::journal::Numbers;
use super::loss::{self, LossSettings, Row};
use super::part::{Objective, Sample};
use super::policy::{Of, Policy};
use super::rollout::Rollout;
use super::schedule::Schedule;
use super::settings::Settings;
use crate::model::backward::{PackedSequence, TokenScore, TrainingError};

/// Why an update failed.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// Forward or backward.
    #[error("the update of step {step}: {error}")]
    Training {
        /// Steps done before.
        step: u64,
        /// What.
        error: TrainingError,
    },
    /// The gradients are not finite.
    #[error(
        "the gradient of step {0} is not finite; the weights are as they were. Start another run.dir with a lower optimizer.lr, and model.dir = the \
         model of a checkpoint (checkpoints/step-N/model)"
    )]
    NonFinite(u64),
}

/// What an update came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Optimizer updates.
    pub updates: u64,
    /// Rows trained on, each once however many epochs.
    pub rows: u64,
    /// Tokens that went through forward and backward, prompts included.
    pub tokens: u64,
    numbers: Vec<(String, f64)>,
}

impl Report {
    /// Puts the numbers of the update.
    pub fn put(&self, numbers: &mut Numbers) {
        for (name, value) in &self.numbers {
            numbers.put(name, *value);
        }
    }
}

/// What updates need beside the policy.
pub struct Updater {
    loss: LossSettings,
    schedule: Schedule,
    lr: f64,
    seed: u64,
    epochs: u64,
    mini_batch_groups: usize,
    temperature: f32,
}

impl Updater {
    /// An updater for a run.
    pub fn new(settings: &Settings) -> Self {
        Updater {
            loss: settings.loss.clone(),
            schedule: settings.schedule.clone(),
            lr: settings.optimizer.lr,
            seed: settings.run.seed,
            epochs: settings.update.epochs,
            mini_batch_groups: settings.update.mini_batch_groups,
            temperature: settings.temperature(),
        }
    }
}

/// Streams of shuffles are numbered; those below are left to the passes over the data.
const UPDATE_STREAMS: u64 = 1 << 40;

impl Updater {
    /// Trains the policy on a step's groups. `step` and `updates` count what was done before.
    pub fn update(&mut self, policy: &mut Policy, rollout: &Rollout, step: u64, updates: u64) -> Result<Report, UpdateError> {
        let training_error = |error| UpdateError::Training { step, error };
        let (mut samples, groups) = samples_of(rollout);
        let mut report = Report { rows: samples.len() as u64, ..Report::default() };
        let lr = |u: u64| self.lr * self.schedule.factor(u);
        if samples.is_empty() {
            // Nothing to learn from: the weights stay, and so does the schedule.
            report.numbers.push(("actor/lr".into(), lr(updates)));
            return Ok(report);
        }
        let plan: Vec<Vec<Vec<usize>>> = (0..self.epochs)
            .map(|epoch| batch::mini_batches(groups.len(), self.mini_batch_groups, self.seed, UPDATE_STREAMS + (step << 8) + epoch))
            .collect();
        let sequences: Vec<PackedSequence> = samples.iter().map(|sample| sample.sequence.clone()).collect();
        if self.loss.wants_reference() {
            let scores = policy.score(&sequences, self.temperature, Of::Reference).map_err(training_error)?;
            samples.iter_mut().zip(&scores).for_each(|(sample, scores)| sample.row.logprob_ref = Some(logprobs(scores)));
        }
        // Where there is one update, its own forward pass is the policy at the start of the step.
        let single = plan.len() == 1 && plan[0].len() == 1;
        if !single {
            let scores = policy.score(&sequences, self.temperature, Of::Trained).map_err(training_error)?;
            samples.iter_mut().zip(&scores).for_each(|(sample, scores)| sample.row.logprob_old = logprobs(scores));
        }
        let (mut sums, mut norms) = (loss::Sums::default(), Vec::new());
        for groups_of_batch in plan.into_iter().flatten() {
            let places: Vec<usize> = groups_of_batch.iter().flat_map(|&g| groups[g].clone()).collect();
            let rows: Vec<Sample> = places.iter().map(|&i| samples[i].clone()).collect();
            report.tokens += rows.iter().map(|row| row.sequence.token_ids.len() as u64).sum::<u64>();
            let denominator = loss::Denominator::of(rows.iter().map(|row| row.row.logprob_sampler.len()));
            let objective = Objective::Rl { loss: self.loss.clone(), denominator, single };
            let done = policy.step(&rows, &objective, self.temperature, lr(updates + report.updates)).map_err(training_error)?;
            if single {
                places.iter().zip(&done.scores).for_each(|(&i, scores)| samples[i].row.logprob_old = logprobs(scores));
            }
            sums.add(&done.sums);
            norms.push(done.norm.ok_or(UpdateError::NonFinite(step))?);
            report.updates += 1;
        }
        let numbers = &mut report.numbers;
        let n = sums.tokens.max(1.0);
        let batches = norms.len().max(1) as f64;
        for (name, value) in [
            ("loss", sums.loss / batches),
            ("actor/pg_loss", sums.surrogate / batches),
            ("actor/entropy", sums.entropy / n),
            ("actor/pg_clipfrac", sums.clipped / n),
            ("actor/pg_clipfrac_lower", sums.dual_clipped / n),
            ("actor/ppo_kl", sums.old_minus_new / n),
            ("actor/ratio/mean", sums.ratio / n),
            ("actor/ratio/max", sums.ratio_max),
            ("actor/grad_norm", norms.iter().sum::<f64>() / batches),
            ("actor/lr", lr(updates + report.updates - 1)),
            ("ada/rows", report.rows as f64),
        ] {
            numbers.push((name.into(), value));
        }
        if self.loss.wants_reference() {
            numbers.push(("actor/kl_loss".into(), sums.kl / n));
        }
        if sums.masked > 0.0 {
            numbers.push(("actor/masked_tokens".into(), sums.masked));
        }
        numbers.extend(differences(&samples, rollout.sampled_at == step));
        Ok(report)
    }
}

/// The kept samples of groups with contrast, and for each such group its rows, by request position.
fn samples_of(rollout: &Rollout) -> (Vec<Sample>, Vec<std::ops::Range<usize>>) {
    let (mut samples, mut groups) = (Vec::new(), Vec::new());
    for group in rollout.groups.iter().filter(|group| group.signal) {
        let first = samples.len();
        for sample in &group.samples {
            let Some(advantage) = sample.advantage.filter(|_| !sample.token_ids.is_empty()) else { continue };
            let token_ids = group.prompt_token_ids.iter().chain(&sample.token_ids).copied().collect();
            samples.push(Sample {
                sequence: PackedSequence { token_ids, from: group.prompt_token_ids.len() },
                row: Row { advantage, logprob_sampler: sample.logprobs.clone(), ..Row::default() },
            });
        }
        if samples.len() > first {
            groups.push(first..samples.len());
        }
    }
    (samples, groups)
}

fn logprobs(scores: &[TokenScore]) -> Vec<f32> {
    scores.iter().map(|score| score.logprob).collect()
}

/// How far the trainer's policy at the start of the step is from what the server reported.
fn differences(samples: &[Sample], current: bool) -> Vec<(String, f64)> {
    let (mut most, mut most_log, mut sum, mut squares, mut n) = (0f64, 0f64, 0.0, 0.0, 0.0);
    for Sample { row, .. } in samples {
        for (old, sampler) in row.logprob_old.iter().zip(&row.logprob_sampler) {
            let (old, sampler) = (f64::from(*old), f64::from(*sampler));
            let difference = (libm::exp(old) - libm::exp(sampler)).abs();
            most = most.max(difference);
            most_log = most_log.max((old - sampler).abs());
            sum += difference;
            squares += difference * difference;
            n += 1.0;
        }
    }
    let mean = sum / f64::max(n, 1.0);
    let mut numbers = vec![
        ("training/rollout_probs_diff_max".to_owned(), most),
        ("training/rollout_probs_diff_mean".to_owned(), mean),
        ("training/rollout_probs_diff_std".to_owned(), (squares / f64::max(n, 1.0) - mean * mean).max(0.0).sqrt()),
    ];
    // Promise 2 is about samples of the current version.
    if current {
        numbers.push(("training/rollout_logprobs_diff_max".to_owned(), most_log));
    }
    numbers
}
