//! From closed groups to the journal and to readers.
//!
//! Groups go out in request order, or as they close if the request says so. Under `dapo` a group's place is known only when enough of the
//! earlier ones are; until then it waits here. What waits is read back from the journal, rendered, and written, in its order; readers hear of
//! it when it is written, so that what a reader has seen is never lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use super::job::{Arrival, Job};
use super::journal::Journal;
use super::output::{Timing, are_mixed, failure, group_json};
use super::plan::ledger::Place;
use super::plan::{Exit, Group, Status};
use super::prompt::{OpenPrompt, Waste};
use super::spec::{JobSpec, Order};
use super::versions::OnWeightUpdate;
use crate::metrics::SampleOutcome;
use crate::store::GroupRow;

/// Groups, and tokens of groups, that are written together.
const MOST_GROUPS: usize = 64;
const MOST_TOKENS: u64 = 16 * 1024;

/// A group on its way out.
pub(super) struct Closed {
    group: Group,
    exit: Exit,
    prompt: OpenPrompt,
    at: Instant,
}

/// A group that is in the journal.
pub(super) struct Written {
    row: GroupRow,
    group: Group,
    waste: Waste,
}

/// Which prompts are over, and what waits to be written.
pub(super) struct Delivery {
    order: Order,
    /// Whether the prompt's group is in the outbox, written, or never comes.
    settled: Vec<bool>,
    /// Prompts whose end is written, or never comes.
    over: usize,
    /// Request order: the first prompt not settled. Completion order: how many are settled.
    turn: usize,
    closed: BTreeMap<usize, Closed>,
    outbox: VecDeque<(usize, Option<u64>, Closed)>,
    next_seq: u64,
    writing: bool,
}

impl Delivery {
    pub(super) fn new(prompts: usize, order: Order) -> Self {
        let (closed, outbox) = (BTreeMap::new(), VecDeque::new());
        Delivery { order, settled: vec![false; prompts], over: 0, turn: 0, closed, outbox, next_seq: 0, writing: false }
    }

    /// Whether every prompt is over.
    pub(super) fn is_over(&self) -> bool {
        self.over == self.settled.len()
    }

    /// Whether nothing more is decided about this prompt.
    pub(super) fn is_settled(&self, position: usize) -> bool {
        self.settled[position]
    }

    /// Whether the prompt's group is formed and waits for its turn.
    pub(super) fn is_closed(&self, position: usize) -> bool {
        self.closed.contains_key(&position)
    }

    /// Whether a group is on its way into the journal.
    pub(super) fn is_writing(&self) -> bool {
        self.writing
    }

    /// The prompt from which the look-ahead counts.
    pub(super) fn first_open(&self) -> usize {
        self.turn
    }

    /// The prompt's group is formed.
    pub(super) fn closed(&mut self, position: usize, group: Group, exit: Exit, prompt: OpenPrompt) {
        self.closed.insert(position, Closed { group, exit, prompt, at: Instant::now() });
    }

    /// No group of this prompt is wanted.
    pub(super) fn skip(&mut self, position: usize) {
        self.closed.remove(&position);
        self.settle(position);
        self.over += 1;
    }

    /// An earlier process wrote this prompt's end.
    pub(super) fn was_written(&mut self, position: usize, seq: Option<u64>) {
        self.settle(position);
        self.over += 1;
        self.next_seq = self.next_seq.max(seq.map_or(0, |seq| seq + 1));
    }

    fn settle(&mut self, position: usize) {
        if std::mem::replace(&mut self.settled[position], true) {
            return;
        }
        match self.order {
            Order::Completion => self.turn += 1,
            Order::Request => {
                while self.settled.get(self.turn).is_some_and(|settled| *settled) {
                    self.turn += 1;
                }
            }
        }
    }

    /// Moves every group whose turn and place are known to the outbox. Gives the prompts that nobody needs.
    fn dispatch(&mut self, place: impl Fn(usize) -> Place) {
        let mut next = self.closed.keys().next().copied();
        while let Some(position) = next {
            next = self.closed.range(position + 1..).next().map(|(position, _)| *position);
            if self.order == Order::Request && position != self.turn {
                return;
            }
            let seq = match place(position) {
                Place::Kept => {
                    self.next_seq += 1;
                    Some(self.next_seq - 1)
                }
                Place::Dropped => None,
                Place::Unneeded => {
                    self.skip(position);
                    continue;
                }
                Place::Unknown => continue,
            };
            if let Some(closed) = self.closed.remove(&position) {
                self.settle(position);
                self.outbox.push_back((position, seq, closed));
            }
        }
    }
}

