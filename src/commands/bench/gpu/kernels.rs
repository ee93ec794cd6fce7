//! Every kernel alone, beside the least time that its bytes and operations need on this card.
//!
//! Matrices and caches are those of all layers in turn, so that they come from memory and not from the L2 cache, as in a step. Activations of small
//! batches do come from there, in a step too: their kernels have floors of a few nanoseconds, and what is measured is what a launch costs.

use crate::engine::StreamKey;
use crate::model::forward::rope_frequencies;
use crate::model::weights::Weights;
use crate::ops::cuda::{CudaOps, Matrix, Tensor, Vector};
use crate::ops::{Ask, Batch, Draw, Filters, Heads, Late, Ops, Segment};

use super::limits::Limits;
use super::rig::{Rig, check, decode_batch, ones, prefill_batch, tokens};
use super::stopwatch::{Deadline, Stopwatch};
use super::{GpuBenchError, shapes};

/// One kernel at one size.
#[derive(Clone, Debug, serde::Serialize)]
pub struct KernelFigure {
    /// What it does.
    pub kernel: String,
    /// Its size in words.
    pub size: String,
    /// Rows (of logits for draws, of tokens else).
    pub rows: usize,
    /// Microseconds of a call.
    pub us: f64,
    /// Bytes that it must read and write.
    pub bytes: f64,
    /// Operations that it must make, where they are products.
    pub flops: f64,
    /// Microseconds that those need at the card's limits.
    pub floor_us: f64,
    /// Floor over time.
    pub share: f64,
    /// Microseconds of cuBLASLt's fastest kernel for this product and number of rows, whatever its bits.
    pub library_us: Option<f64>,
}

/// The projections of a layer and the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    Qkv,
    Out,
    GateUp,
    Down,
    Head,
}

impl Product {
    pub(super) const ALL: [Product; 5] = [Product::Qkv, Product::Out, Product::GateUp, Product::Down, Product::Head];

    pub(super) fn name(self) -> &'static str {
        match self {
            Product::Qkv => "gemm qkv",
            Product::Out => "gemm out",
            Product::GateUp => "gemm gate_up",
            Product::Down => "gemm down",
            Product::Head => "gemm head",
        }
    }

    /// Outputs and inputs.
    pub(super) fn shape(self, rig: &Rig) -> (usize, usize) {
        let (c, h) = (&rig.config, rig.heads);
        match self {
            Product::Qkv => (h.qkv_cols(), c.hidden_size),
            Product::Out => (c.hidden_size, h.query * h.dim),
            Product::GateUp => (2 * c.intermediate_size, c.hidden_size),
            Product::Down => (c.hidden_size, c.intermediate_size),
            Product::Head => (c.vocab_size, c.hidden_size),
        }
    }

    /// How often a step makes it.
    pub(super) fn times(self, rig: &Rig) -> usize {
        if self == Product::Head { 1 } else { rig.config.num_layers }
    }

    fn matrices(self, weights: &Weights<CudaOps>) -> Vec<&Matrix> {
        let layers = weights.layers.iter();
        match self {
            Product::Qkv => layers.map(|l| &l.qkv).collect(),
            Product::Out => layers.map(|l| &l.out).collect(),
            Product::GateUp => layers.map(|l| &l.gate_up).collect(),
            Product::Down => layers.map(|l| &l.down).collect(),
            Product::Head => vec![weights.head.as_ref().unwrap_or(&weights.embed)],
        }
    }
}

/// Rows from which on a call is long enough that a few of them are enough.
const MANY_ROWS: usize = 2048;
/// Calls of those.
const FEW: usize = 4;

/// Seconds of a product with one of these matrices.
pub(super) fn product_seconds(watch: &mut Stopwatch<'_>, matrices: &[&Matrix], x: &Tensor, out: &mut Tensor, rows: usize) -> Option<f64> {
    let n = if rows >= MANY_ROWS { matrices.len().min(FEW) } else { matrices.len() };
    let batch = rows_batch(rows, rows, 1);
    let step = watch.step(&batch, &mut |ops| matrices[..n].iter().for_each(|w| ops.linear(x, w, out)))?;
    Some(step / n as f64)
}

/// Seconds of one of the model's products as the model makes it, and of cuBLASLt's fastest.
pub(super) struct ProductTimes {
    pub(super) ours: Option<f64>,
    pub(super) library: Option<f64>,
}

/// Seconds of a layer's attention in a decode step.
pub(super) fn decode_attention_seconds(rig: &mut Rig, batch: usize, context: usize, effort: f64) -> Result<Option<f64>, GpuBenchError> {
    let made = decode_batch(batch, context, rig.config.vocab_size);
    attention_seconds(rig, &made, effort)
}

