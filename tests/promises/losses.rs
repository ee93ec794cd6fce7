//! Losses, schedules and cuts: pure arithmetic, held against finite differences, hand-made numbers and enumerations.

use adaroll::trainer::batch::{micro_batches, mini_batches, shuffle, unit};
use adaroll::trainer::loss::{Aggregation, Denominator, Estimator, Kind, Kl, LossSettings, Mismatch, Row, Sums, loss_of_rows};
use adaroll::trainer::schedule::{Decay, Schedule};

const KINDS: [Kind; 3] = [Kind::Ppo, Kind::Gspo, Kind::Cispo];
const AGGREGATIONS: [Aggregation; 3] = [Aggregation::TokenMean, Aggregation::SequenceMean, Aggregation::Constant { denominator: 7.0 }];
const MISMATCHES: [Mismatch; 3] = [Mismatch::None, Mismatch::Tis { cap: 1.25 }, Mismatch::Icepop { low: 0.5, high: 2.0 }];

/// A row whose tokens' log-ratios are `moved` (now against the start of the step) and `lag` (the start against the sampler). Everything is a
/// multiple of 1/64, so that differences of f32 are exact.
fn row(advantage: f64, moved: &[f32], lag: &[f32]) -> Row {
    let old: Vec<f32> = (0..moved.len()).map(|t| -1.5 - 0.25 * t as f32).collect();
    Row {
        advantage,
        logprob: old.iter().zip(moved).map(|(o, m)| o + m).collect(),
        logprob_sampler: old.iter().zip(lag).map(|(o, l)| o - l).collect(),
        logprob_ref: Some(old.iter().enumerate().map(|(t, o)| o + 0.375 - 0.25 * t as f32).collect()),
        entropy: (0..moved.len()).map(|t| 0.5 + 0.125 * t as f32).collect(),
        logprob_old: old,
    }
}

/// Rows in every region of the surrogates, away from their kinks.
fn rows() -> Vec<Row> {
    vec![
        row(1.5, &[0.0, 0.125, 0.5, -0.5, -0.125], &[0.0, 0.125, 0.5, -0.25, -1.0]),
        row(-0.75, &[0.125, -0.5, 2.625, 0.0], &[0.25, 0.0, 1.0, -0.125]),
        row(0.5, &[-0.0625, 0.0625], &[0.0, -0.875]),
        row(-2.0, &[0.25], &[0.125]),
    ]
}

fn denominator(rows: &[Row]) -> Denominator {
    Denominator::of(rows.iter().map(|r| r.logprob.len()))
}

/// A central difference, extrapolated from steps of 1/64 and 1/128: its error is far below f32's.
fn slope_of(f: &dyn Fn(f32) -> f64) -> f64 {
    let d = |h: f32| (f(h) - f(-h)) / (2.0 * f64::from(h));
    (4.0 * d(1.0 / 128.0) - d(1.0 / 64.0)) / 3.0
}

