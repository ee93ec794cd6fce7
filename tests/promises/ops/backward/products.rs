//! `linear_dx`, `linear_dw` and `bias_backward`.

use adaroll::model::Dtype;
use adaroll::ops::{Ops, TrainOps};

use super::{rows, same_everywhere};
use crate::numbers::{Numbers, Stored, assert_same_bits, rows_of, same_bits, tensor_of, unwritten};

/// (outputs, inputs, rows): odd, below 16, whole panels and not, more and fewer than one block of 128 outputs or rows, several tasks.
const SHAPES: [(usize, usize, usize); 10] =
    [(1, 1, 1), (3, 5, 2), (5, 1, 9), (16, 16, 16), (17, 15, 7), (50, 127, 33), (130, 40, 70), (37, 33, 150), (257, 64, 15), (14, 48, 130)];

/// One chain of f32 FMA over ascending outputs, whatever runs it.
#[test]
fn gradients_of_inputs_are_one_chain() {
    let mut numbers = Numbers(21);
    for (outputs, inputs, m) in SHAPES {
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let stored = Stored::new(dtype, &[outputs, inputs], &numbers.row(outputs * inputs, 0.7));
            let dy = numbers.rows(m, outputs, 1.0);
            let want: Vec<Vec<f32>> = dy
                .iter()
                .map(|dy| (0..inputs).map(|k| (0..outputs).fold(0.0, |sum, n| dy[n].mul_add(stored.values[n * inputs + k], sum))).collect())
                .collect();
            let got = same_everywhere("linear_dx", &|ops| {
                let w = ops.matrix(&[stored.view()]);
                let (dy, mut dx) = (tensor_of(ops, &dy), unwritten(ops, m, inputs));
                ops.linear_dx(&dy, &w, &mut dx);
                rows_of(ops, &dx, m)
            });
            assert_same_bits(&got, &want, &|| format!("{m} rows x {outputs} outputs -> {inputs} inputs of {dtype}"));
        }
    }
}

/// One chain over ascending rows that goes on from the gradient: so a batch cut anywhere gives the same bits.
#[test]
fn gradients_of_weights_are_one_chain_that_goes_on() {
    let mut numbers = Numbers(22);
    for (outputs, inputs, m) in SHAPES {
        // Columns of a wider projection, and rows of longer activations.
        let (left, above) = (numbers.below(20), numbers.below(5));
        let (dy, x) = (numbers.rows(m + above, outputs + left + 3, 1.0), numbers.rows(m + 2, inputs, 1.0));
        let start = numbers.row(outputs * inputs, 1.0);
        let mut want = start.clone();
        for r in 0..m {
            for n in 0..outputs {
                for k in 0..inputs {
                    let to = &mut want[n * inputs + k];
                    *to = dy[above + r][left + n].mul_add(x[r + 2][k], *to);
                }
            }
        }
        for cuts in [vec![0, m], vec![0, m / 3, m / 2, m]] {
            let got = same_everywhere("linear_dw", &|ops| {
                let (dy, x, mut dw) = (tensor_of(ops, &dy), tensor_of(ops, &x), start.clone());
                for cut in cuts.windows(2) {
                    ops.linear_dw(&dy, above + cut[0]..above + cut[1], left..left + outputs, &x, 2 + cut[0], &mut dw);
                }
                rows(&dw, inputs)
            });
            assert_same_bits(&got, &rows(&want, inputs), &|| format!("{m} rows, {outputs} x {inputs}, cut at {cuts:?}"));
        }
    }
}

#[test]
fn gradients_of_biases_add_up_row_by_row() {
    let mut numbers = Numbers(23);
    for (cols, m) in [(1, 1), (5, 40), (100, 3), (130, 300)] {
        let (dy, start) = (numbers.rows(m, cols + 7, 1.0), numbers.row(cols, 1.0));
        let want: Vec<f32> = (0..cols).map(|c| dy.iter().fold(start[c], |sum, row| sum + row[4 + c])).collect();
        let got = same_everywhere("bias", &|ops| {
            let (dy, mut db) = (tensor_of(ops, &dy), start.clone());
            ops.bias_backward(&dy, 4..4 + cols, &mut db);
            vec![db]
        });
        assert_same_bits(&got, &[want], &|| format!("{m} rows of {cols}"));
    }
}

/// The twin: a product as it is usually made deterministic on one machine only, rows dealt to threads and their sums added up, gives other bits
/// with another number of threads. So the equalities above are not vacuous on such numbers.
#[test]
fn sums_of_each_threads_rows_would_change_bits() {
    let mut numbers = Numbers(22);
    let (dy, x) = (numbers.row(150, 1.0), numbers.rows(150, 64, 1.0));
    let usual = |threads: usize| -> Vec<f32> {
        let per_thread = 150usize.div_ceil(threads);
        let mut total = vec![0f32; 64];
        for rows in (0..150).collect::<Vec<_>>().chunks(per_thread) {
            let mut own = vec![0f32; 64];
            for &r in rows {
                own.iter_mut().zip(&x[r]).for_each(|(to, x)| *to = dy[r].mul_add(*x, *to));
            }
            total.iter_mut().zip(&own).for_each(|(to, v)| *to += v);
        }
        total
    };
    assert!(!same_bits(&usual(1), &usual(2)) && !same_bits(&usual(2), &usual(3)));
}
