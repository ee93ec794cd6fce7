//! Promise: a backend whose answers come one step late, so that the host prepares a step while the device computes the one before, changes no
//! token, no bit and no ending; and a device that fails ends the engine with its own words.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adaroll::commands::open::EngineOptions;
use adaroll::engine::{
    Engine, EngineSettings, Event, FinishReason, LocalEngine, Sample, SamplingParams, Scores, StageError, StopMatch, Swapped,
};
use adaroll::model::weights::heads;
use adaroll::model::{Checkpoint, Model, ModelConfig, TensorView};
use adaroll::ops::cpu::{CpuOps, KvCache, Matrix, Tensor};
use adaroll::ops::{BLOCK_TOKENS, Heads, Ops, PROMISED};

use crate::assets::{data, smollm2};
use crate::engine::{Gated, PATIENCE, engine, finished, params, request, sample, score_request, settings, tiny};
use crate::late_ops::{failing_late_engine, forgetful_engine, hooked_late_engine, late_engine};
use crate::over_ops::{Hooks, Over};
use crate::sampling_runs::{assert_same, bits, differ, idle_stats, run, run_once};
use crate::timing::{every_way, options, prompts};
use crate::tiny_model::{TinyModel, write_safetensors};
use crate::weights::kit::{folder, naming, token_of};

/// Every way of running the same samples; each is compared with the others there, and here with a backend that answers at once.
#[test]
fn late_answers_change_no_token_and_no_bit_however_samples_are_run() {
    for name in ["qwen3-gqa3-qknorm", "llama-f16-sharded"] {
        let dir = data("golden").join(name);
        let params = SamplingParams { max_tokens: 24, ignore_eos: true, temperature: 0.9, top_k: 50, ..SamplingParams::default() };
        let expected = run_once(&dir, &options(2, |_| {}), &prompts(320), 8, &params).0;
        assert_same(name, &expected, &every_way(late_engine, &dir, &prompts(320), 8, &params, 14));
    }
}

#[test]
fn late_answers_change_no_token_and_no_bit_of_a_real_model() {
    let params = SamplingParams { max_tokens: 6, ignore_eos: true, ..SamplingParams::default() };
    let prompts: Vec<Vec<u32>> = prompts(1000).into_iter().step_by(3).collect();
    let few = options(2, |s| s.kv_blocks = Some(8));
    let expected = run_once(&smollm2(), &few, &prompts, 3, &params).0;
    assert_same("late", &expected, &run(&late_engine(&smollm2(), &few), &prompts, 3, &params, None));
}

/// The twin draws at the position of the token that is in flight: the comparisons above would notice.
#[test]
fn the_twin_that_forgets_the_token_in_flight_draws_others() {
    let dir = data("golden/llama-f16-sharded");
    let params = SamplingParams { max_tokens: 24, ignore_eos: true, ..SamplingParams::default() };
    let expected = run_once(&dir, &options(1, |_| {}), &prompts(320), 2, &params).0;
    let twin = run(&forgetful_engine(&dir, &options(1, |_| {})), &prompts(320), 2, &params, None);
    assert!(differ(&expected, &twin));
    assert!(expected.iter().zip(&twin).all(|(a, b)| a.token_ids[0] == b.token_ids[0]), "the first token has none before it");
}

fn one_thread(change: impl FnOnce(&mut EngineSettings)) -> EngineOptions {
    EngineOptions { threads: 1, settings: settings(change), ..EngineOptions::default() }
}

/// A sample's parameters, of nine kinds: most end where nobody could foresee it.
fn kind(k: u32) -> SamplingParams {
    let letters = |of: &str| of.chars().map(String::from).collect();
    params(|p| match k % 9 {
        0 => p.stop_token_ids = (3..12).collect(),
        1 => p.stop = letters("adhkz"),
        2 => (p.stop_token_ids, p.min_tokens) = ((3..30).collect(), 5),
        3 => (p.stop, p.min_tokens) = (letters("abcdefghijkl"), 4),
        4 => (p.logit_bias, p.temperature) = (vec![(5, 3.0), (6, -1000.0), (40, 2.5)], 0.0),
        5 => p.max_tokens = 1,
        6 => (p.max_tokens, p.stop_token_ids) = (2, (0..32).collect()),
        7 => (p.top_k, p.top_p, p.min_p, p.temperature) = (20, 0.9, 0.02, 1.3),
        _ => (p.ignore_eos, p.logit_bias, p.min_tokens) = (false, vec![(2, 3.0)], 2),
    })
}

const KINDS: u32 = 90;

