//! The table of operations on an NVIDIA card: bf16 storage, f32 accumulation, one rounding at each operation's output.
//!
//! One stream, on which everything happens in order. The host only starts work: it never waits for the card inside a step but to read the answers of
//! the step before. A driver's error is remembered ([`Ops::failure`]) and turns every later call into nothing.
//!
//! The kernels are in `kernels/`; what they take is in its README. They are compiled for the card at hand and cached ([`compile`]).

mod asks;
mod backward;
pub mod compile;
mod cublaslt;
mod device;
mod export;
mod flat;
mod gemm;
pub mod gemm_choice;
mod import;
mod launch;
mod library_product;
mod lists;
mod memory;
mod nccl;
mod random;
mod step;
mod sweep;
mod tensor;
mod timer;

use std::sync::Arc;

use half::bf16;

pub use device::{Device, Unavailable};
pub use flat::Flat;
pub use gemm_choice::GemmChoice;
pub use nccl::{Communicator, UniqueId};
pub use random::Noise;
pub use tensor::{KvCache, Matrix, Tensor, Vector};

use super::{Ask, BLOCK_TOKENS, Batch, Draw, Drawn, Handover, Heads, Late, NonFinite, Ops, Place};
use crate::model::{Dtype, ModelConfig, TensorView};
use asks::Asks;
use device::Failure;
use gemm::Product;
use gemm_choice::{Products, WeightShape};
use launch::{Arg, Kernels, Queue};
use lists::Lists;
use memory::{Arena, Buffer, Purpose};
use step::{Steps, TILE_ROWS, TILE_WORDS, Todo, room, tiles};
use sweep::FastPath;
use tensor::stride_of;

/// Raised whenever a change of the kernels changes bits.
const KERNEL_REVISION: u32 = 1;

/// Head sizes that the attention kernel is made for.
pub const HEAD_DIMS: [usize; 7] = [16, 32, 64, 80, 96, 128, 256];

/// Memory taken from the driver at a time.
const CHUNK_BYTES: usize = 64 << 20;

/// How a backend runs; none of it changes a bit.
#[derive(Clone, Copy, Debug)]
pub struct CudaSettings {
    /// Memory taken from the driver at a time; 0 gives every buffer its own allocation, so that a tool sees accesses beyond it.
    pub chunk_bytes: usize,
    /// Record decode steps as graphs and replay them.
    pub graphs: bool,
}

impl Default for CudaSettings {
    fn default() -> Self {
        CudaSettings { chunk_bytes: CHUNK_BYTES, graphs: true }
    }
}

/// The CUDA backend.
pub struct CudaOps {
    device: Arc<Device>,
    queue: Queue,
    settings: CudaSettings,
    weights: Arena,
    cache: Arena,
    activations: Arena,
    /// Gradients, masters and moments, and what is needed between two kernels.
    training: Arena,
    scratches: [Option<Buffer>; backward::SCRATCHES],
    /// Moments live on the host.
    offload: bool,
    /// The processes that train together with this one.
    communicator: Option<Communicator>,
    /// Lists of calls outside a step.
    loose: Lists,
    /// Blocks to copy.
    pairs: Lists,
    steps: Steps,
    asks: Asks,
    /// Rotary frequencies by their values: a model has one set, and they never change.
    frequencies: Vec<(Vec<f32>, Buffer)>,
    /// Products that are not our own kernels' work.
    fast: FastPath,
}

impl CudaOps {
    /// A backend on this card with kernels made by [`compile::kernels_for`].
    pub fn new(device: &Arc<Device>, images: &compile::Kernels, settings: CudaSettings) -> Result<CudaOps, Unavailable> {
        let images = images.families.iter().map(|(name, image)| (name.as_ref(), image.as_ref()));
        let kernels = Kernels::load(device, images, &entries())?;
        CudaOps::with_kernels(device, Arc::new(kernels), settings)
    }

    /// Another backend on the same card, with a stream of its own: to prepare weights while the first one runs. It multiplies with our own kernels, and
    /// is in no communicator.
    pub fn another(&self) -> Result<CudaOps, Unavailable> {
        CudaOps::with_kernels(&self.device, self.queue.kernels.clone(), self.settings)
    }

