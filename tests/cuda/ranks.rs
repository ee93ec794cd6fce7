//! Training by several processes: as many ranks as an update has parts give the bytes of one process that computes all parts, whatever is trained and
//! however; and no death of a process leaves another one waiting.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adaroll::commands::demo::Arm;
use adaroll::commands::demo::run::Plan;
use adaroll::commands::device::DeviceChoice;
use adaroll::demo::data::{self, Form, demonstration_line};
use adaroll::demo::task::{Mix, Stream};
use adaroll::demo::warm;
use adaroll::model::Dtype;
use adaroll::trainer::loss::{Estimator, Kl};
use adaroll::trainer::settings::Settings;
use libtest_mimic::Trial;

use crate::emulator::{Card, card, folder, sanitized};
use crate::engine::shipped;
use crate::kit::trial;
use crate::tiny_model::{RawTensor, read_tensors, write_safetensors};

pub fn trials() -> Vec<Trial> {
    // NCCL takes no GPU twice, and the machine with a card that runs these tests need not have another.
    if card() == Card::Real {
        return Vec::new();
    }
    vec![
        trial("ranks::two_ranks_give_the_bytes_of_one_with_two_parts", || same_bytes(0)),
        trial("ranks::two_ranks_train_adapters_to_the_bytes_of_one", || same_bytes(4)),
        trial("ranks::three_parts_and_three_ranks_with_fewer_rows_than_parts", three),
        trial("ranks::a_run_goes_on_with_another_number_of_ranks", goes_on),
        trial("ranks::rollouts_are_scored_and_trained_on_by_all_ranks", rollouts),
        trial("ranks::a_killed_worker_ends_the_run", killed_worker),
        trial("ranks::the_workers_of_a_killed_run_end", killed_run),
        trial("ranks::without_nccl_a_run_says_so", no_nccl),
    ]
}

