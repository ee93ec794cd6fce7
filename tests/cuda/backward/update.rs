//! What the optimizer does between two batches: flat numbers, AdamW, norms, and masters that become serving weights. All of it elementwise or in a
//! fixed order: the CPU's bits, but for sums of squares and the adapters' gradients, whose order is the card's own.

use adaroll::model::Dtype;
use adaroll::ops::backward::{AdamwStep, Adapter, Slab};
use adaroll::ops::cuda::{CudaOps, Matrix, Vector};
use adaroll::ops::{Ops, TrainOps};
use half::bf16;
use libtest_mimic::Trial;

use super::{alike, assert_all_same, assert_sums, differ, matrix, vector, wide};
use crate::kit::{Numbers, assert_same, assert_well, bf16_bytes, card_tensor, cpu, cpu_values, cuda, full, trial, view};

/// Around the numbers of a thread, of a block, and more than one block.
const LENGTHS: [usize; 7] = [1, 3, 4, 127, 1024, 1025, 5003];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("backward::update::flat_numbers_come_back_as_they_went", round_trips),
        trial("backward::update::flat_numbers_are_added_cleared_and_scaled", flats),
        trial("backward::update::adamw_has_the_cpus_bits", adamw),
        trial("backward::update::adamw_with_moments_on_the_host_has_the_same_bits", offloaded),
        trial("backward::update::sums_of_squares", squares),
        trial("backward::update::masters_are_rounded_once", rounding),
        trial("backward::update::adapters_are_merged_as_the_cpu_merges", merged),
        trial("backward::update::gradients_of_adapters", adapters),
        trial("backward::update::matrices_are_packed_again", repacked),
    ]
}

fn round_trips() {
    let mut ops = cuda();
    assert_eq!(ops.row_group(), 16);
    for n in LENGTHS {
        let mut numbers = Numbers(n as u64);
        let mut values = wide(&mut numbers, n, 3.0);
        // Bits are kept, whatever they mean.
        values[0] = f32::from_bits(0x7fc0_1234);
        let mut flat = ops.flat(&values);
        assert_same(&|| format!("{n} numbers"), &ops.read_flat(&flat), &values);
        let others = wide(&mut numbers, n, 1e-40);
        ops.write_flat(&mut flat, &others);
        assert_same(&|| format!("{n} others"), &ops.read_flat(&flat), &others);
        for zeros in [ops.zeros(n), ops.parked_zeros(n)] {
            assert_same(&|| format!("{n} zeros"), &ops.read_flat(&zeros), &vec![0.0; n]);
        }
    }
    ops.offload_moments();
    let mut parked = ops.parked_zeros(1025);
    assert_same(&|| "zeros on the host".into(), &ops.read_flat(&parked), &[0.0; 1025]);
    let values = wide(&mut Numbers(1), 1025, 1.0);
    ops.write_flat(&mut parked, &values);
    assert_same(&|| "numbers on the host".into(), &ops.read_flat(&parked), &values);
    assert_well(&ops);
}

fn flats() {
    for n in LENGTHS {
        let mut numbers = Numbers(n as u64);
        let (x, y) = (wide(&mut numbers, n, 3.0), wide(&mut numbers, n, 1.0));
        let got = alike(&|| format!("{n} numbers"), &|ops| {
            let (mut sum, other) = (ops.flat(&x), ops.flat(&y));
            ops.add_flat(&mut sum, &other);
            let mut scaled = ops.flat(&x);
            ops.scale(&mut scaled, 0.3);
            let mut cleared = ops.flat(&x);
            ops.clear_flat(&mut cleared);
            [sum, scaled, cleared, other].iter().map(|flat| ops.read_flat(flat)).collect()
        });
        let want = [x.iter().zip(&y).map(|(x, y)| x + y).collect(), x.iter().map(|x| x * 0.3).collect(), vec![0.0; n], y.clone()];
        assert_all_same(&|| format!("{n} numbers"), &got, &want);
    }
}

fn steps() -> impl Iterator<Item = AdamwStep> {
    (1..=3).map(|step| AdamwStep { lr: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, step })
}

/// Parameters, moments after three steps; the gradient of the second one is zero in part.
fn trained<O: TrainOps>(ops: &mut O, n: usize) -> Vec<Vec<f32>> {
    let mut numbers = Numbers(n as u64);
    let mut values = ops.flat(&wide(&mut numbers, n, 0.1));
    let (mut m, mut v) = (ops.parked_zeros(n), ops.parked_zeros(n));
    for step in steps() {
        let mut gradient = wide(&mut numbers, n, 1e-3);
        if step.step == 2 {
            gradient.iter_mut().step_by(3).for_each(|g| *g = 0.0);
        }
        let gradient = ops.flat(&gradient);
        ops.adamw(&step, &mut values, &gradient, &mut m, &mut v);
    }
    [&values, &m, &v].map(|flat| ops.read_flat(flat)).to_vec()
}

fn adamw() {
    for n in LENGTHS {
        let got = alike(&|| format!("{n} numbers"), &|ops| trained(ops, n));
        assert_all_same(&|| format!("{n} numbers"), &got, &trained(&mut cpu(), n));
    }
}

