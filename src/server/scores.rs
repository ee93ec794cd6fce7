//! Rewards that the client computes itself (`pull`): which samples wait for a score, and the scores' way back.

use std::collections::HashMap;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::AppState;
use super::error::ApiError;
use super::json::{Id, Numbers, json, parse, read_body};
use crate::field::Object;
use crate::rollout::JobRecord;
use crate::rollout::scores::{PostedScore, ScoreAnswer};
use crate::rollout::verdicts::MAX_REWARD;

/// Samples of one page.
const PAGE: usize = 1000;

fn gone(record: &JobRecord) -> ApiError {
    let state = record.view().progress.state;
    if !record.is_closed() {
        return ApiError::not_ready("the job has stopped and goes on when the server is back; post the scores again then");
    }
    let message = format!("the job is {state:?} and takes no scores any more").to_lowercase();
    ApiError::new(StatusCode::CONFLICT, "conflict", message).about("id")
}

/// `GET /v1/rollouts/{id}/pending?limit=`: finished samples of `pull` prompts that have no score yet, by prompt and index. With `wait_s` the
/// answer waits up to so long for the first one.
pub async fn pending(State(state): State<AppState>, Id(id): Id, query: RawQuery) -> Result<Response, ApiError> {
    let record = state.jobs.find(&id)?.ok_or_else(|| ApiError::no_job(&id))?;
    let numbers = Numbers::read(query, &["limit", "wait_s"])?;
    let (limit, wait) = (numbers.get("limit", 100), numbers.get("wait_s", 0));
    if limit == 0 || limit > PAGE {
        return Err(ApiError::field("limit", format!("is {limit}; it must be between 1 and {PAGE}")));
    }
    if wait > 60 {
        return Err(ApiError::field("wait_s", format!("is {wait}; it must be at most 60")));
    }
    #[derive(Serialize)]
    struct Pending {
        samples: Vec<Waiting>,
    }
    #[derive(Serialize)]
    struct Waiting {
        prompt_id: String,
        index: u32,
        text: String,
        token_ids: Vec<u32>,
        finish_reason: String,
    }
    let Some(spec) = record.spec.clone() else { return Ok(json(StatusCode::OK, &Pending { samples: Vec::new() })) };
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(wait as u64);
    loop {
        let news = record.next_waiting();
        let mut samples = Vec::new();
        let mut after = None;
        while samples.len() < limit {
            let stored = state.jobs.store().unscored(record.key, after, limit as u32).await.map_err(ApiError::store)?;
            let Some(last) = stored.last() else { break };
            after = Some((last.sample.prompt, last.sample.index));
            // Samples that a verifier of ours has at this moment have no verdict either.
            let pull = stored.into_iter().filter_map(|stored| {
                let sample = stored.sample;
                let prompt = spec.prompts.get(sample.prompt as usize)?;
                prompt.verifier.as_ref().ok()?.pull_timeout()?;
                Some(Waiting {
                    prompt_id: prompt.id.clone(),
                    index: sample.index,
                    text: sample.text,
                    token_ids: sample.token_ids,
                    finish_reason: sample.finish_reason,
                })
            });
            samples.extend(pull);
        }
        samples.truncate(limit);
        let over = record.state().is_over();
        if !samples.is_empty() || over || tokio::time::timeout_at(until, news).await.is_err() {
            return Ok(json(StatusCode::OK, &Pending { samples }));
        }
    }
}

/// As the caller writes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    scores: Vec<Object<Score>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Score {
    prompt_id: String,
    index: u32,
    reward: Option<f64>,
    error: Option<String>,
}

/// `POST /v1/rollouts/{id}/scores`: rewards for finished samples. The answer comes when they are in the store
/// and says what became of each. A score is final: the first one counts.
pub async fn post(State(state): State<AppState>, Id(id): Id, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let record = state.jobs.find(&id)?.ok_or_else(|| ApiError::no_job(&id))?;
    let body = read_body(&headers, body, state.limits.max_body_bytes, state.limits.body_deadline()).await?;
    let Object(written): Object<Written> = parse(&body)?;
    let Some(spec) = record.spec.clone() else { return Err(gone(&record)) };
    let positions: HashMap<&str, usize> = spec.prompts.iter().enumerate().map(|(i, prompt)| (prompt.id.as_str(), i)).collect();
    let mut scores = Vec::with_capacity(written.scores.len());
    for (i, Object(score)) in written.scores.into_iter().enumerate() {
        let at = |field: &str| format!("scores[{i}].{field}");
        let Some(&prompt) = positions.get(score.prompt_id.as_str()) else {
            let shown: String = score.prompt_id.chars().take(100).collect();
            return Err(ApiError::field(at("prompt_id"), format!("is {shown:?}, which is no prompt of this job")));
        };
        if !spec.prompts[prompt].verifier.as_ref().is_ok_and(|verifier| verifier.is_pull()) {
            return Err(ApiError::field(at("prompt_id"), "names a prompt whose reward is not `pull`: the server scores it itself"));
        }
        if score.index >= spec.settings.strategy.max_samples {
            let problem = format!("is {}; max_samples is {}", score.index, spec.settings.strategy.max_samples);
            return Err(ApiError::field(at("index"), problem));
        }
        let reward = match (score.reward, score.error) {
            (Some(reward), None) if reward.abs() <= MAX_REWARD => Ok(reward),
            (None, Some(error)) => Err(error.chars().take(500).collect()),
            _ => {
                return Err(ApiError::field(
                    at("reward"),
                    format!("give a reward between -{MAX_REWARD} and {MAX_REWARD}, or error with a sentence why there is none"),
                ));
            }
        };
        scores.push(PostedScore { prompt, index: score.index, reward });
    }
    let asked: Vec<(usize, u32)> = scores.iter().map(|score| (score.prompt, score.index)).collect();
    let answers = record.post_scores(scores).await.ok_or_else(|| gone(&record))?;
    let mut answer = Answer::default();
    for ((prompt, index), found) in asked.into_iter().zip(answers) {
        let sample = |reward| Named { prompt_id: spec.prompts[prompt].id.clone(), index, reward };
        match found {
            ScoreAnswer::Taken => answer.accepted += 1,
            ScoreAnswer::Repeated => answer.repeated += 1,
            ScoreAnswer::NotNeeded => answer.not_needed += 1,
            ScoreAnswer::NotFinished => answer.not_finished.push(sample(None)),
            ScoreAnswer::Conflict(there, _) => answer.conflicts.push(sample(there)),
        }
    }
    Ok(json(StatusCode::OK, &answer))
}

/// What became of posted scores.
#[derive(Default, Serialize)]
struct Answer {
    /// They decide their samples.
    accepted: usize,
    /// The same scores were there already.
    repeated: usize,
    /// Their groups are closed below them.
    not_needed: usize,
    /// Samples that have another score already, which stands.
    conflicts: Vec<Named>,
    /// Samples that have not finished: no score was taken.
    not_finished: Vec<Named>,
}

#[derive(Serialize)]
struct Named {
    prompt_id: String,
    index: u32,
    /// The score that stands, for a conflict.
    reward: Option<f64>,
}
