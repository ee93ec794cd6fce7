//! `adaroll score`: log-probabilities of sequences that are already there.

use crate::engine::{Engine, ScoreRequest, Scores, SubmitError};

/// One line of `--json`.
#[derive(serde::Serialize)]
pub struct Line<'a> {
    /// One for every token after the first, at temperature 1.
    pub logprobs: &'a [f32],
}

/// Scores all sequences at temperature 1, every token after the first; calls `done` in input order.
pub async fn score(engine: &dyn Engine, sequences: &[Vec<u32>], mut done: impl FnMut(usize, Scores)) -> Result<(), SubmitError> {
    let mut replies = Vec::with_capacity(sequences.len());
    for (i, ids) in sequences.iter().enumerate() {
        let request = ScoreRequest { token_ids: ids.as_slice().into(), from: 1, temperature: 1.0 };
        let reply = engine.score(request).map_err(|e| match e {
            SubmitError::Field(mut f) => {
                f.field = format!("sequence {i}: {}", f.field);
                SubmitError::Field(f)
            }
            other => other,
        })?;
        replies.push(reply);
    }
    for (i, reply) in replies.into_iter().enumerate() {
        let scores = reply.await.map_err(|_| SubmitError::Stopped("it ended while sequences were being scored; see the log".into()))??;
        done(i, scores);
    }
    Ok(())
}