fn attention_seconds(rig: &mut Rig, batch: &Batch, effort: f64) -> Result<Option<f64>, GpuBenchError> {
    let (rows, heads, layers) = (batch.rows(), rig.heads, rig.config.num_layers);
    let mut qkv = rig.ops.tensor(rows, heads.qkv_cols());
    let mut out = rig.ops.tensor(rows, heads.query * heads.dim);
    rig.ops.fill_tensor(&mut rig.noise, &mut qkv);
    check(&rig.ops)?;
    let n = if rows >= MANY_ROWS { layers.min(FEW) } else { layers };
    let cache = &rig.cache;
    let step = Stopwatch::new(&mut rig.ops, heads, effort)
        .step(batch, &mut |ops| (0..n).for_each(|layer| ops.attention(&qkv, heads, layer, batch, cache, &mut out)));
    check(&rig.ops)?;
    Ok(step.map(|s| s / n as f64))
}

/// Rows that are sequences of their own, each at position 0 of a block of its own as far as there are such.
fn rows_batch(rows: usize, vocab: usize, blocks: usize) -> Batch {
    let slots = (blocks * crate::ops::BLOCK_TOKENS).max(1);
    Batch {
        tokens: tokens(rows, vocab, 3),
        positions: vec![0; rows],
        slots: (0..rows).map(|row| (row % slots) as u32).collect(),
        segments: (0..rows).map(|row| Segment { row, rows: 1, start: 0, table: 0 }).collect(),
        tables: vec![0],
        logit_rows: (0..rows as u32).collect(),
    }
}

/// Sizes that kernels are measured at.
pub(super) struct Sizes<'a> {
    /// Rows of products.
    pub(super) product_rows: &'a [usize],
    /// Rows of everything else that goes row by row.
    pub(super) rows: &'a [usize],
    /// Batch sizes and contexts of decode.
    pub(super) batches: &'a [usize],
    pub(super) contexts: &'a [usize],
    /// Prompts and their length.
    pub(super) prefills: &'a [(usize, usize)],
}

/// Figures under way.
struct Figures<'a> {
    limits: &'a Limits,
    deadline: Deadline,
    found: &'a mut Vec<KernelFigure>,
    late: bool,
}

impl Figures<'_> {
    fn add(&mut self, kernel: &str, size: String, rows: usize, bytes: f64, flops: f64, seconds: Option<f64>) {
        let Some(seconds) = seconds else { return };
        let floor = self.limits.floor(bytes, flops);
        self.found.push(KernelFigure {
            kernel: kernel.into(),
            size,
            rows,
            us: seconds * 1e6,
            bytes,
            flops,
            floor_us: floor * 1e6,
            share: floor / seconds,
            library_us: None,
        });
    }

    fn is_late(&mut self) -> bool {
        self.late |= self.deadline.is_over();
        self.late
    }
}

/// Measures all kernels; `true` says that time was up before the end.
pub(super) fn measure(
    rig: &mut Rig,
    limits: &Limits,
    sizes: &Sizes<'_>,
    found: &mut Vec<KernelFigure>,
    effort: f64,
    deadline: Deadline,
) -> Result<bool, GpuBenchError> {
    let mut figures = Figures { limits, deadline, found, late: false };
    attention(rig, &mut figures, sizes, effort)?;
    products(rig, &mut figures, sizes, effort)?;
    draws(rig, &mut figures, sizes, effort)?;
    by_row(rig, &mut figures, sizes, effort)?;
    Ok(figures.late)
}

fn attention(rig: &mut Rig, figures: &mut Figures<'_>, sizes: &Sizes<'_>, effort: f64) -> Result<(), GpuBenchError> {
    let h = rig.heads;
    let row = |rows: usize| (rows * 2 * h.query * h.dim * 2) as f64;
    for &batch in sizes.batches {
        for &context in sizes.contexts {
            if figures.is_late() || !rig.fits(batch, context) {
                continue;
            }
            let seconds = decode_attention_seconds(rig, batch, context, effort)?;
            let bytes = (batch * context * 2 * h.kv * h.dim * 2) as f64 + row(batch);
            figures.add("attention decode", format!("{batch} x {context}"), batch, bytes, 0.0, seconds);
        }
    }
    for &(prompts, length) in sizes.prefills {
        if figures.is_late() || !rig.fits(prompts, length) {
            continue;
        }
        let batch = prefill_batch(prompts, length, rig.config.vocab_size);
        let seconds = attention_seconds(rig, &batch, effort)?;
        let (rows, flops) = (prompts * length, shapes::attention_flops(&rig.config, prompts, length));
        let bytes = (rows * 2 * h.kv * h.dim * 2) as f64 + row(rows);
        figures.add("attention prefill", format!("{prompts} x {length}"), rows, bytes, flops, seconds);
    }
    Ok(())
}

