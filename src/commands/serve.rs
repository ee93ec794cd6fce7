//! `adaroll serve`: the rollout server over one model.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use tokio::net::TcpListener;
use toml::Value;

use super::device::DeviceChoice;
use super::inspect::{Inspection, inspect};
use super::open::{Opened, look_for};
use crate::config::{Config, ConfigError, Flag, Loaded};
use crate::engine::Engine;
use crate::failpoint;
use crate::model::ModelError;
use crate::ops::cpu::Isa;
use crate::ops::cuda::GemmChoice;
use crate::rollout::Width;
use crate::server::{self, AppState, Options, StartError, Tokens, WeightsOptions};
use crate::store::{Store, StoreError, StorePath};

/// Serve rollouts over HTTP: POST /v1/rollouts gives balanced groups.
///
/// Settings come from their defaults, then --config, then environment variables ADAROLL_SECTION_KEY (ADAROLL_SERVER_DATA_TOKEN), then the
/// flags below; server-config/cpu.toml lists and explains every one of them. Without tokens the server listens on loopback addresses
/// alone. Ctrl-C or SIGTERM gives running jobs `limits.shutdown_seconds` to finish.
///
/// Examples:
///   adaroll serve --model models/smollm2
///   adaroll serve --config server-config/cpu.toml --model models/smollm2 --check
///   ADAROLL_SERVER_DATA_TOKEN=... ADAROLL_SERVER_ADMIN_TOKEN=... adaroll serve --model models/smollm2 --host 0.0.0.0
#[derive(Args, Debug, Default)]
#[command(verbatim_doc_comment)]
pub struct ServeArgs {
    /// Configuration file; server-config/cpu.toml explains every key [default: none, every key at its default].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, the model folder, address and store, say what was found, and start nothing. Exit status 1 if the server would not start.
    #[arg(long)]
    pub check: bool,
    /// Hugging Face folder of the model [model.dir].
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Address to listen on; a public one needs tokens [server.host, 127.0.0.1].
    #[arg(long)]
    pub host: Option<IpAddr>,
    /// Port; 0 takes any free one [server.port, 8000].
    #[arg(long)]
    pub port: Option<u16>,
    /// SQLite file of jobs and samples, or :memory: [store.path, adaroll.db].
    #[arg(long, value_name = "PATH")]
    pub store: Option<PathBuf>,
    /// What computes: auto (the first GPU that can be used, else the CPU), cpu, cuda or cuda:N [engine.device, auto].
    #[arg(long)]
    pub device: Option<DeviceChoice>,
    /// Folder of kernels made by `adaroll kernels build` [engine.kernels_dir, none: compiled at the first start].
    #[arg(long, value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Matrix products on a GPU: auto (cuBLASLt where it is exact and faster), own or cublaslt [engine.gemm, auto].
    #[arg(long)]
    pub gemm: Option<GemmChoice>,
    /// Threads [engine.threads, one a core].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set: scalar, avx2 or avx512 [engine.isa, the best this machine has].
    #[arg(long)]
    pub isa: Option<Isa>,
    /// Tokens computed in one step [engine.max_batch_tokens, 512 on a CPU, 8192 on a GPU].
    #[arg(long)]
    pub max_batch_tokens: Option<u32>,
    /// Sequences that run at a time [engine.max_sequences, 128].
    #[arg(long)]
    pub max_sequences: Option<u32>,
    /// KV blocks of 16 tokens [engine.kv_blocks, a quarter of the free memory, at most 4 GiB].
    #[arg(long)]
    pub kv_blocks: Option<u32>,
    /// Do not look for prefixes that were computed before [engine.prefix_cache].
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// The model's own stop tokens do not end a sample [engine.ignore_eos].
    #[arg(long)]
    pub ignore_eos: bool,
}

