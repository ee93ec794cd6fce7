//! A bounded pool for verifiers: a slow one holds up neither the server's own threads nor more than its share.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;

use super::{Verdict, Verifier};
use crate::metrics::Metrics;

/// Runs verifiers on blocking threads, at most so many at once.
#[derive(Clone, Debug)]
pub struct Pool {
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

impl Pool {
    /// A pool of `size` places (at least 1).
    pub fn new(size: usize, metrics: Arc<Metrics>) -> Self {
        Pool { places: Arc::new(Semaphore::new(size.max(1))), metrics }
    }

    /// Judges `text`. A verifier that panics makes a failure, never a zero; so does a reward that is no finite number.
    pub async fn judge(&self, verifier: Arc<Verifier>, text: String) -> Verdict {
        let Ok(_place) = self.places.acquire().await else { return Verdict::Failed("the reward pool is closed".into()) };
        let started = Instant::now();
        let kind = verifier.kind();
        let verdict = match tokio::task::spawn_blocking(move || verifier.judge(&text)).await {
            Ok(Verdict::Scored(reward)) if !reward.is_finite() => {
                Verdict::Failed(format!("the {kind} verifier gave {reward}, which is no reward"))
            }
            Ok(verdict) => verdict,
            Err(_) => Verdict::Failed(format!("the {kind} verifier stopped with an internal error")),
        };
        self.metrics.reward_judged(kind, verdict.name(), started.elapsed());
        verdict
    }
}
