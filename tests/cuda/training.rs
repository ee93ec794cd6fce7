//! The trainer on the card: it scores with the engine's bits, its gradients and steps follow the CPU trainer's, and nothing that a run may choose
//! (cuts, what is kept, where moments live) changes a bit.

use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::EngineSettings;
use adaroll::model::backward::{Packed, PackedSequence, Recompute, Slope, TokenScore, Training};
use adaroll::model::params::{Params, Rounded};
use adaroll::model::{Architecture, Checkpoint, Dtype, ModelConfig};
use adaroll::ops::Ops;
use adaroll::ops::TrainOps;
use adaroll::ops::cpu::CpuOps;
use adaroll::ops::cuda::{CudaOps, Flat};
use adaroll::trainer::backend::Backend;
use adaroll::trainer::learner::{Learn, Learner, Plan, Score};
use adaroll::trainer::optimizer::AdamwSettings;
use adaroll::trainer::settings::{Lora, Settings};
use libtest_mimic::Trial;

use crate::emulator::{Card, card};
use crate::engine::{options, shipped};
use crate::kit::{Numbers, assert_well, cuda, trial};
use crate::sampling_runs::scores;
use crate::tiny_model::{TinyModel, tiny_model};

pub fn trials() -> Vec<Trial> {
    vec![
        trial("training::log_probabilities_have_the_bits_of_the_engines", engines_bits),
        trial("training::gradients_follow_the_cpus", gradients),
        trial("training::gradients_have_the_same_bytes_however_they_are_computed", same_bytes),
        trial("training::gradients_added_up_apart_would_change_bytes", twin_of_cuts),
        trial("training::twenty_steps_follow_the_cpu_trainer", || steps(0)),
        trial("training::twenty_steps_of_adapters_follow_the_cpu_trainer", || steps(4)),
        trial("training::two_runs_and_moments_on_the_host_give_the_same_bytes", same_run),
        trial("training::what_serves_is_the_master_rounded_once", serving),
        trial("training::a_run_takes_the_memory_that_was_predicted", memory),
        trial("training::a_run_that_does_not_fit_is_refused_with_what_would", too_large),
        trial("training::a_logit_that_is_not_finite_names_its_token", not_finite),
    ]
}

fn models() -> [TinyModel; 3] {
    let tiny = TinyModel { vocab_size: 48, hidden_size: 32, head_dim: 16, ..TinyModel::default() };
    [
        TinyModel { tied: true, ..tiny.clone() },
        // An intermediate size of 30: the gradient of `up` starts within 16 bytes.
        TinyModel { architecture: Architecture::Qwen2, kv_heads: 1, hidden_size: 20, ..tiny.clone() },
        TinyModel { architecture: Architecture::Qwen3, tied: true, heads: 6, ..tiny },
    ]
}

