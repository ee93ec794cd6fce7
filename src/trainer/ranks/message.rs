//! What rank 0 and the other ranks say to each other: one JSON object a line. Numbers that were computed go as their bits, so that none is rounded and
//! none is lost that JSON cannot hold; settings go as numbers, which are finite.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::model::backward::{PackedSequence, TokenScore};
use crate::trainer::loss::{Row, Sums};
use crate::trainer::part::{Objective, Part, Sample};
use crate::trainer::policy::Of;

/// What rank 0 asks. Each is answered, in order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Open the GPU.
    Open {
        /// The run's, as TOML.
        settings: String,
        /// Which rank the process is.
        rank: usize,
    },
    /// Join the other ranks, and load the model.
    Join {
        /// NCCL's.
        id: String,
    },
    /// Go on from a checkpoint.
    Restore {
        /// Its folder.
        checkpoint: PathBuf,
        /// Updates before.
        updates: u64,
    },
    /// Score the tokens of sequences.
    Score {
        /// With which model.
        of: Of,
        /// Bits of the temperature.
        temperature: u32,
        /// The sequences.
        sequences: Vec<Sequence>,
    },
    /// Compute the gradient of a part.
    Train {
        /// What is minimised.
        objective: Objective,
        /// Bits of the temperature.
        temperature: u32,
        /// The part's rows.
        rows: Vec<WireRow>,
    },
    /// Sum the gradients over the ranks, and take the optimizer's step.
    Update {
        /// Bits of the learning rate.
        lr: u64,
    },
}

/// What a rank answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The GPU is open; its name.
    Opened(String),
    /// The model is loaded; backend and kernels.
    Ready(String),
    /// The checkpoint is read.
    Restored,
    /// Scores of each sequence.
    Scores(Scores),
    /// The part's gradients are there.
    Trained {
        /// Bits of its sums.
        sums: [u64; 11],
        /// Scores of each row.
        scores: Scores,
    },
    /// The step is taken; bits of the norm, or nothing where it is not finite.
    Updated(Option<u64>),
    /// Nothing more will come: why.
    Failed(String),
}

/// Bits of log-probability and entropy of each token.
type Scores = Vec<Vec<[u32; 2]>>;

/// A sequence.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sequence {
    token_ids: Vec<u32>,
    from: usize,
}

/// A row before the forward pass.
#[derive(Debug, Serialize, Deserialize)]
pub struct WireRow {
    sequence: Sequence,
    advantage: u64,
    logprob_old: Vec<u32>,
    logprob_sampler: Vec<u32>,
    logprob_ref: Option<Vec<u32>>,
}

impl From<&PackedSequence> for Sequence {
    fn from(s: &PackedSequence) -> Sequence {
        Sequence { token_ids: s.token_ids.clone(), from: s.from }
    }
}

impl From<Sequence> for PackedSequence {
    fn from(s: Sequence) -> PackedSequence {
        PackedSequence { token_ids: s.token_ids, from: s.from }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn numbers(bits: Vec<u32>) -> Vec<f32> {
    bits.into_iter().map(f32::from_bits).collect()
}

impl From<&Sample> for WireRow {
    fn from(Sample { sequence, row }: &Sample) -> WireRow {
        WireRow {
            sequence: sequence.into(),
            advantage: row.advantage.to_bits(),
            logprob_old: bits(&row.logprob_old),
            logprob_sampler: bits(&row.logprob_sampler),
            logprob_ref: row.logprob_ref.as_deref().map(bits),
        }
    }
}

impl From<WireRow> for Sample {
    fn from(wire: WireRow) -> Sample {
        let row = Row {
            advantage: f64::from_bits(wire.advantage),
            logprob_old: numbers(wire.logprob_old),
            logprob_sampler: numbers(wire.logprob_sampler),
            logprob_ref: wire.logprob_ref.map(numbers),
            ..Row::default()
        };
        Sample { sequence: wire.sequence.into(), row }
    }
}

/// Scores as their bits.
pub fn of_scores(scores: &[Vec<TokenScore>]) -> Scores {
    scores.iter().map(|row| row.iter().map(|s| [s.logprob.to_bits(), s.entropy.to_bits()]).collect()).collect()
}

/// Scores from their bits.
pub fn to_scores(scores: Scores) -> Vec<Vec<TokenScore>> {
    let score = |[logprob, entropy]: [u32; 2]| TokenScore { logprob: f32::from_bits(logprob), entropy: f32::from_bits(entropy) };
    scores.into_iter().map(|row| row.into_iter().map(score).collect()).collect()
}

/// What a part came to, as bits.
pub fn of_part(part: &Part) -> Answer {
    let s = part.sums;
    let sums = [s.loss, s.surrogate, s.tokens, s.clipped, s.dual_clipped, s.masked, s.old_minus_new, s.entropy, s.kl, s.ratio, s.ratio_max];
    Answer::Trained { sums: sums.map(f64::to_bits), scores: of_scores(&part.scores) }
}

/// What a part came to, from its bits.
pub fn to_part(sums: [u64; 11], scores: Scores) -> Part {
    let [loss, surrogate, tokens, clipped, dual_clipped, masked, old_minus_new, entropy, kl, ratio, ratio_max] = sums.map(f64::from_bits);
    let sums = Sums { loss, surrogate, tokens, clipped, dual_clipped, masked, old_minus_new, entropy, kl, ratio, ratio_max };
    Part { sums, scores: to_scores(scores) }
}
