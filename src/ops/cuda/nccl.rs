//! NCCL: how processes with a card each bring numbers together. Only `ncclAllGather` is used: NCCL adds in an order of its own, and the order of a sum
//! decides its bits, so the sum is our kernel's.
//!
//! The library is loaded here and not through cudarc, whose types these are: cudarc looks for `libnccl.so`, which comes with the headers, and panics
//! where it is missing; what is installed to run with is `libnccl.so.2`. Statuses are read as numbers: a newer library may know more of them.
//!
//! NCCL waits without end for a rank that has died. So whoever watches the ranks calls [`Communicator::abort`], from another thread: kernels that
//! wait end, and the backend that used them has failed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::str::FromStr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::nccl::sys::{cudaStream_t, ncclComm, ncclComm_t, ncclDataType_t, ncclUniqueId};
use libloading::Library;

use super::device::{Device, Failure, Unavailable, describe};
use super::launch::Queue;

/// Names of the library.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
const SUCCESS: c_int = 0;

#[derive(Clone, Copy)]
struct Functions {
    unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t) -> c_int,
    abort: unsafe extern "C" fn(ncclComm_t) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Functions {
    /// The library's, which is loaded once.
    fn of_library() -> Result<Functions, Unavailable> {
        static FUNCTIONS: OnceLock<Result<Functions, Unavailable>> = OnceLock::new();
        FUNCTIONS.get_or_init(Functions::load).clone()
    }

    fn load() -> Result<Functions, Unavailable> {
        let mut problem = String::new();
        for name in NAMES {
            // SAFETY: NCCL's initialisers have no preconditions.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    // SAFETY: the types are those of NCCL's header, the same since 2.0.
                    let functions = unsafe { Functions::find(&library) };
                    // The functions are used as long as the process lives.
                    std::mem::forget(library);
                    return functions.map_err(|e| Unavailable(format!("NCCL ({name}) lacks a function: {e}")));
                }
                Err(e) => problem = e.to_string(),
            }
        }
        Err(Unavailable(format!(
            "NCCL is not on this machine, and several ranks need it ({problem}): install it (libnccl2, or nvidia-nccl-cu13 from PyPI) and name its \
             folder in LD_LIBRARY_PATH, or set parallel.ranks = 1, which gives the same bytes"
        )))
    }

    /// # Safety
    /// The library is NCCL.
    unsafe fn find(library: &Library) -> Result<Functions, libloading::Error> {
        // SAFETY: the caller's.
        unsafe {
            Ok(Functions {
                unique_id: *library.get(b"ncclGetUniqueId")?,
                init_rank: *library.get(b"ncclCommInitRank")?,
                all_gather: *library.get(b"ncclAllGather")?,
                abort: *library.get(b"ncclCommAbort")?,
                error_string: *library.get(b"ncclGetErrorString")?,
            })
        }
    }

    fn words(&self, status: c_int) -> String {
        // SAFETY: it takes any number and gives a constant text, or nothing.
        let text = unsafe { (self.error_string)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a text that ends with a zero byte and stays.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// Names a communicator before it is there: made by one process and told to the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(ncclUniqueId);

impl UniqueId {
    /// A new one. It says why where there is no NCCL.
    pub fn new() -> Result<UniqueId, Unavailable> {
        let functions = Functions::of_library()?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: room for an id.
        match unsafe { (functions.unique_id)(&mut id) } {
            SUCCESS => Ok(UniqueId(id)),
            status => Err(Unavailable(format!("NCCL cannot prepare a connection between ranks: {}", functions.words(status)))),
        }
    }
}

/// Its bytes as hexadecimal digits.
impl std::fmt::Display for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.internal.iter().try_for_each(|byte| write!(f, "{:02x}", *byte as u8))
    }
}

