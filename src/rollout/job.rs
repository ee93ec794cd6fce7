//! The job: drives the engine by the plan.
//!
//! One task owns everything about a job. It submits samples in index order, hears of their ends and verdicts in whatever order these
//! come, and lets only the plan, which looks at outcomes in index order, decide. A group closes once every index below its exit is
//! resolved and its cancelled samples' blocks are free.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;

use super::output::{RewardStatus, Timing, group_json, withhold_nonfinite};
use super::plan::{Exit, ExitKind, Group, LimitCounts, Outcome};
use super::prompt::{OpenPrompt, Waste};
use super::record::{Ending, JobRecord};
use super::spec::{JobSpec, Order, PromptSpec};
use super::width::Width;
use crate::engine::{CancelAck, Engine, Event, FinishReason, RequestId, Sample, SampleRequest, SampleStream, StreamKey, SubmitError};
use crate::metrics::{Metrics, SampleOutcome};
use crate::reward::{Pool, Verdict};

/// What every job works with.
#[derive(Clone)]
pub struct Context {
    /// Draws the samples.
    pub engine: Arc<dyn Engine>,
    /// Scores them.
    pub rewards: Pool,
    /// Counts them.
    pub metrics: Arc<Metrics>,
    /// How many are in flight.
    pub width: Width,
}

/// An unscored answer is judged again this often before it is failed.
const MAX_JUDGEMENTS: u32 = 3;
/// First and longest pause after the engine's queue was full.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// A job that ends early waits at most this long for its samples' blocks.
const DRAIN: Duration = Duration::from_secs(60);

/// Runs a job to its end. Groups go to `record`; the caller closes it with the ending.
pub async fn run(context: &Context, spec: &JobSpec, record: &JobRecord) -> Ending {
    let mut job = Job {
        context,
        spec,
        record,
        open: BTreeMap::new(),
        next_prompt: 0,
        closed: BTreeMap::new(),
        delivered: 0,
        arrivals: FuturesUnordered::new(),
        running: 0,
        pause: BACKOFF.0,
        retry_at: None,
    };
    let ending = job.drive().await;
    if ending != Ending::Done {
        job.drain().await;
    }
    context.metrics.open_prompts(-(job.open.len() as i64));
    ending
}

/// Something that a job waited for.
enum Arrival {
    /// A sample ended; nothing came with it if its stream broke off.
    Ended { prompt: usize, index: u32, sample: Option<Box<Sample>> },
    /// A verifier gave its verdict, the `times`-th of this sample.
    Judged { prompt: usize, index: u32, verdict: Verdict, times: u32 },
    /// A cancelled sample's blocks are free.
    Acknowledged { after: Duration },
}

/// A group that waits to be delivered.
struct Closed {
    group: Group,
    exit: Exit,
    prompt: OpenPrompt,
    at: Instant,
}

struct Job<'a> {
    context: &'a Context,
    spec: &'a JobSpec,
    record: &'a JobRecord,
    /// Prompts being sampled, by their position in the request.
    open: BTreeMap<usize, OpenPrompt>,
    /// The first prompt not opened yet.
    next_prompt: usize,
    /// Closed groups that wait for earlier ones.
    closed: BTreeMap<usize, Closed>,
    delivered: usize,
    arrivals: FuturesUnordered<BoxFuture<'static, Arrival>>,
    /// Samples in flight.
    running: usize,
    pause: Duration,
    /// When to submit again after the engine's queue was full.
    retry_at: Option<Instant>,
}

