//! Evaluation: pass@1 and pass@k, by slice of the problems.
//!
//! `exact` needs problems with one right answer: the product of its tokens' probabilities is pass@1 at temperature 1, without sampling
//! noise. `sampled` draws from the server under the present version, with a seed of its own, and uses the unbiased estimator of
//! pass@k (Chen et al. 2021): 1 - C(n - c, k) / C(n, k).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::data::{Data, Line};
use super::journal::Numbers;
use super::learner::Score;
use super::policy::Policy;
use super::server::{Server, ServerError};
use super::settings::Settings;
use crate::model::backward::{Packed, PackedSequence};

/// Why an evaluation failed.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A problem that it cannot count.
    #[error("eval.path: {0}")]
    Data(String),
    /// The forward pass.
    #[error("the evaluation's forward pass: {0}")]
    Forward(String),
    /// The server.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// pass@k of `c` right answers among `n`.
pub fn pass_at_k(n: u32, c: u32, k: u32) -> f64 {
    if n < k || n - c < k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n).map(|i| 1.0 - f64::from(k) / f64::from(i)).product::<f64>()
}

/// Puts the mean of `values` over all problems and over every slice.
fn put(numbers: &mut Numbers, name: &str, lines: &[Line], values: &[f64]) {
    numbers.put_mean(name, values.iter().copied());
    let mut slices: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (line, value) in lines.iter().zip(values) {
        if let Some(slice) = &line.slice {
            slices.entry(slice).or_default().push(*value);
        }
    }
    for (slice, values) in slices {
        numbers.put_mean(&format!("{name}/{slice}"), values);
    }
}

/// The probability of each problem's one right answer.
pub fn exact(policy: &mut Policy, data: &Data, micro_batch_tokens: usize) -> Result<Vec<f64>, EvalError> {
    let mut rows = Vec::with_capacity(data.lines().len());
    for line in data.lines() {
        let (Some(prompt), Some(answer)) = (&line.token_ids, &line.answer_ids) else {
            return Err(EvalError::Data(format!(
                "problem {:?} has no `token_ids` and `answer_ids`, which eval.kind \"exact\" needs",
                line.id
            )));
        };
        if prompt.is_empty() || answer.is_empty() {
            return Err(EvalError::Data(format!("problem {:?} has an empty prompt or answer", line.id)));
        }
        rows.push(PackedSequence { token_ids: prompt.iter().chain(answer).copied().collect(), from: prompt.len() });
    }
    probabilities(policy.scorer(), rows, micro_batch_tokens)
}

/// The probability of each row's scored tokens together.
pub fn probabilities(scorer: &mut dyn Score, rows: Vec<PackedSequence>, micro_batch_tokens: usize) -> Result<Vec<f64>, EvalError> {
    let mut probabilities = Vec::with_capacity(rows.len());
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let (mut batch, mut tokens) = (Packed { sequences: Vec::new() }, 0);
        while let Some(row) = rows.next_if(|row| tokens == 0 || tokens + row.token_ids.len() <= micro_batch_tokens) {
            tokens += row.token_ids.len();
            batch.sequences.push(row);
        }
        let scores = scorer.forward(&batch, 1.0).map_err(|e| EvalError::Forward(e.to_string()))?;
        let mut scores = scores.into_iter();
        for row in &batch.sequences {
            let sum: f64 = scores.by_ref().take(row.token_ids.len() - row.from).map(|s| f64::from(s.logprob)).sum();
            probabilities.push(libm::exp(sum));
        }
    }
    Ok(probabilities)
}

/// Puts exact pass@1.
pub fn put_exact(policy: &mut Policy, data: &Data, settings: &Settings, numbers: &mut Numbers) -> Result<(), EvalError> {
    let values = exact(policy, data, settings.update.micro_batch_tokens)?;
    put(numbers, "eval/pass@1", data.lines(), &values);
    Ok(())
}

/// Puts sampled pass@1 and pass@k of the weights after `step` steps, with their version and digest.
pub async fn put_sampled(
    server: &Server,
    data: &Data,
    settings: &Settings,
    (step, version, digest): (u64, u64, &str),
    numbers: &mut Numbers,
) -> Result<(), EvalError> {
    let n = settings.eval.samples;
    // What counts as a success is what it is in training.
    let mut strategy = json!({"kind": "uniform", "group_size": n});
    for key in ["positive_above", "limit_counts"] {
        if let Some(value) = settings.rollout.strategy.get(key) {
            strategy[key] = value.clone();
        }
    }
    let mut sampling = settings.rollout.sampling.clone();
    if settings.eval.max_tokens > 0 {
        sampling["max_tokens"] = settings.eval.max_tokens.into();
    }
    let mut passes: Vec<(u32, u32)> = Vec::with_capacity(data.lines().len());
    // An evaluation never writes the history that training reads.
    let namespace = format!("{}-eval", settings.rollout.namespace);
    for (part, lines) in data.lines().chunks(super::rollout::MOST_PROMPTS).enumerate() {
        let ids: Vec<String> = lines.iter().map(|line| line.id.clone()).collect();
        let prompts: Vec<Value> = lines.iter().map(super::rollout::prompt).collect();
        let body = json!({
            "job_id": format!("{}-eval-{step}-{part}-{digest}", settings.run.name),
            "prompts": prompts,
            "strategy": strategy,
            "sampling": sampling,
            "seed": settings.run.seed,
            "weights": version,
            "namespace": namespace,
            "return": {"text": false, "logprobs": true},
        });
        let places = lines.iter().map(|line| line.place.clone()).collect();
        let finished = server.start(body, places).await?.finish(&ids).await?;
        for group in &finished.groups {
            // A sample that could not be judged is neither right nor wrong.
            passes.push(((group.stats.positive + group.stats.negative) as u32, group.stats.positive as u32));
        }
    }
    for &k in &settings.eval.k {
        let (mut lines, mut values) = (Vec::new(), Vec::new());
        for (line, &(n, c)) in data.lines().iter().zip(&passes) {
            if n >= k {
                lines.push(line.clone());
                values.push(pass_at_k(n, c, k));
            }
        }
        put(numbers, &format!("eval/pass@{k}"), &lines, &values);
    }
    Ok(())
}
