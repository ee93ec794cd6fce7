//! How well a model does the task: exact pass@1, since each problem has one right answer.

use super::task::Problem;
use crate::model::backward::PackedSequence;
use crate::trainer::evaluate::{EvalError, probabilities};
use crate::trainer::learner::Score;

/// Tokens that go through the model at once; no number depends on it.
const MICRO_BATCH_TOKENS: usize = 4096;

/// The probability that one sample at temperature 1 answers each problem right: the product of the answer's token probabilities.
pub fn pass_rates(scorer: &mut dyn Score, problems: &[Problem]) -> Result<Vec<f64>, EvalError> {
    let row = |p: &Problem| PackedSequence { token_ids: [p.prompt_ids.as_slice(), &p.answer_ids].concat(), from: p.prompt_ids.len() };
    probabilities(scorer, problems.iter().map(row).collect(), MICRO_BATCH_TOKENS)
}

/// The mean over the problems of a slice, `easy` or `hard`; `None` if there are none.
pub fn mean(problems: &[Problem], rates: &[f64], slice: &str) -> Option<f64> {
    let of_slice = problems.iter().zip(rates).filter(|(p, _)| p.slice == slice).map(|(_, rate)| *rate);
    let (sum, count) = of_slice.fold((0.0, 0usize), |(sum, count), rate| (sum + rate, count + 1));
    (count > 0).then(|| sum / count as f64)
}
