//! What goes wrong with cards: none there, too little memory, one that is lost. Each is one sentence, and a job in flight stays journaled.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::assets::data;
use crate::emulator::{Card, card, folder, joined};
use crate::engine::shipped;
use crate::kit::trial;
use crate::tiny_model::{TinyModel, tiny_model};

pub fn trials() -> Vec<Trial> {
    let mut trials = vec![trial("serve::a_small_job_end_to_end", small_job)];
    trials.extend([
        trial("faults::weights_that_are_rounded_are_said_to_be", rounding),
        trial("faults::a_head_size_without_a_kernel_is_refused", head_size),
        trial("faults::the_check_says_what_would_compute", checked),
    ]);
    if card() == Card::Emulated {
        trials.extend([
            trial("faults::without_a_driver_the_cpu_runs_and_says_why", no_driver),
            trial("faults::without_a_card_the_cpu_runs_and_says_why", no_card),
            trial("faults::a_card_that_is_not_there_is_said_so", no_such_card),
            trial("faults::too_little_memory_is_said_with_its_purpose", no_memory),
            trial("faults::a_job_survives_a_lost_card", lost),
        ]);
    }
    trials
}

/// The binary with the emulated card, or with what the caller puts in its place.
fn adaroll() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
    command.env("ADAROLL_LOG", "info");
    if card() == Card::Emulated {
        command.env("LD_LIBRARY_PATH", joined(&folder()));
    }
    if let Some(kernels) = shipped() {
        command.env("ADAROLL_KERNELS", kernels);
    }
    command
}

fn generate(device: &str, change: impl FnOnce(&mut Command)) -> Output {
    let prompts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(prompts.path(), "{\"token_ids\": [5, 6, 7]}\n").unwrap();
    let mut command = adaroll();
    command.args(["generate", "--device", device, "--prompts"]).arg(prompts.path()).args(["--max-tokens", "3", "--json"]);
    change(&mut command);
    command.output().unwrap()
}

fn with_model(command: &mut Command) {
    command.arg("--model").arg(data("golden/llama-gqa1"));
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn falls_back(reason: &str, change: impl Fn(&mut Command)) {
    let change = |command: &mut Command| {
        with_model(command);
        change(command);
    };
    let auto = generate("auto", change);
    assert!(auto.status.success(), "{}", said(&auto));
    assert!(said(&auto).contains(reason), "auto was to say {reason:?}: {}", said(&auto));
    let asked = generate("cuda", change);
    assert!(!asked.status.success() && said(&asked).contains(reason), "cuda was to say {reason:?}: {}", said(&asked));
    let cpu = generate("cpu", change);
    assert!(cpu.status.success() && !said(&cpu).contains(reason), "the CPU needs no driver: {}", said(&cpu));
    assert_eq!(auto.stdout, cpu.stdout, "auto fell back to the CPU");
}

fn no_driver() {
    falls_back("there is no CUDA driver on this machine", |command| {
        command.env_remove("LD_LIBRARY_PATH");
    });
}

fn no_card() {
    falls_back("the CUDA driver cannot be used", |command| {
        command.env("ADAROLL_EMULATOR_NO_DEVICE", "1");
    });
}

fn rounding() {
    for (name, said_so) in [("llama-f16-sharded", "the weights are F16"), ("qwen3-head128", "the weights are F32")] {
        let output = generate("cuda", |command| {
            command.arg("--model").arg(data("golden").join(name));
        });
        let text = said(&output);
        assert!(output.status.success() && text.contains(said_so) && text.contains("rounded to BF16"), "{name}: {text}");
    }
    let text = said(&generate("cuda", with_model));
    assert!(!text.contains("rounded"), "bf16 is not rounded: {text}");
}

/// A model of a head size that no kernel is made for: `cuda` refuses it with the sizes there are, `auto` takes the CPU and says why.
fn head_size() {
    let dir = tempfile::tempdir().unwrap();
    tiny_model(dir.path(), &TinyModel { head_dim: 24, ..TinyModel::default() });
    let with = |command: &mut Command| {
        command.arg("--model").arg(dir.path());
    };
    let sentence = "no attention for heads of 24 values, only of 16, 32, 64, 80, 96, 128, 256";
    let asked = generate("cuda", with);
    assert!(!asked.status.success() && said(&asked).contains(sentence), "{}", said(&asked));
    let auto = generate("auto", with);
    assert!(auto.status.success() && said(&auto).contains(sentence), "{}", said(&auto));
}

fn checked() {
    let model = model();
    for (device, words) in [("cuda", "device: cuda:0 "), ("cpu", "device: cpu"), ("cuda:9", "there is no GPU 9")] {
        let mut command = adaroll();
        command.args(["serve", "--check", "--port", "0", "--device", device, "--store", ":memory:", "--model"]).arg(model.path());
        let output = command.output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), said(&output));
        assert!(text.contains(words), "{device}: {text}");
        assert_eq!(output.status.success(), device != "cuda:9", "{text}");
    }
}