impl Job<'_> {
    /// Hands out every closed group whose turn has come.
    pub(super) fn deliver(&mut self) {
        let wanted = self.wanted.as_ref();
        self.delivery.dispatch(|position| wanted.map_or(Place::Kept, |wanted| wanted.place(position)));
    }

    /// Starts to write the groups whose turn has come, unless some are being written.
    pub(super) fn write_next(&mut self) {
        if self.delivery.writing || self.delivery.outbox.is_empty() {
            return;
        }
        self.delivery.writing = true;
        // One commit for many small groups, and no group waits for many large ones to be rendered.
        let (mut batch, mut tokens) = (Vec::new(), 0);
        while batch.len() < MOST_GROUPS
            && tokens < MOST_TOKENS
            && let Some(next) = self.delivery.outbox.pop_front()
        {
            tokens += next.2.group.stats.tokens_seen;
            batch.push(next);
        }
        let (journal, spec, key) = (self.context.journal.clone(), self.spec.clone(), self.record.key);
        self.arrivals.push(Box::pin(async move {
            match write(&*journal, &spec, key, batch).await {
                Ok(written) => Arrival::Written(written),
                Err(error) => Arrival::Broken(error),
            }
        }));
    }

    /// Groups are in the journal: readers may have them.
    pub(super) fn written(&mut self, written: Vec<Written>) {
        self.delivery.writing = false;
        written.iter().for_each(|group| self.group_written(group));
    }

    fn group_written(&mut self, Written { row, group, waste }: &Written) {
        self.delivery.over += 1;
        self.record.appended(row, waste.tokens, waste.cancelled);
        let metrics = &self.context.metrics;
        let (stats, kept) = (&group.stats, if row.seq.is_some() { group.kept.len() as u64 } else { 0 });
        if row.seq.is_some() {
            metrics.group_closed(group.status, stats);
        } else {
            metrics.group_dropped();
        }
        metrics.samples(SampleOutcome::Kept, kept);
        metrics.samples(SampleOutcome::Discarded, u64::from(stats.positive + stats.negative) - kept + waste.finished);
        metrics.samples(SampleOutcome::Cancelled, waste.cancelled);
        metrics.samples(SampleOutcome::Unscored, u64::from(stats.skipped));
        metrics.samples(SampleOutcome::Failed, u64::from(stats.failed));
        metrics.tokens_discarded(waste.tokens);
    }
}

/// Renders groups from the journal and writes them there, in this order: what a crash leaves has no gap.
async fn write(journal: &dyn Journal, spec: &JobSpec, key: i64, batch: Vec<(usize, Option<u64>, Closed)>) -> Result<Vec<Written>, String> {
    // The reads stand in the journal's queue together, and so do the rows: each time, one transaction does.
    let rendered = batch.into_iter().map(|(position, seq, closed)| render(journal, spec, key, position, seq, closed));
    let rendered = futures::future::try_join_all(rendered).await?;
    let (mut commits, mut written) = (Vec::with_capacity(rendered.len()), Vec::with_capacity(rendered.len()));
    for (group, json) in rendered {
        commits.push(journal.group(GroupRow { json, ..group.row.clone() }));
        written.push(group);
    }
    futures::future::try_join_all(commits).await?;
    Ok(written)
}

/// A group's row without its JSON, and the JSON.
async fn render(
    journal: &dyn Journal,
    spec: &JobSpec,
    key: i64,
    position: usize,
    seq: Option<u64>,
    closed: Closed,
) -> Result<(Written, Option<String>), String> {
    let Closed { group, exit, prompt, at } = closed;
    let waste = prompt.wasted(exit);
    let json = match seq {
        None => None,
        Some(_) => {
            let shown: BTreeSet<u32> = match spec.settings.fields.all_samples {
                true if exit.t > 0 => (0..exit.t).collect(),
                _ => group.kept.iter().map(|kept| kept.index).collect(),
            };
            // Only the samples of such a job can be of several versions, and those that the group does not show decided over it as well.
            let all = spec.settings.on_weight_update == OnWeightUpdate::Continue;
            // A failed group says why.
            let failed = prompt.first_failed(exit.t).filter(|_| group.status == Status::Failed);
            let read: BTreeSet<u32> = if all { (0..exit.t).collect() } else { shown.iter().copied().chain(failed).collect() };
            let indices: Vec<u32> = read.into_iter().collect();
            let mut samples = if indices.is_empty() { Vec::new() } else { journal.samples(key, position as u32, indices.clone()).await? };
            if samples.len() != indices.len() {
                return Err(format!("holds {} of the {} samples of a group", samples.len(), indices.len()));
            }
            let mixed_versions = are_mixed(&samples);
            let error = failure(&spec.prompts[position], &group, &prompt, &samples);
            samples.retain(|stored| shown.contains(&stored.sample.index));
            let timing = Timing {
                tokens_discarded: waste.tokens,
                samples_cancelled: waste.cancelled,
                wait_s: at.elapsed().as_secs_f64(),
                age_s: prompt.first_submitted.map_or(0.0, |since| since.elapsed().as_secs_f64()),
                wall_clock_timeouts: u64::from(prompt.timeouts),
            };
            let json = group_json(&spec.settings, &spec.prompts[position], &group, &prompt, &samples, mixed_versions, error, timing);
            Some(json.map_err(|e| format!("a group could not be written as JSON: {e}"))?)
        }
    };
    let row = GroupRow {
        job: key,
        prompt: position as u32,
        seq,
        t: exit.t,
        kind: exit.kind.name().to_owned(),
        status: group.status.name().to_owned(),
        signal: group.signal,
        positive: group.stats.positive,
        negative: group.stats.negative,
        tokens_seen: group.stats.tokens_seen,
        timeouts: prompt.timeouts,
        json: None,
    };
    Ok((Written { row, group, waste }, json))
}
