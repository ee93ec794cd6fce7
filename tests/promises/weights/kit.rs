//! A real server over a real engine on a tiny model, checkpoints whose output names their version, and what a trainer sends.

use std::path::Path;

use adaroll::commands::open::{EngineOptions, open};
use adaroll::engine::EngineSettings;
use adaroll::model::Dtype;
use adaroll::server::{AppState, Options, WeightsOptions, serve};
use adaroll::store::{Store, StorePath};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::server_kit::{Streamed, client};
use crate::tiny_model::{RawTensor, TinyModel, read_tensors, tiny_model, write_safetensors};

/// A folder with config.json, weights and a tokenizer of 64 letters.
pub fn folder(model: &TinyModel) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), model);
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain(['-', '+']).collect();
    let vocab: serde_json::Map<String, Value> = letters.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

/// The token that the weights [`naming`] a version draw, whatever came before; no stop token.
pub fn token_of(version: u64) -> u32 {
    3 + (version % 61) as u32
}

/// Tensors of the default tiny model that draw one token for certain: every hidden state is the same, and one row of the head answers it.
pub fn naming(version: u64) -> Vec<RawTensor> {
    let model = TinyModel::default();
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), &model);
    let change = |tensor: RawTensor| {
        let count: usize = tensor.shape.iter().product();
        let numbers: Vec<f32> = match tensor.name.as_str() {
            "lm_head.weight" => (0..count).map(|i| if i / model.hidden_size == token_of(version) as usize { 8.0 } else { -8.0 }).collect(),
            name if name.ends_with("norm.weight") || name.contains("embed_tokens") => vec![1.0; count],
            _ => vec![0.0; count],
        };
        RawTensor::new(tensor.name, Dtype::Bf16, tensor.shape, &numbers)
    };
    read_tensors(&dir.path().join("model.safetensors")).into_iter().map(change).collect()
}

/// A safetensors file as bytes.
pub fn bytes(tensors: &[RawTensor]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    write_safetensors(&path, tensors);
    std::fs::read(path).unwrap()
}

/// The weights of a model of this seed.
pub fn random(seed: u64) -> Vec<RawTensor> {
    let dir = folder(&TinyModel { seed, ..TinyModel::default() });
    read_tensors(&dir.path().join("model.safetensors"))
}

/// A server; it ends when it is dropped.
pub struct Served {
    pub url: String,
    pub client: reqwest::Client,
    pub state: AppState,
    stop: Option<oneshot::Sender<()>>,
    pub served: Option<tokio::task::JoinHandle<std::io::Result<()>>>,
}

pub fn engine_options() -> EngineOptions {
    let settings = EngineSettings { kv_blocks: Some(512), max_batch_tokens: 64, max_sequences: 32, ..EngineSettings::default() };
    EngineOptions { threads: 1, settings, ..EngineOptions::default() }
}

impl Served {
    /// Over the folder `model`, with what it needs else in `dir`.
    pub async fn start(model: &Path, dir: &Path, roots: &[&Path]) -> Self {
        Self::over(model, dir, roots, Store::open(&StorePath::Memory).unwrap()).await
    }

    pub async fn over(model: &Path, dir: &Path, roots: &[&Path], store: Store) -> Self {
        let opened = open(model, &engine_options(), |_, _| {}).unwrap();
        let roots = roots.iter().map(|root| root.to_path_buf()).collect();
        let weights = WeightsOptions { model: opened.weights, dir: dir.join("weights"), roots };
        let options = Options { weights: Some(weights), model_digest: opened.digest, max_in_flight: 32, ..Options::default() };
        let state = AppState::new(std::sync::Arc::new(opened.engine), std::sync::Arc::new(opened.text), store, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(state.clone(), listener, async {
            let _ = stopped.await;
        }));
        Served { url, client: client(), state, stop: Some(stop), served: Some(served) }
    }

    pub fn stop(&mut self) {
        self.stop.take();
    }

