//! Promise: `adaroll rollout` turns rows into prompts with errors that name the line, writes every group once and whole whatever happens
//! to the connection, and says what came of the job.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use adaroll::commands::rollout::tally::{HeadStats, HeadTiming};
use adaroll::commands::rollout::{GroupHead, Progress, RolloutArgs, RolloutError, Tally, prompts, run};
use clap::Parser;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fake_engine::Manner;
use crate::server_kit::{Kit, job};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: RolloutArgs,
}

fn args(more: &[&str]) -> RolloutArgs {
    let needed = ["rollout", "--prompts", "prompts.jsonl", "--out", "groups.jsonl"];
    Cli::try_parse_from(needed.into_iter().chain(more.iter().copied())).unwrap_or_else(|e| panic!("{e}")).args
}

fn read(text: &str, more: &[&str]) -> Result<Vec<Value>, String> {
    prompts::parse(Path::new("prompts.jsonl"), text, &args(more)).map(|file| file.prompts).map_err(|error| error.to_string())
}

#[test]
fn rows_become_prompts() {
    let math = ["--reward", "{\"kind\": \"math\"}", "--prompt-field", "problem", "--answer-field", "answer"];
    let rows = "{\"problem\": \"2 + 3?\", \"answer\": \"5\", \"solution\": \"...\"}\n\n{\"id\": 17, \"problem\": \"1?\", \"answer\": 1}\n";
    let reward = |answer: &str| json!({"kind": "math", "answer": answer});
    let asked = |text: &str| json!([{"role": "user", "content": text}]);
    assert_eq!(
        read(rows, &math).unwrap(),
        [
            json!({"id": "0", "messages": asked("2 + 3?"), "reward": reward("5")}),
            json!({"id": "17", "messages": asked("1?"), "reward": reward("1")})
        ]
    );
    let template = [&math[..], &["--prompt-template", "Q: {}\nEnd with ####.", "--raw-text", "--limit", "1"]].concat();
    assert_eq!(read(rows, &template).unwrap(), [json!({"id": "0", "text": "Q: 2 + 3?\nEnd with ####.", "reward": reward("5")})]);
    let native = "{\"id\": \"a\", \"token_ids\": [1], \"metadata\": {\"k\": 1}, \"reward\": {\"kind\": \"exact\", \"answer\": \"x\"}}\n{\"text\": \"t\"}";
    assert_eq!(
        read(native, &["--reward", "{\"kind\": \"math\", \"answer\": \"1\"}"]).unwrap(),
        [
            json!({"id": "a", "token_ids": [1], "metadata": {"k": 1}, "reward": {"kind": "exact", "answer": "x"}}),
            json!({"id": "1", "text": "t", "reward": reward("1")})
        ]
    );
}

#[test]
fn every_bad_line_is_named() {
    let good = "{\"text\": \"t\", \"reward\": {\"kind\": \"math\", \"answer\": \"1\"}}";
    for (line, words) in [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ("{\"text\": \"t\"}", "has no reward"),
        ("{\"reward\": {}}", "has 0 of messages"),
        ("{\"text\": \"t\", \"token_ids\": [1], \"reward\": {}}", "has 2 of messages"),
        ("{\"problem\": \"t\", \"reward\": {}}", "--prompt-field"),
        ("{\"text\": \"t\", \"reward\": \"math\"}", "reward must be an object"),
        ("{\"id\": [], \"text\": \"t\", \"reward\": {}}", "id must be"),
        ("{\"id\": \"0\", \"text\": \"t\", \"reward\": {}}", "as line 1"),
        ("{\"text\": \"t\", \"text\": \"u\", \"reward\": {}}", "twice"),
    ] {
        let problem = read(&format!("{good}\n\n{line}\n"), &[]).unwrap_err();
        assert!(problem.starts_with("prompts.jsonl:3: ") && problem.contains(words), "{line}: {problem}");
    }
    assert!(read("\n", &[]).unwrap_err().contains("no prompt"));
    assert!(read("{\"a\": 1}", &["--prompt-field", "q"]).unwrap_err().contains("\"q\", which --prompt-field names"));
    assert!(read(good, &["--answer-field", "gold"]).unwrap_err().contains("\"gold\", which --answer-field names"));
    assert!(read(good, &["--reward", "math"]).unwrap_err().contains("--reward is not JSON"));
    let exit = args(&["--exit", "3,x"]).request(vec![]).unwrap_err().to_string();
    assert!(exit.contains("--exit") && exit.contains("balance"), "{exit}");
}

