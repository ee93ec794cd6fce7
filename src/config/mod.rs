//! The server's configuration: defaults, then a file, then the environment, then flags; each later one wins.
//!
//! Two levels, `section.key`, and no key without a default: what [`Config::default`] gives is every key there is, so `server-config/cpu.toml`
//! can list them all and a test keeps the two equal. A key that is not known is refused wherever it comes from. Every refusal names the
//! key, where its value was written ([`source::Source`]), what is wrong, and what to do. An empty string or 0 stands for "not set" where
//! the key's comment says so.

pub mod sections;
mod source;
mod validate;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use sections::{Engine, LogFormat, Model, Rollout, Server, Store, Weights};
pub use source::Source;

use crate::reward::PoolSettings;
use crate::rollout::JobLimits;
use crate::server::Limits;

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The model.
    pub model: Model,
    /// Address, tokens, logs.
    pub server: Server,
    /// What a request may hold.
    pub limits: Limits,
    /// How many jobs there are.
    pub jobs: JobLimits,
    /// What the engine runs at a time.
    pub engine: Engine,
    /// How many samples are in flight.
    pub rollout: Rollout,
    /// Verifiers.
    pub reward: PoolSettings,
    /// Where jobs are kept.
    pub store: Store,
    /// Where weights come from and are kept.
    pub weights: Weights,
}

/// A configuration that cannot be used: every line of it is a sentence that says where, which key, what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl ConfigError {
    fn one(sentence: String) -> Self {
        ConfigError(vec![sentence])
    }
}

/// A value given on the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Flag {
    /// The key that it sets: `server.port`.
    pub key: &'static str,
    /// How the user wrote it: `--port`.
    pub flag: &'static str,
    /// Its value.
    pub value: Value,
}

/// A configuration and where each of its values was written.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Where values that are not the default's come from, by `section.key`.
    pub sources: BTreeMap<String, Source>,
}

impl Loaded {
    /// The keys whose values are not the default's, and where they were written. The values stay out: some are tokens.
    pub fn changed(&self) -> Vec<(&str, &Source)> {
        let (Ok(values), Ok(defaults)) = (Table::try_from(&self.config), known_keys()) else { return Vec::new() };
        let value = |table: &Table, path: &str| path.split_once('.').and_then(|(section, key)| table.get(section)?.get(key)).cloned();
        let differs = |path: &str| value(&values, path) != value(&defaults, path);
        self.sources.iter().filter(|(path, _)| differs(path)).map(|(path, source)| (path.as_str(), source)).collect()
    }
}

impl Config {
    /// Reads a configuration. `environment` is asked for variables such as `ADAROLL_SERVER_PORT`; pass [`std::env::vars`].
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = Flag>,
    ) -> Result<Loaded, ConfigError> {
        let known = known_keys()?;
        let mut values = Table::new();
        let mut sources = BTreeMap::new();
        let mut put = |section: &str, key: &str, value: Value, source: Source| {
            if let Value::Table(table) = values.entry(section).or_insert_with(|| Value::Table(Table::new())) {
                table.insert(key.to_owned(), value);
                sources.insert(format!("{section}.{key}"), source);
            }
        };
        let mut problems = Vec::new();
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|e| ConfigError::one(format!("{}: the configuration cannot be read: {e}; check --config", path.display())))?;
            let read = source::read_file(path, &text, &known);
            problems.extend(read.problems);
            read.values.into_iter().for_each(|(section, key, value, source)| put(&section, &key, value, source));
        }
        let read = source::read_environment(environment, &known);
        problems.extend(read.problems);
        read.values.into_iter().for_each(|(section, key, value, source)| put(&section, &key, value, source));
        for Flag { key, flag, value } in flags {
            if let Some((section, key)) = key.split_once('.') {
                put(section, key, value, Source::Flag(flag.to_owned()));
            }
        }
        if !problems.is_empty() {
            return Err(ConfigError(problems));
        }
        let mut config: Config = serde_path_to_error::deserialize(values).map_err(|error| {
            let path = error.path().to_string();
            // A list's element is named by its index; its key is where it was written.
            let key = path.split('[').next().unwrap_or(&path);
            let problem = error.inner().message().trim().replace('\n', " ");
            ConfigError::one(at(&sources, key, &format!("{}; {}", source::in_words(&problem), source::kind_help(&known, key))))
        })?;
        config.server.read_token_files().map_err(|(key, problem)| ConfigError::one(at(&sources, key, &problem)))?;
        let problems: Vec<String> = validate::problems(&config).into_iter().map(|(key, problem)| at(&sources, key, &problem)).collect();
        if problems.is_empty() { Ok(Loaded { config, sources }) } else { Err(ConfigError(problems)) }
    }
}

/// A sentence about a key, led by the place where its value was written.
fn at(sources: &BTreeMap<String, Source>, key: &str, problem: &str) -> String {
    match sources.get(key) {
        Some(source) => format!("{source}: {key} {problem}"),
        None => format!("{key} {problem}"),
    }
}

/// Every key with its default.
fn known_keys() -> Result<Table, ConfigError> {
    Table::try_from(Config::default())
        .map_err(|e| ConfigError::one(format!("the default configuration cannot be written: {e}; please report this")))
}
