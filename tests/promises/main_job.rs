//! Promise: the main job on real input. GSM8K problems on a real model over HTTP give groups that follow the plan; the same request gives the same
//! groups byte for byte, `timing` aside, also under load from another client.

use std::net::SocketAddr;

use adaroll::commands::open::{EngineOptions, open};
use adaroll::commands::serve::serve;
use adaroll::engine::{Sample, SamplingParams};
use serde_json::{Value, json};

use crate::assets::{rows, smollm2};
use crate::sampling_runs::{bits, run_with_seed};

const MAX_SAMPLES: u32 = 5;
const MAX_TOKENS: u32 = 32;
const SEED: u64 = 7;

fn messages(problem: &Value) -> Value {
    let text = problem["problem"].as_str().unwrap();
    json!([{"role": "user", "content": format!("{text}\nAnswer with the number only.")}])
}

/// Eight problems without ids: their ids are "0" to "7".
fn job(problems: &[Value]) -> Value {
    let prompts: Vec<Value> =
        problems.iter().map(|p| json!({"messages": messages(p), "reward": {"kind": "math", "answer": p["answer"]}})).collect();
    json!({
        "prompts": prompts,
        "strategy": {"kind": "sequential", "exit": "signal", "group_size": 4, "max_samples": MAX_SAMPLES},
        "advantage": "ada",
        "sampling": {"temperature": 0.8, "max_tokens": MAX_TOKENS},
        "seed": SEED,
        "return": {"text": true, "logprobs": true, "all_samples": true}
    })
}

/// Posts a job and gives its groups as they came, one line each.
async fn groups(address: SocketAddr, body: &Value) -> Vec<Value> {
    let client = reqwest::Client::new();
    let response =
        client.post(format!("http://{address}/v1/rollouts")).header("Accept", "application/x-ndjson").json(body).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let text = response.text().await.unwrap();
    let lines = text.lines().filter(|l| !l.is_empty()).map(|l| serde_json::from_str::<Value>(l).unwrap());
    lines.filter(|v| v.get("prompt_id").is_some()).collect()
}

/// The groups' bytes without `timing`.
fn reproducible(groups: &[Value]) -> Vec<String> {
    let strip = |g: &Value| {
        let mut g = g.clone();
        assert!(g.as_object_mut().unwrap().remove("timing").is_some());
        g.to_string()
    };
    groups.iter().map(strip).collect()
}

/// The last number of a text without marks, read the simple way: digits, an optional point between digits, a sign before.
fn last_number(text: &str) -> Option<f64> {
    let cleaned: String = text.replace(',', "");
    let mut found = None;
    let bytes = cleaned.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if bytes[i].is_ascii_digit() {
            let start = if i > 0 && bytes[i - 1] == b'-' { i - 1 } else { i };
            while i < bytes.len() && (bytes[i].is_ascii_digit() || (bytes[i] == b'.' && bytes.get(i + 1).is_some_and(u8::is_ascii_digit))) {
                i += 1;
            }
            found = cleaned[start..i].parse().ok();
        } else {
            i += 1;
        }
    }
    found
}

