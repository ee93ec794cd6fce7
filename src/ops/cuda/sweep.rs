//! The sweep at start-up: which products cuBLASLt may compute, found out on the card.
//!
//! For every weight shape of a model and every candidate algorithm, products of several numbers of rows are compared bit by bit. The activations
//! repeat after [`period`] rows, so that every row of every product has its twin in the largest one. An algorithm that passes is timed beside our own
//! kernel. All memory that this takes is given back; nothing of it happens inside a step.
//!
//! A step may be recorded as a graph only after it has run once call by call (see `step.rs`), so the library has loaded what it needs by then.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{result, sys::CUevent_flags};
use half::bf16;

use super::cublaslt::{Algorithm, Library, Multiplier, words};
use super::device::{Device, Unavailable};
use super::gemm::{self, Product};
use super::gemm_choice::{
    FEW_ROWS, GemmChoice, Products, Times, Verdict, WeightShape, decide, first_far, first_unlike, merged, period, probe, row_counts,
};
use super::launch::Queue;
use super::memory::{Arena, Buffer, Purpose};
use super::step::room;
use super::tensor::stride_of;

/// Candidates that are looked at for a weight shape.
const CANDIDATES: usize = 8;

/// Exact candidates that are timed; the library proposes its fastest first.
const TIMED: usize = 3;

/// Rows of which the library proposes algorithms, beside the most.
const MIDDLE_ROWS: usize = 64;

/// Bytes that are made on the host, or brought back to it, at a time.
const PORTION: usize = 32 << 20;

/// Bytes of weights that timed products go through in turn: more than a cache holds, as the weights of a model's layers are.
const BEYOND_CACHE: usize = 192 << 20;

/// Which products cuBLASLt computes, and how.
#[derive(Default)]
pub(super) struct FastPath {
    chosen: BTreeMap<WeightShape, Chosen>,
    /// Of the library and all that is chosen of it, for the way forward and for the way back.
    digests: [Option<String>; 2],
}

/// What multiplies by weights of one shape.
struct Chosen {
    multiplier: Multiplier,
    algorithm: Algorithm,
    /// Rows of the largest product that was looked at.
    most_rows: usize,
}

impl FastPath {
    /// Part of the backend's numerics: cuBLASLt adds in an order of its own. What follows a `+` is of the way back.
    pub(super) fn id(&self) -> String {
        let [forward, back] = &self.digests;
        let forward = forward.as_ref().map_or_else(|| "own".into(), |digest| format!("lt-{digest}"));
        back.as_ref().map_or(forward.clone(), |digest| format!("{forward}+lt-{digest}"))
    }

    /// Starts a product, if it is one of the chosen; `false` if it is not. One of more rows than the sweep had is several: the bits are the same.
    ///
    /// # Safety
    /// The addresses are of memory with room for the product, which stays until the work on this stream is done.
    pub(super) unsafe fn multiply(&mut self, queue: &Queue, product: &Product) -> bool {
        let Some(Chosen { multiplier, algorithm, most_rows }) = self.chosen.get_mut(&product.shape) else { return false };
        let shape = product.shape;
        let (x_row, out_row) = (2 * shape.x_stride(), shape.out_bytes() * stride_of(shape.width()));
        for first in (0..product.rows).step_by(*most_rows) {
            let rows = (*most_rows).min(product.rows - first);
            let at = |start: u64, row: usize| start + (first * row) as u64;
            let part = Product { rows, x: at(product.x, x_row), out: at(product.out, out_row), ..*product };
            // SAFETY: the caller's, of some of the rows.
            if let Err(error) = unsafe { multiplier.multiply(algorithm, queue, &part) } {
                queue.failure.set(|| format!("the GPU failed at a product of {rows} rows by weights {shape}: {}", words(error)));
            }
        }
        true
    }

    fn seal(&mut self, library: &Library) {
        self.digests = [false, true].map(|back| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&(library.version as u64).to_le_bytes());
            let mut chosen = self.chosen.iter().filter(|(shape, _)| shape.back == back).peekable();
            chosen.peek()?;
            for (shape, Chosen { algorithm, .. }) in chosen {
                [shape.outputs as u64, shape.inputs as u64, shape.wide.into()].iter().for_each(|n| {
                    hasher.update(&n.to_le_bytes());
                });
                hasher.update(&algorithm.bytes().collect::<Vec<u8>>());
            }
            Some(hasher.finalize().to_hex()[..8].to_owned())
        });
    }
}

