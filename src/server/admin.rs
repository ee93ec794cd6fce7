//! What operators do: hold new samples back and let them go.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::AppState;
use super::json::json;

#[derive(Serialize)]
struct Paused {
    paused: bool,
}

fn set(state: &AppState, paused: bool) -> Response {
    if state.pause.set(paused) {
        tracing::info!("{}", if paused { "paused: jobs submit no new samples" } else { "resumed" });
    }
    state.metrics.paused(paused);
    json(StatusCode::OK, &Paused { paused })
}

/// `POST /v1/pause`: jobs submit no new samples until resumed; those in flight finish. Twice is as once.
pub async fn pause(State(state): State<AppState>) -> Response {
    set(&state, true)
}

/// `POST /v1/resume`: lets the jobs go on.
pub async fn resume(State(state): State<AppState>) -> Response {
    set(&state, false)
}
