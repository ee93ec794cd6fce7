//! One draw and what is around it: nothing else decides its bits, and bad rows stay alone.

use adaroll::ops::Draw;
use adaroll::ops::cpu::CpuOps;

use super::{Spec, bits, sample};
use crate::numbers::{Numbers, backends, instruction_sets};

fn specs() -> Vec<Spec> {
    vec![
        Spec::plain(1.0),
        Spec::plain(0.0),
        Spec::plain(0.7),
        Spec { top_k: 40, ..Spec::plain(1.0) },
        Spec { top_p: 0.9, ..Spec::plain(1.3) },
        Spec { temperature: 1.5, top_k: 100, top_p: 0.95, min_p: 0.02, bias: vec![(3, 1.0), (600, -2.0)], banned: vec![0, 77] },
    ]
}

/// A draw's token and log-probabilities are the same bits on every instruction set, with one to three threads, alone and in batches, in
/// whatever row its logits lie.
#[test]
fn a_draw_does_not_depend_on_row_batch_or_thread() {
    let mut numbers = Numbers(31);
    let specs = specs();
    for vocabulary in [1, 5, 16, 700, 5003] {
        let usable: Vec<Spec> = if vocabulary > 600 { specs.clone() } else { specs[..5].to_vec() };
        let logits: Vec<Vec<f32>> = (0..8).map(|_| numbers.row(vocabulary, 3.0)).collect();
        let cases: Vec<(usize, usize, [u32; 2], u32, u32)> = (0..48)
            .map(|i| (i % 8, i % usable.len(), [numbers.word() as u32, 5], numbers.below(900) as u32, numbers.below(16) as u32))
            .collect();
        let mut first: Option<Vec<_>> = None;
        for (name, mut ops) in backends() {
            let alone: Vec<_> = cases
                .iter()
                .map(|&(row, spec, key, p, s)| bits(&sample(&mut ops, &logits[row..=row], &[usable[spec].draw(0, key, p, s)])[0]))
                .collect();
            assert!(alone.iter().all(Option::is_some));
            let mut order: Vec<usize> = (0..cases.len()).collect();
            numbers.shuffle(&mut order);
            let mut place: Vec<usize> = (0..8).collect();
            numbers.shuffle(&mut place);
            let mut moved = vec![Vec::new(); 8];
            logits.iter().enumerate().for_each(|(row, l)| moved[place[row]].clone_from(l));
            let draw = |&i: &usize| -> Draw<'_> {
                let (row, spec, key, p, s) = cases[i];
                usable[spec].draw(place[row], key, p, s)
            };
            let draws: Vec<Draw<'_>> = order.iter().map(draw).collect();
            let together = sample(&mut ops, &moved, &draws);
            for (i, d) in order.iter().zip(&together) {
                assert_eq!(bits(d), alone[*i], "draw {i} of {vocabulary} tokens, {name}");
            }
            assert_eq!(&alone, first.get_or_insert_with(|| alone.clone()), "{vocabulary} tokens, {name}");
        }
    }
}

/// The twin: a sampler that draws from one running generator gives the same requests other tokens when their order changes.
#[test]
fn a_running_generator_would_depend_on_the_batch() {
    let mut numbers = Numbers(32);
    let logits: Vec<Vec<f32>> = (0..8).map(|_| numbers.row(50, 1.0)).collect();
    let usual = |order: &[usize]| {
        let mut running = Numbers(33);
        let mut tokens = [0; 8];
        for &row in order {
            let p = super::softmax(&logits[row].iter().map(|&v| f64::from(v)).collect::<Vec<_>>());
            let (u, mut sum) = (running.unit(), 0.0);
            tokens[row] = p
                .iter()
                .position(|p| {
                    sum += p;
                    sum > u
                })
                .unwrap_or(49);
        }
        tokens
    };
    assert_ne!(usual(&[0, 1, 2, 3, 4, 5, 6, 7]), usual(&[7, 6, 5, 4, 3, 2, 1, 0]));
}

