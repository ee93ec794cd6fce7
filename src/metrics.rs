//! Every Prometheus metric, defined in one place.
//!
//! One [`Metrics`] belongs to one server; nothing is global. Counters that the engine keeps itself are copied when they are scraped.
//! Names are `adaroll_*`, beside the five `vllm:` metrics that controllers and dashboards already parse.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::engine::EngineStats;
use crate::rollout::plan::{Stats, Status};
use crate::rollout::updates::Seconds;

/// What a sample came to, for `adaroll_samples_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleOutcome {
    /// In its group.
    Kept,
    /// Seen by the strategy and not kept, or finished above the exit.
    Discarded,
    /// Ended early because it could no longer matter, or because its job was cancelled.
    Cancelled,
    /// Left out by `mask_truncated` or `limit_counts`.
    Unscored,
    /// Without a reward for good.
    Failed,
}

impl SampleOutcome {
    const ALL: [(SampleOutcome, &'static str); 5] = [
        (SampleOutcome::Kept, "kept"),
        (SampleOutcome::Discarded, "discarded"),
        (SampleOutcome::Cancelled, "cancelled"),
        (SampleOutcome::Unscored, "unscored"),
        (SampleOutcome::Failed, "failed"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(outcome, _)| *outcome == self).map_or("failed", |(_, name)| name)
    }
}

/// The metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Two scrapes at once must not add the engine's progress twice.
    scrape: Mutex<()>,
    groups: IntCounterVec,
    samples: IntCounterVec,
    samples_per_group: Histogram,
    pass_rate: Histogram,
    rewards: IntCounterVec,
    reward_seconds: HistogramVec,
    cancel_ack_seconds: Histogram,
    queue_seconds: Histogram,
    prefix_wait_seconds: Histogram,
    queue_full: IntCounter,
    http_request_seconds: HistogramVec,
    requests: IntCounterVec,
    paused: IntGauge,
    tokens: IntCounterVec,
    steps: IntCounter,
    batch_tokens: IntCounter,
    preemptions: IntCounter,
    nonfinite: IntCounter,
    engine_cancelled: IntCounter,
    weights_version: IntGauge,
    weight_update_seconds: HistogramVec,
    weight_updates: IntCounterVec,
    running: IntGauge,
    waiting: IntGauge,
    kv_blocks: IntGaugeVec,
    heartbeat_seconds: Gauge,
    open_prompts: IntGauge,
    jobs: IntGaugeVec,
    store_bytes: IntGauge,
    slots: IntGaugeVec,
    vllm_running: IntGauge,
    vllm_waiting: IntGauge,
    vllm_kv_usage: Gauge,
    vllm_prefix_queries: IntCounter,
    vllm_prefix_hits: IntCounter,
}

