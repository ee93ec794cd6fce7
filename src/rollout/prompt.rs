//! One open prompt: which of its samples run, what is known of them, and what may still matter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::output::RewardStatus;
use super::plan::{Exit, ExitKind, Outcome, Plan, Seen};
use super::width::frontier;
use crate::engine::{FinishReason, RequestId, Sample};

/// A sample that has ended, with its reward once it is known.
#[derive(Debug)]
pub struct Ended {
    /// The sample.
    pub sample: Sample,
    /// Its raw reward.
    pub reward: Option<f64>,
    /// State of the reward.
    pub status: RewardStatus,
}

/// A prompt that is being sampled.
#[derive(Debug)]
pub struct OpenPrompt {
    plan: Plan,
    outcomes: Vec<Outcome>,
    running: BTreeMap<u32, RequestId>,
    cancelled: BTreeSet<u32>,
    ended: BTreeMap<u32, Ended>,
    next: u32,
    bound: Exit,
    earliest: u32,
    /// When its first sample was submitted.
    pub first_submitted: Option<Instant>,
    /// When finished samples first satisfied an exit, whatever the missing ones will be.
    pub satisfied_at: Option<Instant>,
}

impl OpenPrompt {
    /// A prompt of which nothing is known yet.
    pub fn new(plan: Plan) -> Self {
        OpenPrompt {
            plan,
            outcomes: vec![Outcome::Unscored; plan.n_max as usize],
            running: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            ended: BTreeMap::new(),
            next: 0,
            bound: plan.bound(&[]),
            earliest: plan.earliest(&[]),
            first_submitted: None,
            satisfied_at: None,
        }
    }

    /// The next index to submit, if one is worth it.
    pub fn next_index(&self, speculate: u32) -> Option<u32> {
        (self.next < frontier(self.earliest, self.bound, speculate)).then_some(self.next)
    }

    /// Sample `next_index` runs under this name.
    pub fn submitted(&mut self, id: RequestId) {
        self.running.insert(self.next, id);
        self.next += 1;
        self.first_submitted.get_or_insert_with(Instant::now);
    }

    /// The sample ended. Says whether its outcome can still matter.
    pub fn ended(&mut self, index: u32, sample: Sample) -> bool {
        self.running.remove(&index);
        let matters = index < self.bound.t && sample.finish_reason != FinishReason::Cancelled;
        self.ended.insert(index, Ended { sample, reward: None, status: RewardStatus::Unscored });
        matters
    }

    /// Whether this job cancelled the sample.
    pub fn was_cancelled(&self, index: u32) -> bool {
        self.cancelled.contains(&index)
    }

    /// The outcome of an ended sample is known.
    pub fn resolve(&mut self, index: u32, outcome: Outcome, reward: Option<f64>, status: RewardStatus) {
        if let Some(ended) = self.ended.get_mut(&index) {
            ended.reward = reward;
            ended.status = status;
        }
        if let Some(slot) = self.outcomes.get_mut(index as usize) {
            *slot = outcome;
        }
        self.bound = self.plan.bound(&self.outcomes);
        self.earliest = self.plan.earliest(&self.outcomes);
        if self.bound.kind != ExitKind::Cap {
            self.satisfied_at.get_or_insert_with(Instant::now);
        }
    }

    /// Running samples that can no longer matter, and only those. They count as cancelled from now on.
    pub fn take_beyond(&mut self) -> Vec<RequestId> {
        let beyond: Vec<(u32, RequestId)> =
            self.running.range(self.bound.t..).filter(|(index, _)| !self.cancelled.contains(index)).map(|(i, id)| (*i, *id)).collect();
        self.cancelled.extend(beyond.iter().map(|(index, _)| *index));
        beyond.into_iter().map(|(_, id)| id).collect()
    }

    /// Every running sample; the job gives up on them.
    pub fn take_running(&mut self) -> Vec<RequestId> {
        self.bound = Exit { t: 0, kind: ExitKind::Budget };
        self.take_beyond()
    }

    /// The exit, once every index below it is resolved and no sample runs any more.
    pub fn exit(&self) -> Option<Exit> {
        if self.running.is_empty() { self.plan.exit(&self.outcomes) } else { None }
    }

    /// What the strategy saw: the samples below `exit`, in index order.
    pub fn seen(&self, exit: Exit) -> Vec<Seen> {
        (0..exit.t)
            .map(|index| {
                let ended = self.ended.get(&index);
                Seen {
                    outcome: self.outcomes[index as usize],
                    reward: ended.and_then(|e| e.reward).unwrap_or(0.0),
                    tokens: ended.map_or(0, |e| e.sample.token_ids.len() as u64),
                    truncated: ended.is_some_and(|e| e.sample.finish_reason == FinishReason::Length),
                }
            })
            .collect()
    }

    /// The ended sample `index`.
    pub fn sample(&self, index: u32) -> Option<&Ended> {
        self.ended.get(&index)
    }

    /// The outcome of `index`.
    pub fn outcome(&self, index: u32) -> Outcome {
        self.outcomes.get(index as usize).copied().unwrap_or_default()
    }

    /// Tokens and number of the samples at or above `exit`, those that were cancelled apart.
    pub fn wasted(&self, exit: Exit) -> Waste {
        let mut waste = Waste::default();
        for ended in self.ended.range(exit.t..).map(|(_, ended)| ended) {
            waste.tokens += ended.sample.token_ids.len() as u64;
            if ended.sample.finish_reason == FinishReason::Cancelled { waste.cancelled += 1 } else { waste.finished += 1 }
        }
        waste
    }
}

/// What was drawn above an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waste {
    /// Tokens.
    pub tokens: u64,
    /// Samples ended early.
    pub cancelled: u64,
    /// Samples that ran to their end.
    pub finished: u64,
}
