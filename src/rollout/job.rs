//! The job: drives the engine by the plan.
//!
//! One task owns everything about a job. It submits the samples that the width planner thinks most needed, hears of their ends and
//! verdicts in whatever order these come, writes them to the journal, and lets only the plan, which looks at outcomes in index order,
//! decide. A group closes once every index below its exit is resolved and its cancelled samples' blocks are free; then [`delivery`]
//! hands it out. What samples come to is in [`verdicts`], what clients score in [`scores`]. After a restart [`super::restore`] puts the
//! job where the journal says it was.
//!
//! [`delivery`]: super::delivery
//! [`scores`]: super::scores
//! [`verdicts`]: super::verdicts

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use super::delivery::{Delivery, Written};
use super::journal::Journal;
use super::pause::Pause;
use super::plan::ledger::{Ledger, Place, Wanted};
use super::plan::width::{Planner, Prior};
use super::plan::{Exit, ExitKind, Group, Plan};
use super::prompt::OpenPrompt;
use super::record::{Asked, Ending, JobRecord};
use super::slots::{Seat, Slots};
use super::spec::{JobSpec, PromptSpec};
use super::versions::{OnWeightUpdate, Turn, Versions};
use crate::engine::{CancelAck, Engine, Event, RequestId, Sample, SampleRequest, SampleStream, StreamKey, SubmitError};
use crate::metrics::{Metrics, SampleOutcome};
use crate::reward::{Judge, Judged};
use crate::store::Resume;

/// What every job works with.
#[derive(Clone)]
pub struct Context {
    /// Draws the samples.
    pub engine: Arc<dyn Engine>,
    /// Scores them.
    pub rewards: Arc<dyn Judge>,
    /// Keeps them.
    pub journal: Arc<dyn Journal>,
    /// Counts them.
    pub metrics: Arc<Metrics>,
    /// Limits them, over all jobs.
    pub slots: Slots,
    /// Holds them back while an admin wants it.
    pub pause: Pause,
    /// The weights that draw them.
    pub versions: Versions,
    /// How far ahead they may run.
    pub width: Width,
}

/// How far a job samples ahead of what is certain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Width {
    /// A sample is started if it is needed with at least this probability. About .1 where idle places cost nothing (a GPU whose steps are
    /// bound by memory), .3 to .5 where every row costs time (a CPU).
    pub q_min: f64,
    /// Prompts that may be open beyond the first undelivered one.
    pub look_ahead: usize,
}

impl Default for Width {
    fn default() -> Self {
        Width { q_min: 0.3, look_ahead: 1024 }
    }
}

/// A sample at least this likely to be needed is submitted even while others wait in the engine.
const CERTAIN: f64 = 0.95;
/// First and longest pause after the engine's queue was full.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// A job that ends early waits at most this long for its samples' blocks.
const DRAIN: Duration = Duration::from_secs(60);

/// Runs a job to its end, from where `start` says an earlier process had brought it. Groups go to the journal and are announced in
/// `record`; the caller closes both with the ending.
pub async fn run(context: &Context, spec: &Arc<JobSpec>, record: &JobRecord, start: Resume) -> Ending {
    let plans = spec.settings.strategy.plans(&spec.histories());
    let mut job = Job {
        context,
        spec,
        record,
        planner: Planner::with_floor(context.width.q_min),
        ledger: Ledger::new(spec.settings.strategy.charged_budget(), &plans),
        wanted: spec.settings.strategy.groups_wanted().map(|wanted| Wanted::new(wanted, plans.len())),
        plans,
        open: BTreeMap::new(),
        lost: BTreeSet::new(),
        next_prompt: 0,
        delivery: Delivery::new(spec.prompts.len(), spec.settings.order),
        arrivals: FuturesUnordered::new(),
        seat: context.slots.seat(spec.settings.priority),
        running: 0,
        pause: BACKOFF.0,
        retry_at: None,
        turn: context.versions.live(),
        life: 0,
    };
    // A prompt without a usable gold takes no samples; later ones may count on that from the start.
    for position in (0..spec.prompts.len()).filter(|&position| spec.prompts[position].verifier.is_err()) {
        job.ledger.set(position, 0, 0);
    }
    let ending = match job.restore(start) {
        Ok(()) => job.drive().await,
        Err(problem) => Ending::Lost(format!("the store holds what cannot be read back: {problem}")),
    };
    if ending != Ending::Done {
        job.drain().await;
    }
    context.metrics.open_prompts(-(job.open.len() as i64));
    ending
}