fn load(model: &TinyModel) -> (ModelConfig, Params) {
    let dir = tempfile::tempdir().unwrap();
    let config = tiny_model(dir.path(), model);
    let params = Params::from_source(&config, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
    (config, params)
}

fn packed(numbers: &mut Numbers, vocab: usize, lengths: &[usize]) -> Packed {
    let sequence = |&n: &usize| {
        let token_ids = (0..n).map(|_| numbers.below(vocab) as u32).collect();
        PackedSequence { token_ids, from: 1 + numbers.below(n) }
    };
    Packed { sequences: lengths.iter().map(sequence).collect() }
}

fn slopes(numbers: &mut Numbers, n: usize) -> Vec<Slope> {
    (0..n).map(|_| Slope { logprob: numbers.bf16(0.1), entropy: numbers.bf16(0.05) }).collect()
}

fn score_bits(scores: &[TokenScore]) -> Vec<(u32, u32)> {
    scores.iter().map(|s| (s.logprob.to_bits(), s.entropy.to_bits())).collect()
}

fn bits(params: &Params) -> Vec<u32> {
    params.entries.iter().flat_map(|p| &p.values).map(|v| v.to_bits()).collect()
}

/// What is trained here, all in bf16.
fn trained(ops: CudaOps, config: &ModelConfig, params: &Params, recompute: Recompute) -> Training<CudaOps> {
    let mut training = Training::new(ops, config, recompute);
    training.set_weights(&Rounded::new(params, Dtype::Bf16)).unwrap();
    training
}

/// Promise 2. The engine scores a ragged batch in chunks of its own choosing, over its paged cache.
fn engines_bits() {
    let mut numbers = Numbers(73);
    for model in models() {
        let dir = tempfile::tempdir().unwrap();
        let config = tiny_model(dir.path(), &model);
        let opened = open(dir.path(), &EngineOptions { ..options(|s: &mut EngineSettings| s.max_batch_tokens = 13) }, |_, _| {}).unwrap();
        let params = Params::from_source(&config, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
        let mut training = trained(cuda(), &config, &params, Recompute::None);
        let batch = packed(&mut numbers, config.vocab_size, &[70, 3, 17, 33, 2]);
        for temperature in [1.0, 0.7] {
            let got: Vec<u32> = training.forward(&batch, temperature).unwrap().iter().map(|s| s.logprob.to_bits()).collect();
            let scored = batch.sequences.iter().filter(|s| s.from < s.token_ids.len());
            let want = scored.flat_map(|s| scores(&opened.engine, &s.token_ids, s.from, temperature).0).map(f32::to_bits);
            assert_eq!(got, want.collect::<Vec<u32>>(), "{:?}, temperature {temperature}", config.architecture);
        }
    }
}

/// Scores and gradients of a batch.
fn passes<O: TrainOps>(training: &mut Training<O>, params: &Params, batch: &Packed, slopes: &[Slope]) -> (Vec<TokenScore>, Params) {
    let mut gradients = params.map(|p| training.ops().zeros(p.len()));
    let scores = training.forward(batch, 0.9).unwrap();
    training.backward(slopes, &mut gradients).unwrap();
    (scores, gradients.map(|p| training.ops().read_flat(&p.values)))
}

/// Norm of a difference over the norm of what it should be.
fn relative(got: &[f32], want: &[f32]) -> f64 {
    let square = |v: f64| v * v;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    (error / want.iter().map(|w| square(f64::from(*w))).sum::<f64>()).sqrt()
}

/// Passes in bf16 are off by some of its roundings, each up to 2^-9 of a number.
const MOST_ERROR: f64 = 0.05;

fn gradients() {
    let mut numbers = Numbers(71);
    for model in models() {
        let (config, params) = load(&model);
        let batch = packed(&mut numbers, config.vocab_size, &[33, 2, 70, 1, 16]);
        let scored: usize = batch.sequences.iter().map(|s| s.token_ids.len() - s.from).sum();
        let slopes = slopes(&mut numbers, scored);
        let mut exact = Training::new(CpuOps::new(1).unwrap(), &config, Recompute::None);
        exact.set_weights(&Rounded::new(&params, Dtype::Bf16)).unwrap();
        let (want_scores, want) = passes(&mut exact, &params, &batch, &slopes);
        let (got_scores, got) = passes(&mut trained(cuda(), &config, &params, Recompute::None), &params, &batch, &slopes);
        let of = |scores: &[TokenScore], value: fn(&TokenScore) -> f32| scores.iter().map(value).collect::<Vec<f32>>();
        for value in [|s: &TokenScore| s.logprob, |s: &TokenScore| s.entropy] {
            let error = relative(&of(&got_scores, value), &of(&want_scores, value));
            assert!(error < MOST_ERROR, "{:?}: scores off by {error:.4} of their size", config.architecture);
        }
        let mut worst: (f64, &str) = (0.0, "");
        for (got, want) in got.entries.iter().zip(&want.entries) {
            let error = relative(&got.values, &want.values);
            worst = if error > worst.0 { (error, &got.name) } else { worst };
            assert!(error < MOST_ERROR, "{:?} {}: off by {error:.4} of its size", config.architecture, got.name);
        }
        println!("{:?}: at most {:.4} of a gradient's size, {}", config.architecture, worst.0, worst.1);
    }
}

/// Kept or recomputed, logits whole or in chunks, whole or in micro-batches: the same bytes, on top of what the gradients held.
fn same_bytes() {
    let mut numbers = Numbers(72);
    for model in models() {
        let (config, params) = load(&model);
        let batch = packed(&mut numbers, config.vocab_size, &[33, 2, 17, 1, 40, 16]);
        let scored: usize = batch.sequences.iter().map(|s| s.token_ids.len() - s.from).sum();
        let slopes = slopes(&mut numbers, scored);
        let start = params.map(|p| numbers.many(p.len(), 0.1));
        let run = |recompute, logits: Option<usize>, cuts: &[usize]| {
            let mut training = trained(cuda(), &config, &params, recompute);
            if let Some(most) = logits {
                training.limit_logits(most);
            }
            let mut gradients = start.map(|p| training.ops().flat(&p.values));
            let mut scores = Vec::new();
            for cut in cuts.windows(2) {
                let part = Packed { sequences: batch.sequences[cut[0]..cut[1]].to_vec() };
                let new = training.forward(&part, 0.9).unwrap();
                training.backward(&slopes[scores.len()..][..new.len()], &mut gradients).unwrap();
                scores.extend(new);
            }
            (score_bits(&scores), bits(&gradients.map(|p| training.ops().read_flat(&p.values))))
        };
        let want = run(Recompute::None, None, &[0, 6]);
        for (recompute, logits, cuts) in [
            (Recompute::Layer, None, vec![0, 6]),
            (Recompute::None, Some(1), vec![0, 6]),
            (Recompute::None, None, vec![0, 1, 2, 3, 4, 5, 6]),
            (Recompute::Layer, Some(20 * config.vocab_size), vec![0, 2, 5, 6]),
        ] {
            let got = run(recompute, logits, &cuts);
            assert!(got == want, "{:?}: {recompute:?}, logits {logits:?}, cut at {cuts:?}", config.architecture);
        }
    }
}

/// The twin: gradients of micro-batches that are summed apart and added up are other bytes.
fn twin_of_cuts() {
    let mut numbers = Numbers(75);
    let (config, params) = load(&models()[0]);
    let batch = packed(&mut numbers, config.vocab_size, &[33, 20]);
    let mut training = trained(cuda(), &config, &params, Recompute::None);
    let mut run = |sequences: &[PackedSequence], gradients: &mut Params<Flat>| {
        let scores = training.forward(&Packed { sequences: sequences.to_vec() }, 1.0).unwrap();
        training.backward(&vec![Slope { logprob: 0.1, entropy: 0.0 }; scores.len()], gradients).unwrap();
    };
    let mut ops = cuda();
    let [mut whole, mut first, mut second] = [0; 3].map(|_| params.map(|p| ops.zeros(p.len())));
    ops.settle();
    run(&batch.sequences, &mut whole);
    run(&batch.sequences[..1], &mut first);
    run(&batch.sequences[1..], &mut second);
    training.ops().settle();
    for (to, from) in first.entries.iter_mut().zip(&second.entries) {
        ops.add_flat(&mut to.values, &from.values);
    }
    let read = |params: &Params<Flat>| bits(&params.map(|p| ops.read_flat(&p.values)));
    assert!(read(&whole) != read(&first));
    assert_well(&ops);
}

fn plan<'a>(config: &'a ModelConfig, lora: &'a Lora, dtype: Dtype) -> Plan<'a> {
    let optimizer = AdamwSettings { betas: (0.9, 0.95), weight_decay: 0.1, ..AdamwSettings::default() };
    Plan { config, dtype, recompute: Recompute::None, optimizer, clip_norm: 1.0, lora, seed: 5, rows: 128, parts: 1 }
}

/// Steps on the same batches; the mean log-probability before each, and the learner.
fn train<O: TrainOps + 'static>(ops: O, model: &TinyModel, rank: usize, steps: usize) -> (Vec<f64>, Box<dyn Learn>) {
    let (config, params) = load(model);
    let lora = Lora { rank, alpha: 8.0, ..Lora::default() };
    let mut learner = Learner::new(ops, &params, &plan(&config, &lora, Dtype::Bf16)).unwrap();
    let mut numbers = Numbers(76);
    let batches: Vec<Packed> = (0..4).map(|_| packed(&mut numbers, config.vocab_size, &[33, 20, 40])).collect();
    let mut means = Vec::new();
    for step in 0..steps {
        let batch = &batches[step % batches.len()];
        learner.zero_gradients();
        let scores = learner.forward(batch, 1.0).unwrap();
        let n = scores.len() as f32;
        means.push(scores.iter().map(|s| f64::from(s.logprob)).sum::<f64>() / f64::from(n));
        learner.backward(&vec![Slope { logprob: -1.0 / n, entropy: 0.0 }; scores.len()]).unwrap();
        assert!(learner.update(2e-3).unwrap().is_some());
    }
    (means, Box::new(learner))
}

fn steps(rank: usize) {
    for model in models() {
        let (want, mut exact) = train(CpuOps::new(1).unwrap(), &model, rank, 20);
        let (got, mut learner) = train(cuda(), &model, rank, 20);
        let first = {
            let (_, mut first) = train(CpuOps::new(1).unwrap(), &model, rank, 0);
            first.tensors().unwrap().master
        };
        let (master, exact) = (learner.tensors().unwrap().master, exact.tensors().unwrap().master);
        let moved = |params: &Params| -> Vec<f32> {
            params.entries.iter().zip(&first.entries).flat_map(|(p, q)| p.values.iter().zip(&q.values).map(|(p, q)| p - q)).collect()
        };
        let error = relative(&moved(&master), &moved(&exact));
        let apart = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        println!(
            "{:?}, rank {rank}: log-probability {:.4} -> {:.4}, apart by at most {apart:.4}; the way of the parameters differs by {error:.4}",
            model.architecture, got[0], got[19]
        );
        assert!(got[19] - got[3] > 0.1, "it learns: {got:?}");
        assert!(apart < 0.03, "{got:?}\n{want:?}");
        assert!(error < 0.2, "the parameters went another way: {error}");
    }
}

fn same_run() {
    for rank in [0, 4] {
        let model = &models()[2];
        let run = |offload: bool| {
            let mut ops = cuda();
            if offload {
                ops.offload_moments();
            }
            let (means, mut learner) = train(ops, model, rank, 6);
            let t = learner.tensors().unwrap();
            let means: Vec<u64> = means.iter().map(|m| m.to_bits()).collect();
            (means, bits(&t.master), bits(&t.first), bits(&t.second), learner.weights().unwrap())
        };
        let want = run(false);
        assert!(run(false) == want, "twice");
        assert!(run(true) == want, "moments on the host");
    }
}

fn serving() {
    for rank in [0, 4] {
        let model = &models()[1];
        let (config, base) = load(model);
        let (_, mut learner) = train(cuda(), model, rank, 3);
        let weights = learner.weights().unwrap();
        assert_eq!(weights.iter().map(|t| (t.name.clone(), t.shape.clone())).collect::<Vec<_>>(), config.tensors());
        if rank == 0 {
            let master = learner.tensors().unwrap().master;
            let rounded = Rounded::new(&master, Dtype::Bf16);
            assert!(rounded.tensors().zip(&weights).all(|(view, t)| view.bytes == &t.bytes[..]));
        }
        // A fresh trainer on these bytes scores with the same bits.
        let dir = tempfile::tempdir().unwrap();
        tiny_model(dir.path(), model);
        std::fs::write(dir.path().join("model.safetensors"), adaroll::trainer::checkpoint::file_bytes(&weights, Dtype::Bf16)).unwrap();
        let params = Params::from_source(&config, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
        assert!(bits(&params) != bits(&base), "the weights have moved");
        let mut fresh = trained(cuda(), &config, &params, Recompute::None);
        let batch = packed(&mut Numbers(77), config.vocab_size, &[33, 20]);
        assert_eq!(score_bits(&fresh.forward(&batch, 1.0).unwrap()), score_bits(&learner.forward(&batch, 1.0).unwrap()));
    }
}

/// Settings of a run on this card.
fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.model.device = "cuda".into();
    settings.model.kernels = shipped().unwrap_or_default();
    settings.update.micro_batch_tokens = 256;
    settings
}

fn backend(settings: &Settings) -> Backend {
    Backend::open(&settings.model).unwrap_or_else(|e| panic!("{e}"))
}

fn memory() {
    let settings = settings();
    let backend = backend(&settings);
    let Backend::Cuda(ops, _) = &backend else { panic!("a GPU was asked for") };
    let model = TinyModel { vocab_size: 4096, hidden_size: 128, head_dim: 32, layers: 3, ..models()[2].clone() };
    let (config, params) = load(&model);
    for recompute in [Recompute::None, Recompute::Layer] {
        let mut settings = settings.clone();
        settings.model.recompute = recompute;
        let need = backend.check_memory(&config, &settings, false).unwrap().unwrap();
        let before = ops.free_memory().unwrap();
        let plan = Plan { rows: 256, recompute, ..plan(&config, &settings.lora, Dtype::Bf16) };
        let (mut learner, _) = backend.learner(&params, &plan, false).unwrap();
        let batch = packed(&mut Numbers(78), config.vocab_size, &[128, 113]);
        let scores = learner.forward(&batch, 1.0).unwrap();
        learner.backward(&vec![Slope { logprob: -0.01, entropy: 0.0 }; scores.len()]).unwrap();
        learner.update(1e-3).unwrap();
        let taken = before - ops.free_memory().unwrap();
        println!("{recompute:?}: predicted {} bytes, taken {taken}", need.total());
        assert!(taken <= need.total(), "{need} and {taken} bytes");
        // What is predicted too much is chunks of memory that are not full: of weights, activations, optimizer and scratch.
        assert!(need.total() - taken <= 4 * (64 << 20), "{need} and {taken} bytes");
    }
}

fn too_large() {
    if card() == Card::Real {
        return;
    }
    let mut settings = settings();
    let backend = backend(&settings);
    let model = TinyModel { vocab_size: 4096, hidden_size: 128, head_dim: 32, layers: 16, ..models()[2].clone() };
    let (config, _) = load(&model);
    settings.update.micro_batch_tokens = 16384;
    let need = backend.check_memory(&config, &settings, false).unwrap().unwrap();
    settings.model.memory_gib = need.total() as f64 / (1u64 << 30) as f64 * 0.8;
    let refused = backend.check_memory(&config, &settings, false).unwrap_err();
    assert!(refused.contains("set model.recompute = \"layer\" (then ") && refused.contains(" needs "), "{refused}");
    settings.model.memory_gib = 0.01;
    let refused = backend.check_memory(&config, &settings, false).unwrap_err();
    assert!(refused.contains("no setting of this run would make it fit"), "{refused}");
}

fn not_finite() {
    let (config, mut params) = load(&models()[1]);
    let head = params.get_mut("lm_head.weight").unwrap();
    head.values[3 * 20] = f32::INFINITY;
    let mut training = trained(cuda(), &config, &params, Recompute::None);
    let batch =
        Packed { sequences: vec![PackedSequence { token_ids: vec![1, 2], from: 2 }, PackedSequence { token_ids: vec![1; 20], from: 18 }] };
    let error = training.forward(&batch, 1.0).unwrap_err().to_string();
    assert!(error.contains("position 18 of sequence 1") || error.contains("position 17 of sequence 1"), "{error}");
}
