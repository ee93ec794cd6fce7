//! The rows of a step on the card, and steps that are recorded once and replayed.
//!
//! A decode step is some three hundred launches of a few microseconds each. As a CUDA graph it is one. A graph has fixed shapes and addresses, so
//! decode steps are rounded up to a dozen batch sizes: padding rows compute token 0 at position 0, write to slot -1 and are seen by nobody. Everything
//! that changes from step to step lies in lists at fixed addresses; weights, cache and activations never move.

use std::collections::HashMap;

use cudarc::driver::CudaGraph;
use cudarc::driver::sys;

use super::launch::Queue;
use super::lists::Lists;
use crate::ops::{Batch, Place};

/// Batch sizes with a graph of their own.
const BUCKETS: [usize; 14] = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512];

/// Where padding rows write.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Packed rows (positions x query heads of a KV head) of the two attention kernels.
pub(super) const TILE_ROWS: [usize; 2] = [16, 64];

/// Words of a tile: row, positions, start, table.
pub(super) const TILE_WORDS: usize = 4;

/// How many of everything a step has, padding included; decides where the lists lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) logit_rows: usize,
    /// Tiles of each kernel of [`TILE_ROWS`].
    pub(super) tiles: [usize; 2],
}

impl Shape {
    /// Word offsets of positions, slots, logit rows, tiles (two kinds) and block tables; the tokens are at 0.
    fn offsets(self) -> [usize; 6] {
        let slots = 2 * self.rows;
        let logit_rows = 3 * self.rows;
        let first = (logit_rows + self.logit_rows).next_multiple_of(TILE_WORDS);
        let second = first + TILE_WORDS * self.tiles[0];
        let tables = second + TILE_WORDS * self.tiles[1];
        [self.rows, slots, logit_rows, first, second, tables]
    }
}

/// Cuts segments into the tiles of the attention kernels: a short one is a tile of the small kernel, a long one several of the large kernel.
/// Calls `tile(kind, [row, positions, start, table])`.
pub(super) fn tiles(batch: &Batch, group: usize, mut tile: impl FnMut(usize, [u32; TILE_WORDS])) {
    for s in &batch.segments {
        let kind = usize::from(s.rows * group > TILE_ROWS[0]);
        let most = TILE_ROWS[kind] / group;
        for first in (0..s.rows).step_by(most) {
            let positions = most.min(s.rows - first);
            tile(kind, [s.row + first, positions, s.start + first, s.table].map(|v| v as u32));
        }
    }
}

/// Rows to make room for where steps have up to `rows` rows: as many as the recorded step has that they are rounded up to.
pub(super) fn room(rows: usize) -> usize {
    BUCKETS.into_iter().find(|b| *b >= rows && rows > 0).unwrap_or(rows)
}

/// The batch size of a decode step's graph: every sequence has one row, and every row gives logits.
fn bucket(batch: &Batch) -> Option<usize> {
    let rows = batch.rows();
    let decode = batch.segments.len() == rows && batch.logit_rows.len() == rows;
    BUCKETS.into_iter().find(|b| decode && rows > 0 && *b >= rows)
}

/// A batch that lies on the card.
#[derive(Clone, Copy)]
pub(super) struct Open {
    /// Where its lists are in the host's memory, to know them again.
    host: [(*const u32, usize); 4],
    segments: *const crate::ops::Segment,
    at: u64,
    pub(super) shape: Shape,
}

// SAFETY: the pointers are compared, never followed.
unsafe impl Send for Open {}

impl Open {
    /// Where a list of the batch is on the card, if it is one.
    pub(super) fn find(&self, list: &[u32]) -> Option<u64> {
        let offsets = self.shape.offsets();
        let place = self.host.iter().position(|known| *known == (list.as_ptr(), list.len()))?;
        Some(self.at + 4 * [0, offsets[0], offsets[1], offsets[2]][place] as u64)
    }

    /// The tiles (two kinds) and block tables of a batch, if it is this one.
    pub(super) fn tiles(&self, batch: &Batch) -> Option<([u64; 2], u64)> {
        let [_, _, _, first, second, tables] = self.shape.offsets().map(|o| self.at + 4 * o as u64);
        (batch.segments.as_ptr() == self.segments).then_some(([first, second], tables))
    }
}

/// How far a decode shape has come.
enum Recorded {
    /// It has run call by call, so that everything it needs has been made.
    Seen,
    Graph(Graph),
}

