//! HTTP.
//!
//! A request gets its id and its caller ([`observe`], [`auth`]), and by the table in [`routes`] its handler. It is read ([`json`],
//! [`request`]), admitted as a job ([`rollouts`]) and followed as a stream ([`stream`]) or by polling. Every refusal is an
//! [`error::ApiError`]: a status, a code, a sentence, and the offending field's path. [`openapi`] describes all of it.

mod admin;
pub mod auth;
pub mod error;
mod health;
pub mod json;
pub mod limits;
mod observe;
pub mod openapi;
pub mod request;
mod rollouts;
pub mod routes;
mod score;
mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

pub use auth::{Caller, Tokens};
pub use error::ApiError;
pub use limits::Limits;
pub use routes::router;

use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::reward::Pool;
use crate::rollout::{Context, JobLimits, Jobs, Pause, TextModel, Width};

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
    /// Holds new samples back.
    pub pause: Pause,
    /// Who may do what.
    pub tokens: Arc<Tokens>,
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
    /// Who may do what.
    pub tokens: Tokens,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            limits: Limits::default(),
            jobs: JobLimits::default(),
            width: Width::default(),
            reward_workers: 4,
            tokens: Tokens::default(),
        }
    }
}

impl AppState {
    /// A server's state over an engine and its text side. Fails only if two metrics have the same name.
    pub fn new(engine: Arc<dyn Engine>, text: Arc<dyn TextModel>, options: Options) -> Result<Self, prometheus::Error> {
        let metrics = Arc::new(Metrics::new()?);
        let rewards = Pool::new(options.reward_workers, metrics.clone());
        let context = Context { engine: engine.clone(), rewards, metrics: metrics.clone(), width: options.width };
        let jobs = Arc::new(Jobs::new(context, options.jobs));
        Ok(AppState {
            engine,
            text,
            limits: Arc::new(options.limits),
            metrics,
            jobs,
            pause: Pause::default(),
            tokens: Arc::new(options.tokens),
            started: Instant::now(),
        })
    }
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
