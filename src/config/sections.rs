//! The sections of the configuration, with their defaults. The comments that users read stand in `server-config/cpu.toml`.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::commands::device::DeviceChoice;
use crate::commands::open::{EngineOptions, default_threads};
use crate::engine::EngineSettings;
use crate::ops::cpu::Isa;
use crate::ops::cuda::GemmChoice;

/// `[model]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// Hugging Face folder.
    pub dir: PathBuf,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// `[server]`
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 takes any free one.
    pub port: u16,
    /// Token that samples and reads, or `sha256:` and the hexadecimal digest of one.
    pub data_token: String,
    /// Token that also pauses and changes weights.
    pub admin_token: String,
    /// File that holds the data token.
    pub data_token_file: PathBuf,
    /// File that holds the admin token.
    pub admin_token_file: PathBuf,
    /// How log lines look.
    pub log_format: LogFormat,
}

impl Default for Server {
    fn default() -> Self {
        Server {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8000,
            data_token: String::new(),
            admin_token: String::new(),
            data_token_file: PathBuf::new(),
            admin_token_file: PathBuf::new(),
            log_format: LogFormat::Text,
        }
    }
}

/// Shows no token.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |token: &str| if token.is_empty() { "none" } else { "set" };
        f.debug_struct("Server")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("data_token", &shown(&self.data_token))
            .field("admin_token", &shown(&self.admin_token))
            .field("log_format", &self.log_format)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Replaces `*_token_file` by what the file holds. Fails with the key and a sentence.
    pub(super) fn read_token_files(&mut self) -> Result<(), (&'static str, String)> {
        let pairs = [
            ("server.data_token_file", &self.data_token_file, &mut self.data_token),
            ("server.admin_token_file", &self.admin_token_file, &mut self.admin_token),
        ];
        for (key, file, token) in pairs {
            if file.as_os_str().is_empty() {
                continue;
            }
            if !token.is_empty() {
                return Err((
                    key,
                    format!("is set beside {}; set one of the two", key.trim_start_matches("server.").trim_end_matches("_file")),
                ));
            }
            let text = std::fs::read_to_string(file).map_err(|e| (key, format!("is {}, which cannot be read: {e}", file.display())))?;
            *token = text.trim().to_owned();
            if token.is_empty() {
                return Err((key, format!("is {}, which is empty; write the token into it", file.display())));
            }
        }
        Ok(())
    }
}

/// `[engine]`. Changes no bit of any result, but for `ignore_eos`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engine {
    /// The device: `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: String,
    /// Folder of kernels made by `adaroll kernels build`; empty: compiled at the first start and kept.
    pub kernels_dir: PathBuf,
    /// Matrix products on a GPU: `auto`, `own` or `cublaslt`.
    pub gemm: String,
    /// Threads; 0 is one a core.
    pub threads: usize,
    /// Instruction set; empty is the best there is.
    pub isa: String,
    /// Tokens of a step; 0 is the device's own: 512 on a CPU, 8192 on a GPU.
    pub max_batch_tokens: usize,
    /// Sequences that run at a time.
    pub max_sequences: usize,
    /// Samples that wait at most.
    pub max_queue: usize,
    /// KV blocks of 16 tokens; 0 takes a share of the free memory.
    pub kv_blocks: usize,
    /// That share on a GPU.
    pub kv_memory_share: f32,
    /// Look for prefixes that were computed before.
    pub prefix_cache: bool,
    /// The model's own stop tokens do not end a sample.
    pub ignore_eos: bool,
}

impl Default for Engine {
    fn default() -> Self {
        let EngineSettings { max_sequences, kv_blocks, kv_memory_share, prefix_cache, max_queue, .. } = EngineSettings::default();
        Engine {
            device: DeviceChoice::Auto.to_string(),
            kernels_dir: PathBuf::new(),
            gemm: GemmChoice::Auto.to_string(),
            threads: 0,
            isa: String::new(),
            max_batch_tokens: 0,
            max_sequences,
            max_queue,
            kv_blocks: kv_blocks.unwrap_or(0),
            kv_memory_share,
            prefix_cache,
            ignore_eos: false,
        }
    }
}

impl Engine {
    /// What starts the engine.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            threads: if self.threads == 0 { default_threads() } else { self.threads },
            kernels: Some(self.kernels_dir.clone()).filter(|dir| !dir.as_os_str().is_empty()),
            // All three were checked before.
            device: self.device.parse().unwrap_or_default(),
            gemm: self.gemm.parse().unwrap_or_default(),
            isa: self.isa.parse().unwrap_or_else(|_| Isa::detect()),
            ignore_eos: self.ignore_eos,
            settings: EngineSettings {
                max_batch_tokens: self.max_batch_tokens,
                max_sequences: self.max_sequences,
                kv_blocks: Some(self.kv_blocks).filter(|blocks| *blocks > 0),
                prefix_cache: self.prefix_cache,
                max_queue: self.max_queue,
                kv_memory_share: self.kv_memory_share,
            },
        }
    }
}

/// `[rollout]`. Decides how soon groups close and never what is in them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// A further sample of a prompt starts while the probability that the plan needs it is at least this.
    pub q_min: f64,
    /// Prompts open beyond the first undelivered one.
    pub look_ahead: usize,
    /// Samples in flight; 0 is `engine.max_sequences`.
    pub max_in_flight: usize,
}

impl Default for Rollout {
    fn default() -> Self {
        Rollout { q_min: 0.3, look_ahead: 1024, max_in_flight: 0 }
    }
}

/// `[weights]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Folder of pushed weights; empty: beside the store.
    pub dir: PathBuf,
    /// Folders of this machine that a push may name files in.
    pub roots: Vec<PathBuf>,
}

impl Weights {
    /// The folder: as set, or `STORE.weights`, or one of this process where nothing is kept.
    pub fn folder(&self, store: &Store) -> PathBuf {
        if !self.dir.as_os_str().is_empty() {
            return self.dir.clone();
        }
        if store.in_memory() {
            return std::env::temp_dir().join(format!("adaroll-weights-{}", std::process::id()));
        }
        let mut name = store.path.as_os_str().to_owned();
        name.push(".weights");
        name.into()
    }
}

/// `[store]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// The database file, or `:memory:`.
    pub path: PathBuf,
    /// Days that finished jobs are kept.
    pub keep_days: u32,
}

impl Default for Store {
    fn default() -> Self {
        Store { path: "adaroll.db".into(), keep_days: 30 }
    }
}

impl Store {
    /// Whether nothing is kept on disk.
    pub fn in_memory(&self) -> bool {
        self.path == Path::new(":memory:")
    }
}
