//! What a step asks of its logits, and who waits for the answers.
//!
//! The draws of a step come first among its asks, then the tokens that are scored. So the number of a draw among the asks is the place of its
//! asker among the askers, and the answers are handed out in the same order.

use super::api::RequestId;
use crate::ops::{Ask, Draw, Drawn, NonFinite, Ops};

/// Who asked, and for what.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// A sample, for its next token: one answer.
    Draw(RequestId),
    /// A scored sequence, for the tokens `from..from + rows`: as many answers; `done` if they are the last.
    Scored {
        /// The sequence.
        id: RequestId,
        /// First token.
        from: usize,
        /// Number of tokens.
        rows: usize,
        /// No more tokens follow.
        done: bool,
    },
}

impl Asker {
    /// Number of answers.
    pub(super) fn answers(&self) -> usize {
        match self {
            Asker::Draw(_) => 1,
            Asker::Scored { rows, .. } => *rows,
        }
    }
}

/// What one step asked.
pub(super) struct Asked {
    /// The weights that answer.
    pub(super) version: u64,
    /// Draws first.
    pub(super) askers: Vec<Asker>,
}

/// Has a backend that is not late answer.
pub(super) fn answer<O: Ops>(ops: &mut O, logits: &O::Tensor, asks: &[Ask<'_>], out: &mut Vec<Result<Drawn, NonFinite>>) {
    let draw = |ask: &Ask<'_>| matches!(ask, Ask::Draw(_));
    let (draws, mut tokens) = asks.split_at(asks.partition_point(draw));
    let draws: Vec<Draw<'_>> = draws.iter().filter_map(|ask| if let Ask::Draw(draw) = ask { Some(draw.clone()) } else { None }).collect();
    ops.sample(logits, &draws, out);
    let mut scored = Vec::new();
    while let [Ask::Token { temperature: first, .. }, ..] = tokens {
        let of_first = |ask: &Ask<'_>| match ask {
            Ask::Token { row, token, temperature } if temperature == first => Some((*row, *token)),
            _ => None,
        };
        let rows: Vec<(usize, u32)> = tokens.iter().map_while(of_first).collect();
        ops.logprobs_of(logits, &rows, *first, &mut scored);
        out.append(&mut scored);
        tokens = &tokens[rows.len()..];
    }
}