fn products(rig: &mut Rig, figures: &mut Figures<'_>, sizes: &Sizes<'_>, effort: f64) -> Result<(), GpuBenchError> {
    for product in Product::ALL {
        let (outputs, inputs) = product.shape(rig);
        for &rows in sizes.product_rows {
            // Prefill needs the logits of a row a prompt only.
            if figures.is_late() || (product == Product::Head && rows >= MANY_ROWS) {
                continue;
            }
            let times = product_of(rig, product, rows, effort)?;
            let wide = if product == Product::Head { 4 } else { 2 };
            let bytes = (outputs * inputs * 2 + rows * inputs * 2 + rows * outputs * wide) as f64;
            let flops = 2.0 * (rows * outputs * inputs) as f64;
            figures.add(product.name(), format!("{rows} x [{outputs}, {inputs}]"), rows, bytes, flops, times.ours);
            if let Some(figure) = figures.found.last_mut() {
                figure.library_us = times.library.map(|s| s * 1e6);
            }
        }
    }
    Ok(())
}

/// Seconds of one of the model's products.
pub(super) fn product_of(rig: &mut Rig, product: Product, rows: usize, effort: f64) -> Result<ProductTimes, GpuBenchError> {
    let (outputs, inputs) = product.shape(rig);
    let (x, mut out) = operands(&rig.ops, &mut rig.noise, rows, outputs, inputs, product == Product::Head);
    check(&rig.ops)?;
    let matrices = product.matrices(&rig.weights);
    let heads = rig.heads;
    let ours = product_seconds(&mut Stopwatch::new(&mut rig.ops, heads, effort), &matrices, &x, &mut out, rows);
    let n = if rows >= MANY_ROWS { matrices.len().min(FEW) } else { matrices.len() };
    let batch = rows_batch(rows, rows, 1);
    let time = |ops: &mut CudaOps, start: &mut dyn FnMut(&mut CudaOps)| Stopwatch::new(ops, heads, effort).step(&batch, start);
    let library = rig.ops.library_products(&x, &matrices[..n], &mut out, time).map(|s| s / n as f64);
    check(&rig.ops)?;
    Ok(ProductTimes { ours, library })
}

/// A random input of a product, and room for its output.
pub(super) fn operands(
    ops: &CudaOps,
    noise: &mut crate::ops::cuda::Noise,
    rows: usize,
    outputs: usize,
    inputs: usize,
    wide: bool,
) -> (Tensor, Tensor) {
    let mut x = ops.tensor(rows, inputs);
    ops.fill_tensor(noise, &mut x);
    (x, if wide { ops.wide_tensor(rows, outputs) } else { ops.tensor(rows, outputs) })
}

fn draws(rig: &mut Rig, figures: &mut Figures<'_>, sizes: &Sizes<'_>, effort: f64) -> Result<(), GpuBenchError> {
    let (vocab, heads) = (rig.config.vocab_size, rig.heads);
    let key = StreamKey::new(0, "bench").0;
    let narrowed = Filters { top_k: 50, top_p: 0.95, ..Filters::plain(1.0) };
    // Logits as wide as those of a trained model; every bf16 is an f32 with other bits behind it.
    let mut noise = rig.ops.noise(8.0);
    for &rows in sizes.batches {
        for (name, filters) in [("draw", Filters::plain(1.0)), ("draw, top-k and top-p", narrowed.clone())] {
            if figures.is_late() {
                continue;
            }
            let mut logits = rig.ops.wide_tensor(rows, vocab);
            rig.ops.fill_tensor(&mut noise, &mut logits);
            check(&rig.ops)?;
            let draw = |row: usize| Ask::Draw(Draw { row, filters: filters.clone(), key, position: 0, sample: row as u32 });
            let asks: Vec<Ask<'_>> = (0..rows).map(draw).collect();
            let mut drawn = Vec::new();
            // With one step's answers always under way, as in the engine; what the host does meanwhile is part of the time.
            rig.ops.start(&logits, &asks);
            let seconds = Stopwatch::new(&mut rig.ops, heads, effort).repeat(&mut |ops| {
                ops.start(&logits, &asks);
                ops.finish(&mut drawn);
            });
            rig.ops.finish(&mut drawn);
            check(&rig.ops)?;
            figures.add(name, format!("{rows} x {vocab}"), rows, (rows * vocab * 4) as f64, 0.0, seconds);
        }
    }
    Ok(())
}