impl Job<'_> {
    async fn drive(&mut self) -> Ending {
        let record = self.record;
        loop {
            if let Err(sentence) = self.fill() {
                return Ending::Failed(sentence);
            }
            if self.delivered == self.spec.prompts.len() {
                return Ending::Done;
            }
            if self.arrivals.is_empty() && self.retry_at.is_none() {
                return Ending::Failed("the job has nothing left to wait for and yet open prompts; please report this".into());
            }
            let retry_at = self.retry_at;
            let pause = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let arrival = tokio::select! {
                biased;
                () = record.cancelled() => return Ending::Cancelled,
                Some(arrival) = self.arrivals.next() => Some(arrival),
                () = pause => None,
            };
            if let Some(Err(sentence)) = arrival.map(|arrival| self.take(arrival)) {
                return Ending::Failed(sentence);
            }
        }
    }

    /// Opens prompts and submits what is worth having in flight: first what is needed for certain, in request order.
    fn fill(&mut self) -> Result<(), String> {
        self.open_prompts()?;
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.retry_at = None;
        let has_room = self.context.engine.stats().waiting == 0;
        let rounds: &[u32] = if has_room { &[0, self.context.width.speculate] } else { &[0] };
        for &speculate in rounds {
            for (&position, prompt) in &mut self.open {
                while let Some(index) = prompt.next_index(speculate) {
                    if self.running >= self.context.width.max_in_flight {
                        return Ok(());
                    }
                    match self.context.engine.submit(request(self.spec, &self.spec.prompts[position], index)) {
                        Ok(stream) => {
                            prompt.submitted(stream.id);
                            self.running += 1;
                            self.pause = BACKOFF.0;
                            self.arrivals.push(Box::pin(ended(position, index, stream)));
                        }
                        Err(SubmitError::QueueFull(_)) => {
                            self.context.metrics.queue_was_full();
                            self.retry_at = Some(Instant::now() + self.pause);
                            self.pause = (self.pause * 2).min(BACKOFF.1);
                            return Ok(());
                        }
                        Err(error @ SubmitError::Stopped(_)) => return Err(format!("{error}; send the job again when the server is back")),
                        Err(error) => return Err(format!("the engine refused prompt {:?}: {error}", self.spec.prompts[position].id)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Opens prompts in request order, within the look-ahead.
    fn open_prompts(&mut self) -> Result<(), String> {
        let end = (self.delivered + self.context.width.look_ahead.max(1)).min(self.spec.prompts.len());
        while self.next_prompt < end {
            let position = self.next_prompt;
            self.next_prompt += 1;
            let plan = self.spec.settings.strategy.plan();
            let prompt = OpenPrompt::new(plan);
            if self.spec.prompts[position].verifier.is_none() {
                let exit = Exit { t: 0, kind: ExitKind::Failed };
                self.deliver(position, Closed { group: Group::of_bad_gold(), exit, prompt, at: Instant::now() })?;
                continue;
            }
            self.context.metrics.open_prompts(1);
            self.open.insert(position, prompt);
        }
        Ok(())
    }

    /// Takes what has arrived; an error ends the job.
    fn take(&mut self, arrival: Arrival) -> Result<(), String> {
        match arrival {
            Arrival::Acknowledged { after } => {
                self.context.metrics.cancel_acknowledged(after);
                Ok(())
            }
            Arrival::Ended { prompt, index, sample } => {
                self.running -= 1;
                self.sample_ended(prompt, index, sample)
            }
            Arrival::Judged { prompt, index, verdict: Verdict::Unscored, times } if times < MAX_JUDGEMENTS => {
                self.judge(prompt, index, times + 1);
                Ok(())
            }
            Arrival::Judged { prompt, index, verdict, .. } => {
                let strategy = &self.spec.settings.strategy;
                let (outcome, reward, status) = match verdict {
                    Verdict::Scored(r) if r > strategy.positive_above => (Outcome::Positive, Some(r), RewardStatus::Scored),
                    Verdict::Scored(r) => (Outcome::Negative, Some(r), RewardStatus::Scored),
                    Verdict::Limit(_) if strategy.limit_counts == LimitCounts::Skip => (Outcome::Skipped, None, RewardStatus::Unscored),
                    Verdict::Limit(_) => (Outcome::Negative, Some(0.0), RewardStatus::Scored),
                    Verdict::Unscored | Verdict::Failed(_) => (Outcome::Failed, None, RewardStatus::Failed),
                };
                self.resolve(prompt, index, outcome, reward, status)
            }
        }
    }

    fn sample_ended(&mut self, position: usize, index: u32, sample: Option<Box<Sample>>) -> Result<(), String> {
        let id = &self.spec.prompts[position].id;
        let Some(mut sample) = sample else {
            return Err(format!("the engine stopped before it finished sample {index} of prompt {id:?}; send the job again"));
        };
        withhold_nonfinite(&mut sample);
        let Some(prompt) = self.open.get_mut(&position) else { return Ok(()) };
        let reason = sample.finish_reason;
        if reason == FinishReason::Cancelled && !prompt.was_cancelled(index) {
            return Err(format!("the engine gave up sample {index} of prompt {id:?}, which the job still needs; send the job again"));
        }
        let matters = prompt.ended(index, *sample);
        if !matters {
            return self.settle(position);
        }
        let mask_truncated = self.spec.settings.strategy.mask_truncated;
        match reason {
            FinishReason::Numerics => self.resolve(position, index, Outcome::Failed, None, RewardStatus::Failed),
            FinishReason::Length if mask_truncated => self.resolve(position, index, Outcome::Skipped, None, RewardStatus::Unscored),
            // A truncated answer gave no answer: it is negative whatever its last number is.
            FinishReason::Length => self.resolve(position, index, Outcome::Negative, Some(0.0), RewardStatus::Scored),
            FinishReason::Stop | FinishReason::Cancelled => {
                self.judge(position, index, 1);
                Ok(())
            }
        }
    }

    /// Hands an ended sample's text to its verifier.
    fn judge(&mut self, prompt: usize, index: u32, times: u32) {
        let Some(verifier) = self.spec.prompts[prompt].verifier.clone() else { return };
        let Some(text) = self.open.get(&prompt).and_then(|p| p.sample(index)).map(|ended| ended.sample.text.clone()) else { return };
        let pool = self.context.rewards.clone();
        self.arrivals.push(Box::pin(async move {
            let verdict = pool.judge(verifier, text).await;
            Arrival::Judged { prompt, index, verdict, times }
        }));
    }

    fn resolve(&mut self, position: usize, index: u32, outcome: Outcome, reward: Option<f64>, status: RewardStatus) -> Result<(), String> {
        // A verdict may come after its group has closed below it.
        let Some(prompt) = self.open.get_mut(&position) else { return Ok(()) };
        prompt.resolve(index, outcome, reward, status);
        self.settle(position)
    }

    /// Cancels what can no longer matter, and closes the group if its exit is resolved.
    fn settle(&mut self, position: usize) -> Result<(), String> {
        let Some(prompt) = self.open.get_mut(&position) else { return Ok(()) };
        for id in prompt.take_beyond() {
            self.arrivals.push(Box::pin(acknowledged(self.context.engine.cancel(id))));
        }
        let Some(exit) = prompt.exit() else { return Ok(()) };
        let Some(prompt) = self.open.remove(&position) else { return Ok(()) };
        self.context.metrics.open_prompts(-1);
        if let Some(since) = prompt.satisfied_at {
            self.context.metrics.prefix_waited(since.elapsed());
        }
        let settings = &self.spec.settings;
        let group = Group::form(&settings.strategy.plan(), exit, &prompt.seen(exit), settings.strategy.group_size, settings.advantage);
        self.deliver(position, Closed { group, exit, prompt, at: Instant::now() })
    }

    /// Delivers a closed group, at once or when its turn has come.
    fn deliver(&mut self, position: usize, closed: Closed) -> Result<(), String> {
        if self.spec.settings.order == Order::Completion {
            self.delivered += 1;
            return self.write(position, closed);
        }
        self.closed.insert(position, closed);
        while let Some(closed) = self.closed.remove(&self.delivered) {
            let position = self.delivered;
            self.delivered += 1;
            self.write(position, closed)?;
        }
        Ok(())
    }

    fn write(&mut self, position: usize, closed: Closed) -> Result<(), String> {
        let waste = closed.prompt.wasted(closed.exit);
        let Closed { group, exit, prompt, at } = &closed;
        let timing = Timing {
            tokens_discarded: waste.tokens,
            samples_cancelled: waste.cancelled,
            wait_s: at.elapsed().as_secs_f64(),
            age_s: prompt.first_submitted.map_or(0.0, |since| since.elapsed().as_secs_f64()),
            wall_clock_timeouts: 0,
        };
        let json = group_json(&self.spec.settings, &self.spec.prompts[position], group, *exit, prompt, timing)
            .map_err(|e| format!("a group could not be written: {e}"))?;
        self.count(&closed.group, waste);
        self.record.append(json, closed.group.status, closed.group.signal, &closed.group.stats, waste);
        Ok(())
    }

    fn count(&self, group: &Group, waste: Waste) {
        let metrics = &self.context.metrics;
        let stats = &group.stats;
        metrics.group_closed(group.status, stats);
        let kept = group.kept.len() as u64;
        metrics.samples(SampleOutcome::Kept, kept);
        metrics.samples(SampleOutcome::Discarded, u64::from(stats.positive + stats.negative) - kept + waste.finished);
        metrics.samples(SampleOutcome::Cancelled, waste.cancelled);
        metrics.samples(SampleOutcome::Unscored, u64::from(stats.skipped));
        metrics.samples(SampleOutcome::Failed, u64::from(stats.failed));
        metrics.tokens_discarded(waste.tokens);
    }

    /// Ends every running sample and waits until their blocks are free.
    async fn drain(&mut self) {
        let running: Vec<RequestId> = self.open.values_mut().flat_map(OpenPrompt::take_running).collect();
        self.context.metrics.samples(SampleOutcome::Cancelled, running.len() as u64);
        for id in running {
            self.arrivals.push(Box::pin(acknowledged(self.context.engine.cancel(id))));
        }
        let until = tokio::time::Instant::now() + DRAIN;
        while self.running > 0 {
            match tokio::time::timeout_at(until, self.arrivals.next()).await {
                Ok(Some(Arrival::Ended { .. })) => self.running -= 1,
                Ok(Some(Arrival::Acknowledged { after })) => self.context.metrics.cancel_acknowledged(after),
                Ok(Some(Arrival::Judged { .. })) => {}
                Ok(None) | Err(_) => return,
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

async fn ended(prompt: usize, index: u32, mut stream: SampleStream) -> Arrival {
    while let Some(event) = stream.events.recv().await {
        if let Event::Finished(sample) = event {
            return Arrival::Ended { prompt, index, sample: Some(sample) };
        }
    }
    Arrival::Ended { prompt, index, sample: None }
}

async fn acknowledged(ack: CancelAck) -> Arrival {
    let started = Instant::now();
    let _ = ack.await;
    Arrival::Acknowledged { after: started.elapsed() }
}