    async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        Self::answer(self.client.get(format!("{}{path}", self.url))).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        Self::answer(self.client.post(format!("{}{path}", self.url)).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        Self::answer(self.client.delete(format!("{}{path}", self.url))).await
    }

    /// `PUT /v1/weights?{query}`.
    pub async fn put(&self, query: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        Self::answer(self.client.put(format!("{}/v1/weights?{query}", self.url)).body(body)).await
    }

    /// Pushes weights that must be taken.
    pub async fn push(&self, version: u64, tensors: &[RawTensor]) -> Value {
        let (status, answer) = self.put(&format!("version={version}"), bytes(tensors)).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["version"], version);
        answer
    }

    /// Posts a job and follows its stream to the end.
    pub async fn stream(&self, body: &Value) -> Streamed {
        let request = self.client.post(format!("{}/v1/rollouts", self.url)).header("accept", "application/x-ndjson").json(body);
        let response = request.send().await.unwrap();
        let status = response.status();
        let text = response.text().await.unwrap();
        assert_eq!(status, 200, "{text}");
        Streamed::read(&text)
    }

    pub async fn live(&self) -> u64 {
        self.get("/v1/weights").await.1["version"].as_u64().unwrap()
    }

    /// Waits until `met` says so.
    pub async fn until(&self, what: &str, mut met: impl AsyncFnMut(&Served) -> bool) {
        for _ in 0..2000 {
            if met(self).await {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("did not happen: {what}");
    }
}

/// A job of `prompts` prompts with `samples` samples each of exactly `tokens` tokens.
pub fn job(prompts: u32, samples: u32, tokens: u32, more: Value) -> Value {
    let prompt = |i: u32| json!({"token_ids": [i % 64, (i * 7) % 64, 3], "reward": {"kind": "regex", "pattern": "[a-m]"}});
    let mut body = json!({
        "seed": 11, "prompts": (0..prompts).map(prompt).collect::<Vec<_>>(),
        "strategy": {"kind": "uniform", "group_size": samples, "max_samples": samples},
        "sampling": {"max_tokens": tokens, "ignore_eos": true},
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// (version, number of tokens) of every span of every sample; fails where a token is not the one that its version draws.
pub fn spans(streamed: &Streamed) -> Vec<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    for position in 0..streamed.groups.len() {
        for sample in streamed.group(position)["samples"].as_array().unwrap() {
            let tokens = sample["token_ids"].as_array().unwrap();
            let (mut at, mut found) = (0, Vec::new());
            for span in sample["weight_versions"].as_array().unwrap() {
                let [version, start, end] = ["version", "start", "end"].map(|key| span[key].as_u64().unwrap());
                assert_eq!(start, at, "spans follow on each other: {sample}");
                assert!(start < end && end <= tokens.len() as u64, "{sample}");
                for token in &tokens[start as usize..end as usize] {
                    assert_eq!(token.as_u64().unwrap() as u32, token_of(version), "version {version}: {sample}");
                }
                at = end;
                found.push((version, end - start));
            }
            assert_eq!(at, tokens.len() as u64, "spans cover every token: {sample}");
            all.push(found);
        }
    }
    all
}

/// A job of weights that [`naming`] made, which stays open until its two samples of eight tokens are scored by a client. They end at a stop
/// string: an answer that is cut off would be negative unread.
pub fn held(id: &str, more: Value) -> Value {
    let letter = |version| char::from(b'a' + token_of(version) as u8).to_string();
    let mut body = job(1, 2, 8, json!({"job_id": id}));
    body["prompts"][0]["reward"] = json!({"kind": "pull"});
    body["prompts"][0]["id"] = json!("p");
    body["sampling"]["stop"] = (0..10).map(|version| letter(version).repeat(8)).collect();
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The scores that end such a job.
pub fn scores() -> Value {
    json!({"scores": [{"prompt_id": "p", "index": 0, "reward": 1.0}, {"prompt_id": "p", "index": 1, "reward": 0.0}]})
}
