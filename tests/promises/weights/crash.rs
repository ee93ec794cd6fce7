//! The real binary is killed (SIGKILL) around the commit of a version; the next start serves a committed version, the one that its open jobs
//! need, and nothing half written.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kit::{bytes, folder, held, job, naming, scores, spans, token_of};
use crate::server_kit::{Streamed, client};
use crate::tiny_model::{TinyModel, write_safetensors};

/// A server in a process of its own; it is killed when this is dropped.
pub struct Process {
    child: Child,
    pub url: String,
    pub client: reqwest::Client,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub fn start(model: &Path, store: &Path, failpoint: Option<&str>) -> Self {
        let failpoint = failpoint.map(|name| ("ADAROLL_FAILPOINT", name.to_owned()));
        Self::with(model, store, failpoint)
    }

    /// With a variable in its environment.
    pub fn with(model: &Path, store: &Path, variable: Option<(&str, String)>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
        command
            .args(["serve", "--device", "cpu", "--port", "0", "--threads", "1", "--kv-blocks", "256", "--model"])
            .arg(model)
            .arg("--store")
            .arg(store);
        command.stderr(Stdio::piped()).stdout(Stdio::null()).env("ADAROLL_LOG", "info").env_remove("ADAROLL_FAILPOINT");
        command.envs(variable);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let url = loop {
            let line = lines.next().unwrap_or_else(|| panic!("the server ended before it listened: {said:?}")).unwrap();
            if let Some(at) = line.find("http://127.0.0.1:") {
                break line[at..].split_whitespace().next().unwrap().to_owned();
            }
            said.push(line);
        };
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, url, client: client() }
    }

    pub async fn ask(&self, request: reqwest::RequestBuilder) -> Option<(u16, Value)> {
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        Some((status, serde_json::from_str(&response.text().await.ok()?).unwrap()))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.ask(self.client.get(format!("{}{path}", self.url))).await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask(self.client.post(format!("{}{path}", self.url)).json(body)).await.unwrap()
    }

    /// Nothing if the process dies meanwhile.
    pub async fn put(&self, query: &str, version: u64) -> Option<(u16, Value)> {
        self.ask(self.client.put(format!("{}/v1/weights?{query}", self.url)).body(bytes(&naming(version)))).await
    }

    /// The version that serves, by its word and by what it draws.
    pub async fn serves(&self) -> u64 {
        let version = self.get("/v1/weights").await.1["version"].as_u64().unwrap();
        let request = self.client.post(format!("{}/v1/rollouts", self.url)).header("accept", "application/x-ndjson");
        let streamed = Streamed::read(&request.json(&job(2, 2, 6, json!({}))).send().await.unwrap().text().await.unwrap());
        assert_eq!(streamed.job["weights_version"], version);
        assert!(spans(&streamed).iter().all(|spans| spans[..] == [(version, 6)]), "it draws {} for certain", token_of(version));
        version
    }

    pub async fn until(&self, what: &str, mut met: impl AsyncFnMut(&Process) -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !met(self).await {
            assert!(Instant::now() < until, "did not happen: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn died(&mut self) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

pub fn setup() -> (tempfile::TempDir, PathBuf) {
    let model = folder(&TinyModel::default());
    write_safetensors(&model.path().join("model.safetensors"), &naming(0));
    let store = model.path().join("jobs.db");
    (model, store)
}

pub fn files(store: &Path) -> Vec<String> {
    let dir = PathBuf::from(format!("{}.weights", store.display()));
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

pub async fn score(process: &Process, id: &str) {
    process
        .until("samples wait for scores", async |process| {
            process.get(&format!("/v1/rollouts/{id}/pending")).await.1["samples"].as_array().is_some_and(|samples| samples.len() == 2)
        })
        .await;
    let (status, answer) = process.post(&format!("/v1/rollouts/{id}/scores"), &scores()).await;
    assert_eq!(status, 200, "{answer}");
}

pub async fn versions(process: &Process, id: &str) -> Vec<Vec<(u64, u64)>> {
    let text = process.client.get(format!("{}/v1/rollouts/{id}/events", process.url)).send().await.unwrap().text().await.unwrap();
    spans(&Streamed::read(&text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_around_a_commit_a_restart_serves_what_was_committed() {
    // (point, visit, whether the push was committed)
    for (point, committed) in [
        ("weights.after_file:2", false),
        ("weights.before_commit:2", false),
        ("weights.after_commit:2", true),
        ("weights.after_swap:2", true),
    ] {
        let (model, store) = setup();
        let mut dying = Process::start(model.path(), &store, Some(point));
        assert_eq!(dying.put("version=1", 1).await.unwrap().0, 200, "{point}");
        assert_eq!(dying.put("version=2", 2).await, None, "{point}: nobody was told");
        assert!(dying.died(), "{point}");
        drop(dying);
        let again = Process::start(model.path(), &store, None);
        assert_eq!(again.serves().await, if committed { 2 } else { 1 }, "{point}");
        assert_eq!(files(&store).len(), if committed { 2 } else { 1 }, "{point}: nothing half done is left: {:?}", files(&store));
        // The trainer that heard nothing pushes again.
        let (status, answer) = again.put("version=2", 2).await.unwrap();
        assert_eq!((status, &answer["unchanged"]), (200, &json!(committed)), "{point}: {answer}");
        assert_eq!(again.serves().await, 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_serves_the_version_that_open_jobs_pin_and_stages_the_newer_one() {
    let (model, store) = setup();
    let first = Process::start(model.path(), &store, None);
    first.put("version=1", 1).await.unwrap();
    first.post("/v1/rollouts", &held("old", json!({}))).await;
    first.put("version=2&async=true", 2).await.unwrap();
    first.until("the push waits", async |process| process.get("/v1/weights").await.1["staged"] == 2).await;
    let (_, new) = first.post("/v1/rollouts", &held("new", json!({}))).await;
    assert_eq!(new["weights_version"], 2);
    drop(first);

    let second = Process::start(model.path(), &store, None);
    let (_, weights) = second.get("/v1/weights").await;
    assert_eq!((&weights["version"], &weights["staged"]), (&json!(1), &json!(2)), "{weights}");
    assert_eq!(second.get("/v1/rollouts/new").await.1["state"], "queued");
    score(&second, "old").await;
    second.until("the newer version serves", async |process| process.get("/v1/weights").await.1["version"] == 2).await;
    second.until("and says so", async |process| process.get("/v1/weights").await.1["last"]["state"] == "done").await;
    assert!(versions(&second, "old").await.iter().all(|spans| spans[..] == [(1, 8)]));
    second.until("its job runs", async |process| process.get("/v1/rollouts/new").await.1["state"] == "running").await;
    drop(second);

    // The file that an open job needs is gone.
    for file in files(&store).into_iter().filter(|file| file.starts_with("v2-")) {
        std::fs::remove_file(format!("{}.weights/{file}", store.display())).unwrap();
    }
    let third = Process::start(model.path(), &store, None);
    let (status, ready) = third.get("/readyz").await;
    assert_eq!((status, &ready["error"]["code"]), (503, &json!("needs_weights")), "{ready}");
    assert_eq!(third.get("/v1/weights").await.1["needed"], 2);
    assert_eq!(third.get("/v1/rollouts/new").await.1["state"], "queued");
    assert_eq!(third.serves().await, 1, "other jobs run under what is there");
    let (status, answer) = third.put("version=2", 2).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(third.get("/readyz").await.0, 200);
    score(&third, "new").await;
    assert!(versions(&third, "new").await.iter().all(|spans| spans[..] == [(2, 8)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_two_versions_are_kept_and_those_that_jobs_pin() {
    let (model, store) = setup();
    let process = Process::start(model.path(), &store, None);
    process.put("version=1", 1).await.unwrap();
    process.post("/v1/rollouts", &held("open", json!({"on_weight_update": "continue"}))).await;
    for version in 2..=5 {
        process.put(&format!("version={version}"), version).await.unwrap();
    }
    let kept: Vec<String> = files(&store).iter().map(|name| name.split('-').next().unwrap().to_owned()).collect();
    assert_eq!(kept, ["v1", "v4", "v5"]);
    process.ask(process.client.delete(format!("{}/v1/rollouts/open", process.url))).await.unwrap();
    process.put("version=4&rollback=true", 4).await.unwrap();
    let kept: Vec<String> = files(&store).iter().map(|name| name.split('-').next().unwrap().to_owned()).collect();
    assert_eq!(kept, ["v4", "v5"]);
    drop(process);
    // The last one committed is the one that was gone back to.
    let again = Process::start(model.path(), &store, None);
    assert_eq!(again.serves().await, 4);
    // A part is built on the kept file.
    let head = naming(9).into_iter().find(|tensor| tensor.name == "lm_head.weight").unwrap();
    let put = again.client.put(format!("{}/v1/weights?version=9&base=4", again.url)).body(bytes(&[head]));
    let (status, answer) = again.ask(put).await.unwrap();
    assert_eq!(status, 200, "{answer}");
    drop(again);
    assert_eq!(Process::start(model.path(), &store, None).serves().await, 9);
}
