//! `linear_dx` and `linear_dw`: products of every shape in both tiles, rows alone and among others, batches that were cut.

use std::sync::{Arc, OnceLock};

use adaroll::ops::cuda::{CudaOps, CudaSettings, Device};
use adaroll::ops::{Ops, TrainOps};
use libtest_mimic::Trial;

use super::{alike, alike_on, assert_sums, differ, guarded, held, matrix, turn, wide, within};
use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, bf16_bytes, card_tensor, combinations, cpu, cpu_tensor, cpu_values, cuda, device,
    images, rounded, trial, view,
};

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for large in [false, true] {
        let tile = if large { "large" } else { "small" };
        trials.push(trial(&format!("backward::products::gradients_of_inputs_in_{tile}_tiles"), move || shapes(large, inputs_of)));
        trials.push(trial(&format!("backward::products::gradients_of_weights_in_{tile}_tiles"), move || shapes(large, weights_of)));
    }
    trials.extend([
        trial("backward::products::a_row_has_the_same_bits_alone_and_among_others", a_row_is_a_row),
        trial("backward::products::both_tiles_give_the_same_bits", tiles_agree),
        trial("backward::products::gradients_of_weights_go_on", weights_go_on),
        trial("backward::products::no_rows_leave_a_gradient_as_it_is", no_rows),
    ]);
    trials
}

/// A backend that takes the large tile for every product: a card of one multiprocessor is busy with one block.
fn large_tiles() -> CudaOps {
    static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();
    let one = DEVICE.get_or_init(|| {
        // The context stays while the other one has it.
        device();
        let mut one = Device::open(0).unwrap_or_else(|e| panic!("{e}"));
        Arc::get_mut(&mut one).unwrap().multiprocessors = 1;
        one
    });
    CudaOps::new(one, images(), CudaSettings { chunk_bytes: 0, graphs: false }).unwrap_or_else(|e| panic!("{e}"))
}

fn backend(large: bool) -> CudaOps {
    if large { large_tiles() } else { cuda() }
}

/// Edges of tiles, of steps of 16, of chunks of 8; and sums so long that every stage of the pipeline is used twice.
fn shapes(large: bool, test: fn(usize, bool, [usize; 3])) {
    let mut all = match large {
        false => combinations(&[&[1, 2, 15, 16, 17, 33, 64, 65, 130], &[1, 7, 31, 32, 33, 64, 100, 130], &[1, 7, 8, 16, 17, 64, 96, 130]]),
        true => combinations(&[&[1, 16, 129, 257], &[1, 70, 136], &[5, 128, 136, 257]]),
    };
    // And more row tiles than run together, over two columns of tiles.
    let (long, tall) = if large { (450, 2060) } else { (700, 1030) };
    all.extend([vec![long, 9, 20], vec![9, long, 20], vec![tall, 5, 140], vec![5, tall, 140]]);
    for (i, shape) in all.iter().enumerate() {
        test(i, large, [shape[0], shape[1], shape[2]]);
    }
}

fn what(large: bool, [rows, outputs, inputs]: [usize; 3]) -> String {
    format!("{rows} rows, {outputs} outputs, {inputs} inputs, {} tiles", if large { "large" } else { "small" })
}

fn inputs_of(i: usize, large: bool, shape: [usize; 3]) {
    let [rows, outputs, inputs] = shape;
    let mut numbers = Numbers((rows * 1_000_003 + outputs * 1009 + inputs) as u64);
    let (dy, w) = (numbers.many(rows * outputs, 1.5), numbers.many(outputs * inputs, 1.0));
    let bytes = bf16_bytes(&w);
    let mut exact = cpu();
    let mut want = exact.tensor(rows, inputs);
    let there = exact.matrix(&[view(&bytes, &[outputs, inputs])]);
    exact.linear_dx(&cpu_tensor(&exact, rows, outputs, &dy), &there, &mut want);
    let want = cpu_values(&want);
    let got = alike_on(turn(i), &|| backend(large), &|| what(large, shape), &|ops| {
        let (dy, w) = (guarded(ops, rows, outputs, &dy), matrix(ops, outputs, inputs, &w));
        let mut dx = guarded(ops, rows, inputs, &vec![f32::NAN; rows * inputs]);
        ops.linear_dx(&dy, &w, &mut dx);
        vec![held(ops, &dx)]
    });
    assert_near(&|| what(large, shape), &got[0], &want, &rounded(&want));
}

fn weights_of(i: usize, large: bool, shape: [usize; 3]) {
    let [rows, outputs, inputs] = shape;
    let mut numbers = Numbers((rows * 1_000_003 + outputs * 1009 + inputs + 1) as u64);
    let (dy, x) = (numbers.many(rows * outputs, 1.5), numbers.many(rows * inputs, 1.0));
    let start = wide(&mut numbers, outputs * inputs, 1.0);
    // Some columns of a wider projection, some rows of longer activations: everything else is NaN.
    let (left, above, x_row) = ([0, 8, 3, 24][i % 4], numbers.below(5), numbers.below(3));
    let (all_rows, all_cols) = (above + rows + 1, left + outputs + 3);
    let dy = within(&dy, outputs, all_rows, all_cols, above, left);
    let x = within(&x, inputs, x_row + rows + 1, inputs, x_row, 0);
    let mut exact = cpu();
    let mut want = start.clone();
    let (there_dy, there_x) = (cpu_tensor(&exact, all_rows, all_cols, &dy), cpu_tensor(&exact, x_row + rows + 1, inputs, &x));
    exact.linear_dw(&there_dy, above..above + rows, left..left + outputs, &there_x, x_row, &mut want);
    let got = alike_on(turn(i), &|| backend(large), &|| what(large, shape), &|ops| {
        let (dy, x) = (guarded(ops, all_rows, all_cols, &dy), guarded(ops, x_row + rows + 1, inputs, &x));
        let mut dw = ops.flat(&start);
        ops.linear_dw(&dy, above..above + rows, left..left + outputs, &x, x_row, &mut dw);
        vec![ops.read_flat(&dw)]
    });
    assert_sums(&|| format!("{}, columns from {left}", what(large, shape)), rows, &got[0], &want);
}

