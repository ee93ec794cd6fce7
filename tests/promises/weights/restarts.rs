//! A restarted server knows versions by their tensors, not by their numbers alone, serves them in the order in which its open jobs need them,
//! and takes nobody else's files for its own.

use serde_json::{Value, json};

use super::crash::{Process, files, score, setup, versions};
use super::kit::{bytes, folder, held, job, naming, token_of};
use crate::server_kit::Streamed;
use crate::tiny_model::TinyModel;

async fn weights(process: &Process) -> Value {
    process.get("/v1/weights").await.1
}

async fn serves(process: &Process, version: u64) {
    process.until(&format!("version {version} serves"), async |process| weights(process).await["version"] == version).await;
}

/// Tokens that the live version draws, which must be one.
async fn token(process: &Process) -> u64 {
    let request = process.client.post(format!("{}/v1/rollouts", process.url)).header("accept", "application/x-ndjson");
    let streamed = Streamed::read(&request.json(&job(1, 2, 6, json!({}))).send().await.unwrap().text().await.unwrap());
    let samples = streamed.group(0)["samples"].as_array().unwrap().clone();
    let tokens: Vec<u64> = samples.iter().flat_map(|sample| sample["token_ids"].as_array().unwrap()).filter_map(Value::as_u64).collect();
    assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    tokens[0]
}

/// Pushes the tensors that [`naming`] gives `named` as `version`.
async fn push(process: &Process, query: &str, named: u64) -> (u16, Value) {
    process.ask(process.client.put(format!("{}/v1/weights?{query}", process.url)).body(bytes(&naming(named)))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_version_that_a_job_needs_serves_first_whichever_job_is_older() {
    let (model, store) = setup();
    let first = Process::start(model.path(), &store, None);
    assert_eq!(first.put("version=1", 1).await.unwrap().0, 200);
    first.post("/v1/rollouts", &held("a", json!({}))).await;
    assert_eq!(first.put("version=2&async=true", 2).await.unwrap().0, 202);
    assert_eq!(first.post("/v1/rollouts", &held("b", json!({}))).await.1["weights_version"], 2);
    // Accepted later, for the earlier version.
    assert_eq!(first.post("/v1/rollouts", &held("c", json!({"weights": 1}))).await.1["weights_version"], 1);
    score(&first, "a").await;
    first.until("a is done", async |process| process.get("/v1/rollouts/a").await.1["state"] == "done").await;
    drop(first);

    let second = Process::start(model.path(), &store, None);
    let now = weights(&second).await;
    assert_eq!((&now["version"], &now["staged"], &now["needed"]), (&json!(1), &json!(2), &Value::Null), "{now}");
    let (status, ready) = second.get("/readyz").await;
    assert_eq!(status, 200, "{ready}");
    score(&second, "c").await;
    serves(&second, 2).await;
    score(&second, "b").await;
    for (id, version) in [("a", 1), ("c", 1), ("b", 2)] {
        assert!(versions(&second, id).await.iter().all(|spans| spans[..] == [(version, 8)]), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_with_other_tensors_is_another_version() {
    let (model, store) = setup();
    let first = Process::start(model.path(), &store, None);
    assert_eq!(push(&first, "version=5", 1).await.0, 200);
    first.post("/v1/rollouts", &held("a", json!({}))).await;
    let (status, answer) = push(&first, "version=5&rollback=true&async=true", 2).await;
    assert_eq!(status, 202, "{answer}");
    drop(first);

    // The last one committed as 5 is not the one that the job has samples of.
    let second = Process::start(model.path(), &store, None);
    let now = weights(&second).await;
    assert_eq!((&now["version"], &now["staged"]), (&json!(5), &json!(5)), "{now}");
    score(&second, "a").await;
    let text = second.client.get(format!("{}/v1/rollouts/a/events", second.url)).send().await.unwrap().text().await.unwrap();
    let group = Streamed::read(&text).group(0).clone();
    for sample in group["samples"].as_array().unwrap() {
        assert!(sample["token_ids"].as_array().unwrap().iter().all(|token| *token == token_of(1)), "{sample}");
    }
    second.until("the other tensors serve", async |process| weights(process).await["staged"].is_null()).await;
    assert_eq!(token(&second).await, u64::from(token_of(2)));
    // A job that is not held up by weights has no way to tell the two apart, so that these wait for it as well.
    second.post("/v1/rollouts", &held("b", json!({"on_weight_update": "continue"}))).await;
    assert_eq!(push(&second, "version=5&rollback=true&async=true", 3).await.0, 202);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(weights(&second).await["staged"], 5);
    score(&second, "b").await;
    second.until("they serve", async |process| weights(process).await["staged"].is_null()).await;
    assert_eq!(token(&second).await, u64::from(token_of(3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_restarts_knows_after_a_death_which_weights_its_samples_are_of() {
    // One group, of more samples than fit at a time: killed when some are in the store, before the job heard of the swap.
    let (model, store) = setup();
    let mut dying = Process::start(model.path(), &store, Some("weights.after_commit:2"));
    assert_eq!(dying.put("version=1", 1).await.unwrap().0, 200);
    let (status, answer) = dying.post("/v1/rollouts", &job(1, 600, 100, json!({"job_id": "r", "on_weight_update": "restart"}))).await;
    assert_eq!(status, 202, "{answer}");
    dying
        .until("some samples have ended", async |process| {
            // Seven blocks of 256 each: 36 run at a time.
            process.get("/v1/state").await.1["engine"]["stats"]["generated_tokens"].as_u64().is_some_and(|tokens| tokens > 2 * 36 * 100)
        })
        .await;
    assert_eq!(dying.put("version=2", 2).await, None);
    assert!(dying.died());
    drop(dying);
    let again = Process::start(model.path(), &store, None);
    assert_eq!(weights(&again).await["version"], 2);
    let samples = versions(&again, "r").await;
    assert_eq!(samples.len(), 600);
    assert!(samples.iter().all(|spans| spans[..] == [(2, 100)]), "a group of two versions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_of_weights_may_be_shared_and_a_store_may_have_seen_another_model() {
    let (model, store) = setup();
    let shared = model.path().join("shared");
    let variable = || Some(("ADAROLL_WEIGHTS_DIR", shared.display().to_string()));
    let other_store = model.path().join("other.db");
    assert_eq!(Process::with(model.path(), &store, variable()).put("version=1", 1).await.unwrap().0, 200);
    // Looks through the folder at its start, and would take what it does not know for left over.
    std::fs::write(shared.join("vision.safetensors"), b"a user's").unwrap();
    assert_eq!(Process::with(model.path(), &other_store, variable()).put("version=7", 7).await.unwrap().0, 200);
    assert_eq!(Process::with(model.path(), &store, variable()).serves().await, 1);
    assert_eq!(Process::with(model.path(), &other_store, variable()).serves().await, 7);
    assert_eq!(std::fs::read_dir(&shared).unwrap().count(), 3);
    assert!(files(&store).is_empty());

    // Another model in the place of the first: its weights are its folder's, and those of the first are still there when it is back.
    let other = folder(&TinyModel { seed: 9, ..TinyModel::default() });
    let process = Process::with(other.path(), &store, variable());
    assert_eq!(weights(&process).await["version"], 0);
    for version in 1..=3 {
        assert_eq!(push(&process, &format!("version={version}"), version + 1).await.0, 200);
    }
    drop(process);
    assert_eq!(Process::with(model.path(), &store, variable()).serves().await, 1);
}
