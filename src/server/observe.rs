//! What is seen of every request: its id, its caller, its time, one line in the log.
//!
//! The id is the client's `x-request-id` if it looks like one, else a new UUID; the response carries it. The line says the route's pattern
//! and never the path, a code and never a message: nothing that a caller wrote but the id, so no token and no prompt, reaches a log.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use tower_http::request_id::RequestId;
use tracing::Instrument;

use super::AppState;
use super::error::ErrorCode;

/// The header that carries a request's id.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// Drops an id that is long or holds strange characters; the request then gets a new one.
pub(super) async fn drop_strange_id(mut request: Request, next: Next) -> Response {
    let sane = |id: &[u8]| (1..=128).contains(&id.len()) && id.iter().all(|c| c.is_ascii_alphanumeric() || b"._:-/+=".contains(c));
    let mut ids = request.headers().get_all(REQUEST_ID).iter();
    let keep = match (ids.next(), ids.next()) {
        (Some(id), None) => sane(id.as_bytes()),
        _ => false,
    };
    if !keep {
        request.headers_mut().remove(REQUEST_ID);
    }
    next.run(request).await
}

/// Finds the caller, runs the request in a span with its id, and counts, times and logs it.
pub(super) async fn observe(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let method = request.method().clone();
    let id = request.extensions().get::<RequestId>().and_then(|id| id.header_value().to_str().ok()).unwrap_or("").to_owned();
    let caller = state.tokens.caller(request.headers());
    request.extensions_mut().insert(caller);
    state.metrics.request_from(caller.key());
    let span = tracing::info_span!("request", request_id = %id);
    let response = next.run(request).instrument(span).await;
    let (status, took) = (response.status(), started.elapsed());
    state.metrics.http_request(&route, status.as_u16(), took);
    let code = response.extensions().get::<ErrorCode>().map(|code| code.0);
    let (status_code, seconds, key) = (status.as_u16(), took.as_secs_f64(), caller.key());
    // `seconds` is the time to the head; a stream's body comes after it.
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(%method, route, status = status_code, seconds, request_id = id, key, error = code, "request")
        };
    }
    match route.as_str() {
        _ if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE => line!(error),
        // Probes come every few seconds.
        "/livez" | "/readyz" | "/metrics" => line!(debug),
        _ => line!(info),
    }
    response
}
