//! Norms, rotation, activation, embedding.

use adaroll::ops::{Heads, Ops, TrainOps};

use super::{assert_near, differences, norm_weights, rows, same_everywhere};
use crate::numbers::{Numbers, assert_same_bits, rows_of, tensor_of};

const EPS: f32 = 1e-5;
const HEADS: [Heads; 3] = [Heads { query: 1, kv: 1, dim: 2 }, Heads { query: 3, kv: 1, dim: 20 }, Heads { query: 4, kv: 2, dim: 16 }];

fn rmsnorm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + f64::from(EPS)).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

#[test]
fn rmsnorm_backward_is_its_derivative() {
    let mut numbers = Numbers(31);
    for (n, m) in [(1, 3), (5, 2), (16, 1), (17, 4), (100, 5), (577, 40)] {
        let (x, dy, start) = (numbers.rows(m, n, 2.0), numbers.rows(m, n, 1.0), numbers.rows(m, n, 1.0));
        let (weight, dweight) = (norm_weights(&mut numbers, n), numbers.row(n, 1.0));
        let run = |cuts: &[usize]| {
            same_everywhere("rmsnorm", &|ops| {
                let (mut out, mut dweight) = (Vec::new(), dweight.clone());
                for cut in cuts.windows(2) {
                    let part = |t: &[Vec<f32>]| tensor_of(ops, &t[cut[0]..cut[1]]);
                    let (x, dy, mut dx) = (part(&x), part(&dy), part(&start));
                    ops.rmsnorm_backward(&x, &weight, EPS, &dy, &mut dx, &mut dweight);
                    out.extend(rows_of(ops, &dx, cut[1] - cut[0]));
                }
                out.push(dweight);
                out
            })
        };
        let got = run(&[0, m]);
        if m > 1 {
            assert_same_bits(&run(&[0, m / 2, m]), &got, &|| format!("{m} rows of {n} in two parts"));
        }
        if n > 100 {
            continue;
        }
        let mut want = dweight.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        for r in 0..m {
            let both = [x[r].clone(), weight.clone()].concat();
            let gradient = differences(&|v| rmsnorm(&v[..n], &v[n..]), &both, &dy[r]);
            let sum: Vec<f64> = gradient[..n].iter().zip(&start[r]).map(|(g, s)| g + f64::from(*s)).collect();
            assert_near(&got[r], &sum, 2e-6, &format!("rmsnorm of {n}"));
            want.iter_mut().zip(&gradient[n..]).for_each(|(w, g)| *w += g);
        }
        assert_near(&got[m], &want, 2e-6, &format!("weight of rmsnorm of {n}"));
    }
}

#[test]
fn qk_norm_backward_is_its_derivative() {
    let mut numbers = Numbers(32);
    for heads in HEADS {
        let (m, cols, dim) = (3, heads.qkv_cols(), heads.dim);
        let (raw, dy) = (numbers.rows(m, cols, 2.0), numbers.rows(m, cols, 1.0));
        let (q, k) = (norm_weights(&mut numbers, dim), norm_weights(&mut numbers, dim));
        let got = same_everywhere("qk_norm", &|ops| {
            let (raw, mut d) = (tensor_of(ops, &raw), tensor_of(ops, &dy));
            let (mut dq, mut dk) = (vec![0.0; dim], vec![0.0; dim]);
            ops.qk_norm_backward(&raw, heads, &q, &k, EPS, &mut d, &mut dq, &mut dk);
            [rows_of(ops, &d, m), vec![dq, dk]].concat()
        });
        let mut want = vec![0f64; 2 * dim];
        for r in 0..m {
            let all = [raw[r].clone(), q.clone(), k.clone()].concat();
            let forward = |v: &[f64]| {
                let (row, weights) = v.split_at(cols);
                let head = |(h, x): (usize, &[f64])| match h {
                    h if h < heads.query => rmsnorm(x, &weights[..dim]),
                    h if h < heads.query + heads.kv => rmsnorm(x, &weights[dim..]),
                    _ => x.to_vec(),
                };
                row.chunks(dim).enumerate().flat_map(head).collect()
            };
            let gradient = differences(&forward, &all, &dy[r]);
            assert_near(&got[r], &gradient[..cols], 2e-6, &format!("{heads:?}"));
            want.iter_mut().zip(&gradient[cols..]).for_each(|(w, g)| *w += g);
        }
        assert_near(&got[m..].concat(), &want, 2e-6, &format!("weights, {heads:?}"));
    }
}

