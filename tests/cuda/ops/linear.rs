//! `linear`: products of every shape, in every tile.

use adaroll::ops::Ops;
use libtest_mimic::Trial;

use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, bf16_bytes, card_tensor, combinations, cpu, cpu_tensor, cpu_values, cuda, rounded,
    trial_in_orders, view,
};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_in_orders("linear::products_of_all_shapes_in_bf16", || products(false)),
        trial_in_orders("linear::products_of_all_shapes_in_f32", || products(true)),
        trial_in_orders("linear::a_row_has_the_same_bits_alone_and_among_others", a_row_is_a_row),
        trial_in_orders("linear::slabs_of_a_matrix_are_rows_below_each_other", slabs),
    ]
}

/// One product on card and CPU.
fn product(rows: usize, outputs: usize, inputs: usize, wide: bool) {
    let mut numbers = Numbers((rows * 1_000_003 + outputs * 1009 + inputs) as u64);
    let (x, w) = (numbers.many(rows * inputs, 1.5), numbers.many(outputs * inputs, 1.0));
    let bytes = bf16_bytes(&w);
    let mut exact = cpu();
    let mut want = exact.tensor(rows, outputs);
    exact.linear(&cpu_tensor(&exact, rows, inputs, &x), &exact.matrix(&[view(&bytes, &[outputs, inputs])]), &mut want);
    let want = cpu_values(&want);
    let mut ops = cuda();
    let mut out = if wide { ops.wide_tensor(rows, outputs) } else { ops.tensor(rows, outputs) };
    let w = ops.matrix(&[view(&bytes, &[outputs, inputs])]);
    let x = card_tensor(&ops, rows, inputs, &x);
    ops.linear(&x, &w, &mut out);
    let got = ops.read(&out);
    assert_well(&ops);
    let what = || format!("[{rows}, {inputs}] x [{outputs}, {inputs}]{}", if wide { " in f32" } else { "" });
    if wide {
        // Both add in f32, in different orders.
        let error = crate::kit::nmse(&got, &want);
        assert!(error < 1e-12, "{}: normalised mean square error {error:.2e}", what());
    } else {
        assert_near(&what, &got, &want, &rounded(&want));
    }
}

fn products(wide: bool) {
    let rows = [1, 2, 15, 16, 17, 33, 64, 65, 130];
    let outputs = [1, 7, 31, 32, 33, 64, 100, 130];
    let inputs = [1, 7, 8, 16, 17, 64, 96, 130, 264];
    for shape in combinations(&[&rows, &outputs, &inputs]) {
        product(shape[0], shape[1], shape[2], wide);
    }
}

/// Alone, in tiles of 16, of 64 and of 128 rows: the same bits. Rows that hold NaN stand beside it.
fn a_row_is_a_row() {
    let (outputs, inputs) = (136, 120);
    let mut numbers = Numbers(5);
    let bytes = bf16_bytes(&numbers.many(outputs * inputs, 1.0));
    let row = numbers.many(inputs, 2.0);
    let mut ops = cuda();
    let w = ops.matrix(&[view(&bytes, &[outputs, inputs])]);
    let mut alone = Vec::new();
    for wide in [false, true] {
        for (rows, at) in [(1, 0), (5, 3), (16, 15), (40, 20), (64, 1), (100, 99), (300, 299)] {
            let mut x = vec![f32::NAN; rows * inputs];
            x[at * inputs..][..inputs].copy_from_slice(&row);
            let x = card_tensor(&ops, rows, inputs, &x);
            let mut out = if wide { ops.wide_tensor(rows, outputs) } else { ops.tensor(rows, outputs) };
            ops.linear(&x, &w, &mut out);
            let got = ops.read_row(&out, at);
            if rows == 1 {
                alone = got;
            } else {
                assert_same(&|| format!("row {at} of {rows}, wide {wide}"), &got, &alone);
            }
        }
    }
    assert_well(&ops);
}

fn slabs() {
    let mut numbers = Numbers(6);
    let (a, b) = (bf16_bytes(&numbers.many(5 * 24, 1.0)), bf16_bytes(&numbers.many(9 * 24, 1.0)));
    let x = numbers.many(3 * 24, 1.0);
    let mut ops = cuda();
    let joined = ops.matrix(&[view(&a, &[5, 24]), view(&b, &[9, 24])]);
    let whole = ops.matrix(&[view(&[a, b].concat(), &[14, 24])]);
    let x = card_tensor(&ops, 3, 24, &x);
    let (mut first, mut second) = (ops.tensor(3, 14), ops.tensor(3, 14));
    ops.linear(&x, &joined, &mut first);
    ops.linear(&x, &whole, &mut second);
    assert_same(&|| "slabs".into(), &ops.read(&first), &ops.read(&second));
    assert_well(&ops);
}
