//! Kernels loaded on a card, and their launches on a backend's stream.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};

use super::device::{Device, Failure, Unavailable, describe};

/// The kernels of one binary on one card.
pub(super) struct Kernels {
    device: Arc<Device>,
    modules: Vec<sys::CUmodule>,
    entries: HashMap<&'static str, Loaded>,
}

#[derive(Clone, Copy)]
struct Loaded {
    function: sys::CUfunction,
    /// Dynamic shared bytes of a block.
    shared: u32,
}

// SAFETY: handles of the driver, which may be used from any thread; they live as long as the modules, which this value owns.
unsafe impl Send for Kernels {}
// SAFETY: as above; nothing here changes after loading.
unsafe impl Sync for Kernels {}

/// Shared memory that a block may have without asking.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

impl Kernels {
    /// Loads one image a family and finds every entry. `entries` are (family, kernel, dynamic shared bytes); an entry that needs more shared
    /// memory than the card has is left out, and whoever asks for it is told.
    pub(super) fn load<'a>(
        device: &Arc<Device>,
        images: impl Iterator<Item = (&'a str, &'a [u8])>,
        entries: &[(&'static str, &'static str, u32)],
    ) -> Result<Kernels, Unavailable> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |e| Unavailable(format!("GPU {} does not take {what}: {}", device.ordinal, describe(e)))
        };
        device.context.bind_to_thread().map_err(failed("its context"))?;
        let mut kernels = Kernels { device: device.clone(), modules: Vec::new(), entries: HashMap::new() };
        for (family, image) in images {
            // The driver reads texts up to a zero byte.
            let image: Vec<u8> = image.iter().copied().chain([0]).collect();
            // SAFETY: the image is whole, and is not used after the call.
            let module =
                unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(failed(&format!("the kernels of {family}")))?;
            kernels.modules.push(module);
            for &(_, name, shared) in entries.iter().filter(|(of, _, shared)| *of == family && *shared <= device.shared_bytes) {
                let missing = failed(&format!("kernel {name}"));
                let name_z = CString::new(name).map_err(|_| Unavailable(format!("{name} is no name of a kernel")))?;
                // SAFETY: the module is loaded and stays so.
                let function = unsafe { result::module::get_function(module, name_z) }.map_err(&missing)?;
                if shared > SHARED_WITHOUT_ASKING {
                    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                    // SAFETY: the function is of a loaded module.
                    unsafe { result::function::set_function_attribute(function, attribute, shared as i32) }.map_err(&missing)?;
                }
                kernels.entries.insert(name, Loaded { function, shared });
            }
        }
        match entries.iter().find(|(_, name, shared)| *shared <= device.shared_bytes && !kernels.entries.contains_key(name)) {
            Some((family, name, _)) => Err(Unavailable(format!("kernel {name} of {family} is in none of the images"))),
            None => Ok(kernels),
        }
    }

    /// Whether this card can run a kernel.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.device.context.bind_to_thread().is_ok() {
            for module in self.modules.drain(..) {
                // SAFETY: loaded by `load`, and no launch of its functions is possible after this value.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}

/// An argument of a kernel, in the bits that the kernel reads: 4 or 8 bytes.
#[derive(Clone, Copy)]
pub(super) struct Arg(u64);

impl From<u64> for Arg {
    fn from(v: u64) -> Arg {
        Arg(v)
    }
}

impl From<u32> for Arg {
    fn from(v: u32) -> Arg {
        Arg(v.into())
    }
}

impl From<usize> for Arg {
    /// A size: kernels take them as u32.
    fn from(v: usize) -> Arg {
        debug_assert!(v <= u32::MAX as usize);
        Arg(v as u32 as u64)
    }
}

impl From<f32> for Arg {
    fn from(v: f32) -> Arg {
        Arg(v.to_bits().into())
    }
}

/// Most arguments of a kernel.
const MOST_ARGS: usize = 16;

/// A backend's stream.
pub(super) struct Queue {
    pub(super) stream: Arc<CudaStream>,
    pub(super) kernels: Arc<Kernels>,
    pub(super) failure: Arc<Failure>,
}

impl Queue {
    /// Whether the card has not failed. Its context belongs to the calling thread from now on: a backend may be moved from thread to thread.
    fn is_well(&self) -> bool {
        !self.failure.is_set() && self.failure.note("its context was bound", self.stream.context().bind_to_thread()).is_some()
    }

    /// Starts a kernel. Nothing happens where the card has failed, or the grid is empty.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order; pointers are to memory of the card that is large enough for what the kernel does there
    /// and that stays until the work on this stream is done.
    pub(super) unsafe fn launch<const N: usize>(
        &self,
        kernel: &'static str,
        grid: (usize, usize, usize),
        threads: u32,
        mut args: [Arg; N],
    ) {
        const { assert!(N <= MOST_ARGS) };
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 || !self.is_well() {
            return;
        }
        let Some(&Loaded { function, shared }) = self.kernels.entries.get(kernel) else {
            self.failure.set(|| format!("this GPU cannot run the kernel {kernel}: it has too little shared memory"));
            return;
        };
        let grid = (grid.0 as u32, grid.1 as u32, grid.2 as u32);
        // On a little-endian machine the first four bytes of the slot are the value of a 4-byte argument.
        const { assert!(cfg!(target_endian = "little")) };
        let mut pointers = args.each_mut().map(|arg| (&raw mut arg.0).cast());
        // SAFETY: the caller's; the driver copies the arguments before it returns.
        let launched = unsafe { result::launch_kernel(function, grid, (threads, 1, 1), shared, self.stream.cu_stream(), &mut pointers) };
        self.failure.note(kernel, launched);
    }

    /// Copies from pinned memory to the card in stream order; the memory must stay as it is until then.
    ///
    /// # Safety
    /// `from` stays and does not change until an event recorded after this call has come; `to` is memory of the card.
    pub(super) unsafe fn upload(&self, to: u64, from: &[u8]) {
        if !from.is_empty() && self.is_well() {
            // SAFETY: the caller's.
            self.failure.note("a list was copied to it", unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) });
        }
    }

    /// Copies any memory of the host to the card and waits.
    ///
    /// # Safety
    /// `to` is memory of the card with room for it.
    pub(super) unsafe fn upload_now(&self, to: u64, from: &[u8]) {
        // SAFETY: the slice outlives the wait.
        unsafe { self.upload(to, from) };
        self.wait();
    }

    /// Copies from the card and waits.
    ///
    /// # Safety
    /// `from` is memory of the card of at least this size.
    pub(super) unsafe fn download_now(&self, to: &mut [u8], from: u64) {
        // SAFETY: the slice outlives the wait.
        unsafe { self.download(to, from) };
        self.wait();
    }

    /// Copies from the card in stream order.
    ///
    /// # Safety
    /// `to` stays, and is not touched until an event recorded after this call has come; `from` is memory of the card.
    pub(super) unsafe fn download(&self, to: &mut [u8], from: u64) {
        if !to.is_empty() && self.is_well() {
            // SAFETY: the caller's.
            self.failure.note("results were copied from it", unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) });
        }
    }

    /// Sets memory to zero in stream order.
    ///
    /// # Safety
    /// It is memory of the card of at least this size, and stays until then.
    pub(super) unsafe fn clear(&self, at: u64, bytes: usize) {
        if bytes > 0 && self.is_well() {
            // SAFETY: the caller's.
            self.failure.note("memory was cleared", unsafe { result::memset_d8_async(at, 0, bytes, self.stream.cu_stream()) });
        }
    }

    /// Copies within the card in stream order.
    ///
    /// # Safety
    /// Both are memory of the card of at least this size, and stay until then.
    pub(super) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) {
        if bytes > 0 && self.is_well() {
            // SAFETY: the caller's.
            self.failure.note("memory was copied", unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) });
        }
    }

    /// Waits for everything that was started here.
    pub(super) fn wait(&self) {
        if self.is_well() {
            self.failure.note("its work was waited for", self.stream.synchronize());
        }
    }
}