/// Chooses for all products of a model. No card memory is held afterwards.
pub(super) fn fast_path(device: &Arc<Device>, queue: &Queue, choice: GemmChoice, products: &[Products]) -> Result<FastPath, Unavailable> {
    let mut path = FastPath::default();
    if choice == GemmChoice::Own {
        return Ok(path);
    }
    let library = match Library::open(device) {
        Ok(library) => library,
        Err(reason) if choice == GemmChoice::Cublaslt => return Err(reason),
        Err(reason) => {
            tracing::info!("our own kernels compute all matrix products: {reason}");
            return Ok(path);
        }
    };
    let products = merged(products);
    let mut inexact = Vec::new();
    for &Products { shape, most_rows } in &products {
        let arena = Arena::new(device.clone(), Purpose::Activations, 0);
        let measured = Sweep::new(device, queue, &arena, shape, most_rows).measure(&library, choice);
        if queue.failure.is_set() {
            let reason = queue.failure.take().unwrap_or_default();
            // Memory that did not suffice is forgotten with the telling; anything else stays.
            if choice == GemmChoice::Cublaslt || queue.failure.is_set() {
                return Err(Unavailable(format!("cuBLASLt was tried with weights {shape}: {reason}; --gemm own does without it")));
            }
            tracing::info!("our own kernel multiplies by weights {shape}, which could not be tried with cuBLASLt: {reason}");
            continue;
        }
        tracing::debug!("products by weights {shape}: {}", measured.sentence());
        match measured.chosen {
            Some(chosen) => drop(path.chosen.insert(shape, chosen)),
            None if measured.verdict == Verdict::Inexact => inexact.push(shape.to_string()),
            None => {}
        }
    }
    path.seal(&library);
    let (fast, all, version) = (path.chosen.len(), products.len(), library.version);
    tracing::info!("cuBLASLt (version {version}) multiplies by {fast} of {all} shapes of weights, our own kernels by the others");
    if choice == GemmChoice::Cublaslt && !inexact.is_empty() {
        let shapes = inexact.join(", ");
        tracing::warn!(
            "cuBLASLt has no algorithm that gives a row the same bits in any company for weights {shapes}; our own kernels multiply there"
        );
    }
    Ok(path)
}

/// What was found out about one weight shape.
struct Measured {
    verdict: Verdict,
    own: Times,
    /// One for each candidate that was looked at; those that are not exact have none.
    candidates: Vec<Option<Times>>,
    chosen: Option<Chosen>,
    most_rows: usize,
}

impl Measured {
    fn sentence(&self) -> String {
        let (tried, exact) = (self.candidates.len(), self.candidates.iter().flatten().count());
        let best = self.candidates.iter().flatten().min_by(|a, b| a.many.total_cmp(&b.many));
        let who = match self.verdict {
            Verdict::Fast(i) => format!("candidate {i} of cuBLASLt"),
            _ => "our own kernel".into(),
        };
        let times = match best {
            Some(best) => {
                let (few, few_own) = (1e3 * best.few, 1e3 * self.own.few);
                let (many, many_own) = (1e3 * best.many, 1e3 * self.own.many);
                let rows = self.most_rows;
                format!("; {FEW_ROWS} rows take {few:.0} us, ours {few_own:.0}; {rows} rows take {many:.0} us, ours {many_own:.0}")
            }
            None => String::new(),
        };
        format!("{who}; {exact} of {tried} candidates are exact{times}")
    }
}

/// One weight shape's memory on the card.
struct Sweep<'a> {
    device: &'a Device,
    queue: &'a Queue,
    shape: WeightShape,
    most_rows: usize,
    /// Rows after which the activations repeat.
    period: usize,
    /// As many matrices as it takes to go beyond the cache.
    w: Buffer,
    matrices: usize,
    x: Buffer,
    out: Buffer,
}

