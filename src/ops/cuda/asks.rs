//! What a step asks of its logits, answered on the card. Only tokens and log-probabilities come back, and the host reads them a step later: by then
//! the card works on the next step, whose embedding takes the new tokens from where the draws left them.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::CudaEvent;

use super::device::Device;
use super::launch::{Arg, Queue};
use super::lists::Lists;
use super::memory::{Arena, Buffer, Pinned, Purpose};
use super::tensor::{Tensor, stride_of};
use crate::ops::{Ask, Drawn, NonFinite};

/// Logits of a vocabulary tile.
const TILE: usize = 4096;
/// Bytes of a tile's part of an answer.
const PART_BYTES: usize = 48;
/// Bytes of an answer.
const ANSWER_BYTES: usize = 16;
/// Words of an ask.
const ASK_WORDS: usize = 16;
/// Asks answered by one launch.
const AT_A_TIME: usize = 1024;
/// Rows of filtered logits that are held at a time.
const SCRATCH_ROWS: usize = 32;
/// Steps whose answers may be open.
const OPEN: usize = 2;
/// Not a row of the scratch memory.
const NONE: u32 = u32::MAX;
/// Memory taken at a time for what is small.
const SMALL_CHUNK_BYTES: usize = 8 << 20;
/// Most asks of a step; the tokens they draw lie at a fixed address.
pub(super) const MOST_ASKS: usize = 1 << 17;

/// Answers under way.
struct Pending {
    event: Option<CudaEvent>,
    slot: usize,
    asks: usize,
}

/// The asks of steps and the answers to them.
pub(super) struct Asks {
    device: Arc<Device>,
    lists: Lists,
    arena: Arena,
    /// What each ask drew, for the next step's embedding: u32 each.
    drawn: Buffer,
    parts: Option<Buffer>,
    scratch: Option<Buffer>,
    answers: Option<Buffer>,
    back: Vec<Pinned>,
    pending: VecDeque<Pending>,
    next: usize,
}

/// One ask on its way: its words, and whether it goes through the filters.
struct Packed {
    words: [u32; ASK_WORDS],
    filtered: bool,
    draw: bool,
}

impl Asks {
    pub(super) fn new(device: &Arc<Device>, queue: &Queue, chunk_bytes: usize) -> Asks {
        let arena = Arena::new(device.clone(), Purpose::Activations, chunk_bytes.min(SMALL_CHUNK_BYTES));
        Asks {
            device: device.clone(),
            lists: Lists::new(device),
            drawn: arena.take(4 * MOST_ASKS, &queue.failure),
            arena,
            parts: None,
            scratch: None,
            answers: None,
            back: Vec::new(),
            pending: VecDeque::new(),
            next: 0,
        }
    }

    /// Where the tokens are that the asks of the last step drew.
    pub(super) fn drawn(&self) -> u64 {
        self.drawn.ptr
    }

    /// Whether answers are under way.
    pub(super) fn is_open(&self) -> bool {
        !self.pending.is_empty()
    }

    fn make_room(&mut self, queue: &Queue, asks: usize, vocab: usize, filtered: bool) {
        let grown = |held: &Option<Buffer>, bytes: usize| held.as_ref().is_none_or(|b| b.bytes < bytes);
        let parts = asks.min(AT_A_TIME) * vocab.div_ceil(TILE) * PART_BYTES;
        let scratch = SCRATCH_ROWS * stride_of(vocab) * 4;
        let answers = asks * ANSWER_BYTES;
        if grown(&self.parts, parts) {
            self.parts = Some(self.arena.take(2 * parts, &queue.failure));
        }
        if filtered && grown(&self.scratch, scratch) {
            self.scratch = Some(self.arena.take(scratch, &queue.failure));
        }
        if grown(&self.answers, answers) {
            // The answers of the step before are on their way out of the old buffer and into the old pinned memory.
            queue.wait();
            let room = (2 * answers).max(4096);
            self.answers = Some(self.arena.take(room, &queue.failure));
            for slot in 0..=OPEN {
                // Answers that nobody has read yet move with it.
                let mut new = Pinned::new(&self.device, room, &queue.failure);
                if let Some(old) = self.back.get(slot) {
                    let n = old.len().min(new.len());
                    new.bytes_mut()[..n].copy_from_slice(&old.bytes()[..n]);
                }
                match self.back.get_mut(slot) {
                    Some(old) => *old = new,
                    None => self.back.push(new),
                }
            }
        }
    }

