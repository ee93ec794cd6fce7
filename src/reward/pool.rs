//! A bounded pool for verifiers: a slow one holds up neither the server's own threads nor more than its share.
//!
//! Verifiers of text run on blocking threads, at most so many at once. Webhooks never take such a place: every host has calls of its own
//! (see [`webhook`](super::webhook)).

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::compose::Composition;
use super::webhook::{Http, Lanes, Transport, Webhook};
use super::{Asked, Judge, Judged, Judgement, PoolSettings, Spec, Verdict, Verifier};
use crate::field::FieldError;
use crate::metrics::Metrics;

/// Judges samples, retries included.
#[derive(Clone)]
pub struct Pool {
    places: Arc<Semaphore>,
    lanes: Arc<Lanes>,
    settings: Arc<PoolSettings>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that asks graders over HTTP.
    pub fn new(settings: PoolSettings, metrics: Arc<Metrics>) -> Self {
        let transport = Arc::new(Http::new(settings.webhook_answer_bytes));
        Pool::with_transport(settings, metrics, transport)
    }

    /// A pool that asks graders by `transport`.
    pub fn with_transport(settings: PoolSettings, metrics: Arc<Metrics>, transport: Arc<dyn Transport>) -> Self {
        // A size of 0 would wait for ever; the configuration refuses it, and here it means 1.
        let settings = PoolSettings {
            workers: settings.workers.max(1),
            webhook_batch: settings.webhook_batch.max(1),
            webhook_concurrency: settings.webhook_concurrency.max(1),
            webhook_queue: settings.webhook_queue.max(1),
            webhook_attempts: settings.webhook_attempts.max(1),
            ..settings
        };
        Pool {
            places: Arc::new(Semaphore::new(settings.workers)),
            lanes: Arc::new(Lanes::new(transport, settings.clone())),
            settings: Arc::new(settings),
            metrics,
        }
    }

    /// Refuses a reward that this pool would never judge: a grader whose host is not on the allow-list. Paths are relative to the reward.
    pub fn check(&self, spec: &Spec) -> Result<(), FieldError> {
        spec.walk(&mut |spec| {
            let Spec::Webhook { url, .. } = spec else { return Ok(()) };
            let url = Webhook::parse_url(url).map_err(|problem| FieldError::new("url", problem))?;
            self.allow(&url).map_err(|problem| FieldError::new("url", problem))
        })
    }

    fn allow(&self, url: &reqwest::Url) -> Result<(), String> {
        if self.settings.allows(url) {
            return Ok(());
        }
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        Err(format!("asks {host}:{port}, which this server may not; add \"{host}:{port}\" to the setting [reward] webhook_hosts"))
    }

    /// Judges by whatever the verifier needs.
    fn ask(&self, verifier: Arc<Verifier>, asked: Asked) -> BoxFuture<'static, Judged> {
        let pool = self.clone();
        async move {
            match &*verifier {
                Verifier::Webhook(hook) => match pool.allow(&hook.url) {
                    Ok(()) => pool.lanes.clone().judge(hook.clone(), asked).await,
                    // Accepted under other settings, before a restart.
                    Err(problem) => Judged::at_once(Judgement::failed(format!("the reward's url {problem}"))),
                },
                Verifier::Pull { .. } => Judged::at_once(verifier.judge(&asked.text)),
                Verifier::Composition(composition) if !verifier.is_local() => pool.ask_parts(composition, asked).await,
                _ => pool.judge_text(verifier, asked).await,
            }
        }
        .boxed()
    }

    /// Judges a composition with parts that others judge. Those are asked together, once those that are judged here have not decided.
    async fn ask_parts(&self, composition: &Composition, asked: Asked) -> Judged {
        let mut known = vec![None; composition.size()];
        let mut timeouts = 0;
        for (part, verifier) in composition.parts().filter(|(_, verifier)| verifier.is_local()) {
            let judged = self.judge_text(verifier.clone(), asked.clone()).await;
            timeouts += judged.wall_clock_timeouts;
            known[part] = Some(judged.into());
        }
        let here: Vec<bool> = known.iter().map(Option::is_some).collect();
        if let Some(decided) = composition.decided(&known, |part| here[part]) {
            return Judged::after(decided, timeouts);
        }
        let others = composition.parts().filter(|(part, _)| !here[*part]);
        let mut waiting: FuturesUnordered<_> =
            others.map(|(part, verifier)| self.ask(verifier.clone(), asked.clone()).map(move |judged| (part, judged))).collect();
        while let Some((part, judged)) = waiting.next().await {
            timeouts += judged.wall_clock_timeouts;
            known[part] = Some(judged.into());
            if let Some(decided) = composition.decided(&known, |_| true) {
                return Judged::after(decided, timeouts);
            }
        }
        Judged::after(composition.whole(&known), timeouts)
    }

    /// Judges by the text and its length. A verifier that panics or does not end makes a failure, never a zero.
    async fn judge_text(&self, verifier: Arc<Verifier>, asked: Asked) -> Judged {
        let kind = verifier.kind();
        let Ok(place) = self.places.clone().acquire_owned().await else {
            return Judged::at_once(Judgement::failed("the reward pool is closed"));
        };
        // The place goes with the thread: one that does not end keeps it, so that there are never more threads than places.
        let running = tokio::task::spawn_blocking(move || {
            let _place = place;
            verifier.judge_counted(&asked.text, Some(asked.tokens))
        });
        match timeout(self.settings.local_timeout(), running).await {
            Ok(Ok(judgement)) => Judged::at_once(judgement),
            Ok(Err(_)) => Judged::at_once(Judgement::failed(format!("the {kind} verifier stopped with an internal error"))),
            Err(_) => {
                let seconds = self.settings.local_timeout_s;
                Judged::after(Judgement::failed(format!("the {kind} verifier did not end within {seconds} s")), 1)
            }
        }
    }
}

impl Judge for Pool {
    fn judge(&self, verifier: Arc<Verifier>, asked: Asked) -> BoxFuture<'static, Judged> {
        let pool = self.clone();
        async move {
            let (started, kind) = (Instant::now(), verifier.kind());
            let mut judged = pool.ask(verifier, asked).await;
            if let Verdict::Scored(reward) = judged.verdict
                && !reward.is_finite()
            {
                judged = Judged::after(
                    Judgement::failed(format!("the {kind} verifier gave {reward}, which is no reward")),
                    judged.wall_clock_timeouts,
                );
            }
            pool.metrics.reward_judged(kind, judged.verdict.name(), started.elapsed());
            judged
        }
        .boxed()
    }
}
