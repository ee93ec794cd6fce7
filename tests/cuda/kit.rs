//! What the tests of the kernels share: backends, numbers, shapes in pairwise combination, and the measure of an error.

use std::sync::{Arc, OnceLock};

use adaroll::model::{Dtype, TensorView};
use adaroll::ops::Ops;
use adaroll::ops::cpu::CpuOps;
use adaroll::ops::cuda::compile::sources::FAMILIES;
use adaroll::ops::cuda::compile::{KernelOptions, Kernels, kernels_for};
use adaroll::ops::cuda::{CudaOps, CudaSettings, Device};
use half::bf16;
use libtest_mimic::{Failed, Trial};

use crate::emulator::{Card, card, orders, set_order};

/// A test that runs.
pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(format!("cuda::{name}"), move || {
        test();
        Ok::<(), Failed>(())
    })
}

/// A test that runs once in each order of warps.
pub fn trial_in_orders(name: &str, test: impl Fn() + Send + 'static) -> Trial {
    trial(name, move || {
        for &order in orders() {
            set_order(order);
            test();
        }
        set_order(0);
    })
}

/// The card.
pub fn device() -> &'static Arc<Device> {
    static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();
    DEVICE.get_or_init(|| Device::open(0).unwrap_or_else(|e| panic!("{e}")))
}

/// Images of every family: of the emulator they hold nothing but a name.
pub fn images() -> &'static Kernels {
    static IMAGES: OnceLock<Kernels> = OnceLock::new();
    IMAGES.get_or_init(|| match card() {
        Card::Real => kernels_for(device().arch, &KernelOptions::default()).unwrap_or_else(|e| panic!("{e}")),
        Card::Emulated => Kernels { arch: "emulated".into(), origin: "the emulator".into(), families: emulated().collect() },
    })
}

/// Images for the emulator.
pub fn emulated() -> impl Iterator<Item = (String, Vec<u8>)> {
    FAMILIES.iter().map(|family| (family.name.to_owned(), format!("ADAROLL-EMULATOR {}", family.name).into_bytes()))
}

/// A backend in which every buffer is an allocation of its own, so that guards stand right behind it.
pub fn cuda() -> CudaOps {
    cuda_with(CudaSettings { chunk_bytes: 0, graphs: false })
}

/// The same with decode steps recorded and replayed.
pub fn cuda_recording() -> CudaOps {
    cuda_with(CudaSettings { chunk_bytes: 0, graphs: true })
}

/// A backend with these settings.
pub fn cuda_with(settings: CudaSettings) -> CudaOps {
    CudaOps::new(device(), images(), settings).unwrap_or_else(|e| panic!("{e}"))
}

/// The CPU's operations.
pub fn cpu() -> CpuOps {
    CpuOps::new(1).unwrap()
}

/// Fails with what the card says.
pub fn assert_well(ops: &CudaOps) {
    if let Some(why) = ops.failure() {
        panic!("{why}");
    }
}

/// Whether whole products of shapes are wanted and not only pairs.
pub fn full() -> bool {
    std::env::var_os("ADAROLL_TEST_FULL").is_some_and(|v| v == "1")
}

/// Numbers of a seeded stream.
pub struct Numbers(pub u64);

impl Numbers {
    /// The next 64 bits (SplitMix64).
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// From -scale to scale, on bf16's grid.
    pub fn bf16(&mut self, scale: f32) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        bf16::from_f32(unit * scale).to_f32()
    }

    /// Many of them.
    pub fn many(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.bf16(scale)).collect()
    }
}

