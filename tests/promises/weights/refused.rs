//! A push that cannot be taken is refused with the tensor's name, leaves nothing behind, and the old weights serve on bit for bit.

use adaroll::model::Dtype;
use half::bf16;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::kit::{Served, bytes, folder, job, random};
use crate::tiny_model::{RawTensor, TinyModel};

const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

fn changed(name: &str, change: impl FnOnce(&mut RawTensor)) -> Vec<u8> {
    let mut tensors = random(3);
    change(tensors.iter_mut().find(|tensor| tensor.name == name).unwrap());
    bytes(&tensors)
}

/// One tensor alone.
fn part(tensors: &[RawTensor], name: &str) -> Vec<u8> {
    bytes(&tensors.iter().filter(|tensor| tensor.name == name).cloned().collect::<Vec<_>>())
}

/// One number of a bf16 tensor set to `value`.
fn with_number(name: &str, index: usize, value: f32) -> Vec<u8> {
    changed(name, |tensor| tensor.bytes[2 * index..][..2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()))
}

/// A good file with its header's text changed; the new text must be as long.
fn with_header(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let good = bytes(&random(3));
    let length = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(good[8..8 + length].to_vec()).unwrap();
    assert!(header.contains(from), "{header}");
    [&good[..8], header.replacen(from, to, 1).as_bytes(), &good[8 + length..]].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_push_is_refused_by_name_and_changes_no_bit() {
    let model = folder(&TinyModel::default());
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(model.path(), dir.path(), &[]).await;
    served.push(5, &random(2)).await;
    let body = job(4, 4, 20, json!({}));
    let before = served.stream(&body).await.reproducible();
    let (_, was) = served.get("/v1/weights").await;

    let good = bytes(&random(3));
    let mut misnamed = random(3);
    misnamed.iter_mut().find(|tensor| tensor.name == DOWN).unwrap().name = "model.layers.1.mlp.down.weight".into();
    let without = |name: &str| bytes(&random(3).into_iter().filter(|tensor| tensor.name != name).collect::<Vec<_>>());
    let as_f32 = changed(DOWN, |tensor| {
        let numbers: Vec<f32> = tensor.bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
        *tensor = RawTensor::new(DOWN, Dtype::F32, tensor.shape.clone(), &numbers);
    });
    let large = vec![0u8; 8 << 20];
    // What, query, body; status, code, param.
    type Case<'a> = (&'a str, &'a str, Vec<u8>, u16, &'a str, Option<&'a str>);
    let cases: Vec<Case<'_>> = vec![
        ("cut short", "version=6", good[..good.len() - 7].to_vec(), 422, "invalid_weights", None),
        ("cut within the header", "version=6", good[..100].to_vec(), 422, "invalid_weights", None),
        ("empty", "version=6", Vec::new(), 422, "invalid_weights", None),
        ("another base under the live number", "version=5&base=4&rollback=true", part(&random(3), DOWN), 409, "conflict", Some("base")),
        ("bytes behind the end", "version=6", [&good[..], &[0]].concat(), 422, "invalid_weights", None),
        ("no safetensors file", "version=6", b"hello, these are no weights".to_vec(), 422, "invalid_weights", None),
        ("misnamed", "version=6", bytes(&misnamed), 422, "invalid_weights", Some("model.layers.1.mlp.down.weight")),
        ("missing", "version=6", without("lm_head.weight"), 422, "invalid_weights", Some("lm_head.weight")),
        ("NaN", "version=6", with_number(DOWN, 77, f32::NAN), 422, "invalid_weights", Some(DOWN)),
        (
            "infinite",
            "version=6",
            with_number("model.norm.weight", 3, f32::NEG_INFINITY),
            422,
            "invalid_weights",
            Some("model.norm.weight"),
        ),
        ("wrong dtype", "version=6", as_f32, 422, "invalid_weights", Some(DOWN)),
        ("wrong shape", "version=6", changed(DOWN, |t| t.shape.reverse()), 422, "invalid_weights", Some(DOWN)),
        (
            "twice",
            "version=6",
            with_header("model.layers.1.mlp.down_proj", "model.layers.0.mlp.down_proj"),
            422,
            "invalid_weights",
            Some("model.layers.0.mlp.down_proj.weight"),
        ),
        (
            "unknown dtype",
            "version=6",
            with_header("\"dtype\":\"BF16\"", "\"dtype\":\"BF61\""),
            422,
            "invalid_weights",
            Some("model.embed_tokens.weight"),
        ),
        ("too large", "version=6", large, 413, "too_large", None),
        ("stale", "version=4", good.clone(), 409, "conflict", Some("version")),
        ("conflicting", "version=5", good.clone(), 409, "conflict", Some("version")),
        ("the folder's number", "version=0&rollback=true", good.clone(), 409, "conflict", Some("version")),
        ("base that is not live", "version=6&base=4", good.clone(), 409, "conflict", Some("base")),
        (
            "a part without a base",
            "version=6",
            part(&random(3), "lm_head.weight"),
            422,
            "invalid_weights",
            Some("model.embed_tokens.weight"),
        ),
        (
            "a bad part",
            "version=6&base=5",
            part(&misnamed, "model.layers.1.mlp.down.weight"),
            422,
            "invalid_weights",
            Some("model.layers.1.mlp.down.weight"),
        ),
        ("no version", "", good.clone(), 422, "invalid_request", Some("version")),
        ("a negative version", "version=-1", good.clone(), 422, "invalid_request", Some("version")),
        ("a version twice", "version=6&version=7", good.clone(), 422, "invalid_request", Some("version")),
        ("no flag", "version=6&rollback=yes", good.clone(), 422, "invalid_request", Some("rollback")),
        ("unknown parameter", "version=6&colour=red", good.clone(), 422, "invalid_request", Some("colour")),
    ];
    let number = cases.len();
    for (what, query, body, status, code, param) in cases {
        let (got, answer) = served.put(query, body).await;
        let error = &answer["error"];
        assert_eq!((got, error["code"].as_str()), (status, Some(code)), "{what}: {answer}");
        assert_eq!(error["param"].as_str(), param, "{what}: {answer}");
        let message = error["message"].as_str().unwrap();
        assert!(param.is_none_or(|param| message.contains(param)), "{what}: {message}");
        assert!(!message.contains(dir.path().to_str().unwrap()), "{what}: no path of the server: {message}");
    }
    // Announced digests.
    let digest =
        |value: &str| served.client.put(format!("{}/v1/weights?version=6", served.url)).header("content-digest", value).body(good.clone());
    for (value, code) in [
        ("sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:", "digest_mismatch"),
        ("sha-256=:short:", "invalid_request"),
        ("md5=:AAAA:", "invalid_request"),
    ] {
        let response = digest(value).send().await.unwrap();
        assert_eq!(response.status(), 422);
        assert_eq!(response.json::<Value>().await.unwrap()["error"]["code"], code);
    }
    // A connection that breaks off.
    let mut socket = tokio::net::TcpStream::connect(served.url.trim_start_matches("http://")).await.unwrap();
    let head = format!("PUT /v1/weights?version=6 HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", good.len());
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(&good[..good.len() / 2]).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));

    assert_eq!(served.stream(&body).await.reproducible(), before, "the old weights serve on");
    let (_, is) = served.get("/v1/weights").await;
    assert_eq!((&is["version"], &is["digest"], &is["staged"]), (&was["version"], &was["digest"], &Value::Null));
    served.until("nothing is left in the folder", async |_| std::fs::read_dir(dir.path().join("weights")).unwrap().count() == 0).await;
    let (_, text) = (0, served.client.get(format!("{}/metrics", served.url)).send().await.unwrap().text().await.unwrap());
    assert!(text.contains("adaroll_weight_updates_total{result=\"swapped\"} 1"), "{text}");
    let refused: u64 =
        text.lines().find_map(|l| l.strip_prefix("adaroll_weight_updates_total{result=\"refused\"} ")).unwrap().parse().unwrap();
    assert!(refused >= 15, "{refused}");

    // A twin: the same file without a fault is taken, and changes what is drawn.
    let (status, answer) = served.put("version=6", good).await;
    assert_eq!(status, 200, "{answer}");
    assert_ne!(served.stream(&body).await.reproducible(), before);
    println!("{number} bad pushes refused, the weights unchanged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_under_the_roots_alone() {
    let model = folder(&TinyModel::default());
    let dir = tempfile::tempdir().unwrap();
    let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
    for place in [&root, &outside] {
        std::fs::create_dir(place).unwrap();
        std::fs::write(place.join("model.safetensors"), bytes(&random(2))).unwrap();
    }
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.join("model.safetensors"), root.join("file")).unwrap();
    let sneaky = root.join("sneaky");
    std::fs::create_dir(&sneaky).unwrap();
    std::os::unix::fs::symlink(outside.join("model.safetensors"), sneaky.join("model.safetensors")).unwrap();
    let served = Served::start(model.path(), dir.path(), &[&root]).await;
    let under = |path: &str| root.join(path).to_str().unwrap().to_owned();
    let cases = [
        (json!({"dir": outside}), 403, "dir"),
        (json!({"dir": under("../outside")}), 403, "dir"),
        (json!({"dir": under("link")}), 403, "dir"),
        (json!({"dir": under("not there")}), 403, "dir"),
        (json!({"dir": "root"}), 403, "dir"),
        (json!({"dir": sneaky}), 422, "dir"),
        (json!({"file": under("file")}), 403, "file"),
        (json!({"file": under("")}), 422, "file"),
        (json!({"file": "/etc/passwd"}), 403, "file"),
        (json!({"dir": root, "base": 0}), 422, "base"),
    ];
    for (mut body, status, param) in cases {
        body["version"] = json!(1);
        let (got, answer) = served.post("/v1/weights", &body).await;
        assert_eq!((got, answer["error"]["param"].as_str()), (status, Some(param)), "{body}: {answer}");
    }
    assert_eq!(served.live().await, 0);
    let (status, answer) = served.post("/v1/weights", &json!({"version": 1, "dir": root})).await;
    assert_eq!((status, &answer["version"]), (200, &json!(1)), "{answer}");
    let (status, answer) = served.post("/v1/weights", &json!({"version": 1, "file": under("model.safetensors")})).await;
    assert_eq!((status, &answer["unchanged"]), (200, &json!(true)), "the same tensors by another way: {answer}");
    let none = Served::start(model.path(), dir.path(), &[]).await;
    assert_eq!(none.post("/v1/weights", &json!({"version": 1, "dir": root})).await.0, 403);
}