/// Alone and in every place of tiles of 64 and of 128 rows: the same bits. Rows that hold NaN stand beside it.
fn a_row_is_a_row() {
    let (outputs, inputs) = (136, 120);
    let mut numbers = Numbers(5);
    let w = numbers.many(outputs * inputs, 1.0);
    let row = numbers.many(outputs, 2.0);
    let mut alone: Option<Vec<f32>> = None;
    for large in [false, true] {
        for (i, (rows, at)) in [(1, 0), (5, 3), (16, 15), (40, 20), (64, 1), (100, 99), (130, 129)].into_iter().enumerate() {
            let dy = within(&row, outputs, rows, outputs, at, 0);
            let got = alike_on(turn(i), &|| backend(large), &|| format!("row {at} of {rows}"), &|ops| {
                let (dy, w) = (card_tensor(ops, rows, outputs, &dy), matrix(ops, outputs, inputs, &w));
                let mut dx = ops.tensor(rows, inputs);
                ops.linear_dx(&dy, &w, &mut dx);
                vec![ops.read_row(&dx, at)]
            });
            assert_same(&|| format!("row {at} of {rows}, large {large}"), &got[0], alone.get_or_insert(got[0].clone()));
        }
    }
}

fn tiles_agree() {
    let (rows, outputs, inputs) = (130, 75, 141);
    let mut numbers = Numbers(7);
    let (dy, x, w) = (numbers.many(rows * outputs, 1.5), numbers.many(rows * inputs, 1.0), numbers.many(outputs * inputs, 1.0));
    let start = wide(&mut numbers, outputs * inputs, 1.0);
    let [small, large] = [false, true].map(|large| {
        let mut ops = backend(large);
        let (dy, x, w) = (card_tensor(&ops, rows, outputs, &dy), card_tensor(&ops, rows, inputs, &x), matrix(&ops, outputs, inputs, &w));
        let (mut dx, mut dw) = (ops.tensor(rows, inputs), ops.flat(&start));
        ops.linear_dx(&dy, &w, &mut dx);
        ops.linear_dw(&dy, 0..rows, 0..outputs, &x, 0, &mut dw);
        let got = (ops.read(&dx), ops.read_flat(&dw));
        assert_well(&ops);
        got
    });
    assert_same(&|| "gradients of inputs".into(), &small.0, &large.0);
    assert_same(&|| "gradients of weights".into(), &small.1, &large.1);
}

/// Cut at multiples of a group of rows: the bits of the whole. The twin, sums of parts that are added up afterwards, has others.
fn weights_go_on() {
    for (rows, outputs, inputs) in [(96, 33, 41), (70, 66, 8)] {
        let mut numbers = Numbers(rows as u64);
        let (dy, x) = (numbers.many(rows * outputs, 1.5), numbers.many(rows * inputs, 1.0));
        let start = wide(&mut numbers, outputs * inputs, 1.0);
        let cut_at = |cuts: &[usize]| {
            alike(&|| format!("cut at {cuts:?}"), &|ops| {
                let (dy, x) = (card_tensor(ops, rows, outputs, &dy), card_tensor(ops, rows, inputs, &x));
                let mut dw = ops.flat(&start);
                for part in cuts.windows(2) {
                    ops.linear_dw(&dy, part[0]..part[1], 0..outputs, &x, part[0], &mut dw);
                }
                vec![ops.read_flat(&dw)]
            })
        };
        let whole = cut_at(&[0, rows]);
        for cuts in [vec![0, 16, rows], vec![0, 48, 64, rows]] {
            assert_same(&|| format!("{rows} rows cut at {cuts:?}"), &cut_at(&cuts)[0], &whole[0]);
        }
        let apart = alike(&|| "parts".into(), &|ops| {
            let (dy, x) = (card_tensor(ops, rows, outputs, &dy), card_tensor(ops, rows, inputs, &x));
            let mut dw = ops.flat(&start);
            for part in [0..48, 48..rows] {
                let mut own = ops.zeros(outputs * inputs);
                ops.linear_dw(&dy, part.clone(), 0..outputs, &x, part.start, &mut own);
                ops.add_flat(&mut dw, &own);
            }
            vec![ops.read_flat(&dw)]
        });
        assert!(differ(&apart[0], &whole[0]), "{rows} rows: sums of parts have the bits of the whole; the equalities above say nothing");
    }
}

fn no_rows() {
    let (mut ops, mut numbers) = (cuda(), Numbers(3));
    let start = wide(&mut numbers, 5 * 7, 1.0);
    let (dy, x) = (card_tensor(&ops, 2, 5, &[f32::NAN; 10]), card_tensor(&ops, 2, 7, &[f32::NAN; 14]));
    let mut dw = ops.flat(&start);
    ops.linear_dw(&dy, 1..1, 0..5, &x, 1, &mut dw);
    assert_same(&|| "no rows".into(), &ops.read_flat(&dw), &start);
    assert_well(&ops);
}
