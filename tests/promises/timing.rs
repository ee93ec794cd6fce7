//! Promise 1: timing never decides. The same weights, request and seed give the same tokens and log-probability bits whatever runs beside them.

use std::path::Path;

use adaroll::commands::generate::shuffle;
use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::{Engine, EngineSettings, Event, LocalEngine, Sample, SampleRequest, SamplingParams, StreamKey};
use adaroll::model::Model;
use adaroll::ops::cpu::{CpuOps, Isa};

use crate::assets::{data, smollm2};
use crate::late_ops::late_engine;
use crate::naive_ops::SplitWhenBatched;
use crate::over_ops::Over;
use crate::sampling_runs::{assert_same, bits, differ, idle_stats, run, run_once, run_to_the_end, scores};

/// How an engine over a folder starts.
pub type Start = fn(&Path, &EngineOptions) -> LocalEngine;

fn cpu(dir: &Path, options: &EngineOptions) -> LocalEngine {
    open(dir, options, |_, _| {}).unwrap().engine
}

pub fn options(threads: usize, change: impl FnOnce(&mut EngineSettings)) -> EngineOptions {
    let mut settings = EngineSettings { kv_blocks: Some(512), ..EngineSettings::default() };
    change(&mut settings);
    EngineOptions { threads, settings, ..EngineOptions::default() }
}

/// Eight prompts of a small vocabulary, of unequal lengths; two share their first 20 tokens.
pub fn prompts(vocab: u32) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = [5u32, 16, 17, 31, 33, 40, 48, 64]
        .iter()
        .enumerate()
        .map(|(p, &n)| (0..n).map(|i| 3 + (i * i * 7 + i + p as u32 * 13) % (vocab - 3)).collect())
        .collect();
    let shared = all[6][..20].to_vec();
    all[7][..20].copy_from_slice(&shared);
    all
}

/// Every way of running the same 64 samples that the engine has.
pub fn every_way(start: Start, dir: &Path, prompts: &[Vec<u32>], samples: u32, params: &SamplingParams, few_blocks: usize) -> Vec<Sample> {
    let run_once = |options: &EngineOptions| run_to_the_end(&start(dir, options), prompts, samples, params);
    let (expected, stats) = run_once(&options(2, |_| {}));
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    // A sample that comes after its prompt's prefill computes one token of it; how many come so late is for the clock to say.
    let most = tokens as u64 + 8 * u64::from(samples);
    assert!(stats.prompt_tokens_computed <= most, "samples of a prompt share its prefill: {stats:?}");
    for (what, options) in [
        ("one at a time", options(2, |s| s.max_sequences = 1)),
        ("batches of 7", options(2, |s| s.max_sequences = 7)),
        ("batches of 64", options(2, |s| s.max_sequences = 64)),
        ("chunks of 16", options(2, |s| s.max_batch_tokens = 16)),
        ("chunks of 3", options(2, |s| s.max_batch_tokens = 3)),
        ("no prefix cache", options(2, |s| s.prefix_cache = false)),
        ("one thread", options(1, |_| {})),
        ("three threads", options(3, |_| {})),
    ] {
        assert_same(what, &expected, &run_once(&options).0);
    }
    let (preempted, stats) = run_once(&options(2, |s| s.kv_blocks = Some(few_blocks)));
    assert!(stats.preemptions > 0 && stats.recomputed_tokens > 0, "the pool was to be too small: {stats:?}");
    assert_same("preempted", &expected, &preempted);

    let engine = start(dir, &options(2, |_| {}));
    for (what, order) in [("cold", None), ("warm", None), ("warm, shuffled", Some(1)), ("shuffled again", Some(2))] {
        assert_same(what, &expected, &run(&engine, prompts, samples, params, order));
    }
    assert!(
        idle_stats(&engine).prompt_tokens_cached > 3 * u64::from(samples) * tokens as u64 - 64,
        "the warm runs were to find their prompts"
    );
    expected
}

/// Two tiny checkpoints of different architectures, every way of running them, every instruction set.
#[test]
fn tokens_and_log_probability_bits_do_not_depend_on_how_they_were_run() {
    for name in ["qwen3-gqa3-qknorm", "llama-f16-sharded"] {
        let dir = data("golden").join(name);
        let params = SamplingParams { max_tokens: 24, ignore_eos: true, temperature: 0.9, top_k: 50, ..SamplingParams::default() };
        let expected = every_way(cpu, &dir, &prompts(320), 8, &params, 14);
        for isa in Isa::available() {
            let options = EngineOptions { isa, ..options(2, |_| {}) };
            assert_same(&format!("{isa}"), &expected, &run_once(&dir, &options, &prompts(320), 8, &params).0);
        }
    }
}

