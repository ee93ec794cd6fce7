//! A real server on a loopback port over the scripted engine, and what tests say to it.

use std::sync::Arc;

use adaroll::server::{AppState, Options, serve};
use adaroll::store::{Store, StorePath};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::fake_engine::{FakeEngine, FakeText, Manner, Seen};

/// A running server; it shuts down when it is dropped.
pub struct Kit {
    pub url: String,
    pub client: reqwest::Client,
    pub seen: Arc<Seen>,
    pub state: AppState,
    stop: Option<oneshot::Sender<()>>,
    pub served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

impl Kit {
    pub async fn start(manner: Manner) -> Self {
        Self::with(manner, Options::default()).await
    }

    pub async fn with(manner: Manner, options: Options) -> Self {
        Self::over(manner, options, Store::open(&StorePath::Memory).unwrap()).await
    }

    /// The same over a store, which may hold open jobs.
    pub async fn over(manner: Manner, options: Options, store: Store) -> Self {
        // The client is built without a TLS provider of its own; a second installation is refused and harmless.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let engine = FakeEngine::new(manner);
        let seen = engine.seen.clone();
        let state = AppState::new(engine, Arc::new(FakeText), store, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(state.clone(), listener, async {
            let _ = stopped.await;
        }));
        Kit { url, client: reqwest::Client::new(), seen, state, stop: Some(stop), served: Some(served) }
    }

    /// Asks the server to shut down.
    pub fn stop(&mut self) {
        self.stop.take();
    }

    pub async fn post(&self, body: &Value) -> (u16, Value) {
        let response = self.client.post(format!("{}/v1/rollouts", self.url)).json(body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    pub async fn post_raw(&self, route: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let response = self.client.post(format!("{}{route}", self.url)).body(body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.client.get(format!("{}{path}", self.url)).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// Posts a job and follows its stream to the end.
    pub async fn stream(&self, body: &Value) -> Streamed {
        let request = self.client.post(format!("{}/v1/rollouts", self.url)).header("accept", "application/x-ndjson").json(body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Streamed::read(&response.text().await.unwrap())
    }
}

/// An NDJSON stream, taken apart.
pub struct Streamed {
    pub job: Value,
    pub groups: Vec<String>,
    pub end: Value,
}

impl Streamed {
    pub fn read(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let (first, last) = (parse(lines[0]), parse(lines[lines.len() - 1]));
        Streamed {
            job: first["job"].clone(),
            groups: lines[1..lines.len() - 1].iter().map(|line| (*line).to_owned()).collect(),
            end: last["end"].clone(),
        }
    }

    pub fn group(&self, position: usize) -> Value {
        serde_json::from_str(&self.groups[position]).unwrap()
    }

    /// The bytes of every group up to its timing, which stands last.
    pub fn reproducible(&self) -> Vec<String> {
        self.groups.iter().map(|group| group.split_once(",\"timing\":{").expect("timing stands last").0.to_owned()).collect()
    }
}

/// A job of `count` prompts of mixed difficulty.
pub fn job(count: usize, more: Value) -> Value {
    let rates = [0, 10, 30, 50, 70, 90, 100];
    // Every third prompt has truncated samples, every fifth some that end in `numerics`.
    let ids = |i: usize| [rates[i % 7], [10, 0, 0][i % 3], [6, 0, 0, 0, 0][i % 5], i % 200];
    let prompt = |i: usize| json!({"id": format!("p{i}"), "token_ids": ids(i), "reward": {"kind": "math", "answer": "72"}});
    let mut body = json!({"prompts": (0..count).map(prompt).collect::<Vec<_>>(), "seed": 7, "sampling": {"max_tokens": 64}});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}
