//! What runs in the next step. Pure: no model, no clock, no channel; tested alone over thousands of random schedules.
//!
//! There is no prefill phase and no decode phase. Every sequence has `known` tokens (prompt and drawn) and `computed` ones (keys and values
//! are in the cache); a step gives each `min(known - computed, what is left of the budget)` rows, and a sequence whose `computed` has reached
//! `known` draws. Chunked prefill, decode, recomputation after a preemption and scoring are all this one rule.
//!
//! Where answers come one step late, the newest token of a sequence may be promised: a device has drawn it, and the host does not know it yet.
//! Its row may run in the step that directly follows the one that asked, under the number of its ask; nothing else ever sees it. The host
//! knows it before it plans the step after that one.
//!
//! Invariants: `computed <= known`, the promised token counted; a block table covers `computed`; a block is written only where
//! [`Blocks::writable`]; the cache finds known tokens only; a sequence that cannot get a block takes those of the youngest one, which starts
//! again later from its known tokens.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::api::RequestId;
use super::blocks::{Blocks, PrefixId};
use crate::ops::{BLOCK_TOKENS, Batch, PROMISED, Segment};

/// What a sequence is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Draws tokens after its prompt.
    Sample,
    /// Its tokens from this position on are (still) to be scored; nothing is drawn.
    Score(usize),
}

/// A sequence of tokens on its way through the engine.
struct Sequence {
    purpose: Purpose,
    prompt: Arc<[u32]>,
    /// The last one may be a promise: [`PROMISED`] and the number of its ask.
    drawn: Vec<u32>,
    /// The step that asked for what is not known yet, if something is.
    asked: Option<u64>,
    computed: usize,
    /// Highest `computed` it ever had: what is computed below it is work done twice.
    reached: usize,
    blocks: Vec<u32>,
    /// Whole blocks at the front that are published (or were found), and the prefix they end.
    published: usize,
    prefix: PrefixId,
    /// Samples of the same prompt that wait for this one's prefill.
    followers: Vec<RequestId>,
    /// Step in which it last got rows.
    scheduled: u64,
}

impl Sequence {
    /// Tokens whose keys and values are wanted. The last token of a scored sequence is looked at and never computed.
    fn wanted(&self) -> usize {
        match self.purpose {
            Purpose::Sample => self.prompt.len() + self.drawn.len(),
            Purpose::Score(_) => self.prompt.len() - 1,
        }
    }

    /// Tokens that the host knows.
    fn known(&self) -> usize {
        self.prompt.len() + self.drawn.len() - usize::from(self.drawn.last().is_some_and(|&token| is_promise(token)))
    }

    fn token(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt.len()) {
            None => self.prompt[position],
            Some(i) => self.drawn[i],
        }
    }

    fn pending(&self) -> usize {
        self.wanted() - self.computed
    }

    /// First position whose logits are wanted.
    fn logits_from(&self) -> usize {
        match self.purpose {
            Purpose::Sample => self.wanted() - 1,
            Purpose::Score(from) => from - 1,
        }
    }
}

fn is_promise(token: u32) -> bool {
    token & PROMISED != 0
}

/// Limits of a step and of the batch.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows of a step.
    pub batch_tokens: usize,
    /// Sequences that run at a time; also the most rows of logits in a step.
    pub sequences: usize,
}

/// The rows that one sequence got in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The sequence.
    pub id: RequestId,
    /// Its rows.
    pub rows: usize,
    /// First of its logits among the step's logits.
    pub logits: usize,
    /// Number of its rows that give logits (the last ones).
    pub num_logits: usize,
}

/// A step, besides the rows themselves (those are in the batch).
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Blocks to copy before anything is written, in this order.
    pub copies: Vec<(u32, u32)>,
    /// Who got which rows.
    pub parts: Vec<Part>,
}

/// What became of a part once its rows were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This sequence draws its next token from this row of the logits.
    Draw {
        /// The sequence.
        id: RequestId,
        /// Row of the logits.
        logits: usize,
    },
    /// These rows of logits belong to tokens `from..from + rows` of a scored sequence; `done` if they are the last.
    Scored {
        /// The sequence.
        id: RequestId,
        /// First row of the logits.
        logits: usize,
        /// Number of rows.
        rows: usize,
        /// Position of the token that the first row predicts.
        from: usize,
        /// No more rows follow.
        done: bool,
    },
}

