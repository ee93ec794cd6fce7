//! The loop through the real binary, a server process and a trainer process over the tiny model.
//!
//! Promise 2: on samples of the current version the trainer's log-probabilities are the sampler's, to the bit, at every step. Promise 3: a run
//! that is killed, whichever process and whenever, ends with the bytes of an undisturbed one: metrics.jsonl and the trained model.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adaroll::commands::demo::Arm;
use adaroll::commands::demo::run::Plan;
use adaroll::commands::device::DeviceChoice;
use adaroll::demo::task::Mix;
use adaroll::failpoint::Point;
use adaroll::model::Dtype;
use adaroll::trainer::settings::{EvalKind, Settings};
use serde_json::Value;

use crate::fake_engine::mix;
use crate::server_kit::client;
use crate::tiny_model::{RawTensor, read_tensors, write_safetensors};

/// A run in a folder of its own.
struct Bench {
    dir: tempfile::TempDir,
    port: u16,
    settings: Settings,
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn over(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Bench {
    fn new(steps: u64, change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let plan = Plan {
            arm: Arm::Pos1M1N8,
            seed: 3,
            lr: 1e-3,
            steps,
            samples: 0,
            samples_per_step: 96,
            prompts_per_step: 0,
            eval_every: 4,
            mix: Mix::TRAIN,
            dir: dir.path().to_owned(),
            port,
            threads: 1,
            device: DeviceChoice::Cpu,
        };
        plan.prepare().unwrap();
        std::fs::create_dir(dir.path().join("shared")).unwrap();
        let mut settings = plan.settings(&format!("http://127.0.0.1:{port}"));
        settings.checkpoint.every = 3;
        change(&mut settings);
        std::fs::write(dir.path().join("train.toml"), toml_of(&settings)).unwrap();
        Bench { dir, port, settings }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn spawn(&self, arguments: &[&str], log: &str, failpoint: Option<&str>) -> Process {
        let out = std::fs::OpenOptions::new().create(true).append(true).open(self.path(log)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
        match failpoint {
            Some(failpoint) => command.env("ADAROLL_FAILPOINT", failpoint),
            None => command.env_remove("ADAROLL_FAILPOINT"),
        };
        // Where weights may come from as files.
        command.env("ADAROLL_WEIGHTS_ROOTS", self.path("shared"));
        Process(command.spawn().unwrap())
    }

    fn server(&self, failpoint: Option<&str>) -> Process {
        let port = self.port.to_string();
        self.spawn(
            &["serve", "--device", "cpu", "--model", "model", "--store", "server.db", "--threads", "1", "--port", &port],
            "server.log",
            failpoint,
        )
    }

    fn trainer(&self, failpoint: Option<&str>) -> Process {
        self.spawn(&["train", "--config", "train.toml"], "trainer.log", failpoint)
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits for a process to end by itself.
    fn wait(&self, process: &mut Process, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while !process.over() {
            assert!(Instant::now() < deadline, "{what} goes on:\n{}\n{}", self.log("trainer.log"), self.log("server.log"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A trainer that gets to the end.
    fn train(&self) {
        let mut trainer = self.trainer(None);
        self.wait(&mut trainer, "the trainer");
        assert!(trainer.0.wait().unwrap().success(), "{}\n{}", self.log("trainer.log"), self.log("server.log"));
    }

    /// What a run leaves: metrics.jsonl and the model.
    fn left(&self) -> (String, Vec<u8>) {
        let run = &self.settings.run.dir;
        (std::fs::read_to_string(run.join("metrics.jsonl")).unwrap(), std::fs::read(run.join("model/model.safetensors")).unwrap())
    }

    fn undisturbed(&self) -> (String, Vec<u8>) {
        let _server = self.server(None);
        self.train();
        self.left()
    }
}

/// Rounds the model of a run.
fn in_bf16(path: &Path) {
    let round = |tensor: RawTensor| {
        let numbers: Vec<f32> = tensor.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        RawTensor::new(tensor.name, Dtype::Bf16, tensor.shape, &numbers)
    };
    let rounded: Vec<RawTensor> = read_tensors(path).into_iter().map(round).collect();
    write_safetensors(path, &rounded);
}

fn toml_of(settings: &Settings) -> String {
    toml::to_string(settings).unwrap()
}

/// The lines of a kind.
fn lines(metrics: &str, kind: &str) -> Vec<Value> {
    metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).filter(|line| line["kind"] == kind).collect()
}

/// metrics.jsonl from the same settings in another folder is the same; paths are not in it.
fn assert_same(got: &(String, Vec<u8>), want: &(String, Vec<u8>), what: &str) {
    for (i, (got, want)) in got.0.lines().zip(want.0.lines()).enumerate() {
        assert_eq!(got, want, "{what}: line {i} of metrics.jsonl");
    }
    assert_eq!(got.0.len(), want.0.len(), "{what}: the length of metrics.jsonl");
    assert!(got.1 == want.1, "{what}: the trained weights");
}

fn assert_exact(metrics: &str, steps: usize) {
    let steps_seen = lines(metrics, "train");
    assert_eq!(steps_seen.len(), steps);
    for line in &steps_seen {
        assert_eq!(line["training/rollout_logprobs_diff_max"], 0, "{line}");
        assert_eq!(line["training/rollout_probs_diff_max"], 0, "{line}");
        assert!(line["ada/rows_total"].as_u64().unwrap() > 0, "{line}");
    }
}

#[test]
fn a_run_killed_anywhere_ends_with_the_bytes_of_an_undisturbed_one() {
    let kills = std::env::var("ADAROLL_TEST_KILLS").ok().and_then(|n| n.parse::<u64>().ok());
    let steps = if kills.is_some() { 12 } else { 6 };
    let began = Instant::now();
    let reference = Bench::new(steps, |_| {}).undisturbed();
    let took = began.elapsed();
    assert_exact(&reference.0, steps as usize);
    let (first, last) = (&lines(&reference.0, "eval")[0], lines(&reference.0, "eval").pop().unwrap());
    assert_ne!(first["eval/pass@1"], last["eval/pass@1"], "something is learned");

    // The trainer dies at each of its failpoints; the server lives, or dies with it.
    let points: Vec<Point> = Point::ALL.into_iter().filter(|point| point.is_of_the_trainer()).collect();
    assert_eq!(points.len(), 8);
    for (i, point) in points.iter().enumerate() {
        let bench = Bench::new(steps, |_| {});
        let plan = format!("{}:{}", point.name(), if point.name().starts_with("checkpoint.") { 1 } else { 2 + i % 4 });
        let mut server = bench.server(None);
        let mut dying = bench.trainer(Some(&plan));
        bench.wait(&mut dying, &plan);
        assert!(bench.log("trainer.log").contains(point.name()), "{plan} was not reached:\n{}", bench.log("trainer.log"));
        if i % 2 == 1 {
            drop(server);
            server = bench.server(None);
        }
        bench.train();
        drop(server);
        assert_same(&bench.left(), &reference, &plan);
    }

    // The server dies; the trainer waits for the next one.
    for plan in ["job.after_commit:3", "samples.after_commit:200", "group.before_commit:60", "close.before_commit:4"] {
        let bench = Bench::new(steps, |_| {});
        let mut dying = bench.server(Some(plan));
        let mut trainer = bench.trainer(None);
        bench.wait(&mut dying, plan);
        assert!(bench.log("server.log").contains(plan.split(':').next().unwrap()), "{plan} was not reached:\n{}", bench.log("server.log"));
        let _server = bench.server(None);
        bench.wait(&mut trainer, "the trainer");
        assert!(trainer.0.wait().unwrap().success(), "{}", bench.log("trainer.log"));
        assert_same(&bench.left(), &reference, plan);
    }

    // Random moments: trainer, server, both in turn, several times in one run.
    let rounds = kills.unwrap_or(1);
    let mut deaths = 0;
    for round in 0..rounds {
        let bench = Bench::new(steps, |_| {});
        let (mut server, mut trainer) = (bench.server(None), bench.trainer(None));
        for death in 0..3 {
            std::thread::sleep(took.mul_f64((mix(&[round, death]) % 1000) as f64 / 2000.0));
            let which = mix(&[round, death, 1]) % 3;
            deaths += u64::from(!trainer.over());
            if which != 0 {
                drop(server);
                server = bench.server(None);
            }
            if which != 1 {
                drop(trainer);
                trainer = bench.trainer(None);
            }
        }
        bench.wait(&mut trainer, "the trainer");
        drop(trainer);
        bench.train();
        assert_same(&bench.left(), &reference, &format!("round {round}"));
        drop(server);
    }
    println!(
        "a run of {took:?}: {} failpoints of the trainer, 4 of the server, {deaths} deaths at random moments, the same bytes",
        points.len()
    );
}

#[test]
fn adapters_on_rounded_weights_train_with_the_samplers_bits() {
    let lora = |settings: &mut Settings| {
        settings.lora.rank = 4;
        settings.optimizer.lr = 5e-3;
        settings.model.serving_dtype = "BF16".into();
    };
    let bench = Bench::new(4, lora);
    in_bf16(&bench.path("model/model.safetensors"));
    let reference = bench.undisturbed();
    let trained = read_tensors(&bench.settings.run.dir.join("model/model.safetensors"));
    assert!(trained.iter().all(|tensor| tensor.dtype == "BF16"), "what was pushed is rounded");
    assert_exact(&reference.0, 4);
    let (first, last) = (&lines(&reference.0, "eval")[0], lines(&reference.0, "eval").pop().unwrap());
    assert_ne!(first["eval/pass@1"], last["eval/pass@1"], "the adapters learn");
    // After a resume too.
    let again = Bench::new(4, lora);
    in_bf16(&again.path("model/model.safetensors"));
    let _server = again.server(None);
    let mut dying = again.trainer(Some("train.after_update:4"));
    again.wait(&mut dying, "the trainer");
    again.train();
    assert_same(&again.left(), &reference, "adapters after a resume");
}

#[test]
fn one_step_ahead_is_reproducible_and_says_how_stale_it_is() {
    let ahead = |settings: &mut Settings| {
        settings.rollout.ahead = 1;
        // Enough that every step has something to learn from.
        settings.rollout.samples_per_step = 320;
        settings.update.epochs = 2;
        settings.update.mini_batch_groups = 8;
    };
    let reference = Bench::new(5, ahead).undisturbed();
    let steps = lines(&reference.0, "train");
    let staleness: Vec<u64> = steps.iter().map(|line| line["ada/staleness"].as_u64().unwrap()).collect();
    assert_eq!(staleness, [0, 1, 1, 1, 1]);
    // A step that is stale has another policy than its sampler: the difference is there, and reported.
    assert_eq!(steps[0]["training/rollout_probs_diff_max"], 0);
    let differs = |line: &&Value| line["training/rollout_probs_diff_max"].as_f64().is_some_and(|most| most > 0.0);
    assert!(steps[1..].iter().filter(differs).count() >= 2, "{}", reference.0);
    let updates = |line: &Value| line["ada/updates_total"].as_u64().unwrap();
    assert!(steps.iter().any(|line| updates(line) >= 2) && updates(&steps[4]) > 5, "several updates a step: {}", reference.0);
    assert_same(&Bench::new(5, ahead).undisturbed(), &reference, "the same run again");
    let bench = Bench::new(5, ahead);
    let _server = bench.server(None);
    let mut dying = bench.trainer(Some("train.after_push:5"));
    bench.wait(&mut dying, "the trainer");
    bench.train();
    assert_same(&bench.left(), &reference, "after a resume");
}

/// Weights through a shared file instead of the connection, an evaluation by sampling, and the trainer's own metrics: the training is the same.
#[test]
fn other_ways_of_pushing_and_evaluating_change_no_step() {
    let http = Bench::new(4, |_| {}).undisturbed();
    let listen = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string();
    let bench = Bench::new(4, |settings| {
        settings.eval.kind = EvalKind::Sampled;
        settings.eval.samples = 4;
        settings.eval.k = vec![1, 4];
        settings.metrics.listen.clone_from(&listen);
    });
    let mut settings = bench.settings.clone();
    settings.server.shared_dir = bench.path("shared");
    std::fs::write(bench.path("train.toml"), toml_of(&settings)).unwrap();
    let _server = bench.server(None);
    let mut trainer = bench.trainer(None);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut seen = String::new();
    while !trainer.over() {
        let text = runtime.block_on(async { client().get(format!("http://{listen}/metrics")).send().await?.text().await });
        seen = text.unwrap_or(seen);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(trainer.0.wait().unwrap().success(), "{}\n{}", bench.log("trainer.log"), bench.log("server.log"));
    let got = bench.left();
    assert_eq!(lines(&got.0, "train"), lines(&http.0, "train"));
    assert!(got.1 == http.1, "the trained weights");
    assert_eq!(std::fs::read_dir(bench.path("shared")).unwrap().count(), 0, "nothing is left in the shared folder");
    // What comes over the connection takes time to be received.
    let log = bench.log("server.log");
    let (pushes, files) = (log.matches("weights serve").count(), log.matches("receive: 0.0,").count());
    assert!(pushes >= 4 && files == pushes, "{files} of {pushes} pushes came as files: {log}");
    for name in ["trainer_critic_score_mean", "trainer_training_rollout_probs_diff_max 0", "trainer_timing_s_gen"] {
        assert!(seen.contains(name), "{name} is not in\n{seen}");
    }
    // Sampled pass rates are those of the exact evaluation within their noise: 256 problems a slice, 4 samples each.
    for (exact, sampled) in lines(&http.0, "eval").iter().zip(lines(&got.0, "eval")) {
        for slice in ["easy", "hard"] {
            let name = format!("eval/pass@1/{slice}");
            let (p, q) = (exact[&name].as_f64().unwrap(), sampled[&name].as_f64().unwrap());
            let error = (p * (1.0 - p) / 1024.0).sqrt();
            assert!((p - q).abs() < 5.0 * error + 1e-3, "{name}: exact {p}, sampled {q}");
            assert!(sampled[format!("eval/pass@4/{slice}")].as_f64().unwrap() >= q);
        }
    }
}

/// Every server of `server.engines` ends with the version and the bytes of the first one, and one that takes no push ends the run.
#[test]
fn every_push_goes_to_every_engine() {
    let reference = Bench::new(3, |_| {}).undisturbed();
    let free_port = || std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let bench = Bench::new(3, |_| {});
    let port = free_port();
    let mut settings = bench.settings.clone();
    settings.server.engines = vec![format!("http://127.0.0.1:{port}")];
    std::fs::write(bench.path("train.toml"), toml_of(&settings)).unwrap();
    let _server = bench.server(None);
    let text = port.to_string();
    let _engine = bench.spawn(
        &["serve", "--device", "cpu", "--model", "model", "--store", "engine.db", "--threads", "1", "--port", &text],
        "engine.log",
        None,
    );
    bench.train();
    assert_same(&bench.left(), &reference, "with another engine");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let live = |port: u16| {
        let text = runtime
            .block_on(async { client().get(format!("http://127.0.0.1:{port}/v1/weights")).send().await.unwrap().text().await.unwrap() });
        let weights: Value = serde_json::from_str(&text).unwrap();
        (weights["version"].as_u64(), weights["digest"].as_str().map(str::to_owned))
    };
    let (first, second) = (live(bench.port), live(port));
    assert_eq!(first.0, Some(4), "three steps");
    assert!(first.1.is_some());
    assert_eq!(first, second);

    let bench = Bench::new(3, |settings| settings.server.patience_s = 1);
    let mut settings = bench.settings.clone();
    let nobody = free_port();
    settings.server.engines = vec![format!("http://127.0.0.1:{nobody}")];
    std::fs::write(bench.path("train.toml"), toml_of(&settings)).unwrap();
    let _server = bench.server(None);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !bench.log("server.log").contains("serving") {
        assert!(Instant::now() < deadline, "{}", bench.log("server.log"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut trainer = bench.trainer(None);
    bench.wait(&mut trainer, "a run without one of its engines");
    let log = bench.log("trainer.log");
    assert!(!trainer.0.wait().unwrap().success() && log.contains("gave up") && log.contains(&nobody.to_string()), "{log}");
}

/// Whoever cancels a job of a run takes its id for good; the run goes on with the same samples under another.
#[test]
fn a_job_that_someone_cancels_is_asked_for_again() {
    let reference = Bench::new(4, |_| {}).undisturbed();
    let bench = Bench::new(4, |_| {});
    let _server = bench.server(None);
    let mut trainer = bench.trainer(None);
    let url = format!("http://127.0.0.1:{}", bench.port);
    let deadline = Instant::now() + Duration::from_secs(60);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cancelled = runtime.block_on(async {
        while !bench.log("server.log").contains("weights serve") {
            assert!(Instant::now() < deadline, "{}", bench.log("trainer.log"));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Paused, so that the job is still there when it is cancelled.
        client().post(format!("{url}/v1/pause")).json(&serde_json::json!({})).send().await.unwrap();
        let job = loop {
            assert!(Instant::now() < deadline, "{}", bench.log("trainer.log"));
            let text = client().get(format!("{url}/v1/rollouts")).send().await.unwrap().text().await.unwrap();
            let jobs: Value = serde_json::from_str(&text).unwrap();
            let open = |job: &&Value| ["queued", "running"].contains(&job["state"].as_str().unwrap());
            if let Some(job) = jobs["jobs"].as_array().unwrap().iter().find(open) {
                break job["job_id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        client().delete(format!("{url}/v1/rollouts/{job}")).send().await.unwrap();
        client().post(format!("{url}/v1/resume")).json(&serde_json::json!({})).send().await.unwrap();
        job
    });
    bench.wait(&mut trainer, "the trainer");
    assert!(bench.log("trainer.log").contains("asked for again"), "{cancelled}: {}", bench.log("trainer.log"));
    assert_same(&bench.left(), &reference, "a cancelled job");
}

/// What is left at the end of a pass may be too little for the budget of a step.
#[test]
fn the_last_lines_of_a_pass_are_a_step_too() {
    for strategy in [
        serde_json::json!({"kind": "estimate", "max_samples": 8}),
        serde_json::json!({"kind": "dapo", "group_size": 4}),
        serde_json::json!({"kind": "sequential", "exit": "balance", "group_size": 4, "max_samples": 8}),
    ] {
        let bench = Bench::new(4, |settings| settings.rollout.strategy = strategy.clone());
        let path = bench.settings.data.path.clone();
        let all = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = all.lines().take(27).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        let (metrics, _) = bench.undisturbed();
        let steps = self::lines(&metrics, "train");
        assert_eq!(steps.len(), 4, "{strategy}: {metrics}");
        assert!(
            steps.iter().all(|line| line["training/rollout_probs_diff_max"].as_f64().is_none_or(|most| most == 0.0)),
            "{strategy}: {metrics}"
        );
    }
}

#[test]
fn a_folder_belongs_to_one_run() {
    let bench = Bench::new(1, |_| {});
    let _server = bench.server(None);
    bench.train();
    let before = bench.left();
    // The same command again: nothing to do.
    bench.train();
    assert_eq!(bench.left(), before);
    let refused = |set: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_adaroll"))
            .args(["train", "--config", "train.toml", "--set", set])
            .current_dir(bench.dir.path())
            .output()
            .unwrap();
        assert!(!output.status.success(), "{set}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = refused("optimizer.lr=0.5");
    assert!(said.contains("optimizer.lr") && said.contains("another folder"), "{said}");
    let said = refused("rollout.sampling={ top_p = 0.9 }");
    assert!(said.contains("rollout.sampling") && said.contains("allow_mismatch"), "{said}");
    let said = refused("optimizer.learning_rate=0.5");
    assert!(said.contains("learning_rate") && said.contains("optimizer"), "{said}");
}

/// The demonstration, 20 steps of it: it learns, tells, and leaves a page, a model and no process.
#[test]
fn the_demonstration_learns() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("demo");
    let demo = Command::new(env!("CARGO_BIN_EXE_adaroll")).args(["demo", "--steps", "20", "--out"]).arg(&out).output().unwrap();
    let said = String::from_utf8_lossy(&demo.stdout).into_owned();
    assert!(demo.status.success(), "{said}{}", String::from_utf8_lossy(&demo.stderr));
    let metrics = std::fs::read_to_string(out.join("run/metrics.jsonl")).unwrap();
    assert_exact(&metrics, 20);
    let evaluations = lines(&metrics, "eval");
    let hard = |line: &Value| line["eval/pass@1/hard"].as_f64().unwrap();
    let (first, last) = (hard(&evaluations[0]), hard(evaluations.last().unwrap()));
    assert!(last > 2.0 * first, "the hard slice went from {first} to {last}");
    assert!(said.contains("by at most 0.\n") && said.contains("report.html"), "{said}");
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("<svg"));
    assert!(out.join("run/model/model.safetensors").is_file());
    assert!(!running_in(&out), "no process is left");
}

/// Ctrl-C ends the demonstration and both of its processes; the same command goes on.
#[test]
fn the_demonstration_ends_at_ctrl_c_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("demo");
    let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
    command.args(["demo", "--steps", "6", "--out"]).arg(&out).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut demo = Process(command.spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(out.join("run/metrics.jsonl")).is_ok_and(|text| text.lines().count() > 3) {
        assert!(Instant::now() < deadline && !demo.over(), "{}", std::fs::read_to_string(out.join("trainer.log")).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: kill takes plain numbers; the process was not waited for.
    unsafe { libc::kill(demo.0.id() as libc::pid_t, libc::SIGINT) };
    assert!(!demo.0.wait().unwrap().success());
    assert!(!running_in(&out), "no process is left");
    assert!(command.status().unwrap().success());
    let metrics = std::fs::read_to_string(out.join("run/metrics.jsonl")).unwrap();
    let steps: Vec<u64> = lines(&metrics, "train").iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
}

/// Whether a process of this program works on `dir`.
fn running_in(dir: &Path) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let dir = dir.to_string_lossy().into_owned();
    processes.flatten().filter_map(|p| std::fs::read(p.path().join("cmdline")).ok()).any(|line| {
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("adaroll\0serve") && line.contains(&dir) || line.contains("adaroll\0train") && line.contains(&dir)
    })
}