/// Samples of every kind, and scores between them, all at a time.
fn mixed(engine: &LocalEngine) -> (Vec<Sample>, Vec<Scores>) {
    let text = |k: u32, len: u32| -> Vec<u32> { (0..len).map(|i| 3 + (i * i + k) % 50).collect() };
    let mut samples = Vec::new();
    let mut scored = Vec::new();
    for k in 0..KINDS {
        let prompt = text(k / 3 % 4, 3 + k / 3 % 4 * 9);
        samples.push(engine.submit(request(&prompt, k, kind(k))).unwrap());
        if k % 3 == 0 {
            let tokens = text(k / 6 % 3, 20 + k / 6);
            scored.push(engine.score(score_request(&tokens, 1 + k as usize % 19, [1.0, 0.7, 0.0][k as usize / 3 % 3])).unwrap());
        }
    }
    let samples = samples.into_iter().map(finished).collect();
    (samples, scored.into_iter().map(|reply| reply.blocking_recv().unwrap().unwrap()).collect())
}

#[test]
fn samples_that_end_with_a_row_in_flight_end_as_they_would_have() {
    let dir = folder(&TinyModel::default());
    let (expected, expected_scores) = mixed(&engine(dir.path(), settings(|_| {})));
    let ends = |end: fn(&Sample) -> bool| expected.iter().filter(|s| end(s)).count();
    assert!(ends(|s| matches!(s.stop_match, Some(StopMatch::Token(_))) && s.token_ids.len() > 1) > 20);
    assert!(ends(|s| matches!(s.stop_match, Some(StopMatch::Text(_))) && s.token_ids.len() > 1) > 10);
    assert!(ends(|s| s.finish_reason == FinishReason::Length && s.token_ids.len() == 20) > 10 && ends(|s| s.token_ids.len() == 1) > 10);

    type Change = fn(&mut EngineSettings);
    let ways: [(&str, Change); 7] = [
        ("as it comes", |_| {}),
        ("few blocks", |s| s.kv_blocks = Some(9)),
        ("few blocks, no prefix cache", |s| (s.kv_blocks, s.prefix_cache) = (Some(9), false)),
        ("chunks of 3", |s| s.max_batch_tokens = 3),
        ("chunks of 16, few blocks", |s| (s.max_batch_tokens, s.kv_blocks) = (16, Some(12))),
        ("two at a time", |s| s.max_sequences = 2),
        ("one at a time", |s| s.max_sequences = 1),
    ];
    for (what, change) in ways {
        let late = late_engine(dir.path(), &one_thread(change));
        for round in ["cold", "warm"] {
            let (samples, scores) = mixed(&late);
            assert_same(&format!("{what}, {round}"), &expected, &samples);
            for (i, (a, b)) in expected_scores.iter().zip(&scores).enumerate() {
                assert_eq!(bits(&a.logprobs), bits(&b.logprobs), "{what}, {round}: score {i}");
                assert_eq!(bits(&a.logprobs_raw), bits(&b.logprobs_raw), "{what}, {round}: score {i}");
            }
        }
        let stats = idle_stats(&late);
        assert_eq!(stats.generated_tokens, 2 * expected.iter().map(|s| s.token_ids.len() as u64).sum::<u64>(), "{what}");
        assert!(!what.contains("few blocks,") || stats.preemptions > 0, "{what}: {stats:?}");
    }
}

/// A surprising end costs one row, and a foreseen one none.
#[test]
fn only_a_surprising_end_has_a_row_in_flight() {
    let dir = folder(&TinyModel::default());
    let alone = one_thread(|s| (s.max_sequences, s.prefix_cache) = (1, false));
    let [at_once, late] = [engine(dir.path(), alone.settings.clone()), late_engine(dir.path(), &alone)].map(|engine| {
        let samples = mixed(&engine).0;
        (samples, idle_stats(&engine).batch_tokens)
    });
    let surprises = (0..).zip(&at_once.0).filter(|(k, s)| (s.token_ids.len() as u32) < kind(*k).max_tokens).count();
    assert!(surprises > 30);
    assert_eq!(late.1 - at_once.1, surprises as u64);
}

