//! A push that names GPU memory, to an engine that has none: refused with a code by which a trainer takes another way, and nothing changes.

use serde_json::{Value, json};

use super::kit::{Served, folder};
use crate::tiny_model::TinyModel;

fn push(change: impl FnOnce(&mut Value)) -> Value {
    let tensor = json!({"name": "model.norm.weight", "shape": [64], "handle": 0, "offset": 0, "stride": 64, "hash": "0".repeat(32)});
    let mut body = json!({"version": 1, "ipc": {"device": "ab".repeat(16), "handles": ["00".repeat(64)], "tensors": [tensor]}});
    change(&mut body);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_without_a_gpu_says_that_another_way_will_do() {
    let (model, dir) = (folder(&TinyModel::default()), tempfile::tempdir().unwrap());
    let served = Served::start(model.path(), dir.path(), &[]).await;
    let before = served.get("/v1/weights").await.1;
    assert_eq!(before["ipc"], Value::Null);
    for (body, code, param) in [
        (push(|_| {}), "ipc_unavailable", "ipc"),
        (push(|body| body["ipc"]["device"] = json!("ab")), "invalid_request", "ipc.device"),
        (push(|body| body["ipc"]["handles"][0] = json!("zz".repeat(64))), "invalid_request", "ipc.handles[0]"),
        (push(|body| body["ipc"]["tensors"][0]["hash"] = json!(7)), "invalid_request", "ipc.tensors[0].hash"),
        (push(|body| body["ipc"]["colour"] = json!("red")), "invalid_request", "ipc.colour"),
        (push(|body| body["base"] = json!(0)), "invalid_request", "base"),
        (push(|body| body["version"] = json!(0)), "invalid_request", "version"),
    ] {
        let (status, answer) = served.post("/v1/weights", &body).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (422, Some(code)), "{answer}");
        assert_eq!(answer["error"]["param"], param, "{answer}");
    }
    assert_eq!(served.get("/v1/weights").await.1, before);
}
