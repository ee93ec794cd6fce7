//! The trainer's side of the HTTP interface: jobs and weights.
//!
//! Everything here may be tried again: a job has an id (the same id and body are the same job) and a push has a version (the same version
//! and bytes change nothing). So a server that is killed and comes back is waited for, for as long as the run's patience.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::rollout::RolloutError;
use crate::commands::rollout::follow::{Connection, Event, Follower, reason};
use crate::ops::handover::{DeviceId, Exported};
use crate::rollout::plan::Status;
use crate::trainer::settings::WeightsWay;

/// Why the server could not be used. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A job.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// A job that ended otherwise than done.
    #[error("job {job} is {state}{}; look at GET /v1/rollouts/{job}", error.as_ref().map(|e| format!(": {e}")).unwrap_or_default())]
    Ended {
        /// The job.
        job: String,
        /// `failed` or `cancelled`.
        state: String,
        /// Why.
        error: Option<String>,
    },
    /// The server refused something.
    #[error("the server refused {what} ({status} {code}): {message}")]
    Refused {
        /// What was asked.
        what: String,
        /// HTTP status.
        status: u16,
        /// The error's code.
        code: String,
        /// Its sentence.
        message: String,
    },
    /// No answer for too long.
    #[error(
        "{problem}; gave up {what} after {patience_s} s. Start the server again and run the same command: the run goes on from its last checkpoint"
    )]
    Unreachable {
        /// What was asked.
        what: String,
        /// What went wrong last.
        problem: String,
        /// How long it was tried.
        patience_s: u64,
    },
    /// An answer that is none.
    #[error("the server answered {0}; is this an adaroll server of this version?")]
    Protocol(String),
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// The weights.
    #[error("the weights cannot be handed over: {0}")]
    Weights(String),
    /// The shared folder.
    #[error("server.shared_dir: {0}")]
    Shared(std::io::Error),
}

/// A sample as the trainer needs it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sample {
    /// Its index within the prompt.
    pub index: u32,
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// What the sampler says of them.
    pub logprobs: Vec<f32>,
    /// The raw reward.
    pub reward: Option<f64>,
    /// Whether it is positive.
    pub positive: Option<bool>,
    /// Absent for samples that the group did not keep.
    pub advantage: Option<f64>,
    /// `stop`, `length`, ...
    pub finish_reason: String,
}

/// What the strategy saw of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Stats {
    /// Indices below the exit.
    pub seen: u64,
    /// Of these, positive.
    pub positive: u64,
    /// Negative.
    pub negative: u64,
    /// Failed.
    pub failed: u64,
    /// Truncated.
    pub truncated: u64,
    /// Mean over the first samples, unbiased.
    pub pass_rate_first: Option<f64>,
    /// Mean of the raw rewards.
    pub reward_mean: Option<f64>,
    /// Tokens of the samples seen.
    pub tokens_seen: u64,
}

/// A group as the trainer needs it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Group {
    /// The prompt.
    pub prompt_id: String,
    /// How it ended.
    pub status: Status,
    /// The prompt's tokens.
    pub prompt_token_ids: Vec<u32>,
    /// The kept samples.
    pub samples: Vec<Sample>,
    /// Whether their rewards differ.
    pub signal: bool,
    /// Statistics.
    pub stats: Stats,
}

/// A finished job.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// Its groups, by request position; the lines as they came, for checkpoints.
    pub groups: Vec<Group>,
    /// The lines.
    pub lines: Vec<String>,
    /// Samples charged: those of groups that `dapo` dropped included.
    pub samples_seen: u64,
    /// Groups that `dapo` dropped.
    pub dropped: u64,
}

/// The server of a run.
pub struct Server {
    connection: Connection,
    base: Url,
    client: Client,
    admin_token: Option<String>,
    shared_dir: PathBuf,
    wanted: WeightsWay,
    /// How weights get there, once that is known.
    way: Mutex<Option<Way>>,
}

/// How weights get to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Ipc,
    Shared,
    Http,
}

