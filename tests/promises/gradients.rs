//! Promise 2, the sampler is the trainer: the training forward has the sampler's bits, and its gradients are right and always the same bytes.

mod reference;

use adaroll::commands::check::check;
use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::EngineSettings;
use adaroll::model::backward::{Packed, PackedSequence, Recompute, Slope, TokenScore, Training, TrainingError};
use adaroll::model::{Architecture, Checkpoint, Dtype, ModelConfig, Params, Rounded};
use adaroll::ops::cpu::{CpuOps, Isa};
use adaroll::trainer::optimizer::{Adamw, AdamwSettings, clip_global_norm};

use crate::assets::data;
use crate::numbers::Numbers;
use crate::sampling_runs::scores;
use crate::tiny_model::{TinyModel, tiny_model};

/// One of each kind: tied and not, with and without biases and norms of heads, odd sizes.
fn models() -> [TinyModel; 3] {
    let tiny = TinyModel { vocab_size: 40, hidden_size: 24, dtype: Dtype::F32, ..TinyModel::default() };
    [
        TinyModel { tied: true, ..tiny.clone() },
        TinyModel { architecture: Architecture::Qwen2, kv_heads: 1, hidden_size: 20, ..tiny.clone() },
        TinyModel { architecture: Architecture::Qwen3, tied: true, heads: 6, head_dim: 10, ..tiny },
    ]
}

