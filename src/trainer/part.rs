//! One part of an update's rows on one model: forward, loss, backward, a micro-batch at a time. And the forward pass alone, for scores.
//!
//! Nothing here knows of other parts: a rank computes its own with these lines, and one process that computes all of them does so too. A part's
//! gradients, scores and sums are a function of its rows; how they are cut into micro-batches changes no bit of gradients and scores.

use serde::{Deserialize, Serialize};

use super::batch::micro_batches;
use super::learner::{Learn, Score};
use super::loss::{Denominator, LossSettings, Row, Sums, loss_of_rows};
use super::sft;
use crate::model::backward::{Packed, PackedSequence, Slope, TokenScore, TrainingError};

/// A row of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its tokens.
    pub sequence: PackedSequence,
    /// What the loss knows of it before the forward pass; of a demonstration nothing.
    pub row: Row,
}

impl Sample {
    /// A demonstration.
    pub fn demonstration(sequence: PackedSequence) -> Self {
        Sample { sequence, row: Row::default() }
    }
}

/// What is minimised over the rows of an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// A policy gradient's loss.
    Rl {
        /// The loss.
        loss: LossSettings,
        /// What its sums are divided by, over all parts.
        denominator: Denominator,
        /// The step is this one update: its own forward pass is the policy at the start of the step.
        single: bool,
    },
    /// The mean negative log-likelihood of the answers.
    Sft {
        /// Answer tokens of all parts.
        tokens: usize,
    },
}

/// What a part came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// The loss and its companions; those of parts add up.
    pub sums: Sums,
    /// Scores of each row's tokens.
    pub scores: Vec<Vec<TokenScore>>,
}

/// Adds the gradients of some rows of an update.
pub fn train(
    learner: &mut dyn Learn,
    rows: &[Sample],
    objective: &Objective,
    temperature: f32,
    micro_batch_tokens: usize,
) -> Result<Part, TrainingError> {
    let mut part = Part::default();
    for micro in micro_batches(&lengths(rows), micro_batch_tokens) {
        let rows = &rows[micro];
        let batch = Packed { sequences: rows.iter().map(|sample| sample.sequence.clone()).collect() };
        let scores = by_row(&batch.sequences, learner.forward(&batch, temperature)?);
        let (sums, slopes) = loss_of(objective, rows, &scores);
        part.sums.add(&sums);
        learner.backward(&slopes)?;
        part.scores.extend(scores);
    }
    Ok(part)
}

/// Scores each sequence's tokens.
pub fn score(
    scorer: &mut dyn Score,
    sequences: &[PackedSequence],
    temperature: f32,
    micro_batch_tokens: usize,
) -> Result<Vec<Vec<TokenScore>>, TrainingError> {
    let tokens: Vec<usize> = sequences.iter().map(|sequence| sequence.token_ids.len()).collect();
    let mut all = Vec::with_capacity(sequences.len());
    for micro in micro_batches(&tokens, micro_batch_tokens) {
        let batch = Packed { sequences: sequences[micro].to_vec() };
        all.extend(by_row(&batch.sequences, scorer.forward(&batch, temperature)?));
    }
    Ok(all)
}

/// Tokens of each row.
pub fn lengths(rows: &[Sample]) -> Vec<usize> {
    rows.iter().map(|sample| sample.sequence.token_ids.len()).collect()
}

/// Scores of a batch, row by row.
fn by_row(sequences: &[PackedSequence], scores: Vec<TokenScore>) -> Vec<Vec<TokenScore>> {
    let mut scores = scores.into_iter();
    sequences.iter().map(|sequence| scores.by_ref().take(sequence.token_ids.len() - sequence.from).collect()).collect()
}

/// The loss of some rows, whose tokens have these scores.
fn loss_of(objective: &Objective, rows: &[Sample], scores: &[Vec<TokenScore>]) -> (Sums, Vec<Slope>) {
    match objective {
        Objective::Rl { loss, denominator, single } => {
            let scored = |(sample, scores): (&Sample, &Vec<TokenScore>)| {
                let mut row = sample.row.clone();
                (row.logprob, row.entropy) = scores.iter().map(|s| (s.logprob, s.entropy)).unzip();
                if *single {
                    row.logprob_old.clone_from(&row.logprob);
                }
                row
            };
            let rows: Vec<Row> = rows.iter().zip(scores).map(scored).collect();
            loss_of_rows(loss, &rows, *denominator)
        }
        Objective::Sft { tokens } => {
            let scores = scores.concat();
            let (loss, slopes) = sft::objective(&scores, *tokens);
            let entropy = scores.iter().map(|s| f64::from(s.entropy)).sum();
            (Sums { loss, entropy, tokens: scores.len() as f64, ..Sums::default() }, slopes)
        }
    }
}