    fn with_kernels(device: &Arc<Device>, kernels: Arc<Kernels>, settings: CudaSettings) -> Result<CudaOps, Unavailable> {
        let stream = device.context.new_stream();
        let stream = stream.map_err(|e| Unavailable(format!("GPU {} gives no stream: {}", device.ordinal, device::describe(e))))?;
        let queue = Queue { stream, kernels, failure: Arc::new(Failure::default()) };
        let bytes = settings.chunk_bytes;
        let arena = |purpose| Arena::new(device.clone(), purpose, bytes);
        Ok(CudaOps {
            device: device.clone(),
            settings,
            weights: arena(Purpose::Weights),
            cache: Arena::new(device.clone(), Purpose::KvCache, 0),
            activations: arena(Purpose::Activations),
            training: arena(Purpose::Training),
            scratches: [const { None }; backward::SCRATCHES],
            offload: false,
            communicator: None,
            loose: Lists::new(device),
            pairs: Lists::new(device),
            steps: Steps::new(Lists::new(device), settings.graphs),
            asks: Asks::new(device, &queue, bytes),
            frequencies: Vec::new(),
            fast: FastPath::default(),
            queue,
        })
    }

    /// Chooses between our own kernels and cuBLASLt for the products of a model; until then everything is our own. It measures, which takes seconds
    /// and memory, so its time is before the weights come.
    pub fn prepare_products(&mut self, choice: GemmChoice, products: &[Products]) -> Result<(), Unavailable> {
        self.fast = sweep::fast_path(&self.device, &self.queue, choice, products)?;
        Ok(())
    }

    /// Sums gradients over the ranks of a communicator from now on ([`crate::ops::TrainOps::sum_over_ranks`]). All ranks must then do the same work.
    pub fn join(&mut self, communicator: Communicator) {
        communicator.tell(&self.queue.failure);
        self.communicator = Some(communicator);
    }

    /// The communicator that it is in.
    pub fn communicator(&self) -> Option<&Communicator> {
        self.communicator.as_ref()
    }

    /// The card.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Why a model of these heads cannot run here, if it cannot.
    pub fn refuses(&self, heads: Heads) -> Option<String> {
        let group = heads.query / heads.kv;
        if !HEAD_DIMS.contains(&heads.dim) {
            let known = HEAD_DIMS.map(|d| d.to_string()).join(", ");
            return Some(format!(
                "the CUDA kernels have no attention for heads of {} values, only of {known}; use --device cpu",
                heads.dim
            ));
        }
        if group > TILE_ROWS[1] {
            return Some(format!(
                "the CUDA kernels share a key among at most {} query heads, this model among {group}; use --device cpu",
                TILE_ROWS[1]
            ));
        }
        let missing = |kind: &usize| !self.queue.kernels.has(attention_kernel(*kind, heads.dim));
        (0..2).find(missing).map(|kind| {
            let (needed, there, name) = (attention_shared(kind, heads.dim), self.device.shared_bytes, &self.device.name);
            format!(
                "attention over heads of {} values needs {needed} bytes of shared memory a block, and {name} has {there}; use --device cpu",
                heads.dim
            )
        })
    }

    /// Starts a product, with the kernel that was chosen for its shape.
    ///
    /// # Safety
    /// The addresses are of memory with room for the product, which stays until the work on this stream is done.
    unsafe fn multiply(&mut self, product: &Product) {
        // SAFETY: the caller's.
        unsafe {
            if !self.fast.multiply(&self.queue, product) {
                gemm::multiply(&self.queue, self.device.multiprocessors, product);
            }
        }
    }

    /// Where a list of numbers is on the card: in the step that runs, or brought there now.
    fn list(&mut self, values: &[u32]) -> u64 {
        match self.steps.open.and_then(|open| open.find(values)) {
            Some(at) => at,
            None => self.loose.put(&self.queue, values),
        }
    }

    /// Starts a kernel with a block a row.
    ///
    /// # Safety
    /// As [`Queue::launch`].
    unsafe fn rows<const N: usize>(&self, kernel: &'static str, rows: usize, threads: u32, args: [Arg; N]) {
        // SAFETY: the caller's.
        unsafe { self.queue.launch(kernel, (rows, 1, 1), threads, args) };
    }

    /// What a tensor holds, `[rows, cols]`, after everything started before.
    pub fn read(&self, x: &Tensor) -> Vec<f32> {
        (0..x.rows).flat_map(|row| self.read_row(x, row)).collect()
    }

