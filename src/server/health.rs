//! How the server is: alive, ready, metrics, state.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::AppState;
use super::error::ApiError;
use super::json::json;
use super::limits::Limits;
use super::weights::Status;
use crate::engine::{EngineInfo, EngineStats};

/// The time since the engine's loop last went round, if that is too long ago.
fn stuck(state: &AppState, stats: &EngineStats) -> Option<Duration> {
    let since = Duration::from_micros(stats.heartbeat_us);
    (since > Duration::from_secs(state.limits.heartbeat_seconds)).then_some(since)
}

/// The sentence about an engine that has stopped.
fn stopped(stats: &EngineStats) -> Option<ApiError> {
    let why = stats.stopped.as_ref()?;
    Some(ApiError::not_ready(format!("the engine has stopped: {why}; restart the server, and its open jobs go on")))
}

/// `GET /livez`: 200 while the engine's loop goes round.
pub async fn livez(State(state): State<AppState>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    struct Alive {
        alive: bool,
        heartbeat_s: f64,
    }
    let stats = state.engine.stats();
    if let Some(error) = stopped(&stats) {
        return Err(error);
    }
    match stuck(&state, &stats) {
        Some(since) => {
            Err(ApiError::not_ready(format!("the engine's loop has not gone round for {:.1} s; restart the server", since.as_secs_f64())))
        }
        None => Ok(json(StatusCode::OK, &Alive { alive: true, heartbeat_s: stats.heartbeat_us as f64 / 1e6 })),
    }
}

/// `GET /readyz`: 200 while rollouts are taken; the version of the weights.
pub async fn readyz(State(state): State<AppState>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    struct Ready {
        ready: bool,
        weights_version: u64,
    }
    let stats = state.engine.stats();
    match why_not_ready(&state, &stats) {
        None => Ok(json(StatusCode::OK, &Ready { ready: true, weights_version: stats.weights_version })),
        Some(error) => Err(error),
    }
}

fn why_not_ready(state: &AppState, stats: &EngineStats) -> Option<ApiError> {
    if state.jobs.is_closing() {
        return Some(ApiError::not_ready("the server is shutting down"));
    }
    if state.pause.is_paused() {
        return Some(ApiError::not_ready("the server is paused; POST /v1/resume lets it go on"));
    }
    if let Err(sentence) = state.jobs.store().health() {
        return Some(ApiError::not_ready(format!("the store takes nothing: {sentence}")));
    }
    if let Some(version) = state.jobs.versions().needed() {
        let message = format!(
            "open jobs need version {version} of the weights, whose file is gone; push the same tensors again              (PUT /v1/weights?version={version}&rollback=true), or end the jobs"
        );
        return Some(ApiError { code: "needs_weights", ..ApiError::not_ready(message) });
    }
    stopped(stats).or_else(|| stuck(state, stats).map(|_| ApiError::not_ready("the engine's loop is stuck; see /livez")))
}

/// `GET /metrics`: for Prometheus.
pub async fn metrics(State(state): State<AppState>) -> Result<Response, ApiError> {
    let text = state
        .metrics
        .render(&state.engine.stats(), &state.jobs.counts(), state.jobs.slots(), state.jobs.store().bytes())
        .map_err(|error| ApiError::internal(format!("the metrics could not be written: {error}")))?;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, kind)], text).into_response())
}

/// `GET /v1/state`: engine, jobs and limits in one object.
pub async fn state(State(state): State<AppState>) -> Response {
    #[derive(Serialize)]
    struct Whole<'a> {
        uptime_s: f64,
        ready: bool,
        paused: bool,
        engine: Engine<'a>,
        weights: Option<Status>,
        jobs: serde_json::Map<String, serde_json::Value>,
        limits: &'a Limits,
    }
    #[derive(Serialize)]
    struct Engine<'a> {
        info: &'a EngineInfo,
        stats: EngineStats,
    }
    let stats = state.engine.stats();
    let whole = Whole {
        uptime_s: state.started.elapsed().as_secs_f64(),
        ready: why_not_ready(&state, &stats).is_none(),
        paused: state.pause.is_paused(),
        engine: Engine { info: state.engine.info(), stats },
        weights: state.updates.as_deref().map(Status::of),
        jobs: state.jobs.counts().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect(),
        limits: &state.limits,
    };
    json(StatusCode::OK, &whole)
}