    /// Starts the answers of a step.
    pub(super) fn start(&mut self, queue: &Queue, logits: &Tensor, asks: &[Ask<'_>]) {
        assert!(self.pending.len() < OPEN, "the answers of two steps are open; read those of the first");
        assert!(asks.len() <= MOST_ASKS, "a step has at most {MOST_ASKS} asks");
        let (mut biases, mut banned) = (Vec::new(), Vec::new());
        let mut packed: Vec<Packed> = asks.iter().enumerate().map(|(i, ask)| pack(i, ask, &mut biases, &mut banned)).collect();
        // Draws without filters, draws with, tokens that are there: each kind has kernels of its own. The slot says whose answer it is.
        packed.sort_by_key(|p| (!p.draw, p.filtered));
        let plain = packed.iter().filter(|p| p.draw && !p.filtered).count();
        let filtered = packed.iter().filter(|p| p.filtered).count();
        packed[plain..plain + filtered].iter_mut().enumerate().for_each(|(i, p)| p.words[7] = (i % SCRATCH_ROWS) as u32);
        let vocab = logits.cols;
        let rows_ok = asks.iter().all(|ask| row_of(ask) < logits.capacity);
        assert!(rows_ok, "an ask names a row that the logits do not have");
        self.make_room(queue, asks.len(), vocab, filtered > 0);

        let which = packed.len() * ASK_WORDS;
        let bias_at = (which + filtered).next_multiple_of(2);
        let banned_at = bias_at + 2 * biases.len();
        let words = banned_at + banned.len();
        self.lists.reserve(queue, words);
        let at = self.lists.send(queue, words, |to| {
            to[..which].as_chunks_mut::<ASK_WORDS>().0.iter_mut().zip(&packed).for_each(|(to, p)| *to = p.words);
            to[which..bias_at].fill(0);
            to[which..which + filtered].iter_mut().enumerate().for_each(|(i, to)| *to = (plain + i) as u32);
            let pairs = to[bias_at..banned_at].as_chunks_mut::<2>().0;
            pairs.iter_mut().zip(&biases).for_each(|(to, (token, bias))| *to = [*token, bias.to_bits()]);
            to[banned_at..].copy_from_slice(&banned);
        });
        let list = |word: usize| at + 4 * word as u64;
        let launches = Launches {
            queue,
            logits,
            vocab,
            asks: at,
            parts: ptr(&self.parts),
            answers: ptr(&self.answers),
            scratch: ptr(&self.scratch),
            drawn: self.drawn.ptr,
        };
        launches.draws(0, plain);
        for first in (0..filtered).step_by(SCRATCH_ROWS) {
            let n = SCRATCH_ROWS.min(filtered - first);
            launches.filter(list(which + first), n, list(bias_at), list(banned_at));
            launches.draws(plain + first, n);
        }
        launches.tokens(plain + filtered, packed.len() - plain - filtered);
        self.fetch(queue, asks.len());
    }

    fn fetch(&mut self, queue: &Queue, asks: usize) {
        self.next = (self.next + 1) % (OPEN + 1);
        let mut event = None;
        if let (Some(answers), Some(back)) = (&self.answers, self.back.get_mut(self.next))
            && back.len() >= asks * ANSWER_BYTES
        {
            // SAFETY: the slot is read after its event alone, and written again after that.
            unsafe { queue.download(&mut back.bytes_mut()[..asks * ANSWER_BYTES], answers.ptr) };
            if !queue.failure.is_set() {
                event = queue.failure.note("an event was recorded", queue.stream.record_event(None));
            }
        }
        self.pending.push_back(Pending { event, slot: self.next, asks });
    }

    /// Waits for the oldest answers. Those of a card that has failed are all [`NonFinite`].
    pub(super) fn finish(&mut self, queue: &Queue, out: &mut Vec<Result<Drawn, NonFinite>>) {
        out.clear();
        let Some(Pending { event, slot, asks }) = self.pending.pop_front() else { return };
        let came = event.and_then(|event| queue.failure.note("answers were waited for", event.synchronize())).is_some();
        if !came || queue.failure.is_set() {
            out.resize(asks, Err(NonFinite));
            return;
        }
        let answers = self.back[slot].bytes()[..asks * ANSWER_BYTES].as_chunks::<ANSWER_BYTES>().0;
        out.extend(answers.iter().map(|bytes| {
            let word = |i: usize| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
            match word(3) {
                1 => Ok(Drawn { token: word(0), logprob: f32::from_bits(word(1)), logprob_raw: f32::from_bits(word(2)) }),
                _ => Err(NonFinite),
            }
        }));
    }
}

fn ptr(buffer: &Option<Buffer>) -> u64 {
    buffer.as_ref().map_or(0, |b| b.ptr)
}

fn row_of(ask: &Ask<'_>) -> usize {
    match ask {
        Ask::Draw(draw) => draw.row,
        Ask::Token { row, .. } => *row,
    }
}

/// The words of an ask, in the order of `struct Ask` in the kernels; its lists go to the end of `biases` and `banned`.
fn pack(slot: usize, ask: &Ask<'_>, biases: &mut Vec<(u32, f32)>, banned: &mut Vec<u32>) -> Packed {
    match ask {
        Ask::Token { row, token, temperature } => {
            let mut words = [0; ASK_WORDS];
            words[..3].copy_from_slice(&[*row as u32, *token, temperature.to_bits()]);
            (words[7], words[15]) = (NONE, slot as u32);
            Packed { words, filtered: false, draw: false }
        }
        Ask::Draw(d) => {
            let f = &d.filters;
            let (bias_start, banned_start) = (biases.len() as u32, banned.len() as u32);
            biases.extend_from_slice(f.bias);
            banned.extend_from_slice(f.banned);
            let narrowed = f.temperature != 0.0 && (f.top_k > 0 || f.top_p < 1.0 || f.min_p > 0.0);
            let words = [
                d.row as u32,
                NONE,
                f.temperature.to_bits(),
                d.key[0],
                d.key[1],
                d.position,
                d.sample,
                NONE,
                f.top_k,
                f.top_p.to_bits(),
                f.min_p.to_bits(),
                bias_start,
                f.bias.len() as u32,
                banned_start,
                f.banned.len() as u32,
                slot as u32,
            ];
            Packed { words, filtered: narrowed || !f.bias.is_empty() || !f.banned.is_empty(), draw: true }
        }
    }
}

/// The launches that answer asks `first .. first + n` of the list.
struct Launches<'a> {
    queue: &'a Queue,
    logits: &'a Tensor,
    vocab: usize,
    asks: u64,
    parts: u64,
    answers: u64,
    scratch: u64,
    drawn: u64,
}