    /// Puts values `[rows, cols]` into a tensor of as many rows, rounded to its type: for tests and comparisons.
    pub fn write(&self, x: &mut Tensor, values: &[f32]) {
        assert!(values.len() == x.rows * x.cols, "write: {} values for [{}, {}]", values.len(), x.rows, x.cols);
        for (row, values) in values.chunks(x.cols.max(1)).enumerate() {
            let bytes: Vec<u8> = match x.wide {
                true => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                false => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            };
            let at = x.buffer.ptr + (row * x.stride * x.value_bytes()) as u64;
            // SAFETY: row `row` lies within the tensor.
            unsafe { self.queue.upload_now(at, &bytes) };
        }
    }

    /// Keys and values of one slot of a layer, `[kv heads, dim]` each: for tests and comparisons.
    pub fn cached_row(&self, cache: &KvCache, layer: usize, slot: u32) -> [Vec<f32>; 2] {
        let (heads, slot) = (cache.heads, slot as usize);
        assert!(slot < cache.blocks * BLOCK_TOKENS);
        let (keys, values) = cache.layer(layer);
        [keys, values].map(|from| {
            let mut out = Vec::with_capacity(heads.kv * heads.dim);
            for head in 0..heads.kv {
                let block = (slot / BLOCK_TOKENS * heads.kv + head) * BLOCK_TOKENS + slot % BLOCK_TOKENS;
                let mut bytes = vec![0u8; 2 * heads.dim];
                // SAFETY: the slot is one of the cache's.
                unsafe { self.queue.download_now(&mut bytes, from + (block * heads.dim * 2) as u64) };
                out.extend(bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()));
            }
            out
        })
    }

    fn norm_into(&self, kernel: &'static str, cols: usize, rows: usize, args: [Arg; 7]) {
        // SAFETY: as the kernel takes them; the callers check the shapes.
        unsafe { self.rows(kernel, rows, norm_threads(cols), args) };
    }

    fn qkv_pass(
        &self,
        qkv: &Tensor,
        heads: Heads,
        what: u32,
        norm: Option<(&Vector, &Vector)>,
        eps: f32,
        angles: Option<&Tensor>,
        place: Option<(u64, u64, u64)>,
    ) {
        assert!(qkv.cols == heads.qkv_cols());
        if let Some(angles) = angles {
            assert!(angles.cols == heads.dim && angles.rows == qkv.rows);
        }
        if let Some((q, k)) = norm {
            assert!(q.len == heads.dim && k.len == heads.dim);
        }
        let (q, k) = norm.map_or((0, 0), |(q, k)| (q.buffer.ptr, k.buffer.ptr));
        let (angles, angle_stride) = angles.map_or((0, 0), |a| (a.wide(), a.stride));
        let (slots, keys, values) = place.unwrap_or((0, 0, 0));
        let args: [Arg; 14] = [
            qkv.narrow().into(),
            qkv.stride.into(),
            angles.into(),
            angle_stride.into(),
            slots.into(),
            keys.into(),
            values.into(),
            q.into(),
            k.into(),
            eps.into(),
            heads.query.into(),
            heads.kv.into(),
            heads.dim.into(),
            what.into(),
        ];
        let warps = heads.query + 2 * heads.kv;
        // SAFETY: as the kernel takes them; slots are of this cache or nowhere.
        unsafe { self.queue.launch("rope_kv", (qkv.rows, warps.div_ceil(4), 1), 128, args) };
    }

    fn attend(&self, kind: usize, qkv: &Tensor, heads: Heads, (keys, values): (u64, u64), at: u64, n: usize, tables: u64, out: &Tensor) {
        let args: [Arg; 11] = [
            out.narrow().into(),
            out.stride.into(),
            qkv.narrow().into(),
            qkv.stride.into(),
            keys.into(),
            values.into(),
            at.into(),
            tables.into(),
            heads.query.into(),
            heads.kv.into(),
            (1.0 / (heads.dim as f32).sqrt()).into(),
        ];
        let kernel = attention_kernel(kind, heads.dim);
        // SAFETY: as the kernel takes them; tiles name rows of both tensors and blocks of the cache.
        unsafe { self.queue.launch(kernel, (n, heads.kv, 1), ATTENTION_THREADS, args) };
    }
}

