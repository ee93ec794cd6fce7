//! The width planner: which sample to start next, over all open prompts.
//!
//! The next index `j` of a prompt is worth starting in proportion to `q = P(T > j | finished samples)`, `T` the exit's count of samples.
//! The pass rate has a Beta(1/2, 1/2) prior (plus the prompt's history), so the samples in flight are beta-binomial. The candidate with the
//! highest `q` comes first, in bins of .05; within a bin, the prompt with the longest expected remaining work, which is the one that
//! would end last; then the lowest prompt number.
//!
//! It decides how soon a group closes and never what is in it. Invariants: an index at or above `T_ub`, `n_max` or the limit has `q = 0` and
//! is never a candidate; a prompt whose issued samples are all resolved short of its exit has `q = weight`, so no prompt starves.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::outcome::Outcome;
use super::plan::Plan;

/// Candidates are compared by `q` in bins of this width, so that a hair of probability does not outrank the longest remaining work.
const BIN: f64 = 0.05;
/// The memo of probabilities starts again at this size. A job meets a few thousand.
const MEMO: usize = 1 << 16;

/// Pseudo-counts from a prompt's history, added to Beta(1/2, 1/2). Rounded to halves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prior {
    /// Positives.
    pub positives: f64,
    /// Negatives.
    pub negatives: f64,
}

/// What the planner reads of one prompt.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// When the prompt stops.
    pub plan: &'a Plan,
    /// What is known, by index. Missing ones are unscored.
    pub outcomes: &'a [Outcome],
    /// The next index: `0..issued` have been started.
    pub issued: u32,
    /// Indices at or above this are never issued.
    pub limit: u32,
    /// What is known of the prompt's pass rate from before.
    pub prior: Prior,
    /// Probability that the prompt is needed at all; multiplies `q`.
    pub weight: f64,
}

/// A sample worth starting: the next index of `prompt`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Need {
    /// The prompt.
    pub prompt: usize,
    /// The probability that the sample is needed: not binned.
    pub q: f64,
}

/// Ranks the next sample of every open prompt. Call [`Planner::update`] after anything about a prompt changed, submission included.
#[derive(Debug, Default)]
pub struct Planner {
    floor: f64,
    heap: BinaryHeap<Candidate>,
    /// By prompt. An entry of the heap with another version is stale.
    states: Vec<State>,
    live: usize,
    memo: HashMap<Short, f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    version: u64,
    live: bool,
}

impl Planner {
    /// A planner without prompts.
    pub fn new() -> Self {
        Self::default()
    }

    /// A planner that never proposes a sample with `q` below `floor`. Unlike a test after [`Planner::best`], this holds inside a bin too: a
    /// candidate just below the floor does not hide one just above it.
    pub fn with_floor(floor: f64) -> Self {
        Planner { floor, ..Self::default() }
    }

    /// The prompt is now as in `view`; what was known of it is forgotten.
    pub fn update(&mut self, prompt: usize, view: View<'_>) {
        self.remove(prompt);
        if prompt >= self.states.len() {
            self.states.resize(prompt + 1, State::default());
        }
        let (q, remaining) = assess(view, |short| self.memo.get(&short).copied().unwrap_or_else(|| remember(&mut self.memo, short)));
        if q > 0.0 && q >= self.floor {
            let state = &mut self.states[prompt];
            state.live = true;
            self.live += 1;
            let bin = (q / BIN + 1e-9) as u32;
            self.heap.push(Candidate { bin, remaining, prompt: Reverse(prompt), version: state.version, q });
        }
        // Stale entries deep in the heap would pile up; dropping them once they are the majority costs O(1) per update.
        if self.heap.len() > 2 * self.live + 64 {
            let states = &self.states;
            self.heap.retain(|candidate| is_current(states, candidate));
        }
    }

    /// Forgets the prompt.
    pub fn remove(&mut self, prompt: usize) {
        if let Some(state) = self.states.get_mut(prompt) {
            self.live -= usize::from(state.live);
            *state = State { version: state.version + 1, live: false };
        }
    }

    /// The best candidate now. It stays the best until an update or a removal.
    pub fn best(&mut self) -> Option<Need> {
        while let Some(candidate) = self.heap.peek() {
            if is_current(&self.states, candidate) {
                return Some(Need { prompt: candidate.prompt.0, q: candidate.q });
            }
            self.heap.pop();
        }
        None
    }
}

fn is_current(states: &[State], candidate: &Candidate) -> bool {
    states[candidate.prompt.0].version == candidate.version
}

fn remember(memo: &mut HashMap<Short, f64>, short: Short) -> f64 {
    if memo.len() >= MEMO {
        memo.clear();
    }
    *memo.entry(short).or_insert_with(|| short.probability())
}

/// `P(T > issued | finished samples)`, times the weight: the probability that the next index is needed. Samples in flight are taken to end
/// as positive or negative; failures are not predicted.
pub fn q_needed(view: View<'_>) -> f64 {
    assess(view, Short::probability).0
}