impl Launches<'_> {
    fn ask(&self, index: usize) -> u64 {
        self.asks + (index * ASK_WORDS * 4) as u64
    }

    fn tiles(&self) -> usize {
        self.vocab.div_ceil(TILE)
    }

    fn filter(&self, which: u64, n: usize, biases: u64, banned: u64) {
        let args: [Arg; 9] = [
            self.scratch.into(),
            stride_of(self.vocab).into(),
            self.logits.wide().into(),
            self.logits.stride.into(),
            self.asks.into(),
            which.into(),
            biases.into(),
            banned.into(),
            self.vocab.into(),
        ];
        // SAFETY: as the kernel takes them; the scratch memory has SCRATCH_ROWS rows.
        unsafe { self.queue.launch("filter_rows", (n, 1, 1), 1024, args) };
    }

    fn draws(&self, first: usize, n: usize) {
        for (first, n) in portions(first, n) {
            let (logits, stride) = (self.logits.wide(), self.logits.stride);
            let tiles: [Arg; 7] = [
                self.parts.into(),
                logits.into(),
                stride.into(),
                self.scratch.into(),
                stride_of(self.vocab).into(),
                self.ask(first).into(),
                self.vocab.into(),
            ];
            let finish: [Arg; 9] = [
                self.answers.into(),
                self.drawn.into(),
                self.parts.into(),
                self.tiles().into(),
                logits.into(),
                stride.into(),
                self.scratch.into(),
                stride_of(self.vocab).into(),
                self.ask(first).into(),
            ];
            // SAFETY: as the kernels take them; every ask names a row of the logits and a slot of the answers, and there is a part for each
            // tile of as many asks.
            unsafe {
                self.queue.launch("draw_tiles", (self.tiles(), n, 1), 256, tiles);
                self.queue.launch("draw_finish", (n, 1, 1), 32, finish);
            }
        }
    }

    fn tokens(&self, first: usize, n: usize) {
        for (first, n) in portions(first, n) {
            let (logits, stride) = (self.logits.wide(), self.logits.stride);
            let tiles: [Arg; 5] = [self.parts.into(), logits.into(), stride.into(), self.ask(first).into(), self.vocab.into()];
            let finish: [Arg; 6] =
                [self.answers.into(), self.parts.into(), self.tiles().into(), logits.into(), stride.into(), self.ask(first).into()];
            // SAFETY: as above.
            unsafe {
                self.queue.launch("token_tiles", (self.tiles(), n, 1), 256, tiles);
                self.queue.launch("token_finish", (n, 1, 1), 32, finish);
            }
        }
    }
}

fn portions(first: usize, n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(AT_A_TIME).map(move |at| (first + at, AT_A_TIME.min(n - at)))
}