#[test]
fn slopes_are_the_derivatives_of_the_loss() {
    let (rows, mut checked) = (rows(), 0);
    let whole = denominator(&rows);
    for kind in KINDS {
        for aggregation in AGGREGATIONS {
            for mismatch in MISMATCHES {
                for kl in [None, Some(Kl { estimator: Estimator::K2, coefficient: 0.3 })] {
                    let settings = LossSettings { kind, aggregation, mismatch, kl, entropy: 0.01, ..LossSettings::default() };
                    let (_, slopes) = loss_of_rows(&settings, &rows, whole);
                    let mut slopes = slopes.into_iter();
                    for (i, row) in rows.iter().enumerate() {
                        for t in 0..row.logprob.len() {
                            let slope = slopes.next().unwrap();
                            let of = |change: &dyn Fn(&mut Row)| {
                                let mut moved = rows.clone();
                                change(&mut moved[i]);
                                loss_of_rows(&settings, &moved, whole).0.loss
                            };
                            let by_logprob = slope_of(&|h| {
                                of(&|row| {
                                    row.logprob[t] += h;
                                    if kind == Kind::Cispo {
                                        // The ratio is a constant there: it stays while everything moves.
                                        row.logprob_old[t] += h;
                                        row.logprob_sampler[t] += h;
                                    }
                                })
                            });
                            let by_entropy = slope_of(&|h| of(&|row| row.entropy[t] += h));
                            let close = |a: f32, b: f64| (f64::from(a) - b).abs() <= 2e-6 * b.abs().max(1.0);
                            assert!(
                                close(slope.logprob, by_logprob),
                                "{settings:?}, row {i}, token {t}: {} against {by_logprob}",
                                slope.logprob
                            );
                            assert!(
                                close(slope.entropy, by_entropy),
                                "{settings:?}, row {i}, token {t}: {} against {by_entropy}",
                                slope.entropy
                            );
                            checked += 1;
                        }
                    }
                    assert!(slopes.next().is_none());
                }
            }
        }
    }
    assert_eq!(checked, 3 * 3 * 3 * 2 * 12);
}

#[test]
fn on_policy_every_surrogate_is_the_plain_policy_gradient() {
    // Odd lengths and values: none of it may depend on a lucky rounding.
    let rows: Vec<Row> = [(0.3, 3), (-1.7, 7), (0.9, 11)]
        .iter()
        .map(|&(advantage, n)| {
            let logprob: Vec<f32> = (0..n).map(|t| -0.1 - 0.37 * t as f32).collect();
            Row {
                advantage,
                logprob_old: logprob.clone(),
                logprob_sampler: logprob.clone(),
                entropy: vec![0.7; n],
                logprob,
                logprob_ref: None,
            }
        })
        .collect();
    let n = 21.0;
    for kind in KINDS {
        for mismatch in MISMATCHES {
            let settings = LossSettings { kind, mismatch, ..LossSettings::default() };
            let (sums, slopes) = loss_of_rows(&settings, &rows, denominator(&rows));
            let plain: Vec<f32> = rows.iter().flat_map(|r| vec![(-r.advantage * (1.0 / n)) as f32; r.logprob.len()]).collect();
            let given: Vec<f32> = slopes.iter().map(|s| s.logprob).collect();
            assert_eq!(given, plain, "{kind:?} {mismatch:?}: to the bit");
            assert_eq!((sums.ratio / sums.tokens, sums.ratio_max, sums.old_minus_new), (1.0, 1.0, 0.0));
            assert_eq!((sums.clipped, sums.dual_clipped, sums.masked), (0.0, 0.0, 0.0));
        }
    }
}

/// Value, slope, whether clipped and whether at the dual bound, of one token.
fn token(settings: &LossSettings, advantage: f64, ratio: f64) -> (f64, f64, bool, bool) {
    let row = Row {
        advantage,
        logprob: vec![ratio.ln() as f32],
        logprob_old: vec![0.0],
        logprob_sampler: vec![0.0],
        logprob_ref: None,
        entropy: vec![0.0],
    };
    let (sums, slopes) = loss_of_rows(settings, &[row], Denominator::of([1]));
    (sums.surrogate, f64::from(slopes[0].logprob), sums.clipped == 1.0, sums.dual_clipped == 1.0)
}

#[track_caller]
fn assert_token(given: (f64, f64, bool, bool), wanted: (f64, f64, bool, bool)) {
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5;
    assert!(
        close(given.0, wanted.0) && close(given.1, wanted.1) && given.2 == wanted.2 && given.3 == wanted.3,
        "{given:?}, not {wanted:?}"
    );
}