fn no_such_card() {
    let output = generate("cuda:3", with_model);
    assert!(!output.status.success() && said(&output).contains("there is no GPU 3: this machine has 1"), "{}", said(&output));
    let output = generate("gpu", with_model);
    assert!(!output.status.success() && said(&output).contains("give auto, cpu, cuda, or cuda:N"), "{}", said(&output));
}

fn no_memory() {
    for (bytes, what) in [("20000000", "no room for the weights"), ("200000000", "no room for the KV cache")] {
        let output = generate("cuda", |command| {
            with_model(command);
            command.env("ADAROLL_EMULATOR_MEMORY", bytes).args(["--kv-blocks", "10000000"]);
        });
        let text = said(&output);
        assert!(!output.status.success() && text.contains(what) && text.contains("are free"), "{bytes} bytes: {text}");
    }
}

/// A server of this store.
struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(model: &Path, store: &Path, change: impl FnOnce(&mut Command)) -> Server {
        let mut command = adaroll();
        command.args(["serve", "--device", "cuda", "--port", "0", "--kv-blocks", "256", "--model"]).arg(model).arg("--store").arg(store);
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        change(&mut command);
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
        Server { child, url }
    }
}

/// What a client asks, in its own small runtime.
fn ask<T>(work: impl AsyncFnOnce(reqwest::Client) -> T) -> T {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work(reqwest::Client::new()))
}

fn get(url: &str) -> Value {
    ask(async |client| client.get(url).send().await.unwrap().json().await.unwrap())
}

fn job(id: &str, prompts: usize, tokens: u32) -> Value {
    let prompt = |i: usize| json!({"token_ids": (0..9 + i).map(|t| 3 + (t * 5 + i) % 40).collect::<Vec<_>>(), "reward": {"kind": "regex", "pattern": "[a-m]"}});
    json!({
        "job_id": id, "seed": 7, "prompts": (0..prompts).map(prompt).collect::<Vec<_>>(),
        "strategy": {"kind": "sequential", "exit": "signal", "group_size": 4, "max_samples": 8},
        "sampling": {"max_tokens": tokens}, "return": {"text": true, "logprobs": true}
    })
}

fn submit(server: &Server, body: &Value) -> Value {
    ask(async |client| {
        let response = client.post(format!("{}/v1/rollouts", server.url)).json(body).send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert!(status == 200 || status == 202, "{status}: {text}");
        serde_json::from_str(&text).unwrap()
    })
}

/// The groups of a job that is done, without what depends on time.
fn groups(server: &Server, id: &str) -> Vec<String> {
    let text =
        ask(async |client| client.get(format!("{}/v1/rollouts/{id}/events", server.url)).send().await.unwrap().text().await.unwrap());
    let lines: Vec<&str> = text.lines().filter(|l| l.contains("\"prompt_id\"")).collect();
    assert!(text.contains("\"done\""), "the job was to be done: {text}");
    lines.iter().map(|line| line.split_once(",\"timing\":{").expect("timing stands last").0.to_owned()).collect()
}

/// A model with a tokenizer, so that verifiers have text to read.
fn model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(data("golden/llama-gqa1")).unwrap().flatten() {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    let piece = |id: u32| char::from_u32(if id < 26 { 'a' as u32 + id } else { 0x100 + id }).unwrap().to_string();
    let vocab: serde_json::Map<String, Value> = (0..320).map(|id| (piece(id), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

/// A job over HTTP on the card: groups come in order, the state names the card, the same job gives the same bytes.
fn small_job() {
    let model = model();
    let store = model.path().join("jobs.db");
    let server = Server::start(model.path(), &store, |_| {});
    let state = get(&format!("{}/v1/state", server.url));
    let info = &state["engine"]["info"];
    assert!(info["device"].as_str().unwrap().starts_with("cuda:0 "), "{info}");
    assert_eq!(info["why_not_cuda"], Value::Null);
    assert!(info["numerics_id"].as_str().unwrap().starts_with("cuda-bf16-"), "{info}");
    submit(&server, &job("one", 4, 8));
    submit(&server, &job("two", 4, 8));
    let (one, two) = (groups(&server, "one"), groups(&server, "two"));
    assert_eq!(one.len(), 4);
    assert_eq!(one, two, "the same job, the same bytes");
}

/// The card is lost in the middle of a job: the server says so and takes no more; the next server of this store ends the job with the bytes that a
/// server gives whose card was never lost.
fn lost() {
    let model = model();
    let expected = {
        let server = Server::start(model.path(), &model.path().join("other.db"), |_| {});
        submit(&server, &job("j", 6, 24));
        groups(&server, "j")
    };
    let store = model.path().join("jobs.db");
    {
        let server = Server::start(model.path(), &store, |command| {
            command.env("ADAROLL_EMULATOR_LOSE_AFTER", "300");
        });
        submit(&server, &job("j", 6, 24));
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            let ready = ask(async |client| client.get(format!("{}/readyz", server.url)).send().await.unwrap().text().await.unwrap());
            if ready.contains("GPU") {
                break;
            }
            assert!(Instant::now() < until, "the lost card was to be said: {ready}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let server = Server::start(model.path(), &store, |_| {});
    assert_eq!(groups(&server, "j"), expected);
}