/// Something that a job waited for.
pub(super) enum Arrival {
    /// A sample ended; nothing came with it if its stream broke off.
    Ended { life: u32, prompt: usize, index: u32, sample: Option<Box<Sample>> },
    /// A verifier gave its verdict.
    Judged { life: u32, prompt: usize, index: u32, judged: Judged },
    /// A score that a client was to post has not come in time.
    Overdue { life: u32, prompt: usize, index: u32 },
    /// A cancelled sample's blocks are free.
    Acknowledged { after: Duration },
    /// Prompts' ends are in the journal.
    Written(Vec<Written>),
    /// The journal failed.
    Broken(String),
    /// Posted scores are in the journal and were answered.
    Answered,
}

pub(super) struct Job<'a> {
    pub(super) context: &'a Context,
    pub(super) spec: &'a Arc<JobSpec>,
    pub(super) record: &'a JobRecord,
    plans: Vec<Plan>,
    planner: Planner,
    pub(super) ledger: Ledger,
    /// `dapo`'s count of informative groups.
    pub(super) wanted: Option<Wanted>,
    /// Prompts being sampled, by their position in the request.
    pub(super) open: BTreeMap<usize, OpenPrompt>,
    /// Of these, those with samples that were lost in a crash and must run again.
    lost: BTreeSet<usize>,
    /// The first prompt not opened yet.
    next_prompt: usize,
    pub(super) delivery: Delivery,
    pub(super) arrivals: FuturesUnordered<BoxFuture<'static, Arrival>>,
    seat: Seat,
    /// Samples in flight.
    running: usize,
    pause: Duration,
    /// When to submit again after the engine's queue was full.
    retry_at: Option<tokio::time::Instant>,
    /// The weights that it samples from, as far as it knows.
    pub(super) turn: Turn,
    /// How often its open prompts have started again.
    pub(super) life: u32,
}

