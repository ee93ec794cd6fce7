//! A scripted engine: the sample is a pure function of (prompt, key, index), its delay of another seed, so that tests can shuffle when
//! things happen and nothing else.
//!
//! The prompt writes the script: token 0 is the pass rate in percent, token 1 (if any) the share of truncated samples, token 2 the share
//! that ends in `numerics`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adaroll::engine::api::FieldError;
use adaroll::engine::{
    CancelAck, Engine, EngineInfo, EngineStats, Event, FinishReason, RequestId, Sample, SampleRequest, SampleStream, ScoreRequest, Scores,
    StopMatch, StreamKey, SubmitError, VersionSpan,
};
use adaroll::rollout::TextModel;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// SplitMix64: a good mixer of a few words.
pub fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0x9E37_79B9_7F4A_7C15, |state, word| {
        let mut z = (state ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// A number in [0, 1).
pub fn unit(words: &[u64]) -> f64 {
    (mix(words) >> 11) as f64 / (1u64 << 53) as f64
}

/// What a sample is, without any engine: the reference that rollouts are compared with.
pub fn scripted(prompt: &[u32], key: StreamKey, index: u32) -> Sample {
    let key = u64::from(key.0[0]) << 32 | u64::from(key.0[1]);
    let share = |position: usize| f64::from(prompt.get(position).copied().unwrap_or(0)) / 100.0;
    let draw = |what: u64| unit(&[key, u64::from(index), what]);
    let right = draw(1) < share(0);
    let finish_reason = match () {
        () if draw(3) < share(2) => FinishReason::Numerics,
        () if draw(2) < share(1) => FinishReason::Length,
        () => FinishReason::Stop,
    };
    let length = 2 + (draw(4) * 10.0) as usize + if right { 0 } else { 6 };
    let logprob = |position: usize| -(draw(100 + position as u64) as f32) * 3.0 - 0.001;
    Sample {
        index,
        token_ids: (0..length).map(|p| (mix(&[key, u64::from(index), p as u64]) % 250) as u32).collect(),
        logprobs: (0..length).map(logprob).collect(),
        logprobs_raw: (0..length).map(|p| logprob(p) * 1.5).collect(),
        text: if right { "I think that 70 + 2 is\n#### 72".into() } else { format!("Perhaps {}?\n#### {}", index + 1, 100 + index) },
        finish_reason,
        stop_match: (finish_reason == FinishReason::Stop).then_some(StopMatch::Token(2)),
        weight_versions: vec![VersionSpan { version: 3, start: 0, end: length as u32 }],
    }
}

/// How the fake engine behaves in time.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Seed of the delays.
    pub seed: u64,
    /// Longest delay of a sample.
    pub delay: Duration,
    /// Samples that run at once.
    pub slots: usize,
    /// Samples that may be queued or running.
    pub queue: usize,
    /// Samples are so many times as long as scripted.
    pub longer: usize,
}

impl Default for Manner {
    fn default() -> Self {
        Manner { seed: 0, delay: Duration::from_millis(4), slots: 1000, queue: 100_000, longer: 1 }
    }
}

/// Counts that tests look at.
#[derive(Debug, Default)]
pub struct Seen {
    pub submitted: AtomicUsize,
    pub in_flight: AtomicUsize,
    pub cancelled: AtomicUsize,
    pub queue_full: AtomicUsize,
    pub most_in_flight: AtomicUsize,
    /// Set by a test: nothing more is taken, and what runs is dropped without an end.
    pub stopped: AtomicBool,
}

pub struct FakeEngine {
    info: EngineInfo,
    manner: Manner,
    next: AtomicU64,
    slots: Arc<Semaphore>,
    running: Arc<Mutex<HashMap<RequestId, oneshot::Sender<oneshot::Sender<bool>>>>>,
    pub seen: Arc<Seen>,
}

impl FakeEngine {
    pub fn new(manner: Manner) -> Arc<Self> {
        let info = EngineInfo {
            vocab_size: 256,
            context_length: 1024,
            kv_tokens: 1 << 20,
            numerics_id: "fake".into(),
            device: "none".into(),
            why_not_cuda: None,
            stop_token_ids: vec![2],
            has_tokenizer: true,
        };
        let slots = Arc::new(Semaphore::new(manner.slots));
        Arc::new(FakeEngine { info, manner, next: AtomicU64::new(0), slots, running: Arc::default(), seen: Arc::default() })
    }
}

impl Engine for FakeEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn submit(&self, request: SampleRequest) -> Result<SampleStream, SubmitError> {
        if self.seen.stopped.load(Ordering::SeqCst) {
            return Err(SubmitError::Stopped("the test stopped it".into()));
        }
        let enter = |n: usize| (n < self.manner.queue).then_some(n + 1);
        let Ok(before) = self.seen.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter) else {
            self.seen.queue_full.fetch_add(1, Ordering::SeqCst);
            return Err(SubmitError::QueueFull(self.manner.queue));
        };
        self.seen.most_in_flight.fetch_max(before + 1, Ordering::SeqCst);
        let id = RequestId(self.next.fetch_add(1, Ordering::SeqCst));
        let (events, stream) = mpsc::unbounded_channel();
        let (cancel, cancelled) = oneshot::channel::<oneshot::Sender<bool>>();
        self.running.lock().unwrap().insert(id, cancel);
        self.seen.submitted.fetch_add(1, Ordering::SeqCst);
        let key = u64::from(request.key.0[0]) << 32 | u64::from(request.key.0[1]);
        let delay = self.manner.delay.mul_f64(unit(&[self.manner.seed, key, u64::from(request.index)]));
        let longer = self.manner.longer;
        let (slots, running, seen) = (self.slots.clone(), self.running.clone(), self.seen.clone());
        tokio::spawn(async move {
            let run = async {
                let _slot = slots.acquire().await;
                tokio::time::sleep(delay).await;
            };
            let mut sample = scripted(&request.prompt, request.key, request.index);
            sample.token_ids = sample.token_ids.repeat(longer);
            sample.logprobs = sample.logprobs.repeat(longer);
            sample.logprobs_raw = sample.logprobs_raw.repeat(longer);
            sample.weight_versions[0].end = sample.token_ids.len() as u32;
            let ack = tokio::select! {
                () = run => None,
                Ok(ack) = cancelled => Some(ack),
            };
            running.lock().unwrap().remove(&id);
            if ack.is_some() {
                sample.finish_reason = FinishReason::Cancelled;
                seen.cancelled.fetch_add(1, Ordering::SeqCst);
            }
            seen.in_flight.fetch_sub(1, Ordering::SeqCst);
            if !seen.stopped.load(Ordering::SeqCst) {
                let _ = events.send(Event::Finished(Box::new(sample)));
            }
            if let Some(ack) = ack {
                let _ = ack.send(true);
            }
        });
        Ok(SampleStream { id, events: stream })
    }

    fn cancel(&self, id: RequestId) -> CancelAck {
        let (ack, answer) = oneshot::channel();
        match self.running.lock().unwrap().remove(&id) {
            Some(cancel) => {
                if let Err(ack) = cancel.send(ack) {
                    let _ = ack.send(false);
                }
            }
            None => {
                let _ = ack.send(false);
            }
        }
        answer
    }

    fn score(&self, request: ScoreRequest) -> Result<oneshot::Receiver<Result<Scores, SubmitError>>, SubmitError> {
        if request.from == 0 {
            return Err(FieldError::new("from", "is 0").into());
        }
        let (send, receive) = oneshot::channel();
        let values: Vec<f32> = request.token_ids[request.from..].iter().map(|id| -(*id as f32) / 7.0).collect();
        let logprobs = values.iter().map(|v| v / request.temperature.max(0.1)).collect();
        let _ = send.send(Ok(Scores { logprobs, logprobs_raw: values, weights_version: 3 }));
        Ok(receive)
    }

    fn stats(&self) -> EngineStats {
        let in_flight = self.seen.in_flight.load(Ordering::SeqCst);
        let running = in_flight.min(self.manner.slots);
        EngineStats {
            weights_version: 3,
            running,
            waiting: in_flight - running,
            blocks_total: 100,
            blocks_free: 60,
            blocks_cached: 10,
            steps: 5,
            generated_tokens: 1234,
            heartbeat_us: 10,
            stopped: None,
            ..EngineStats::default()
        }
    }
}

/// Bytes as token ids.
pub struct FakeText;

impl TextModel for FakeText {
    fn encode_text(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn encode_messages(&self, messages: &[Value]) -> Result<Vec<u32>, String> {
        let content = |m: &Value| m["content"].as_str().map(str::to_owned).ok_or_else(|| "holds a message without content".to_owned());
        let parts: Result<Vec<String>, String> = messages.iter().map(content).collect();
        self.encode_text(&parts?.join("\n"))
    }

    fn has_tokenizer(&self) -> bool {
        true
    }
}