#[test]
fn clip_higher_and_dual_clip_act_in_their_regions() {
    let dapo = LossSettings::default();
    // Good tokens: no gradient once they are 1.28 times as likely, and no bound below.
    assert_token(token(&dapo, 1.0, 1.1), (-1.1, -1.1, false, false));
    assert_token(token(&dapo, 1.0, 1.25), (-1.25, -1.25, false, false));
    assert_token(token(&dapo, 1.0, 1.5), (-1.28, 0.0, true, false));
    assert_token(token(&dapo, 1.0, 0.5), (-0.5, -0.5, false, false));
    // Bad tokens: none once they are 0.8 times as likely, and above a bound of ten times the advantage.
    assert_token(token(&dapo, -1.0, 0.9), (0.9, 0.9, false, false));
    assert_token(token(&dapo, -1.0, 0.5), (0.8, 0.0, true, false));
    assert_token(token(&dapo, -1.0, 1.5), (1.5, 1.5, false, false));
    assert_token(token(&dapo, -2.0, 12.0), (20.0, 0.0, false, true));
    // The twins: a symmetric clip takes 1.25's gradient, no dual clip leaves 12's.
    let symmetric = LossSettings { clip_high: 0.2, ..dapo.clone() };
    assert_token(token(&symmetric, 1.0, 1.25), (-1.2, 0.0, true, false));
    let unbounded = LossSettings { dual_clip: 0.0, ..dapo.clone() };
    assert_token(token(&unbounded, -2.0, 12.0), (24.0, 24.0, false, false));
    // CISPO keeps the gradient of a clipped token, at the clipped ratio.
    let cispo = LossSettings { kind: Kind::Cispo, ..dapo.clone() };
    assert_token(token(&cispo, 1.0, 1.5), (-1.28 * 1.5f64.ln(), -1.28, false, false));
    assert_token(token(&cispo, -1.0, 0.5), (0.8 * 0.5f64.ln(), 0.8, false, false));
    // A log-ratio beyond its bound has no gradient, and its value stays finite.
    let (value, slope, ..) = token(&unbounded, -1.0, f64::exp(25.0));
    assert!((value / f64::exp(20.0) - 1.0).abs() < 1e-9 && slope == 0.0, "{value} {slope}");
}

#[test]
fn gspo_has_one_ratio_for_a_sequence() {
    let settings = LossSettings { kind: Kind::Gspo, ..LossSettings::default() };
    // Token ratios of e^.5 (clipped alone) and e^-.25: the sequence's is e^.125, which is not.
    let row = row(2.0, &[0.5, -0.25], &[0.0, 0.0]);
    let (sums, slopes) = loss_of_rows(&settings, std::slice::from_ref(&row), Denominator::of([2]));
    let ratio = f64::exp(0.125);
    assert!((sums.surrogate + 2.0 * ratio).abs() < 1e-12 && sums.clipped == 0.0, "{sums:?}");
    assert!(slopes.iter().all(|s| (f64::from(s.logprob) + ratio).abs() < 1e-6), "{slopes:?}");
    // The twin: token by token the first is clipped.
    let ppo = LossSettings { kind: Kind::Ppo, ..settings };
    assert_eq!(loss_of_rows(&ppo, &[row], Denominator::of([2])).0.clipped, 1.0);
}

/// A softmax over a few logits.
fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|l| l.exp()).sum();
    logits.iter().map(|l| l.exp() / sum).collect()
}

/// KL(p || q).
fn divergence(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum()
}

const POLICY: [f64; 5] = [0.3, -1.2, 0.9, 0.0, 1.4];
const REFERENCE: [f64; 5] = [1.0, 0.2, -0.5, 0.4, 0.1];

/// The estimator's value and the loss's slope at every outcome of the policy.
fn penalties(estimator: Estimator) -> (Vec<f64>, Vec<f64>) {
    let (p, q) = (softmax(&POLICY), softmax(&REFERENCE));
    let settings = LossSettings {
        kl: Some(Kl { estimator, coefficient: 1.0 }),
        aggregation: Aggregation::Constant { denominator: 1.0 },
        ..LossSettings::default()
    };
    p.iter()
        .zip(&q)
        .map(|(p, q)| {
            let logprob = vec![p.ln() as f32];
            let row = Row {
                advantage: 0.0,
                logprob_old: logprob.clone(),
                logprob_sampler: logprob.clone(),
                logprob_ref: Some(vec![q.ln() as f32]),
                entropy: vec![0.0],
                logprob,
            };
            let (sums, slopes) = loss_of_rows(&settings, &[row], Denominator::of([1]));
            (sums.kl, f64::from(slopes[0].logprob))
        })
        .unzip()
}