/// Checks one group against samples drawn one by one outside the server, and against the plan written out anew.
fn check(group: &Value, drawn: &[Sample], gold: f64, compared: &mut usize) {
    let samples = group["samples"].as_array().unwrap();
    let seen = group["stats"]["seen"].as_u64().unwrap() as usize;
    assert_eq!(samples.len(), seen, "all_samples: every index below the exit");
    let (mut positive, mut negative) = (0, 0);
    let mut exit = None;
    for (i, s) in samples.iter().enumerate() {
        assert_eq!(s["index"], i);
        let own = &drawn[i];
        assert_eq!(s["token_ids"], json!(own.token_ids), "sample {i} is a function of model, seed, prompt and index");
        let logprobs: Vec<u32> = s["logprobs"].as_array().unwrap().iter().map(|l| (l.as_f64().unwrap() as f32).to_bits()).collect();
        assert_eq!(logprobs, bits(&own.logprobs), "log-probabilities of sample {i}");
        assert_eq!(s["text"], json!(own.text));
        let truncated = s["finish_reason"] == "length";
        if !truncated && !own.text.contains("####") && !own.text.contains("boxed") && !own.text.contains('/') && !own.text.contains('\\') {
            assert_eq!(s["positive"], json!(last_number(&own.text) == Some(gold)), "reward of {:?}, gold {gold}", own.text);
            *compared += 1;
        }
        assert!(!(truncated && s["positive"] == true), "a truncated answer is negative");
        if s["positive"] == true {
            positive += 1
        } else {
            negative += 1
        }
        if exit.is_none() && positive >= 1 && negative >= 1 {
            exit = Some(i + 1);
        }
    }
    let (status, kind, stop) = match exit {
        Some(t) => ("resolved", "plan", t),
        None => ("exhausted", "cap", MAX_SAMPLES as usize),
    };
    assert_eq!((group["status"].as_str(), group["exit"].as_str(), seen), (Some(status), Some(kind), stop), "{group}");
    assert_eq!((&group["stats"]["positive"], &group["stats"]["negative"]), (&json!(positive), &json!(negative)));
    assert_eq!(group["stats"]["pass_rate"].as_f64().unwrap(), f64::from(positive) / seen as f64);
    assert_eq!(group["signal"], json!(exit.is_some()), "one of each was kept");
    // Kept: the first two positives and the first two negatives by index, filled from the other class: those have an advantage.
    let of = |class: bool| samples.iter().enumerate().filter(move |(_, s)| s["positive"] == class).map(|(i, _)| i).collect::<Vec<_>>();
    let (p, n) = (of(true), of(false));
    let take_p = p.len().min(2.max(4usize.saturating_sub(n.len())));
    let mut kept: Vec<usize> = p[..take_p].iter().chain(&n[..n.len().min(4 - take_p)]).copied().collect();
    kept.sort_unstable();
    let got: Vec<usize> = samples.iter().enumerate().filter(|(_, s)| !s["advantage"].is_null()).map(|(i, _)| i).collect();
    assert_eq!(got, kept, "{group}");
    for &i in &kept {
        let reward = samples[i]["reward"].as_f64().unwrap();
        let want = if exit.is_some() { reward - f64::from(positive) / seen as f64 } else { 0.0 };
        assert!((samples[i]["advantage"].as_f64().unwrap() - want).abs() < 1e-12, "advantage of sample {i}: {group}");
    }
}

/// Eight problems: groups by the plan, the same bytes twice and under load.
#[test]
fn gsm8k_on_a_real_model_over_http() {
    let problems: Vec<Value> = rows("gsm8k_problems.jsonl").into_iter().take(8).collect();
    let body = job(&problems);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let opened = open(&smollm2(), &EngineOptions::default(), |_, _| {}).unwrap();
    let prompts: Vec<Vec<u32>> = problems.iter().map(|p| opened.text.encode_messages(messages(p).as_array().unwrap()).unwrap()).collect();
    // What every sample must be, from an engine of its own shape that no server drives.
    let params = SamplingParams { temperature: 0.8, max_tokens: MAX_TOKENS, ..SamplingParams::default() };
    let drawn = run_with_seed(&opened.engine, &prompts, MAX_SAMPLES, &params, None, SEED);

    let mut config = adaroll::config::Config::default();
    config.server.port = 0;
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = runtime.spawn(serve(opened, config, move |address| tell.send(address).unwrap(), async {
        let _ = stopped.await;
    }));
    let address = told.recv().unwrap();
    let first = runtime.block_on(groups(address, &body));
    assert_eq!(first.len(), 8);
    let mut compared = 0;
    for (i, group) in first.iter().enumerate() {
        assert_eq!(group["prompt_id"], json!(i.to_string()), "groups come in request order");
        assert_eq!(group["prompt_token_ids"], json!(prompts[i]));
        let gold: f64 = problems[i]["answer"].as_str().unwrap().parse().unwrap();
        check(group, &drawn[i * MAX_SAMPLES as usize..][..MAX_SAMPLES as usize], gold, &mut compared);
    }
    assert!(compared >= 5, "too few answers could be judged the simple way: {compared}");
    println!("{} groups resolved of 8, {compared} rewards compared", first.iter().filter(|g| g["status"] == "resolved").count());
    let expected = reproducible(&first);

    // Another client's job runs at the same time; then the same request once more.
    let mut other = body.clone();
    other["seed"] = json!(99);
    other["prompts"].as_array_mut().unwrap().reverse();
    let under_load = runtime.block_on(async { futures::join!(groups(address, &other), groups(address, &body)).1 });
    assert_eq!(reproducible(&under_load), expected, "under load");
    let again = runtime.block_on(groups(address, &body));
    assert_eq!(reproducible(&again), expected, "the same request again");

    let metrics = runtime.block_on(async { reqwest::get(format!("http://{address}/metrics")).await.unwrap().text().await.unwrap() });
    assert!(metrics.contains("adaroll_groups_total"), "{metrics}");
    assert_eq!(runtime.block_on(async { reqwest::get(format!("http://{address}/readyz")).await.unwrap().status().as_u16() }), 200);
    assert_eq!(runtime.block_on(async { reqwest::get(format!("http://{address}/livez")).await.unwrap().status().as_u16() }), 200);
    stop.send(()).unwrap();
    runtime.block_on(served).unwrap().unwrap();
}
