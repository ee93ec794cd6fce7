//! What a starting server serves: the version that its open jobs pin, or else the one committed last; and what it stages.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use serde::Deserialize;

use super::{Home, PushError, Seconds, Updates, Version, lock};
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
    pub fn start(
        engine: Arc<dyn Engine>,
        folder: TensorSet,
        store: Store,
        home: Home,
        metrics: Arc<Metrics>,
    ) -> Result<Arc<Self>, StartError> {
        let layout = folder.layout().clone();
        let zero = Arc::new(version(0, folder, String::new())?);
        let rows = store.weights()?;
        home.sweep(&rows.iter().map(|row| row.file.as_str()).collect::<Vec<_>>());
        let load = |row: &WeightsRow| {
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
        let newest = || rows.iter().find_map(load).unwrap_or_else(|| zero.clone());
        let needed = needed(&store)?;
        let live = match needed {
            Some(0) if !rows.iter().any(|row| row.version == 0) => zero.clone(),
            // If it is gone the jobs that need it wait, and everything else goes on.
            Some(number) => rows.iter().find(|row| row.version == number).and_then(load).unwrap_or_else(newest),
            None => newest(),
        };
        let versions = Versions::new(live.number);
        if live.digest != zero.digest || live.number != 0 {
            engine.stage(live.number, &live.tensors).map_err(PushError::from)?;
            let swapping = engine.swap().map_err(PushError::from)?;
            // In a thread of its own, since this one may belong to a runtime; what is staged next must not replace this.
            let swapped = std::thread::spawn(move || swapping.blocking_recv().is_ok()).join();
            if !swapped.unwrap_or(false) {
                return Err(PushError::Failed("the engine stopped while it took its weights".into()).into());
            }
            tracing::info!(version = live.number, "weights of an earlier push serve");
        }
        let mut left = None;
        if let Some(row) = rows.first()
            && (row.version, &row.digest) != (live.number, &live.digest)
            && needed == Some(live.number)
            && let Some(version) = load(row)
        {
            engine.stage(version.number, &version.tensors).map_err(PushError::from)?;
            versions.stage(version.number);
            left = Some(version);
        }
        Ok(Arc::new(Updates {
            engine,
            versions,
            store,
            metrics,
            home,
            layout,
            zero: zero.digest.clone(),
            live: Mutex::new(live),
            left: Mutex::new(left),
            last: Mutex::new(None),
            turn: tokio::sync::Mutex::new(()),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// The versions that serve and wait.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Serves, once the open jobs let it, what an earlier process had committed. Must be called within a runtime, when those jobs hold
    /// their versions.
    pub fn go_on(self: &Arc<Self>) {
        let Some(version) = lock(&self.left).take() else { return };
        let this = self.clone();
        tokio::spawn(async move {
            let _turn = this.turn.lock().await;
            let number = version.number;
            tracing::info!(version = number, "weights of an earlier push wait for open jobs");
            if let Err(error) = this.serve(version, &mut Seconds::default()).await {
                tracing::error!(version = number, "committed weights do not serve: {error}");
            }
        });
    }
}

fn version(number: u64, tensors: TensorSet, file: String) -> Result<Version, PushError> {
    let digests = tensors.digests()?;
    let digest = tensors.digest(&digests);
    Ok(Version { number, tensors, digests, digest, file, loaded_unix_s: unix_now() })
}

/// Reads a committed version and holds it against its digest.
fn load(home: &Home, zero: &Version, row: &WeightsRow) -> Result<Version, PushError> {
    let tensors = TensorSet::of_file(zero.tensors.layout(), home.open(&row.file)?, None)?;
    let version = version(row.version, tensors, row.file.clone())?;
    match version.digest == row.digest {
        true => Ok(version),
        false => Err(PushError::Bad { tensor: None, problem: format!("{} is damaged: its digest is {}", row.file, version.digest) }),
    }
}

/// The version that the oldest open job pins, among those that new weights wait for: it was live when the process ended.
fn needed(store: &Store) -> Result<Option<u64>, StoreError> {
    #[derive(Deserialize)]
    struct Rule {
        #[serde(default)]
        on_weight_update: OnWeightUpdate,
    }
    let finishes = |settings: &str| {
        let rule = serde_json::from_str::<Rule>(settings).map(|rule| rule.on_weight_update);
        rule.unwrap_or_default() == OnWeightUpdate::Finish
    };
    let open = store.open_jobs()?;
    Ok(open.iter().map(|job| &job.accepted).find(|accepted| finishes(&accepted.settings)).map(|accepted| accepted.weights_version))
}