/// A process that ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// The binary with its output in `log`. What this process was given for its own card is inherited.
    fn start(dir: &Path, arguments: &[&str], log: &str, change: impl FnOnce(&mut Command)) -> Process {
        let out = std::fs::OpenOptions::new().create(true).append(true).open(dir.join(log)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
        command.args(arguments).current_dir(dir).stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
        change(&mut command);
        Process(command.spawn().unwrap())
    }

    /// Waits for its end; whether that was a good one.
    fn ends_within(&mut self, seconds: u64, what: &str) -> bool {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < deadline, "{what} goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Time for a run on the emulated card.
const PATIENCE: u64 = if cfg!(debug_assertions) { 900 } else { 300 };

/// Fine-tuning in a folder of its own.
struct Bench {
    dir: tempfile::TempDir,
    settings: Settings,
}

fn log(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_default()
}

/// Settings that hold for every run on the emulated card.
fn on_the_card(settings: &mut Settings) {
    settings.model.device = "cuda".into();
    settings.model.kernels = shipped().unwrap_or_default();
    settings.model.serving_dtype = String::new();
    settings.eval.every = 0;
}

fn in_parts(settings: &mut Settings, parts: usize, ranks: usize) {
    settings.update.parts = parts;
    settings.parallel.ranks = ranks;
    // There is one card.
    settings.parallel.gpus = vec![0; ranks];
}

impl Bench {
    fn new(steps: u64, change: impl FnOnce(&mut Settings)) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        warm::write_first(&dir.path().join("first")).unwrap();
        let mut settings = warm::settings(dir.path());
        on_the_card(&mut settings);
        settings.run.steps = steps;
        settings.rollout.prompts_per_step = 5;
        settings.update.micro_batch_tokens = 64;
        settings.checkpoint.every = 2;
        settings.checkpoint.keep = 9;
        let stream = Stream::new(3, Mix::TRAIN);
        data::write(&settings.data.path, (0..20).map(|i| demonstration_line(&stream.prompt(i), Form::TokenIds))).unwrap();
        change(&mut settings);
        Bench { dir, settings }
    }

    fn start(&self, change: impl FnOnce(&mut Command)) -> Process {
        std::fs::write(self.dir.path().join("train.toml"), toml::to_string(&self.settings).unwrap()).unwrap();
        Process::start(self.dir.path(), &["train", "--config", "train.toml"], "trainer.log", change)
    }

    fn run(self) -> Bench {
        let good = self.start(|_| {}).ends_within(PATIENCE, "the run");
        assert!(good, "{}\n{}", log(self.dir.path(), "trainer.log"), log(self.dir.path(), "run/rank-1.log"));
        self
    }

    /// Metrics, master parameters and moments, and the model.
    fn left(&self) -> [Vec<u8>; 3] {
        left(&self.settings)
    }
}

fn left(settings: &Settings) -> [Vec<u8>; 3] {
    let last = format!("checkpoints/step-{:06}/optimizer.safetensors", settings.run.steps);
    ["metrics.jsonl", &last, "model/model.safetensors"].map(|name| std::fs::read(settings.run.dir.join(name)).unwrap())
}

fn assert_same(got: &[Vec<u8>; 3], want: &[Vec<u8>; 3], what: &str) {
    for (i, name) in ["metrics.jsonl", "the optimizer's state", "the trained model"].into_iter().enumerate() {
        assert!(got[i] == want[i], "{what}: another {name}");
    }
}

fn same_bytes(rank: usize) {
    let run = |parts, ranks| {
        let change = |s: &mut Settings| {
            s.lora.rank = rank;
            in_parts(s, parts, ranks);
        };
        Bench::new(4, change).run().left()
    };
    let want = run(2, 1);
    assert_same(&run(2, 2), &want, "two ranks");
    // The twin: one sum over all rows has other bits.
    assert!(run(1, 1)[1] != want[1], "the parts are added apart");
}

/// Two rows a step: one of three parts is empty.
fn three() {
    let run = |ranks| {
        let change = |s: &mut Settings| {
            s.rollout.prompts_per_step = 2;
            in_parts(s, 3, ranks);
        };
        Bench::new(2, change).run().left()
    };
    assert_same(&run(3), &run(1), "three ranks");
}

fn goes_on() {
    let want = Bench::new(4, |s| in_parts(s, 2, 1)).run().left();
    for (before, after) in [(1, 2), (2, 1), (2, 2)] {
        let mut bench = Bench::new(2, |s| in_parts(s, 2, before)).run();
        bench.settings.run.steps = 4;
        in_parts(&mut bench.settings, 2, after);
        assert_same(&bench.run().left(), &want, &format!("{before} ranks, then {after}"));
    }
}

/// A step of several updates with a penalty: scores of the reference and of the policy before the step come from all ranks. The server samples on the
/// CPU, which is faster than the emulated card, and another policy than the trainer's: that is all the same here.
fn rollouts() {
    let run = |ranks: usize| {
        let dir = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let plan = Plan {
            arm: Arm::Pos1M1N8,
            seed: 3,
            lr: 1e-3,
            steps: 2,
            samples: 0,
            samples_per_step: 192,
            prompts_per_step: 0,
            eval_every: 0,
            mix: Mix::TRAIN,
            dir: dir.path().to_owned(),
            port,
            threads: 1,
            device: DeviceChoice::Cpu,
        };
        plan.prepare().unwrap();
        let model = dir.path().join("model/model.safetensors");
        let round = |tensor: RawTensor| {
            let numbers: Vec<f32> = tensor.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            RawTensor::new(tensor.name, Dtype::Bf16, tensor.shape, &numbers)
        };
        let rounded: Vec<RawTensor> = read_tensors(&model).into_iter().map(round).collect();
        write_safetensors(&model, &rounded);
        let mut settings = plan.settings(&format!("http://127.0.0.1:{port}"));
        on_the_card(&mut settings);
        in_parts(&mut settings, 2, ranks);
        settings.update.mini_batch_groups = 1;
        settings.loss.kl = Some(Kl { estimator: Estimator::K3, coefficient: 0.05 });
        std::fs::write(dir.path().join("train.toml"), toml::to_string(&settings).unwrap()).unwrap();
        let port = port.to_string();
        let arguments = ["serve", "--device", "cpu", "--model", "model", "--store", "server.db", "--threads", "1", "--port", &port];
        let _server = Process::start(dir.path(), &arguments, "server.log", |_| {});
        let mut trainer = Process::start(dir.path(), &["train", "--config", "train.toml"], "trainer.log", |_| {});
        let good = trainer.ends_within(PATIENCE, "the run");
        assert!(good, "{}\n{}\n{}", log(dir.path(), "trainer.log"), log(dir.path(), "run/rank-1.log"), log(dir.path(), "server.log"));
        left(&settings)
    };
    let want = run(1);
    let text = String::from_utf8_lossy(&want[0]);
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["ada/updates_total"].as_u64() >= Some(2)), "several updates: {text}");
    assert!(lines.iter().any(|line| line["actor/kl_loss"].as_f64() > Some(0.0)), "the policy leaves the reference: {text}");
    assert_same(&run(2), &want, "two ranks");
}

