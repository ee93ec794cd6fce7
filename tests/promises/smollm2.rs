//! Promise: a real checkpoint gives what transformers gives. The reference values are in tests/data/smollm2_reference.json.

use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::{Engine, EngineSettings, SampleRequest, SamplingParams, StreamKey};
use serde::Deserialize;

use crate::assets::{data, smollm2};
use crate::sampling_runs::{idle_stats, run, scores};

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    text: String,
    prompt_ids: Vec<u32>,
    prompt_logprobs: Vec<f64>,
    greedy_ids: Vec<u32>,
    logprobs_f64: Vec<f64>,
}

fn reference() -> Reference {
    serde_json::from_str(&std::fs::read_to_string(data("smollm2_reference.json")).unwrap()).unwrap()
}

fn mean_abs(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).sum::<f64>() / got.len() as f64
}

/// Greedy continuations of 8 prompts equal transformers' in f32 for 64 tokens; mean |delta log-probability| <= 5e-5; the ids of the prompts are
/// the tokenizer's; the prompts are computed once.
#[test]
fn greedy_continuations_and_log_probabilities_are_those_of_transformers() {
    let opened = open(&smollm2(), &EngineOptions::default(), |_, _| {}).unwrap();
    let reference = reference();
    assert_eq!(reference.prompts.len(), 8);
    for p in &reference.prompts {
        assert_eq!(opened.text.encode_text(&p.text).unwrap(), p.prompt_ids, "ids of {:?}", p.text);
    }
    let prompts: Vec<Vec<u32>> = reference.prompts.iter().map(|p| p.prompt_ids.clone()).collect();
    let params = SamplingParams { temperature: 0.0, max_tokens: 64, ignore_eos: true, ..SamplingParams::default() };
    let samples = run(&opened.engine, &prompts, 1, &params, None);
    let (mut drawn, mut forced) = (0.0, 0.0);
    for (p, sample) in reference.prompts.iter().zip(&samples) {
        assert_eq!(sample.token_ids, p.greedy_ids, "greedy continuation of {:?}", p.text);
        drawn += mean_abs(&sample.logprobs, &p.logprobs_f64) / 8.0;
        let (_, raw) = scores(&opened.engine, &p.prompt_ids, 1, 1.0);
        forced += mean_abs(&raw, &p.prompt_logprobs) / 8.0;
    }
    println!("mean |delta log-probability|: greedy tokens {drawn:.2e}, prompt tokens {forced:.2e}");
    assert!(drawn <= 5e-5 && forced <= 5e-5, "greedy tokens {drawn:.2e}, prompt tokens {forced:.2e}");
}

/// 64 samples of 8 prompts cost the prefill of 8 prompts; with the prefix cache on, what the prompts share is computed once too.
#[test]
fn eight_prompts_serve_sixty_four_samples() {
    let prompts: Vec<Vec<u32>> = reference().prompts.into_iter().map(|p| p.prompt_ids).collect();
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    let params = SamplingParams { max_tokens: 2, ignore_eos: true, ..SamplingParams::default() };
    for prefix_cache in [false, true] {
        let settings = EngineSettings { prefix_cache, ..EngineSettings::default() };
        let opened = open(&smollm2(), &EngineOptions { settings, ..EngineOptions::default() }, |_, _| {}).unwrap();
        // One long step keeps the loop busy until all samples are there: what comes after its prompt's prefill would compute more.
        let long: std::sync::Arc<[u32]> = (0..500u32).map(|i| 1000 + i).collect();
        let single = std::sync::Arc::new(SamplingParams { max_tokens: 1, ..params.clone() });
        let request =
            SampleRequest { prompt: long.clone(), params: single, key: StreamKey::new(0, "long"), index: 0, stream_tokens: false };
        let _stream = opened.engine.submit(request).unwrap();
        let samples = run(&opened.engine, &prompts, 8, &params, None);
        let stats = idle_stats(&opened.engine);
        assert_eq!(samples.len(), 64);
        let computed = stats.prompt_tokens_computed - long.len() as u64;
        assert_eq!(computed + stats.prompt_tokens_cached, 8 * tokens as u64, "{stats:?}");
        if prefix_cache {
            assert!(computed < tokens as u64, "all eight begin with the same system message: {stats:?}");
        } else {
            assert_eq!(computed, tokens as u64, "{stats:?}");
        }
    }
}
