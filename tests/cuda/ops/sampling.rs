//! Draws and log-probabilities: the card takes the CPU's tokens, for every filter.

use adaroll::ops::{Ask, Draw, Drawn, Filters, NonFinite, Ops};
use libtest_mimic::Trial;

use crate::kit::{Numbers, assert_well, card_wide, cpu, cpu_tensor, cuda, full, trial, trial_in_orders};

pub fn trials() -> Vec<Trial> {
    vec![
        trial_in_orders("sampling::plain_draws_are_the_cpus", plain),
        trial_in_orders("sampling::filtered_draws_are_the_cpus", filtered),
        trial_in_orders("sampling::ties_go_to_the_lower_id", ties),
        trial_in_orders("sampling::a_scored_token_has_the_draws_bits", scored),
        trial("sampling::logits_that_are_not_finite_are_said_to_be", non_finite),
        trial("sampling::more_filtered_draws_than_fit_at_a_time", many),
        trial("sampling::answers_come_late_and_in_order", late),
    ]
}

const VOCABS: [usize; 7] = [1, 3, 24, 320, 4096, 4097, 9001];

fn logits(numbers: &mut Numbers, rows: usize, vocab: usize, scale: f32) -> Vec<f32> {
    // Not on bf16's grid: logits are f32.
    (0..rows * vocab).map(|_| ((numbers.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale).collect()
}

fn assert_drawn(what: &str, got: &[Result<Drawn, NonFinite>], want: &[Result<Drawn, NonFinite>]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        match (got, want) {
            (Ok(g), Ok(w)) => {
                assert_eq!(g.token, w.token, "{what}: draw {i}");
                for (g, w) in [(g.logprob, w.logprob), (g.logprob_raw, w.logprob_raw)] {
                    assert!((g - w).abs() <= 2e-6 * w.abs().max(1.0), "{what}: draw {i}: {g} and {w}");
                }
            }
            (g, w) => assert_eq!(g, w, "{what}: draw {i}"),
        }
    }
}

/// The same draws on both.
fn both(what: &str, rows: usize, vocab: usize, values: &[f32], draws: &[Draw<'_>]) {
    let (mut exact, mut ops) = (cpu(), cuda());
    let (mut want, mut got) = (Vec::new(), Vec::new());
    let there = cpu_tensor(&exact, rows, vocab, values);
    exact.sample(&there, draws, &mut want);
    let here = card_wide(&ops, rows, vocab, values);
    ops.sample(&here, draws, &mut got);
    assert_well(&ops);
    assert_drawn(what, &got, &want);
}

fn plain() {
    for vocab in VOCABS {
        let mut numbers = Numbers(vocab as u64);
        let rows = 3;
        let values = logits(&mut numbers, rows, vocab, 8.0);
        let mut draws = Vec::new();
        for (i, t) in [1.0, 0.7, 0.0, 1.0, 2.5, 0.05].into_iter().enumerate() {
            let key = [numbers.next() as u32, numbers.next() as u32];
            draws.push(Draw { row: i % rows, filters: Filters::plain(t), key, position: i as u32, sample: 3 * i as u32 });
        }
        both(&format!("vocabulary of {vocab}"), rows, vocab, &values, &draws);
    }
}

fn filtered() {
    let (temperatures, ks, ps, ms) = ([1.0f32, 0.6, 0.0], [0u32, 1, 5, 200], [1.0f32, 0.9, 0.3, 0.01], [0.0f32, 0.05, 0.5]);
    // Every combination: the digits of a number in base 3, 4, 4, 3.
    let combination = |i: usize| (temperatures[i % 3], ks[i / 3 % 4], ps[i / 12 % 4], ms[i / 48]);
    for vocab in [3usize, 24, 320, 4097] {
        let mut numbers = Numbers(vocab as u64 + 1);
        let rows = 2;
        let mut values = logits(&mut numbers, rows, vocab, 6.0);
        // Many equal values: the filters' ties.
        values[vocab..].iter_mut().for_each(|v| *v = v.round());
        let biases = [(vocab as u32 - 1, 3.0f32), (0, -2.0), (1, f32::INFINITY.min(9.0)), (1, 0.5)];
        let banned = [0u32, 2];
        let mut draws = Vec::new();
        for i in 0..144 {
            if !full() && i % 5 != 0 && vocab > 320 {
                continue;
            }
            let (t, k, p, m) = combination(i);
            let bias: &[(u32, f32)] = if i % 4 == 1 { &biases } else { &[] };
            let banned: &[u32] = if i % 5 == 2 && vocab > 3 { &banned } else { &[] };
            let filters = Filters { temperature: t, top_k: k, top_p: p, min_p: m, bias, banned };
            let key = [numbers.next() as u32, numbers.next() as u32];
            draws.push(Draw { row: i % rows, filters, key, position: 7, sample: i as u32 });
        }
        both(&format!("vocabulary of {vocab}"), rows, vocab, &values, &draws);
    }
}

/// All logits are equal: top-k and top-p keep the lowest ids, greedy takes the first.
fn ties() {
    let vocab = 5000;
    let values = vec![0.25f32; vocab];
    let mut draws = Vec::new();
    for (i, (t, k, p)) in [(0.0, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 0.001), (0.8, 4200, 0.5), (1.0, 4999, 1.0)].into_iter().enumerate() {
        let filters = Filters { top_k: k, top_p: p, ..Filters::plain(t) };
        for sample in 0..6 {
            draws.push(Draw { row: 0, filters: filters.clone(), key: [i as u32, 5], position: 0, sample });
        }
    }
    both("all equal", 1, vocab, &values, &draws);
}

/// The log-probability of a token that is there has the bits that its draw had, at any temperature.
fn scored() {
    let (rows, vocab) = (4, 4500);
    let mut numbers = Numbers(8);
    let values = logits(&mut numbers, rows, vocab, 5.0);
    for temperature in [1.0, 0.0, 0.7] {
        let mut ops = cuda();
        let t = card_wide(&ops, rows, vocab, &values);
        let draws: Vec<Draw<'_>> =
            (0..rows).map(|row| Draw { row, filters: Filters::plain(temperature), key: [row as u32, 9], position: 2, sample: 1 }).collect();
        let (mut drawn, mut scores) = (Vec::new(), Vec::new());
        ops.sample(&t, &draws, &mut drawn);
        let asked: Vec<(usize, u32)> = drawn.iter().enumerate().map(|(row, d)| (row, d.unwrap().token)).collect();
        ops.logprobs_of(&t, &asked, temperature, &mut scores);
        for (d, s) in drawn.iter().zip(&scores) {
            let (d, s) = (d.unwrap(), s.unwrap());
            assert_eq!((d.token, d.logprob.to_bits(), d.logprob_raw.to_bits()), (s.token, s.logprob.to_bits(), s.logprob_raw.to_bits()));
        }
        // And other tokens are the CPU's, nearly.
        let mut exact = cpu();
        let mut want = Vec::new();
        let asked: Vec<(usize, u32)> = (0..40).map(|i| (i % rows, (i * 113 % vocab) as u32)).collect();
        ops.logprobs_of(&t, &asked, temperature, &mut scores);
        let there = cpu_tensor(&exact, rows, vocab, &values);
        exact.logprobs_of(&there, &asked, temperature, &mut want);
        assert_drawn("scored", &scores, &want);
        assert_well(&ops);
    }
}

fn non_finite() {
    let vocab = 5000;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = logits(&mut Numbers(2), 2, vocab, 3.0);
        values[4999] = bad;
        let draws: Vec<Draw<'_>> = [0, 1]
            .into_iter()
            .flat_map(|row| {
                [0.0, 1.0].map(|t| Draw { row, filters: Filters { top_k: 7, ..Filters::plain(t) }, key: [1, 1], position: 0, sample: 0 })
            })
            .collect();
        both(&format!("{bad}"), 2, vocab, &values, &draws);
        let mut ops = cuda();
        let t = card_wide(&ops, 2, vocab, &values);
        let mut out = Vec::new();
        ops.logprobs_of(&t, &[(0, 1), (1, 1)], 1.0, &mut out);
        assert!(out[0].is_err() && out[1].is_ok(), "{bad}: {out:?}");
    }
    // Finite logits further apart than f32 reaches: a log-probability of -inf is none.
    both("far apart", 1, 2, &[3e38, -3e38], &[Draw { row: 0, filters: Filters::plain(0.0), key: [1, 1], position: 0, sample: 0 }]);
}

fn many() {
    let (rows, vocab) = (5, 130);
    let mut numbers = Numbers(21);
    let values = logits(&mut numbers, rows, vocab, 4.0);
    let draws: Vec<Draw<'_>> = (0..150)
        .map(|i| {
            let filters = Filters { top_k: if i % 3 == 0 { 0 } else { 4 + i % 7 }, ..Filters::plain(0.9) };
            Draw { row: i as usize % rows, filters, key: [i, 77], position: i, sample: i }
        })
        .collect();
    both("150 draws", rows, vocab, &values, &draws);
}

/// Two steps may be open; each `finish` gives the older one's answers.
fn late() {
    let vocab = 50;
    let mut ops = cuda();
    let sure = |token: usize| -> Vec<f32> { (0..vocab).map(|i| if i == token { 80.0 } else { 0.0 }).collect() };
    let tensors: Vec<_> = [7, 8, 9].map(|token| card_wide(&ops, 1, vocab, &sure(token))).into_iter().collect();
    let ask = || vec![Ask::Draw(Draw { row: 0, filters: Filters::plain(1.0), key: [1, 2], position: 0, sample: 0 })];
    let mut tokens = Vec::new();
    let mut take = |ops: &mut adaroll::ops::cuda::CudaOps| {
        let mut out = Vec::new();
        ops.late().unwrap().finish(&mut out);
        tokens.push(out[0].unwrap().token);
    };
    ops.late().unwrap().start(&tensors[0], &ask());
    ops.late().unwrap().start(&tensors[1], &ask());
    take(&mut ops);
    ops.late().unwrap().start(&tensors[2], &ask());
    take(&mut ops);
    take(&mut ops);
    assert_eq!(tokens, [7, 8, 9]);
    assert_well(&ops);
}