impl ServeArgs {
    /// The configuration that these arguments and the environment give.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        // A variable that is not UTF-8 cannot be one of ours.
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Config::load(self.config.as_deref(), variables, self.flags())
    }

    fn flags(&self) -> Vec<Flag> {
        let text = |value: &Option<PathBuf>| value.as_ref().map(|path| Value::String(path.to_string_lossy().into_owned()));
        let whole = |value: Option<u32>| value.map(|n| Value::Integer(n.into()));
        let all = [
            ("model.dir", "--model", text(&self.model)),
            ("server.host", "--host", self.host.map(|host| Value::String(host.to_string()))),
            ("server.port", "--port", self.port.map(|port| Value::Integer(port.into()))),
            ("store.path", "--store", text(&self.store)),
            ("engine.device", "--device", self.device.map(|device| Value::String(device.to_string()))),
            ("engine.kernels_dir", "--kernels", text(&self.kernels)),
            ("engine.gemm", "--gemm", self.gemm.map(|gemm| Value::String(gemm.to_string()))),
            ("engine.threads", "--threads", self.threads.map(|n| Value::Integer(n.into()))),
            ("engine.isa", "--isa", self.isa.map(|isa| Value::String(isa.to_string()))),
            ("engine.max_batch_tokens", "--max-batch-tokens", whole(self.max_batch_tokens)),
            ("engine.max_sequences", "--max-sequences", whole(self.max_sequences)),
            ("engine.kv_blocks", "--kv-blocks", whole(self.kv_blocks)),
            ("engine.prefix_cache", "--no-prefix-cache", self.no_prefix_cache.then_some(Value::Boolean(false))),
            ("engine.ignore_eos", "--ignore-eos", self.ignore_eos.then_some(Value::Boolean(true))),
        ];
        all.into_iter().filter_map(|(key, flag, value)| Some(Flag { key, flag, value: value? })).collect()
    }
}

/// Why the server did not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address.
    #[error("{0} is not a loopback address, and no tokens guard it; set server.data_token and server.admin_token, or use 127.0.0.1 or ::1")]
    Public(IpAddr),
    /// A setting.
    #[error("{0} {1}")]
    Setting(&'static str, String),
    /// The model's folder.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// The port.
    #[error("the server cannot listen on {0}: {1}; choose another --port or --host")]
    Listen(SocketAddr, std::io::Error),
    /// The store.
    #[error("store.path: {0}")]
    Store(#[from] StoreError),
    /// The server's state.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The connection handling.
    #[error("the server stopped: {0}")]
    Io(#[from] std::io::Error),
}

/// The server's settings in `config`.
pub fn options(config: &Config) -> Result<Options, ServeError> {
    let max_in_flight = if config.rollout.max_in_flight == 0 { config.engine.max_sequences } else { config.rollout.max_in_flight };
    let tokens =
        Tokens::new(&config.server.data_token, &config.server.admin_token).map_err(|(key, problem)| ServeError::Setting(key, problem))?;
    Ok(Options {
        limits: config.limits.clone(),
        jobs: config.jobs,
        width: Width { q_min: config.rollout.q_min, look_ahead: config.rollout.look_ahead },
        max_in_flight,
        rewards: config.reward.clone(),
        tokens,
        model_digest: String::new(),
        weights: None,
    })
}

/// The model's folder, which has no default.
pub fn model_dir(config: &Config) -> Result<&Path, ServeError> {
    let dir = config.model.dir.as_path();
    if dir.as_os_str().is_empty() {
        return Err(ServeError::Setting("model.dir", "is not set; give the model's folder with --model DIR, or in the file".into()));
    }
    Ok(dir)
}

/// Listens where `config` says (port 0: any free one); `listening` is told where. Ends when `shutdown` does.
pub async fn serve(
    opened: Opened,
    config: Config,
    listening: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let options = options(&config)?;
    let address = SocketAddr::from((config.server.host, config.server.port));
    if !address.ip().is_loopback() && !options.tokens.are_set() {
        return Err(ServeError::Public(address.ip()));
    }
    let listener = TcpListener::bind(address).await.map_err(|e| ServeError::Listen(address, e))?;
    listening(listener.local_addr()?);
    let Opened { engine, text, weights, digest } = opened;
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let store = open_store(&config)?;
    let keep_days = f64::from(config.store.keep_days);
    let (dir, roots) = (config.weights.folder(&config.store), config.weights.roots.clone());
    let weights = Some(WeightsOptions { model: weights, dir: dir.clone(), roots });
    let state = AppState::new(engine, Arc::new(text), store.clone(), Options { model_digest: digest, weights, ..options })?;
    let pruning = tokio::spawn(prune_hourly(store, keep_days));
    let served = server::serve(state, listener, shutdown).await;
    pruning.abort();
    if config.store.in_memory() && config.weights.dir.as_os_str().is_empty() {
        // It is this process's own, and is there only if something was pushed.
        let _ = std::fs::remove_dir_all(dir);
    }
    Ok(served?)
}

fn open_store(config: &Config) -> Result<Store, ServeError> {
    failpoint::arm_from_env().map_err(|problem| ServeError::Setting(failpoint::VARIABLE, problem))?;
    let path = if config.store.in_memory() { StorePath::Memory } else { StorePath::File(config.store.path.clone()) };
    Ok(Store::open(&path)?)
}

/// Drops jobs that were closed longer ago than `keep_days`, at the start and then every hour.
async fn prune_hourly(store: Store, keep_days: f64) {
    let mut hour = tokio::time::interval(std::time::Duration::from_secs(3600));
    loop {
        hour.tick().await;
        let store = store.clone();
        match tokio::task::spawn_blocking(move || store.prune(keep_days)).await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(jobs)) => tracing::info!("dropped {jobs} jobs that were closed more than {keep_days} days ago"),
            Ok(Err(error)) => tracing::warn!("old jobs could not be dropped from the store: {error}"),
        }
    }
}