#[test]
fn rope_backward_is_its_derivative() {
    let mut numbers = Numbers(33);
    for heads in HEADS {
        let (m, cols, half) = (4, heads.qkv_cols(), heads.dim / 2);
        let dy = numbers.rows(m, cols, 1.0);
        let (positions, frequencies) = ([0, 1, 7, 500], numbers.row(half, 1.0));
        let angles = |ops: &mut adaroll::ops::cpu::CpuOps| {
            let mut angles = ops.tensor(m, heads.dim);
            ops.rope_angles(&positions, &frequencies, &mut angles);
            angles
        };
        let got = same_everywhere("rope", &|ops| {
            let (angles, mut d) = (angles(ops), tensor_of(ops, &dy));
            ops.rope_backward(&mut d, heads, &angles);
            rows_of(ops, &d, m)
        });
        for r in 0..m {
            let forward = |v: &[f64]| {
                let head = |(h, x): (usize, &[f64])| -> Vec<f64> {
                    if h >= heads.query + heads.kv {
                        return x.to_vec();
                    }
                    let turn = |i: usize| f64::from(positions[r] as f32 * frequencies[i % half]).sin_cos();
                    (0..2 * half)
                        .map(|i| match i < half {
                            true => x[i] * turn(i).1 - x[i + half] * turn(i).0,
                            false => x[i] * turn(i).1 + x[i - half] * turn(i).0,
                        })
                        .collect()
                };
                v.chunks(heads.dim).enumerate().flat_map(head).collect()
            };
            assert_near(&got[r], &differences(&forward, &vec![0.5; cols], &dy[r]), 1e-6, &format!("{heads:?}"));
        }
    }
}

/// And the output that it leaves has the bits of the forward.
#[test]
fn swiglu_backward_is_its_derivative() {
    let mut numbers = Numbers(34);
    for (n, m) in [(1, 1), (7, 3), (16, 2), (50, 4), (300, 40)] {
        let (x, dy) = (numbers.rows(m, 2 * n, 3.0), numbers.rows(m, n, 1.0));
        let got = same_everywhere("swiglu", &|ops| {
            let (mut x, mut d) = (tensor_of(ops, &x), tensor_of(ops, &dy));
            let mut out = ops.tensor(m, n);
            ops.swiglu(&x, &mut out);
            ops.swiglu_backward(&mut x, &mut d);
            assert_same_bits(&rows_of(ops, &d, m), &rows_of(ops, &out, m), &|| format!("output, {m} rows of {n}"));
            rows_of(ops, &x, m)
        });
        let forward = |v: &[f64]| (0..n).map(|i| v[i] / (1.0 + (-v[i]).exp()) * v[n + i]).collect();
        for r in 0..m.min(4) {
            assert_near(&got[r], &differences(&forward, &x[r], &dy[r]), 2e-6, &format!("swiglu of {n}"));
        }
    }
}

/// Gates of any size have a finite gradient.
#[test]
fn swiglu_backward_holds_for_gates_of_any_size() {
    let gates = [0.0, 1e-30, 20.0, 88.3, 89.0, 1e3, 1e30].into_iter().flat_map(|g: f32| [g, -g]).collect::<Vec<_>>();
    let got = same_everywhere("swiglu", &|ops| {
        let mut x = tensor_of(ops, &[[gates.clone(), vec![0.5; gates.len()]].concat()]);
        let mut d = tensor_of(ops, &[vec![1.0; gates.len()]]);
        ops.swiglu_backward(&mut x, &mut d);
        [rows_of(ops, &x, 1), rows_of(ops, &d, 1)].concat()
    });
    assert!(got.iter().flatten().all(|v| v.is_finite()), "{got:?}");
}

/// Rows of one token add up in ascending order, on top of what is there.
#[test]
fn embed_backward_adds_rows_in_order() {
    let mut numbers = Numbers(35);
    for (vocab, cols, m) in [(1, 1, 5), (7, 30, 20), (50, 130, 200)] {
        let ids: Vec<u32> = (0..m).map(|_| numbers.below(vocab) as u32).collect();
        let (dx, start) = (numbers.rows(m + 2, cols, 1.0), numbers.row(vocab * cols, 1.0));
        let mut want = rows(&start, cols);
        for (i, &id) in ids.iter().enumerate() {
            want[id as usize].iter_mut().zip(&dx[2 + i]).for_each(|(to, d)| *to += d);
        }
        let got = same_everywhere("embed", &|ops| {
            let (dx, mut table) = (tensor_of(ops, &dx), start.clone());
            ops.embed_backward(&ids, &dx, 2, &mut table);
            rows(&table, cols)
        });
        assert_same_bits(&got, &want, &|| format!("{m} rows of {cols}"));
    }
}
