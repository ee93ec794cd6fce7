//! New weights while the engine runs.
//!
//! They are packed by the caller's thread, with operations of their own, into a slot that the loop shares; the loop takes them out between
//! two steps, when everything that the old weights were asked is known. So a swap costs the loop an exchange of pointers (on a device where
//! the live weights stay in their place: a copy) and no step ever sees two versions. What was computed under the old weights is dropped with
//! them: no block is found again, and sequences that run are computed again from their tokens, which stay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::local::lock;
use crate::model::{ModelConfig, ModelError, TensorSource, Weights};
use crate::ops::Ops;

/// Why new weights do not serve.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// This engine takes none.
    #[error("the weights of this engine cannot be changed")]
    Fixed,
    /// The tensors.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device has no place for them, or has failed.
    #[error("the new weights do not fit beside the old ones, which go on serving: {0}")]
    Device(String),
    /// The engine has stopped.
    #[error("{0}")]
    Stopped(String),
}

/// What a swap did.
pub struct Swapped {
    /// The version that serves now.
    pub version: u64,
    /// Time that the loop spent on it.
    pub pause: Duration,
    /// Tokens whose keys and values must be computed again.
    pub lost_tokens: usize,
    /// The old weights, to be dropped where it holds nobody up.
    pub retired: Box<dyn Send>,
}

/// Weights that are packed and wait for the loop.
pub(super) struct Slot<O: Ops>(Mutex<Option<(u64, Weights<O>)>>);

impl<O: Ops> Default for Slot<O> {
    fn default() -> Self {
        Slot(Mutex::new(None))
    }
}

impl<O: Ops> Slot<O> {
    pub(super) fn take(&self) -> Option<(u64, Weights<O>)> {
        lock(&self.0).take()
    }
}

/// Packs weights for a loop whose operations the handle does not know.
pub(super) trait Stage: Send + Sync {
    fn stage(&self, version: u64, source: &dyn TensorSource) -> Result<(), StageError>;
}

pub(super) struct Packer<O: Ops> {
    ops: Mutex<O>,
    config: ModelConfig,
    slot: Arc<Slot<O>>,
}

impl<O: Ops> Packer<O> {
    pub(super) fn new(ops: O, config: ModelConfig, slot: Arc<Slot<O>>) -> Self {
        Packer { ops: Mutex::new(ops), config, slot }
    }
}

impl<O: Ops> Stage for Packer<O> {
    fn stage(&self, version: u64, source: &dyn TensorSource) -> Result<(), StageError> {
        let ops = lock(&self.ops);
        // Before the new ones are packed: three versions at once would not fit where two do.
        drop(self.slot.take());
        let packed = Weights::load(&*ops, &self.config, source, |_, _| {});
        // Asked also where a tensor was bad: what went wrong now is not to be held against the weights that come next.
        let failure = ops.failure();
        let weights = packed?;
        if let Some(why) = failure {
            return Err(StageError::Device(why));
        }
        *lock(&self.slot.0) = Some((version, weights));
        Ok(())
    }
}
