//! Which weights serve, which wait to, and which jobs they wait for.
//!
//! At most one version is staged beside the live one. Every open job holds a [`Pin`]: it says which version the job was accepted for and
//! what a swap does to it. Invariants:
//! - A job is accepted for the staged version if one waits and none is named, else for the live one; for a number only if that is one of
//!   the two. A pin, a stage and a swap happen one after another, never at once.
//! - A swap happens only when no `finish` job pins the live version. So the samples of a `finish` job are of one version, its own.
//! - Jobs of the staged version run only after its swap. They hold no place before, so that the jobs they wait for get theirs.
//! - The version changes here at the moment at which the swap is in the engine's queue: what a job submits after it has seen the new
//!   version is drawn by it, and what it submitted before may hold tokens of both.
//!
//! - A swap to other tensors under the live number waits for every open job, whatever its rule: nothing that names its tokens by number could
//!   tell the two apart.
//!
//! A number can come again with other tensors after a rollback. So versions are told apart by an epoch that grows with every swap, and across
//! restarts by the digest of their tensors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// What new weights do to an open job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnWeightUpdate {
    /// They wait until the job is over.
    #[default]
    Finish,
    /// Its open groups lose their samples and start again under the new weights.
    Restart,
    /// Its samples keep their tokens and go on under the new weights.
    Continue,
}

impl OnWeightUpdate {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            OnWeightUpdate::Finish => "finish",
            OnWeightUpdate::Restart => "restart",
            OnWeightUpdate::Continue => "continue",
        }
    }
}

/// A version at its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The version.
    pub version: u64,
    /// Digest of its tensors; empty where nobody has taken one, which is then not compared.
    pub digest: Arc<str>,
    /// Its place in the order of swaps.
    pub epoch: u64,
}

impl Turn {
    /// Whether these are the tensors that `version` had when they had `digest`.
    pub fn is(&self, version: u64, digest: &str) -> bool {
        self.version == version && (digest.is_empty() || self.digest.is_empty() || *self.digest == *digest)
    }
}

/// A version that is asked for and is neither live nor staged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("version {wanted} is neither live nor staged; {}", match .staged { Some(staged) => format!("{live} is live and {staged} is staged"), None => format!("{live} is live") })]
pub struct NoSuchVersion {
    /// What was asked for.
    pub wanted: u64,
    /// What serves.
    pub live: u64,
    /// What waits.
    pub staged: Option<u64>,
}

/// The versions of one server. Clones share them.
#[derive(Clone, Debug)]
pub struct Versions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Told after every change of the state.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    live: Turn,
    staged: Option<Turn>,
    /// Versions that will be staged without a push: a restarted server has them on the disk.
    coming: Vec<(u64, Arc<str>)>,
    last_epoch: u64,
    pins: BTreeMap<u64, Pinned>,
    next_pin: u64,
}

#[derive(Debug)]
struct Pinned {
    version: u64,
    digest: Arc<str>,
    rule: OnWeightUpdate,
    /// The turn it waits for; none yet for a version that a restarted server does not have.
    epoch: Option<u64>,
}

impl State {
    /// Whether a job keeps the live version from being replaced.
    fn is_held(&self) -> bool {
        let same_number = self.staged.as_ref().is_some_and(|staged| staged.version == self.live.version);
        let under_live = |epoch: u64| epoch <= self.live.epoch;
        self.pins.values().any(|pin| match pin.rule {
            OnWeightUpdate::Finish => pin.epoch == Some(self.live.epoch),
            OnWeightUpdate::Restart | OnWeightUpdate::Continue => same_number && pin.epoch.is_some_and(under_live),
        })
    }

    /// The newer one first: nobody new is to hold what is about to go.
    fn turns(&self) -> impl Iterator<Item = &Turn> {
        self.staged.iter().chain([&self.live])
    }
}