impl FromStr for UniqueId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no id of a communicator");
        let mut id = ncclUniqueId { internal: [0; 128] };
        if !text.is_ascii() || text.len() != 2 * id.internal.len() {
            return Err(wrong());
        }
        for (i, byte) in id.internal.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())? as c_char;
        }
        Ok(UniqueId(id))
    }
}

/// One rank's end of the connection between processes.
#[derive(Clone)]
pub struct Communicator(Arc<Joined>);

struct Joined {
    device: Arc<Device>,
    functions: Functions,
    ranks: usize,
    /// Null once it is given up.
    handle: AtomicPtr<ncclComm>,
    /// Of the backends that use it.
    failures: Mutex<Vec<Arc<Failure>>>,
}

impl Communicator {
    /// Joins the communicator of this id as one of its ranks. It returns when all of them have done so.
    pub fn join(device: &Arc<Device>, id: &UniqueId, ranks: usize, rank: usize) -> Result<Communicator, Unavailable> {
        let functions = Functions::of_library()?;
        let failed = |why: String| Unavailable(format!("GPU {} cannot join the other ranks: {why}", device.ordinal));
        device.context.bind_to_thread().map_err(|e| failed(describe(e)))?;
        let mut handle: ncclComm_t = std::ptr::null_mut();
        // SAFETY: the context is bound; the value owns what comes back.
        match unsafe { (functions.init_rank)(&mut handle, ranks as c_int, id.0, rank as c_int) } {
            SUCCESS => {
                let (device, handle, failures) = (device.clone(), AtomicPtr::new(handle), Mutex::default());
                Ok(Communicator(Arc::new(Joined { device, functions, ranks, handle, failures })))
            }
            status => Err(failed(format!("NCCL answers {:?}; NCCL_DEBUG=WARN says more", functions.words(status)))),
        }
    }

    /// Processes in it.
    pub fn ranks(&self) -> usize {
        self.0.ranks
    }

    /// A backend that has failed once this is given up.
    pub(super) fn tell(&self, failure: &Arc<Failure>) {
        self.0.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure.clone());
    }

    /// Gives it up, because another rank does not answer any more: what waits for it ends, and every backend that uses it has failed for this reason.
    pub fn abort(&self, why: &str) {
        for failure in self.0.failures.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            failure.set(|| why.to_owned());
        }
        self.0.leave();
    }

    /// Brings `count` f32 numbers of every rank together, in the order of the ranks, on this stream.
    ///
    /// # Safety
    /// `own` is memory of the card with so many numbers, and `all` with room for those of all ranks; both stay until the work on this stream is done.
    pub(super) unsafe fn all_gather(&self, queue: &Queue, own: u64, all: u64, count: usize) {
        if queue.failure.is_set() || count == 0 {
            return;
        }
        let handle = self.0.handle.load(Ordering::Acquire);
        if handle.is_null() {
            return queue.failure.set(|| "the connection to the other ranks has been given up".into());
        }
        queue.failure.note("its context was bound", self.0.device.context.bind_to_thread());
        let (own, all, stream) = (own as *const c_void, all as *mut c_void, queue.stream.cu_stream().cast());
        // SAFETY: the caller's; the handle is of this card, and gone only after `abort`, which NCCL allows while a call is under way.
        match unsafe { (self.0.functions.all_gather)(own, all, count, ncclDataType_t::ncclFloat32, handle, stream) } {
            SUCCESS => {}
            status => {
                queue.failure.set(|| format!("NCCL failed while gradients were brought together: {}", self.0.functions.words(status)))
            }
        }
    }
}

impl Joined {
    fn leave(&self) {
        let handle = self.handle.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !handle.is_null() && self.device.context.bind_to_thread().is_ok() {
            // SAFETY: made by `join`, and taken by this call alone.
            unsafe { (self.functions.abort)(handle) };
        }
    }
}

impl Drop for Joined {
    /// At the end of a run nothing is under way. Destroying it would wait for the other ranks, which may be gone.
    fn drop(&mut self) {
        self.leave();
    }
}
