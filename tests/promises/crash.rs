//! Promise 3: nothing is lost. The real binary is killed (SIGKILL) at every failpoint and at random moments of a job of 32 prompts; after the
//! next start the job completes, and its groups are those of an undisturbed run, byte for byte, `timing` aside.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fake_engine::mix;
use crate::server_kit::client;
use crate::tiny_model::{TinyModel, tiny_model};

/// A server process over a store.
struct Process {
    child: Child,
    url: String,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A random model with a tokenizer of 64 letters, and a place for stores.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        std::fs::create_dir(&model).unwrap();
        tiny_model(&model, &TinyModel { hidden_size: 64, head_dim: 16, ..TinyModel::default() });
        let letters: Vec<char> = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain(['-', '+']).collect();
        let vocab: serde_json::Map<String, Value> = letters.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                      "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
        });
        std::fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        Bench { dir }
    }

    fn store(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, store: &Path, failpoint: Option<&str>) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
        command
            .args(["serve", "--device", "cpu", "--port", "0", "--threads", "1", "--model"])
            .arg(self.dir.path().join("model"))
            .arg("--store")
            .arg(store);
        command.stderr(Stdio::piped()).stdout(Stdio::null()).env("ADAROLL_LOG", "info");
        match failpoint {
            Some(failpoint) => command.env("ADAROLL_FAILPOINT", failpoint),
            None => command.env_remove("ADAROLL_FAILPOINT"),
        };
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
        // The pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Process { child, url, client: client(), runtime: tokio::runtime::Runtime::new().unwrap() }
    }
}

impl Process {
    fn post(&self, body: &Value) -> Result<u16, reqwest::Error> {
        let request = self.client.post(format!("{}/v1/rollouts", self.url)).header("content-type", "application/json");
        Ok(self.runtime.block_on(request.body(body.to_string()).send())?.status().as_u16())
    }

    fn get(&self, path: &str) -> Result<(u16, Value), reqwest::Error> {
        self.runtime.block_on(async {
            let response = self.client.get(format!("{}{path}", self.url)).send().await?;
            let status = response.status().as_u16();
            Ok((status, serde_json::from_str(&response.text().await?).unwrap()))
        })
    }

    /// Waits for the job's end and gives its groups without their timing.
    fn finished(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let (status, job) = self.get("/v1/rollouts/the-job").unwrap();
            assert_eq!(status, 200, "{job}");
            if job["state"] == "done" {
                break;
            }
            assert!(job["state"] == "running" || job["state"] == "queued", "{job}");
            assert!(Instant::now() < deadline, "{job}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (_, page) = self.get("/v1/rollouts/the-job/groups").unwrap();
        let without_timing = |group: &Value| {
            let mut group = group.clone();
            assert!(group.as_object_mut().unwrap().remove("timing").is_some());
            group.to_string()
        };
        page["groups"].as_array().unwrap().iter().map(without_timing).collect()
    }

    fn died(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

/// 32 prompts; an answer is right if its text holds one of two letters before it ends.
fn body() -> Value {
    let prompt = |i: u32| json!({"token_ids": [i % 64, (i * 7) % 64, 3], "reward": {"kind": "regex", "pattern": "[xyz]"}});
    json!({
        "job_id": "the-job", "seed": 11, "prompts": (0..32).map(prompt).collect::<Vec<_>>(),
        "strategy": {"kind": "sequential", "exit": "balance", "group_size": 4, "max_samples": 32},
        "sampling": {"max_tokens": 100, "stop_token_ids": [0, 1, 2], "temperature": 1.0},
        "return": {"logprobs_raw": true, "all_samples": true},
    })
}

#[test]
fn killed_at_every_failpoint_and_at_random_moments() {
    let bench = Bench::new();
    let body = body();
    let undisturbed = bench.start(&bench.store("undisturbed.db"), None);
    let began = Instant::now();
    assert_eq!(undisturbed.post(&body).unwrap(), 202);
    let reference = undisturbed.finished();
    let took = began.elapsed();
    drop(undisturbed);
    assert_eq!(reference.len(), 32);
    let signals = reference.iter().filter(|group| group.contains("\"signal\":true")).count();
    assert!((8..=32).contains(&signals), "prompts of mixed difficulty: {signals} with a signal");

    let points = [
        "job.before_commit",
        "job.after_commit",
        "samples.before_commit:60",
        "samples.after_commit:150",
        "group.before_commit:9",
        "group.after_commit:20",
        "close.before_commit",
        "close.after_commit",
    ];
    for point in points {
        let store = bench.store(&format!("{}.db", point.replace([':', '.'], "-")));
        let mut dying = bench.start(&store, Some(point));
        let answer = dying.post(&body);
        assert!(dying.died(Duration::from_secs(60)), "{point} was not reached: {answer:?}");
        drop(dying);
        let again = bench.start(&store, None);
        let there = again.get("/v1/rollouts/the-job").unwrap().0;
        assert_eq!(there, if point == "job.before_commit" { 404 } else { 200 }, "{point}: exactly what was committed is there");
        // The client that heard nothing asks again; it attaches, or starts the job that was never accepted.
        assert_eq!(again.post(&body).unwrap(), 202);
        assert_eq!(again.finished(), reference, "{point}");
    }

    // Random moments, several deaths in one job.
    let rounds: u64 = std::env::var("ADAROLL_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let mut deaths = 0;
    for round in 0..rounds {
        let store = bench.store(&format!("random-{round}.db"));
        for death in 0..3 {
            let process = bench.start(&store, None);
            process.post(&body).unwrap();
            let open = process.get("/v1/rollouts/the-job").unwrap().1["state"] != "done";
            std::thread::sleep(took.mul_f64((mix(&[round, death]) % 1000) as f64 / 1500.0));
            deaths += u64::from(open);
            drop(process);
        }
        assert_eq!(bench.start(&store, None).finished(), reference, "round {round}");
    }
    println!("{} failpoints, {deaths} deaths at random moments of a job of {took:?}, the same groups", points.len());
}
