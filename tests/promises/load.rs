//! Promise: memory is bounded by what is in flight, not by what is read or kept. 256 prompts of 32 samples in one request, 64 jobs at once, 200
//! readers that stop reading; nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use adaroll::server::Options;
use adaroll::store::{Store, StorePath};
use futures::StreamExt;
use serde_json::json;

use crate::fake_engine::Manner;
use crate::server_kit::{Kit, Streamed, job};

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Memory is the process's own: the load runs in one, away from the other tests' models.
#[cfg(target_os = "linux")]
#[test]
fn many_samples_many_jobs_and_slow_readers_take_bounded_memory() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "load::child", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    println!("{}", said.lines().find(|line| line.contains("MiB")).unwrap_or("no figure"));
    assert!(child.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&child.stderr));
}

#[cfg(target_os = "linux")]
#[ignore = "the child of the test above"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&StorePath::File(dir.path().join("load.db"))).unwrap();
    let manner = Manner { delay: Duration::from_millis(2), longer: 20, slots: 256, ..Manner::default() };
    let mut options = Options { max_in_flight: 256, ..Options::default() };
    options.jobs.max_open = 80;
    options.jobs.max_running = 80;
    let kit = Kit::over(manner, options, store).await;

    let before = resident();
    let (peak, stop) = (Arc::new(AtomicU64::new(before)), Arc::new(AtomicBool::new(false)));
    let watch = {
        let (peak, stop) = (peak.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                peak.fetch_max(resident(), Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    };

    let big =
        job(256, json!({"job_id": "big", "strategy": {"exit": {"positives": 16, "negatives": 16}, "max_samples": 32, "group_size": 4}}));
    let mut slow = Vec::new();
    for _ in 0..200 {
        let request = kit.client.post(format!("{}/v1/rollouts", kit.url)).header("accept", "application/x-ndjson").json(&big);
        let mut stream = request.send().await.unwrap().bytes_stream();
        // Reads the first event and then no more.
        let first = stream.next().await.unwrap().unwrap();
        slow.push((first, stream));
    }
    let others = (0..63).map(|i| {
        let body = job(8, json!({"job_id": format!("small-{i}"), "seed": i}));
        let kit = &kit;
        async move { kit.stream(&body).await }
    });
    let (quick, small) = tokio::join!(kit.stream(&big), futures::future::join_all(others));
    assert_eq!(quick.groups.len(), 256);
    assert!(small.iter().all(|streamed| streamed.groups.len() == 8 && streamed.end["state"] == "done"));
    let while_running = peak.load(Ordering::SeqCst);

    // The slow readers wake up and find everything.
    let reference = quick.reproducible();
    let stream_bytes: usize = quick.groups.iter().map(String::len).sum();
    for (first, stream) in slow {
        let mut text = first.to_vec();
        let rest: Vec<_> = stream.map(|chunk| chunk.unwrap()).collect().await;
        rest.iter().for_each(|chunk| text.extend_from_slice(chunk));
        assert!(Streamed::read(std::str::from_utf8(&text).unwrap()).reproducible() == reference);
    }
    stop.store(true, Ordering::SeqCst);
    watch.join().unwrap();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let samples = quick.end["statistics"]["samples_seen"].as_u64().unwrap();
    let grown = mib(while_running - before);
    println!(
        "{samples} samples of about 240 tokens in one job beside 63 others and 200 readers that stopped: {grown:.0} MiB above {:.0} MiB at the \
         start (peak with the readers' catching up {:.0} MiB); the readers' streams unread would be {:.0} MiB",
        mib(before),
        mib(peak.load(Ordering::SeqCst)),
        200.0 * mib(stream_bytes as u64),
    );
    assert!(grown < 400.0, "{grown} MiB");
}