#[test]
fn a_sample_that_is_cancelled_in_flight_gets_nothing_more_and_leaves_the_others_alone() {
    let dir = tiny(&TinyModel::default());
    let at_once = engine(dir.path(), settings(|_| {}));
    let [first, other] = [[5, 5, 5], [6, 6, 6]].map(|prompt| sample(&at_once, &prompt, params(|_| {})));
    let gated = Gated::over(|gate| hooked_late_engine(dir.path(), &settings(|_| {}), gate));
    let stream = gated.engine.submit(request(&[5, 5, 5], 0, params(|_| {}))).unwrap();
    assert_eq!(gated.step_that_waits(), [5, 5, 5]);
    gated.let_through();
    assert_eq!(gated.step_that_waits(), [PROMISED], "the next step does not wait for the token");
    let ack = gated.engine.cancel(stream.id);
    let beside = gated.engine.submit(request(&[6, 6, 6], 0, params(|_| {}))).unwrap();
    gated.let_through();
    assert!(ack.blocking_recv().unwrap());
    assert_eq!(gated.engine.stats().blocks_free, 64);
    let cancelled = finished(stream);
    assert_eq!((cancelled.finish_reason, cancelled.token_ids.as_slice()), (FinishReason::Cancelled, &first.token_ids[..1]));
    // The draw of the cancelled sample is still open when the other one starts.
    assert_eq!(gated.step_that_waits(), [6, 6, 6]);
    drop(gated.permits);
    assert_same("beside", &[other], &[finished(beside)]);
    assert_eq!(idle_stats(&gated.engine).generated_tokens, 1 + 20);
}

#[test]
fn cancels_at_any_time_leave_every_other_sample_as_it_was() {
    let dir = tiny(&TinyModel::default());
    let at_once = engine(dir.path(), settings(|_| {}));
    let submit = |engine: &LocalEngine, k: u32| {
        let prompt: Vec<u32> = (0..4 + k % 5 * 7).map(|i| 3 + i % (k % 5 + 2)).collect();
        engine.submit(request(&prompt, k, params(|p| p.max_tokens = 40))).unwrap()
    };
    let expected: Vec<Sample> = (0..40).map(|k| submit(&at_once, k)).collect::<Vec<_>>().into_iter().map(finished).collect();
    for blocks in [10, 64] {
        let late = late_engine(dir.path(), &one_thread(|s| s.kv_blocks = Some(blocks)));
        let mut lengths = Vec::new();
        for round in 0..5 {
            let streams: Vec<_> = (0..40).map(|k| submit(&late, k)).collect();
            for (k, stream) in streams.iter().enumerate() {
                if k % 3 == round % 3 {
                    std::thread::sleep(Duration::from_micros(300 * (1 + round as u64)));
                    assert!(late.cancel(stream.id).blocking_recv().is_ok());
                }
            }
            for (expected, stream) in expected.iter().zip(streams) {
                let sample = finished(stream);
                if sample.finish_reason == FinishReason::Cancelled {
                    lengths.push(sample.token_ids.len());
                    let n = sample.token_ids.len();
                    assert_eq!(sample.token_ids, expected.token_ids[..n]);
                    assert_eq!(bits(&sample.logprobs), bits(&expected.logprobs[..n]));
                } else {
                    assert_same("not cancelled", std::slice::from_ref(expected), &[sample]);
                }
            }
        }
        idle_stats(&late);
        assert!(lengths.iter().any(|&n| n > 0), "some were cancelled on their way: {lengths:?}");
    }
}

/// A folder whose weights draw the token of their version.
fn version(number: u64) -> tempfile::TempDir {
    let dir = tiny(&TinyModel::default());
    write_safetensors(&dir.path().join("model.safetensors"), &naming(number));
    dir
}

fn swap(engine: &LocalEngine, number: u64) -> tokio::sync::oneshot::Receiver<Swapped> {
    let dir = version(number);
    let config = ModelConfig::from_folder(dir.path()).unwrap();
    engine.stage(number, &Checkpoint::open(dir.path(), &config).unwrap()).unwrap();
    engine.swap().unwrap()
}

/// Fails where a token is not the one that its version draws; returns the number of versions.
fn versions(sample: &Sample) -> usize {
    let mut at = 0;
    for span in &sample.weight_versions {
        assert_eq!(span.start, at);
        assert!(sample.token_ids[span.start as usize..span.end as usize].iter().all(|&id| id == token_of(span.version)), "{sample:?}");
        at = span.end;
    }
    assert_eq!(at as usize, sample.token_ids.len());
    sample.weight_versions.len()
}

