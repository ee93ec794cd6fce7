//! What jobs promise over HTTP beside their groups: scores that the client posts, budgets, wanted groups, deadlines, priorities, history, and a
//! server that goes on where another one stopped.

use std::sync::atomic::Ordering;
use std::time::Duration;

use adaroll::rollout::{JobState, Width};
use adaroll::server::Options;
use adaroll::store::{Store, StoreError, StorePath};
use serde_json::{Value, json};

use crate::fake_engine::Manner;
use crate::server_kit::{Kit, Streamed, job};

fn manner(seed: u64) -> Manner {
    Manner { seed, delay: Duration::from_millis(3), ..Manner::default() }
}

async fn events(kit: &Kit, id: &str) -> Streamed {
    let response = kit.client.get(format!("{}/v1/rollouts/{id}/events", kit.url)).send().await.unwrap();
    Streamed::read(&response.text().await.unwrap())
}

async fn post_scores(kit: &Kit, id: &str, scores: Value) -> (u16, Value) {
    kit.post_raw(&format!("/v1/rollouts/{id}/scores"), json!({"scores": scores}).to_string()).await
}

/// A group without what verifiers found, and without its timing.
fn without_found(mut group: Value) -> Value {
    group.as_object_mut().unwrap().remove("timing");
    for sample in group["samples"].as_array_mut().unwrap() {
        let spoke = sample["finish_reason"] != "length";
        for field in ["verdict", "extracted", "rule"] {
            assert_eq!(sample.as_object_mut().unwrap().shift_remove(field).is_some(), spoke, "{sample}");
        }
    }
    group
}

