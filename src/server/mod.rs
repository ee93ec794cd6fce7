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
mod scores;
mod stream;
pub mod verify;
mod weights;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

pub use auth::{Caller, Tokens};
pub use error::ApiError;
pub use limits::Limits;
pub use routes::router;

use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::model::TensorSet;
use crate::reward::{Pool, PoolSettings};
use crate::rollout::updates::{self, Home};
use crate::rollout::{Context, JobLimits, Jobs, Origin, Pause, RecoverError, Slots, TextModel, Updates, Versions, Width};
use crate::store::Store;

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
    /// Judges, and knows which webhooks it may call.
    pub rewards: Pool,
    /// How much of `POST /v1/verify` is judged at once.
    pub verify: verify::Places,
    /// Holds new samples back.
    pub pause: Pause,
    /// Takes new weights, where the engine does.
    pub updates: Option<Arc<Updates>>,
    /// Folders of this machine that weights may be read from.
    pub weight_roots: Arc<[PathBuf]>,
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
    /// How far ahead samples run.
    pub width: Width,
    /// Samples in flight, over all jobs.
    pub max_in_flight: usize,
    /// Verifiers.
    pub rewards: PoolSettings,
    /// Who may do what.
    pub tokens: Tokens,
    /// What identifies the model's files.
    pub model_digest: String,
    /// The model's weights and where later ones are kept; without them the weights cannot be changed.
    pub weights: Option<WeightsOptions>,
}

/// Settings of weights.
#[derive(Clone, Debug)]
pub struct WeightsOptions {
    /// The weights that the engine serves at its start: version 0.
    pub model: TensorSet,
    /// Folder of later versions.
    pub dir: PathBuf,
    /// Folders of this machine that weights may be read from.
    pub roots: Vec<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            limits: Limits::default(),
            jobs: JobLimits::default(),
            width: Width::default(),
            max_in_flight: 128,
            rewards: PoolSettings::default(),
            tokens: Tokens::default(),
            model_digest: String::new(),
            weights: None,
        }
    }
}

/// Why a server's state could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Two metrics have the same name.
    #[error("the metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The jobs in the store cannot go on.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The weights.
    #[error(transparent)]
    Weights(#[from] updates::StartError),
}

impl AppState {
    /// A server's state over an engine, its text side and a store; the store's open jobs go on. Must be called within a runtime.
    pub fn new(engine: Arc<dyn Engine>, text: Arc<dyn TextModel>, store: Store, options: Options) -> Result<Self, StartError> {
        let metrics = Arc::new(Metrics::new()?);
        let verify = verify::Places::new(&options.rewards);
        let rewards = Pool::new(options.rewards, metrics.clone());
        let pause = Pause::default();
        let mut weight_roots = Vec::new();
        let updates = match options.weights {
            Some(WeightsOptions { model, dir, roots }) => {
                weight_roots = roots;
                let home = Home::new(dir, store.file());
                Some(Updates::start(engine.clone(), model, &options.model_digest, store.clone(), home, metrics.clone())?)
            }
            None => None,
        };
        let versions = match &updates {
            Some(updates) => updates.versions().clone(),
            None => Versions::new(engine.stats().weights_version, ""),
        };
        let context = Context {
            engine: engine.clone(),
            rewards: Arc::new(rewards.clone()),
            journal: Arc::new(store.clone()),
            metrics: metrics.clone(),
            slots: Slots::new(options.max_in_flight),
            pause: pause.clone(),
            versions,
            width: options.width,
        };
        let origin = Origin { model_digest: options.model_digest, numerics_id: engine.info().numerics_id.clone() };
        let jobs = Arc::new(Jobs::new(context, store, origin, options.jobs));
        jobs.recover()?;
        // The jobs hold their versions now.
        if let Some(updates) = &updates {
            updates.go_on();
        }
        Ok(AppState {
            engine,
            text,
            limits: Arc::new(options.limits),
            metrics,
            jobs,
            rewards,
            verify,
            pause,
            updates,
            weight_roots: weight_roots.into(),
            tokens: Arc::new(options.tokens),
            started: Instant::now(),
        })
    }
}

/// Serves until `shutdown` resolves; then takes no more jobs, gives the open ones their time, leaves the rest in the store (or cancels
/// them, if it is in memory), and returns once every stream has ended.
pub async fn serve(state: AppState, listener: TcpListener, shutdown: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let grace = Duration::from_secs(state.limits.shutdown_seconds);
    let jobs = state.jobs.clone();
    // Waited for in two places, of which one may be through before the other.
    let (closed, is_closed) = tokio::sync::watch::channel(false);
    let all_closed = || {
        let mut is_closed = is_closed.clone();
        async move {
            let _ = is_closed.wait_for(|closed| *closed).await;
        }
    };
    let closing = async move {
        shutdown.await;
        tokio::spawn(async move {
            jobs.close(grace).await;
            let _ = closed.send(true);
        });
    };
    let server = axum::serve(listener, router(state)).with_graceful_shutdown(closing);
    tokio::select! {
        result = server => {
            result?;
            // Without connections the listener is done at once; the jobs have their time all the same.
            all_closed().await;
            Ok(())
        }
        // A reader that takes nothing more must not keep the process up.
        () = async { all_closed().await; tokio::time::sleep(Duration::from_secs(5)).await } => Ok(()),
    }
}
