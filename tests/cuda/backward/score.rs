//! The head: log-probabilities with the sampler's bits, entropies, and the gradient of the logits in place.

use adaroll::ops::backward::{Scored, Slope};
use adaroll::ops::cuda::CudaOps;
use adaroll::ops::{Ops, TrainOps};
use libtest_mimic::Trial;

use super::{alike, assert_derivative, by_turns, differences, guarded_wide, held, matrix, wide};
use crate::kit::{
    Numbers, assert_near, assert_same, assert_well, card_tensor, card_wide, combinations, cpu, cpu_tensor, cpu_values, cuda, rounded, trial,
};

/// Less than a warp, around tiles of 4096, columns that end within 16 bytes, and more than two steps of 8192.
const VOCABS: [usize; 9] = [1, 3, 24, 320, 1030, 4096, 4097, 9001, 16_500];
const TEMPERATURES: [f32; 4] = [1.0, 0.7, 0.0, 1.5];

pub fn trials() -> Vec<Trial> {
    vec![
        trial("backward::score::vocabularies_of_all_sizes", shapes),
        trial("backward::score::gradients_are_the_derivative", derivative),
        trial("backward::score::a_row_has_the_same_bits_alone_and_among_others", a_row_is_a_row),
        trial("backward::score::slopes_of_zero_give_zeros", zeros),
        trial("backward::score::a_certain_token_has_no_gradient", certain),
        trial("backward::score::a_row_that_is_not_finite_has_no_score", non_finite),
        trial("backward::score::products_take_the_gradients_as_they_lie", products),
    ]
}

/// Rows of logits, a target in each, and slopes.
struct Head {
    rows: usize,
    vocab: usize,
    logits: Vec<f32>,
    targets: Vec<u32>,
    slopes: Vec<Slope>,
}

impl Head {
    fn new(rows: usize, vocab: usize) -> Head {
        let mut numbers = Numbers((rows * 100_003 + vocab) as u64);
        let logits = wide(&mut numbers, rows * vocab, 4.0);
        let mut targets: Vec<u32> = (0..rows).map(|_| numbers.below(vocab) as u32).collect();
        targets[0] = vocab as u32 - 1;
        let slopes = wide(&mut numbers, 2 * rows, 1.0);
        let slopes = slopes.chunks(2).map(|s| Slope { logprob: s[0], entropy: s[1] }).collect();
        Head { rows, vocab, logits, targets, slopes }
    }

    /// One row of it.
    fn row(&self, r: usize) -> Head {
        let logits = self.logits[r * self.vocab..][..self.vocab].to_vec();
        Head { rows: 1, vocab: self.vocab, logits, targets: vec![self.targets[r]], slopes: vec![self.slopes[r]] }
    }

    /// Scores and gradients on the card.
    fn run(&self, ops: &mut CudaOps, temperature: f32) -> Vec<Vec<f32>> {
        let mut logits = guarded_wide(ops, self.rows, self.vocab, &self.logits);
        let scored = scored(ops, &logits, &self.targets, temperature);
        assert_same(&|| "logits that were scored".into(), &held(ops, &logits), &self.logits);
        ops.score_backward(&mut logits, &self.targets, temperature, &scored, &self.slopes);
        let gradient = ops.read(&logits);
        ops.set_rows(&mut logits, self.rows);
        held(ops, &logits);
        vec![numbers_of(&scored), gradient]
    }
}

fn scored(ops: &mut CudaOps, logits: &adaroll::ops::cuda::Tensor, targets: &[u32], temperature: f32) -> Vec<Scored> {
    let mut out = Vec::new();
    ops.score(logits, targets, temperature, &mut out);
    out.into_iter().map(Result::unwrap).collect()
}

fn numbers_of(scored: &[Scored]) -> Vec<f32> {
    scored.iter().flat_map(|s| [s.logprob, s.entropy, s.max, s.ln_sum]).collect()
}

/// Log-probability and entropy in f64; a temperature of 0 counts as 1.
fn exact(logits: &[f64], target: usize, temperature: f32) -> Vec<f64> {
    let temperature = if temperature == 0.0 { 1.0 } else { f64::from(temperature) };
    let z: Vec<f64> = logits.iter().map(|v| v / temperature).collect();
    let max = z.iter().copied().fold(f64::MIN, f64::max);
    let norm = max + z.iter().map(|v| (v - max).exp()).sum::<f64>().ln();
    vec![z[target] - norm, -z.iter().map(|v| (v - norm).exp() * (v - norm)).sum::<f64>()]
}