/// What `--check` found.
#[derive(Debug)]
pub struct Checked {
    loaded: Loaded,
    /// Each thing that was looked at, and what is wrong with it if anything is.
    findings: Vec<(&'static str, Result<String, String>)>,
}

impl Checked {
    /// Whether the server would start.
    pub fn ok(&self) -> bool {
        self.findings.iter().all(|(_, found)| found.is_ok())
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, found) in &self.findings {
            match found {
                Ok(found) => writeln!(f, "ok       {what}: {found}")?,
                Err(problem) => writeln!(f, "problem  {what}: {problem}")?,
            }
        }
        for (key, source) in self.loaded.changed() {
            writeln!(f, "set      {key} by {source}")?;
        }
        f.write_str(if self.ok() { "the server would start" } else { "the server would not start" })
    }
}

/// Looks at everything that starting would need, and starts nothing. Weights are not read.
pub async fn check(loaded: Loaded) -> Checked {
    let config = &loaded.config;
    let model = model_dir(config)
        .and_then(|dir| Ok((dir, inspect(dir)?)))
        .map_err(|e| e.to_string())
        .and_then(|(dir, found)| describe(dir, &found));
    let address = SocketAddr::from((config.server.host, config.server.port));
    let port = TcpListener::bind(address).await.map(|_| address.to_string()).map_err(|e| ServeError::Listen(address, e).to_string());
    let tokens = match options(config) {
        Ok(options) if options.tokens.are_set() => Ok("a data and an admin token".to_owned()),
        Ok(_) => Ok("none; every caller may do everything".to_owned()),
        Err(problem) => Err(problem.to_string()),
    };
    let store = check_store(config);
    let device = look_for(config.engine.device.parse().unwrap_or_default());
    let findings = vec![("model", model), ("device", device), ("address", port), ("tokens", tokens), ("store", store)];
    Checked { loaded, findings }
}

fn describe(dir: &Path, found: &Inspection) -> Result<String, String> {
    if !found.tokenizer {
        return Err(format!("{} has no tokenizer.json; verifiers read text, so rollouts need one", dir.display()));
    }
    let millions = found.parameters as f64 / 1e6;
    Ok(format!("{}: {millions:.1} million parameters, a context of {} tokens", dir.display(), found.context_length))
}

/// Whether the store's file can be written, without leaving one behind.
fn check_store(config: &Config) -> Result<String, String> {
    let path = &config.store.path;
    if config.store.in_memory() {
        return Ok("in memory; no job survives the process".into());
    }
    let help = |e: std::io::Error| format!("{} cannot be written: {e}; choose another store.path (--store), or :memory:", path.display());
    if path.exists() {
        std::fs::OpenOptions::new().append(true).open(path).map_err(help)?;
        return Ok(format!("{} is there and can be written", path.display()));
    }
    // SQLite also writes beside its file.
    let trial = path.with_extension(format!("check-{}", std::process::id()));
    std::fs::OpenOptions::new().write(true).create_new(true).open(&trial).map_err(help)?;
    std::fs::remove_file(&trial).map_err(help)?;
    Ok(format!("{} will be made", path.display()))
}
