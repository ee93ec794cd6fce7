//! Products by cuBLASLt: the library, if this machine has it, and its algorithms for one weight shape.
//!
//! cuBLASLt thinks in columns: a row-major `out[rows, outputs] = x w^T` is for it `D = A^T B` with `A` = w, `[inputs, outputs]`; `B` = x,
//! `[inputs, rows]`; `D` = out, `[outputs, rows]`; the leading dimensions are our strides. On the way back `dx[rows, inputs] = dy w` is `D = A B` with
//! the same `A`, `B` = dy and `D` = dx. It adds in f32, with no workspace, and no sum is split among blocks: their number depends on the rows. An
//! algorithm is named once and then used for every number of rows; the library is never left to choose again.
//!
//! The library is loaded at run time. Whoever asks cudarc for a symbol of a library that is missing gets a panic, so [`Library::open`] asks first, and
//! nothing else here can be had without it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use super::device::{Device, Unavailable, describe};
use super::gemm::Product;
use super::gemm_choice::WeightShape;
use super::launch::Queue;
use super::tensor::stride_of;

/// Algorithms asked of the library at a time.
const ASKED: usize = 16;

/// Buffers and rows lie on boundaries of this many bytes.
const ALIGNMENT: u32 = 16;

/// CUBLAS_OP_N and CUBLAS_OP_T: a matrix is read as it is, or transposed.
const AS_IT_IS: i32 = 0;
const TRANSPOSED: i32 = 1;

/// Every function that is called here.
const FUNCTIONS: [&str; 16] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtGetVersion",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoCheck",
    "cublasLtMatmulAlgoConfigGetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
];

/// The library, opened for one card.
pub(super) struct Library {
    device: Arc<Device>,
    handle: sys::cublasLtHandle_t,
    /// 130100 is 13.1.0.
    pub(super) version: usize,
}

// SAFETY: a handle of cuBLASLt may be used from any thread, and from several at once.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens it, or says why not.
    pub(super) fn open(device: &Arc<Device>) -> Result<Arc<Library>, Unavailable> {
        // SAFETY: it loads the library if there is one; its initialisers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unavailable("cuBLASLt is not on this machine (libcublasLt.so is not found; it comes with CUDA)".into()));
        }
        // SAFETY: the library is there, so this does not panic. A symbol is looked up, not called.
        let has = |name: &&str| unsafe { sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok() };
        if let Some(missing) = FUNCTIONS.iter().find(|name| !has(name)) {
            return Err(Unavailable(format!("the cuBLASLt of this machine lacks {missing}: it is too old")));
        }
        let failed = |why: String| Unavailable(format!("cuBLASLt cannot be used on GPU {}: {why}", device.ordinal));
        device.context.bind_to_thread().map_err(|e| failed(describe(e)))?;
        let handle = result::create_handle().map_err(|e| failed(words(e)))?;
        // SAFETY: the library is there and takes nothing.
        let version = unsafe { sys::cublasLtGetVersion() };
        Ok(Arc::new(Library { device: device.clone(), handle, version }))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.device.context.bind_to_thread().is_ok() {
            // SAFETY: made by `open`, and dropped with the last value that uses it.
            let _ = unsafe { result::destroy_handle(self.handle) };
        }
    }
}

/// A status of the library in words.
pub(super) fn words(error: CublasError) -> String {
    format!("cuBLASLt answers {:?}", error.0)
}

/// How a sum is computed, as the library describes it: opaque, but its bytes are its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Algorithm(sys::cublasLtMatmulAlgo_t);

impl Algorithm {
    /// Its value, the same for the same algorithm of one version of the library.
    pub(super) fn bytes(&self) -> impl Iterator<Item = u8> {
        self.0.data.into_iter().flat_map(u64::to_le_bytes)
    }

    /// One block adds up a whole sum.
    fn is_unsplit(&self) -> bool {
        use sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
        let attribute = |which| {
            let (mut value, mut written) = (0u32, 0usize);
            // SAFETY: the algorithm is the library's; the value has the four bytes that are announced.
            let status = unsafe {
                let to = (&raw mut value).cast();
                sys::cublasLtMatmulAlgoConfigGetAttribute(&self.0, which, to, size_of::<u32>(), &mut written)
            };
            status.result().ok().map(|()| value)
        };
        let none = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
        attribute(Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM).is_some_and(|n| n <= 1)
            && attribute(Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) == Some(none)
    }
}

/// The description of an operation.
struct Operation(sys::cublasLtMatmulDesc_t);

