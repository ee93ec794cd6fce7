//! The whole engine on random weights: scheduler, late answers and events to the callers are in the figures.

use std::time::Instant;

use crate::commands::generate::{Request, generate};
use crate::engine::{EngineSettings, LocalEngine, SamplingParams};
use crate::model::Model;
use crate::ops::BLOCK_TOKENS;

use super::GpuBenchError;
use super::limits::Limits;
use super::rig::{Rig, check, tokens};
use super::steps::{decode_bytes, decode_target};

/// Samples of prompts of one length, all asked for at once.
#[derive(Clone, Debug, serde::Serialize)]
pub struct EngineFigure {
    /// Samples, each of a prompt of its own.
    pub batch: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens of each sample.
    pub generated: usize,
    /// Seconds to the last sample's first token.
    pub prefill_s: f64,
    /// Seconds to the last sample's last token.
    pub total_s: f64,
    /// Generated tokens over the whole time.
    pub end_to_end_tokens_per_s: f64,
    /// Generated tokens over the time beyond prefill.
    pub decode_tokens_per_s: f64,
    /// Prompt tokens over the time of prefill.
    pub prefill_tokens_per_s: f64,
    /// Steps that the engine made in the whole time.
    pub steps: u64,
    /// Bytes of weights, and of keys and values halfway through the answers, that decode reads per second, over the copy bandwidth.
    pub bandwidth_share: f64,
    /// What the share is to reach.
    pub target: Option<f64>,
}

/// Consumes the rig: the engine's cache takes the place of its own.
pub(super) async fn measure(
    rig: Rig,
    limits: &Limits,
    batch: usize,
    prompt: usize,
    generated: usize,
    rows: usize,
) -> Result<EngineFigure, GpuBenchError> {
    let halfway = prompt + generated / 2;
    let (bytes, target) = (decode_bytes(&rig.config, batch, halfway), decode_target(&rig, batch));
    let Rig { ops, config, weights, forward, cache, .. } = rig;
    drop((forward, cache));
    let vocab = config.vocab_size;
    let settings = EngineSettings {
        max_batch_tokens: rows,
        max_sequences: batch,
        kv_blocks: Some(batch * ((prompt + generated).div_ceil(BLOCK_TOKENS) + 1)),
        prefix_cache: false,
        max_queue: usize::MAX,
        ..EngineSettings::default()
    };
    check(&ops)?;
    let model = Model { config, weights, tokenizer: None, stop_token_ids: Vec::new() };
    let engine = LocalEngine::start_with(ops, None, model, &settings).map_err(|e| GpuBenchError::Card(e.to_string()))?;
    let request = |n: usize| Request {
        prompts: (0..batch).map(|i| tokens(prompt, vocab, i + 10)).collect(),
        samples: 1,
        seed: 0,
        params: SamplingParams { max_tokens: n as u32, ignore_eos: true, ..SamplingParams::default() },
        submit_order_seed: None,
    };
    // The first run makes lists and records steps.
    run(&engine, &request(4.min(generated))).await?;
    let (prefill_s, _) = run(&engine, &request(1)).await?;
    let (total_s, steps) = run(&engine, &request(generated)).await?;
    let all = (batch * generated) as f64;
    let decode_tokens_per_s = (all - batch as f64) / (total_s - prefill_s).max(1e-9);
    Ok(EngineFigure {
        batch,
        prompt,
        generated,
        prefill_s,
        total_s,
        end_to_end_tokens_per_s: all / total_s,
        decode_tokens_per_s,
        prefill_tokens_per_s: (batch * prompt) as f64 / prefill_s,
        steps,
        bandwidth_share: decode_tokens_per_s / batch as f64 * bytes / (limits.copy_gb_per_s * 1e9),
        target,
    })
}

/// Seconds of a run, and its steps.
async fn run(engine: &LocalEngine, request: &Request) -> Result<(f64, u64), GpuBenchError> {
    use crate::engine::Engine;
    let before = engine.stats().steps;
    let start = Instant::now();
    generate(engine, request, |_| {}, |_, _| {}).await.map_err(|e| GpuBenchError::Card(e.to_string()))?;
    let seconds = start.elapsed().as_secs_f64();
    // The loop publishes its counters after it has sent the last event.
    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    Ok((seconds, engine.stats().steps - before))
}
