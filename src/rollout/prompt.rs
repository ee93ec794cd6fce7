//! One open prompt: which of its samples run, what came of the others, and what may still matter.
//!
//! It holds outcomes, never tokens: those are in the journal. Indices are issued in ascending order; after a restart the indices that
//! were lost while running are issued again first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::output::RewardStatus;
use super::plan::ledger::Allowance;
use super::plan::width::{Prior, View};
use super::plan::{Exit, ExitKind, Outcome, Plan, Seen};
use crate::engine::{FinishReason, RequestId};

/// What is known of a sample that has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens drawn.
    pub tokens: u32,
    /// Its raw reward, once it has one.
    pub reward: Option<f64>,
    /// State of the reward.
    pub status: RewardStatus,
}

impl Ended {
    /// An ended sample without a verdict.
    pub fn new(finish_reason: FinishReason, tokens: u32) -> Self {
        Ended { finish_reason, tokens, reward: None, status: RewardStatus::Unscored }
    }
}

/// A prompt that is being sampled.
#[derive(Debug)]
pub struct OpenPrompt {
    plan: Plan,
    prior: Prior,
    outcomes: Vec<Outcome>,
    running: BTreeMap<u32, RequestId>,
    cancelled: BTreeSet<u32>,
    ended: BTreeMap<u32, Ended>,
    /// Indices below `next` that must be run again.
    lost: BTreeSet<u32>,
    next: u32,
    allowance: Allowance,
    bound: Exit,
    earliest_end: u32,
    /// What samples cost that it lost when it started again.
    lost_work: Waste,
    /// Wall-clock timeouts that its rewards met.
    pub timeouts: u32,
    /// When its first sample was submitted.
    pub first_submitted: Option<Instant>,
    /// When finished samples first satisfied an exit, whatever the missing ones will be.
    pub satisfied_at: Option<Instant>,
}

impl OpenPrompt {
    /// A prompt of which nothing is known yet.
    pub fn new(plan: Plan, prior: Prior) -> Self {
        OpenPrompt {
            plan,
            prior,
            outcomes: vec![Outcome::Unscored; plan.n_max as usize],
            running: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            ended: BTreeMap::new(),
            lost: BTreeSet::new(),
            next: 0,
            allowance: Allowance { least: plan.n_max, most: plan.n_max },
            bound: plan.bound(&[]),
            earliest_end: plan.earliest_end(&[]),
            lost_work: Waste::default(),
            timeouts: 0,
            first_submitted: None,
            satisfied_at: None,
        }
    }

    /// Takes over a sample that an earlier process finished.
    pub fn restore(&mut self, index: u32, ended: Ended, outcome: Option<Outcome>) {
        self.ended.insert(index, ended);
        self.lost.extend(self.next..index);
        self.lost.remove(&index);
        self.next = self.next.max(index + 1);
        if let Some(outcome) = outcome {
            self.resolve(index, outcome, ended.reward, ended.status);
        }
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// An index that must be run again, if it can still matter.
    pub fn lost_index(&self) -> Option<u32> {
        self.lost.first().copied().filter(|&index| index < self.horizon())
    }

    /// The next new index.
    pub fn next_index(&self) -> u32 {
        self.next
    }

    /// Indices at or above this can never matter.
    fn horizon(&self) -> u32 {
        self.bound.t.min(self.allowance.most)
    }

    /// What the width planner needs to know; `weight` is the probability that the prompt is needed at all.
    pub fn view(&self, weight: f64) -> View<'_> {
        View { plan: &self.plan, outcomes: &self.outcomes, issued: self.next, limit: self.allowance.most, prior: self.prior, weight }
    }

    /// Bounds of the number of indices below its exit, as far as they are known, without the budget's.
    pub fn bounds(&self) -> (u32, u32) {
        (self.earliest_end, self.bound.t)
    }

    /// The budget leaves this much to the prompt. Says whether that is news.
    pub fn allow(&mut self, allowance: Allowance) -> bool {
        let news = self.allowance != allowance;
        self.allowance = allowance;
        news
    }

    /// Sample `index` runs under this name.
    pub fn submitted(&mut self, index: u32, id: RequestId) {
        self.running.insert(index, id);
        if !self.lost.remove(&index) {
            self.next = index + 1;
        }
        self.first_submitted.get_or_insert_with(Instant::now);
    }

