//! New weights while the engine runs.
//!
//! They are packed by the caller's thread, with operations of their own, into a slot that the loop shares; the loop takes them out between
//! two steps, when everything that the old weights were asked is known. So a swap costs the loop an exchange of pointers (on a device where
//! the live weights stay in their place: a copy) and no step ever sees two versions. What was computed under the old weights is dropped with
//! them: no block is found again, and sequences that run are computed again from their tokens, which stay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::local::lock;
use crate::model::places::places;
use crate::model::{ModelConfig, ModelError, TensorSource, Weights};
use crate::ops::Ops;
use crate::ops::handover::{DeviceId, Exported, ImportError};

/// Why new weights do not serve.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// This engine takes none.
    #[error("the weights of this engine cannot be changed")]
    Fixed,
    /// The tensors.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Weights in another process's memory.
    #[error(transparent)]
    Import(#[from] ImportError),
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
    fn device_id(&self) -> Option<DeviceId>;
    fn import(&self, version: u64, exported: &Exported) -> Result<(), StageError>;
    fn staged_tensor(&self, name: &str) -> Result<Vec<u8>, StageError>;
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

    fn device_id(&self) -> Option<DeviceId> {
        lock(&self.ops).handover()?.device_id()
    }

    fn import(&self, version: u64, exported: &Exported) -> Result<(), StageError> {
        let ops = lock(&self.ops);
        let device = ops.handover().ok_or_else(ImportError::no_device)?;
        drop(self.slot.take());
        let imported = device.import(&self.config, exported);
        // Before what was found wrong: of a device that has failed that means nothing.
        if let Some(why) = ops.failure() {
            return Err(StageError::Device(why));
        }
        *lock(&self.slot.0) = Some((version, imported?));
        Ok(())
    }

    fn staged_tensor(&self, name: &str) -> Result<Vec<u8>, StageError> {
        let (ops, slot) = (lock(&self.ops), lock(&self.slot.0));
        let device = ops.handover().ok_or_else(ImportError::no_device)?;
        let missing = || StageError::Model(ModelError::tensor("", name, "is not among the staged weights"));
        let (_, weights) = slot.as_ref().ok_or_else(missing)?;
        let placed = places(&self.config, weights);
        let bytes = device.read_place(&placed.iter().find(|placed| placed.name == name).ok_or_else(missing)?.place);
        ops.failure().map_or(Ok(bytes), |why| Err(StageError::Device(why)))
    }
}