/// The expected gradient by the logits, where outcome x has this slope.
fn expected_gradient(slopes: &[f64]) -> Vec<f64> {
    let p = softmax(&POLICY);
    (0..p.len()).map(|j| (0..p.len()).map(|x| p[x] * slopes[x] * (f64::from(u8::from(x == j)) - p[j])).sum()).collect()
}

/// The gradient of a function of the policy's distribution by its logits.
fn gradient_of(f: &dyn Fn(&[f64]) -> f64) -> Vec<f64> {
    let at = |j: usize, h: f64| {
        let mut logits = POLICY;
        logits[j] += h;
        f(&softmax(&logits))
    };
    (0..POLICY.len()).map(|j| (at(j, 1e-4) - at(j, -1e-4)) / 2e-4).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn kl_estimators_have_the_right_mean_and_the_right_gradient() {
    let (p, q) = (softmax(&POLICY), softmax(&REFERENCE));
    let truth = divergence(&p, &q);
    let expected = |values: &[f64]| p.iter().zip(values).map(|(p, v)| p * v).sum::<f64>();
    let gradient = gradient_of(&|p| divergence(p, &q));
    for estimator in [Estimator::K1, Estimator::K2, Estimator::K3] {
        let (values, slopes) = penalties(estimator);
        if estimator != Estimator::K2 {
            assert!((expected(&values) - truth).abs() < 1e-6, "{estimator:?}: {} is not {truth}", expected(&values));
        }
        let off = distance(&expected_gradient(&slopes), &gradient);
        assert!(off < 1e-6, "{estimator:?}: off by {off}");
    }
    assert!((expected(&penalties(Estimator::K2).0) - truth).abs() > 0.01, "k2's value is biased: the test can tell");
    // The twins. The derivative of k1's value is 1 at every outcome: its expected gradient is nothing at all.
    let naive = expected_gradient(&[1.0; 5]);
    assert!(distance(&naive, &[0.0; 5]) < 1e-12 && distance(&naive, &gradient) > 0.05, "{naive:?}");
    // The derivative of k3's value is 1 - q/p: its expected gradient is that of the other divergence.
    let naive = expected_gradient(&p.iter().zip(&q).map(|(p, q)| 1.0 - q / p).collect::<Vec<_>>());
    assert!(distance(&naive, &gradient_of(&|p| divergence(&q, p))) < 1e-6 && distance(&naive, &gradient) > 0.05, "{naive:?}");
}

#[test]
fn icepop_masks_and_tis_caps() {
    // The policy at the start of the step against the sampler: 1, e^.5, e^1, e^-1.
    let row = row(1.0, &[0.0; 4], &[0.0, 0.5, 1.0, -1.0]);
    let slopes = |mismatch| {
        let settings = LossSettings { mismatch, aggregation: Aggregation::Constant { denominator: 1.0 }, ..LossSettings::default() };
        let (sums, slopes) = loss_of_rows(&settings, std::slice::from_ref(&row), Denominator::of([4]));
        (slopes.iter().map(|s| f64::from(-s.logprob)).collect::<Vec<_>>(), sums.masked)
    };
    let (weights, masked) = slopes(Mismatch::Icepop { low: 0.5, high: 2.0 });
    assert_eq!((weights, masked), (vec![1.0, 1.0, 0.0, 0.0], 2.0));
    let (weights, masked) = slopes(Mismatch::Tis { cap: 2.0 });
    assert!(distance(&weights, &[1.0, f64::exp(0.5), 2.0, f64::exp(-1.0)]) < 1e-6 && masked == 0.0, "{weights:?}");
    assert_eq!(slopes(Mismatch::None).0, [1.0; 4]);
}

#[test]
fn micro_batches_add_up_to_the_mini_batch() {
    let rows = rows();
    for aggregation in AGGREGATIONS {
        let settings = LossSettings { aggregation, entropy: 0.01, ..LossSettings::default() };
        let (whole, slopes) = loss_of_rows(&settings, &rows, denominator(&rows));
        let (mut sums, mut parts) = (Sums::default(), Vec::new());
        for micro in [&rows[..1], &rows[1..3], &rows[3..]] {
            let (s, mut part) = loss_of_rows(&settings, micro, denominator(&rows));
            sums.add(&s);
            parts.append(&mut part);
        }
        assert_eq!(parts, slopes, "to the bit");
        assert!((sums.loss - whole.loss).abs() < 1e-12 && sums.tokens == whole.tokens && sums.ratio_max == whole.ratio_max, "{sums:?}");
        assert_eq!((sums.clipped, sums.dual_clipped), (whole.clipped, whole.dual_clipped));
        // The twin: denominators of their own, and the micro-batches no longer add up (a constant one does not care).
        let own: f64 = [&rows[..1], &rows[1..3], &rows[3..]].iter().map(|m| loss_of_rows(&settings, m, denominator(m)).0.loss / 3.0).sum();
        let constant = matches!(aggregation, Aggregation::Constant { .. });
        assert!(constant || (own - whole.loss).abs() > 1e-3, "{own} {}", whole.loss);
    }
}

#[test]
fn aggregations_weigh_tokens_as_they_say() {
    let rows = [row(1.0, &[0.0; 3], &[0.0; 3]), row(1.0, &[0.0], &[0.0])];
    let weights = |aggregation| {
        let settings = LossSettings { aggregation, ..LossSettings::default() };
        let (sums, slopes) = loss_of_rows(&settings, &rows, denominator(&rows));
        let weights: Vec<f64> = slopes.iter().map(|s| f64::from(-s.logprob)).collect();
        assert!((sums.loss + weights.iter().sum::<f64>()).abs() < 1e-6);
        weights
    };
    let sixth = f64::from(1.0f32 / 6.0);
    assert_eq!(weights(Aggregation::TokenMean), [0.25; 4]);
    assert_eq!(weights(Aggregation::SequenceMean), [sixth, sixth, sixth, 0.5]);
    assert_eq!(weights(Aggregation::Constant { denominator: 8.0 }), [0.125; 4]);
}

#[test]
fn settings_that_make_no_loss_are_refused_by_name() {
    let good = LossSettings::default();
    assert!(good.check().is_ok());
    let bad = [
        (LossSettings { clip_low: 1.5, ..good.clone() }, "clip_low"),
        (LossSettings { clip_high: f64::NAN, ..good.clone() }, "clip_high"),
        (LossSettings { dual_clip: 0.5, ..good.clone() }, "dual_clip"),
        (LossSettings { log_ratio_bound: 0.0, ..good.clone() }, "log_ratio_bound"),
        (LossSettings { kl: Some(Kl { estimator: Estimator::K1, coefficient: -1.0 }), ..good.clone() }, "kl.coefficient"),
        (LossSettings { mismatch: Mismatch::Tis { cap: 0.0 }, ..good.clone() }, "mismatch.tis.cap"),
        (LossSettings { mismatch: Mismatch::Icepop { low: 2.0, high: 1.0 }, ..good.clone() }, "mismatch.icepop"),
        (LossSettings { aggregation: Aggregation::Constant { denominator: 0.0 }, ..good }, "aggregation.constant.denominator"),
    ];
    for (settings, field) in bad {
        assert_eq!(settings.check().unwrap_err().path, field);
    }
}

#[test]
fn schedules_warm_up_and_decay() {
    let factors = |schedule: &Schedule, at: &[u64]| at.iter().map(|u| schedule.factor(*u)).collect::<Vec<_>>();
    let constant = Schedule { warmup_steps: 4, ..Schedule::default() };
    assert_eq!(factors(&constant, &[0, 1, 2, 3, 4, 1000]), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]);
    assert_eq!(factors(&Schedule::default(), &[0, 9]), [1.0, 1.0]);
    let linear = Schedule { kind: Decay::Linear, warmup_steps: 2, total_steps: 10, floor: 0.2 };
    assert!(distance(&factors(&linear, &[0, 1, 2, 6, 10, 99]), &[0.5, 1.0, 1.0, 0.6, 0.2, 0.2]) < 1e-12);
    let cosine = Schedule { kind: Decay::Cosine, ..linear.clone() };
    assert!(distance(&factors(&cosine, &[0, 2, 4, 6, 10, 99]), &[0.5, 1.0, 0.2 + 0.8 * (0.5 + 0.125f64.sqrt()), 0.6, 0.2, 0.2]) < 1e-12);
    assert!(linear.check().is_ok() && constant.check().is_ok());
    assert_eq!(Schedule { total_steps: 2, ..linear.clone() }.check().unwrap_err().path, "total_steps");
    assert_eq!(Schedule { floor: 1.5, ..linear }.check().unwrap_err().path, "floor");
}

