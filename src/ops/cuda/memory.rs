//! Memory of the card, and pinned memory of the host.
//!
//! Allocating is slow and stalls the card, so memory is taken in large chunks, one arena a purpose, and cut into buffers at load. A buffer keeps
//! its chunk alive; a chunk goes back to the driver with its last buffer. Nothing is allocated inside a step but where a list outgrew its buffer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys;

use super::device::{Device, Failure, describe};

/// Buffers start on this boundary: one line of the card's L2 cache, and enough for every load.
const ALIGN: usize = 256;

/// What memory is for; it names itself in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Weights,
    KvCache,
    Activations,
    Training,
    Lists,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Purpose::Weights => "the weights",
            Purpose::KvCache => "the KV cache",
            Purpose::Activations => "the activations",
            Purpose::Training => "gradients and the optimizer",
            Purpose::Lists => "the lists of a step",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Purpose::Weights => "use a smaller model, or a card that is not shared",
            Purpose::KvCache => "give fewer --kv-blocks, or a smaller engine.kv_memory_share",
            Purpose::Training => "train adapters (lora.rank), or set model.optimizer_offload = true",
            Purpose::Activations | Purpose::Lists => "lower --max-batch-tokens or --max-sequences",
        }
    }
}

/// One allocation of the driver's.
struct Chunk {
    device: Arc<Device>,
    ptr: sys::CUdeviceptr,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // A context that is gone has freed it already.
        if self.device.context.bind_to_thread().is_ok() {
            // SAFETY: it came from malloc_sync and no buffer refers to it any more; the driver waits for work that still uses it.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// A part of the card's memory.
pub(super) struct Buffer {
    pub(super) ptr: sys::CUdeviceptr,
    pub(super) bytes: usize,
    /// Tells this buffer from every other one of this process, also from one that was at the same address.
    pub(super) serial: u64,
    chunk: Option<Arc<Chunk>>,
}

impl Buffer {
    /// No memory: what a backend that has failed works with.
    fn none() -> Buffer {
        Buffer { ptr: 0, bytes: 0, serial: 0, chunk: None }
    }

    /// Where the driver's allocation begins that holds it.
    pub(super) fn allocation(&self) -> Option<sys::CUdeviceptr> {
        self.chunk.as_ref().map(|chunk| chunk.ptr)
    }
}

/// Chunks of one purpose.
pub(super) struct Arena {
    device: Arc<Device>,
    purpose: Purpose,
    /// Size of a chunk; 0 gives every buffer one of its own.
    chunk_bytes: usize,
    open: Mutex<Option<(Arc<Chunk>, usize, usize)>>,
}

impl Arena {
    pub(super) fn new(device: Arc<Device>, purpose: Purpose, chunk_bytes: usize) -> Arena {
        Arena { device, purpose, chunk_bytes, open: Mutex::new(None) }
    }

    /// `bytes` of memory with whatever is in it.
    pub(super) fn take(&self, bytes: usize, failure: &Failure) -> Buffer {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if failure.is_set() {
            return Buffer::none();
        }
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let size = bytes.max(1).next_multiple_of(ALIGN);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((chunk, used, total)) = &mut *open
            && size <= *total - *used
        {
            let ptr = chunk.ptr + *used as u64;
            *used += size;
            return Buffer { ptr, bytes, serial, chunk: Some(chunk.clone()) };
        }
        // Without chunks a buffer is exactly as large as asked, so that tests see the first byte written beyond it.
        let total = if self.chunk_bytes == 0 { bytes.max(1) } else { size.max(self.chunk_bytes) };
        let Some(chunk) = self.chunk(total, failure) else { return Buffer::none() };
        let ptr = chunk.ptr;
        if total > size {
            *open = Some((chunk.clone(), size, total));
        }
        Buffer { ptr, bytes, serial, chunk: Some(chunk) }
    }

    fn chunk(&self, bytes: usize, failure: &Failure) -> Option<Arc<Chunk>> {
        failure.note("binding its context", self.device.context.bind_to_thread())?;
        // SAFETY: the context is bound; the chunk owns what comes back.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(ptr) => Some(Arc::new(Chunk { device: self.device.clone(), ptr })),
            Err(error) => {
                let (free, total) = self.device.memory().unwrap_or((0, 0));
                let (ordinal, name) = (self.device.ordinal, self.purpose.name());
                match error.0 {
                    sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => failure.set_full(|| {
                        let (bytes, free, total, remedy) = (gib(bytes), gib(free), gib(total), self.purpose.remedy());
                        format!("GPU {ordinal} has no room for {name}: {bytes} more are needed and {free} of {total} are free; {remedy}")
                    }),
                    _ => failure.set(|| format!("the GPU failed while memory was taken for {name}: {}", describe(error))),
                }
                None
            }
        }
    }
}

fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// Memory of the host that the card copies from and to by itself. It must not change while a copy is under way: who fills it waits for the event
/// after the last copy.
pub(super) struct Pinned {
    device: Arc<Device>,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `bytes` zeros; empty where the card has failed.
    pub(super) fn new(device: &Arc<Device>, bytes: usize, failure: &Failure) -> Pinned {
        let none = Pinned { device: device.clone(), ptr: std::ptr::null_mut(), bytes: 0 };
        if failure.is_set() || bytes == 0 || failure.note("binding its context", device.context.bind_to_thread()).is_none() {
            return none;
        }
        // SAFETY: the context is bound; the value owns what comes back, which is at least word-aligned, and writes all of it.
        let ptr = failure.note("pinned memory of the host was taken", unsafe { result::malloc_host(bytes, 0) });
        let Some(ptr) = ptr else { return none };
        // SAFETY: the driver gave `bytes` bytes.
        unsafe { std::ptr::write_bytes(ptr.cast::<u8>(), 0, bytes) };
        Pinned { device: device.clone(), ptr: ptr.cast(), bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: owned and initialised memory.
        unsafe { std::slice::from_raw_parts(self.ptr, self.bytes) }
    }

    /// The bytes.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: owned and initialised memory; &mut self makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.bytes > 0 && self.device.context.bind_to_thread().is_ok() {
            // SAFETY: it came from malloc_host. Freeing waits for copies that are under way.
            let _ = unsafe { result::free_host(self.ptr.cast()) };
        }
    }
}
