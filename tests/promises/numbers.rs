//! Numbers for tests of operations: a seeded generator, stored weights, backends, and comparisons of bits.

use adaroll::model::{Dtype, TensorView};
use adaroll::ops::Ops;
use adaroll::ops::cpu::{CpuOps, Isa, Tensor};
use half::{bf16, f16};

/// The SplitMix64 generator (Steele, Lea and Flood 2014).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Mean 0, variance `spread` squared, roughly normal.
    pub fn near_zero(&mut self, spread: f32) -> f32 {
        let sum: f64 = (0..4).map(|_| self.unit() - 0.5).sum();
        (sum * 3f64.sqrt()) as f32 * spread
    }

    pub fn row(&mut self, cols: usize, spread: f32) -> Vec<f32> {
        (0..cols).map(|_| self.near_zero(spread)).collect()
    }

    pub fn rows(&mut self, rows: usize, cols: usize, spread: f32) -> Vec<Vec<f32>> {
        (0..rows).map(|_| self.row(cols, spread)).collect()
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A tensor as a checkpoint stores it, and the values that it stores.
pub struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    pub values: Vec<f32>,
}

impl Stored {
    /// Rounds `numbers` to `dtype` (Bf16, F16 or F32).
    pub fn new(dtype: Dtype, shape: &[usize], numbers: &[f32]) -> Stored {
        assert_eq!(shape.iter().product::<usize>(), numbers.len());
        let (bytes, values) = match dtype {
            Dtype::Bf16 => {
                let rounded = numbers.iter().map(|&x| bf16::from_f32(x));
                (rounded.clone().flat_map(bf16::to_le_bytes).collect(), rounded.map(bf16::to_f32).collect())
            }
            Dtype::F16 => {
                let rounded = numbers.iter().map(|&x| f16::from_f32(x));
                (rounded.clone().flat_map(f16::to_le_bytes).collect(), rounded.map(f16::to_f32).collect())
            }
            Dtype::F32 => (numbers.iter().flat_map(|x| x.to_le_bytes()).collect(), numbers.to_vec()),
            other => panic!("no weights are stored as {other}"),
        };
        Stored { dtype, shape: shape.to_vec(), bytes, values }
    }

    pub fn view(&self) -> TensorView<'_> {
        TensorView { name: "stored", dtype: self.dtype, shape: self.shape.clone(), bytes: &self.bytes }
    }
}

/// Every instruction set of this machine with one, two and three threads. The first is the plain reference on one thread.
pub fn backends() -> Vec<(String, CpuOps)> {
    let backend = |isa, threads| (format!("{isa} on {threads} threads"), CpuOps::with_isa(threads, isa).unwrap());
    Isa::available().into_iter().flat_map(|isa| (1..=3).map(move |threads| backend(isa, threads))).collect()
}

/// Every instruction set of this machine on one thread.
pub fn instruction_sets() -> Vec<(String, CpuOps)> {
    Isa::available().into_iter().map(|isa| (isa.to_string(), CpuOps::with_isa(1, isa).unwrap())).collect()
}

/// Activations that hold `rows`.
pub fn tensor_of(ops: &CpuOps, rows: &[Vec<f32>]) -> Tensor {
    let mut tensor = ops.tensor(rows.len(), rows[0].len());
    for (r, row) in rows.iter().enumerate() {
        tensor.row_mut(r).copy_from_slice(row);
    }
    tensor
}

/// Activations full of NaN, so that whatever an operation leaves unwritten is seen.
pub fn unwritten(ops: &CpuOps, rows: usize, cols: usize) -> Tensor {
    tensor_of(ops, &vec![vec![f32::NAN; cols]; rows])
}

/// The rows of a tensor.
pub fn rows_of(ops: &CpuOps, tensor: &Tensor, rows: usize) -> Vec<Vec<f32>> {
    (0..rows).map(|r| ops.read_row(tensor, r)).collect()
}

/// Equal bits; one NaN is as good as another.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()))
}

/// Says where bits differ.
#[track_caller]
pub fn assert_same_bits(got: &[Vec<f32>], want: &[Vec<f32>], what: &dyn Fn() -> String) {
    assert_eq!(got.len(), want.len(), "{}", what());
    for (r, (g, w)) in got.iter().zip(want).enumerate() {
        if !same_bits(g, w) {
            let at = g.iter().zip(w).position(|(x, y)| !same_bits(&[*x], &[*y]));
            let (x, y) = at.map_or((0.0, 0.0), |i| (g[i], w[i]));
            panic!("{}: row {r} differs, first at {at:?}: {x:e} and not {y:e}", what());
        }
    }
}