#[test]
fn shuffles_are_permutations_that_the_seed_and_the_stream_decide() {
    let order = |seed, stream| {
        let mut items: Vec<usize> = (0..100).collect();
        shuffle(seed, stream, &mut items);
        items
    };
    let first = order(7, 1);
    assert_eq!(first, order(7, 1));
    assert!(first != order(8, 1) && first != order(7, 2) && first != (0..100).collect::<Vec<_>>());
    // The same on every machine and in every version: a resumed run goes on in this order.
    let mut few: Vec<u32> = (0..8).collect();
    shuffle(7, 1, &mut few);
    assert_eq!(few, [7, 5, 4, 1, 0, 6, 3, 2]);
    let mut sorted = first;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    // Every order of three items comes about as often: 6,000 shuffles, 1,000 each, standard deviation 29.
    let mut counts = std::collections::HashMap::new();
    for stream in 0..6000 {
        let mut items = [0, 1, 2];
        shuffle(3, stream, &mut items);
        *counts.entry(items).or_insert(0) += 1;
    }
    assert!(counts.len() == 6 && counts.values().all(|n| (850..1150).contains(n)), "{counts:?}");
    let units: Vec<f64> = (0..4000).map(|i| unit(5, 9, i)).collect();
    assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
    assert!((units.iter().sum::<f64>() / 4000.0 - 0.5).abs() < 0.02);
}

#[test]
fn cuts_hold_every_group_and_respect_the_budget() {
    for (groups, per, sizes) in [(10, 4, vec![4, 4, 2]), (10, 0, vec![10]), (3, 5, vec![3]), (0, 4, vec![])] {
        let batches = mini_batches(groups, per, 1, 2);
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        let mut all = batches.concat();
        all.sort_unstable();
        assert_eq!(all, (0..groups).collect::<Vec<_>>());
        assert_eq!(batches, mini_batches(groups, per, 1, 2));
    }
    let tokens = [5, 5, 1, 9, 10, 2, 2, 2, 2, 2, 1];
    let cuts = micro_batches(&tokens, 10);
    assert_eq!(cuts, [0..2, 2..4, 4..5, 5..10, 10..11]);
    assert!(cuts.iter().all(|cut| tokens[cut.clone()].iter().sum::<usize>() <= 10));
    assert!(micro_batches(&[], 10).is_empty());
    assert_eq!(micro_batches(&[3, 11, 12, 2], 10), [0..1, 1..2, 2..3, 3..4], "a longer row is alone");
}