/// Temperature 0 is the argmax with ties to the lowest id, whatever the key, after bias and bans; its log-probabilities are the raw ones.
#[test]
fn temperature_zero_takes_the_lowest_of_the_most_likely() {
    let mut numbers = Numbers(34);
    for (name, mut ops) in instruction_sets() {
        for vocabulary in [1, 2, 15, 16, 17, 33, 500] {
            for _ in 0..20 {
                // Few levels, so many ties.
                let row: Vec<f32> = (0..vocabulary).map(|_| numbers.below(4) as f32 - 2.0).collect();
                let banned: Vec<u32> = (0..vocabulary as u32 / 4).map(|_| numbers.below(vocabulary) as u32).collect();
                let at = numbers.below(vocabulary) as u32;
                for spec in [
                    Spec::plain(0.0),
                    Spec { bias: vec![(at, 2.0)], ..Spec::plain(0.0) },
                    Spec { banned, top_k: 3, top_p: 0.4, min_p: 0.5, ..Spec::plain(0.0) },
                ] {
                    let mut z = row.clone();
                    spec.bias.iter().for_each(|&(id, b)| z[id as usize] += b);
                    spec.banned.iter().for_each(|&id| z[id as usize] = f32::NEG_INFINITY);
                    let mut want = 0;
                    (0..vocabulary).for_each(|i| want = if z[i] > z[want] { i } else { want });
                    let key = [numbers.word() as u32; 2];
                    let drawn = sample(&mut ops, std::slice::from_ref(&row), &[spec.draw(0, key, 3, 4)])[0].unwrap();
                    assert_eq!(drawn.token as usize, want, "{row:?}, {spec:?}, {name}");
                    assert_eq!(drawn.logprob.to_bits(), drawn.logprob_raw.to_bits());
                    let raw = super::log_softmax(&row.iter().map(|&v| f64::from(v)).collect::<Vec<_>>())[want];
                    assert!((f64::from(drawn.logprob_raw) - raw).abs() < 2e-6);
                }
            }
        }
    }
}

/// A row with a NaN or an infinity anywhere gives no token and no score; the rows beside it are untouched.
#[test]
fn a_bad_row_of_logits_gives_no_token_and_stays_alone() {
    let mut numbers = Numbers(35);
    let specs = specs();
    for (name, mut ops) in instruction_sets() {
        for vocabulary in [700, 705] {
            let clean: Vec<Vec<f32>> = (0..4).map(|_| numbers.row(vocabulary, 3.0)).collect();
            let draws: Vec<Draw<'_>> = (0..24).map(|i| specs[i / 4].draw(i % 4, [6, 7], i as u32, 0)).collect();
            let want: Vec<_> = sample(&mut ops, &clean, &draws).iter().map(bits).collect();
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 15, 16, vocabulary / 2, vocabulary - 1] {
                    let row = numbers.below(4);
                    let mut logits = clean.clone();
                    logits[row][at] = bad;
                    for (i, d) in sample(&mut ops, &logits, &draws).iter().enumerate() {
                        let want = if i % 4 == row { None } else { want[i] };
                        assert_eq!(bits(d), want, "{bad} at {at} of row {row}, draw {i}, {name}");
                    }
                    for temperature in [0.0, 0.5, 1.0] {
                        let tokens: Vec<(usize, u32)> = (0..4).map(|r| (r, 2)).collect();
                        let scored = super::score(&mut ops, &logits, &tokens, temperature);
                        assert!(scored.iter().enumerate().all(|(r, d)| d.is_err() == (r == row)), "{bad} at {at} of row {row}, {name}");
                    }
                }
            }
        }
    }
}

/// Keys, positions and samples all matter: another one gives another stream.
#[test]
fn every_part_of_the_identity_changes_the_draws() {
    let mut numbers = Numbers(36);
    let row = vec![numbers.row(2000, 0.1)];
    let mut ops = CpuOps::new(1).unwrap();
    let spec = Spec::plain(1.0);
    let tokens: Vec<u32> = [([1, 2], 3, 4), ([9, 2], 3, 4), ([1, 9], 3, 4), ([1, 2], 9, 4), ([1, 2], 3, 9)]
        .iter()
        .map(|&(key, p, s)| sample(&mut ops, &row, &[spec.draw(0, key, p, s)])[0].unwrap().token)
        .collect();
    let distinct: std::collections::BTreeSet<_> = tokens.iter().collect();
    assert_eq!(distinct.len(), tokens.len(), "{tokens:?}");
}
