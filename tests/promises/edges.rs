//! Promise: the edges of the server hold. Tokens guard what they should, every request has an id and one log line without secrets, a
//! pause shows, and what is not right JSON is a 4xx with the field's path.

use std::io::Write;
use std::sync::{Arc, Mutex};

use adaroll::server::auth::Access;
use adaroll::server::{Options, Tokens, routes};
use serde_json::{Value, json};

use crate::fake_engine::Manner;
use crate::server_kit::{Kit, job};

const DATA: &str = "data-token-0123456789";
const ADMIN: &str = "admin-token-0123456789";

async fn guarded() -> Kit {
    let tokens = Tokens::new(DATA, ADMIN).unwrap();
    Kit::with(Manner::default(), Options { tokens, ..Options::default() }).await
}

async fn call(kit: &Kit, method: &str, path: &str, authorization: Option<&str>) -> (u16, Option<String>, Value) {
    let mut request = kit.client.request(method.parse().unwrap(), format!("{}{path}", kit.url));
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let response = request.send().await.unwrap();
    let challenge = response.headers().get("www-authenticate").map(|value| value.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    (status, challenge, serde_json::from_str(&response.text().await.unwrap()).unwrap_or(Value::Null))
}

/// Every route of the table, with every kind of caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_guard_every_route() {
    let kit = guarded().await;
    let bearer = |token: &str| format!("Bearer {token}");
    let callers = [
        ("none", None),
        ("wrong", Some(bearer("data-token-0123456780"))),
        ("basic", Some(format!("Basic {DATA}"))),
        ("data", Some(bearer(DATA))),
        ("admin", Some(bearer(ADMIN))),
        ("any case", Some(format!("bEARER  {DATA} "))),
    ];
    let mut checked = 0;
    for route in routes::table() {
        let path = route.path.replace("{id}", "none");
        for (who, authorization) in &callers {
            let (status, challenge, answer) = call(&kit, route.method.as_str(), &path, authorization.as_deref()).await;
            let expected = match (route.access, *who) {
                (Access::Open, _) | (_, "admin") | (Access::Data, "data" | "any case") => None,
                (Access::Admin, "data" | "any case") => Some(403),
                _ => Some(401),
            };
            match expected {
                Some(code) => assert_eq!(status, code, "{who} {} {path}: {answer}", route.method),
                None => assert!(![401, 403].contains(&status), "{who} {} {path}: {answer}", route.method),
            }
            assert_eq!(challenge.is_some(), expected == Some(401), "{who} {path}");
            assert!(!answer.to_string().contains("0123456"), "a token came back: {answer}");
            checked += 1;
        }
        if route.path == "/v1/pause" {
            assert_eq!(call(&kit, "POST", "/v1/resume", Some(&bearer(ADMIN))).await.0, 200);
        }
    }
    assert!(checked >= 80, "{checked}");
    let metrics = kit.client.get(format!("{}/metrics", kit.url)).bearer_auth(DATA).send().await.unwrap().text().await.unwrap();
    for key in ["anonymous", "data", "admin"] {
        let line = metrics.lines().find(|line| line.starts_with(&format!("adaroll_requests_total{{key=\"{key}\"}}"))).unwrap();
        assert!(line.rsplit(' ').next().unwrap().parse::<u64>().unwrap() > 10, "{line}");
    }
}

#[tokio::test]
async fn tokens_may_be_given_as_digests_and_without_any_all_is_open() {
    let kit = Kit::start(Manner::default()).await;
    assert_eq!(call(&kit, "POST", "/v1/pause", None).await.0, 200);
    // printf %s data-token-0123456789 | sha256sum
    let digest = "sha256:".to_owned() + &hex(DATA);
    let kit = Kit::with(Manner::default(), Options { tokens: Tokens::new(&digest, ADMIN).unwrap(), ..Options::default() }).await;
    assert_eq!(call(&kit, "GET", "/v1/state", Some(&format!("Bearer {DATA}"))).await.0, 200);
    assert_eq!(call(&kit, "GET", "/v1/state", Some(&format!("Bearer {digest}"))).await.0, 401, "the digest itself opens nothing");
    assert!(Tokens::new(&digest, DATA).is_err(), "one token under both names");
    assert!(!format!("{:?}", Tokens::new(DATA, ADMIN).unwrap()).contains("token-"));
}

