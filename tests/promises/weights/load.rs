//! Pushes under load: nothing is dropped, and every token is drawn by the version that its span names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::kit::{Served, folder, job, naming, spans};
use crate::tiny_model::{TinyModel, write_safetensors};

/// What pushes under load came to.
#[derive(Default)]
struct Load {
    pushes: u64,
    jobs: usize,
    samples: usize,
    /// Samples of more than one version.
    mixed: usize,
    /// Seconds of each push, by step.
    seconds: BTreeMap<String, Vec<f64>>,
}

/// Most pushes for want of samples that cross a swap: a machine may be so fast that few do.
const MOST_PUSHES: u64 = 4000;

/// Runs jobs of every rule while versions are pushed: at least `pushes`, and until 8 jobs are done and 4 samples were on their way during a swap.
async fn under_load(pushes: u64) -> Load {
    let model = folder(&TinyModel::default());
    write_safetensors(&model.path().join("model.safetensors"), &naming(0));
    let dir = tempfile::tempdir().unwrap();
    let served = Arc::new(Served::start(model.path(), dir.path(), &[]).await);
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let workers: Vec<_> = ["finish", "restart", "continue", "continue"]
        .into_iter()
        .map(|rule| {
            let (served, over, seen) = (served.clone(), over.clone(), seen.clone());
            tokio::spawn(async move {
                let (mut jobs, mut samples, mut mixed) = (0, 0, 0);
                while !over.load(Ordering::SeqCst) {
                    let streamed = served.stream(&job(4, 4, 24, json!({"on_weight_update": rule}))).await;
                    assert_eq!(streamed.end["state"], "done", "{}", streamed.end);
                    assert_eq!(streamed.groups.len(), 4, "no group is missing");
                    let pinned = streamed.job["weights_version"].as_u64().unwrap();
                    for spans in spans(&streamed) {
                        assert_eq!(spans.iter().map(|(_, tokens)| tokens).sum::<u64>(), 24, "no token is missing");
                        assert!(spans.windows(2).all(|pair| pair[0].0 < pair[1].0), "{spans:?}");
                        match rule {
                            "finish" => assert!(spans.iter().all(|(version, _)| *version == pinned), "{pinned}: {spans:?}"),
                            "restart" => assert!(spans.len() == 1 && spans[0].0 >= pinned, "{pinned}: {spans:?}"),
                            _ => assert!(spans.iter().all(|(version, _)| *version >= pinned), "{pinned}: {spans:?}"),
                        }
                        samples += 1;
                        mixed += usize::from(spans.len() > 1);
                        seen[1].fetch_add(usize::from(spans.len() > 1), Ordering::SeqCst);
                    }
                    for position in 0..4 {
                        let group = streamed.group(position);
                        let versions: std::collections::BTreeSet<u64> = group["samples"]
                            .as_array()
                            .unwrap()
                            .iter()
                            .flat_map(|sample| sample["weight_versions"].as_array().unwrap())
                            .map(|span| span["version"].as_u64().unwrap())
                            .collect();
                        assert_eq!(group["mixed_versions"], versions.len() > 1, "{group}");
                        assert!(rule == "continue" || versions.len() == 1, "{rule}: {group}");
                    }
                    jobs += 1;
                    seen[0].fetch_add(1, Ordering::SeqCst);
                }
                (jobs, samples, mixed)
            })
        })
        .collect();
    let mut load = Load::default();
    let is_enough = || seen[0].load(Ordering::SeqCst) >= 8 && seen[1].load(Ordering::SeqCst) >= 4;
    let a_worker_ended = || workers.iter().any(|worker| worker.is_finished());
    while load.pushes < pushes || !(is_enough() || a_worker_ended() || load.pushes == MOST_PUSHES) {
        load.pushes += 1;
        let version = load.pushes;
        let answer = served.push(version, &naming(version)).await;
        for (step, seconds) in answer["seconds"].as_object().unwrap() {
            load.seconds.entry(step.clone()).or_default().push(seconds.as_f64().unwrap());
        }
    }
    over.store(true, Ordering::SeqCst);
    for worker in workers {
        let (jobs, samples, mixed) = worker.await.unwrap();
        load.jobs += jobs;
        load.samples += samples;
        load.mixed += mixed;
    }
    assert_eq!(served.live().await, load.pushes);
    load
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_push_drops_a_request_and_every_token_names_its_version() {
    let Load { pushes, jobs, samples, mixed, .. } = under_load(16).await;
    println!("{pushes} pushes among {jobs} jobs of {samples} samples, {mixed} of which cross a swap");
    assert!(jobs >= 8 && mixed >= 4, "{jobs} jobs, {mixed} mixed samples: the pushes met no load");
}

/// A model of about 540 MB, in bf16.
fn large() -> TinyModel {
    TinyModel { vocab_size: 32_768, hidden_size: 1536, layers: 10, heads: 24, kv_heads: 8, head_dim: 64, ..TinyModel::default() }
}

/// Bytes per second of copying `bytes` within memory, into pages that are there.
fn copy_speed(bytes: &[u8]) -> f64 {
    let mut to = vec![1u8; bytes.len()];
    let times = (0..5).map(|_| {
        let began = Instant::now();
        to.copy_from_slice(std::hint::black_box(bytes));
        std::hint::black_box(&to);
        began.elapsed().as_secs_f64()
    });
    bytes.len() as f64 / times.fold(f64::INFINITY, f64::min)
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// The long tier: 1,000 pushes, and the time of each of their steps, as benches/results has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes"]
async fn long_a_thousand_pushes_lose_nothing() {
    let began = Instant::now();
    let load = under_load(1000).await;
    println!(
        "{} pushes of the tiny model in {:.1} s among {} jobs of {} samples, none lost; {} samples cross a swap, every token is its version's",
        load.pushes,
        began.elapsed().as_secs_f64(),
        load.jobs,
        load.samples,
        load.mixed
    );
    for (step, mut seconds) in load.seconds {
        let [half, most] = [0.5, 0.99].map(|share| percentile(&mut seconds, share) * 1e3);
        println!("  {step:<8} median {half:>9.3} ms   99% {most:>9.3} ms   most {:>9.3} ms", seconds.last().unwrap() * 1e3);
    }
}

/// What a push of many bytes costs, beside a copy in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a large model"]
async fn long_a_push_beside_a_copy_in_memory() {
    let model = folder(&large());
    let file = std::fs::read(model.path().join("model.safetensors")).unwrap();
    let copied = copy_speed(&file);
    println!("a model of {:.0} MB; a copy in memory runs at {:.2} GB/s", file.len() as f64 / 1e6, copied / 1e9);
    let shared = std::path::Path::new("/dev/shm").join(format!("adaroll-weights-test-{}", std::process::id()));
    std::fs::create_dir(&shared).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[&shared]).await;
    // The last number of the file is another one in each push.
    let variant = |n: u8| {
        let mut file = file.clone();
        *file.last_mut().unwrap() = 0x3c;
        let at = file.len() - 2;
        file[at] = n;
        file
    };
    for n in 1..=3u8 {
        let body = variant(n);
        let began = Instant::now();
        let (status, answer) = served.put(&format!("version={n}"), body).await;
        assert_eq!(status, 200, "{answer}");
        report("PUT", began.elapsed().as_secs_f64(), file.len(), copied, &answer);
    }
    for n in 4..=6u8 {
        let place = shared.join(format!("step-{n}.safetensors"));
        let variant = variant(n);
        let began = Instant::now();
        std::fs::write(&place, variant).unwrap();
        let wrote = began.elapsed().as_secs_f64();
        let (status, answer) = served.post("/v1/weights", &json!({"version": n, "file": place})).await;
        assert_eq!(status, 200, "{answer}");
        report(&format!("file in shared memory (written in {wrote:.2} s)"), began.elapsed().as_secs_f64(), file.len(), copied, &answer);
        std::fs::remove_file(&place).unwrap();
    }
    std::fs::remove_dir(&shared).unwrap();
}

fn report(way: &str, seconds: f64, bytes: usize, copied: f64, answer: &Value) {
    let speed = bytes as f64 / seconds;
    let steps: Vec<String> =
        answer["seconds"].as_object().unwrap().iter().map(|(step, s)| format!("{step} {:.3}", s.as_f64().unwrap())).collect();
    println!("  {way}: {seconds:.2} s, {:.2} GB/s, {:.2} of a copy; {}", speed / 1e9, speed / copied, steps.join(", "));
}