impl<'a> Sweep<'a> {
    fn new(device: &'a Device, queue: &'a Queue, arena: &Arena, shape: WeightShape, most_rows: usize) -> Sweep<'a> {
        // Steps that are recorded have padding rows.
        let most_rows = room(most_rows.max(1));
        let matrix = shape.outputs * stride_of(shape.inputs) * 2;
        let matrices = BEYOND_CACHE.div_ceil(matrix.max(1)).max(1);
        let take = |bytes| arena.take(bytes, &queue.failure);
        Sweep {
            device,
            queue,
            shape,
            most_rows,
            period: period(most_rows),
            w: take(matrices * matrix),
            matrices,
            x: take(most_rows * shape.x_stride() * 2),
            out: take(most_rows * stride_of(shape.width()) * shape.out_bytes()),
        }
    }

    /// Compares, times and decides. Once the card has failed the result means nothing.
    fn measure(&self, library: &Arc<Library>, choice: GemmChoice) -> Measured {
        let nothing = Times { few: f32::NAN, many: f32::NAN };
        let mut measured =
            Measured { verdict: Verdict::Inexact, own: nothing, candidates: Vec::new(), chosen: None, most_rows: self.most_rows };
        let Ok(mut multiplier) = Multiplier::new(library, self.shape) else { return measured };
        let candidates = self.proposed(&mut multiplier);
        if candidates.is_empty() || self.queue.failure.is_set() {
            return measured;
        }
        self.fill();
        let own = self.own_values(self.period);
        for algorithm in &candidates {
            let exact = self.is_exact(&mut multiplier, algorithm, &own);
            let times = exact.then(|| self.times(&mut |product| self.fast(&mut multiplier, algorithm, product)));
            measured.candidates.push(times);
            if measured.candidates.iter().flatten().count() == TIMED || self.queue.failure.is_set() {
                break;
            }
        }
        measured.own = self.times(&mut |product| self.own(product));
        measured.verdict = decide(choice, measured.own, &measured.candidates);
        if let Verdict::Fast(i) = measured.verdict {
            measured.chosen = Some(Chosen { multiplier, algorithm: candidates[i], most_rows: self.most_rows });
        }
        measured
    }

    /// What the library proposes for many rows and for some, in turn.
    fn proposed(&self, multiplier: &mut Multiplier) -> Vec<Algorithm> {
        let mut of = |rows: usize| multiplier.proposed(rows).unwrap_or_default();
        let (many, some) = (of(self.most_rows), of(MIDDLE_ROWS.min(self.most_rows)));
        let mut all: Vec<Algorithm> = Vec::new();
        for i in 0..many.len().max(some.len()) {
            for one in [many.get(i), some.get(i)].into_iter().flatten() {
                if !all.contains(one) {
                    all.push(*one);
                }
            }
        }
        all.truncate(CANDIDATES);
        all
    }

    /// Random rows. Every second sum cancels, see [`probe`]: on the way forward those of every second row of the weights, on the way back those of every
    /// second row of gradients.
    fn fill(&self) {
        let WeightShape { outputs, inputs, wide, back } = self.shape;
        // An even number of rows, so that the pattern goes on from one portion to the next.
        let portion = (PORTION / (2 * stride_of(inputs))).next_multiple_of(2).max(2);
        let rows = portion.min(self.matrices * outputs);
        self.repeat(&self.w, &probe(1, rows, inputs, |row| !back && row % 2 == 1, 1.0));
        let x = probe(2, self.period, self.shape.reduced(), |row| !back || row % 2 == 1, -1.0);
        if !back {
            return self.repeat(&self.x, &x);
        }
        let half = outputs / 2 * stride_of(inputs) * 2;
        // SAFETY: two halves of the first matrix.
        unsafe { self.queue.copy(self.w.ptr + half as u64, self.w.ptr, half) };
        let row = stride_of(outputs) * 2;
        match wide {
            // What lies between two rows is filled too: nothing may read it.
            true => self.repeat(&self.x, &x.chunks(row).flat_map(|row| [row, row]).flatten().copied().collect::<Vec<u8>>()),
            false => self.repeat(&self.x, &x),
        }
    }

    /// Fills a buffer with a pattern.
    fn repeat(&self, to: &Buffer, pattern: &[u8]) {
        let mut filled = pattern.len().min(to.bytes);
        // SAFETY: each copy ends within the buffer, and reads what was written before.
        unsafe { self.queue.upload_now(to.ptr, &pattern[..filled]) };
        while filled > 0 && filled < to.bytes {
            // Whole patterns are copied, so that it goes on where it stopped.
            let bytes = filled.min(to.bytes - filled);
            // SAFETY: as above.
            unsafe { self.queue.copy(to.ptr + filled as u64, to.ptr, bytes) };
            filled += bytes;
        }
    }

    /// A product of so many rows by matrix `matrix`.
    fn product(&self, rows: usize, matrix: usize) -> Product {
        let bytes = self.shape.outputs * stride_of(self.shape.inputs) * 2;
        let w = self.w.ptr + (matrix % self.matrices * bytes) as u64;
        Product { shape: self.shape, rows, out: self.out.ptr, x: self.x.ptr, w }
    }

    /// Our own kernel's product.
    fn own(&self, product: &Product) -> bool {
        // SAFETY: `product` makes no others, and the buffers have room for the most rows.
        unsafe { gemm::multiply(self.queue, self.device.multiprocessors, product) };
        true
    }

    /// cuBLASLt's product; `false` if it does not take it.
    fn fast(&self, multiplier: &mut Multiplier, algorithm: &Algorithm, product: &Product) -> bool {
        // SAFETY: as above.
        unsafe { multiplier.multiply(algorithm, self.queue, product) }.is_ok()
    }

    fn own_values(&self, rows: usize) -> Vec<f32> {
        self.own(&self.product(rows, 0));
        self.rows_of(&self.download(0, rows))
    }

    fn stride_bytes(&self) -> usize {
        stride_of(self.shape.width()) * self.shape.out_bytes()
    }

    /// Rows of the product, padding included.
    fn download(&self, first: usize, rows: usize) -> Vec<u8> {
        let mut bytes = vec![0; rows * self.stride_bytes()];
        // SAFETY: the rows are of the product, whose buffer has room for the most rows.
        unsafe { self.queue.download_now(&mut bytes, self.out.ptr + (first * self.stride_bytes()) as u64) };
        bytes
    }

    /// The values of downloaded rows.
    fn rows_of(&self, bytes: &[u8]) -> Vec<f32> {
        let width = self.shape.width() * self.shape.out_bytes();
        let row = |row: &[u8]| -> Vec<f32> {
            match self.shape.gives_wide() {
                true => row.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
                false => row.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            }
        };
        bytes.chunks(self.stride_bytes()).flat_map(|bytes| row(&bytes[..width])).collect()
    }

    /// The rows of one product of this algorithm, after nothing of the product before is left.
    fn run(&self, multiplier: &mut Multiplier, algorithm: &Algorithm, rows: usize) -> bool {
        if self.queue.failure.is_set() {
            return false;
        }
        // SAFETY: the buffer has this size. All bits set is a NaN, which no product here is.
        let cleared = unsafe { result::memset_d8_async(self.out.ptr, 0xff, self.out.bytes, self.queue.stream.cu_stream()) };
        self.queue.failure.note("memory was cleared", cleared);
        self.fast(multiplier, algorithm, &self.product(rows, 0)) && !self.queue.failure.is_set()
    }

    /// Whether an algorithm takes every number of rows, computes what our own kernel does, and gives equal rows equal bits.
    fn is_exact(&self, multiplier: &mut Multiplier, algorithm: &Algorithm, own: &[f32]) -> bool {
        let counts = row_counts(self.most_rows);
        if !counts.iter().all(|rows| multiplier.takes(algorithm, *rows)) || !self.run(multiplier, algorithm, self.most_rows) {
            return false;
        }
        let reference = self.download(0, self.period);
        let values = self.rows_of(&reference);
        if first_far(own, &values, self.shape.reduced()).is_some() {
            return false;
        }
        // The largest product is still there, and goes first.
        for (i, &rows) in counts.iter().rev().enumerate() {
            if (i > 0 && !self.run(multiplier, algorithm, rows)) || !self.repeats(&reference, rows) {
                return false;
            }
        }
        (1..=self.most_rows).all(|rows| multiplier.takes(algorithm, rows))
    }

    /// Whether the rows of the product on the card have the bits of the reference.
    fn repeats(&self, reference: &[u8], rows: usize) -> bool {
        let (stride, width) = (self.stride_bytes(), self.shape.width() * self.shape.out_bytes());
        let portion = (PORTION / stride).max(1);
        (0..rows).step_by(portion).all(|first| {
            let part = self.download(first, portion.min(rows - first));
            first_unlike(reference, &part, first, stride, width).is_none()
        })
    }

    fn times(&self, multiply: &mut dyn FnMut(&Product) -> bool) -> Times {
        Times { few: self.time(multiply, FEW_ROWS.min(self.most_rows), 40), many: self.time(multiply, self.most_rows, 8) }
    }

    /// Milliseconds of a product: the best of three runs of so many. NaN where it cannot be had.
    fn time(&self, multiply: &mut dyn FnMut(&Product) -> bool, rows: usize, products: usize) -> f32 {
        let mut run = || {
            let event =
                || self.queue.failure.note("an event was recorded", self.queue.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)));
            let start = event()?;
            let started = (0..products).all(|i| multiply(&self.product(rows, i)));
            let end = event()?;
            let elapsed = self.queue.failure.note("its work was waited for", start.elapsed_ms(&end))?;
            started.then_some(elapsed / products as f32)
        };
        // The first run warms up.
        run();
        let times = [run(), run(), run()];
        times.into_iter().map(|time| time.unwrap_or(f32::NAN)).reduce(|a, b| if a.is_nan() { a } else { a.min(b) }).unwrap_or(f32::NAN)
    }
}
