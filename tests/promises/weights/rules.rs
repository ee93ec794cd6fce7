//! `on_weight_update`: what a push does to the jobs that are open, and which version a job is accepted for.

use serde_json::{Value, json};

use super::kit::{Served, bytes, folder, held, job, naming, random, scores, spans};
use crate::server_kit::Streamed;
use crate::tiny_model::{TinyModel, write_safetensors};

/// Enough for a push to fall into a job.
const PROMPTS: u32 = 20;

async fn score(served: &Served, id: &str) {
    served
        .until("samples wait for scores", async |served| {
            served.get(&format!("/v1/rollouts/{id}/pending")).await.1["samples"].as_array().is_some_and(|samples| samples.len() == 2)
        })
        .await;
    let (status, answer) = served.post(&format!("/v1/rollouts/{id}/scores"), &scores()).await;
    assert_eq!(status, 200, "{answer}");
}

async fn events(served: &Served, id: &str) -> Streamed {
    let text = served.client.get(format!("{}/v1/rollouts/{id}/events", served.url)).send().await.unwrap().text().await.unwrap();
    Streamed::read(&text)
}

async fn state(served: &Served, id: &str) -> Value {
    served.get(&format!("/v1/rollouts/{id}")).await.1["state"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_waits_for_jobs_that_finish_and_later_jobs_wait_for_the_push() {
    let model = folder(&TinyModel::default());
    write_safetensors(&model.path().join("model.safetensors"), &naming(0));
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[]).await;
    let (status, old) = served.post("/v1/rollouts", &held("old", json!({}))).await;
    assert_eq!((status, &old["weights_version"], &old["on_weight_update"]), (202, &json!(0), &json!("finish")), "{old}");
    let (status, _) = served.put("version=7&async=true", bytes(&naming(7))).await;
    assert_eq!(status, 202);
    served.until("the push waits", async |served| served.get("/v1/weights").await.1["last"]["state"] == "waiting").await;
    let (_, now) = served.get("/v1/weights").await;
    assert_eq!((&now["version"], &now["staged"]), (&json!(0), &json!(7)), "{now}");

    // Accepted meanwhile: the newest version is the staged one; the live one can be named; no other can.
    let (_, new) = served.post("/v1/rollouts", &job(2, 2, 8, json!({"job_id": "new"}))).await;
    assert_eq!((&new["weights_version"], &new["state"]), (&json!(7), &json!("queued")));
    let (_, named) =
        served.post("/v1/rollouts", &job(2, 2, 8, json!({"job_id": "named", "weights": 7, "on_weight_update": "continue"}))).await;
    assert_eq!(named["weights_version"], 7);
    let live = served.stream(&job(2, 2, 8, json!({"job_id": "live", "weights": 0}))).await;
    assert_eq!((&live.end["state"], &live.job["weights_version"]), (&json!("done"), &json!(0)), "a job of the live version runs meanwhile");
    assert!(spans(&live).iter().all(|spans| spans[..] == [(0, 8)]));
    let (status, answer) = served.post("/v1/rollouts", &job(1, 2, 8, json!({"weights": 6}))).await;
    assert_eq!((status, answer["error"]["param"].as_str()), (409, Some("weights")), "{answer}");
    // Even so a deadline counts.
    let late = served.stream(&job(2, 2, 8, json!({"deadline_s": 0.1}))).await;
    assert_eq!(late.end["state"], "failed", "{}", late.end);
    assert_eq!((state(&served, "new").await, served.live().await), (json!("queued"), 0));

    score(&served, "old").await;
    served.until("the push is through", async |served| served.live().await == 7).await;
    for id in ["new", "named"] {
        let done = events(&served, id).await;
        assert_eq!(done.end["state"], "done");
        assert!(spans(&done).iter().all(|spans| spans[..] == [(7, 8)]), "{id}");
    }
    let old = events(&served, "old").await;
    assert!(spans(&old).iter().all(|spans| spans[..] == [(0, 8)]));
    let (status, answer) = served.post("/v1/rollouts", &job(1, 2, 8, json!({"weights": 0}))).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (409, Some("conflict")), "the old version is gone: {answer}");
    // A cancelled job holds nothing up either; nor does one with another rule.
    served.post("/v1/rollouts", &held("cancelled", json!({}))).await;
    let (_, open) = served.post("/v1/rollouts", &held("open", json!({"on_weight_update": "continue"}))).await;
    assert_eq!(open["weights_version"], 7);
    served.put("version=8&async=true", bytes(&naming(8))).await;
    served.until("the push waits", async |served| served.get("/v1/weights").await.1["staged"] == 8).await;
    served.delete("/v1/rollouts/cancelled").await;
    served.until("the push is through", async |served| served.live().await == 8).await;
    assert_eq!(state(&served, "open").await, "running");
    let (status, answer) = served.post("/v1/rollouts", &held("x", json!({"on_weight_update": "restart"}))).await;
    assert_eq!((status, answer["error"]["param"].as_str()), (422, Some("on_weight_update")), "{answer}");
}