fn shapes() {
    for (i, shape) in combinations(&[&[1, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8], &[0, 1, 2, 3]]).iter().enumerate() {
        let (head, temperature) = (Head::new(shape[0], VOCABS[shape[1]]), TEMPERATURES[shape[2]]);
        let Head { rows, vocab, .. } = head;
        let what = || format!("{rows} rows of {vocab} at temperature {temperature}");
        let got = by_turns(i, &what, &|ops| head.run(ops, temperature));
        // The sampler's bits.
        let (mut ops, mut plain) = (cuda(), Vec::new());
        let asked: Vec<(usize, u32)> = head.targets.iter().copied().enumerate().collect();
        let logits = card_wide(&ops, rows, vocab, &head.logits);
        ops.logprobs_of(&logits, &asked, temperature, &mut plain);
        assert_well(&ops);
        for (r, (scored, plain)) in got[0].chunks(4).zip(&plain).enumerate() {
            assert_same(&|| format!("row {r}, {}", what()), &scored[..1], &[plain.unwrap().logprob]);
            let logits: Vec<f64> = head.logits[r * vocab..][..vocab].iter().map(|v| f64::from(*v)).collect();
            for (got, want) in scored[..2].iter().zip(exact(&logits, head.targets[r] as usize, temperature)) {
                assert!((f64::from(*got) - want).abs() < 2e-6 * (1.0 + want.abs()), "row {r}, {}: {got} and not {want}", what());
            }
        }
        let mut there = cpu();
        let (mut logits, mut scores) = (cpu_tensor(&there, rows, vocab, &head.logits), Vec::new());
        there.score(&logits, &head.targets, temperature, &mut scores);
        let scores: Vec<Scored> = scores.into_iter().map(Result::unwrap).collect();
        there.score_backward(&mut logits, &head.targets, temperature, &scores, &head.slopes);
        let want = cpu_values(&logits);
        if vocab == 1 {
            // The only token is certain: what is left of its gradient is the rounding of two numbers that cancel.
            assert!(got[1].iter().all(|v| v.abs() < 1e-6), "{}: {:?}", what(), got[1]);
        } else {
            assert_near(&what, &got[1], &want, &rounded(&want));
        }
    }
}

fn derivative() {
    for vocab in [2, 16, 33, 100] {
        for temperature in TEMPERATURES {
            let head = Head::new(3, vocab);
            let what = || format!("vocabulary {vocab}, temperature {temperature}");
            let got = alike(&what, &|ops| head.run(ops, temperature));
            for (r, got) in got[1].chunks(vocab).enumerate() {
                let one = head.row(r);
                let f = |v: &[f64]| exact(v, one.targets[0] as usize, temperature);
                let want = differences(&f, &one.logits, &[one.slopes[0].logprob, one.slopes[0].entropy]);
                assert_derivative(&|| format!("row {r}, {}", what()), got, &want, 2e-5);
            }
        }
    }
}

fn a_row_is_a_row() {
    for (vocab, temperature) in [(320, 0.7), (4097, 1.0)] {
        let head = Head::new(5, vocab);
        let together = alike(&|| "together".into(), &|ops| head.run(ops, temperature));
        for r in 0..5 {
            let alone = by_turns(r, &|| "alone".into(), &|ops| head.row(r).run(ops, temperature));
            assert_same(&|| format!("score of row {r} of {vocab}"), &alone[0], &together[0][4 * r..][..4]);
            assert_same(&|| format!("gradient of row {r} of {vocab}"), &alone[1], &together[1][r * vocab..][..vocab]);
        }
    }
}

/// Exact ones: such rows are padding, or have no advantage.
fn zeros() {
    for vocab in [24, 4097] {
        let mut head = Head::new(3, vocab);
        head.slopes[1] = Slope::default();
        let got = alike(&|| format!("{vocab}"), &|ops| head.run(ops, 1.0));
        for (r, row) in got[1].chunks(vocab).enumerate() {
            assert_eq!(row.iter().all(|v| *v == 0.0), r == 1, "row {r} of {vocab}");
        }
    }
}