/// Part of [`Ops::rope_kv`]'s work.
const NORM: u32 = 1;
const ROTATE: u32 = 2;
const WRITE: u32 = 4;

const ATTENTION_THREADS: u32 = 128;

/// The kernels of attention, of both kinds of [`TILE_ROWS`].
const ATTENTION: [[&str; 7]; 2] = [
    ["attention_16_16", "attention_16_32", "attention_16_64", "attention_16_80", "attention_16_96", "attention_16_128", "attention_16_256"],
    ["attention_64_16", "attention_64_32", "attention_64_64", "attention_64_80", "attention_64_96", "attention_64_128", "attention_64_256"],
];

fn attention_kernel(kind: usize, dim: usize) -> &'static str {
    let known = HEAD_DIMS.iter().position(|d| *d == dim);
    ATTENTION[kind][known.unwrap_or_else(|| panic!("no attention kernel for heads of {dim} values"))]
}

/// Dynamic shared memory of an attention kernel: the formula of `attention.cu`.
fn attention_shared(kind: usize, dim: usize) -> u32 {
    let slots = match (kind, dim) {
        (0, 256) => 4,
        (0, _) => 6,
        (_, 256) => 3,
        _ => 4,
    };
    let (queries, exchange) = if kind == 0 { (32, 2304) } else { (128, 0) };
    ((queries + slots * 128) * (dim + 8) + exchange) as u32
}

/// Every kernel: its family, its name, and the dynamic shared bytes of a block, as its source says.
fn entries() -> Vec<(&'static str, &'static str, u32)> {
    let plain = [
        ("embed", "embed", 0),
        ("embed", "gather_rows", 0),
        ("norm", "rmsnorm", 128),
        ("norm", "add_rmsnorm", 128),
        ("norm", "add", 0),
        ("rope_kv", "rope_angles", 0),
        ("rope_kv", "rope_kv", 0),
        ("act", "swiglu", 0),
        ("act", "add_bias", 0),
        ("act", "copy_blocks", 0),
        ("loss", "token_tiles", 128),
        ("loss", "token_finish", 0),
        ("sample", "filter_rows", 16_704),
        ("sample", "draw_tiles", 192),
        ("sample", "draw_finish", 0),
        ("transfer", "copy_rows", 0),
        ("transfer", "not_finite", 0),
    ];
    let gemm = gemm::VARIANTS.iter().flat_map(|v| v.kernels.map(|kernel| ("gemm", kernel, v.shared)));
    let attention = (0..2).flat_map(|kind| HEAD_DIMS.map(|dim| ("attention", attention_kernel(kind, dim), attention_shared(kind, dim))));
    plain.into_iter().chain(gemm).chain(attention).chain(backward::entries()).collect()
}

/// Threads of the norm kernels: few enough values a thread to stay in registers, by the width alone.
fn norm_threads(cols: usize) -> u32 {
    assert!(cols <= 32_768, "the norm kernels hold rows of at most 32768 values in registers, not {cols}");
    [32, 64, 128, 256, 512].into_iter().find(|threads| cols <= 8 * threads).unwrap_or(1024) as u32
}

/// Rounds a tensor's numbers to bf16, row by row with the stride of the card.
fn rounded(tensor: &TensorView<'_>, cols: usize) -> Vec<u8> {
    let stride = stride_of(cols);
    let (rows, size) = (tensor.num_elements() / cols.max(1), tensor.dtype.size());
    let mut out = vec![0u8; rows * stride * 2];
    for (from, to) in tensor.bytes.chunks(cols * size).zip(out.chunks_mut(stride * 2)) {
        let row = TensorView { name: tensor.name, dtype: tensor.dtype, shape: vec![cols], bytes: from };
        match tensor.dtype {
            Dtype::Bf16 => to[..from.len()].copy_from_slice(from),
            _ => row.to_f32().iter().zip(to.as_chunks_mut::<2>().0).for_each(|(v, to)| *to = bf16::from_f32(*v).to_le_bytes()),
        }
    }
    out
}

/// Rows of weights that are rounded and copied at a time, in values.
const PORTION: usize = 4 << 20;

impl Ops for CudaOps {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vector;
    type KvCache = KvCache;

    fn numerics_id(&self) -> String {
        let (major, minor) = self.device.arch;
        format!("cuda-bf16-r{KERNEL_REVISION}-sm_{major}{minor}-{}", self.fast.id())
    }

