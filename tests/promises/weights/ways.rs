//! Weights come as a body, as a part of one, as a folder or as a file in shared memory, and are the same weights.

use serde_json::{Value, json};

use super::kit::{Served, bytes, folder, job, random};
use crate::tiny_model::{RawTensor, TinyModel, read_tensors, write_safetensors};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_tensors_have_the_same_digest_whichever_way_they_come() {
    let model = folder(&TinyModel::default());
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let served = Served::start(model.path(), dir.path(), &[&root]).await;
    let zero = served.get("/v1/weights").await.1;
    let body = job(3, 4, 16, json!({}));
    let mut tensors = random(1);
    let head = random(2).into_iter().find(|tensor| tensor.name == "lm_head.weight").unwrap();
    *tensors.iter_mut().find(|tensor| tensor.name == head.name).unwrap() = head.clone();

    // All of them in a body, then the same again.
    let whole = served.push(1, &tensors).await;
    assert_eq!(whole["unchanged"], false);
    assert_eq!(whole["bytes"], tensors.iter().map(|tensor| tensor.bytes.len()).sum::<usize>());
    let groups = served.stream(&body).await.reproducible();
    let again = served.push(1, &tensors).await;
    assert_eq!((&again["unchanged"], &again["digest"]), (&json!(true), &whole["digest"]));
    // In another order: the tensors count, not the file.
    tensors.reverse();
    assert_eq!(served.push(1, &tensors).await["unchanged"], true);

    // Back to the folder's weights, then the part that differs.
    let (status, back) = served.put("version=0&rollback=true", bytes(&random(1))).await;
    assert_eq!((status, &back["digest"]), (200, &zero["digest"]), "{back}");
    assert_ne!(served.stream(&body).await.reproducible(), groups);
    let part = bytes(&[head]);
    let (status, answer) = served.put("version=1&base=0", part.clone()).await;
    assert_eq!((status, &answer["digest"]), (200, &whole["digest"]), "{answer}");
    assert_eq!(served.stream(&body).await.reproducible(), groups);
    let (status, answer) = served.put("version=1&base=0", part.clone()).await;
    assert_eq!((status, &answer["unchanged"]), (200, &json!(true)), "a part that comes again: {answer}");

    // A file that is mapped where it is, with an announced digest for good measure.
    let file = root.join("step.safetensors");
    write_safetensors(&file, &tensors);
    let (status, answer) = served.post("/v1/weights", &json!({"version": 2, "file": file})).await;
    assert_eq!((status, &answer["digest"]), (200, &whole["digest"]), "{answer}");
    let streamed = served.stream(&body).await;
    assert_eq!(streamed.job["weights_version"], 2);
    let without_versions = |groups: Vec<String>| groups.iter().map(|g| g.replace("\"version\":2", "\"version\":1")).collect::<Vec<_>>();
    assert_eq!(without_versions(streamed.reproducible()), groups);
    let (status, verified) = served.post("/v1/weights/verify", &json!({})).await;
    assert_eq!(
        (status, &verified["changed"], verified["tensors"].as_array().unwrap().len()),
        (200, &json!([]), tensors.len()),
        "{verified}"
    );
    assert_eq!(verified["tensors"][0]["name"], "model.embed_tokens.weight");
    // Written over, which it must not be: it is found out, and no part is built on it.
    write_safetensors(&file, &random(9));
    let (_, verified) = served.post("/v1/weights/verify", &json!({})).await;
    assert!(!verified["changed"].as_array().unwrap().is_empty());
    let (status, answer) = served.put("version=3&base=2", part).await;
    assert_eq!(status, 422, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("written over"), "{answer}");
    served.push(3, &random(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announced_digest_is_checked_and_who_does_not_wait_can_ask() {
    use sha2::Digest;
    let model = folder(&TinyModel::default());
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[]).await;
    let body = bytes(&random(2));
    let hash: [u8; 32] = sha2::Sha256::digest(&body).into();
    let put = served.client.put(format!("{}/v1/weights?version=1&async=true", served.url));
    let response = put.header("content-digest", format!("sha-256=:{}:", base64(&hash))).body(body).send().await.unwrap();
    assert_eq!(response.status(), 202);
    served.until("the push is through", async |served| served.get("/v1/weights").await.1["last"]["state"] == "done").await;
    assert_eq!(served.live().await, 1);
    let (status, answer) = served.put("version=2&async=true", b"nonsense, but long enough".to_vec()).await;
    assert_eq!(status, 422, "a refusal is told at once: {answer}");
    assert_eq!(served.put("version=1&async=true", bytes(&random(2))).await.1["unchanged"], true);
    served.put("version=2&async=true", b"nonsense, but long enough".to_vec()).await;
    let (_, now) = served.get("/v1/weights").await;
    assert_eq!((&now["version"], &now["last"]["state"], &now["last"]["version"]), (&json!(1), &json!("failed"), &json!(2)), "{now}");
    let (_, state) = served.get("/v1/state").await;
    assert_eq!((&state["weights"]["version"], &state["engine"]["stats"]["weights_version"]), (&json!(1), &json!(1)));
    assert_eq!(served.get("/readyz").await.1["weights_version"], 1);
    // Answers are as /openapi.json describes them.
    let (_, document) = served.get("/openapi.json").await;
    for (name, answer) in [
        ("Weights", now),
        ("WeightsVerified", served.post("/v1/weights/verify", &json!({})).await.1),
        ("WeightsUpdate", served.push(3, &random(3)).await),
    ] {
        let schema = json!({"$ref": format!("#/components/schemas/{name}"), "components": document["components"]});
        let problems: Vec<String> = jsonschema::validator_for(&schema).unwrap().iter_errors(&answer).map(|e| e.to_string()).collect();
        assert!(problems.is_empty(), "{name}: {problems:?} in {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tied_head_may_be_written_out_if_it_is_the_embedding() {
    let tied = |seed| TinyModel { seed, tied: true, ..TinyModel::default() };
    let model = folder(&tied(1));
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[]).await;
    let pushed = folder(&tied(2));
    let mut tensors = read_tensors(&pushed.path().join("model.safetensors"));
    let embedding = tensors.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap().clone();
    tensors.push(RawTensor { name: "lm_head.weight".into(), ..embedding });
    let mut last = bytes(&tensors);
    served.push(1, &tensors).await;
    // Its last number, a bit away.
    tensors.last_mut().unwrap().bytes[0] ^= 1;
    let (status, answer) = served.put("version=2", bytes(&tensors)).await;
    assert_eq!((status, &answer["error"]["param"]), (422, &json!("lm_head.weight")), "{answer}");
    // As part of a push that takes the embedding from its base.
    let head = tensors.pop().unwrap();
    let (status, answer) = served.put("version=2&base=1", bytes(std::slice::from_ref(&head))).await;
    assert_eq!((status, &answer["error"]["param"]), (422, &json!("lm_head.weight")), "{answer}");
    last.truncate(last.len() - 1);
    assert_eq!(served.put("version=2", last).await.0, 422);
}

/// Slow and plain, to be compared with.
fn base64(bytes: &[u8]) -> String {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |i| byte >> i & 1)).collect();
    let digits: Vec<char> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).collect();
    let mut text: String = bits.chunks(6).map(|six| digits[(0..6).fold(0, |n, i| n * 2 + *six.get(i).unwrap_or(&0) as usize)]).collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

/// Without an engine that takes weights the routes say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_with_fixed_weights_says_so() {
    let kit = crate::server_kit::Kit::start(crate::fake_engine::Manner::default()).await;
    let (status, answer) = kit.get("/v1/weights").await;
    assert_eq!((status, &answer["error"]["code"]), (501, &json!("not_supported")));
    let (_, state) = kit.get("/v1/state").await;
    assert_eq!(state["weights"], Value::Null);
}