fn certain() {
    let logits = [0.0, 3e4, -3e4, 7.0];
    let got = alike(&|| "certain".into(), &|ops| {
        let mut x = card_wide(ops, 1, 4, &logits);
        let scored = scored(ops, &x, &[1], 1.0);
        ops.score_backward(&mut x, &[1], 1.0, &scored, &[Slope { logprob: 1.0, entropy: 1.0 }]);
        vec![vec![scored[0].logprob, scored[0].entropy], ops.read(&x)]
    });
    assert!(got.concat().iter().all(|v| *v == 0.0), "{got:?}");
}

/// As the CPU says it, and of that row alone.
fn non_finite() {
    for (i, (vocab, at)) in [(20, 19), (4096, 4095), (9001, 4096), (9001, 0), (9001, 9000)].into_iter().enumerate() {
        let clean = Head::new(3, vocab);
        let want = by_turns(i, &|| "clean".into(), &|ops| {
            let logits = card_wide(ops, 3, vocab, &clean.logits);
            vec![numbers_of(&scored(ops, &logits, &clean.targets, 1.0))]
        });
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut logits = clean.logits.clone();
            logits[vocab + at] = bad;
            let (mut ops, mut exact) = (cuda(), cpu());
            let (mut got, mut there) = (Vec::new(), Vec::new());
            let on_card = card_wide(&ops, 3, vocab, &logits);
            ops.score(&on_card, &clean.targets, 1.0, &mut got);
            let on_cpu = cpu_tensor(&exact, 3, vocab, &logits);
            exact.score(&on_cpu, &clean.targets, 1.0, &mut there);
            assert_well(&ops);
            let ok = |scores: &[Result<Scored, _>]| scores.iter().map(Result::is_ok).collect::<Vec<bool>>();
            assert_eq!(ok(&got), ok(&there), "{bad} in column {at} of {vocab}");
            assert!(got[1].is_err() && got[0].is_ok() && got[2].is_ok(), "{bad} in column {at} of {vocab}: {got:?}");
            for r in [0, 2] {
                assert_same(&|| format!("row {r} beside {bad}"), &numbers_of(&[got[r].unwrap()]), &want[0][4 * r..][..4]);
            }
        }
    }
    // Finite logits further apart than f32 reaches: a log-probability of -inf is none.
    let mut ops = cuda();
    let (apart, mut got) = (card_wide(&ops, 2, 2, &[3e38, -3e38, 1.0, 2.0]), Vec::new());
    ops.score(&apart, &[1, 1], 1.0, &mut got);
    assert!(got[0].is_err() && got[1].is_ok(), "{got:?}");
    assert_well(&ops);
}

/// The gradient lies in bf16 where the logits lay in f32: products take it there, with the bits of a tensor that was made for it.
fn products() {
    let (rows, vocab, hidden) = (20, 90, 24);
    let head = Head::new(rows, vocab);
    let mut numbers = Numbers(9);
    let (w, x) = (numbers.many(vocab * hidden, 1.0), numbers.many(rows * hidden, 1.0));
    let got = alike(&|| "products".into(), &|ops| {
        let mut logits = card_wide(ops, rows, vocab, &head.logits);
        let scored = scored(ops, &logits, &head.targets, 1.0);
        ops.score_backward(&mut logits, &head.targets, 1.0, &scored, &head.slopes);
        let plain = card_tensor(ops, rows, vocab, &ops.read(&logits));
        let (w, x) = (matrix(ops, vocab, hidden, &w), card_tensor(ops, rows, hidden, &x));
        let mut all = Vec::new();
        for dy in [&logits, &plain] {
            let (mut dx, mut dw) = (ops.tensor(rows, hidden), ops.zeros(vocab * hidden));
            ops.linear_dx(dy, &w, &mut dx);
            ops.linear_dw(dy, 0..rows, 0..vocab, &x, 0, &mut dw);
            all.push([ops.read(&dx), ops.read_flat(&dw)].concat());
        }
        // And the next chunk's logits lie there in f32 again.
        ops.set_rows(&mut logits, rows - 1);
        ops.write(&mut logits, &head.logits[vocab..]);
        all.push(ops.read(&logits));
        all
    });
    assert_same(&|| "products".into(), &got[0], &got[1]);
    assert_same(&|| "logits again".into(), &got[2], &head.logits[vocab..]);
}
