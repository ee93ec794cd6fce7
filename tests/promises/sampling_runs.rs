//! Runs of an engine that several promises compare: prompts in, all samples out, in (prompt, index) order.

use std::path::Path;

use adaroll::commands::generate::{Request, generate};
use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::{Engine, EngineStats, LocalEngine, Sample, SamplingParams, ScoreRequest};

/// Samples `samples` answers to each prompt on an engine that is running already.
pub fn run(engine: &LocalEngine, prompts: &[Vec<u32>], samples: u32, params: &SamplingParams, order: Option<u64>) -> Vec<Sample> {
    run_with_seed(engine, prompts, samples, params, order, 11)
}

/// The same with a job seed of one's own.
pub fn run_with_seed(
    engine: &LocalEngine,
    prompts: &[Vec<u32>],
    samples: u32,
    params: &SamplingParams,
    order: Option<u64>,
    seed: u64,
) -> Vec<Sample> {
    let request = Request { prompts: prompts.to_vec(), samples, seed, params: params.clone(), submit_order_seed: order };
    let mut out = Vec::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(generate(engine, &request, |_| {}, |_, sample| out.push(sample))).unwrap();
    out
}

/// Opens an engine, runs once, and says what the engine counted.
pub fn run_once(
    dir: &Path,
    options: &EngineOptions,
    prompts: &[Vec<u32>],
    samples: u32,
    params: &SamplingParams,
) -> (Vec<Sample>, EngineStats) {
    run_to_the_end(&open(dir, options, |_, _| {}).unwrap().engine, prompts, samples, params)
}

/// The same on an engine that is running already.
pub fn run_to_the_end(engine: &LocalEngine, prompts: &[Vec<u32>], samples: u32, params: &SamplingParams) -> (Vec<Sample>, EngineStats) {
    let out = run(engine, prompts, samples, params, None);
    (out, idle_stats(engine))
}

/// Counters once the engine has nothing left to do.
pub fn idle_stats(engine: &LocalEngine) -> EngineStats {
    for _ in 0..600 {
        let stats = engine.stats();
        if stats.running == 0 && stats.waiting == 0 && stats.blocks_free == stats.blocks_total {
            return stats;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("the engine is not idle: {:?}", engine.stats());
}

/// Scores the tokens from `from` on: (at the temperature, raw).
pub fn scores(engine: &LocalEngine, token_ids: &[u32], from: usize, temperature: f32) -> (Vec<f32>, Vec<f32>) {
    let reply = engine.score(ScoreRequest { token_ids: token_ids.into(), from, temperature }).unwrap();
    let scores = reply.blocking_recv().unwrap().unwrap();
    (scores.logprobs, scores.logprobs_raw)
}

/// Fails with the first difference in tokens, log-probability bits or endings.
pub fn assert_same(what: &str, expected: &[Sample], got: &[Sample]) {
    assert_eq!(expected.len(), got.len(), "{what}: number of samples");
    for (i, (a, b)) in expected.iter().zip(got).enumerate() {
        assert_eq!(a.token_ids, b.token_ids, "{what}: tokens of sample {i}");
        assert_eq!(bits(&a.logprobs), bits(&b.logprobs), "{what}: log-probability bits of sample {i}");
        assert_eq!(bits(&a.logprobs_raw), bits(&b.logprobs_raw), "{what}: raw log-probability bits of sample {i}");
        assert_eq!((a.finish_reason, &a.text, &a.stop_match), (b.finish_reason, &b.text, &b.stop_match), "{what}: end of sample {i}");
    }
}

/// Whether two runs differ anywhere in tokens or log-probability bits.
pub fn differ(a: &[Sample], b: &[Sample]) -> bool {
    a.iter().zip(b).any(|(a, b)| a.token_ids != b.token_ids || bits(&a.logprobs) != bits(&b.logprobs))
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