struct Graph(CudaGraph);
// SAFETY: a graph is used by one thread at a time: it belongs to one backend, whose calls take `&mut`.
unsafe impl Send for Graph {}

/// The rows of the steps and the recorded steps.
pub(super) struct Steps {
    lists: Lists,
    recorded: HashMap<(Place, usize), Recorded>,
    /// Replaying can be turned off, to compare.
    pub(super) replay: bool,
    pub(super) open: Option<Open>,
}

/// What is to be done with a step whose rows are on their way.
pub(super) enum Todo {
    /// Call by call, with so many rows.
    Run(usize),
    /// The same, while it is recorded under this key.
    Record(usize),
    /// Nothing more: a recorded one was started.
    Done,
}

impl Steps {
    pub(super) fn new(lists: Lists, replay: bool) -> Steps {
        Steps { lists, recorded: HashMap::new(), replay, open: None }
    }

    /// Starts the rows of a step on their way and says how it is to run.
    pub(super) fn begin(&mut self, queue: &Queue, place: Place, batch: &Batch) -> Todo {
        let bucket = bucket(batch).filter(|_| self.replay);
        let group = place.heads.query / place.heads.kv;
        let mut shape = Shape { rows: bucket.unwrap_or(batch.rows()), ..Shape::default() };
        shape.logit_rows = batch.logit_rows.len() + shape.rows - batch.rows();
        tiles(batch, group, |kind, _| shape.tiles[kind] += 1);
        if let Some(rows) = bucket {
            // One position a tile: all of one kind.
            shape.tiles = shape.tiles.map(|n| if n > 0 { rows } else { 0 });
        }
        self.send(queue, batch, group, shape);
        let Some(rows) = bucket else { return Todo::Run(shape.rows) };
        match self.recorded.get(&(place, rows)) {
            None => {
                self.recorded.insert((place, rows), Recorded::Seen);
                Todo::Run(rows)
            }
            Some(Recorded::Seen) => {
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                match queue.failure.is_set() || queue.failure.note("a step was recorded", queue.stream.begin_capture(mode)).is_none() {
                    true => Todo::Done,
                    false => Todo::Record(rows),
                }
            }
            Some(Recorded::Graph(graph)) => {
                if !queue.failure.is_set() {
                    queue.failure.note("a recorded step was started", graph.0.launch());
                }
                Todo::Done
            }
        }
    }

    /// Ends the recording of a step, and starts it.
    pub(super) fn end_recording(&mut self, queue: &Queue, place: Place, rows: usize) {
        let ended = queue.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        match queue.failure.note("a step was recorded", ended) {
            Some(Some(graph)) => {
                queue.failure.note("a recorded step was started", graph.launch());
                self.recorded.insert((place, rows), Recorded::Graph(Graph(graph)));
            }
            Some(None) => queue.failure.set(|| "the GPU recorded nothing of a step".into()),
            None => {}
        }
    }

    fn send(&mut self, queue: &Queue, batch: &Batch, group: usize, shape: Shape) {
        let [positions, slots, logit_rows, first, second, tables] = shape.offsets();
        let words = tables + batch.tables.len();
        if self.lists.reserve(queue, words) {
            // Graphs hold the old addresses.
            self.recorded.clear();
        }
        let at = self.lists.send(queue, words, |to| {
            let rows = batch.rows();
            to[..rows].copy_from_slice(&batch.tokens);
            to[rows..positions].fill(0);
            to[positions..][..rows].copy_from_slice(&batch.positions);
            to[positions + rows..slots].fill(0);
            to[slots..][..rows].copy_from_slice(&batch.slots);
            to[slots + rows..logit_rows].fill(NOWHERE);
            let given = batch.logit_rows.len();
            to[logit_rows..][..given].copy_from_slice(&batch.logit_rows);
            // A padding row gives padding logits.
            to[logit_rows + given..first].iter_mut().enumerate().for_each(|(i, to)| *to = (rows + i).min(shape.rows - 1) as u32);
            to[first..tables].fill(0);
            let mut next = [first, second];
            tiles(batch, group, |kind, tile| {
                to[next[kind]..][..TILE_WORDS].copy_from_slice(&tile);
                next[kind] += TILE_WORDS;
            });
            to[tables..].copy_from_slice(&batch.tables);
        });
        let host = [&batch.tokens, &batch.positions, &batch.slots, &batch.logit_rows].map(|list| (list.as_ptr(), list.len()));
        self.open = Some(Open { host, segments: batch.segments.as_ptr(), at, shape });
    }
}