impl Metrics {
    /// Defines every metric. Fails only if two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let r = &registry;
        let seconds = || vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0];
        let counts = || vec![1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0];
        let metrics = Metrics {
            groups: counters(r, "adaroll_groups_total", "Groups by how they ended", &["status"])?,
            samples: counters(r, "adaroll_samples_total", "Samples by what they came to", &["outcome"])?,
            samples_per_group: histogram(r, "adaroll_samples_per_group", "Samples that the strategy saw per group", counts())?,
            pass_rate: histogram(r, "adaroll_pass_rate", "S/N of closed groups", (1..=10).map(|i| f64::from(i) / 10.0).collect())?,
            rewards: counters(r, "adaroll_rewards_total", "Verdicts by reward kind", &["kind", "status"])?,
            reward_seconds: histograms(r, "adaroll_reward_seconds", "Seconds that a verdict took", &["kind"], seconds())?,
            cancel_ack_seconds: histogram(
                r,
                "adaroll_cancel_ack_seconds",
                "Seconds until a cancelled sample's blocks were free",
                seconds(),
            )?,
            queue_seconds: histogram(r, "adaroll_queue_seconds", "Seconds that a job waited before it ran", seconds())?,
            prefix_wait_seconds: histogram(
                r,
                "adaroll_prefix_wait_seconds",
                "Seconds from the first satisfied exit to the group's close: what index order costs",
                seconds(),
            )?,
            queue_full: counter(r, "adaroll_engine_queue_full_total", "Submissions that the engine's full queue put off")?,
            http_request_seconds: histograms(
                r,
                "adaroll_http_request_seconds",
                "Seconds to a response's head",
                &["route", "code"],
                seconds(),
            )?,
            requests: counters(r, "adaroll_requests_total", "HTTP requests by whose token they carried", &["key"])?,
            paused: gauge(r, "adaroll_paused", "1 while new samples are held back")?,
            tokens: counters(r, "adaroll_tokens_total", "Tokens by kind", &["kind"])?,
            steps: counter(r, "adaroll_steps_total", "Steps of the engine")?,
            batch_tokens: counter(r, "adaroll_batch_tokens_total", "Rows of all steps")?,
            preemptions: counter(r, "adaroll_preemptions_total", "Samples that lost their blocks to others")?,
            nonfinite: counter(r, "adaroll_nonfinite_total", "Samples ended by non-finite logits")?,
            engine_cancelled: counter(r, "adaroll_engine_cancelled_total", "Samples that the engine ended for its callers")?,
            weights_version: gauge(r, "adaroll_weights_version", "Version of the weights that serve")?,
            weight_update_seconds: histograms(
                r,
                "adaroll_weight_update_seconds",
                "Seconds of each step of a push of weights; pause is what the engine's loop spent on the swap",
                &["phase"],
                [1e-6, 1e-5, 1e-4].into_iter().chain(seconds()).collect(),
            )?,
            weight_updates: counters(r, "adaroll_weight_updates_total", "Pushes of weights by what they came to", &["result"])?,
            running: gauge(r, "adaroll_requests_running", "Samples in the running batch")?,
            waiting: gauge(r, "adaroll_requests_waiting", "Samples that wait for blocks, a place or another's prefill")?,
            kv_blocks: gauges(r, "adaroll_kv_blocks", "KV blocks by state; cached ones are given up on demand", &["state"])?,
            heartbeat_seconds: float_gauge(r, "adaroll_engine_heartbeat_seconds", "Seconds since the engine's loop last went round")?,
            open_prompts: gauge(r, "adaroll_open_prompts", "Prompts that are being sampled")?,
            jobs: gauges(r, "adaroll_jobs", "Jobs by state; those that are over, since the start of the process", &["state"])?,
            store_bytes: gauge(r, "adaroll_store_bytes", "Bytes of the store's file and its log, or of the store in memory")?,
            slots: gauges(r, "adaroll_sample_slots", "Places for samples in flight, over all jobs", &["state"])?,
            vllm_running: gauge(r, "vllm:num_requests_running", "As adaroll_requests_running, under the name that dashboards know")?,
            vllm_waiting: gauge(r, "vllm:num_requests_waiting", "As adaroll_requests_waiting, under the name that dashboards know")?,
            vllm_kv_usage: float_gauge(r, "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1")?,
            // vLLM names them without the suffix, and its exporter adds it.
            vllm_prefix_queries: counter(r, "vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache")?,
            vllm_prefix_hits: counter(r, "vllm:prefix_cache_hits_total", "Prompt tokens that were found in the prefix cache or shared")?,
            scrape: Mutex::new(()),
            registry,
        };
        metrics.start_at_zero();
        Ok(metrics)
    }

    /// Known labels show from the first scrape on, so that rates are right from the first event.
    fn start_at_zero(&self) {
        for status in ["resolved", "exhausted", "failed", "dropped"] {
            self.groups.with_label_values(&[status]);
        }
        for (_, name) in SampleOutcome::ALL {
            self.samples.with_label_values(&[name]);
        }
        for kind in ["prompt", "cached", "generated", "recomputed", "discarded"] {
            self.tokens.with_label_values(&[kind]);
        }
        for result in ["swapped", "unchanged", "refused", "failed"] {
            self.weight_updates.with_label_values(&[result]);
        }
        for key in ["anonymous", "data", "admin"] {
            self.requests.with_label_values(&[key]);
        }
    }

    /// A group closed.
    pub fn group_closed(&self, status: Status, stats: &Stats) {
        self.groups.with_label_values(&[status.name()]).inc();
        self.samples_per_group.observe(f64::from(stats.seen));
        if let Some(rate) = stats.pass_rate {
            self.pass_rate.observe(rate);
        }
    }

    /// `dapo` dropped a group without contrast.
    pub fn group_dropped(&self) {
        self.groups.with_label_values(&["dropped"]).inc();
    }

    /// `count` samples came to `outcome`.
    pub fn samples(&self, outcome: SampleOutcome, count: u64) {
        self.samples.with_label_values(&[outcome.name()]).inc_by(count);
    }

    /// `count` generated tokens are in no group.
    pub fn tokens_discarded(&self, count: u64) {
        self.tokens.with_label_values(&["discarded"]).inc_by(count);
    }

    /// A verifier gave a verdict.
    pub fn reward_judged(&self, kind: &str, status: &str, took: Duration) {
        self.rewards.with_label_values(&[kind, status]).inc();
        self.reward_seconds.with_label_values(&[kind]).observe(took.as_secs_f64());
    }

    /// A cancelled sample's blocks are free.
    pub fn cancel_acknowledged(&self, took: Duration) {
        self.cancel_ack_seconds.observe(took.as_secs_f64());
    }

    /// A job left the queue.
    pub fn job_started(&self, waited: Duration) {
        self.queue_seconds.observe(waited.as_secs_f64());
    }

    /// A group waited this long for lower indices after its exit was already certain.
    pub fn prefix_waited(&self, waited: Duration) {
        self.prefix_wait_seconds.observe(waited.as_secs_f64());
    }

    /// The engine's queue was full.
    pub fn queue_was_full(&self) {
        self.queue_full.inc();
    }

    /// Prompts opened (positive) or closed (negative).
    pub fn open_prompts(&self, change: i64) {
        self.open_prompts.add(change);
    }

    /// A response's head was sent. `route` is the pattern, never the path itself.
    pub fn http_request(&self, route: &str, code: u16, took: Duration) {
        self.http_request_seconds.with_label_values(&[route, &code.to_string()]).observe(took.as_secs_f64());
    }

    /// A request came with the token called `key`.
    pub fn request_from(&self, key: &str) {
        self.requests.with_label_values(&[key]).inc();
    }

    /// A push of weights is through: whether it changed nothing and what its steps took, or whether its caller was at fault.
    pub fn weights_updated(&self, outcome: Result<(bool, Seconds), bool>) {
        let result = match outcome {
            Ok((true, _)) => "unchanged",
            Ok((false, seconds)) => {
                for (phase, seconds) in seconds.steps() {
                    self.weight_update_seconds.with_label_values(&[phase]).observe(seconds);
                }
                "swapped"
            }
            Err(true) => "refused",
            Err(false) => "failed",
        };
        self.weight_updates.with_label_values(&[result]).inc();
    }

    /// New samples are held back, or no longer.
    pub fn paused(&self, paused: bool) {
        self.paused.set(i64::from(paused));
    }

    /// The text that Prometheus scrapes. `jobs` gives the number of jobs in each state.
    pub fn render(
        &self,
        engine: &EngineStats,
        jobs: &[(&str, usize)],
        (slots, held): (usize, usize),
        store_bytes: u64,
    ) -> Result<String, prometheus::Error> {
        let _one_at_a_time = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        self.copy_engine(engine);
        for (state, count) in jobs {
            self.jobs.with_label_values(&[*state]).set(*count as i64);
        }
        self.slots.with_label_values(&["held"]).set(held as i64);
        self.slots.with_label_values(&["free"]).set(slots.saturating_sub(held) as i64);
        self.store_bytes.set(i64::try_from(store_bytes).unwrap_or(i64::MAX));
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    fn copy_engine(&self, engine: &EngineStats) {
        raise(&self.tokens.with_label_values(&["prompt"]), engine.prompt_tokens_computed);
        raise(&self.tokens.with_label_values(&["cached"]), engine.prompt_tokens_cached);
        raise(&self.vllm_prefix_hits, engine.prompt_tokens_cached);
        raise(&self.vllm_prefix_queries, engine.prompt_tokens_cached.saturating_add(engine.prompt_tokens_computed));
        raise(&self.tokens.with_label_values(&["generated"]), engine.generated_tokens);
        raise(&self.tokens.with_label_values(&["recomputed"]), engine.recomputed_tokens);
        raise(&self.steps, engine.steps);
        raise(&self.batch_tokens, engine.batch_tokens);
        raise(&self.preemptions, engine.preemptions);
        raise(&self.nonfinite, engine.nonfinite);
        raise(&self.engine_cancelled, engine.cancelled);
        self.weights_version.set(i64::try_from(engine.weights_version).unwrap_or(i64::MAX));
        let used = engine.blocks_total.saturating_sub(engine.blocks_free);
        let blocks = [("used", used), ("free", engine.blocks_free.saturating_sub(engine.blocks_cached)), ("cached", engine.blocks_cached)];
        for (state, count) in blocks {
            self.kv_blocks.with_label_values(&[state]).set(count as i64);
        }
        for gauge in [&self.running, &self.vllm_running] {
            gauge.set(engine.running as i64);
        }
        for gauge in [&self.waiting, &self.vllm_waiting] {
            gauge.set(engine.waiting as i64);
        }
        self.vllm_kv_usage.set(used as f64 / engine.blocks_total.max(1) as f64);
        self.heartbeat_seconds.set(engine.heartbeat_us as f64 / 1e6);
    }
}

/// Brings a copied counter up to the engine's value.
fn raise(counter: &IntCounter, value: u64) {
    counter.inc_by(value.saturating_sub(counter.get()));
}

fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let metric = IntCounter::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
    let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let metric = IntGauge::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn float_gauge(registry: &Registry, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
    let metric = Gauge::new(name, help)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn histogram(registry: &Registry, name: &str, help: &str, buckets: Vec<f64>) -> Result<Histogram, prometheus::Error> {
    let metric = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn histograms(registry: &Registry, name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> Result<HistogramVec, prometheus::Error> {
    let metric = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}
