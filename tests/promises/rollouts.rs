//! Promise: the main job over HTTP. Groups follow the plan, timing never decides, nothing is lost.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adaroll::engine::{FinishReason, StreamKey};
use adaroll::rollout::plan::{Advantage, Group, Outcome, Seen, Strategy};
use adaroll::rollout::{JobLimits, Width};
use adaroll::server::Options;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::fake_engine::{Manner, scripted};
use crate::plan::one_at_a_time;
use crate::server_kit::{Kit, Streamed, job};

fn manner(seed: u64) -> Manner {
    Manner { seed, ..Manner::default() }
}

fn width(q_min: f64, max_in_flight: usize) -> Options {
    Options { width: Width { q_min, look_ahead: 5 }, max_in_flight, ..Options::default() }
}

/// Compares a streamed group with what one sample at a time would give, taken from the script alone.
fn check_group(group: &Value, prompt: &Value, strategy: &Strategy) {
    let ids: Vec<u32> = prompt["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let key = StreamKey::new(7, prompt["id"].as_str().unwrap());
    let samples: Vec<_> = (0..strategy.max_samples).map(|index| scripted(&ids, key, index)).collect();
    let outcome = |s: &adaroll::engine::Sample| match s.finish_reason {
        FinishReason::Numerics => Outcome::Failed,
        FinishReason::Length if strategy.mask_truncated => Outcome::Skipped,
        FinishReason::Length => Outcome::Negative,
        _ if s.text.ends_with("#### 72") => Outcome::Positive,
        _ => Outcome::Negative,
    };
    let all: Vec<Outcome> = samples.iter().map(outcome).collect();
    let plan = strategy.plans(&[None])[0];
    let exit = one_at_a_time(&plan, &all);
    let seen: Vec<Seen> = samples[..exit.t as usize]
        .iter()
        .map(|s| Seen {
            outcome: outcome(s),
            reward: f64::from(u8::from(outcome(s) == Outcome::Positive)),
            tokens: s.token_ids.len() as u64,
            truncated: s.finish_reason == FinishReason::Length,
        })
        .collect();
    let expected = Group::form(&plan, exit, &seen, strategy.group_size, Advantage::default(), None);
    assert_eq!(group["prompt_id"], prompt["id"]);
    assert_eq!(group["prompt_token_ids"], prompt["token_ids"]);
    assert_eq!(group["status"], serde_json::to_value(expected.status).unwrap());
    assert_eq!(group["exit"], serde_json::to_value(expected.exit).unwrap());
    assert_eq!(group["signal"], expected.signal);
    assert_eq!(group["mixed_versions"], false);
    let stats = serde_json::from_str::<Value>(&serde_json::to_string(&expected.stats).unwrap()).unwrap();
    assert_eq!(group["stats"], stats);
    let got = group["samples"].as_array().unwrap();
    assert_eq!(got.len(), expected.kept.len());
    for (got, kept) in got.iter().zip(&expected.kept) {
        let sample = &samples[kept.index as usize];
        assert_eq!(got["index"], kept.index);
        assert_eq!(got["advantage"].as_f64().unwrap(), kept.advantage);
        assert_eq!(got["positive"], all[kept.index as usize] == Outcome::Positive);
        assert_eq!(got["reward"].as_f64().unwrap(), seen[kept.index as usize].reward);
        assert_eq!(got["reward_status"], "scored");
        let shown = [&got["verdict"], &got["extracted"], &got["rule"]];
        match sample.finish_reason {
            // Nobody looked at an answer that was cut off.
            FinishReason::Length => assert_eq!(shown, [&Value::Null; 3]),
            _ => {
                let number = sample.text.rsplit_once("#### ").unwrap().1;
                let (verdict, rule) = if number == "72" { ("correct", "hashes/identical") } else { ("wrong", "hashes/number") };
                assert_eq!(shown, [&json!(verdict), &json!(number), &json!(rule)]);
            }
        }
        assert_eq!(got["token_ids"], json!(sample.token_ids));
        let logprobs: Vec<f32> = got["logprobs"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap() as f32).collect();
        assert_eq!(logprobs, sample.logprobs, "f32 survives the text");
        assert_eq!(got["text"], sample.text);
        assert_eq!(got["weight_versions"], json!([{"version": 3, "start": 0, "end": sample.token_ids.len()}]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_follow_the_plan() {
    let kit = Kit::start(manner(1)).await;
    let strategies = [
        json!({}),
        json!({"exit": "positive"}),
        json!({"exit": "signal", "max_samples": 12, "max_failed": 0}),
        json!({"exit": {"positives": 3, "negatives": 1}, "group_size": 6, "straight_positives": 8}),
        json!({"round_size": 8, "max_samples": 32}),
        json!({"exit": "positive", "round_size": 8, "mask_truncated": true}),
    ];
    for strategy in strategies {
        let body = job(30, json!({"strategy": strategy}));
        let streamed = kit.stream(&body).await;
        let effective = Strategy::read(&strategy).unwrap();
        assert_eq!(streamed.groups.len(), 30);
        for position in 0..30 {
            check_group(&streamed.group(position), &body["prompts"][position], &effective);
        }
        assert_eq!(streamed.end["state"], "done");
        assert_eq!(streamed.end["statistics"]["groups"], 30);
        assert_eq!(streamed.job["strategy"]["group_size"], effective.group_size);
        assert_eq!(streamed.job["seed"], 7);
        assert_eq!(streamed.job["weights_version"], 3);
    }
    assert_eq!(kit.seen.in_flight.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timing_and_width_never_decide() {
    let body = job(25, json!({"return": {"logprobs_raw": true, "all_samples": true}}));
    let reference = Kit::with(Manner { delay: Duration::ZERO, ..manner(0) }, width(0.999, 1)).await.stream(&body).await.reproducible();
    let mut cancelled = 0;
    for (seed, q_min, in_flight, slots) in
        [(1, 0.9, 4, 1000), (2, 0.3, 256, 1000), (3, 0.01, 256, 1000), (4, 0.01, 64, 6), (5, 0.1, 256, 3)]
    {
        let kit = Kit::with(Manner { seed, slots, delay: Duration::from_millis(3), ..Manner::default() }, width(q_min, in_flight)).await;
        let load = job(10, json!({"seed": seed}));
        let (groups, _) = tokio::join!(kit.stream(&body), kit.stream(&load));
        assert_eq!(groups.reproducible(), reference, "seed {seed}, q_min {q_min}");
        assert_eq!(kit.stream(&body).await.reproducible(), reference);
        cancelled += kit.seen.cancelled.load(Ordering::SeqCst);
        assert_eq!(kit.seen.in_flight.load(Ordering::SeqCst), 0);
    }
    assert!(cancelled > 50, "the wide runs should have cancelled something: {cancelled}");
    // The twin: another seed gives other groups.
    let other =
        Kit::start(manner(0)).await.stream(&job(25, json!({"seed": 8, "return": {"logprobs_raw": true, "all_samples": true}}))).await;
    assert_ne!(other.reproducible(), reference);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completion_order_gives_the_same_groups_sooner() {
    let kit = Kit::start(manner(2)).await;
    let by_request = kit.stream(&job(20, json!({}))).await.reproducible();
    let mut by_completion = kit.stream(&job(20, json!({"order": "completion"}))).await.reproducible();
    assert_ne!(by_completion, by_request, "20 groups closed exactly in order");
    let mut sorted = by_request.clone();
    sorted.sort();
    by_completion.sort();
    assert_eq!(by_completion, sorted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_only_delays() {
    let free = Kit::start(manner(3)).await.stream(&job(12, json!({}))).await.reproducible();
    let kit = Kit::start(Manner { queue: 3, ..manner(3) }).await;
    let (a, b) = (job(12, json!({})), job(12, json!({"seed": 9})));
    let (groups, other) = tokio::join!(kit.stream(&a), kit.stream(&b));
    assert_eq!(groups.reproducible(), free);
    assert_eq!(other.end["state"], "done");
    assert!(kit.seen.queue_full.load(Ordering::SeqCst) > 0);
    assert!(kit.seen.most_in_flight.load(Ordering::SeqCst) <= 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_paging_and_events() {
    let kit = Kit::start(manner(4)).await;
    let (status, accepted) = kit.post(&job(9, json!({"job_id": "step-1", "sampling": {"max_tokens": 64, "temperature": 0.7}}))).await;
    assert_eq!(status, 202);
    assert_eq!(accepted["job_id"], "step-1");
    assert_eq!(accepted["events"], "/v1/rollouts/step-1/events");
    assert_eq!(accepted["sampling"]["temperature"], 0.7, "echoed as it was sent");
    assert_eq!(accepted["strategy"]["exit"], "balance");
    let lines = kit.client.get(format!("{}/v1/rollouts/step-1/events", kit.url)).send().await.unwrap().text().await.unwrap();
    let streamed = Streamed::read(&lines);
    assert_eq!(streamed.groups.len(), 9);
    let (_, job) = kit.get("/v1/rollouts/step-1").await;
    assert_eq!((&job["state"], &job["statistics"]["groups"]), (&json!("done"), &json!(9)));
    let mut paged = Vec::new();
    let mut cursor = 0;
    loop {
        let (_, page) = kit.get(&format!("/v1/rollouts/step-1/groups?cursor={cursor}&limit=4")).await;
        let groups = page["groups"].as_array().unwrap().clone();
        cursor = page["cursor"].as_u64().unwrap();
        if groups.is_empty() {
            break;
        }
        paged.extend(groups);
    }
    assert_eq!(paged, (0..9).map(|i| streamed.group(i)).collect::<Vec<_>>());
    let events = kit.client.get(format!("{}/v1/rollouts/step-1/events?cursor=8", kit.url)).header("accept", "text/event-stream");
    let text = events.send().await.unwrap().text().await.unwrap();
    assert_eq!(text.matches("event: group\n").count(), 2);
    assert!(text.starts_with("event: group\nid: 8\ndata: {") && text.contains("event: end\nid: 10\n"), "{text}");
    let (_, list) = kit.get("/v1/rollouts").await;
    assert_eq!(list["jobs"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_by_job_id() {
    let kit = Kit::start(manner(5)).await;
    let body = job(6, json!({"job_id": "once", "seed": null}));
    let posts = (0..10).map(|_| kit.post(&body));
    let answers = futures::future::join_all(posts).await;
    assert!(answers.iter().all(|(status, _)| *status == 202));
    assert!(answers.iter().all(|(_, answer)| answer["seed"] == answers[0].1["seed"]), "one job, one seed");
    assert_eq!(kit.get("/v1/rollouts").await.1["jobs"].as_array().unwrap().len(), 1);
    // The same request with its defaults written out and its keys in another order.
    let mut same = json!({"order": "request", "advantage": "ada", "weights": "latest", "return": {"logprobs": true, "text": true}, "strategy": {"group_size": 4, "kind": "sequential"}});
    for key in ["sampling", "prompts", "job_id"] {
        same[key] = body[key].clone();
    }
    same["sampling"]["top_p"] = json!(1.0);
    assert_eq!(kit.post(&same).await.0, 202);
    let first = kit.stream(&same).await;
    assert_eq!(first.groups, kit.stream(&body).await.groups, "an attached stream starts from the beginning");
    let mut other = body.clone();
    other["prompts"][0]["metadata"] = json!({"note": 1});
    let (status, answer) = kit.post(&other).await;
    assert_eq!((status, &answer["error"]["param"], &answer["error"]["code"]), (409, &json!("job_id"), &json!("conflict")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_answers_when_the_blocks_are_free() {
    let kit = Kit::start(Manner { delay: Duration::from_secs(60), ..manner(6) }).await;
    kit.post(&job(8, json!({"job_id": "long"}))).await;
    while kit.seen.in_flight.load(Ordering::SeqCst) < 8 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let started = Instant::now();
    let answer: Value = kit.client.delete(format!("{}/v1/rollouts/long", kit.url)).send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["state"], "cancelled");
    assert_eq!(kit.seen.in_flight.load(Ordering::SeqCst), 0);
    assert!(started.elapsed() < Duration::from_secs(5));
    let lines = kit.client.get(format!("{}/v1/rollouts/long/events", kit.url)).send().await.unwrap().text().await.unwrap();
    assert_eq!(Streamed::read(&lines).end["state"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_breaks_ends_an_unnamed_job_and_no_other() {
    let kit = Kit::start(Manner { delay: Duration::from_secs(3), ..manner(7) }).await;
    for (name, expected) in [(None, "cancelled"), (Some("named"), "done")] {
        let body = job(4, json!({"job_id": name, "strategy": {"exit": "positive", "max_samples": 4}}));
        let request = kit.client.post(format!("{}/v1/rollouts", kit.url)).header("accept", "application/x-ndjson").json(&body);
        let mut stream = request.send().await.unwrap().bytes_stream();
        let first: Value = serde_json::from_slice(&stream.next().await.unwrap().unwrap()).unwrap();
        let id = first["job"]["job_id"].as_str().unwrap().to_owned();
        drop(stream);
        let record = kit.state.jobs.find(&id).unwrap().unwrap();
        tokio::time::timeout(Duration::from_secs(30), record.over()).await.unwrap();
        assert_eq!(kit.get(&format!("/v1/rollouts/{id}")).await.1["state"], expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_bounded() {
    let limits = JobLimits { max_open: 3, max_running: 1 };
    let kit = Kit::with(Manner { delay: Duration::from_secs(60), ..manner(8) }, Options { jobs: limits, ..Options::default() }).await;
    for id in ["a", "b", "c"] {
        assert_eq!(kit.post(&job(2, json!({"job_id": id}))).await.0, 202);
    }
    let full = kit.client.post(format!("{}/v1/rollouts", kit.url)).json(&job(2, json!({"job_id": "d"}))).send().await.unwrap();
    assert_eq!(full.status(), 429);
    assert!(full.headers().contains_key("retry-after"));
    assert_eq!(full.json::<Value>().await.unwrap()["error"]["code"], "overloaded");
    assert_eq!(kit.post(&job(2, json!({"job_id": "a"}))).await.0, 202, "attaching needs no room");
    let states = |list: Value| list["jobs"].as_array().unwrap().iter().map(|j| j["state"].clone()).collect::<Vec<_>>();
    assert_eq!(states(kit.get("/v1/rollouts").await.1), ["queued", "queued", "running"], "newest first");
    for id in ["b", "a", "c"] {
        kit.client.delete(format!("{}/v1/rollouts/{id}", kit.url)).send().await.unwrap();
    }
    assert_eq!(kit.post(&job(2, json!({"job_id": "e"}))).await.0, 202);
    assert_eq!(states(kit.get("/v1/rollouts?limit=2").await.1)[1], "cancelled");
    assert_eq!(kit.get("/v1/rollouts/a").await.1["state"], "cancelled", "closed jobs stay readable");
    assert_eq!(kit.post(&job(2, json!({"job_id": "a", "seed": 9}))).await.0, 409, "and keep their ids");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_hold_nothing_up() {
    let kit = Kit::start(manner(9)).await;
    let body = job(40, json!({"job_id": "read-me", "return": {"all_samples": true}}));
    let mut idle = Vec::new();
    for _ in 0..50 {
        let request = kit.client.post(format!("{}/v1/rollouts", kit.url)).header("accept", "application/x-ndjson").json(&body);
        idle.push(request.send().await.unwrap());
    }
    let quick = tokio::time::timeout(Duration::from_secs(30), kit.stream(&body)).await.unwrap();
    assert_eq!(quick.groups.len(), 40);
    for response in idle {
        assert_eq!(Streamed::read(&response.text().await.unwrap()).groups, quick.groups);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_stops_fails_the_job_with_a_sentence() {
    let kit = Kit::start(Manner { delay: Duration::from_secs(1), ..manner(13) }).await;
    kit.post(&job(8, json!({"job_id": "before"}))).await;
    while kit.seen.in_flight.load(Ordering::SeqCst) < 8 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kit.seen.stopped.store(true, Ordering::SeqCst);
    kit.post(&job(8, json!({"job_id": "after"}))).await;
    // A sample that ends just before the stop makes the first job notice when it submits the next.
    for (id, sentence) in
        [("before", "stopped"), ("after", "the engine has stopped: the test stopped it; the job goes on when the server is back")]
    {
        tokio::time::timeout(Duration::from_secs(10), kit.state.jobs.find(id).unwrap().unwrap().over()).await.unwrap();
        let (_, job) = kit.get(&format!("/v1/rollouts/{id}")).await;
        assert_eq!(job["state"], "failed");
        assert!(job["error"].as_str().unwrap().contains(sentence), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_gold_can_fail_its_group_alone() {
    let kit = Kit::start(manner(10)).await;
    let mut body = job(5, json!({"bad_gold": "fail_group"}));
    body["prompts"][2]["reward"]["answer"] = json!("todo");
    let streamed = kit.stream(&body).await;
    let group = streamed.group(2);
    assert_eq!((&group["status"], &group["exit"], &group["stats"]["seen"]), (&json!("failed"), &json!(null), &json!(0)));
    assert_eq!(group["samples"], json!([]));
    let why = "bad gold: reward.answer is \"todo\", which is a placeholder and no answer; give the answer itself, or leave the prompt out";
    assert_eq!(group["error"], why);
    assert_eq!(streamed.groups.len(), 5);
    assert_eq!(streamed.end["state"], "done");
    // The others are those of the job without it.
    let good = kit.stream(&job(5, json!({}))).await;
    for position in [0, 1, 3, 4] {
        assert_eq!(streamed.reproducible()[position], good.reproducible()[position]);
        assert_eq!(streamed.group(position)["error"], Value::Null);
    }
    let sum = |of: &Streamed, name: &str| (0..5).map(|i| of.group(i)["stats"][name].as_u64().unwrap()).sum::<u64>();
    let statistics = &streamed.end["statistics"];
    assert_eq!((&statistics["groups"], &statistics["failed"]), (&json!(5), &json!(1)));
    assert_eq!(statistics["samples_seen"], sum(&streamed, "seen"));
    assert_eq!(statistics["samples_positive"], sum(&streamed, "positive"));
    assert_eq!(sum(&streamed, "seen"), sum(&good, "seen") - good.group(2)["stats"]["seen"].as_u64().unwrap());
    // What it would have taken of a budget is there for those behind it.
    for bad in ["p0", "p2"] {
        let mut body = job(5, json!({"bad_gold": "fail_group", "strategy": {"budget": 40}}));
        let prompt = body["prompts"].as_array_mut().unwrap().iter_mut().find(|prompt| prompt["id"] == bad).unwrap();
        prompt["reward"]["answer"] = json!("");
        assert_eq!(sum(&kit.stream(&body).await, "seen"), 40, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_gold_is_named_at_once() {
    let kit = Kit::start(manner(10)).await;
    let mut body = job(300, json!({}));
    let bad = |body: &mut Value, position: usize, reward: Value| body["prompts"][position]["reward"] = reward;
    bad(&mut body, 3, json!({"kind": "math", "answer": "todo"}));
    bad(&mut body, 250, json!({"kind": "choice", "answer": "E"}));
    bad(&mut body, 299, json!({"kind": "exact", "answer": " "}));
    let (status, answer) = kit.post(&body).await;
    let error = &answer["error"];
    assert_eq!((status, &error["code"], &error["param"]), (422, &json!("invalid_request"), &json!("prompts[3].reward.answer")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("in all 3 prompts") && message.contains("\"bad_gold\": \"fail_group\""), "{message}");
    let named: Vec<_> = error["details"].as_array().unwrap().iter().map(|d| (d["prompt_id"].clone(), d["param"].clone())).collect();
    let path = |position: usize| (json!(format!("p{position}")), json!(format!("prompts[{position}].reward.answer")));
    assert_eq!(named, [path(3), path(250), path(299)]);
    assert!(error["details"][1]["problem"].as_str().unwrap().contains("not among the choices A, B, C, D"), "{error}");
    for position in 0..150 {
        bad(&mut body, position, json!({"kind": "math", "answer": "todo"}));
    }
    let (_, answer) = kit.post(&body).await;
    assert_eq!(answer["error"]["details"].as_array().unwrap().len(), 100);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("in all 152 prompts") && message.contains("name the first 100"), "{message}");
    // A single one needs no list to be found.
    let mut body = job(3, json!({}));
    bad(&mut body, 1, json!({"kind": "math", "answer": "todo"}));
    let (_, answer) = kit.post(&body).await;
    assert!(!answer["error"]["message"].as_str().unwrap().contains("in all"), "{answer}");
    assert_eq!(kit.get("/v1/rollouts").await.1["jobs"], json!([]), "nothing was accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_gives_open_jobs_their_time() {
    let mut options = Options::default();
    options.limits.shutdown_seconds = 1;
    let mut kit = Kit::with(Manner { delay: Duration::from_secs(60), ..manner(11) }, options).await;
    let body = job(2, json!({"job_id": "open"}));
    let request = kit.client.post(format!("{}/v1/rollouts", kit.url)).header("accept", "application/x-ndjson").json(&body);
    let response = request.send().await.unwrap();
    kit.stop();
    let streamed = Streamed::read(&response.text().await.unwrap());
    assert_eq!(streamed.end["state"], "cancelled");
    let served = kit.served.take().unwrap();
    tokio::time::timeout(Duration::from_secs(10), served).await.unwrap().unwrap().unwrap();
    assert_eq!(kit.seen.in_flight.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_state_score_and_metrics() {
    let kit = Kit::start(manner(12)).await;
    kit.stream(&job(10, json!({}))).await;
    assert_eq!(kit.get("/livez").await.0, 200);
    assert_eq!(kit.get("/readyz").await, (200, json!({"ready": true, "weights_version": 3})));
    let (_, state) = kit.get("/v1/state").await;
    assert_eq!((&state["jobs"]["done"], &state["engine"]["info"]["vocab_size"]), (&json!(1), &json!(256)));
    let body = json!({"sequences": [{"token_ids": [1, 2, 3], "prompt_len": 1}, {"token_ids": [9, 7], "prompt_len": 1}], "sampling": {"temperature": 2.0}});
    let (status, scores) = kit.post_raw("/v1/score", body.to_string()).await;
    assert_eq!((status, &scores["version"]), (200, &json!(3)));
    assert_eq!(scores["sequences"][0]["logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(scores["sequences"][1]["logprobs_raw"], json!([-1.0]));
    let text = kit.client.get(format!("{}/metrics", kit.url)).send().await.unwrap().text().await.unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("adaroll_") || name.starts_with("vllm:"), "{line}");
        assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
    }
    let value = |name: &str| -> f64 {
        text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
    };
    let groups: f64 = ["resolved", "exhausted", "failed"].iter().map(|s| value(&format!("adaroll_groups_total{{status=\"{s}\"}}"))).sum();
    assert_eq!(groups, 10.0);
    assert_eq!(value("adaroll_samples_per_group_count"), 10.0);
    assert_eq!(value("adaroll_tokens_total{kind=\"generated\"}"), 1234.0);
    assert_eq!(value("adaroll_kv_blocks{state=\"used\"}"), 40.0);
    assert_eq!(value("vllm:kv_cache_usage_perc"), 0.4);
    assert_eq!(value("adaroll_open_prompts"), 0.0);
    assert!(text.contains("adaroll_http_request_seconds_count{code=\"200\",route=\"/v1/rollouts\"} 1"), "{text}");
}