impl Job<'_> {
    async fn drive(&mut self) -> Ending {
        let (record, context) = (self.record, self.context);
        let mut inbox = record.take_inbox();
        let mut stop = std::pin::pin!(record.asked_to_stop());
        let mut deadline = std::pin::pin!(deadline(self.spec));
        let follows = self.spec.settings.on_weight_update == OnWeightUpdate::Restart;
        loop {
            // Read once: a switch between looking and waiting must not be missed.
            let paused = context.pause.is_paused();
            self.follow_weights();
            let epoch = self.turn.epoch;
            if let Err(ending) = self.fill(paused) {
                return ending;
            }
            self.write_next();
            if self.delivery.is_over() {
                return Ending::Done;
            }
            let retry_at = self.retry_at;
            let retry = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let posted = async {
                match &mut inbox {
                    Some(inbox) => inbox.recv().await,
                    None => None,
                }
            };
            let taken = tokio::select! {
                biased;
                asked = &mut stop => return if asked == Asked::Cancel { Ending::Cancelled } else { Ending::Suspended },
                () = &mut deadline => return Ending::Failed(self.too_late()),
                Some(arrival) = self.arrivals.next() => self.take(arrival),
                Some(posted) = posted => { self.scores_posted(posted); Ok(()) }
                () = self.seat.granted() => Ok(()),
                () = context.pause.changed(paused) => Ok(()),
                () = context.versions.changed(epoch), if follows => Ok(()),
                () = retry => Ok(()),
            };
            if let Err(ending) = taken {
                return ending;
            }
        }
    }

    fn too_late(&self) -> String {
        let (delivered, prompts) = (self.record.totals().groups, self.spec.prompts.len());
        let seconds = self.spec.settings.deadline_s.unwrap_or_default();
        format!("its deadline_s of {seconds} has passed with {delivered} of {prompts} groups delivered; they stay readable")
    }

    /// Opens prompts and submits what is worth having in flight, most needed first.
    fn fill(&mut self, paused: bool) -> Result<(), Ending> {
        self.open_prompts();
        if paused || self.retry_at.is_some_and(|at| tokio::time::Instant::now() < at) {
            if paused {
                self.retry_at = None;
            }
            self.seat.withdraw();
            return Ok(());
        }
        self.retry_at = None;
        let has_room = self.context.engine.stats().waiting == 0;
        while let Some((position, index, q)) = self.most_needed(has_room) {
            if !self.seat.take(q) {
                return Ok(());
            }
            match self.context.engine.submit(request(self.spec, &self.spec.prompts[position], index)) {
                Ok(stream) => {
                    self.submitted(position, index, stream.id);
                    self.arrivals.push(Box::pin(ended(self.life, position, index, stream)));
                }
                Err(error) => {
                    self.seat.give_back();
                    let id = &self.spec.prompts[position].id;
                    match error {
                        SubmitError::QueueFull(_) => {
                            self.context.metrics.queue_was_full();
                            self.retry_at = Some(tokio::time::Instant::now() + self.pause);
                            self.pause = (self.pause * 2).min(BACKOFF.1);
                            break;
                        }
                        SubmitError::Stopped(_) => return Err(Ending::Lost(format!("{error}; the job goes on when the server is back"))),
                        // The request was checked when it was accepted: it is this server that is smaller now.
                        error => {
                            let help = "start the server as it was (--kv-blocks), or end the job with `adaroll jobs cancel`";
                            return Err(Ending::Lost(format!("the engine refuses prompt {id:?}: {error}; {help}")));
                        }
                    }
                }
            }
        }
        self.seat.withdraw();
        Ok(())
    }

    /// The sample to start next, with the probability that it is needed.
    fn most_needed(&mut self, has_room: bool) -> Option<(usize, u32, f64)> {
        while let Some(&position) = self.lost.first() {
            match self.open.get(&position).and_then(OpenPrompt::lost_index) {
                Some(index) => return Some((position, index, 1.0)),
                None => self.lost.remove(&position),
            };
        }
        let need = self.planner.best()?;
        let wanted = has_room || need.q >= CERTAIN;
        let prompt = self.open.get(&need.prompt).filter(|_| wanted)?;
        Some((need.prompt, prompt.next_index(), need.q))
    }

    fn submitted(&mut self, position: usize, index: u32, id: RequestId) {
        self.running += 1;
        self.pause = BACKOFF.0;
        if let Some(prompt) = self.open.get_mut(&position) {
            prompt.submitted(index, id);
        }
        self.replan(position);
    }

    /// Tells the planner what is known of a prompt now.
    fn replan(&mut self, position: usize) {
        let weight = self.wanted.as_ref().map_or(1.0, |wanted| wanted.needed_probability(position));
        match self.open.get(&position) {
            Some(prompt) => self.planner.update(position, prompt.view(weight)),
            None => self.planner.remove(position),
        }
    }

    /// Opens prompts in request order, within the look-ahead and as far as they may be needed.
    fn open_prompts(&mut self) {
        while self.next_prompt < self.spec.prompts.len().min(self.delivery.first_open() + self.context.width.look_ahead.max(1)) {
            let position = self.next_prompt;
            if let Some(wanted) = &self.wanted {
                let idle = self.open.is_empty();
                if !idle && wanted.place(position) == Place::Unknown && wanted.needed_probability(position) < self.context.width.q_min {
                    return;
                }
            }
            self.next_prompt += 1;
            if self.delivery.is_settled(position) || self.open.contains_key(&position) {
                continue;
            }
            if self.wanted.as_ref().is_some_and(|wanted| wanted.place(position) == Place::Unneeded) {
                self.delivery.skip(position);
                self.deliver();
                continue;
            }
            // Closed before a restart, and waits for its turn.
            if self.delivery.is_closed(position) {
                continue;
            }
            self.open_prompt(position);
            self.settle(position);
        }
    }

    pub(super) fn open_prompt(&mut self, position: usize) {
        let strategy = &self.spec.settings.strategy;
        let weight = strategy.history_prior;
        let prior = match self.spec.prompts[position].history.filter(|_| weight > 0.0) {
            Some(history) => Prior { positives: weight * history.s, negatives: weight * (history.n - history.s) },
            None => Prior::default(),
        };
        self.context.metrics.open_prompts(1);
        let mut prompt = OpenPrompt::new(self.plans[position], prior);
        prompt.allow(self.ledger.allowance(position));
        self.open.insert(position, prompt);
    }

    /// A prompt taken over from an earlier process has samples to run again.
    pub(super) fn has_lost(&mut self, position: usize) {
        self.lost.insert(position);
    }

    /// An earlier process closed this prompt after `t` samples.
    pub(super) fn was_closed(&mut self, position: usize, t: u32, signal: bool) {
        self.ledger.set(position, t, t);
        if let Some(wanted) = &mut self.wanted {
            wanted.set(position, signal);
        }
    }

    /// Takes what has arrived; an error ends the job.
    fn take(&mut self, arrival: Arrival) -> Result<(), Ending> {
        self.follow_weights();
        match arrival {
            Arrival::Acknowledged { after } => self.context.metrics.cancel_acknowledged(after),
            Arrival::Answered => {}
            Arrival::Broken(error) => return Err(Ending::Lost(format!("the store failed: {error}"))),
            Arrival::Written(written) => self.written(written),
            Arrival::Ended { life, prompt, index, sample } => {
                self.running -= 1;
                self.seat.give_back();
                if life == self.life {
                    return self.sample_ended(prompt, index, sample);
                }
                self.lost_sample_ended(prompt, sample);
            }
            Arrival::Overdue { life, .. } | Arrival::Judged { life, .. } if life != self.life => {}
            Arrival::Overdue { prompt, index, .. } => {
                let overdue = self.open.get(&prompt).is_some_and(|p| !p.outcome(index).is_resolved());
                if overdue {
                    self.overdue(prompt, index);
                }
            }
            Arrival::Judged { prompt, index, judged, .. } => self.judged(prompt, index, judged),
        }
        Ok(())
    }

    /// Cancels what can no longer matter in this prompt, and closes its group if its exit is resolved. Under a budget this may change what
    /// is left to later prompts.
    pub(super) fn settle(&mut self, position: usize) {
        let (before, after) = (self.ledger.bounds(position), self.settle_one(position));
        if self.spec.settings.strategy.charged_budget().is_none() || before == after {
            return;
        }
        let later: Vec<usize> = self.open.range(position + 1..).map(|(position, _)| *position).collect();
        for position in later {
            let allowance = self.ledger.allowance(position);
            if self.open.get_mut(&position).is_some_and(|prompt| prompt.allow(allowance)) {
                self.settle_one(position);
            }
        }
    }

    /// The same for one prompt; gives the bounds of its exit.
    fn settle_one(&mut self, position: usize) -> (u32, u32) {
        let Some(prompt) = self.open.get_mut(&position) else { return self.ledger.bounds(position) };
        let beyond = prompt.take_beyond();
        self.cancel(beyond);
        let Some(prompt) = self.open.get(&position) else { return self.ledger.bounds(position) };
        let allowance = self.ledger.allowance(position);
        let (earliest, latest) = prompt.bounds();
        let bounds = (earliest.min(allowance.least), latest.min(allowance.most));
        self.ledger.set(position, bounds.0, bounds.1);
        if self.spec.prompts[position].verifier.is_err() {
            self.close(position, Exit { t: 0, kind: ExitKind::Failed });
            return (0, 0);
        }
        match prompt.exit() {
            Some(exit) => {
                self.close(position, exit);
                (exit.t, exit.t)
            }
            None => {
                self.replan(position);
                bounds
            }
        }
    }

    /// Forms the group of a resolved prompt.
    fn close(&mut self, position: usize, exit: Exit) {
        let Some(prompt) = self.open.remove(&position) else { return };
        self.planner.remove(position);
        self.context.metrics.open_prompts(-1);
        if let Some(since) = prompt.satisfied_at {
            self.context.metrics.prefix_waited(since.elapsed());
        }
        self.ledger.set(position, exit.t, exit.t);
        let asked = &self.spec.prompts[position];
        let settings = &self.spec.settings;
        let plan = prompt.plan();
        let group = match &asked.verifier {
            Err(_) => Group::of_bad_gold(),
            Ok(_) => {
                let size = settings.strategy.kept_size(plan);
                Group::form(plan, exit, &prompt.seen(exit), size, settings.advantage, asked.history)
            }
        };
        if let Some(wanted) = &mut self.wanted {
            wanted.set(position, group.signal);
        }
        self.delivery.closed(position, group, exit, prompt);
        if self.wanted.is_some() {
            self.skip_unneeded();
        }
        self.deliver();
    }

    /// `dapo`: prompts behind the last group wanted are given up, and the others' chances have changed.
    pub(super) fn skip_unneeded(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        let positions: Vec<usize> = self.open.keys().copied().collect();
        let unneeded: Vec<usize> = positions.iter().copied().filter(|&position| wanted.place(position) == Place::Unneeded).collect();
        for position in unneeded {
            let Some(mut prompt) = self.open.remove(&position) else { continue };
            self.planner.remove(position);
            self.context.metrics.open_prompts(-1);
            let running = prompt.take_running();
            self.give_up(running);
            self.delivery.skip(position);
        }
        let open: Vec<usize> = self.open.keys().copied().collect();
        open.into_iter().for_each(|position| self.replan(position));
    }

    /// Takes an open prompt out, as if it had never been opened.
    pub(super) fn forget_prompt(&mut self, position: usize) -> Option<OpenPrompt> {
        self.planner.remove(position);
        self.lost.remove(&position);
        let prompt = self.open.remove(&position)?;
        self.context.metrics.open_prompts(-1);
        Some(prompt)
    }

    /// Ends samples that no group will count.
    fn give_up(&mut self, running: Vec<RequestId>) {
        self.context.metrics.samples(SampleOutcome::Cancelled, running.len() as u64);
        self.cancel(running);
    }

    pub(super) fn cancel(&mut self, ids: Vec<RequestId>) {
        for id in ids {
            self.arrivals.push(Box::pin(acknowledged(self.context.engine.cancel(id))));
        }
    }

    /// Ends every running sample and waits until their blocks are free.
    async fn drain(&mut self) {
        let running: Vec<RequestId> = self.open.values_mut().flat_map(OpenPrompt::take_running).collect();
        self.give_up(running);
        let until = tokio::time::Instant::now() + DRAIN;
        while self.running > 0 || self.delivery.is_writing() {
            match tokio::time::timeout_at(until, self.arrivals.next()).await {
                Ok(Some(Arrival::Ended { .. })) => self.running -= 1,
                Ok(Some(Arrival::Acknowledged { after })) => self.context.metrics.cancel_acknowledged(after),
                Ok(Some(Arrival::Written(written))) => self.written(written),
                Ok(Some(Arrival::Broken(_))) | Ok(None) | Err(_) => return,
                Ok(Some(_)) => {}
            }
        }
    }
}

fn request(spec: &JobSpec, prompt: &PromptSpec, index: u32) -> SampleRequest {
    SampleRequest {
        prompt: prompt.token_ids.clone(),
        params: spec.sampling.clone(),
        key: StreamKey::new(spec.settings.seed, &prompt.id),
        index,
        stream_tokens: false,
    }
}

async fn ended(life: u32, prompt: usize, index: u32, mut stream: SampleStream) -> Arrival {
    while let Some(event) = stream.events.recv().await {
        if let Event::Finished(sample) = event {
            return Arrival::Ended { life, prompt, index, sample: Some(sample) };
        }
    }
    Arrival::Ended { life, prompt, index, sample: None }
}

async fn acknowledged(ack: CancelAck) -> Arrival {
    let started = Instant::now();
    let _ = ack.await;
    Arrival::Acknowledged { after: started.elapsed() }
}

/// Resolves when the job's deadline, counted from its acceptance, has passed.
pub(super) async fn deadline(spec: &JobSpec) {
    let Some(seconds) = spec.settings.deadline_s else { return std::future::pending().await };
    let left = (spec.accepted_unix_s + seconds - super::unix_now()).max(0.0);
    tokio::time::sleep(Duration::from_secs_f64(left)).await;
}