#[test]
fn a_token_in_flight_when_the_weights_change_is_of_the_old_ones() {
    let dir = version(0);
    let gated = Gated::over(|gate| hooked_late_engine(dir.path(), &settings(|_| {}), gate));
    let stream = gated.engine.submit(request(&[5, 5, 5], 0, params(|p| p.max_tokens = 10))).unwrap();
    assert_eq!(gated.step_that_waits(), [5, 5, 5]);
    gated.let_through();
    assert_eq!(gated.step_that_waits(), [PROMISED]);
    let swapped = swap(&gated.engine, 1);
    gated.let_through();
    let old = token_of(0);
    assert_eq!(gated.step_that_waits(), [5, 5, 5, old, old], "all that the old weights drew is known, and computed again");
    let Swapped { version, lost_tokens, .. } = swapped.blocking_recv().unwrap();
    assert_eq!((version, lost_tokens), (1, 4));
    drop(gated.permits);
    let sample = finished(stream);
    assert_eq!(versions(&sample), 2);
    assert_eq!((sample.weight_versions[0].end, sample.token_ids.len()), (2, 10));
}

#[test]
fn every_token_and_every_score_is_of_one_version_under_many_swaps() {
    let dir = version(0);
    let late = late_engine(dir.path(), &one_thread(|s| s.kv_blocks = Some(20)));
    let tokens: Vec<u32> = (0..60).map(|i| token_of(i % 20)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let (mut mixed, mut scored) = (0, std::collections::BTreeSet::new());
            for round in 0.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let submit = |k| late.submit(request(&[5, k % 3, 6], k, params(|p| p.max_tokens = 30 + k + round % 2))).unwrap();
                let streams: Vec<_> = (0..24).map(submit).collect();
                let replies: Vec<_> = (0..4).map(|_| late.score(score_request(&tokens, 1, 1.0)).unwrap()).collect();
                mixed += streams.into_iter().map(|stream| versions(&finished(stream))).filter(|n| *n > 1).count();
                for reply in replies {
                    let scores = reply.blocking_recv().unwrap().unwrap();
                    assert_eq!(scores.logprobs.len(), 59);
                    for (token, logprob) in tokens[1..].iter().zip(&scores.logprobs) {
                        assert_eq!(*logprob > -1.0, *token == token_of(scores.weights_version), "{scores:?}");
                    }
                    scored.insert(scores.weights_version);
                }
            }
            (mixed, scored.len())
        });
        for number in 1..20 {
            assert_eq!(swap(&late, number).blocking_recv().unwrap().version, number);
            std::thread::sleep(Duration::from_millis(10));
        }
        over.store(true, Ordering::SeqCst);
        let (mixed, scored) = load.join().unwrap();
        println!("19 swaps: {mixed} samples of several versions, scores of {scored} versions");
        assert!(mixed > 5 && scored > 2);
    });
    idle_stats(&late);
}

const FALLEN: &str = "the device has fallen off the bus";

/// Fails in one of its steps.
struct Falls {
    steps: u32,
    at: u32,
}

impl Hooks for Falls {
    fn failure(&self) -> Option<String> {
        (self.steps >= self.at).then(|| FALLEN.to_owned())
    }

    fn embed(&mut self, cpu: &mut CpuOps, table: &Matrix, ids: &[u32], out: &mut Tensor) {
        self.steps += 1;
        cpu.embed(table, ids, out);
    }
}

