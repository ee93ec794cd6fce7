//! `POST /v1/score`: log-probabilities of tokens that are already there, by the kernels that sample.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::AppState;
use super::error::ApiError;
use super::json::{self, read_body};
use super::request::check_ids;
use crate::engine::{EngineInfo, SamplingParams, ScoreRequest, Scores, SubmitError};
use crate::field::{FieldError, Object};

/// A full queue is asked again for this long before the request is refused.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    sequences: Vec<Object<Sequence>>,
    sampling: Option<Object<SamplingParams>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sequence {
    token_ids: Vec<u32>,
    prompt_len: usize,
}

#[derive(Serialize)]
struct Answer {
    version: u64,
    sequences: Vec<Scored>,
}

#[derive(Serialize)]
struct Scored {
    logprobs: Vec<f32>,
    logprobs_raw: Vec<f32>,
}

/// The route.
pub async fn post(State(state): State<AppState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let body = read_body(&headers, body, state.limits.max_body_bytes, state.limits.body_deadline()).await?;
    let Object(written): Object<Written> = json::parse(&body)?;
    let Object(sampling) = written.sampling.unwrap_or_default();
    let sequences: Vec<Sequence> = written.sequences.into_iter().map(|Object(sequence)| sequence).collect();
    check_sampling(&sampling, state.engine.info())?;
    check_sequences(&state, &sequences)?;
    let mut waiting = Vec::with_capacity(sequences.len());
    for (position, sequence) in sequences.into_iter().enumerate() {
        let request = ScoreRequest { token_ids: sequence.token_ids.into(), from: sequence.prompt_len, temperature: sampling.temperature };
        let answer = submit(&state, request).await.map_err(|error| match error {
            SubmitError::Field(e) => ApiError::from(FieldError::new(e.field, e.problem).within(&format!("sequences[{position}]"))),
            other => other.into(),
        })?;
        waiting.push(answer);
    }
    let mut answer = Answer { version: state.engine.stats().weights_version, sequences: Vec::with_capacity(waiting.len()) };
    for (position, scores) in waiting.into_iter().enumerate() {
        let scores =
            scores.await.map_err(|_| ApiError::not_ready("the engine stopped before it had scored every sequence; try again"))??;
        if scores.logprobs.iter().chain(&scores.logprobs_raw).any(|l| !l.is_finite()) {
            return Err(SubmitError::Numerics(0).into());
        }
        if position > 0 && scores.weights_version != answer.version {
            return Err(ApiError::overloaded("the weights changed while the sequences were scored; send the request again"));
        }
        answer.version = scores.weights_version;
        answer.sequences.push(Scored { logprobs: scores.logprobs, logprobs_raw: scores.logprobs_raw });
    }
    Ok(json::json(StatusCode::OK, &answer))
}

/// Scoring knows a temperature; a filtered distribution it would only pretend to know.
fn check_sampling(sampling: &SamplingParams, info: &EngineInfo) -> Result<(), ApiError> {
    sampling.validate(info.vocab_size, info.has_tokenizer).map_err(|e| FieldError::new(e.field, e.problem).within("sampling"))?;
    let filters = [
        ("top_p", sampling.top_p != 1.0),
        ("top_k", sampling.top_k != 0),
        ("min_p", sampling.min_p != 0.0),
        ("min_tokens", sampling.min_tokens != 0),
        ("logit_bias", !sampling.logit_bias.is_empty()),
    ];
    match filters.iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(ApiError::field(
            format!("sampling.{name}"),
            "changes the distribution, and scoring supports the temperature alone; leave it out",
        )),
        None => Ok(()),
    }
}

fn check_sequences(state: &AppState, sequences: &[Sequence]) -> Result<(), ApiError> {
    let (info, limits) = (state.engine.info(), &state.limits);
    if sequences.is_empty() {
        return Err(ApiError::field("sequences", "is empty; give at least one sequence"));
    }
    let total: usize = sequences.iter().map(|s| s.token_ids.len()).sum();
    if sequences.len() > limits.max_score_sequences || total > limits.max_score_tokens {
        let problem = format!(
            "holds {} sequences and {total} tokens; at most {} and {} are taken at once",
            sequences.len(),
            limits.max_score_sequences,
            limits.max_score_tokens
        );
        return Err(ApiError::field("sequences", problem));
    }
    for (position, sequence) in sequences.iter().enumerate() {
        let at = |field: &str| format!("sequences[{position}].{field}");
        check_ids(&sequence.token_ids, &at("token_ids"), info)?;
        let length = sequence.token_ids.len();
        if length > info.context_length {
            return Err(ApiError::field(
                at("token_ids"),
                format!("has {length} tokens, and the context holds {}; shorten it", info.context_length),
            ));
        }
        if sequence.prompt_len == 0 || sequence.prompt_len >= length {
            let problem = format!(
                "is {}; it must be at least 1 (the first token has no log-probability) and below the {length} tokens there are",
                sequence.prompt_len
            );
            return Err(ApiError::field(at("prompt_len"), problem));
        }
    }
    Ok(())
}

async fn submit(state: &AppState, request: ScoreRequest) -> Result<oneshot::Receiver<Result<Scores, SubmitError>>, SubmitError> {
    let until = tokio::time::Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(2);
    loop {
        match state.engine.score(request.clone()) {
            Err(SubmitError::QueueFull(_)) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(200));
            }
            answer => return answer,
        }
    }
}