fn hex(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_pause_shows() {
    let kit = Kit::start(Manner::default()).await;
    assert_eq!(kit.get("/readyz").await.0, 200);
    for _ in 0..2 {
        assert_eq!(call(&kit, "POST", "/v1/pause", None).await, (200, None, json!({"paused": true})));
    }
    assert!(kit.state.pause.is_paused());
    let (status, answer) = kit.get("/readyz").await;
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("not_ready")));
    assert_eq!(kit.get("/livez").await.0, 200);
    assert_eq!(kit.get("/v1/state").await.1["paused"], json!(true));
    let pause = kit.state.pause.clone();
    let waiting = tokio::spawn(async move { pause.changed(true).await });
    assert_eq!(call(&kit, "POST", "/v1/resume", None).await, (200, None, json!({"paused": false})));
    waiting.await.unwrap();
    assert_eq!(kit.get("/readyz").await.0, 200);
}

/// What a subscriber writes.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One thread, so that the test's own subscriber sees the server's lines and no other test's.
#[tokio::test]
async fn every_request_has_an_id_and_a_line_without_secrets() {
    let written = Written::default();
    let sink = written.clone();
    let logs = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || sink.clone()).with_max_level(tracing::Level::DEBUG);
    // With one subscriber alone, a callsite that another test's thread meets first would be switched off for all of them.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _logs = tracing::subscriber::set_default(logs.finish());
    let kit = guarded().await;
    let get = |id: Option<&'static str>| {
        let mut request = kit.client.get(format!("{}/v1/rollouts/SECRET-PATH", kit.url)).bearer_auth(DATA);
        if let Some(id) = id {
            request = request.header("x-request-id", id);
        }
        async { request.send().await.unwrap().headers()["x-request-id"].to_str().unwrap().to_owned() }
    };
    assert_eq!(get(Some("step-17/a")).await, "step-17/a");
    let made = get(None).await;
    assert_eq!(made.len(), 36);
    assert_ne!(get(None).await, made);
    for strange in ["has space", "\"quoted\"", "{}"] {
        assert_eq!(get(Some(strange)).await.len(), 36, "{strange}");
    }
    let body = job(1, json!({"prompts": [{"text": "SECRET-PROMPT", "reward": {"kind": "math", "answer": "The answer is SECRET-GOLD"}}]}));
    let response = kit.client.post(format!("{}/v1/rollouts?SECRET-QUERY=1", kit.url)).bearer_auth(ADMIN).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 422);
    kit.client.get(format!("{}/SECRET-PATH", kit.url)).bearer_auth("SECRET-TOKEN-0123456").send().await.unwrap();
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).filter(|l: &Value| l["message"] == "request").collect();
    assert_eq!(lines.len(), 8, "one line a request: {text}");
    let first = &lines[0];
    assert_eq!((&first["route"], &first["status"], &first["request_id"]), (&json!("/v1/rollouts/{id}"), &json!(404), &json!("step-17/a")));
    assert_eq!((&first["key"], &first["error"], &first["method"]), (&json!("data"), &json!("not_found"), &json!("GET")));
    assert!(first["seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!((&lines[6]["key"], &lines[6]["status"]), (&json!("admin"), &json!(422)));
    assert_eq!((&lines[7]["key"], &lines[7]["route"]), (&json!("anonymous"), &json!("unmatched")));
    for secret in ["SECRET", DATA, ADMIN] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_json_by_name_and_by_nature() {
    let kit = Kit::start(Manner::default()).await;
    let body = job(1, json!({})).to_string();
    for (kind, status) in [
        (None, 202),
        (Some("application/json"), 202),
        (Some("Application/JSON; charset=utf-8"), 202),
        (Some("application/problem+json"), 202),
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("multipart/form-data; boundary=x"), 415),
        (Some("application/jsonl"), 415),
        (Some(""), 415),
    ] {
        for route in ["/v1/rollouts", "/v1/score"] {
            let mut request = kit.client.post(format!("{}{route}", kit.url)).body(body.clone());
            if let Some(kind) = kind {
                request = request.header("content-type", kind);
            }
            let response = request.send().await.unwrap();
            let got = response.status().as_u16();
            let answer: Value = response.json().await.unwrap();
            if route == "/v1/rollouts" || status == 415 {
                assert_eq!(got, status, "{kind:?}: {answer}");
            }
            if status == 415 {
                assert_eq!(answer["error"]["code"], "unsupported_media_type");
            }
        }
    }
    let twice = |from: &str, to: &str| body.replacen(from, to, 1);
    let nested = format!("{{\"a\": {}{}}}", "[".repeat(4000), "]".repeat(4000));
    let digits = "9".repeat(4000);
    for (bytes, status, param) in [
        (twice("\"seed\":7", "\"seed\":7,\"seed\":7").into_bytes(), 422, "seed"),
        (twice("\"answer\":\"72\"", "\"answer\":\"72\",\"answer\":\"73\"").into_bytes(), 422, "prompts[0].reward"),
        (twice("\"reward\"", "\"metadata\":{\"a\":{\"b\":1,\"b\":2}},\"reward\"").into_bytes(), 422, "prompts[0].metadata.a"),
        (twice("\"reward\"", &format!("\"metadata\":{nested},\"reward\"")).into_bytes(), 400, "prompts[0].metadata.a"),
        (twice("\"seed\":7", &format!("\"seed\":{digits}")).into_bytes(), 422, "seed"),
        (twice("\"seed\":7", "\"seed\":18446744073709551616").into_bytes(), 422, "seed"),
        (twice("\"seed\":7", "\"seed\":NaN").into_bytes(), 400, "seed"),
        (twice("\"seed\":7", "\"sampling\":{\"top_p\":-Infinity}").into_bytes(), 400, "sampling.top_p"),
        (twice("\"reward\"", &format!("\"metadata\":{{\"n\":1e{digits}}},\"reward\"")).into_bytes(), 422, "prompts[0].metadata.n"),
        (twice("\"id\":\"p0\"", "\"id\":\"\\ud800\"").into_bytes(), 400, "prompts[0].id"),
        (twice("\"p0\"", "\"p\u{0}0\"").into_bytes(), 400, "prompts[0].id"),
        (invalid_utf8(&body), 400, "prompts[0].id"),
    ] {
        let shown: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
        let (got, answer) = kit.post_raw("/v1/rollouts", bytes).await;
        println!("{got} {} {}", answer["error"]["param"], answer["error"]["message"]);
        let found = answer["error"]["param"].as_str().unwrap_or("");
        assert_eq!(got, status, "{shown}: {answer}");
        assert!(found == param || found.starts_with(&format!("{param}[")), "{shown}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().len() < 700);
    }
    for query in ["cursor=-1", "limit=99999999999999999999", "limit=1e3", "cursor=", "cursor=1&cursor=1", "limit=%00", "=", "cursor=0x1"] {
        for page in ["groups", "events"] {
            let (got, answer) = kit.get(&format!("/v1/rollouts/{}/{page}?{query}", first_job(&kit).await)).await;
            assert_eq!(got, 422, "{page}?{query}: {answer}");
        }
    }
}

async fn first_job(kit: &Kit) -> String {
    kit.get("/v1/rollouts").await.1["jobs"][0]["job_id"].as_str().unwrap().to_owned()
}

fn invalid_utf8(body: &str) -> Vec<u8> {
    let at = body.find("p0").unwrap();
    let mut bytes = body.as_bytes().to_vec();
    bytes[at] = 0xff;
    bytes
}