    fn device_name(&self) -> String {
        format!("cuda:{} {}", self.device.ordinal, self.device.name)
    }

    fn failure(&self) -> Option<String> {
        self.queue.failure.take()
    }

    fn weight_bytes(&self, config: &ModelConfig) -> u64 {
        // Rows are padded, and the last chunk is not full.
        let rows = |shape: &[usize]| shape[..shape.len() - 1].iter().product::<usize>() * stride_of(shape[shape.len() - 1]) * 2;
        config.tensors().iter().map(|(_, shape)| rows(shape).next_multiple_of(256)).sum::<usize>() as u64 + self.settings.chunk_bytes as u64
    }

    fn free_memory(&self) -> Option<u64> {
        self.device.memory().ok().map(|(free, _)| free as u64)
    }

    fn tensor(&self, rows: usize, cols: usize) -> Tensor {
        self.make_tensor(rows, cols, false)
    }

    fn wide_tensor(&self, rows: usize, cols: usize) -> Tensor {
        self.make_tensor(rows, cols, true)
    }

    fn tensor_bytes(&self, rows: usize, cols: usize, wide: bool) -> u64 {
        let capacity = if self.settings.graphs { room(rows) } else { rows };
        Tensor::bytes(capacity, cols, wide).next_multiple_of(256) as u64
    }

    fn set_rows(&self, tensor: &mut Tensor, rows: usize) {
        assert!(rows <= tensor.capacity, "a tensor of {} rows was asked to hold {rows}", tensor.capacity);
        tensor.rows = rows;
        tensor.widen();
    }