/// Combinations of one value from each list in which every pair of values of two lists occurs; all combinations where the whole product is wanted.
pub fn combinations(lists: &[&[usize]]) -> Vec<Vec<usize>> {
    if full() {
        return lists.iter().fold(vec![Vec::new()], |rows, list| {
            rows.iter().flat_map(|row| list.iter().map(move |v| [row.as_slice(), &[*v]].concat())).collect()
        });
    }
    let pairs = (0..lists.len()).flat_map(|a| (a + 1..lists.len()).map(move |b| (a, b)));
    let mut open: std::collections::BTreeSet<(usize, usize, usize, usize)> =
        pairs.flat_map(|(a, b)| lists[a].iter().flat_map(move |x| lists[b].iter().map(move |y| (a, *x, b, *y)))).collect();
    let mut numbers = Numbers(1);
    let mut rows = Vec::new();
    while let Some(&(a, x, b, y)) = open.first() {
        // Of some random rows with this pair, the one that closes most pairs.
        let candidate = |numbers: &mut Numbers| {
            let mut row: Vec<usize> = lists.iter().map(|list| list[numbers.below(list.len())]).collect();
            (row[a], row[b]) = (x, y);
            row
        };
        let closes = |row: &[usize]| open.iter().filter(|(a, x, b, y)| row[*a] == *x && row[*b] == *y).count();
        let best = (0..20).map(|_| candidate(&mut numbers)).max_by_key(|row| closes(row)).unwrap();
        open.retain(|(a, x, b, y)| best[*a] != *x || best[*b] != *y);
        rows.push(best);
    }
    rows
}

/// Bytes of a tensor in bf16.
pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
}

/// A view of bf16 bytes.
pub fn view<'a>(bytes: &'a [u8], shape: &[usize]) -> TensorView<'a> {
    TensorView { name: "test", dtype: Dtype::Bf16, shape: shape.to_vec(), bytes }
}

/// A tensor of the card that holds these values.
pub fn card_tensor(ops: &CudaOps, rows: usize, cols: usize, values: &[f32]) -> adaroll::ops::cuda::Tensor {
    let mut t = ops.tensor(rows, cols);
    ops.write(&mut t, values);
    t
}

/// The same in f32.
pub fn card_wide(ops: &CudaOps, rows: usize, cols: usize, values: &[f32]) -> adaroll::ops::cuda::Tensor {
    let mut t = ops.wide_tensor(rows, cols);
    ops.write(&mut t, values);
    t
}

/// A tensor of the CPU that holds these values.
pub fn cpu_tensor(ops: &CpuOps, rows: usize, cols: usize, values: &[f32]) -> adaroll::ops::cpu::Tensor {
    let mut t = ops.tensor(rows, cols);
    values.chunks(cols).enumerate().for_each(|(r, row)| t.row_mut(r).copy_from_slice(row));
    t
}

/// All rows of a tensor of the CPU.
pub fn cpu_values(t: &adaroll::ops::cpu::Tensor) -> Vec<f32> {
    (0..t.shape().0).flat_map(|r| t.row(r).to_vec()).collect()
}

/// Rounds to bf16.
pub fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect()
}

/// Sum of squared differences over the sum of squares.
pub fn nmse(got: &[f32], truth: &[f32]) -> f64 {
    assert_eq!(got.len(), truth.len());
    let square = |v: f64| v * v;
    let error: f64 = got.iter().zip(truth).map(|(g, t)| square(f64::from(*g) - f64::from(*t))).sum();
    let size: f64 = truth.iter().map(|t| square(f64::from(*t))).sum();
    if size == 0.0 { error } else { error / size }
}

/// The result of a kernel is as near to the exact one as a straightforward computation in bf16 is: its error is at most twice that one's.
pub fn assert_near(what: &dyn Fn() -> String, got: &[f32], exact: &[f32], straightforward: &[f32]) {
    assert!(got.iter().all(|v| v.is_finite()), "{}: not finite", what());
    let (error, reference) = (nmse(got, exact), nmse(straightforward, exact));
    assert!(error < 1e-4, "{}: normalised mean square error {error:.3e}", what());
    // Twice the error is four times its square; 1e-13 is f32's own.
    assert!(error <= 4.0 * reference + 1e-13, "{}: error {error:.3e}, a straightforward computation has {reference:.3e}", what());
}

/// The same bits.
pub fn assert_same(what: &dyn Fn() -> String, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "{}", what());
    if let Some(i) = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits()) {
        panic!("{}: value {i} is {:e} ({:08x}) and {:e} ({:08x})", what(), a[i], a[i].to_bits(), b[i], b[i].to_bits());
    }
}