/// The same on a real model: few tokens in the fast tier.
#[test]
fn a_real_model_gives_the_same_bits_in_any_batch() {
    let params = SamplingParams { max_tokens: 6, ignore_eos: true, ..SamplingParams::default() };
    let prompts: Vec<Vec<u32>> = prompts(1000).into_iter().step_by(3).collect();
    let dir = smollm2();
    let expected = run_once(&dir, &options(2, |_| {}), &prompts, 3, &params).0;
    for (what, options) in [
        ("one at a time, one thread", options(1, |s| s.max_sequences = 1)),
        ("chunks of 16", options(2, |s| s.max_batch_tokens = 16)),
        ("few blocks", options(2, |s| s.kv_blocks = Some(8))),
    ] {
        assert_same(what, &expected, &run_once(&dir, &options, &prompts, 3, &params).0);
    }
    let avx2 = EngineOptions { isa: Isa::available()[1.min(Isa::available().len() - 1)], ..options(2, |_| {}) };
    assert_same("the next instruction set", &expected, &run_once(&dir, &avx2, &prompts, 3, &params).0);
}

/// The whole matrix on the real model; minutes, so in the long tier.
#[test]
#[ignore = "long: run by tests/full.sh"]
fn long_a_real_model_every_way() {
    let params = SamplingParams { max_tokens: 24, ignore_eos: true, ..SamplingParams::default() };
    every_way(cpu, &smollm2(), &prompts(40_000), 8, &params, 20);
}

/// The twin with a reduction that depends on the batch: its bits do change, so the comparison above is not vacuous.
#[test]
fn the_twin_with_a_reduction_that_depends_on_the_batch_differs() {
    let dir = data("golden/qwen3-gqa3-qknorm");
    let params = SamplingParams { max_tokens: 24, ignore_eos: true, ..SamplingParams::default() };
    let run_twin = |max_sequences: usize| {
        let ops = Over(CpuOps::new(1).unwrap(), SplitWhenBatched);
        let model = Model::load(&ops, &dir, |_, _| {}).unwrap();
        let settings = EngineSettings { max_sequences, kv_blocks: Some(512), ..EngineSettings::default() };
        let engine = LocalEngine::start(ops, model, &settings).unwrap();
        run(&engine, &prompts(320), 4, &params, None)
    };
    assert!(differ(&run_twin(1), &run_twin(64)), "the twin was to give other bits in a batch than alone");
}

/// The twin with an unkeyed stream: numbered by arrival, a sample changes when others arrive in another order.
#[test]
fn the_twin_with_a_stream_numbered_by_arrival_differs() {
    let opened = open(&data("golden/llama-f16-sharded"), &options(1, |_| {}), |_, _| {}).unwrap();
    let prompt: std::sync::Arc<[u32]> = prompts(320)[3].as_slice().into();
    let params = std::sync::Arc::new(SamplingParams { max_tokens: 8, ignore_eos: true, ..SamplingParams::default() });
    let draw = |order: &[usize], keyed: bool| {
        let mut out = vec![Vec::new(); order.len()];
        for (arrival, &sample) in order.iter().enumerate() {
            let index = if keyed { sample } else { arrival } as u32;
            let request =
                SampleRequest { prompt: prompt.clone(), params: params.clone(), key: StreamKey::new(1, "p"), index, stream_tokens: false };
            let mut stream = opened.engine.submit(request).unwrap();
            while let Some(event) = stream.events.blocking_recv() {
                if let Event::Finished(s) = event {
                    out[sample] = s.token_ids;
                }
            }
        }
        out
    };
    let mut shuffled: Vec<usize> = (0..6).collect();
    shuffle(&mut shuffled, 5);
    let order: Vec<usize> = (0..6).collect();
    assert_eq!(draw(&order, true), draw(&shuffled, true));
    assert_ne!(draw(&order, false), draw(&shuffled, false));
}

/// `score` of a sampled sequence returns the sampler's log-probabilities bit for bit, at its temperature, in any chunking.
#[test]
fn scores_are_the_samplers_log_probabilities() {
    for name in ["llama3-gqa4-tied", "qwen2-gqa7-bias", "qwen3-head128"] {
        let dir = data("golden").join(name);
        for temperature in [1.0, 0.7, 0.0] {
            let params = SamplingParams { max_tokens: 30, ignore_eos: true, temperature, ..SamplingParams::default() };
            let samples = run_once(&dir, &options(2, |_| {}), &prompts(320), 2, &params).0;
            let few_at_a_time = options(1, |s| {
                s.max_batch_tokens = 7;
                s.max_sequences = 5
            });
            let engines = [cpu(&dir, &few_at_a_time), late_engine(&dir, &few_at_a_time)];
            for (i, sample) in samples.iter().enumerate() {
                let prompt = &prompts(320)[i / 2];
                let whole = [prompt.as_slice(), &sample.token_ids].concat();
                for engine in &engines {
                    let (logprobs, raw) = scores(engine, &whole, prompt.len(), temperature);
                    assert_eq!(bits(&logprobs), bits(&sample.logprobs), "{name}, temperature {temperature}, sample {i}");
                    assert_eq!(bits(&raw), bits(&sample.logprobs_raw), "{name}, temperature {temperature}, sample {i}");
                }
            }
        }
    }
}