    fn matrix(&self, slabs: &[TensorView<'_>]) -> Matrix {
        let inputs = slabs[0].shape[1];
        let outputs: usize = slabs.iter().map(|s| s.shape[0]).sum();
        assert!(slabs.iter().all(|s| s.shape.len() == 2 && s.shape[1] == inputs), "slabs of one matrix share their inputs");
        let stride = stride_of(inputs);
        let buffer = self.weights.take(outputs * stride * 2, &self.queue.failure);
        let matrix = Matrix { buffer, outputs, inputs, stride };
        self.pack_into(&matrix, slabs);
        matrix
    }

    fn vector(&self, parts: &[TensorView<'_>]) -> Vector {
        let values: Vec<u8> = parts.iter().flat_map(|p| p.to_f32()).flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect();
        let buffer = self.weights.take(values.len(), &self.queue.failure);
        // SAFETY: the buffer has this size.
        unsafe { self.queue.upload_now(buffer.ptr, &values) };
        Vector { len: values.len() / 2, buffer }
    }

    fn adopt_matrix(&mut self, live: &mut Matrix, staged: &mut Matrix) {
        assert!(live.outputs == staged.outputs && live.inputs == staged.inputs, "weights of another shape");
        // SAFETY: both are of the same size; the caller settles before the staged ones go.
        unsafe { self.queue.copy(live.buffer.ptr, staged.buffer.ptr, live.buffer.bytes) };
    }

    fn adopt_vector(&mut self, live: &mut Vector, staged: &mut Vector) {
        assert!(live.len == staged.len, "weights of another shape");
        // SAFETY: as above.
        unsafe { self.queue.copy(live.buffer.ptr, staged.buffer.ptr, live.buffer.bytes) };
    }

    fn settle(&mut self) {
        self.queue.wait();
    }

    fn handover(&self) -> Option<&dyn Handover<Self>> {
        Some(self)
    }

    fn kv_block_bytes(&self, layers: usize, heads: Heads) -> usize {
        2 * layers * KvCache::block_values(heads) * 2
    }

    fn kv_cache(&self, layers: usize, blocks: usize, heads: Heads) -> KvCache {
        let bytes = layers * blocks * KvCache::block_values(heads) * 2;
        let take = || self.cache.take(bytes, &self.queue.failure);
        KvCache { keys: take(), values: take(), heads, layers, blocks }
    }

    fn memory_id(&self, embed: &Matrix, cache: &KvCache) -> u64 {
        // Serial numbers of buffers: fewer than 2^32 of them are ever made.
        embed.buffer.serial << 32 | cache.keys.serial
    }

    fn step(&mut self, place: Place, batch: &Batch, run: &mut dyn FnMut(&mut Self, usize)) {
        match self.steps.begin(&self.queue, place, batch) {
            Todo::Run(rows) => run(self, rows),
            Todo::Record(rows) => {
                run(self, rows);
                self.steps.end_recording(&self.queue, place, rows);
            }
            Todo::Done => {}
        }
        self.steps.open = None;
    }

    fn late(&mut self) -> Option<&mut dyn Late<Tensor>> {
        Some(self)
    }

    fn embed(&mut self, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        assert!(out.rows >= ids.len() && out.cols == table.inputs);
        let ids = self.list(ids);
        let args: [Arg; 7] = [
            out.narrow().into(),
            out.stride.into(),
            table.buffer.ptr.into(),
            table.stride.into(),
            ids.into(),
            self.asks.drawn().into(),
            out.cols.into(),
        ];
        // SAFETY: as the kernel takes them; there is an id for each row, padding included.
        unsafe { self.rows("embed", out.rows, 128, args) };
    }

    fn rmsnorm(&mut self, x: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor) {
        assert!(x.cols == weight.len && out.cols == x.cols && out.rows == x.rows);
        let args = [
            out.narrow().into(),
            out.stride.into(),
            x.narrow().into(),
            x.stride.into(),
            weight.buffer.ptr.into(),
            eps.into(),
            x.cols.into(),
        ];
        self.norm_into("rmsnorm", x.cols, x.rows, args);
    }

    fn add_rmsnorm(&mut self, residual: &mut Tensor, delta: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor) {
        assert!(residual.cols == weight.len && delta.cols == residual.cols && out.cols == residual.cols);
        assert!(delta.rows == residual.rows && out.rows == residual.rows);
        let args: [Arg; 9] = [
            out.narrow().into(),
            out.stride.into(),
            residual.narrow().into(),
            residual.stride.into(),
            delta.narrow().into(),
            delta.stride.into(),
            weight.buffer.ptr.into(),
            eps.into(),
            residual.cols.into(),
        ];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("add_rmsnorm", residual.rows, norm_threads(residual.cols), args) };
    }

    fn add(&mut self, x: &mut Tensor, delta: &Tensor) {
        assert!(delta.cols == x.cols && delta.rows == x.rows);
        let args: [Arg; 5] = [x.narrow().into(), x.stride.into(), delta.narrow().into(), delta.stride.into(), x.cols.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("add", x.rows, 128, args) };
    }

    fn linear(&mut self, x: &Tensor, w: &Matrix, out: &mut Tensor) {
        assert!(x.cols == w.inputs && out.cols == w.outputs && out.rows == x.rows);
        let shape = WeightShape { outputs: w.outputs, inputs: w.inputs, wide: out.wide, back: false };
        let product = Product { shape, rows: x.rows, out: out.buffer.ptr, x: x.narrow(), w: w.buffer.ptr };
        // SAFETY: the three have these shapes, and rows lie as their widths say.
        unsafe { self.multiply(&product) };
    }

    fn add_bias(&mut self, x: &mut Tensor, bias: &Vector) {
        assert!(x.cols == bias.len);
        let args: [Arg; 4] = [x.narrow().into(), x.stride.into(), bias.buffer.ptr.into(), x.cols.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("add_bias", x.rows, 128, args) };
    }

    fn qk_norm(&mut self, qkv: &mut Tensor, heads: Heads, q: &Vector, k: &Vector, eps: f32) {
        self.qkv_pass(qkv, heads, NORM, Some((q, k)), eps, None, None);
    }

    fn rope_angles(&mut self, positions: &[u32], frequencies: &[f32], angles: &mut Tensor) {
        let half = frequencies.len();
        assert!(angles.cols == 2 * half && angles.rows >= positions.len());
        let positions = self.list(positions);
        let frequencies = self.frequencies(frequencies);
        let args: [Arg; 5] = [angles.wide().into(), angles.stride.into(), positions.into(), frequencies.into(), half.into()];
        // SAFETY: as the kernel takes them; there is a position for each row, padding included.
        unsafe { self.rows("rope_angles", angles.rows, 32, args) };
    }

    fn rope(&mut self, qkv: &mut Tensor, heads: Heads, angles: &Tensor) {
        self.qkv_pass(qkv, heads, ROTATE, None, 0.0, Some(angles), None);
    }

    fn kv_write(&mut self, qkv: &Tensor, heads: Heads, layer: usize, slots: &[u32], cache: &mut KvCache) {
        assert!(heads == cache.heads && slots.len() <= qkv.rows);
        let (keys, values) = cache.layer(layer);
        let slots = self.list(slots);
        self.qkv_pass(qkv, heads, WRITE, None, 0.0, None, Some((slots, keys, values)));
    }

    fn rope_kv(
        &mut self,
        qkv: &mut Tensor,
        heads: Heads,
        norm: Option<(&Vector, &Vector)>,
        eps: f32,
        angles: &Tensor,
        layer: usize,
        slots: &[u32],
        cache: &mut KvCache,
    ) {
        assert!(heads == cache.heads && slots.len() <= qkv.rows);
        let (keys, values) = cache.layer(layer);
        let slots = self.list(slots);
        let what = ROTATE + WRITE + if norm.is_some() { NORM } else { 0 };
        self.qkv_pass(qkv, heads, what, norm, eps, Some(angles), Some((slots, keys, values)));
    }

    fn attention(&mut self, qkv: &Tensor, heads: Heads, layer: usize, batch: &Batch, cache: &KvCache, out: &mut Tensor) {
        assert!(heads == cache.heads && qkv.cols == heads.qkv_cols() && out.cols == heads.query * heads.dim && out.rows == qkv.rows);
        let addresses = cache.layer(layer);
        let open = self.steps.open;
        let (counts, at, tables) = match open.and_then(|open| Some((open.shape.tiles, open.tiles(batch)?))) {
            Some((counts, (at, tables))) => (counts, at, tables),
            None => {
                let mut kinds = [Vec::new(), Vec::new()];
                tiles(batch, heads.query / heads.kv, |kind, tile| kinds[kind].extend(tile));
                let counts = kinds.each_ref().map(|k| k.len() / TILE_WORDS);
                let words = [&kinds[0][..], &kinds[1], &batch.tables].concat();
                let at = self.loose.put(&self.queue, &words);
                let second = at + 4 * kinds[0].len() as u64;
                (counts, [at, second], second + 4 * kinds[1].len() as u64)
            }
        };
        for kind in 0..2 {
            self.attend(kind, qkv, heads, addresses, at[kind], counts[kind], tables, out);
        }
    }

    fn swiglu(&mut self, gate_up: &Tensor, out: &mut Tensor) {
        assert!(gate_up.cols == 2 * out.cols && gate_up.rows == out.rows);
        let args: [Arg; 5] = [out.narrow().into(), out.stride.into(), gate_up.narrow().into(), gate_up.stride.into(), out.cols.into()];
        // SAFETY: as the kernel takes them.
        unsafe { self.rows("swiglu", out.rows, 128, args) };
    }

    fn gather_rows(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) {
        assert!(out.rows >= rows.len() && out.cols == x.cols && out.wide == x.wide);
        let list = self.list(rows);
        // Rows are copied bit for bit: f32 values are pairs of 16 bits.
        let units = |n: usize| Arg::from(n * x.value_bytes() / 2);
        let (to, from) = (out.buffer.ptr, x.buffer.ptr);
        let args: [Arg; 6] = [to.into(), units(out.stride), from.into(), units(x.stride), list.into(), units(x.cols)];
        // SAFETY: as the kernel takes them; there is a row of `x` for each row of `out`, padding included.
        unsafe { self.rows("gather_rows", out.rows, 128, args) };
    }

    fn copy_blocks(&mut self, cache: &mut KvCache, pairs: &[(u32, u32)]) {
        if pairs.is_empty() {
            return;
        }
        let words: Vec<u32> = pairs.iter().flat_map(|(from, to)| [*from, *to]).collect();
        let at = self.pairs.put(&self.queue, &words);
        let (keys, values) = cache.layer(0);
        let block = KvCache::block_values(cache.heads);
        for (first, n) in waves(pairs) {
            let args: [Arg; 5] =
                [keys.into(), values.into(), (at + 8 * first as u64).into(), ((cache.blocks * block) as u64).into(), block.into()];
            // SAFETY: as the kernel takes them; blocks are of this cache.
            unsafe { self.queue.launch("copy_blocks", (n, cache.layers, 1), 256, args) };
        }
    }

    fn sample(&mut self, logits: &Tensor, draws: &[Draw<'_>], out: &mut Vec<Result<Drawn, NonFinite>>) {
        let asks: Vec<Ask<'_>> = draws.iter().cloned().map(Ask::Draw).collect();
        self.answer(logits, &asks, out);
    }

    fn logprobs_of(&mut self, logits: &Tensor, rows: &[(usize, u32)], temperature: f32, out: &mut Vec<Result<Drawn, NonFinite>>) {
        let asks: Vec<Ask<'_>> = rows.iter().map(|&(row, token)| Ask::Token { row, token, temperature }).collect();
        self.answer(logits, &asks, out);
    }

    fn read_row(&self, x: &Tensor, row: usize) -> Vec<f32> {
        assert!(row < x.capacity);
        let mut bytes = vec![0u8; x.cols * x.value_bytes()];
        // SAFETY: the row lies within the tensor.
        unsafe { self.queue.download_now(&mut bytes, x.buffer.ptr + (row * x.stride * x.value_bytes()) as u64) };
        match x.wide {
            true => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            false => bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        }
    }
}

impl Late<Tensor> for CudaOps {
    fn start(&mut self, logits: &Tensor, asks: &[Ask<'_>]) {
        self.asks.start(&self.queue, logits, asks);
    }

    fn finish(&mut self, out: &mut Vec<Result<Drawn, NonFinite>>) {
        self.asks.finish(&self.queue, out);
    }
}

impl CudaOps {
    fn make_tensor(&self, rows: usize, cols: usize, wide: bool) -> Tensor {
        let capacity = if self.settings.graphs { room(rows) } else { rows };
        let buffer = self.activations.take(Tensor::bytes(capacity, cols, wide), &self.queue.failure);
        Tensor { buffer, rows, cols, stride: stride_of(cols), wide, capacity, narrowed: false }
    }

    /// Rounds the rows of several tensors into a matrix, one below the other.
    fn pack_into(&self, matrix: &Matrix, slabs: &[TensorView<'_>]) {
        let Matrix { buffer, outputs, inputs, stride } = matrix;
        assert!(slabs.iter().map(|s| s.shape[0]).sum::<usize>() == *outputs && slabs.iter().all(|s| s.shape[1..] == [*inputs]));
        let mut at = buffer.ptr;
        for slab in slabs {
            let row_bytes = inputs * slab.dtype.size();
            for portion in slab.bytes.chunks((PORTION / stride).max(1) * row_bytes) {
                let view =
                    TensorView { name: slab.name, dtype: slab.dtype, shape: vec![portion.len() / row_bytes, *inputs], bytes: portion };
                let rows = rounded(&view, *inputs);
                // SAFETY: the buffer has room for all rows of all slabs.
                unsafe { self.queue.upload_now(at, &rows) };
                at += rows.len() as u64;
            }
        }
    }

    /// Answers at once.
    fn answer(&mut self, logits: &Tensor, asks: &[Ask<'_>], out: &mut Vec<Result<Drawn, NonFinite>>) {
        assert!(!self.asks.is_open(), "answers of a step are under way; finish them first");
        self.asks.start(&self.queue, logits, asks);
        self.asks.finish(&self.queue, out);
    }

    fn frequencies(&mut self, values: &[f32]) -> u64 {
        if let Some((_, buffer)) = self.frequencies.iter().find(|(known, _)| known == values) {
            return buffer.ptr;
        }
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let buffer = self.activations.take(bytes.len(), &self.queue.failure);
        // SAFETY: the buffer has this size.
        unsafe { self.queue.upload_now(buffer.ptr, &bytes) };
        let at = buffer.ptr;
        self.frequencies.push((values.to_vec(), buffer));
        at
    }
}

/// Cuts copies that happen in order into runs that may happen at once: within a run no block is written twice, or read and written.
fn waves(pairs: &[(u32, u32)]) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let run = &pairs[first..];
        let clash = |i: usize| {
            let (from, to) = run[i];
            run[..i].iter().any(|&(f, t)| t == from || t == to || f == to)
        };
        let n = (1..run.len()).find(|&i| clash(i)).unwrap_or(run.len());
        let found = (n > 0).then_some((first, n));
        first += n;
        found
    })
}

const _: () = assert!(BLOCK_TOKENS == 16, "the kernels hold 16 tokens in a block");