/// A version's weights, in whichever form the way to the server takes. They stay as they are until the push has been answered.
pub trait Weights {
    /// The GPU in whose memory they lie in bf16, if they do.
    fn device(&self) -> Option<DeviceId> {
        None
    }
    /// Where they lie there.
    fn export(&mut self) -> Result<Exported, String> {
        Err("they are not in a GPU's memory".into())
    }
    /// As a safetensors file.
    fn file(&mut self) -> Result<Vec<u8>, String>;
}

/// A safetensors file, which is taken.
impl Weights for Vec<u8> {
    fn file(&mut self) -> Result<Vec<u8>, String> {
        Ok(std::mem::take(self))
    }
}

/// Code of a server whose engine cannot reach the memory: another way will do.
const IPC_UNAVAILABLE: &str = "ipc_unavailable";
/// Code of a server whose open jobs wait for weights that are gone: waiting does not help.
const NEEDS_WEIGHTS: &str = "needs_weights";
/// First and longest pause before another try.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(4));

impl Server {
    /// A server at this address. Tokens come from ADAROLL_TOKEN and ADAROLL_ADMIN_TOKEN.
    pub fn new(settings: &super::settings::Server) -> Result<Self, ServerError> {
        let connection = Connection { server: settings.url.clone(), token: None, patience: Duration::from_secs(settings.patience_s) };
        let base = connection.base().map_err(ServerError::Setting)?;
        let client = connection.client().map_err(ServerError::Setting)?;
        let admin_token = std::env::var("ADAROLL_ADMIN_TOKEN").ok().filter(|token| !token.is_empty()).or_else(|| connection.token());
        Ok(Server {
            connection,
            base,
            client,
            admin_token,
            shared_dir: settings.shared_dir.clone(),
            wanted: settings.weights,
            way: Mutex::new(None),
        })
    }

    /// Starts following a job; the server has it when this returns. `places` say where its prompts were read from.
    pub async fn start(&self, body: Value, places: Vec<String>) -> Result<Running, ServerError> {
        Running::start(&self.connection, body, places, 0).await
    }

    fn url(&self, path: &str, query: &str) -> Url {
        let mut url = self.base.clone();
        let joined = format!("{}{path}", url.path().trim_end_matches('/'));
        url.set_path(&joined);
        url.set_query(Some(query).filter(|query| !query.is_empty()));
        url
    }