fn by_row(rig: &mut Rig, figures: &mut Figures<'_>, sizes: &Sizes<'_>, effort: f64) -> Result<(), GpuBenchError> {
    let (hidden, inner, heads) = (rig.config.hidden_size, rig.config.intermediate_size, rig.heads);
    for &rows in sizes.rows {
        if figures.is_late() {
            break;
        }
        let mut buffers = Buffers::new(rig, rows);
        check(&rig.ops)?;
        let batch = rows_batch(rows, rig.config.vocab_size, rig.blocks);
        let layers = if rows >= MANY_ROWS { FEW.min(rig.config.num_layers) } else { rig.config.num_layers };
        for kernel in Row::ALL {
            let Rig { ops, weights, cache, .. } = rig;
            let step = Stopwatch::new(ops, heads, effort).step(&batch, &mut |ops| {
                (0..layers).for_each(|layer| kernel.call(ops, &mut buffers, weights, cache, heads, layer, &batch))
            });
            check(&rig.ops)?;
            let bytes = rows as f64 * kernel.row_bytes(hidden, inner, heads);
            figures.add(kernel.name(), format!("{rows} rows"), rows, bytes, 0.0, step.map(|s| s / layers as f64));
        }
    }
    Ok(())
}

/// Kernels that go row by row.
#[derive(Clone, Copy)]
enum Row {
    Embed,
    Norm,
    AddNorm,
    RopeKv,
    Swiglu,
}

struct Buffers {
    x: Tensor,
    y: Tensor,
    h: Tensor,
    qkv: Tensor,
    angles: Tensor,
    gate_up: Tensor,
    act: Tensor,
    norm: Vector,
    head_norm: Vector,
}

impl Buffers {
    fn new(rig: &mut Rig, rows: usize) -> Buffers {
        let Rig { ops, config, heads, noise, .. } = rig;
        let mut random = |cols| {
            let mut t = ops.tensor(rows, cols);
            ops.fill_tensor(noise, &mut t);
            t
        };
        let (x, y, h) = (random(config.hidden_size), random(config.hidden_size), random(config.hidden_size));
        let (qkv, gate_up, act) = (random(heads.qkv_cols()), random(2 * config.intermediate_size), random(config.intermediate_size));
        let mut angles = ops.wide_tensor(rows, heads.dim);
        let frequencies = rope_frequencies(&config.rope, heads.dim);
        ops.rope_angles(&vec![1; rows], &frequencies, &mut angles);
        Buffers { x, y, h, qkv, angles, gate_up, act, norm: ones(ops, config.hidden_size), head_norm: ones(ops, heads.dim) }
    }
}

impl Row {
    const ALL: [Row; 5] = [Row::Embed, Row::Norm, Row::AddNorm, Row::RopeKv, Row::Swiglu];

    fn name(self) -> &'static str {
        match self {
            Row::Embed => "embed",
            Row::Norm => "rmsnorm",
            Row::AddNorm => "add_rmsnorm",
            Row::RopeKv => "rope_kv",
            Row::Swiglu => "swiglu",
        }
    }

    /// Bytes that a row of it must read and write.
    fn row_bytes(self, hidden: usize, inner: usize, h: Heads) -> f64 {
        let values = match self {
            Row::Embed | Row::Norm => 2 * hidden,
            Row::AddNorm => 4 * hidden,
            // Everything is read; query and key heads are written back, key and value heads to the cache; an angle is an f32.
            Row::RopeKv => h.qkv_cols() + (h.query + h.kv) * h.dim + 2 * h.kv * h.dim + 2 * h.dim,
            Row::Swiglu => 3 * inner,
        };
        2.0 * values as f64
    }

    fn call(
        self,
        ops: &mut CudaOps,
        b: &mut Buffers,
        weights: &Weights<CudaOps>,
        cache: &mut crate::ops::cuda::KvCache,
        heads: Heads,
        layer: usize,
        batch: &Batch,
    ) {
        match self {
            Row::Embed => ops.embed(&weights.embed, &batch.tokens, &mut b.x),
            Row::Norm => ops.rmsnorm(&b.x, &b.norm, 1e-6, &mut b.h),
            Row::AddNorm => ops.add_rmsnorm(&mut b.x, &b.y, &b.norm, 1e-6, &mut b.h),
            Row::RopeKv => {
                let norm = Some((&b.head_norm, &b.head_norm));
                ops.rope_kv(&mut b.qkv, heads, norm, 1e-6, &b.angles, layer, &batch.slots, cache);
            }
            Row::Swiglu => ops.swiglu(&b.gate_up, &mut b.act),
        }
    }
}