fn load(model: &TinyModel) -> (ModelConfig, Params) {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny_model(dir.path(), model);
    let params = Params::from_source(&config, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
    (config, params)
}

/// Sequences of these lengths, scored from their second token on or later.
fn packed(numbers: &mut Numbers, vocab: usize, lengths: &[usize]) -> Packed {
    let sequence = |&n: &usize| {
        let token_ids = (0..n).map(|_| numbers.below(vocab) as u32).collect();
        PackedSequence { token_ids, from: 1 + numbers.below(n) }
    };
    Packed { sequences: lengths.iter().map(sequence).collect() }
}

fn slopes(numbers: &mut Numbers, n: usize) -> Vec<Slope> {
    (0..n).map(|_| Slope { logprob: numbers.near_zero(0.1), entropy: numbers.near_zero(0.05) }).collect()
}

fn score_bits(scores: &[TokenScore]) -> Vec<(u32, u32)> {
    scores.iter().map(|s| (s.logprob.to_bits(), s.entropy.to_bits())).collect()
}

fn bytes(params: &Params) -> Vec<(String, Vec<u32>)> {
    params.entries.iter().map(|p| (p.name.clone(), p.values.iter().map(|v| v.to_bits()).collect())).collect()
}

/// ||g - ref|| <= 5e-5 ||ref|| for every parameter, and five AdamW steps to 1e-5, against transformers in f64.
#[test]
fn golden_gradients_and_steps() {
    let report = check(&data("golden/llama-f16-sharded"), 2, Isa::detect()).unwrap();
    println!("{report}");
    let gradients = report.gradients.as_ref().expect("the checkpoint brings gradients");
    let adamw = gradients.adamw.as_ref().expect("and five steps");
    assert!(report.ok && gradients.max_gradient_error < 1e-5 && adamw.max_error < 1e-5, "{report}");
    assert!(gradients.parameters == 21 && adamw.compared > 90_000, "{report}");
}

/// Every parameter's gradient along a random direction is the difference quotient of the loss, computed by a forward pass in f64 that shares
/// nothing with the product.
#[test]
fn gradients_are_the_slopes_of_the_loss() {
    let mut numbers = Numbers(71);
    for model in models() {
        let (config, params) = load(&model);
        for temperature in [1.0, 0.8] {
            let batch = packed(&mut numbers, config.vocab_size, &[19, 2, 33]);
            let mut training = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
            training.set_weights(&params).unwrap();
            let got = training.forward(&batch, temperature).unwrap();
            let slopes = slopes(&mut numbers, got.len());
            let mut gradients = params.zeros_like();
            training.backward(&slopes, &mut gradients).unwrap();

            let wide = reference::widen(&params);
            let want = reference::scores(&config, &wide, &batch, f64::from(temperature));
            for (g, w) in got.iter().zip(&want) {
                assert!((f64::from(g.logprob) - w.0).abs() < 2e-5 && (f64::from(g.entropy) - w.1).abs() < 2e-5, "{g:?} and not {w:?}");
            }
            let loss = |params: &reference::Wide| {
                let scores = reference::scores(&config, params, &batch, f64::from(temperature));
                scores.iter().zip(&slopes).map(|(s, w)| s.0 * f64::from(w.logprob) + s.1 * f64::from(w.entropy)).sum::<f64>()
            };
            for gradient in &gradients.entries {
                let direction: Vec<f64> = gradient.values.iter().map(|_| numbers.unit() - 0.5).collect();
                let step = |by: f64| {
                    let mut moved = wide.clone();
                    let values = moved.get_mut(&gradient.name).unwrap();
                    values.iter_mut().zip(&direction).for_each(|(v, d)| *v += by * d);
                    loss(&moved)
                };
                let want = (step(1e-5) - step(-1e-5)) / 2e-5;
                let got: f64 = gradient.values.iter().zip(&direction).map(|(g, d)| f64::from(*g) * d).sum();
                let size: f64 = gradient.values.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
                assert!(size > 0.0, "{}", gradient.name);
                assert!((got - want).abs() < 1e-4 * size, "{:?} {}: {got} and not {want}", config.architecture, gradient.name);
            }
        }
    }
}

/// Kept or recomputed, logits whole or in chunks, on any instruction set and number of threads, whole or in micro-batches: the same bytes.
#[test]
fn gradients_are_the_same_bytes_however_they_are_computed() {
    let mut numbers = Numbers(72);
    for model in models() {
        let (config, params) = load(&model);
        let batch = packed(&mut numbers, config.vocab_size, &[33, 2, 17, 1, 40, 16]);
        let scored: usize = batch.sequences.iter().map(|s| s.token_ids.len() - s.from).sum();
        let slopes = slopes(&mut numbers, scored);
        let start = {
            let mut start = params.zeros_like();
            start.entries.iter_mut().for_each(|p| p.values = numbers.row(p.values.len(), 0.1));
            start
        };
        let run = |isa, threads, recompute, logits: Option<usize>, cuts: &[usize]| {
            let mut training = Training::new(CpuOps::with_isa(threads, isa).unwrap(), &config, recompute);
            training.set_weights(&params).unwrap();
            if let Some(most) = logits {
                training.limit_logits(most);
            }
            let (mut gradients, mut scores) = (start.clone(), Vec::new());
            for cut in cuts.windows(2) {
                let part = Packed { sequences: batch.sequences[cut[0]..cut[1]].to_vec() };
                let new = training.forward(&part, 0.9).unwrap();
                training.backward(&slopes[scores.len()..][..new.len()], &mut gradients).unwrap();
                scores.extend(new);
            }
            (score_bits(&scores), bytes(&gradients))
        };
        let want = run(Isa::Scalar, 1, Recompute::None, None, &[0, 6]);
        for isa in Isa::available() {
            for threads in [1, 3] {
                assert!(run(isa, threads, Recompute::Layer, None, &[0, 6]) == want, "recomputed, {isa} on {threads} threads");
            }
        }
        let best = Isa::detect();
        for recompute in [Recompute::None, Recompute::Layer] {
            for logits in [None, Some(1), Some(5 * config.vocab_size)] {
                for cuts in [vec![0, 6], vec![0, 1, 2, 3, 4, 5, 6], vec![0, 2, 5, 6]] {
                    let got = run(best, 2, recompute, logits, &cuts);
                    assert!(got == want, "{:?}: {recompute:?}, logits {logits:?}, cut at {cuts:?}", config.architecture);
                }
            }
        }
    }
}

/// The twin: gradients of micro-batches that are summed apart and added up are other bytes.
#[test]
fn gradients_added_up_apart_would_change_bytes() {
    let mut numbers = Numbers(72);
    let (config, params) = load(&models()[0]);
    let batch = packed(&mut numbers, config.vocab_size, &[33, 20]);
    let mut training = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
    training.set_weights(&params).unwrap();
    let mut run = |sequences: &[PackedSequence], gradients: &mut Params| {
        let scores = training.forward(&Packed { sequences: sequences.to_vec() }, 1.0).unwrap();
        training.backward(&vec![Slope { logprob: 0.1, entropy: 0.0 }; scores.len()], gradients).unwrap();
    };
    let [mut whole, mut first, mut second] = [params.zeros_like(), params.zeros_like(), params.zeros_like()];
    run(&batch.sequences, &mut whole);
    run(&batch.sequences[..1], &mut first);
    run(&batch.sequences[1..], &mut second);
    for (to, from) in first.entries.iter_mut().zip(&second.entries) {
        to.values.iter_mut().zip(&from.values).for_each(|(to, v)| *to += v);
    }
    assert!(bytes(&whole) != bytes(&first));
}

/// The engine scores a ragged batch, in chunks of its own choosing, with the trainer's bits; in bf16 through the rounded copy.
#[test]
fn training_log_probabilities_are_the_engines() {
    let mut numbers = Numbers(73);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let dir = tempfile::tempdir().unwrap();
        let config = tiny_model(dir.path(), &TinyModel { dtype, tied: true, ..TinyModel::default() });
        let settings = EngineSettings { max_batch_tokens: 13, ..EngineSettings::default() };
        let opened = open(dir.path(), &EngineOptions { threads: 2, settings, ..EngineOptions::default() }, |_, _| {}).unwrap();
        let params = Params::from_source(&config, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
        let mut training = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
        training.set_weights(&Rounded::new(&params, dtype)).unwrap();
        let batch = packed(&mut numbers, config.vocab_size, &[70, 3, 17, 33, 2]);
        for temperature in [1.0, 0.7] {
            let got: Vec<u32> = training.forward(&batch, temperature).unwrap().iter().map(|s| s.logprob.to_bits()).collect();
            let want: Vec<u32> = batch
                .sequences
                .iter()
                .filter(|s| s.from < s.token_ids.len())
                .flat_map(|s| scores(&opened.engine, &s.token_ids, s.from, temperature).0)
                .map(f32::to_bits)
                .collect();
            assert_eq!(got, want, "{dtype}, temperature {temperature}");
        }
    }
}

/// Weights packed in the memory of older ones are as good as new; and a step changes the loss the way it should.
#[test]
fn new_weights_replace_the_old_ones() {
    let mut numbers = Numbers(74);
    for (model, dtype) in models().iter().zip([Dtype::F32, Dtype::Bf16, Dtype::F32]) {
        let (config, mut params) = load(model);
        let batch = packed(&mut numbers, config.vocab_size, &[30, 25, 9]);
        let mut training = Training::new(CpuOps::new(2).unwrap(), &config, Recompute::None);
        let mut serving = Rounded::new(&params, dtype);
        let (mut gradients, mut optimizer) = (params.zeros_like(), Adamw::new(&params, AdamwSettings::default()));
        let mut sums = Vec::new();
        for _ in 0..4 {
            serving.update(&params);
            training.set_weights(&serving).unwrap();
            let got = training.forward(&batch, 1.0).unwrap();
            let mut fresh = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
            fresh.set_weights(&Rounded::new(&params, dtype)).unwrap();
            assert_eq!(score_bits(&got), score_bits(&fresh.forward(&batch, 1.0).unwrap()));
            sums.push(got.iter().map(|s| f64::from(s.logprob)).sum::<f64>());
            gradients.clear();
            training.backward(&vec![Slope { logprob: -1.0, entropy: 0.0 }; got.len()], &mut gradients).unwrap();
            let norm = clip_global_norm(training.ops(), &mut gradients, 1.0);
            assert!(norm > 1.0 && (clip_global_norm(training.ops(), &mut gradients, f64::MAX) - 1.0).abs() < 1e-4);
            optimizer.step(training.ops(), &mut params, &gradients, 1e-2);
        }
        assert!(sums.is_sorted() && sums[3] > sums[0] + 1.0, "the log-probabilities rise: {sums:?}");
    }
}

/// Every way to misuse it has a sentence.
#[test]
fn bad_batches_are_refused() {
    let (config, params) = load(&models()[0]);
    let (other, _) = load(&models()[1]);
    let mut training = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
    let batch = |token_ids: Vec<u32>, from| Packed {
        sequences: vec![PackedSequence { token_ids: vec![1, 2], from: 1 }, PackedSequence { token_ids, from }],
    };
    let good = batch(vec![1, 2, 3], 1);
    assert!(matches!(training.forward(&good, 1.0), Err(TrainingError::NoWeights)));
    training.set_weights(&params).unwrap();
    for (token_ids, from) in [(vec![], 1), (vec![1, 2], 0), (vec![1, 2], 3), (vec![1, 40], 1), (vec![1; 129], 1)] {
        assert!(matches!(training.forward(&batch(token_ids, from), 1.0), Err(TrainingError::Sequence { sequence: 1, .. })));
    }
    let mut gradients = params.zeros_like();
    assert!(matches!(training.backward(&[], &mut gradients), Err(TrainingError::NoForward)));
    let slopes = vec![Slope::default(); training.forward(&good, 1.0).unwrap().len()];
    assert!(matches!(training.backward(&slopes[1..], &mut gradients), Err(TrainingError::Slopes { given: 2, scored: 3 })));
    assert!(matches!(training.backward(&slopes, &mut Params::zeros(&other)), Err(TrainingError::Gradients(_))));
    training.backward(&slopes, &mut gradients).unwrap();
    assert!(matches!(training.backward(&slopes, &mut gradients), Err(TrainingError::NoForward)));
    // No sequence at all is a batch too.
    assert!(training.forward(&Packed::default(), 1.0).unwrap().is_empty());
    training.backward(&[], &mut gradients).unwrap();

    // Token 3 is seen first by the logits for position 3 of the second sequence.
    let (config, mut params) = load(&TinyModel { tied: false, ..models()[0].clone() });
    params.entries[0].values[3 * config.hidden_size] = f32::NAN;
    let mut training = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
    training.set_weights(&params).unwrap();
    let result = training.forward(&batch(vec![1, 2, 3, 4, 5], 1), 1.0);
    assert!(matches!(result, Err(TrainingError::NonFinite { sequence: 1, position: 3 })), "{result:?}");
}
