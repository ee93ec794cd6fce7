//! Slots and a clock: the part of an engine that matters to a schedule.
//!
//! Every busy slot gives one token per step. A freed slot is refilled at once from a first-in-first-out queue. Time jumps from one
//! completion to the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// A simulated machine. Samples and timers are named by the caller; no name is used twice.
#[derive(Debug)]
pub struct Machine {
    slots: usize,
    now: u64,
    tokens: u64,
    running: BTreeMap<u64, Running>,
    queue: VecDeque<Queued>,
    timers: BTreeSet<u64>,
    /// (step, name); an entry whose sample no longer ends then is stale.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: u64,
    until: u64,
    /// Tokens drawn before it was preempted.
    before: u64,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    name: u64,
    left: u64,
    before: u64,
}

impl Machine {
    /// An idle machine.
    pub fn new(slots: usize) -> Self {
        Machine {
            slots,
            now: 0,
            tokens: 0,
            running: BTreeMap::new(),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            ends: BinaryHeap::new(),
        }
    }

    /// Steps so far.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Tokens drawn by samples that have ended or lost their slot.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Samples that hold a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Samples that wait for one.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Queues a sample of `tokens` tokens.
    pub fn submit(&mut self, name: u64, tokens: u32) {
        self.queue.push_back(Queued { name, left: u64::from(tokens), before: 0 });
        self.refill();
    }

    /// Reports `name` after `steps` steps, without a slot.
    pub fn timer(&mut self, name: u64, steps: u64) {
        self.timers.insert(name);
        self.ends.push(Reverse((self.now + steps, name)));
    }

    /// Ends a sample; says how many tokens it has drawn, if it was still there.
    pub fn cancel(&mut self, name: u64) -> Option<u64> {
        if let Some(queued) = self.queue.iter().position(|queued| queued.name == name) {
            return self.queue.remove(queued).map(|queued| queued.before);
        }
        let running = self.running.remove(&name)?;
        self.tokens += self.now - running.since;
        self.refill();
        Some(running.before + self.now - running.since)
    }

    /// The `n`-th running sample, counted round, loses its slot to the queue and goes to its end.
    pub fn preempt(&mut self, n: u64) {
        let Some(&name) = self.running.keys().nth((n % self.running.len().max(1) as u64) as usize) else { return };
        let Some(running) = self.running.remove(&name) else { return };
        let drawn = self.now - running.since;
        self.tokens += drawn;
        self.queue.push_back(Queued { name, left: running.until - self.now, before: running.before + drawn });
        self.refill();
    }

    /// Goes to the next completion and says what ends there, in order of name; nothing if nothing runs.
    pub fn advance(&mut self) -> Vec<u64> {
        let mut ended = Vec::new();
        while let Some(&Reverse((step, name))) = self.ends.peek() {
            if !ended.is_empty() && step > self.now {
                break;
            }
            self.ends.pop();
            if self.timers.remove(&name) {
                ended.push(name);
                self.now = step;
            } else if self.running.get(&name).is_some_and(|running| running.until == step) {
                if let Some(running) = self.running.remove(&name) {
                    self.tokens += step - running.since;
                }
                ended.push(name);
                self.now = step;
            }
        }
        self.refill();
        ended
    }

    fn refill(&mut self) {
        while self.running.len() < self.slots {
            let Some(Queued { name, left, before }) = self.queue.pop_front() else { return };
            self.running.insert(name, Running { since: self.now, until: self.now + left, before });
            self.ends.push(Reverse((self.now + left, name)));
        }
    }
}