impl Operation {
    /// `D = A B` or `D = A^T B`, added in f32.
    fn new(read: i32) -> Result<Operation, CublasError> {
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let operation = Operation(result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?);
        let which = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        // SAFETY: the description lives; the value has the type and size of this attribute.
        unsafe { result::set_matmul_desc_attribute(operation.0, which, (&raw const read).cast(), size_of::<i32>())? };
        Ok(operation)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made by `new`; calls that used it have returned, and keep nothing of it.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// How a matrix lies in memory.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// `[rows, cols]` in the library's words: rows lie side by side, columns `stride` apart.
    fn new(dtype: sys::cudaDataType, rows: usize, cols: usize, stride: usize) -> Result<Layout, CublasError> {
        result::create_matrix_layout(dtype, rows as u64, cols as u64, stride as i64).map(Layout)
    }

    fn set_cols(&mut self, cols: usize) -> Result<(), CublasError> {
        let cols = cols as u64;
        let which = sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS;
        // SAFETY: the layout lives; the value has the type and size of this attribute.
        unsafe { result::set_matrix_layout_attribute(self.0, which, (&raw const cols).cast(), size_of::<u64>()) }
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`; calls that used it have returned, and keep nothing of it.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// Which algorithms are wanted.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// No workspace, no reduction after the sums, memory aligned like ours.
    fn new() -> Result<Preference, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref()?);
        let set = |which, value: *const c_void, size| {
            // SAFETY: the preference lives; the callers below give values of the type and size of the attribute.
            unsafe { result::set_matmul_pref_attribute(preference.0, which, value, size) }
        };
        let workspace = 0u64;
        let alignment = ALIGNMENT;
        let schemes = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_NONE as u32;
        set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const workspace).cast(), size_of::<u64>())?;
        set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const schemes).cast(), size_of::<u32>())?;
        for which in [
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(which, (&raw const alignment).cast(), size_of::<u32>())?;
        }
        Ok(preference)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`; calls that used it have returned.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// The products by weights of one shape. Between products only the number of rows changes.
pub(super) struct Multiplier {
    shape: WeightShape,
    operation: Operation,
    w: Layout,
    x: Layout,
    out: Layout,
    // Goes last: the descriptions above are destroyed by functions of the library.
    library: Arc<Library>,
}

// SAFETY: the descriptions are plain memory of the host; they belong to this value, and calls that change them take `&mut`.
unsafe impl Send for Multiplier {}

impl Multiplier {
    pub(super) fn new(library: &Arc<Library>, shape: WeightShape) -> Result<Multiplier, CublasError> {
        let WeightShape { outputs, inputs, .. } = shape;
        let bf16 = sys::cudaDataType::CUDA_R_16BF;
        let out = if shape.gives_wide() { sys::cudaDataType::CUDA_R_32F } else { bf16 };
        Ok(Multiplier {
            shape,
            operation: Operation::new(if shape.back { AS_IT_IS } else { TRANSPOSED })?,
            w: Layout::new(bf16, inputs, outputs, stride_of(inputs))?,
            x: Layout::new(bf16, shape.reduced(), 1, shape.x_stride())?,
            out: Layout::new(out, shape.width(), 1, stride_of(shape.width()))?,
            library: library.clone(),
        })
    }

    fn set_rows(&mut self, rows: usize) -> Result<(), CublasError> {
        self.x.set_cols(rows)?;
        self.out.set_cols(rows)
    }

    /// The algorithms that the library proposes for this many rows, its favourite first. None of them splits a sum or wants a workspace.
    pub(super) fn proposed(&mut self, rows: usize) -> Result<Vec<Algorithm>, CublasError> {
        self.set_rows(rows)?;
        let preference = Preference::new()?;
        let mut found = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; ASKED];
        let mut count = 0;
        // SAFETY: every description lives; there is room for as many results as are asked for.
        unsafe {
            let (x, w, out) = (self.x.0, self.w.0, self.out.0);
            let to = found.as_mut_ptr().cast();
            let (handle, operation) = (self.library.handle, self.operation.0);
            sys::cublasLtMatmulAlgoGetHeuristic(handle, operation, w, x, out, out, preference.0, ASKED as i32, to, &mut count).result()?;
        }
        let count = usize::try_from(count).unwrap_or(0).min(ASKED);
        // SAFETY: the library has written the first `count` results.
        let found = found[..count].iter().map(|result| unsafe { result.assume_init_read() });
        let usable = found.filter(|result| result.state.result().is_ok() && result.workspaceSize == 0);
        Ok(usable.map(|result| Algorithm(result.algo)).filter(Algorithm::is_unsplit).collect())
    }

    /// Whether an algorithm takes this many rows.
    pub(super) fn takes(&mut self, algorithm: &Algorithm, rows: usize) -> bool {
        let mut result = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit();
        if self.set_rows(rows).is_err() {
            return false;
        }
        // SAFETY: every description lives, and the library writes the result where it answers success.
        unsafe {
            let (x, w, out) = (self.x.0, self.w.0, self.out.0);
            let (handle, operation) = (self.library.handle, self.operation.0);
            let status = sys::cublasLtMatmulAlgoCheck(handle, operation, w, x, out, out, &algorithm.0, result.as_mut_ptr());
            status.result().is_ok() && result.assume_init_ref().workspaceSize == 0
        }
    }

    /// Starts a product. Nothing is started where the card has failed; what the library answers is the caller's to remember.
    ///
    /// # Safety
    /// The addresses are of memory with room for the product, which stays until the work on this stream is done.
    pub(super) unsafe fn multiply(&mut self, algorithm: &Algorithm, queue: &Queue, product: &Product) -> Result<(), CublasError> {
        assert!(product.shape == self.shape, "a product of {} by weights {}", product.shape, self.shape);
        let bound = || queue.failure.note("binding its context", self.library.device.context.bind_to_thread());
        if queue.failure.is_set() || product.rows == 0 || bound().is_none() {
            return Ok(());
        }
        self.set_rows(product.rows)?;
        let (one, zero) = (1f32, 0f32);
        let (x, w, out) = (product.x as *const c_void, product.w as *const c_void, product.out as *mut c_void);
        // SAFETY: every description lives, and says how the caller's memory lies; the context is bound, and the stream is of this context. The two
        // factors are read before the call returns.
        unsafe {
            result::matmul(
                self.library.handle,
                self.operation.0,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                w,
                self.w.0,
                x,
                self.x.0,
                // Multiplied by zero, which the library does not read.
                out,
                self.out.0,
                out,
                self.out.0,
                &algorithm.0,
                std::ptr::null_mut(),
                0,
                queue.stream.cu_stream().cast(),
            )
        }
    }
}
