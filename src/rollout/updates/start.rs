//! What a starting server serves: the oldest of the versions that its open jobs pin, then the others in the order in which they were
//! committed, and in the end the one committed last.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use serde::Deserialize;

use super::{Files, Home, PushError, Seconds, Update, Updates, Version, is_of, is_version, lock};
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::model::TensorSet;
use crate::rollout::unix_now;
use crate::rollout::versions::{OnWeightUpdate, Versions};
use crate::store::{Store, StoreError, WeightsRow};

/// Why the weights cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store.
    #[error("the store cannot be read: {0}")]
    Store(#[from] StoreError),
    /// The model's own weights, or the engine.
    #[error("the weights cannot be loaded: {0}")]
    Load(#[from] PushError),
}

impl Updates {
    /// Brings the engine, which serves the model's folder as version 0, to the version that it must serve. Blocks while it reads.
    /// `model_digest`: of the model's files; versions of another model in the store are left alone.
    pub fn start(
        engine: Arc<dyn Engine>,
        folder: TensorSet,
        model_digest: &str,
        store: Store,
        home: Home,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, StartError> {
        let layout = folder.layout().clone();
        let zero = Arc::new(version(0, folder, String::new())?);
        let rows = store.weights()?;
        home.sweep(&rows.iter().map(|row| row.file.as_str()).collect::<Vec<_>>());
        let all = rows.len();
        let rows: Vec<WeightsRow> = rows.into_iter().filter(|row| is_of(row, model_digest)).collect();
        if rows.len() < all {
            tracing::warn!(versions = all - rows.len(), "the store holds weights of another model; they are left alone");
        }
        let read = |row: &WeightsRow| {
            if row.version == 0 && row.digest == zero.digest {
                return Some(zero.clone());
            }
            match load(&home, &zero, row) {
                Ok(version) => Some(Arc::new(version)),
                Err(problem) => {
                    tracing::error!(version = row.version, "committed weights cannot be loaded: {problem}");
                    None
                }
            }
        };
        // In the order in which they were committed, which is that in which they serve; what cannot be loaded has jobs that wait for it.
        let needed = needed(&store)?;
        let is_needed = |row: &WeightsRow| needed.iter().any(|(version, digest)| is_version(row, *version, digest));
        let needs_zero = needed.iter().any(|(version, digest)| *version == 0 && (digest.is_empty() || *digest == zero.digest));
        let mut queue: VecDeque<Arc<Version>> = rows.iter().rev().filter(|row| is_needed(row)).filter_map(read).collect();
        if needs_zero && queue.iter().all(|version| version.number != 0) {
            queue.push_front(zero.clone());
        }
        // Beside them the one committed last, or the last that can be loaded.
        match rows.first() {
            _ if queue.is_empty() => queue.push_back(rows.iter().find_map(read).unwrap_or_else(|| zero.clone())),
            Some(row) if is_needed(row) => {}
            newest => queue.extend(newest.and_then(read)),
        }
        let live = queue.pop_front().unwrap_or_else(|| zero.clone());
        let versions = Versions::new(live.number, &live.digest);
        if live.digest != zero.digest || live.number != 0 {
            engine.stage(live.number, &live.files()?.tensors).map_err(PushError::from)?;
            let swapping = engine.swap().map_err(PushError::from)?;
            // In a thread of its own, since this one may belong to a runtime; what is staged next must not replace this.
            let swapped = std::thread::spawn(move || swapping.blocking_recv().is_ok()).join();
            if !swapped.unwrap_or(false) {
                return Err(PushError::Failed("the engine stopped while it took its weights".into()).into());
            }
            tracing::info!(version = live.number, "weights of an earlier push serve");
        }
        // The first of the others is staged at once, so that a job may be accepted for it; the rest follow in their turn.
        if let Some(next) = queue.front() {
            engine.stage(next.number, &next.files()?.tensors).map_err(PushError::from)?;
            versions.stage(next.number, &next.digest);
        }
        queue.iter().skip(1).for_each(|version| versions.expect(version.number, &version.digest));
        Ok(Arc::new(Updates {
            engine,
            versions,
            store,
            metrics,
            home,
            layout,
            zero: zero.digest.clone(),
            live: Mutex::new(live),
            model_digest: model_digest.to_owned(),
            left: Mutex::new(queue),
            last: Mutex::new(None),
            turn: Arc::default(),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// The versions that serve and wait.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Serves, once the open jobs let it, what an earlier process had committed. Must be called within a runtime, when those jobs hold
    /// their versions, and before any push.
    pub fn go_on(self: &Arc<Self>) {
        let left = std::mem::take(&mut *lock(&self.left));
        // Taken before a push can: it would stage its own version in the place of the one that is staged.
        let (false, Ok(turn)) = (left.is_empty(), self.turn.clone().try_lock_owned()) else { return };
        let this = self.clone();
        tokio::spawn(async move {
            let _turn = turn;
            for (i, version) in left.into_iter().enumerate() {
                let (number, digest, bytes) = (version.number, version.digest.clone(), this.layout.num_bytes());
                tracing::info!(version = number, "weights of an earlier push wait for open jobs");
                let mut seconds = Seconds::default();
                let served = async {
                    if i > 0 {
                        this.pack(&version, &mut seconds).await?;
                        this.versions.stage(number, &version.digest);
                    }
                    this.serve(version, &mut seconds).await
                };
                let served = served.await;
                this.tell(number, &served.map(|()| Update { version: number, digest, bytes, unchanged: false, seconds }));
            }
        });
    }
}

fn version(number: u64, tensors: TensorSet, file: String) -> Result<Version, PushError> {
    let digests = tensors.digests()?;
    let digest = tensors.digest(&digests);
    Ok(Version { number, files: Some(Files { tensors, digests }), digest, announced: None, file, loaded_unix_s: unix_now() })
}

/// Reads a committed version and holds it against its digest.
fn load(home: &Home, zero: &Version, row: &WeightsRow) -> Result<Version, PushError> {
    let tensors = TensorSet::of_file(zero.files()?.tensors.layout(), home.open(&row.file)?, None)?;
    let version = version(row.version, tensors, row.file.clone())?;
    match version.digest == row.digest {
        true => Ok(version),
        false => Err(PushError::Bad { tensor: None, problem: format!("{} is damaged: its digest is {}", row.file, version.digest) }),
    }
}

/// The versions, with their digests, that open jobs pin among those that new weights wait for.
fn needed(store: &Store) -> Result<Vec<(u64, String)>, StoreError> {
    #[derive(Deserialize)]
    struct Rule {
        #[serde(default)]
        on_weight_update: OnWeightUpdate,
    }
    let finishes = |settings: &str| {
        let rule = serde_json::from_str::<Rule>(settings).map(|rule| rule.on_weight_update);
        rule.unwrap_or_default() == OnWeightUpdate::Finish
    };
    let open = store.open_jobs()?.into_iter().map(|job| job.accepted).filter(|accepted| finishes(&accepted.settings));
    Ok(open.map(|accepted| (accepted.weights_version, accepted.weights_digest)).collect())
}