    /// The sample ended. Says whether its outcome can still matter.
    pub fn ended(&mut self, index: u32, ended: Ended) -> bool {
        self.running.remove(&index);
        self.ended.insert(index, ended);
        index < self.horizon() && ended.finish_reason != FinishReason::Cancelled
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
        self.earliest_end = self.plan.earliest_end(&self.outcomes);
        if self.bound.kind != ExitKind::Cap {
            self.satisfied_at.get_or_insert_with(Instant::now);
        }
    }

    /// Running samples that can no longer matter, and only those. They count as cancelled from now on.
    pub fn take_beyond(&mut self) -> Vec<RequestId> {
        self.take_from(self.horizon())
    }

    /// Every running sample; the job gives up on them.
    pub fn take_running(&mut self) -> Vec<RequestId> {
        self.take_from(0)
    }

    fn take_from(&mut self, first: u32) -> Vec<RequestId> {
        let beyond: Vec<(u32, RequestId)> =
            self.running.range(first..).filter(|(index, _)| !self.cancelled.contains(index)).map(|(i, id)| (*i, *id)).collect();
        self.cancelled.extend(beyond.iter().map(|(index, _)| *index));
        beyond.into_iter().map(|(_, id)| id).collect()
    }

    /// The exit, once every index below it is resolved, the budget leaves room for it for certain, and no sample runs any more.
    pub fn exit(&self) -> Option<Exit> {
        if !self.running.is_empty() {
            return None;
        }
        let resolved = |t: u32| self.outcomes[..t as usize].iter().all(|outcome| outcome.is_resolved());
        let Allowance { least, most } = self.allowance;
        if self.bound.t <= least {
            return resolved(self.bound.t).then_some(self.bound);
        }
        (least == most && resolved(most)).then_some(self.bound.within(most))
    }

    /// What the strategy saw: the samples below `exit`, in index order.
    pub fn seen(&self, exit: Exit) -> Vec<Seen> {
        (0..exit.t)
            .map(|index| {
                let ended = self.ended.get(&index);
                Seen {
                    outcome: self.outcome(index),
                    reward: ended.and_then(|e| e.reward).unwrap_or(0.0),
                    tokens: ended.map_or(0, |e| u64::from(e.tokens)),
                    truncated: ended.is_some_and(|e| e.finish_reason == FinishReason::Length),
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

    /// The first failed sample below `t`.
    pub fn first_failed(&self, t: u32) -> Option<u32> {
        (0..t.min(self.plan.n_max)).find(|&index| self.outcome(index) == Outcome::Failed)
    }

    /// Ended samples that have no verdict yet and still want one.
    pub fn unjudged(&self) -> Vec<u32> {
        let wants = |(index, ended): (&u32, &Ended)| {
            (ended.finish_reason != FinishReason::Cancelled && !self.outcome(*index).is_resolved()).then_some(*index)
        };
        self.ended.range(..self.horizon()).filter_map(wants).collect()
    }

    /// Everything that was drawn so far, as waste; the samples that run count as cancelled.
    pub fn lost_work(&self) -> Waste {
        let none = Exit { t: 0, kind: ExitKind::Failed };
        let mut waste = self.wasted(none);
        waste.cancelled += self.running.len() as u64;
        waste
    }

    /// This prompt starts again in the place of `old`.
    pub fn inherit(&mut self, old: &OpenPrompt) {
        self.lost_work = old.lost_work();
        self.first_submitted = old.first_submitted;
    }

    /// A sample that it lost has ended after so many tokens.
    pub fn lost_tokens(&mut self, tokens: usize) {
        self.lost_work.tokens += tokens as u64;
    }

    /// Tokens and number of the samples at or above `exit`, those that were cancelled apart.
    pub fn wasted(&self, exit: Exit) -> Waste {
        let mut waste = self.lost_work;
        for ended in self.ended.range(exit.t..).map(|(_, ended)| ended) {
            waste.tokens += u64::from(ended.tokens);
            if ended.finish_reason == FinishReason::Cancelled { waste.cancelled += 1 } else { waste.finished += 1 }
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