#[test]
fn a_device_that_fails_ends_every_stream_and_nothing_of_that_step_is_told() {
    let dir = tiny(&TinyModel::default());
    let expected = sample(&engine(dir.path(), settings(|_| {})), &[3, 4], params(|_| {}));
    let at_once = {
        let ops = Over(CpuOps::new(1).unwrap(), Falls { steps: 0, at: 4 });
        let model = Model::load(&ops, dir.path(), |_, _| {}).unwrap();
        LocalEngine::start(ops, model, &settings(|_| {})).unwrap()
    };
    // The answers of the third step come in the fourth, which fails.
    for (engine, told) in [(at_once, 3), (failing_late_engine(dir.path(), &settings(|_| {}), 4, FALLEN), 2)] {
        let mut stream = engine.submit(request(&[3, 4], 0, params(|_| {}))).unwrap();
        let mut tokens = Vec::new();
        while let Some(event) = stream.events.blocking_recv() {
            match event {
                Event::Token { token_id, .. } => tokens.push(token_id),
                Event::Finished(sample) => panic!("it has not finished: {sample:?}"),
            }
        }
        assert_eq!(tokens, expected.token_ids[..told]);
        let why = format!("the engine has stopped: {FALLEN}");
        let start = Instant::now();
        while engine.submit(request(&[3], 0, params(|_| {}))).err().map(|e| e.to_string()).as_deref() != Some(&why) {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Says that its memory is full when a cache is made, or new weights.
#[derive(Default)]
struct Full {
    at_caches: bool,
    at_matrices: Arc<AtomicBool>,
    failed: AtomicBool,
}

const FULL: &str = "the memory of the device is full";

impl Hooks for Full {
    fn failure(&self) -> Option<String> {
        self.failed.swap(false, Ordering::SeqCst).then(|| FULL.to_owned())
    }

    fn kv_cache(&self, cpu: &CpuOps, layers: usize, blocks: usize, heads: Heads) -> KvCache {
        self.failed.fetch_or(self.at_caches, Ordering::SeqCst);
        cpu.kv_cache(layers, blocks, heads)
    }

    fn matrix(&self, cpu: &CpuOps, slabs: &[TensorView<'_>]) -> Matrix {
        self.failed.fetch_or(self.at_matrices.load(Ordering::SeqCst), Ordering::SeqCst);
        cpu.matrix(slabs)
    }
}

#[test]
fn a_device_without_room_for_the_cache_starts_no_engine() {
    let dir = tiny(&TinyModel::default());
    let ops = Over(CpuOps::new(1).unwrap(), Full { at_caches: true, ..Full::default() });
    let model = Model::load(&ops, dir.path(), |_, _| {}).unwrap();
    let problem = LocalEngine::start(ops, model, &settings(|_| {})).err().unwrap();
    assert_eq!(problem.to_string(), FULL);
}

#[test]
fn new_weights_that_do_not_fit_leave_the_old_ones_serving() {
    let dir = version(0);
    let full = Arc::new(AtomicBool::new(true));
    let ops = Over(CpuOps::new(1).unwrap(), Full::default());
    let packer = Over(CpuOps::new(1).unwrap(), Full { at_matrices: full.clone(), ..Full::default() });
    let model = Model::load(&ops, dir.path(), |_, _| {}).unwrap();
    let engine = LocalEngine::start_with(ops, Some(packer), model, &settings(|_| {})).unwrap();
    let drawn = |version| assert_eq!(sample(&engine, &[3, 4], params(|_| {})).token_ids, [token_of(version); 20]);
    drawn(0);
    let next = version(1);
    let config = ModelConfig::from_folder(next.path()).unwrap();
    let source = Checkpoint::open(next.path(), &config).unwrap();
    let problem = engine.stage(1, &source).unwrap_err();
    assert!(matches!(&problem, StageError::Device(why) if why == FULL));
    assert!(problem.to_string().starts_with("the new weights do not fit"), "{problem}");
    assert!(engine.swap().unwrap().blocking_recv().is_err(), "nothing is staged");
    drawn(0);
    full.store(false, Ordering::SeqCst);
    engine.stage(1, &source).unwrap();
    assert_eq!(engine.swap().unwrap().blocking_recv().unwrap().version, 1);
    drawn(1);
}

/// Has so much memory, of which activations take what they take.
struct Memory {
    free: Arc<AtomicU64>,
}

impl Hooks for Memory {
    fn free_memory(&self) -> Option<u64> {
        Some(self.free.load(Ordering::SeqCst))
    }

    fn tensor(&self, cpu: &CpuOps, rows: usize, cols: usize) -> Tensor {
        self.free.fetch_sub((rows * cols * 4) as u64, Ordering::SeqCst);
        cpu.tensor(rows, cols)
    }
}

#[test]
fn the_cache_takes_its_share_of_what_activations_leave_free() {
    let dir = tiny(&TinyModel::default());
    let total = 500_000;
    for share in [0.9, 0.5] {
        let free = Arc::new(AtomicU64::new(total));
        let ops = Over(CpuOps::new(1).unwrap(), Memory { free: free.clone() });
        let model = Model::load(&ops, dir.path(), |_, _| {}).unwrap();
        let block = ops.kv_block_bytes(model.config.num_layers, heads(&model.config));
        let settings = settings(|s| (s.kv_blocks, s.kv_memory_share) = (None, share));
        let engine = LocalEngine::start(ops, model, &settings).unwrap();
        let left = free.load(Ordering::SeqCst);
        assert!(left < total - 10_000, "activations take some");
        let blocks = (left as f64 * f64::from(share)) as usize / block;
        assert!(blocks > 10);
        assert_eq!(engine.info().kv_tokens, blocks * BLOCK_TOKENS);
    }
    let default = EngineSettings { kv_blocks: None, max_sequences: 4, ..EngineSettings::default() };
    assert_eq!(default.kv_memory_share, 0.9);
    // Never more than the sequences can use.
    assert_eq!(default.blocks(1000, 160, Some(1 << 40)), 4 * 11);
    assert_eq!(default.blocks(1000, 160, Some(0)), 1);
}