/// Moments visit the card in pieces of 4 Mi numbers: more than one piece takes seconds, and so comes with the whole products of shapes alone.
fn offloaded() {
    let longer = if full() { vec![(4 << 20) + 1003] } else { Vec::new() };
    for n in LENGTHS.into_iter().chain(longer) {
        let got = alike(&|| format!("{n} numbers"), &|ops| {
            ops.offload_moments();
            trained(ops, n)
        });
        assert_all_same(&|| format!("{n} numbers"), &got, &trained(&mut cpu(), n));
    }
}

/// Bits of f64 numbers, for a comparison of runs.
fn halves(sums: &[f64]) -> Vec<f32> {
    sums.iter().flat_map(|s| [(s.to_bits() >> 32) as u32, s.to_bits() as u32]).map(f32::from_bits).collect()
}

fn squares() {
    let lengths = [5usize, 0, 1, 16_384, 16_385, 50_001];
    let mut numbers = Numbers(62);
    let all: Vec<Vec<f32>> = lengths.iter().map(|&n| wide(&mut numbers, n, 1.0)).collect();
    alike(&|| "sums of squares".into(), &|ops| {
        let flats: Vec<_> = all.iter().map(|values| ops.flat(values)).collect();
        let sums = ops.sums_of_squares(&flats.iter().collect::<Vec<_>>());
        assert_eq!(sums.len(), all.len());
        for ((values, flat), sum) in all.iter().zip(&flats).zip(&sums) {
            let exact: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            assert!((sum - exact).abs() <= 1e-12 * exact, "{} numbers: {sum} and not {exact}", values.len());
            // One alone.
            assert_eq!(ops.sum_of_squares(flat).to_bits(), sum.to_bits(), "{} numbers", values.len());
        }
        vec![halves(&sums)]
    });
    // What is not finite is seen, wherever it is; squares beyond f32 are none of those.
    let mut ops = cuda();
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        for at in [0, 16_383, 16_384, 20_000] {
            let mut values = vec![0.0; 20_001];
            values[at] = bad;
            let sum = ops.sum_of_squares(&ops.flat(&values));
            assert_eq!(sum.is_finite(), bad.is_finite(), "{bad} at {at}: {sum}");
        }
    }
    assert_well(&ops);
}

/// Rows of a matrix on the card.
fn rows_of(ops: &mut CudaOps, matrix: &Matrix, outputs: usize, inputs: usize) -> Vec<f32> {
    let mut out = ops.tensor(outputs, inputs);
    ops.embed(matrix, &(0..outputs as u32).collect::<Vec<u32>>(), &mut out);
    ops.read(&out)
}

/// A vector on the card.
fn values_of(ops: &mut CudaOps, vector: &Vector, len: usize) -> Vec<f32> {
    let mut out = card_tensor(ops, 1, len, &vec![0.0; len]);
    ops.add_bias(&mut out, vector);
    ops.read(&out)
}

fn numbers_in(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
}

/// Halfway between two numbers of bf16, on either side of it, and beyond the largest: to nearest, ties to even.
fn ties(values: &mut [f32]) {
    let bits = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x3f80_7fff, 0xbf80_8000, 0x7f7f_7fff, 0x0000_8000, 0x0001_8000];
    values.iter_mut().zip(bits).for_each(|(v, bits)| *v = f32::from_bits(bits));
}

fn rounding() {
    for (first, second, inputs) in [(5, 9, 24), (3, 1, 33), (1, 2, 1), (4, 40, 300)] {
        let outputs = first + second;
        let mut numbers = Numbers(inputs as u64);
        let mut values = wide(&mut numbers, outputs * inputs, 1.0);
        ties(&mut values);
        let want: Vec<f32> = values.iter().map(|v| bf16::from_f32(*v).to_f32()).collect();
        let (above, below) = values.split_at(first * inputs);
        let what = || format!("{first} + {second} rows of {inputs}");
        let got = alike(&what, &|ops| {
            let [a, b] = [above, below].map(|part| ops.flat(part));
            let mut packed = matrix(ops, outputs, inputs, &vec![9.0; outputs * inputs]);
            ops.round_matrix(&[Slab::plain(&a), Slab::plain(&b)], Dtype::Bf16, &mut packed);
            let mut joined = vector(ops, &vec![9.0; outputs * inputs]);
            ops.round_vector(&[&a, &b], Dtype::Bf16, &mut joined);
            let bytes = [ops.rounded(Slab::plain(&a), inputs, Dtype::Bf16), ops.rounded(Slab::plain(&b), inputs, Dtype::Bf16)].concat();
            let kept = [ops.read_flat(&a), ops.read_flat(&b)].concat();
            vec![rows_of(ops, &packed, outputs, inputs), values_of(ops, &joined, outputs * inputs), numbers_in(&bytes), kept]
        });
        assert_all_same(&what, &got, &[want.clone(), want.clone(), want.clone(), values.clone()]);
    }
}