    /// Sends a request until it is answered; a refusal is final, a server that is away or busy is tried again.
    async fn send(&self, what: &str, request: impl Fn() -> RequestBuilder) -> Result<Value, ServerError> {
        let (started, mut pause) = (Instant::now(), BACKOFF.0);
        loop {
            let mut request = request();
            if let Some(token) = &self.admin_token {
                request = request.bearer_auth(token);
            }
            let problem = match request.send().await {
                Ok(response) => {
                    let status = response.status();
                    match response.text().await {
                        Ok(text) if status.is_success() => {
                            return serde_json::from_str(&text)
                                .map_err(|e| ServerError::Protocol(format!("{what} with something that is no JSON ({e})")));
                        }
                        Ok(text) => {
                            let refused = refused(what, status, &text);
                            let passes = status == StatusCode::TOO_MANY_REQUESTS
                                || status == StatusCode::REQUEST_TIMEOUT
                                || status.is_server_error();
                            if !passes || matches!(&refused, ServerError::Refused { code, .. } if code == NEEDS_WEIGHTS) {
                                return Err(refused);
                            }
                            refused.to_string()
                        }
                        Err(error) => format!("the connection broke: {}", reason(error)),
                    }
                }
                Err(error) => format!("{} cannot be reached: {}", self.base, reason(error)),
            };
            if started.elapsed() >= self.connection.patience {
                return Err(ServerError::Unreachable { what: what.to_owned(), problem, patience_s: self.connection.patience.as_secs() });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// Waits until the server serves.
    pub async fn ready(&self) -> Result<Value, ServerError> {
        match self.send("readyz", || self.client.get(self.url("/readyz", ""))).await {
            // Another one's open jobs wait for weights that are gone; that is no reason not to push ours.
            Err(ServerError::Refused { code, .. }) if code == NEEDS_WEIGHTS => Ok(Value::Null),
            answer => answer,
        }
    }

    /// The weights that serve.
    pub async fn weights(&self) -> Result<Value, ServerError> {
        self.send("the weights", || self.client.get(self.url("/v1/weights", ""))).await
    }

    /// Pushes a version. `rollback` allows a version below the live one: a run that goes on from a checkpoint. With `waits` the answer comes
    /// after the swap; without, as soon as the weights are staged.
    pub async fn push(&self, version: u64, weights: &mut (dyn Weights + Send), rollback: bool, waits: bool) -> Result<Value, ServerError> {
        let mut way = self.way(weights.device()).await?;
        if way == Way::Ipc {
            let why_not = match weights.export() {
                Ok(exported) => {
                    let body = json!({"ipc": exported, "version": version, "rollback": rollback, "async": !waits});
                    match self.post(version, &body).await {
                        Err(ServerError::Refused { code, message, .. }) if code == IPC_UNAVAILABLE => message,
                        answer => return answer,
                    }
                }
                Err(problem) => problem,
            };
            way = self.without_ipc(why_not)?;
        }
        let file = weights.file().map_err(ServerError::Weights)?;
        if way == Way::Http {
            return self.put(version, file, rollback, waits).await;
        }
        let path = self.shared_dir.join(format!("adaroll-{}-{version}.safetensors", std::process::id()));
        std::fs::write(&path, &file).map_err(ServerError::Shared)?;
        drop(file);
        let body = json!({"file": path, "version": version, "rollback": rollback, "async": !waits});
        let answer = self.post(version, &body).await;
        let removed = std::fs::remove_file(&path);
        let answer = answer?;
        removed.map_err(ServerError::Shared)?;
        Ok(answer)
    }

    /// How weights on `device` get to the server: asked once.
    async fn way(&self, device: Option<DeviceId>) -> Result<Way, ServerError> {
        if let Some(way) = *self.way.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(way);
        }
        let way = match (self.wanted, device) {
            (WeightsWay::Shared, _) => self.take_way(Way::Shared, "as server.weights says"),
            (WeightsWay::Http, _) => self.take_way(Way::Http, "as server.weights says"),
            (_, None) => self.without_ipc("the trainer's weights are not on a GPU".into())?,
            (_, Some(own)) => match self.weights().await?.get("ipc").and_then(Value::as_str) {
                Some(id) if id == own.to_string() => self.take_way(Way::Ipc, "trainer and server compute on the same GPU"),
                Some(id) => self.without_ipc(format!("the server computes on GPU {id}, the trainer on GPU {own}"))?,
                None => self.without_ipc("the server takes no weights from a GPU's memory".into())?,
            },
        };
        Ok(way)
    }

    /// The way for weights that cannot go through a GPU's memory.
    fn without_ipc(&self, why: String) -> Result<Way, ServerError> {
        if self.wanted == WeightsWay::Ipc {
            return Err(ServerError::Setting(format!(
                "server.weights is \"ipc\", and that is not possible: {why}; \"auto\" finds another way"
            )));
        }
        let way = if self.shared_dir.as_os_str().is_empty() { Way::Http } else { Way::Shared };
        Ok(self.take_way(way, &why))
    }

    fn take_way(&self, way: Way, why: &str) -> Way {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = Some(way);
        let through = match way {
            Way::Ipc => "within the GPU's memory",
            Way::Shared => "through files in server.shared_dir",
            Way::Http => "over HTTP",
        };
        tracing::info!("weights go to the server {through}: {why}");
        way
    }

    async fn put(&self, version: u64, file: Vec<u8>, rollback: bool, waits: bool) -> Result<Value, ServerError> {
        let body = Bytes::from(file);
        let mut query = format!("version={version}");
        if rollback {
            query += "&rollback=true";
        }
        if !waits {
            query += "&async=true";
        }
        let request = || self.client.put(self.url("/v1/weights", &query)).body(body.clone());
        self.staged(version, self.send(&format!("weights {version}"), request).await?).await
    }

    async fn post(&self, version: u64, body: &Value) -> Result<Value, ServerError> {
        let request = || self.client.post(self.url("/v1/weights", "")).json(body);
        self.staged(version, self.send(&format!("weights {version}"), request).await?).await
    }

    /// Waits where a push is behind one that waits for another one's jobs: no job is accepted for ours, and nothing of it is read, before its
    /// turn has come.
    async fn staged(&self, version: u64, answer: Value) -> Result<Value, ServerError> {
        let (started, mut behind) = (Instant::now(), answer.get("state").and_then(Value::as_str) == Some("queued"));
        while behind {
            tokio::time::sleep(BACKOFF.0).await;
            let now = self.weights().await?;
            behind = now["staged"] != version && now["version"] != version;
            if behind && started.elapsed() >= self.connection.patience {
                let (what, problem) = (format!("weights {version}"), "another push waits for open jobs".to_owned());
                return Err(ServerError::Unreachable { what, problem, patience_s: self.connection.patience.as_secs() });
            }
        }
        Ok(answer)
    }
}

fn refused(what: &str, status: StatusCode, text: &str) -> ServerError {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    let field = |name: &str| answer.pointer(&format!("/error/{name}")).and_then(Value::as_str);
    ServerError::Refused {
        what: what.to_owned(),
        status: status.as_u16(),
        code: field("code").unwrap_or("unknown").to_owned(),
        message: field("message").map_or_else(|| text.chars().take(300).collect(), str::to_owned),
    }
}

/// A job that the server works on.
pub struct Running {
    connection: Connection,
    job: String,
    follower: Follower,
    body: Value,
    places: Vec<String>,
    /// Times that the job was cancelled and asked for again.
    again: u32,
}

/// Times that a job which someone has cancelled is asked for again.
const MOST_AGAIN: u32 = 3;

impl Running {
    async fn start(connection: &Connection, body: Value, places: Vec<String>, again: u32) -> Result<Self, ServerError> {
        let mut asked = body.clone();
        if again > 0 {
            asked["job_id"] = format!("{}-again-{again}", body["job_id"].as_str().unwrap_or_default()).into();
        }
        let mut follower = Follower::new(connection, asked, places.clone())?;
        let job = follower.job_id().to_owned();
        match follower.next().await? {
            Event::Job(_) => Ok(Running { connection: connection.clone(), job, follower, body, places, again }),
            _ => Err(ServerError::Protocol(format!("something else than job {job}"))),
        }
    }

    /// Waits for its end. `ids` are the prompts in request order; groups come back sorted by them.
    pub async fn finish(mut self, ids: &[String]) -> Result<Finished, ServerError> {
        let positions: std::collections::HashMap<&str, usize> = ids.iter().enumerate().map(|(i, id)| (id.as_str(), i)).collect();
        // By position, so that a server that lost the job and sends everything again changes nothing.
        let mut groups: std::collections::BTreeMap<usize, (Group, String)> = std::collections::BTreeMap::new();
        loop {
            match self.follower.next().await? {
                Event::Job(_) => {}
                Event::Group(line) => {
                    let group: Group =
                        serde_json::from_str(&line).map_err(|e| ServerError::Protocol(format!("a line that is no group ({e})")))?;
                    let position = *positions
                        .get(group.prompt_id.as_str())
                        .ok_or_else(|| ServerError::Protocol(format!("a group of {:?}, which was not asked for", group.prompt_id)))?;
                    groups.insert(position, (group, line));
                }
                Event::End(end) => {
                    let text = |name: &str| end.get(name).and_then(Value::as_str).map(str::to_owned);
                    let state = text("state").unwrap_or_else(|| "unknown".into());
                    // Its id is taken for good. The same request under another one draws the same samples.
                    if state == "cancelled" && self.again < MOST_AGAIN {
                        tracing::warn!(job = self.job, "the job was cancelled by someone; it is asked for again");
                        self = Box::pin(Running::start(&self.connection, self.body, self.places, self.again + 1)).await?;
                        groups.clear();
                        continue;
                    }
                    if state != "done" {
                        return Err(ServerError::Ended { job: self.job, state, error: text("error") });
                    }
                    let count = |name: &str| end.pointer(&format!("/statistics/{name}")).and_then(Value::as_u64);
                    let (Some(samples_seen), Some(dropped)) = (count("samples_seen"), count("dropped")) else {
                        return Err(ServerError::Protocol("an end without statistics".into()));
                    };
                    let (groups, lines) = groups.into_values().unzip();
                    return Ok(Finished { groups, lines, samples_seen, dropped });
                }
            }
        }
    }
}
