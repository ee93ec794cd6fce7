//! The card: finding it, and what every part of the backend needs of it. No driver, no card, an old card: ordinary answers, one sentence each.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, DriverError};

/// Why a card is not used: a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub(super) String);

impl Unavailable {
    /// For this reason.
    pub fn because(reason: impl Into<String>) -> Unavailable {
        Unavailable(reason.into())
    }
}

/// Oldest architecture with the instructions that the kernels need (`mma.sync` on bf16, `cp.async`).
const OLDEST: (i32, i32) = (8, 0);

/// A card and its context.
#[derive(Debug)]
pub struct Device {
    pub(super) context: Arc<CudaContext>,
    /// Which of the machine's cards.
    pub ordinal: usize,
    /// As the driver names it.
    pub name: String,
    /// Compute capability, (9, 0) for an H100.
    pub arch: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most shared memory that a block may ask for.
    pub shared_bytes: u32,
}

impl Device {
    /// Opens a card of this machine.
    pub fn open(ordinal: usize) -> Result<Arc<Device>, Unavailable> {
        // SAFETY: it loads the driver's library if there is one, which every CUDA program does. Asked first, because everything else panics
        // where there is none.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unavailable("there is no CUDA driver on this machine (libcuda.so.1 is not found)".into()));
        }
        let count = CudaContext::device_count().map_err(|e| Unavailable(format!("the CUDA driver cannot be used: {}", describe(e))))?;
        if count == 0 {
            return Err(Unavailable("the CUDA driver finds no GPU on this machine".into()));
        }
        if ordinal >= count as usize {
            return Err(Unavailable(format!("there is no GPU {ordinal}: this machine has {count}, numbered from 0")));
        }
        let failed = |e: DriverError| Unavailable(format!("GPU {ordinal} cannot be used: {}", describe(e)));
        let context = CudaContext::new(ordinal).map_err(failed)?;
        // SAFETY: the backend orders its own work: one stream, and events where another waits.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(failed)?;
        let arch = context.compute_capability().map_err(failed)?;
        if arch < OLDEST {
            let (major, minor) = arch;
            let (oldest, _) = OLDEST;
            return Err(Unavailable(format!(
                "GPU {ordinal} ({name}) has compute capability {major}.{minor}; {oldest}.0 or newer is needed, which is Ampere"
            )));
        }
        let attribute = |a| context.attribute(a).map(|v| v as u32).map_err(failed);
        Ok(Arc::new(Device {
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            context,
            ordinal,
            name,
            arch,
        }))
    }

    /// Free and total bytes of the card's memory.
    pub fn memory(&self) -> Result<(usize, usize), DriverError> {
        self.context.mem_get_info()
    }
}

/// An error of the driver in words: its name and its own explanation.
pub(super) fn describe(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| found.ok().map(|s| s.to_string_lossy().into_owned());
    let name = text(error.error_name()).unwrap_or_else(|| format!("error {}", error.0 as u32));
    match text(error.error_string()) {
        Some(words) => format!("{words} ({name})"),
        None => name,
    }
}

/// The first failure of a backend: the calls after it do nothing. Memory that did not suffice leaves the card as it was, and is forgotten once it
/// has been told; a card that failed otherwise gives no more results.
#[derive(Debug, Default)]
pub(super) struct Failure(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failed: bool,
    passing: bool,
    untold: Option<String>,
}

impl Failure {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something failed.
    pub(super) fn is_set(&self) -> bool {
        self.state().failed
    }

    /// Remembers a failure, if it is the first.
    pub(super) fn set(&self, sentence: impl FnOnce() -> String) {
        let mut state = self.state();
        if !state.failed {
            *state = State { failed: true, passing: false, untold: Some(sentence()) };
        }
    }

    /// Remembers that there was no memory.
    pub(super) fn set_full(&self, sentence: impl FnOnce() -> String) {
        let mut state = self.state();
        if !state.failed {
            *state = State { failed: true, passing: true, untold: Some(sentence()) };
        }
    }

    /// Remembers a driver's error.
    pub(super) fn note<T>(&self, what: &str, result: Result<T, DriverError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.set(|| format!("the GPU failed while {what}: {}", describe(error)));
                None
            }
        }
    }

    /// The failure, once.
    pub(super) fn take(&self) -> Option<String> {
        let mut state = self.state();
        let told = state.untold.take();
        if told.is_some() && state.passing {
            *state = State::default();
        }
        told
    }
}
