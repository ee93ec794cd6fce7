//! Decisions between prompts, in request order only: what a budget leaves to each prompt, and which groups `dapo` delivers.
//!
//! Both read bounds of what earlier prompts may still come to, never who finished first. A decision about prompt `i` is final once it
//! follows for every way in which the earlier prompts may still end.

use super::plan::Plan;

/// Sums of prefixes under point updates (a Fenwick tree).
#[derive(Clone, Debug)]
struct Sums {
    values: Vec<u64>,
    tree: Vec<u64>,
}

impl Sums {
    fn new(values: Vec<u64>) -> Self {
        let mut tree = vec![0; values.len() + 1];
        for (i, value) in values.iter().enumerate() {
            tree[i + 1] += value;
            let parent = (i + 1) + ((i + 1) & (i + 1).wrapping_neg());
            if parent < tree.len() {
                tree[parent] += tree[i + 1];
            }
        }
        Sums { values, tree }
    }

    fn set(&mut self, i: usize, value: u64) {
        let old = std::mem::replace(&mut self.values[i], value);
        let mut node = i + 1;
        while node < self.tree.len() {
            self.tree[node] = self.tree[node] + value - old;
            node += node & node.wrapping_neg();
        }
    }

    /// Sum of the values before `i`.
    fn before(&self, i: usize) -> u64 {
        let (mut node, mut sum) = (i, 0);
        while node > 0 {
            sum += self.tree[node];
            node -= node & node.wrapping_neg();
        }
        sum
    }
}

/// Samples that a budget leaves to a prompt, over everything that earlier prompts may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// For certain.
    pub least: u32,
    /// At best; an index at or above it is never issued.
    pub most: u32,
}

/// A request's budget of samples, charged for the indices below each exit, in request order.
#[derive(Clone, Debug)]
pub struct Ledger {
    budget: Option<u64>,
    n_max: Vec<u32>,
    earliest: Sums,
    latest: Sums,
}

impl Ledger {
    /// Nothing is known of any prompt but its plan.
    pub fn new(budget: Option<u64>, plans: &[Plan]) -> Self {
        Ledger {
            budget,
            n_max: plans.iter().map(|plan| plan.n_max).collect(),
            earliest: Sums::new(plans.iter().map(|plan| u64::from(plan.shortest_stop())).collect()),
            latest: Sums::new(plans.iter().map(|plan| u64::from(plan.n_max)).collect()),
        }
    }

    /// The prompt's final count of samples lies within these bounds, as far as is known; both are the count itself once it is settled.
    pub fn set(&mut self, prompt: usize, earliest: u32, latest: u32) {
        self.earliest.set(prompt, u64::from(earliest));
        self.latest.set(prompt, u64::from(latest));
    }

    /// The bounds last set.
    pub fn bounds(&self, prompt: usize) -> (u32, u32) {
        (self.earliest.values[prompt] as u32, self.latest.values[prompt] as u32)
    }

    /// What is left to a prompt, at most its own `n_max`.
    pub fn allowance(&self, prompt: usize) -> Allowance {
        let n_max = self.n_max[prompt];
        let Some(budget) = self.budget else { return Allowance { least: n_max, most: n_max } };
        let left = |taken: u64| budget.saturating_sub(taken).min(u64::from(n_max)) as u32;
        Allowance { least: left(self.latest.before(prompt)), most: left(self.earliest.before(prompt)) }
    }
}

/// What becomes of a prompt's group under `dapo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is delivered.
    Kept,
    /// Its rewards are all equal.
    Dropped,
    /// Enough informative groups come before it.
    Unneeded,
    /// Not known yet.
    Unknown,
}

/// `dapo`'s count: the first `wanted` informative groups of the request are delivered, by request order and never by completion.
#[derive(Clone, Debug)]
pub struct Wanted {
    wanted: u64,
    informative: Sums,
    resolved: Sums,
}

impl Wanted {
    /// No prompt is resolved.
    pub fn new(wanted: u32, prompts: usize) -> Self {
        Wanted { wanted: u64::from(wanted), informative: Sums::new(vec![0; prompts]), resolved: Sums::new(vec![0; prompts]) }
    }

    /// The prompt is resolved: whether its group is informative.
    pub fn set(&mut self, prompt: usize, informative: bool) {
        self.informative.set(prompt, u64::from(informative));
        self.resolved.set(prompt, 1);
    }

    /// What becomes of the prompt's group.
    pub fn place(&self, prompt: usize) -> Place {
        let before = self.informative.before(prompt);
        if before >= self.wanted {
            return Place::Unneeded;
        }
        let unresolved = prompt as u64 - self.resolved.before(prompt);
        match (self.resolved.values[prompt], self.informative.values[prompt]) {
            (1, 1) if before + unresolved < self.wanted => Place::Kept,
            // A group without contrast is never delivered, wherever it stands; but it is a dropped one only if it was needed.
            (1, 0) if before + unresolved < self.wanted => Place::Dropped,
            _ => Place::Unknown,
        }
    }

    /// P(fewer than `wanted` informative groups before this prompt), each unresolved one informative at the rate of the resolved ones
    /// (Beta(1/2, 1/2) posterior).
    pub fn needed_probability(&self, prompt: usize) -> f64 {
        let before = self.informative.before(prompt);
        if before >= self.wanted {
            return 0.0;
        }
        let (short, unresolved) = (self.wanted - before, prompt as u64 - self.resolved.before(prompt));
        if unresolved < short {
            return 1.0;
        }
        let prompts = self.resolved.values.len();
        let (informative, resolved) = (self.informative.before(prompts) as f64, self.resolved.before(prompts) as f64);
        beta_binomial_below(short, unresolved, informative + 0.5, resolved - informative + 0.5)
    }

    /// Whether every prompt that is delivered is known.
    pub fn done(&self) -> bool {
        self.informative.before(self.informative.values.len()) >= self.wanted
            && (0..self.resolved.values.len()).all(|prompt| self.place(prompt) != Place::Unknown)
    }
}

/// P(X < k) for X beta-binomial of m draws.
fn beta_binomial_below(k: u64, m: u64, a: f64, b: f64) -> f64 {
    // P(0), then each term from the one before.
    let mut term: f64 = (0..m).map(|i| ((b + i as f64) / (a + b + i as f64)).ln()).sum::<f64>().exp();
    let mut sum = 0.0;
    for x in 0..k.min(m + 1) {
        sum += term;
        let (x, m) = (x as f64, m as f64);
        term *= (m - x) / (x + 1.0) * (a + x) / (b + m - x - 1.0);
    }
    sum.min(1.0)
}