/// Counters of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Prompt tokens computed for the first time by their sequence.
    pub prompt_computed: u64,
    /// Prompt tokens found in the cache or shared at a fork.
    pub prompt_cached: u64,
    /// Tokens computed again after a preemption.
    pub recomputed: u64,
    /// Preemptions.
    pub preemptions: u64,
}

/// All sequences of an engine and the blocks they hold.
pub struct Scheduler {
    limits: Limits,
    blocks: Blocks,
    sequences: HashMap<RequestId, Sequence>,
    /// Those that hold blocks, in the order of their admission.
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    /// Who is computing a prompt for the first time.
    leaders: HashMap<Arc<[u32]>, RequestId>,
    step: u64,
    /// Counters.
    pub counters: Counters,
}

impl Scheduler {
    /// An empty scheduler.
    pub fn new(limits: Limits, blocks: Blocks) -> Self {
        assert!(limits.batch_tokens > 0 && limits.sequences > 0);
        Scheduler {
            limits,
            blocks,
            sequences: HashMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            leaders: HashMap::new(),
            step: 0,
            counters: Counters::default(),
        }
    }

    /// The blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Sequences that hold blocks.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that hold none.
    pub fn waiting(&self) -> usize {
        self.sequences.len() - self.running.len()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Queues a sequence. Its prompt (a scored sequence: all but the last token) and everything it may draw must fit the blocks there are.
    pub fn add(&mut self, id: RequestId, prompt: Arc<[u32]>, purpose: Purpose) {
        let sequence = Sequence {
            purpose,
            prompt,
            drawn: Vec::new(),
            asked: None,
            computed: 0,
            reached: 0,
            blocks: Vec::new(),
            published: 0,
            prefix: self.blocks.root(),
            followers: Vec::new(),
            scheduled: 0,
        };
        self.sequences.insert(id, sequence);
        self.waiting.push_back(id);
    }

    /// Plans the next step: fills `batch` and says who got which rows. An empty step means that there is nothing to do.
    pub fn schedule(&mut self, batch: &mut Batch) -> Step {
        batch.clear();
        self.step += 1;
        let mut step = Step::default();
        // Sequences that go on by one token first: a long prefill never holds them up.
        let order = self.running.clone();
        let one_token = |s: &Sequence| s.pending() == 1;
        for decode in [true, false] {
            for &id in &order {
                // A preemption on the way may have taken it out.
                if self.sequences[&id].blocks.is_empty() && self.waiting.contains(&id) {
                    continue;
                }
                if self.sequences[&id].scheduled != self.step && one_token(&self.sequences[&id]) == decode {
                    self.give_rows(id, batch, &mut step);
                }
            }
        }
        self.admit(batch, &mut step);
        step
    }

    /// Gives a running sequence as many rows as it needs and the budget allows.
    fn give_rows(&mut self, id: RequestId, batch: &mut Batch, step: &mut Step) {
        let s = &self.sequences[&id];
        let mut rows = s.pending().min(self.limits.batch_tokens - batch.rows());
        // Every row from `logits_from` on gives logits, of which a step has few.
        let room = self.limits.sequences - batch.logit_rows.len();
        let before_logits = s.logits_from().saturating_sub(s.computed);
        rows = rows.min(before_logits + room);
        if rows > 0 {
            rows = self.reserve(id, rows, &mut step.copies);
        }
        if rows == 0 {
            return;
        }
        let Some(s) = self.sequences.get_mut(&id) else { return };
        s.scheduled = self.step;
        let first = batch.rows();
        batch.segments.push(Segment { row: first, rows, start: s.computed, table: batch.tables.len() });
        batch.tables.extend_from_slice(&s.blocks);
        let logits = batch.logit_rows.len();
        for position in s.computed..s.computed + rows {
            let token = s.token(position);
            assert!(!is_promise(token) || s.asked == Some(self.step - 1), "a promise holds for the step after the one that asked");
            batch.tokens.push(token);
            batch.positions.push(position as u32);
            batch.slots.push(s.blocks[position / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (position % BLOCK_TOKENS) as u32);
            if position >= s.logits_from() {
                batch.logit_rows.push(batch.tokens.len() as u32 - 1);
            }
        }
        step.parts.push(Part { id, rows, logits, num_logits: batch.logit_rows.len() - logits });
    }

    /// Makes the blocks of the next `rows` tokens exist and be writable, and returns how many of these tokens now have their place. Takes
    /// blocks from younger sequences that have no rows in this step if it must. A sequence that gets none keeps what it has and waits:
    /// the oldest one always gets some, unless others run in this step and will end.
    fn reserve(&mut self, id: RequestId, rows: usize, copies: &mut Vec<(u32, u32)>) -> usize {
        let computed = self.sequences[&id].computed;
        let (first, last) = (computed / BLOCK_TOKENS, (computed + rows - 1) / BLOCK_TOKENS);
        for i in first..=last {
            if !self.reserve_block(id, i, copies) {
                return (i * BLOCK_TOKENS).saturating_sub(computed);
            }
        }
        rows
    }

    /// The same for the block at place `i` of the sequence's table.
    fn reserve_block(&mut self, id: RequestId, i: usize, copies: &mut Vec<(u32, u32)>) -> bool {
        let held = self.sequences[&id].blocks.get(i).copied();
        if held.is_some_and(|b| self.blocks.writable(b)) {
            return true;
        }
        loop {
            if let Some(new) = self.blocks.allocate() {
                let Some(s) = self.sequences.get_mut(&id) else { return false };
                match held {
                    Some(old) => {
                        s.blocks[i] = new;
                        copies.push((old, new));
                        self.blocks.release(&[old]);
                    }
                    None => s.blocks.push(new),
                }
                return true;
            }
            // Nothing is free. A block that only this sequence holds need not be copied: the cache forgets it.
            if held.is_some_and(|b| self.blocks.withdraw(b)) {
                return true;
            }
            let mut younger = self.running.iter().rev().copied().take_while(|v| *v != id);
            let Some(victim) = younger.find(|v| self.sequences[v].scheduled != self.step) else { return false };
            self.preempt(victim);
        }
    }

    /// Takes a sequence's blocks. It starts again from its known tokens, before everything else that waits.
    fn preempt(&mut self, id: RequestId) {
        self.counters.preemptions += 1;
        self.stop_running(id);
        self.waiting.push_front(id);
    }

    /// Frees the blocks of a running sequence; those that waited for its prefill go back to the queue.
    fn stop_running(&mut self, id: RequestId) {
        self.running.retain(|r| *r != id);
        let Some(s) = self.sequences.get_mut(&id) else { return };
        self.blocks.release(&std::mem::take(&mut s.blocks));
        s.computed = 0;
        s.published = 0;
        s.prefix = self.blocks.root();
        let followers = std::mem::take(&mut s.followers);
        if self.leaders.get(&s.prompt) == Some(&id) {
            self.leaders.remove(&s.prompt);
        }
        for f in followers.into_iter().rev() {
            self.waiting.push_front(f);
        }
    }

    /// Lets waiting sequences in, in order, while places, blocks and rows are left.
    fn admit(&mut self, batch: &mut Batch, step: &mut Step) {
        while let Some(&id) = self.waiting.front() {
            let s = &self.sequences[&id];
            if s.asked.is_some() {
                // It lost its blocks in this step. Who starts from known tokens knows them all.
                return;
            }
            let first_time = s.purpose == Purpose::Sample && s.drawn.is_empty();
            if first_time && let Some(leader) = self.leaders.get(&s.prompt).copied() {
                self.waiting.pop_front();
                if let Some(l) = self.sequences.get_mut(&leader) {
                    l.followers.push(id);
                }
                continue;
            }
            let full = self.running.len() >= self.limits.sequences || batch.logit_rows.len() >= self.limits.sequences;
            if full || batch.rows() >= self.limits.batch_tokens {
                return;
            }
            let wanted = s.wanted();
            let tokens: Vec<u32> = (0..wanted).map(|p| s.token(p)).collect();
            let found = self.blocks.find(&tokens, s.logits_from().min(wanted));
            // The blocks to come, and one more where the last one found must be copied before it is written.
            let copy = usize::from(found.blocks.len() * BLOCK_TOKENS > found.tokens);
            let needed = wanted.div_ceil(BLOCK_TOKENS) - found.blocks.len() + copy;
            if needed > self.blocks.available() && !(self.running.is_empty() && copy == 1 && needed - 1 <= self.blocks.available()) {
                self.blocks.release(&found.blocks);
                return;
            }
            self.waiting.pop_front();
            self.running.push(id);
            let Some(s) = self.sequences.get_mut(&id) else { return };
            s.computed = found.tokens;
            s.published = found.tokens / BLOCK_TOKENS;
            s.prefix = found.prefix;
            s.blocks = found.blocks;
            // After a preemption more may be found than was computed before; what is found again is not work done twice.
            self.counters.prompt_cached += found.tokens.min(s.prompt.len()).saturating_sub(s.reached) as u64;
            s.reached = s.reached.max(found.tokens);
            if first_time {
                self.leaders.insert(s.prompt.clone(), id);
            }
            self.give_rows(id, batch, step);
        }
    }

    /// Books a computed step: publishes blocks, forks the samples that waited for a prefill, and says who draws from which logits.
    pub fn complete(&mut self, step: &Step, outcomes: &mut Vec<Outcome>) {
        outcomes.clear();
        for part in &step.parts {
            let Some(s) = self.sequences.get_mut(&part.id) else { continue };
            let start = s.computed;
            s.computed += part.rows;
            let fresh = s.computed.saturating_sub(s.reached.max(start));
            self.counters.recomputed += (part.rows - fresh) as u64;
            self.counters.prompt_computed += s.computed.min(s.prompt.len()).saturating_sub(s.reached.max(start)) as u64;
            s.reached = s.reached.max(s.computed);
            publish(&mut self.blocks, s);
            match s.purpose {
                Purpose::Score(from) => {
                    let done = s.pending() == 0;
                    // What has been scored stays so after a preemption: every value is told once.
                    s.purpose = Purpose::Score(from + part.num_logits);
                    outcomes.push(Outcome::Scored { id: part.id, logits: part.logits, rows: part.num_logits, from, done });
                }
                Purpose::Sample if s.pending() == 0 => {
                    outcomes.push(Outcome::Draw { id: part.id, logits: part.logits });
                    if s.drawn.is_empty() {
                        self.fork(part.id, part.logits, outcomes);
                    }
                }
                Purpose::Sample => {}
            }
        }
    }

    /// What the last step asked of this sequence's logits is not known yet. Of a sample it is the next token, whose row is wanted at once where
    /// `ask` gives its number among the asks of the step; without one nothing of the sequence runs before [`Scheduler::push`] or
    /// [`Scheduler::remove`].
    pub fn promise(&mut self, id: RequestId, ask: Option<u32>) {
        if let Some(s) = self.sequences.get_mut(&id) {
            assert!(s.asked.is_none(), "{id:?} was asked for two tokens at a time");
            s.asked = Some(self.step);
            s.drawn.extend(ask.map(|number| PROMISED | number));
        }
    }

    /// A prompt has been computed: its partial last block becomes findable, and the samples that waited share its blocks and its logits.
    fn fork(&mut self, leader: RequestId, logits: usize, outcomes: &mut Vec<Outcome>) {
        let Some(s) = self.sequences.get_mut(&leader) else { return };
        if self.leaders.get(&s.prompt) == Some(&leader) {
            self.leaders.remove(&s.prompt);
        }
        let tail = &s.prompt[s.published * BLOCK_TOKENS..];
        if !tail.is_empty() && self.blocks.writable(s.blocks[s.published]) {
            self.blocks.publish(s.blocks[s.published], s.prefix, tail);
        }
        let (computed, published, prefix, blocks) = (s.computed, s.published, s.prefix, s.blocks.clone());
        let followers = std::mem::take(&mut s.followers);
        // Each sample will soon want a block of its own; the leader too.
        let mut spare = self.blocks.available().saturating_sub(1);
        let mut left = Vec::new();
        for id in followers {
            if self.running.len() >= self.limits.sequences || spare == 0 {
                left.push(id);
                continue;
            }
            spare -= 1;
            for &b in &blocks {
                self.blocks.hold(b);
            }
            let Some(f) = self.sequences.get_mut(&id) else { continue };
            self.counters.prompt_cached += computed.saturating_sub(f.reached) as u64;
            (f.computed, f.reached, f.published, f.prefix) = (computed, computed, published, prefix);
            f.blocks.clone_from(&blocks);
            self.running.push(id);
            outcomes.push(Outcome::Draw { id, logits });
        }
        for id in left.into_iter().rev() {
            self.waiting.push_front(id);
        }
    }

    /// A drawn token becomes known, in the place of its promise if there was one.
    pub fn push(&mut self, id: RequestId, token: u32) {
        let Some(s) = self.sequences.get_mut(&id) else { return };
        s.asked = None;
        s.drawn.pop_if(|last| is_promise(*last));
        s.drawn.push(token);
        // A promised token may have been the last of a block, which is complete only now.
        publish(&mut self.blocks, s);
    }

    /// Takes a sequence out, wherever it is, and frees its blocks. Says whether it was there.
    pub fn remove(&mut self, id: RequestId) -> bool {
        if !self.sequences.contains_key(&id) {
            return false;
        }
        self.waiting.retain(|w| *w != id);
        for s in self.sequences.values_mut() {
            s.followers.retain(|f| *f != id);
        }
        self.stop_running(id);
        self.sequences.remove(&id);
        true
    }

    /// The weights are others now: no block is found again, and every sequence starts over from its known tokens, the running ones first.
    /// What the old weights were asked is known.
    pub fn new_version(&mut self) {
        assert!(self.sequences.values().all(|s| s.asked.is_none()), "a promise does not outlive its weights");
        for id in std::mem::take(&mut self.running).into_iter().rev() {
            self.stop_running(id);
            self.waiting.push_front(id);
        }
        self.blocks.new_version();
        let root = self.blocks.root();
        self.sequences.values_mut().for_each(|s| s.prefix = root);
    }

    /// Tokens whose keys and values are in the cache.
    pub fn computed_tokens(&self) -> usize {
        self.sequences.values().map(|s| s.computed).sum()
    }

    /// A sequence is to be scored from `from` on again.
    pub fn score_again(&mut self, id: RequestId, from: usize) {
        if let Some(s) = self.sequences.get_mut(&id) {
            s.purpose = Purpose::Score(from);
        }
    }

    /// The sequences there are.
    pub fn ids(&self) -> Vec<RequestId> {
        self.sequences.keys().copied().collect()
    }

    /// The block table of every sequence.
    #[doc(hidden)]
    pub fn tables(&self) -> impl Iterator<Item = (RequestId, &[u32])> {
        self.sequences.iter().map(|(id, s)| (*id, s.blocks.as_slice()))
    }

    /// Checks every invariant.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        let tables: Vec<&[u32]> = self.tables().map(|(_, table)| table).collect();
        self.blocks.audit(&tables)?;
        let mut places: HashMap<RequestId, usize> = HashMap::new();
        let followers = self.sequences.values().flat_map(|s| &s.followers);
        for id in self.running.iter().chain(&self.waiting).chain(followers) {
            *places.entry(*id).or_default() += 1;
        }
        for (id, s) in &self.sequences {
            if places.get(id) != Some(&1) {
                return Err(format!("{id:?} is in {} places", places.get(id).copied().unwrap_or(0)));
            }
            if s.computed > s.wanted() || s.blocks.len() * BLOCK_TOKENS < s.computed {
                return Err(format!("{id:?} has computed {} of {} tokens in {} blocks", s.computed, s.wanted(), s.blocks.len()));
            }
            if s.published * BLOCK_TOKENS > s.computed.min(s.known()) {
                return Err(format!("{id:?} has published {} blocks of {} known tokens", s.published, s.known()));
            }
            if s.asked.is_some_and(|step| step + 1 < self.step) || s.drawn.iter().any(|&token| is_promise(token)) && s.asked.is_none() {
                return Err(format!("{id:?} holds a promise for too long"));
            }
            if !s.followers.is_empty() && self.leaders.get(&s.prompt) != Some(id) {
                return Err(format!("{id:?} is waited for, but leads nothing"));
            }
        }
        if places.len() != self.sequences.len() || self.running.len() > self.limits.sequences {
            return Err("the lists and the sequences differ".into());
        }
        Ok(())
    }
}

/// Lets the cache find the whole blocks of a sequence that are computed and whose tokens are known.
fn publish(blocks: &mut Blocks, s: &mut Sequence) {
    let whole = s.computed.min(s.known()) / BLOCK_TOKENS;
    while s.published < whole {
        let at = s.published * BLOCK_TOKENS;
        let tokens: Vec<u32> = (at..at + BLOCK_TOKENS).map(|p| s.token(p)).collect();
        s.prefix = blocks.publish(s.blocks[s.published], s.prefix, &tokens);
        s.published += 1;
    }
}