/// (outputs, inputs, rank): rows that do not start on 16 bytes, more and fewer columns than a block has threads.
const ADAPTED: [(usize, usize, usize); 5] = [(1, 1, 1), (33, 130, 5), (7, 24, 16), (40, 7, 3), (5, 300, 64)];

/// A base and an adapter of its shape: `[outputs, inputs]`, `[rank, inputs]`, `[outputs, rank]`.
fn adapted((outputs, inputs, rank): (usize, usize, usize)) -> [Vec<f32>; 3] {
    let mut numbers = Numbers((outputs * 1000 + inputs) as u64);
    [outputs * inputs, rank * inputs, outputs * rank].map(|n| wide(&mut numbers, n, 1.0))
}

/// A plain slab above an adapted one, as a matrix and as bytes.
fn merge<O: TrainOps>(
    ops: &mut O,
    (outputs, inputs, rank): (usize, usize, usize),
    rows: impl Fn(&mut O, &O::Matrix) -> Vec<f32>,
) -> Vec<Vec<f32>> {
    let [base, a, b] = adapted((outputs, inputs, rank)).map(|values| ops.flat(&values));
    let bytes = vec![0u8; 4 * outputs * inputs];
    let mut matrix = ops.matrix(&[view(&bytes, &[2 * outputs, inputs])]);
    let slab = Slab { base: &base, adapter: Some(Adapter { a: &a, b: &b, rank, scale: 0.7 }) };
    ops.round_matrix(&[Slab::plain(&base), slab], Dtype::Bf16, &mut matrix);
    let bytes = ops.rounded(slab, inputs, Dtype::Bf16);
    vec![rows(ops, &matrix), numbers_in(&bytes)]
}

fn merged() {
    for shape in ADAPTED {
        let (outputs, inputs, _) = shape;
        let want = merge(&mut cpu(), shape, |ops, matrix| {
            let mut out = ops.tensor(2 * outputs, inputs);
            ops.embed(matrix, &(0..2 * outputs as u32).collect::<Vec<u32>>(), &mut out);
            cpu_values(&out)
        });
        let what = || format!("{shape:?}");
        let got = alike(&what, &|ops| merge(ops, shape, |ops, matrix| rows_of(ops, matrix, 2 * outputs, inputs)));
        assert_all_same(&what, &got, &want);
        assert!(differ(&got[1], &numbers_in(&bf16_bytes(&adapted(shape)[0]))), "{}: the adapter changes nothing", what());
    }
}

fn adapters() {
    for shape in ADAPTED {
        let (outputs, inputs, rank) = shape;
        let [dw, a, b] = adapted(shape);
        let got = alike(&|| format!("{shape:?}"), &|ops| {
            let [dw, a, b] = [&dw, &a, &b].map(|values| ops.flat(values));
            // They are written, whatever was there.
            let (mut da, mut db) = (ops.flat(&vec![f32::NAN; rank * inputs]), ops.flat(&vec![f32::NAN; outputs * rank]));
            ops.adapter_backward(Adapter { a: &a, b: &b, rank, scale: 0.7 }, inputs, &dw, &mut da, &mut db);
            vec![ops.read_flat(&da), ops.read_flat(&db)]
        });
        let product = |n: usize, of: &dyn Fn(usize) -> (f32, f32)| -> f32 {
            let sum: f64 = (0..n).map(of).map(|(x, y)| f64::from(x) * f64::from(y)).sum();
            (f64::from(0.7f32) * sum) as f32
        };
        let da: Vec<f32> =
            (0..rank * inputs).map(|i| product(outputs, &|o| (b[o * rank + i / inputs], dw[o * inputs + i % inputs]))).collect();
        let db: Vec<f32> =
            (0..outputs * rank).map(|i| product(inputs, &|c| (dw[i / rank * inputs + c], a[i % rank * inputs + c]))).collect();
        assert_sums(&|| format!("A of {shape:?}"), outputs, &got[0], &da);
        assert_sums(&|| format!("B of {shape:?}"), inputs, &got[1], &db);
    }
}

/// New weights of the same shape, as a matrix made of them.
fn repacked() {
    let (outputs, inputs, rows) = (9, 33, 3);
    let mut numbers = Numbers(71);
    let (old, new) = (numbers.many(outputs * inputs, 1.0), numbers.many(outputs * inputs, 1.0));
    let x = numbers.many(rows * inputs, 1.0);
    let (above, below) = (bf16_bytes(&new[..4 * inputs]), bf16_bytes(&new[4 * inputs..]));
    let got = alike(&|| "packed again".into(), &|ops| {
        let (mut again, made) = (matrix(ops, outputs, inputs, &old), matrix(ops, outputs, inputs, &new));
        ops.repack(&mut again, &[view(&above, &[4, inputs]), view(&below, &[5, inputs])]);
        let x = card_tensor(ops, rows, inputs, &x);
        [again, made]
            .iter()
            .map(|w| {
                let mut out = ops.tensor(rows, outputs);
                ops.linear(&x, w, &mut out);
                ops.read(&out)
            })
            .collect()
    });
    assert_same(&|| "packed again".into(), &got[0], &got[1]);
}
