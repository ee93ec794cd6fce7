//! HTTP.
//!
//! A request is read ([`json`], [`request`]), admitted as a job ([`rollouts`]) and followed as a stream ([`stream`]) or by polling. Every
//! refusal is an [`error::ApiError`]: a status, a code, a sentence, and the offending field's path.

pub mod error;
mod health;
pub mod json;
pub mod limits;
pub mod request;
mod rollouts;
mod score;
mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tower_http::trace::TraceLayer;

pub use error::ApiError;
pub use limits::Limits;

use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::reward::Pool;
use crate::rollout::{Context, JobLimits, Jobs, TextModel, Width};

/// What every route works with. Cheap to clone.
#[derive(Clone)]
pub struct AppState {
    /// Draws and scores.
    pub engine: Arc<dyn Engine>,
    /// Tokenizes.
    pub text: Arc<dyn TextModel>,
    /// What is taken at most.
    pub limits: Arc<Limits>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// The jobs.
    pub jobs: Arc<Jobs>,
    /// When the server started.
    pub started: Instant,
}

/// Settings of a server beside its model.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limits on requests.
    pub limits: Limits,
    /// Limits on jobs.
    pub jobs: JobLimits,
    /// Samples in flight.
    pub width: Width,
    /// Verifiers that run at once.
    pub reward_workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { limits: Limits::default(), jobs: JobLimits::default(), width: Width::default(), reward_workers: 4 }
    }
}

impl AppState {
    /// A server's state over an engine and its text side. Fails only if two metrics have the same name.
    pub fn new(engine: Arc<dyn Engine>, text: Arc<dyn TextModel>, options: Options) -> Result<Self, prometheus::Error> {
        let metrics = Arc::new(Metrics::new()?);
        let rewards = Pool::new(options.reward_workers, metrics.clone());
        let context = Context { engine: engine.clone(), rewards, metrics: metrics.clone(), width: options.width };
        let jobs = Arc::new(Jobs::new(context, options.jobs));
        Ok(AppState { engine, text, limits: Arc::new(options.limits), metrics, jobs, started: Instant::now() })
    }
}

/// Every route.
pub fn router(state: AppState) -> Router {
    Router::new()
        .route("/v1/rollouts", post(rollouts::post).get(rollouts::list))
        .route("/v1/rollouts/{id}", get(rollouts::get).delete(rollouts::delete))
        .route("/v1/rollouts/{id}/groups", get(rollouts::groups))
        .route("/v1/rollouts/{id}/events", get(rollouts::events))
        .route("/v1/score", post(score::post))
        .route("/v1/state", get(health::state))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(state.clone(), measure))
        .layer(TraceLayer::new_for_http())
        .with_state(state)
}

/// Serves until `shutdown` resolves; then takes no more jobs, gives the open ones their time, cancels the rest, and returns once every
/// stream has had its end.
pub async fn serve(state: AppState, listener: TcpListener, shutdown: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let grace = Duration::from_secs(state.limits.shutdown_seconds);
    let jobs = state.jobs.clone();
    let (closed, is_closed) = tokio::sync::oneshot::channel::<()>();
    let closing = async move {
        shutdown.await;
        tokio::spawn(async move {
            jobs.close(grace).await;
            let _ = closed.send(());
        });
    };
    let server = axum::serve(listener, router(state)).with_graceful_shutdown(closing);
    tokio::select! {
        result = server => result,
        // A reader that takes nothing more must not keep the process up.
        () = async { let _ = is_closed.await; tokio::time::sleep(Duration::from_secs(5)).await } => Ok(()),
    }
}

async fn no_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::new(StatusCode::NOT_FOUND, "not_found", format!("there is no route {path:?}; the main one is POST /v1/rollouts"))
}

async fn no_method(request: Request) -> ApiError {
    let message = format!("{} is not possible on this route", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}

/// Times every request under its route's pattern.
async fn measure(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    state.metrics.http_request(&route, response.status().as_u16(), started.elapsed());
    response
}
