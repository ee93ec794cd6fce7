//! Operations that copy: `embed`, `gather_rows`, `copy_blocks` is with attention.

use adaroll::model::Dtype;
use adaroll::ops::Ops;

use crate::numbers::{Numbers, Stored, assert_same_bits, backends, rows_of, tensor_of, unwritten};

/// Embedding rows are the stored values exactly, for every type, size and order of ids, on every backend.
#[test]
fn embed_gives_the_stored_rows_exactly() {
    let mut numbers = Numbers(1);
    let mut backends = backends();
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        for (vocabulary, cols, rows) in [(1, 1, 1), (5, 3, 9), (16, 16, 16), (17, 15, 40), (50, 33, 7), (300, 577, 40)] {
            let table = Stored::new(dtype, &[vocabulary, cols], &numbers.row(vocabulary * cols, 2.0));
            let mut ids: Vec<u32> = (0..rows).map(|_| numbers.below(vocabulary) as u32).collect();
            ids[rows - 1] = vocabulary as u32 - 1;
            let want: Vec<Vec<f32>> = ids.iter().map(|&id| table.values[id as usize * cols..][..cols].to_vec()).collect();
            for (name, ops) in &mut backends {
                let matrix = ops.matrix(&[table.view()]);
                let mut out = unwritten(ops, rows, cols);
                ops.embed(&matrix, &ids, &mut out);
                assert_same_bits(&rows_of(ops, &out, rows), &want, &|| format!("{vocabulary} x {cols} {dtype}, {name}"));
            }
        }
    }
}

/// A NaN in one embedding comes out in the rows of its id, and only there.
#[test]
fn embed_does_not_hide_or_spread_a_nan() {
    let mut numbers = Numbers(2);
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::F32] {
        let mut values = numbers.row(20 * 9, 1.0);
        values[7 * 9 + 4] = f32::NAN;
        let table = Stored::new(dtype, &[20, 9], &values);
        for (name, mut ops) in backends() {
            let matrix = ops.matrix(&[table.view()]);
            let mut out = ops.tensor(4, 9);
            ops.embed(&matrix, &[6, 7, 8, 7], &mut out);
            let nan: Vec<Vec<bool>> = rows_of(&ops, &out, 4).iter().map(|r| r.iter().map(|v| v.is_nan()).collect()).collect();
            let want: Vec<Vec<bool>> = [6, 7, 8, 7].iter().map(|&id| (0..9).map(|i| id == 7 && i == 4).collect()).collect();
            assert_eq!(nan, want, "{dtype}, {name}");
        }
    }
}

/// Gathered rows are the rows, in the order asked for, repeats and NaN included.
#[test]
fn gather_gives_the_rows_exactly() {
    let mut numbers = Numbers(3);
    for (name, mut ops) in backends() {
        for cols in [1, 7, 16, 33, 100] {
            let mut rows = numbers.rows(20, cols, 1.0);
            rows[3][cols / 2] = f32::NAN;
            let x = tensor_of(&ops, &rows);
            for wanted in [vec![0], vec![19, 0, 3, 3, 7], (0..20).collect::<Vec<u32>>()] {
                let mut out = unwritten(&ops, wanted.len(), cols);
                ops.gather_rows(&x, &wanted, &mut out);
                let want: Vec<Vec<f32>> = wanted.iter().map(|&r| rows[r as usize].clone()).collect();
                assert_same_bits(&rows_of(&ops, &out, wanted.len()), &want, &|| format!("{wanted:?} of {cols} columns, {name}"));
            }
        }
    }
}

/// Vectors and matrices widen every type exactly and keep the order of their parts.
#[test]
fn vectors_are_joined_in_order() {
    let mut numbers = Numbers(4);
    let parts = [
        Stored::new(Dtype::Bf16, &[5], &numbers.row(5, 1.0)),
        Stored::new(Dtype::F16, &[1], &numbers.row(1, 1.0)),
        Stored::new(Dtype::F32, &[17], &numbers.row(17, 1.0)),
    ];
    let views: Vec<_> = parts.iter().map(Stored::view).collect();
    let want: Vec<f32> = parts.iter().flat_map(|p| p.values.clone()).collect();
    for (name, ops) in backends() {
        assert_eq!(ops.vector(&views), want, "{name}");
    }
}
