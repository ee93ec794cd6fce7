//! A lane per host: its queue, its calls, its retries. Nothing is shared between lanes, so that one that stands still stops no other.
//!
//! In a lane, samples for the same URL and deadline share calls. There are always enough senders on their way to take every waiting
//! sample (`waiting <= senders x batch`); a sender lingers, waits for a place among the host's calls, and only then takes its samples, so
//! that calls grow fuller when the host is slow. Between two attempts a sender holds no place.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use reqwest::Url;
use serde_json::Value;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::protocol::{self, Came};
use super::{Transport, Unanswered, Webhook};
use crate::reward::{Asked, Judged, Judgement, PoolSettings};

/// All hosts.
pub(in crate::reward) struct Lanes {
    transport: Arc<dyn Transport>,
    settings: PoolSettings,
    lanes: Mutex<HashMap<String, Arc<Lane>>>,
}

struct Lane {
    /// Bounds the samples between the queue and their verdict.
    places: Arc<Semaphore>,
    /// Bounds the calls at once.
    calls: Semaphore,
    queues: Mutex<HashMap<Address, Queue>>,
}

/// What samples must have in common to share a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Address {
    url: Url,
    timeout: Duration,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Senders that have not taken their samples yet.
    senders: usize,
    /// A whole call's worth waits: no use in lingering.
    full: Arc<Notify>,
}

struct Waiting {
    asked: Asked,
    data: Arc<Value>,
    verdict: oneshot::Sender<Judged>,
    timeouts: u32,
    _place: OwnedSemaphorePermit,
}

impl Lanes {
    pub(in crate::reward) fn new(transport: Arc<dyn Transport>, settings: PoolSettings) -> Self {
        Lanes { transport, settings, lanes: Mutex::default() }
    }

    /// Has one sample judged. Dropping the future gives it up; a call that nobody waits for any more is broken off.
    pub(in crate::reward) async fn judge(self: Arc<Self>, hook: Webhook, asked: Asked) -> Judged {
        let lane = self.lane(hook.host());
        let closed = || Judged::at_once(Judgement::failed("the webhook verifier stopped with an internal error"));
        let Ok(place) = lane.places.clone().acquire_owned().await else { return closed() };
        let (verdict, heard) = oneshot::channel();
        let address = Address { url: hook.url, timeout: hook.timeout };
        let waiting = Waiting { asked, data: hook.data, verdict, timeouts: 0, _place: place };
        if let Some(full) = lane.push(&address, waiting, self.settings.webhook_batch) {
            tokio::spawn(self.send(lane, address, full));
        }
        heard.await.unwrap_or_else(|_| closed())
    }

    fn lane(&self, host: String) -> Arc<Lane> {
        let new = || {
            let places = Arc::new(Semaphore::new(self.settings.webhook_queue));
            Arc::new(Lane { places, calls: Semaphore::new(self.settings.webhook_concurrency), queues: Mutex::default() })
        };
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).entry(host).or_insert_with(new).clone()
    }

    /// Sends one call's worth of samples, as often as it takes.
    async fn send(self: Arc<Self>, lane: Arc<Lane>, address: Address, full: Arc<Notify>) {
        let settings = &self.settings;
        tokio::select! {
            () = sleep(Duration::from_millis(settings.webhook_linger_ms)) => {}
            () = full.notified() => {}
        }
        let mut taken: Option<Vec<Waiting>> = None;
        for attempt in 1..=settings.webhook_attempts {
            let Ok(place) = lane.calls.acquire().await else { return };
            let mut samples = taken.take().unwrap_or_else(|| lane.take(&address, settings.webhook_batch));
            samples.retain(|sample| !sample.verdict.is_closed());
            if samples.is_empty() {
                return;
            }
            let Some(came) = self.call(&address, &mut samples).await else { return };
            drop(place);
            let mut wait = None;
            let mut failing = Vec::new();
            for (sample, came) in samples.into_iter().zip(came) {
                match came {
                    Came::Judged(judgement) => sample.close(judgement),
                    Came::Never(why) => sample.close(Judgement::failed(format!("the grader {} {why}", shown(&address.url)))),
                    Came::Again { why, .. } if attempt == settings.webhook_attempts => {
                        let calls = if attempt == 1 { "1 call".to_owned() } else { format!("{attempt} calls") };
                        let grader = shown(&address.url);
                        sample.close(Judgement::failed(format!("no reward after {calls}; at last the grader {grader} {why}")));
                    }
                    Came::Again { wait: asked, .. } => {
                        wait = wait.max(asked);
                        failing.push(sample);
                    }
                }
            }
            if failing.is_empty() {
                return;
            }
            taken = Some(failing);
            sleep(settings.wait_after(attempt, wait)).await;
        }
    }

    /// One call; nothing if everybody who waited for it is gone.
    async fn call(&self, address: &Address, samples: &mut [Waiting]) -> Option<Vec<Came>> {
        let ids = protocol::ids(samples.iter().map(|sample| &sample.asked));
        let body = match protocol::body(address.timeout, &ids, samples.iter().map(|sample| (&sample.asked, &*sample.data))) {
            Ok(body) => body,
            Err(why) => return Some(vec![Came::Never(why); ids.len()]),
        };
        let answer = tokio::select! {
            answer = timeout(address.timeout, self.transport.post(address.url.clone(), body)) => answer,
            _ = join_all(samples.iter_mut().map(|sample| sample.verdict.closed())) => return None,
        };
        let answer = answer.unwrap_or_else(|_| {
            samples.iter_mut().for_each(|sample| sample.timeouts += 1);
            Err(Unanswered(format!("did not answer within {} s", address.timeout.as_secs_f64())))
        });
        Some(protocol::read(answer, &ids))
    }
}

impl Lane {
    /// Queues a sample. If one more sender is needed to take it, gives what wakes that sender early.
    fn push(&self, address: &Address, sample: Waiting, batch: usize) -> Option<Arc<Notify>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(address.clone()).or_default();
        queue.waiting.push_back(sample);
        if queue.waiting.len().is_multiple_of(batch) {
            queue.full.notify_one();
        }
        let needed = queue.waiting.len() > queue.senders * batch;
        needed.then(|| {
            queue.senders += 1;
            queue.full.clone()
        })
    }

    /// Takes one call's worth of samples, first come first served.
    fn take(&self, address: &Address, batch: usize) -> Vec<Waiting> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = queues.get_mut(address) else { return Vec::new() };
        queue.senders = queue.senders.saturating_sub(1);
        let count = queue.waiting.len().min(batch);
        let taken = queue.waiting.drain(..count).collect();
        if queue.waiting.is_empty() && queue.senders == 0 {
            queues.remove(address);
        }
        taken
    }
}

impl Waiting {
    fn close(self, judgement: Judgement) {
        // Nobody listens if the job has given the sample up.
        let _ = self.verdict.send(Judged::after(judgement, self.timeouts));
    }
}

impl PoolSettings {
    /// The wait after the `attempt`-th call: twice as long each time, or as long as the grader asked for. Not random: one sender speaks
    /// for a whole call's worth of samples, and a host's calls are few.
    fn wait_after(&self, attempt: u32, asked: Option<Duration>) -> Duration {
        let doubled = self.webhook_backoff_ms.saturating_mul(1 << (attempt - 1).min(20));
        Duration::from_millis(doubled).max(asked.unwrap_or_default()).min(Duration::from_millis(self.webhook_backoff_most_ms))
    }
}

/// A grader's address as messages show it: a query may hold what is nobody else's business.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.to_string()
}