/// Processes that this one has started.
fn children(parent: u32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name, which is in brackets and may hold anything: state, then the parent.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        if fields.get(1) == Some(&parent.to_string().as_str()) && fields[0] != "Z" {
            found.push(pid);
        }
    }
    found
}

fn kill(pid: i32) {
    // SAFETY: kill takes no pointers.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

/// A long run of two ranks, some steps on, and its worker.
fn long_run() -> (Bench, Process, i32) {
    let bench = Bench::new(100_000, |s| in_parts(s, 2, 2));
    let process = bench.start(|_| {});
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    let metrics = bench.settings.run.dir.join("metrics.jsonl");
    while std::fs::read_to_string(&metrics).unwrap_or_default().lines().count() < 3 {
        assert!(Instant::now() < deadline, "{}", log(bench.dir.path(), "trainer.log"));
        std::thread::sleep(Duration::from_millis(20));
    }
    let workers = children(process.0.id());
    assert_eq!(workers.len(), 1, "one worker: {workers:?}");
    (bench, process, workers[0])
}

fn killed_worker() {
    let (bench, mut process, worker) = long_run();
    kill(worker);
    let good = process.ends_within(20, "a run without its worker");
    let said = log(bench.dir.path(), "trainer.log");
    assert!(!good, "{said}");
    assert!(said.contains("rank 1 has ended (signal: 9") && said.contains("rank-1.log"), "{said}");
}

fn killed_run() {
    let (bench, process, worker) = long_run();
    kill(process.0.id() as i32);
    let deadline = Instant::now() + Duration::from_secs(20);
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap_or_default();
        stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next().map(|state| state != "Z")).unwrap_or(false)
    };
    while lives() {
        assert!(Instant::now() < deadline, "the worker goes on: {}", log(bench.dir.path(), "run/rank-1.log"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A library path with the card alone, and something else under NCCL's names.
fn without_nccl(dir: &Path) -> PathBuf {
    let libraries = dir.join("libraries");
    std::fs::create_dir(&libraries).unwrap();
    std::os::unix::fs::symlink(folder().join("libcuda.so.1"), libraries.join("libcuda.so.1")).unwrap();
    for name in ["libnccl.so.2", "libnccl.so"] {
        std::fs::write(libraries.join(name), "").unwrap();
    }
    libraries
}

fn no_nccl() {
    let bench = Bench::new(2, |s| in_parts(s, 2, 2));
    let libraries = without_nccl(bench.dir.path());
    let mut process = bench.start(|command| {
        command.env("LD_LIBRARY_PATH", libraries);
    });
    let good = process.ends_within(if sanitized() { 120 } else { 30 }, "a run without NCCL");
    let said = log(bench.dir.path(), "trainer.log");
    assert!(!good && said.contains("parallel.ranks: NCCL is not on this machine"), "{said}");
    assert!(said.contains("parallel.ranks = 1") && !said.contains("panicked"), "{said}");
    assert!(!bench.settings.run.dir.join("rank-1.log").exists(), "no rank was started");
    // One rank needs no NCCL.
    let bench = Bench::new(1, |s| in_parts(s, 2, 1));
    let libraries = without_nccl(bench.dir.path());
    let mut process = bench.start(|command| {
        command.env("LD_LIBRARY_PATH", libraries);
    });
    assert!(process.ends_within(PATIENCE, "a run of one rank"), "{}", log(bench.dir.path(), "trainer.log"));
}
