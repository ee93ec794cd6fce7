//! What the card can do at best, measured in the same run: copies within its memory, and the largest products.

use crate::ops::Ops;
use crate::ops::cuda::CudaOps;

use super::GpuBenchError;
use super::rig::check;
use super::stopwatch::Stopwatch;
use crate::ops::Heads;

/// Whose kernels multiply fastest.
const OURS: &str = "our own kernels";
const LIBRARY: &str = "cuBLASLt";

/// The card's limits.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Limits {
    /// Bytes read and written per second by copies within the card, in GB/s.
    pub copy_gb_per_s: f64,
    /// Bytes of such a copy.
    pub copy_bytes: usize,
    /// Operations per second of the largest products of bf16 numbers, in TFLOP/s: the best of all kernels, whatever their bits.
    pub matrix_tflop_per_s: f64,
    /// Whose kernels those are.
    pub matrix_by: &'static str,
    /// The same of our own kernels.
    pub own_matrix_tflop_per_s: f64,
    /// Rows, outputs and inputs of the best of those products.
    pub matrix_shape: [usize; 3],
}

impl Limits {
    /// Seconds that so many bytes and operations take at least.
    pub(super) fn floor(&self, bytes: f64, flops: f64) -> f64 {
        (bytes / (self.copy_gb_per_s * 1e9)).max(flops / (self.matrix_tflop_per_s * 1e12))
    }
}

/// Measures them. `tiny`: on an emulated card, whose figures mean nothing.
pub(super) fn measure(base: &CudaOps, effort: f64, tiny: bool) -> Result<Limits, GpuBenchError> {
    let mut ops = base.another()?;
    let mut noise = ops.noise(1.0);
    let (copied, products): (usize, &[[usize; 3]]) = match tiny {
        true => (1 << 20, &[[64, 64, 64]]),
        false => (2 << 30, &[[8192, 8192, 8192], [8192, 16_384, 4096], [16_384, 8192, 8192]]),
    };
    // Two halves of rows of 1024 values.
    let mut matrix = ops.random_matrix(&mut noise, copied / 1024, 1024);
    check(&ops)?;
    let heads = Heads { query: 1, kv: 1, dim: 16 };
    let mut watch = Stopwatch::new(&mut ops, heads, 4.0 * effort);
    let mut bytes = 0;
    let seconds = watch.repeat(&mut |ops| bytes = ops.copy_halves(&mut matrix, 1));
    let copy = seconds.map_or(0.0, |s| bytes as f64 / s);
    drop(matrix);
    let mut best = (0.0, OURS, [0; 3]);
    let mut own = 0.0_f64;
    for &[rows, outputs, inputs] in products {
        let weights = watch.ops.random_matrix(&mut noise, outputs, inputs);
        let (mut x, mut out) = (watch.ops.tensor(rows, inputs), watch.ops.tensor(rows, outputs));
        watch.ops.fill_tensor(&mut noise, &mut x);
        let rate = |seconds: Option<f64>| seconds.map_or(0.0, |s| 2.0 * (rows * outputs * inputs) as f64 / s);
        let ours = rate(watch.repeat(&mut |ops| ops.linear(&x, &weights, &mut out)));
        let effort = watch.effort;
        let time = |ops: &mut CudaOps, start: &mut dyn FnMut(&mut CudaOps)| Stopwatch::new(ops, heads, effort).repeat(start);
        let library = rate(watch.ops.library_products(&x, &[&weights], &mut out, time));
        own = own.max(ours);
        for (rate, by) in [(ours, OURS), (library, LIBRARY)] {
            if rate > best.0 {
                best = (rate, by, [rows, outputs, inputs]);
            }
        }
    }
    check(&ops)?;
    Ok(Limits {
        copy_gb_per_s: copy / 1e9,
        copy_bytes: bytes / 2,
        matrix_tflop_per_s: best.0 / 1e12,
        matrix_by: best.1,
        own_matrix_tflop_per_s: own / 1e12,
        matrix_shape: best.2,
    })
}