/// The same job with `pull` rewards.
fn pulled(mut body: Value) -> Value {
    for prompt in body["prompts"].as_array_mut().unwrap() {
        prompt["reward"] = json!({"kind": "pull"});
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn posted_scores_make_the_groups_that_our_verifier_makes() {
    let body = job(10, json!({"job_id": "pull", "strategy": {"max_samples": 12}}));
    let by_verifier = Kit::start(manner(1)).await.stream(&body).await;
    // What a client scores shows no verifier's words.
    let reference: Vec<Value> = (0..10).map(|position| without_found(by_verifier.group(position))).collect();
    let kit = Kit::start(manner(2)).await;
    assert_eq!(kit.post(&pulled(body)).await.0, 202);
    let (mut posted, mut not_needed, mut rounds) = (0, 0, 0);
    loop {
        let (_, page) = kit.get("/v1/rollouts/pull/pending?limit=7&wait_s=1").await;
        let samples = page["samples"].as_array().unwrap().clone();
        if samples.is_empty() && kit.get("/v1/rollouts/pull").await.1["state"] == "done" {
            break;
        }
        let score = |s: &Value| {
            let right = s["text"].as_str().unwrap().ends_with("#### 72");
            json!({"prompt_id": s["prompt_id"], "index": s["index"], "reward": f64::from(u8::from(right))})
        };
        let scores: Vec<Value> = samples.iter().map(score).collect();
        let (status, answer) = post_scores(&kit, "pull", json!(scores)).await;
        // The last score ends the job; what is posted behind it finds it closed.
        assert!(status == 200 || status == 409, "{answer}");
        posted += answer["accepted"].as_u64().unwrap_or(0);
        not_needed += answer["not_needed"].as_u64().unwrap_or(0);
        if rounds == 0 && status == 200 {
            let (_, again) = post_scores(&kit, "pull", json!(scores)).await;
            let known = again["repeated"].as_u64().unwrap_or(0) + again["not_needed"].as_u64().unwrap_or(0);
            assert_eq!(known as usize, scores.len(), "a score may be posted twice: {again}");
        }
        rounds += 1;
    }
    let pulled = events(&kit, "pull").await;
    for (position, reference) in reference.iter().enumerate() {
        let mut group = pulled.group(position);
        group.as_object_mut().unwrap().remove("timing");
        assert_eq!(group, *reference);
    }
    assert!(posted > 40, "{posted} posted, {not_needed} not needed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_scores_are_refused_by_field_and_conflicts_are_told() {
    // Few ahead: the last index must not be there yet.
    let width = Width { q_min: 0.9, ..Width::default() };
    let kit = Kit::with(manner(3), Options { width, ..Options::default() }).await;
    let mut body = pulled(job(2, json!({"job_id": "pull"})));
    body["prompts"][1]["reward"] = json!({"kind": "math", "answer": "72"});
    kit.post(&body).await;
    let (_, page) = kit.get("/v1/rollouts/pull/pending?wait_s=5").await;
    let first = &page["samples"][0];
    assert_eq!(first["prompt_id"], "p0");
    for (score, param) in [
        (json!({"prompt_id": "none", "index": 0, "reward": 1}), "scores[0].prompt_id"),
        (json!({"prompt_id": "p1", "index": 0, "reward": 1}), "scores[0].prompt_id"),
        (json!({"prompt_id": "p0", "index": 99, "reward": 1}), "scores[0].index"),
        (json!({"prompt_id": "p0", "index": 0}), "scores[0].reward"),
        (json!({"prompt_id": "p0", "index": 0, "reward": 1, "error": "both"}), "scores[0].reward"),
        (json!({"prompt_id": "p0", "index": 0, "reward": "high"}), "scores[0].reward"),
    ] {
        let (status, answer) = post_scores(&kit, "pull", json!([score])).await;
        assert_eq!((status, &answer["error"]["param"]), (422, &json!(param)), "{score}: {answer}");
    }
    let index = first["index"].as_u64().unwrap();
    let (_, answer) = post_scores(&kit, "pull", json!([{"prompt_id": "p0", "index": index, "reward": 0.25}])).await;
    assert_eq!(answer["accepted"], 1);
    let (_, answer) = post_scores(&kit, "pull", json!([{"prompt_id": "p0", "index": index, "reward": 1}])).await;
    assert_eq!(answer["conflicts"], json!([{"prompt_id": "p0", "index": index, "reward": 0.25}]), "the first score stands");
    let (_, answer) = post_scores(&kit, "pull", json!([{"prompt_id": "p0", "index": 31, "reward": 1}])).await;
    assert_eq!(answer["not_finished"][0]["index"], 31, "{answer}");
    assert_eq!(kit.get("/v1/rollouts/pull/pending?limit=0").await.0, 422);
    assert_eq!(post_scores(&kit, "other", json!([])).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_charged_in_request_order_and_dapo_delivers_the_first_informative() {
    let kit = Kit::start(manner(4)).await;
    let budget = kit.stream(&job(20, json!({"strategy": {"budget": 90}}))).await;
    assert_eq!(budget.groups.len(), 20);
    let groups: Vec<Value> = (0..20).map(|i| budget.group(i)).collect();
    let seen: u64 = groups.iter().map(|g| g["stats"]["seen"].as_u64().unwrap()).sum();
    assert_eq!(seen, 90, "every sample of the budget is spent, and none more");
    let first_cut = groups.iter().position(|g| g["exit"] == "budget").unwrap();
    for group in &groups[first_cut + 1..] {
        assert_eq!((&group["status"], &group["exit"], &group["stats"]["seen"]), (&json!("exhausted"), &json!("budget"), &json!(0)));
    }
    let free = kit.stream(&job(20, json!({}))).await;
    assert_eq!(budget.reproducible()[..first_cut], free.reproducible()[..first_cut], "before it ends, a budget changes nothing");

    let uniform = kit.stream(&job(30, json!({"strategy": {"kind": "uniform", "group_size": 4}}))).await;
    let dapo = kit.stream(&job(30, json!({"strategy": {"kind": "dapo", "group_size": 4, "groups_wanted": 5}}))).await;
    let informative: Vec<String> = uniform.reproducible().into_iter().filter(|g| g.contains("\"signal\":true")).take(5).collect();
    assert_eq!(dapo.reproducible(), informative);
    assert_eq!(dapo.end["statistics"]["groups"], 5);
    assert!(dapo.end["statistics"]["dropped"].as_u64().unwrap() > 0);
    assert_eq!(kit.seen.in_flight.load(Ordering::SeqCst), 0, "what nobody needs was cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_ends_a_job_and_a_priority_goes_first() {
    let kit =
        Kit::with(Manner { slots: 4, delay: Duration::from_millis(20), ..manner(5) }, Options { max_in_flight: 4, ..Options::default() })
            .await;
    let slow = job(60, json!({"job_id": "training", "strategy": {"exit": "balance"}}));
    kit.post(&slow).await;
    let evaluation = job(6, json!({"priority": 5, "strategy": {"kind": "uniform", "group_size": 2}}));
    let began = std::time::Instant::now();
    let done = kit.stream(&evaluation).await;
    assert_eq!(done.groups.len(), 6);
    let (_, training) = kit.get("/v1/rollouts/training").await;
    assert_eq!(training["state"], "running", "12 samples of high priority passed a job of hundreds, in {:?}", began.elapsed());
    let late = kit.stream(&job(200, json!({"deadline_s": 0.2}))).await;
    assert_eq!(late.end["state"], "failed");
    assert!(late.end["error"].as_str().unwrap().contains("deadline_s of 0.2 has passed"), "{}", late.end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_kept_per_namespace_and_used() {
    let kit = Kit::start(manner(6)).await;
    let body = |more: Value| job(7, more);
    let estimate = |namespace: &str| {
        body(
            json!({"namespace": namespace, "advantage": "ada_est", "strategy": {"kind": "estimate", "budget": 70, "min_samples": 2, "max_samples": 30}}),
        )
    };
    let seen = |streamed: &Streamed| (0..7).map(|i| streamed.group(i)["stats"]["seen"].as_u64().unwrap()).collect::<Vec<_>>();
    let before = seen(&kit.stream(&estimate("a")).await);
    assert_eq!(before, [10; 7], "without history all prompts are alike");
    let after = kit.stream(&estimate("a")).await;
    assert_eq!(seen(&after).iter().sum::<u64>(), 70);
    // Pass rates 0, 10, 30, 50, 70, 90, 100 percent.
    assert!(seen(&after)[0] > seen(&after)[6] + 3, "harder prompts get more: {:?}", seen(&after));
    assert_eq!(seen(&kit.stream(&estimate("b")).await), [10; 7], "another namespace knows nothing");
    // As a prior of the planner it changes nothing in the groups.
    let plain = kit.stream(&body(json!({}))).await.reproducible();
    let with_prior = kit.stream(&body(json!({"namespace": "a", "strategy": {"history_prior": 0.5}}))).await.reproducible();
    assert_eq!(with_prior, plain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_goes_on_where_another_one_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let path = StorePath::File(dir.path().join("jobs.db"));
    let body = job(24, json!({"job_id": "long"}));
    let reference = Kit::start(manner(7)).await.stream(&body).await.reproducible();
    let mut options = Options { max_in_flight: 3, width: Width::default(), ..Options::default() };
    options.limits.shutdown_seconds = 0;
    let mut delivered = 0;
    for life in 0..20 {
        // The last server's connections hold its store for a moment longer.
        let store = loop {
            match Store::open(&path) {
                Ok(store) => break store,
                Err(StoreError::Locked(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
        };
        let mut kit = Kit::over(Manner { delay: Duration::from_millis(15), ..manner(life) }, options.clone(), store).await;
        let (status, answer) = kit.post(&body).await;
        assert_eq!(status, 202, "{answer}");
        tokio::time::sleep(Duration::from_millis(150)).await;
        let (_, view) = kit.get("/v1/rollouts/long").await;
        let now = view["statistics"]["groups"].as_u64().unwrap();
        assert!(now >= delivered, "what was delivered stays: {view}");
        delivered = now;
        if view["state"] == "done" {
            assert!(life > 1, "the job outlived at least two servers");
            assert_eq!(events(&kit, "long").await.reproducible(), reference);
            return;
        }
        kit.stop();
        kit.served.take().unwrap().await.unwrap().unwrap();
        assert_eq!(kit.seen.in_flight.load(Ordering::SeqCst), 0, "a shutdown leaves nothing in the engine");
    }
    panic!("the job did not finish in 20 lives: {delivered} groups");
}

/// A job that was posted and left has no connection that would keep the server up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_gives_a_job_without_connections_its_time() {
    let mut kit = Kit::start(Manner { delay: Duration::from_millis(40), ..manner(9) }).await;
    kit.post(&job(6, json!({"job_id": "left"}))).await;
    let record = kit.state.jobs.find("left").unwrap().unwrap();
    kit.client = crate::server_kit::client();
    kit.stop();
    tokio::time::timeout(Duration::from_secs(20), kit.served.take().unwrap()).await.unwrap().unwrap().unwrap();
    assert_eq!((record.state(), record.totals().groups), (JobState::Done, 6), "it was not cut off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_lost_its_engine_stays_open_on_disk_and_can_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = StorePath::File(dir.path().join("jobs.db"));
    let kit = Kit::over(Manner { delay: Duration::from_millis(300), ..manner(10) }, Options::default(), Store::open(&path).unwrap()).await;
    kit.post(&job(4, json!({"job_id": "lost"}))).await;
    kit.seen.stopped.store(true, Ordering::SeqCst);
    let record = kit.state.jobs.find("lost").unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(10), record.over()).await.unwrap();
    let stream = || async { kit.client.get(format!("{}/v1/rollouts/lost/events", kit.url)).send().await.unwrap().text().await.unwrap() };
    assert!(!stream().await.contains("\"end\""), "its log has no end while it can go on");
    assert_eq!(kit.state.jobs.store().open_jobs().unwrap().len(), 1);
    let answer = kit.client.delete(format!("{}/v1/rollouts/lost", kit.url)).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.json::<Value>().await.unwrap()["state"].clone()), (200, json!("cancelled")));
    assert!(kit.state.jobs.store().open_jobs().unwrap().is_empty(), "and a restart does not take it up");
    let ended = tokio::time::timeout(Duration::from_secs(5), stream()).await.expect("a reader of an ended job is not kept waiting");
    assert_eq!(Streamed::read(&ended).end["state"], "cancelled");
    assert_eq!(record.state(), JobState::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_stops_jobs_and_says_so() {
    let kit = Kit::start(Manner { delay: Duration::from_millis(30), ..manner(8) }).await;
    kit.post(&job(30, json!({"job_id": "unlucky"}))).await;
    kit.state.jobs.store().limit_pages(0).unwrap();
    let record = kit.state.jobs.find("unlucky").unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(20), record.over()).await.unwrap();
    let (status, ready) = kit.get("/readyz").await;
    assert_eq!((status, &ready["error"]["code"]), (503, &json!("not_ready")), "{ready}");
    let (status, refused) = kit.post(&job(2, json!({}))).await;
    assert_eq!(status, 503, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("store"), "{refused}");
}