#[test]
fn the_request_holds_what_was_given_and_nothing_else() {
    let body = args(&["--seed", "7", "--job-id", "j", "--exit", "3,1", "--max-samples", "16", "--temperature", "0.5", "--stop", "a"])
        .request(vec![]);
    let expected = json!({"job_id": "j", "strategy": {"kind": "sequential", "exit": {"positives": 3, "negatives": 1}, "max_samples": 16},
        "sampling": {"temperature": 0.5, "stop": ["a"]}, "seed": 7, "prompts": []});
    assert_eq!(body.unwrap(), expected);
    let drawn = args(&["--strategy", "uniform", "--strategy-options", "{\"max_failed\": 2}"]).request(vec![]).unwrap();
    assert_eq!(drawn["strategy"], json!({"kind": "uniform", "max_failed": 2}));
    assert!(drawn["seed"].is_u64() && drawn["job_id"].as_str().unwrap().len() > 20, "{drawn}");
}

#[test]
fn the_tally_counts_and_draws() {
    let group = |status: &str, seen: u64, positive: u64| GroupHead {
        prompt_id: String::new(),
        status: status.into(),
        signal: status == "resolved",
        stats: HeadStats { seen, positive, pass_rate: (seen > 0).then(|| positive as f64 / seen as f64), tokens_seen: 100 },
        timing: HeadTiming { tokens_discarded: 20 },
    };
    let mut tally = Tally::new(5);
    for head in
        [group("resolved", 4, 2), group("resolved", 10, 5), group("exhausted", 32, 0), group("exhausted", 32, 32), group("failed", 0, 0)]
    {
        tally.add(&head);
    }
    assert_eq!(tally.rates, [1, 0, 0, 0, 0, 2, 0, 0, 0, 1]);
    assert_eq!((tally.resolved, tally.exhausted, tally.failed, tally.signal), (2, 2, 1, 2));
    assert_eq!(tally.spark(), "▄····█···▄");
    let report = tally.report(Duration::from_secs(2));
    assert!(report.contains("5 of 5 groups in 2.0 s: 2 resolved, 2 exhausted, 1 failed; 2 with contrast"), "{report}");
    assert!(report.contains("300 tokens/s") && report.contains("0.5 to 0.6       2  ██████"), "{report}");
}

/// Passes bytes on, and breaks connection after connection in the middle of what the server says, `cuts` times in all.
async fn breaking(url: &str, cuts: usize, after: usize) -> (String, Arc<AtomicUsize>) {
    let target = url.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let broken = Arc::new(AtomicUsize::new(0));
    let count = broken.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (server, count) = (TcpStream::connect(&target).await.unwrap(), count.clone());
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let up = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                let (mut passed, mut bytes) = (0, [0; 512]);
                while let Ok(n @ 1..) = from_server.read(&mut bytes).await {
                    passed += n;
                    if to_client.write_all(&bytes[..n]).await.is_err() {
                        break;
                    }
                    if passed >= after && count.load(Ordering::SeqCst) < cuts {
                        count.fetch_add(1, Ordering::SeqCst);
                        break;
                    }
                }
                up.abort();
            });
        }
    });
    (address, broken)
}

