//! Decisions across the prompts of a request, in request order and nothing else.
//!
//! The [`Ledger`] shares the budget: a prompt gets what the ones before it leave, whichever finish first. [`Wanted`] decides which groups
//! of a `dapo` request are kept. Both answer with what already follows from what is known, and an answer once final never changes.

use super::plan::Plan;

/// Sums over a prefix of prompts, in logarithmic time.
#[derive(Clone, Debug)]
struct Prefix {
    tree: Vec<i64>,
}

impl Prefix {
    fn new(n: usize) -> Self {
        Prefix { tree: vec![0; n + 1] }
    }

    fn add(&mut self, index: usize, delta: i64) {
        let mut i = index + 1;
        while i < self.tree.len() {
            self.tree[i] += delta;
            i += i & i.wrapping_neg();
        }
    }

    /// The sum below `index`.
    fn below(&self, index: usize) -> i64 {
        let (mut i, mut sum) = (index, 0);
        while i > 0 {
            sum += self.tree[i];
            i &= i - 1;
        }
        sum
    }
}

/// The budget of a request, charged in request order for the indices below each exit.
#[derive(Clone, Debug)]
pub struct Ledger {
    budget: Option<u64>,
    n_max: Vec<u32>,
    bounds: Vec<(u32, u32)>,
    earliest: Prefix,
    latest: Prefix,
}

/// What the budget leaves to a prompt, between what it leaves for certain and what it may leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// At least so many samples: an exit up to here stands.
    pub least: u32,
    /// At most so many: an index at or above it must not be issued (yet).
    pub most: u32,
}

impl Ledger {
    /// A ledger in which nothing is known yet.
    pub fn new(budget: Option<u64>, plans: &[Plan]) -> Self {
        let mut ledger = Ledger {
            budget,
            n_max: plans.iter().map(|plan| plan.n_max).collect(),
            bounds: vec![(0, 0); plans.len()],
            earliest: Prefix::new(plans.len()),
            latest: Prefix::new(plans.len()),
        };
        for (prompt, plan) in plans.iter().enumerate() {
            ledger.set(prompt, plan.earliest_end(&[]), plan.n_max);
        }
        ledger
    }

    /// Sets the bounds of a prompt's final exit as known now ([`Plan::earliest_end`] and [`Plan::bound`]); equal once it is settled. A prompt
    /// that the budget ended may be set to where it ended.
    pub fn set(&mut self, prompt: usize, earliest: u32, latest: u32) {
        let (was_earliest, was_latest) = self.bounds[prompt];
        self.earliest.add(prompt, i64::from(earliest) - i64::from(was_earliest));
        self.latest.add(prompt, i64::from(latest) - i64::from(was_latest));
        self.bounds[prompt] = (earliest, latest);
    }

    /// The bounds last set.
    pub fn bounds(&self, prompt: usize) -> (u32, u32) {
        self.bounds[prompt]
    }

    /// What the budget leaves to `prompt`, given what the earlier prompts may still take. `least` only grows and `most` only falls.
    pub fn allowance(&self, prompt: usize) -> Allowance {
        let n_max = self.n_max[prompt];
        let Some(budget) = self.budget else { return Allowance { least: n_max, most: n_max } };
        let left = |taken: i64| budget.saturating_sub(taken.unsigned_abs()).min(u64::from(n_max)) as u32;
        Allowance { least: left(self.latest.below(prompt)), most: left(self.earliest.below(prompt)) }
    }
}

/// What becomes of a group of a `dapo` request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It has signal and comes before enough others do.
    Kept,
    /// It has no signal.
    Dropped,
    /// Enough earlier groups have signal.
    Unneeded,
    /// Not decided yet.
    Unknown,
}

/// The groups that a `dapo` request wants: the first with signal, by request order.
#[derive(Clone, Debug)]
pub struct Wanted {
    groups_wanted: u32,
    groups: Vec<Option<bool>>,
    resolved: Prefix,
    informative: Prefix,
}

impl Wanted {
    /// Nothing is known yet.
    pub fn new(groups_wanted: u32, prompts: usize) -> Self {
        Wanted { groups_wanted, groups: vec![None; prompts], resolved: Prefix::new(prompts), informative: Prefix::new(prompts) }
    }

    /// Records a resolved group; the first word stands.
    pub fn set(&mut self, prompt: usize, informative: bool) {
        if self.groups[prompt].is_some() {
            return;
        }
        self.groups[prompt] = Some(informative);
        self.resolved.add(prompt, 1);
        self.informative.add(prompt, i64::from(informative));
    }

    /// What becomes of the group of `prompt`, as far as it follows from what is known.
    pub fn place(&self, prompt: usize) -> Place {
        let (informative, open) = self.earlier(prompt);
        let wanted = u64::from(self.groups_wanted);
        match self.groups[prompt] {
            _ if informative >= wanted => Place::Unneeded,
            Some(true) if informative + open < wanted => Place::Kept,
            Some(false) if informative + open < wanted => Place::Dropped,
            _ => Place::Unknown,
        }
    }

    /// The probability that fewer than `groups_wanted` earlier groups have signal, so that this one is needed: beta-binomial over the open
    /// ones, with a Beta(1/2, 1/2) prior and every resolved group of the request as evidence.
    pub fn needed_probability(&self, prompt: usize) -> f64 {
        let (informative, open) = self.earlier(prompt);
        let wanted = u64::from(self.groups_wanted);
        if informative >= wanted {
            return 0.0;
        }
        let room = wanted - informative;
        if open < room {
            return 1.0;
        }
        let all = self.groups.len();
        let (resolved, with_signal) = (self.resolved.below(all) as f64, self.informative.below(all) as f64);
        let (a, b, u) = (0.5 + with_signal, 0.5 + resolved - with_signal, open as f64);
        // Ratios of neighbouring terms, rescaled before they overflow; the sum over all terms is the normaliser.
        let (mut term, mut few, mut total) = (1.0f64, 0.0f64, 0.0f64);
        for k in 0..=open {
            total += term;
            if k < room {
                few += term;
            }
            let at = k as f64;
            term *= (u - at) * (a + at) / ((at + 1.0) * (b + u - at - 1.0));
            if term > 1e200 {
                (term, few, total) = (term * 1e-200, few * 1e-200, total * 1e-200);
            }
        }
        few / total
    }

    /// Of the groups before `prompt`: how many have signal, and how many are open.
    fn earlier(&self, prompt: usize) -> (u64, u64) {
        let informative = self.informative.below(prompt).unsigned_abs();
        (informative, prompt as u64 - self.resolved.below(prompt).unsigned_abs())
    }
}
