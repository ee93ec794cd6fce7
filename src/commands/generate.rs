//! `adaroll generate`: samples of prompts, in (prompt, index) order whatever order they finish in.

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};

use crate::engine::{Engine, Event, FinishReason, Sample, SampleRequest, SamplingParams, StreamKey, SubmitError};

/// What is to be generated.
pub struct Request {
    /// Token ids of the prompts.
    pub prompts: Vec<Vec<u32>>,
    /// Samples of each.
    pub samples: u32,
    /// Job seed; the prompt id is the prompt's position in decimal.
    pub seed: u64,
    /// How to draw.
    pub params: SamplingParams,
    /// Submit in an order shuffled with this seed. Changes nothing in the output.
    pub submit_order_seed: Option<u64>,
}

/// One line of `--json`.
#[derive(serde::Serialize)]
pub struct Line<'a> {
    /// Position of the prompt.
    pub prompt: usize,
    /// Index of the sample.
    pub index: u32,
    /// Tokens drawn.
    pub token_ids: &'a [u32],
    /// Of the distribution drawn from.
    pub logprobs: &'a [f32],
    /// Decoded text.
    pub text: &'a str,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Generates everything; calls `done` with (prompt, sample) in (prompt, index) order, each as soon as its turn has come, and `finished` whenever
/// any sample ends.
pub async fn generate(
    engine: &dyn Engine,
    request: &Request,
    mut finished: impl FnMut(&Sample),
    mut done: impl FnMut(usize, Sample),
) -> Result<(), SubmitError> {
    let params = Arc::new(request.params.clone());
    let prompts: Vec<Arc<[u32]>> = request.prompts.iter().map(|p| p.as_slice().into()).collect();
    let n = request.samples as usize;
    let mut order: Vec<usize> = (0..prompts.len() * n).collect();
    if let Some(seed) = request.submit_order_seed {
        shuffle(&mut order, seed);
    }
    let mut running = FuturesUnordered::new();
    for k in order {
        let (prompt, index) = (k / n, (k % n) as u32);
        let key = StreamKey::new(request.seed, &prompt.to_string());
        let sample = SampleRequest { prompt: prompts[prompt].clone(), params: params.clone(), key, index, stream_tokens: false };
        let mut stream = engine.submit(sample).map_err(|e| name_prompt(e, prompt))?;
        running.push(async move {
            loop {
                match stream.events.recv().await {
                    Some(Event::Finished(sample)) => return Some((k, *sample)),
                    Some(Event::Token { .. }) => {}
                    None => return None,
                }
            }
        });
    }
    let mut waiting = std::collections::BTreeMap::new();
    let mut next = 0;
    while let Some(result) = running.next().await {
        let Some((k, sample)) = result else { return Err(SubmitError::Stopped("it ended while samples were running; see the log".into())) };
        finished(&sample);
        waiting.insert(k, sample);
        while let Some(sample) = waiting.remove(&next) {
            done(next / n, sample);
            next += 1;
        }
    }
    Ok(())
}

/// Says which prompt an error is about.
fn name_prompt(e: SubmitError, prompt: usize) -> SubmitError {
    match e {
        SubmitError::Field(mut f) if f.field.starts_with("prompt") => {
            f.field = format!("prompt {prompt}: {}", f.field);
            SubmitError::Field(f)
        }
        other => other,
    }
}

/// Fisher-Yates with splitmix64.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for i in (1..items.len()).rev() {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        items.swap(i, (z % (i as u64 + 1)) as usize);
    }
}