impl Versions {
    /// `live` serves and nothing is staged.
    pub fn new(live: u64, digest: &str) -> Self {
        let live = Turn { version: live, digest: digest.into(), epoch: 0 };
        let state = State { live, staged: None, coming: Vec::new(), last_epoch: 0, pins: BTreeMap::new(), next_pin: 0 };
        Versions(Arc::new(Inner { state: Mutex::new(state), changed: watch::channel(()).0 }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What serves.
    pub fn live(&self) -> Turn {
        self.lock().live.clone()
    }

    /// What waits to serve.
    pub fn staged(&self) -> Option<u64> {
        self.lock().staged.as_ref().map(|turn| turn.version)
    }

    /// Whether open jobs keep the live version where it is.
    pub fn is_held(&self) -> bool {
        self.lock().is_held()
    }

    /// A version that an open job needs and that is not there.
    pub fn needed(&self) -> Option<u64> {
        let state = self.lock();
        let comes = |pin: &Pinned| state.coming.iter().any(|(version, digest)| *version == pin.version && *digest == pin.digest);
        state.pins.values().find(|pin| pin.epoch.is_none() && !comes(pin)).map(|pin| pin.version)
    }

    /// `version` will be staged without anyone's push.
    pub fn expect(&self, version: u64, digest: &str) {
        self.lock().coming.push((version, digest.into()));
    }

    /// A new job's hold on `wanted`, or on the newest version.
    pub fn pin(&self, wanted: Option<u64>, rule: OnWeightUpdate) -> Result<Pin, NoSuchVersion> {
        let mut state = self.lock();
        let found = state.turns().find(|turn| wanted.is_none_or(|version| turn.version == version)).cloned();
        let turn = found.ok_or_else(|| NoSuchVersion {
            wanted: wanted.unwrap_or_default(),
            live: state.live.version,
            staged: state.staged.as_ref().map(|turn| turn.version),
        })?;
        Ok(self.insert(&mut state, Pinned { version: turn.version, digest: turn.digest, rule, epoch: Some(turn.epoch) }))
    }

    /// The hold of a job that an earlier process accepted for `version`, when its tensors had `digest`. If that is not there, a `finish` job
    /// waits until it is; the others go on under what is.
    pub fn adopt(&self, version: u64, digest: &str, rule: OnWeightUpdate) -> Pin {
        let mut state = self.lock();
        let epoch = match state.turns().find(|turn| turn.is(version, digest)) {
            Some(turn) => Some(turn.epoch),
            None if rule == OnWeightUpdate::Finish => None,
            None => Some(state.live.epoch),
        };
        self.insert(&mut state, Pinned { version, digest: digest.into(), rule, epoch })
    }

    fn insert(&self, state: &mut State, pinned: Pinned) -> Pin {
        let Pinned { version, rule, .. } = pinned;
        let (id, digest) = (state.next_pin, pinned.digest.clone());
        state.next_pin += 1;
        state.pins.insert(id, pinned);
        Pin { versions: self.clone(), id, version, digest, rule }
    }

    /// `version` is packed in the engine and kept: jobs are accepted for it from now on.
    pub fn stage(&self, version: u64, digest: &str) {
        let mut state = self.lock();
        state.last_epoch += 1;
        let turn = Turn { version, digest: digest.into(), epoch: state.last_epoch };
        let waits = |pin: &&mut Pinned| pin.epoch.is_none() && turn.is(pin.version, &pin.digest);
        state.pins.values_mut().filter(waits).for_each(|pin| pin.epoch = Some(turn.epoch));
        state.coming.retain(|(version, digest)| !turn.is(*version, digest));
        state.staged = Some(turn);
        drop(state);
        self.0.changed.send_replace(());
    }

    /// Waits until no job keeps the live version, then lets `swap` put the exchange into the engine's queue and makes the staged version the
    /// live one. If `swap` fails nothing changes.
    pub async fn swap<T, E>(&self, swap: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let mut changed = self.0.changed.subscribe();
        let mut swap = Some(swap);
        loop {
            {
                let mut state = self.lock();
                if let (false, Some(staged)) = (state.is_held(), state.staged.clone())
                    && let Some(swap) = swap.take()
                {
                    let swapped = swap()?;
                    state.live = staged;
                    state.staged = None;
                    drop(state);
                    self.0.changed.send_replace(());
                    return Ok(swapped);
                }
            }
            // The sender lives in `self`.
            let _ = changed.changed().await;
        }
    }

    /// Resolves once another version than that of `epoch` is live, which may be at once.
    pub async fn changed(&self, epoch: u64) {
        self.until(|state| state.live.epoch != epoch).await;
    }

    /// Resolves when a staged version waits for open jobs, which may be at once, and `is_another` says that it is not the caller's.
    pub async fn another_waits(&self, is_another: impl Fn() -> bool) {
        self.until(|state| state.staged.is_some() && state.is_held() && is_another()).await;
    }

    async fn until(&self, met: impl Fn(&State) -> bool) {
        let mut changed = self.0.changed.subscribe();
        while !met(&self.lock()) {
            let _ = changed.changed().await;
        }
    }
}

/// A job's hold on its version; dropping it lets go.
#[derive(Debug)]
pub struct Pin {
    versions: Versions,
    id: u64,
    version: u64,
    digest: Arc<str>,
    rule: OnWeightUpdate,
}

impl Pin {
    /// Digest of that version's tensors.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The version that the job was accepted for.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What a swap does to the job.
    pub fn rule(&self) -> OnWeightUpdate {
        self.rule
    }

    /// Resolves once the job's version has had its swap.
    pub async fn ready(&self) {
        let (id, versions) = (self.id, &self.versions);
        versions.until(|state| state.pins.get(&id).and_then(|pin| pin.epoch).is_some_and(|epoch| epoch <= state.live.epoch)).await;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.versions.lock().pins.remove(&self.id);
        self.versions.0.changed.send_replace(());
    }
}