/// Long answers of a random model, in the middle of which weights are pushed; then the same job wholly under the old and the new weights.
async fn across_a_push(rule: &str) -> (Served, Streamed, [Streamed; 2]) {
    let model = folder(&TinyModel::default());
    let dir = tempfile::tempdir().unwrap();
    let mut served = Served::start(model.path(), dir.path(), &[]).await;
    let body = |more: Value| job(PROMPTS, 4, 100, more);
    let before = served.stream(&body(json!({}))).await;
    for round in 0..20u64 {
        let version = 1 + round;
        let id = format!("crossing-{round}");
        served.post("/v1/rollouts", &body(json!({"job_id": id, "on_weight_update": rule}))).await;
        served
            .until("the first group is there", async |served| {
                served.get(&format!("/v1/rollouts/{id}")).await.1["statistics"]["groups"].as_u64().unwrap() >= 1
            })
            .await;
        served.push(version, &random(2)).await;
        let crossing = events(&served, &id).await;
        assert_eq!(crossing.end["state"], "done");
        let touched = |group: &String| group.contains(&format!("\"version\":{version}"));
        if crossing.groups.iter().any(touched) && !crossing.groups.iter().all(touched) {
            let after = served.stream(&body(json!({}))).await;
            served.served.take().unwrap().abort();
            return (served, crossing, [before, after]);
        }
        // The job was too quick for the push: back to the start.
        let (status, answer) = served.put("version=0&rollback=true", bytes(&random(1))).await;
        assert_eq!(status, 200, "{answer}");
    }
    panic!("no push fell into a job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_restarts_has_groups_of_one_version_each() {
    let (_served, crossing, [before, after]) = across_a_push("restart").await;
    let (mut old, mut new) = (0, 0);
    for (i, group) in crossing.reproducible().into_iter().enumerate() {
        // A group is what a job wholly under its version has in its place, bit for bit.
        match () {
            () if group == before.reproducible()[i] => old += 1,
            () if group == after.reproducible()[i] => new += 1,
            () => panic!("group {i} is neither of the old nor of the new weights: {group}"),
        }
    }
    println!("{old} groups of the old weights and {new} of the new ones");
    assert!(old >= 1 && new >= 1);
    let discarded: u64 = (0..PROMPTS as usize).map(|i| crossing.group(i)["timing"]["tokens_discarded"].as_u64().unwrap()).sum();
    assert!(discarded > 0, "what was lost is counted");
    assert!(crossing.groups.iter().all(|group| group.contains("\"mixed_versions\":false")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_continues_keeps_its_tokens_and_goes_on_under_the_new_weights() {
    let model = folder(&TinyModel::default());
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[]).await;
    let body = |more: Value| job(PROMPTS, 4, 100, more);
    let before = served.stream(&body(json!({}))).await;
    let mut crossed = 0;
    for round in 0..20u64 {
        let id = format!("crossing-{round}");
        served.post("/v1/rollouts", &body(json!({"job_id": id, "on_weight_update": "continue"}))).await;
        served
            .until("the first group is there", async |served| {
                served.get(&format!("/v1/rollouts/{id}")).await.1["statistics"]["groups"].as_u64().unwrap() >= 1
            })
            .await;
        served.push(1 + round, &random(2)).await;
        let crossing = events(&served, &id).await;
        for i in 0..PROMPTS as usize {
            let (group, old) = (crossing.group(i), before.group(i));
            let mut mixed = false;
            for (sample, old) in group["samples"].as_array().unwrap().iter().zip(old["samples"].as_array().unwrap()) {
                let spans = sample["weight_versions"].as_array().unwrap();
                if spans.len() < 2 {
                    continue;
                }
                (mixed, crossed) = (true, crossed + 1);
                let turn = spans[0]["end"].as_u64().unwrap() as usize;
                let part = |sample: &Value, key: &str| sample[key].as_array().unwrap()[..turn].to_vec();
                assert_eq!((part(sample, "token_ids"), part(sample, "logprobs")), (part(old, "token_ids"), part(old, "logprobs")));
                // The rest has the probabilities that the new weights give to it after all of the old tokens.
                let prompt = group["prompt_token_ids"].as_array().unwrap();
                let all: Vec<Value> = prompt.iter().chain(sample["token_ids"].as_array().unwrap()).cloned().collect();
                let asked = json!({"sequences": [{"token_ids": all, "prompt_len": prompt.len() + turn}]});
                let (status, scored) = served.post("/v1/score", &asked).await;
                assert_eq!((status, &scored["version"]), (200, &json!(1 + round)), "{scored}");
                assert_eq!(scored["sequences"][0]["logprobs"].as_array().unwrap()[..], sample["logprobs"].as_array().unwrap()[turn..]);
            }
            assert!(!mixed || group["mixed_versions"] == true);
        }
        if crossed >= 3 {
            println!("{crossed} samples crossed a push");
            return;
        }
        let (status, answer) = served.put("version=0&rollback=true", bytes(&random(1))).await;
        assert_eq!(status, 200, "{answer}");
    }
    panic!("only {crossed} samples crossed a push");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_wait_for_one_another_in_order() {
    let model = folder(&TinyModel::default());
    write_safetensors(&model.path().join("model.safetensors"), &naming(0));
    let dir = tempfile::tempdir().unwrap();
    let served = std::sync::Arc::new(Served::start(model.path(), dir.path(), &[]).await);
    served.post("/v1/rollouts", &held("a", json!({}))).await;
    served.put("version=1&async=true", bytes(&naming(1))).await;
    served.until("the push waits", async |served| served.get("/v1/weights").await.1["staged"] == 1).await;
    served.post("/v1/rollouts", &held("b", json!({}))).await;
    let second = tokio::spawn({
        let served = served.clone();
        async move { served.put("version=2", bytes(&naming(2))).await }
    });
    // The same push again, from a trainer that has lost its connection: it is told when the first one serves.
    let again = tokio::spawn({
        let served = served.clone();
        async move { served.put("version=1", bytes(&naming(1))).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!second.is_finished() && served.live().await == 0);
    score(&served, "a").await;
    served.until("the first push is through", async |served| served.live().await == 1).await;
    score(&served, "b").await;
    let (status, answer) = second.await.unwrap();
    assert_eq!((status, &answer["version"]), (200, &json!(2)), "{answer}");
    let (status, answer) = again.await.unwrap();
    // Whichever of the two came first: unchanged, or by then below what is live.
    assert!(answer["unchanged"] == true || status == 409, "{status} {answer}");
    let b = events(&served, "b").await;
    assert!(spans(&b).iter().all(|spans| spans[..] == [(1, 8)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_wait_is_answered_behind_a_push_that_waits_and_a_paused_server_says_what_to_do() {
    let model = folder(&TinyModel::default());
    write_safetensors(&model.path().join("model.safetensors"), &naming(0));
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[]).await;
    served.post("/v1/rollouts", &held("a", json!({}))).await;
    assert_eq!(served.put("version=1&async=true", bytes(&naming(1))).await.0, 202);
    let (status, answer) = served.put("version=2&async=true", bytes(&naming(2))).await;
    assert_eq!((status, &answer), (202, &json!({"version": 2, "state": "queued"})));
    // The one who pauses, pushes and resumes would wait for itself.
    served.post("/v1/pause", &json!({})).await;
    let (status, answer) = served.put("version=3", bytes(&naming(3))).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("conflict")), "{answer}");
    served.post("/v1/resume", &json!({})).await;
    score(&served, "a").await;
    served.until("both are through", async |served| served.live().await == 2).await;
}
