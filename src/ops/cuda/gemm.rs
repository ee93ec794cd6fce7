//! Products by our own kernels: which variant multiplies, and its launch. Every variant of `gemm.cu` adds in the same order, so the choice changes
//! speed and no bit; the same holds for the two products of the way back, of `gemm_backward.cu`.

use super::gemm_choice::WeightShape;
use super::launch::{Arg, Queue};
use super::tensor::stride_of;

/// A product by weights on the card, by addresses: `out[rows, outputs] = x[rows, inputs] w[outputs, inputs]^T`, or on the way back `out[rows, inputs] =
/// x[rows, outputs] w`. Rows lie as far apart as the shape says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) shape: WeightShape,
    pub(super) rows: usize,
    pub(super) out: u64,
    pub(super) x: u64,
    pub(super) w: u64,
}

/// One tile shape of `gemm.cu`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Columns (outputs) of a tile.
    pub(super) cols: usize,
    pub(super) threads: u32,
    /// Dynamic shared bytes.
    pub(super) shared: u32,
    /// The kernels with bf16 and with f32 outputs.
    pub(super) kernels: [&'static str; 2],
}

/// From `gemm.cu`.
pub(super) const VARIANTS: [Variant; 3] = [
    Variant { rows: 16, cols: 32, threads: 64, shared: 65_280, kernels: ["gemm_16_bf16", "gemm_16_f32"] },
    Variant { rows: 64, cols: 64, threads: 128, shared: 92_160, kernels: ["gemm_64_bf16", "gemm_64_f32"] },
    Variant { rows: 128, cols: 128, threads: 128, shared: 110_592, kernels: ["gemm_128_bf16", "gemm_128_f32"] },
];

impl Variant {
    /// Blocks of a product.
    pub(super) fn grid(&self, rows: usize, outputs: usize) -> (usize, usize, usize) {
        (outputs.div_ceil(self.cols), rows.div_ceil(self.rows), 1)
    }
}

/// The variant for a product of `rows` rows on a card of so many multiprocessors: the largest tile that rows fill, unless it would leave
/// multiprocessors without work, or the card has too little shared memory for it.
pub(super) fn choose(rows: usize, outputs: usize, multiprocessors: u32, has_large: bool) -> &'static Variant {
    let [small, middle, large] = &VARIANTS;
    let blocks = |v: &Variant| {
        let (x, y, _) = v.grid(rows, outputs);
        x * y
    };
    match rows {
        _ if rows <= small.rows => small,
        _ if has_large && rows > middle.rows && blocks(large) >= multiprocessors as usize => large,
        _ => middle,
    }
}

/// Starts a product.
///
/// # Safety
/// The addresses are of memory with room for the product, which stays until the work on this stream is done.
pub(super) unsafe fn multiply(queue: &Queue, multiprocessors: u32, product: &Product) {
    let Product { shape, rows, out, x, w } = *product;
    let WeightShape { outputs, inputs, wide, back } = shape;
    if back {
        let product = BackwardProduct { rows, outputs, inputs, dy: x, dy_stride: shape.x_stride() };
        // SAFETY: the caller's.
        return unsafe { multiply_dx(queue, multiprocessors, &product, w, out) };
    }
    let has_large = queue.kernels.has(VARIANTS[2].kernels[usize::from(wide)]);
    let variant = choose(rows, outputs, multiprocessors, has_large);
    let args: [Arg; 9] = [
        out.into(),
        stride_of(outputs).into(),
        x.into(),
        stride_of(inputs).into(),
        w.into(),
        stride_of(inputs).into(),
        rows.into(),
        outputs.into(),
        inputs.into(),
    ];
    // SAFETY: as the kernel takes them, and of the type of the output; the memory is the caller's.
    unsafe { queue.launch(variant.kernels[usize::from(wide)], variant.grid(rows, outputs), variant.threads, args) };
}

/// Tile shapes of `gemm_backward.cu`; the kernels give dx and dw.
pub(super) const BACKWARD_VARIANTS: [Variant; 2] = [
    Variant { rows: 64, cols: 64, threads: 128, shared: 92_160, kernels: ["gemm_dx_64", "gemm_dw_64"] },
    Variant { rows: 128, cols: 128, threads: 128, shared: 107_520, kernels: ["gemm_dx_128", "gemm_dw_128"] },
];

/// The sizes of a linear map's way back, and where `dy [rows, outputs]` is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackwardProduct {
    pub(super) rows: usize,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    pub(super) dy: u64,
    pub(super) dy_stride: usize,
}

/// The variant for an output of this size: the large tile where it keeps all multiprocessors busy.
fn choose_backward(queue: &Queue, multiprocessors: u32, rows: usize, cols: usize, kernel: usize) -> &'static Variant {
    let [small, large] = &BACKWARD_VARIANTS;
    let (x, y, _) = large.grid(rows, cols);
    if x * y >= multiprocessors as usize && queue.kernels.has(large.kernels[kernel]) { large } else { small }
}

/// `dx[rows, inputs] = dy w`, with `w [outputs, inputs]` and rows as far apart as their widths say.
///
/// # Safety
/// As [`multiply`].
unsafe fn multiply_dx(queue: &Queue, multiprocessors: u32, product: &BackwardProduct, w: u64, dx: u64) {
    let BackwardProduct { rows, outputs, inputs, dy, dy_stride } = *product;
    let variant = choose_backward(queue, multiprocessors, rows, inputs, 0);
    let stride = stride_of(inputs);
    let args: [Arg; 9] =
        [dx.into(), stride.into(), dy.into(), dy_stride.into(), w.into(), stride.into(), rows.into(), outputs.into(), inputs.into()];
    // SAFETY: as the kernel takes them; the memory is the caller's.
    unsafe { queue.launch(variant.kernels[0], variant.grid(rows, inputs), variant.threads, args) };
}

/// `dw[outputs, inputs] += dy^T x`, f32 without padding.
///
/// # Safety
/// As [`multiply`].
pub(super) unsafe fn multiply_dw(queue: &Queue, multiprocessors: u32, product: &BackwardProduct, x: u64, x_stride: usize, dw: u64) {
    let BackwardProduct { rows, outputs, inputs, dy, dy_stride } = *product;
    if rows == 0 {
        return;
    }
    let variant = choose_backward(queue, multiprocessors, outputs, inputs, 1);
    let args: [Arg; 8] = [dw.into(), dy.into(), dy_stride.into(), x.into(), x_stride.into(), rows.into(), outputs.into(), inputs.into()];
    // SAFETY: as the kernel takes them; the memory is the caller's.
    unsafe { queue.launch(variant.kernels[1], variant.grid(outputs, inputs), variant.threads, args) };
}