fn write_prompts(dir: &Path, count: usize) -> PathBuf {
    let path = dir.join("prompts.jsonl");
    let lines: Vec<String> = job(count, json!({}))["prompts"].as_array().unwrap().iter().map(Value::to_string).collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

fn command(dir: &Path, url: &str, more: &[&str]) -> RolloutArgs {
    let mut args = args(&[&["--seed", "7", "--max-tokens", "64", "--server", url], more].concat());
    args.prompts = dir.join("prompts.jsonl");
    args.out = dir.join("groups.jsonl");
    args
}

/// Each line up to its timing.
fn groups(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("groups.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| line.split_once(",\"timing\":{").unwrap().0.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_connections_lose_and_repeat_nothing() {
    let kit = Kit::start(Manner::default()).await;
    let dir = tempfile::tempdir().unwrap();
    write_prompts(dir.path(), 30);
    let expected = kit.stream(&job(30, json!({}))).await.reproducible();
    let (url, broken) = breaking(&kit.url, 6, 9000).await;
    let summary = run(&command(dir.path(), &url, &[]), Progress::Quiet, std::future::pending()).await.unwrap();
    assert_eq!(broken.load(Ordering::SeqCst), 6, "the proxy did break connections");
    assert!(summary.is_done() && summary.reconnects >= 5, "{summary}");
    assert_eq!(groups(dir.path()), expected);
    assert_eq!((summary.tally.groups, summary.tally.prompts), (30, 30));
    println!("{summary}");

    // Again: the file is not touched unless told; torn lines are cut off and missing ones added.
    let refused = run(&command(dir.path(), &kit.url, &[]), Progress::Quiet, std::future::pending()).await.unwrap_err();
    assert!(refused.to_string().contains("--resume"), "{refused}");
    let text = std::fs::read_to_string(dir.path().join("groups.jsonl")).unwrap();
    std::fs::write(dir.path().join("groups.jsonl"), &text[..text.len() * 2 / 3]).unwrap();
    let resumed = command(dir.path(), &kit.url, &["--resume", "--job-id", &summary.job_id]);
    let again = run(&resumed, Progress::Quiet, std::future::pending()).await.unwrap();
    assert_eq!(groups(dir.path()), expected);
    assert_eq!(again.tally.groups, 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_name_the_line_and_nothing_waits_for_ever() {
    let kit = Kit::start(Manner::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let path = write_prompts(dir.path(), 3);
    let text = std::fs::read_to_string(&path).unwrap().replacen("\"72\"", "\"none\"", 1);
    std::fs::write(&path, format!("\n{text}")).unwrap();
    let refused = run(&command(dir.path(), &kit.url, &[]), Progress::Quiet, std::future::pending()).await.unwrap_err();
    assert!(matches!(refused, RolloutError::Refused { status: 422, .. }));
    assert!(refused.to_string().contains("prompts.jsonl:2: prompts[0].reward.answer"), "{refused}");
    assert!(!refused.to_string().contains('\n'), "one line for one gold: {refused}");
    std::fs::write(&path, format!("\n{}", text.replacen("\"72\"", "\"none\"", 1))).unwrap();
    let again = command(dir.path(), &kit.url, &["--overwrite"]);
    let refused = run(&again, Progress::Quiet, std::future::pending()).await.unwrap_err().to_string();
    for line in ["prompts.jsonl:2: prompts[0].reward.answer: is \"none\"", "prompts.jsonl:3: prompts[1].reward.answer: is \"none\""] {
        assert!(refused.contains(line), "{refused}");
    }
    write_prompts(dir.path(), 3);
    for url in ["127.0.0.1:8000", "ftp://x", "http://"] {
        let args = command(dir.path(), url, &["--overwrite"]);
        let wrong = run(&args, Progress::Quiet, std::future::pending()).await.unwrap_err();
        assert!(wrong.to_string().contains("--server"), "{wrong}");
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let args = command(dir.path(), &format!("http://{closed}"), &["--overwrite", "--patience-s", "1"]);
    let gone = run(&args, Progress::Quiet, std::future::pending()).await.unwrap_err();
    assert!(matches!(gone, RolloutError::Unreachable { .. }) && gone.to_string().contains("--resume"), "{gone}");
    let args = command(dir.path(), &format!("http://{closed}"), &["--overwrite"]);
    let stopped = run(&args, Progress::Quiet, tokio::time::sleep(Duration::from_millis(50))).await.unwrap_err();
    assert!(matches!(stopped, RolloutError::Interrupted { .. }), "{stopped}");
}
