//! Attention over whole sequences.

use adaroll::ops::{Batch, Heads, Segment, TrainOps};

use super::{assert_near, differences, same_everywhere};
use crate::numbers::{Numbers, assert_same_bits, rows_of, tensor_of, unwritten};

/// Sequences of these lengths, one after the other.
fn batch(lengths: &[usize]) -> Batch {
    let mut batch = Batch::default();
    for &rows in lengths {
        batch.segments.push(Segment { row: batch.tokens.len(), rows, start: 0, table: 0 });
        batch.tokens.extend(vec![0; rows]);
    }
    batch
}

/// Causal attention of one sequence, `[positions, query heads * dim]`.
fn attention(qkv: &[f64], heads: Heads) -> Vec<f64> {
    let (dim, group, cols) = (heads.dim, heads.query / heads.kv, heads.qkv_cols());
    let head = |t: usize, h: usize| &qkv[t * cols + h * dim..][..dim];
    let mut out = Vec::new();
    for t in 0..qkv.len() / cols {
        for h in 0..heads.query {
            let dot = |s: usize| head(t, h).iter().zip(head(s, heads.query + h / group)).map(|(a, b)| a * b).sum::<f64>();
            let scores: Vec<f64> = (0..=t).map(|s| (dot(s) / (dim as f64).sqrt()).exp()).collect();
            let sum: f64 = scores.iter().sum();
            let value = |d: usize| (0..=t).map(|s| scores[s] / sum * head(s, heads.query + heads.kv + h / group)[d]).sum::<f64>();
            out.extend((0..dim).map(value));
        }
    }
    out
}

#[test]
fn attention_backward_is_its_derivative() {
    let mut numbers = Numbers(41);
    let shapes = [
        (Heads { query: 1, kv: 1, dim: 2 }, vec![1, 5, 40]),
        (Heads { query: 4, kv: 2, dim: 8 }, vec![16, 17]),
        (Heads { query: 3, kv: 1, dim: 20 }, vec![18]),
        (Heads { query: 7, kv: 1, dim: 16 }, vec![3, 2]),
    ];
    for (heads, lengths) in shapes {
        let n = lengths.iter().sum();
        let (qkv, dout) = (numbers.rows(n, heads.qkv_cols(), 1.2), numbers.rows(n, heads.query * heads.dim, 1.0));
        let got = same_everywhere("attention", &|ops| {
            let (qkv, dout, mut dqkv) = (tensor_of(ops, &qkv), tensor_of(ops, &dout), unwritten(ops, n, heads.qkv_cols()));
            ops.attention_backward(&qkv, heads, &batch(&lengths), &dout, &dout, &mut dqkv);
            rows_of(ops, &dqkv, n)
        });
        let mut first = 0;
        for &length in &lengths {
            let part = first..first + length;
            let want = differences(&|v| attention(v, heads), &qkv[part.clone()].concat(), &dout[part.clone()].concat());
            assert_near(&got[part].concat(), &want, 3e-6, &format!("{heads:?}, {length} positions"));
            first += length;
        }
    }
}

/// A sequence's gradients do not depend on the sequences beside it, nor on the number of threads that shared the work; long ones too.
#[test]
fn a_sequences_gradients_are_its_own() {
    let mut numbers = Numbers(42);
    for (heads, lengths) in
        [(Heads { query: 6, kv: 3, dim: 64 }, vec![100, 33, 16, 130]), (Heads { query: 2, kv: 2, dim: 40 }, vec![1, 65])]
    {
        let n: usize = lengths.iter().sum();
        let (qkv, dout) = (numbers.rows(n, heads.qkv_cols(), 1.2), numbers.rows(n, heads.query * heads.dim, 1.0));
        let run = |rows: std::ops::Range<usize>, lengths: &[usize]| {
            same_everywhere("attention", &|ops| {
                let (qkv, dout) = (tensor_of(ops, &qkv[rows.clone()]), tensor_of(ops, &dout[rows.clone()]));
                let mut dqkv = unwritten(ops, rows.len(), heads.qkv_cols());
                ops.attention_backward(&qkv, heads, &batch(lengths), &dout, &dout, &mut dqkv);
                rows_of(ops, &dqkv, rows.len())
            })
        };
        let together = run(0..n, &lengths);
        let mut first = 0;
        for &length in &lengths {
            let alone = run(first..first + length, &[length]);
            assert_same_bits(&alone, &together[first..first + length], &|| format!("{length} positions alone, {heads:?}"));
            first += length;
        }
    }
}