/// `q`, and the expected number of samples to the exit.
fn assess(view: View<'_>, mut short: impl FnMut(Short) -> f64) -> (f64, f64) {
    let View { plan, outcomes, issued, limit, prior, weight } = view;
    if issued >= plan.n_max.min(limit) || issued >= plan.bound(outcomes).t {
        return (0.0, 0.0);
    }
    // The exit was last tested at `tested`, and is needed to go on from there. What was known earlier is known there too.
    let tested = issued - issued % plan.m.max(1);
    let straight_pos = if plan.straight_pos > 0 && plan.straight_pos <= tested { plan.straight_pos } else { 0 };
    let (mut all, mut below) = (Count::default(), Count::default());
    let (mut straight, mut straight_missing) = (straight_pos > 0, 0);
    for index in 0..issued {
        let outcome = outcomes.get(index as usize).copied().unwrap_or_default();
        all.add(outcome);
        if index < tested {
            below.add(outcome);
        }
        if index < straight_pos {
            straight &= matches!(outcome, Outcome::Positive | Outcome::Unscored);
            straight_missing += u32::from(outcome == Outcome::Unscored);
        }
    }
    let (a2, b2) = (1 + halves(prior.positives) + 2 * all.positive, 1 + halves(prior.negatives) + 2 * all.negative);

    let rate = f64::from(a2) / f64::from(a2 + b2);
    let wanted = |k: u32, seen: u32| f64::from(k.saturating_sub(seen));
    let left = f64::from(plan.n_max.min(limit).saturating_sub(all.resolved()));
    let remaining = left.min((wanted(plan.k_pos, all.positive) / rate).max(wanted(plan.k_neg, all.negative) / (1.0 - rate)));
    if tested == 0 {
        return (weight, remaining);
    }
    let missing = tested - below.resolved();
    let wanted = Short {
        draws: missing,
        positives: plan.k_pos.saturating_sub(below.positive),
        negatives: plan.k_neg.saturating_sub(below.negative),
        a2,
        b2,
    };
    let mut q = short(wanted);
    if straight && q > 0.0 {
        // Less P(straight and short of the plan): given that the missing ones of the first `straight_pos` are all positive, the others
        // are beta-binomial with as many more positives.
        let all_positive: f64 = (0..straight_missing).map(|i| f64::from(a2 + 2 * i) / f64::from(a2 + b2 + 2 * i)).product();
        let others = Short {
            draws: missing - straight_missing,
            positives: wanted.positives.saturating_sub(straight_missing),
            a2: a2 + 2 * straight_missing,
            ..wanted
        };
        q = (q - all_positive * short(others)).max(0.0);
    }
    (q * weight, remaining)
}

#[derive(Clone, Copy, Default)]
struct Count {
    positive: u32,
    negative: u32,
    passed_over: u32,
}

impl Count {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Positive => self.positive += 1,
            Outcome::Negative => self.negative += 1,
            Outcome::Failed | Outcome::Skipped => self.passed_over += 1,
            Outcome::Unscored => {}
        }
    }

    fn resolved(self) -> u32 {
        self.positive + self.negative + self.passed_over
    }
}

fn halves(pseudo_count: f64) -> u32 {
    (2.0 * pseudo_count).round().clamp(0.0, 1e6) as u32
}

/// The event that `draws` samples, with Beta(a2/2, b2/2) over their pass rate, hold fewer than `positives` positives or fewer than
/// `negatives` negatives. Integers, so that it can be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Short {
    draws: u32,
    positives: u32,
    negatives: u32,
    a2: u32,
    b2: u32,
}

impl Short {
    fn probability(self) -> f64 {
        if self.positives + self.negatives > self.draws {
            return 1.0;
        }
        // With enough draws for both, the two ways to fall short exclude each other. Summing the short tails does not cancel.
        let (a, b) = (f64::from(self.a2) / 2.0, f64::from(self.b2) / 2.0);
        (fewer_than(self.positives, self.draws, a, b) + fewer_than(self.negatives, self.draws, b, a)).min(1.0)
    }
}

/// `P(X < k)` for `X` beta-binomial of `draws` with `(a, b)`; `k <= draws`.
fn fewer_than(k: u32, draws: u32, a: f64, b: f64) -> f64 {
    if k == 0 {
        return 0.0;
    }
    let (m, ln_gamma) = (f64::from(draws), libm::lgamma);
    let mut ln_p = ln_gamma(b + m) - ln_gamma(b) + ln_gamma(a + b) - ln_gamma(a + b + m);
    let mut sum = 0.0;
    for x in (0..k).map(f64::from) {
        sum += libm::exp(ln_p);
        ln_p += libm::log((m - x) * (a + x) / ((x + 1.0) * (b + m - x - 1.0)));
    }
    sum
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    bin: u32,
    remaining: f64,
    prompt: Reverse<usize>,
    version: u64,
    q: f64,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_work = self.remaining.total_cmp(&other.remaining);
        self.bin.cmp(&other.bin).then(by_work).then(self.prompt.cmp(&other.prompt)).then(self.version.cmp(&other.version))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}
