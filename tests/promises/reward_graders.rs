//! Promise: graders over real sockets, however they fail, give a reward or a failure in bounded time, and never a silent zero.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adaroll::reward::{Judge, Judged, Pool, PoolSettings, Verdict};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures::future::join_all;
use futures::stream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::reward_kit::{asked, compile, failure, metrics, scored};

type Calls = Arc<AtomicUsize>;

/// Right if the text is the reference that came with the prompt.
fn graded(body: &Value) -> Value {
    let items = body["items"].as_array().unwrap();
    let right = |item: &Value| json!({"id": item["id"], "reward": f64::from(u8::from(item["text"] == item["data"]["is"]))});
    // Backwards: the order of the answer means nothing.
    json!({"items": items.iter().rev().map(right).collect::<Vec<_>>()})
}

async fn grade(State(calls): State<Calls>, Json(body): Json<Value>) -> Json<Value> {
    calls.fetch_add(1, Ordering::SeqCst);
    Json(graded(&body))
}

/// Fails the first two calls.
async fn third_time(State(calls): State<Calls>, Json(body): Json<Value>) -> Response {
    match calls.fetch_add(1, Ordering::SeqCst) {
        0 => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        1 => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "0")]).into_response(),
        _ => Json(graded(&body)).into_response(),
    }
}

async fn hang() -> String {
    futures::future::pending().await
}

/// The head at once, then a byte every 20 ms for ever.
async fn slow_body() -> Body {
    Body::from_stream(stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b" ")), ()))
    }))
}

async fn endless() -> Body {
    let megabyte = Bytes::from(vec![b' '; 1 << 20]);
    Body::from_stream(stream::repeat_with(move || Ok::<_, Infallible>(megabyte.clone())))
}

async fn grader() -> (SocketAddr, Calls) {
    let calls = Calls::default();
    let app = Router::new()
        .route("/grade", post(grade))
        .route("/third", post(third_time))
        .route("/hang", post(hang))
        .route("/slow", post(slow_body))
        .route("/endless", post(endless))
        .route("/error", post(async || (StatusCode::INTERNAL_SERVER_ERROR, "out of memory")))
        .route("/teapot", post(async || (StatusCode::IM_A_TEAPOT, "no coffee")))
        .route("/rubbish", post(async || "<html>"))
        .route("/nan", post(async || "{\"items\": [{\"id\": \"job-1/prompt-1/0\", \"reward\": NaN}]}"))
        .route("/empty", post(async || Json(json!({"items": []}))))
        .route("/moved", post(async || Redirect::temporary("/grade")))
        .with_state(calls.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, calls)
}

/// Reads a little of every call, says `says` and closes the connection.
async fn rude(says: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 64]).await;
            let _ = socket.write_all(says.as_bytes()).await;
        }
    });
    address
}

fn pool() -> Pool {
    let settings = PoolSettings { webhook_hosts: vec!["127.0.0.1".into()], webhook_backoff_ms: 5, ..PoolSettings::default() };
    Pool::new(settings, metrics())
}

async fn ask(pool: &Pool, url: String, timeout_s: f64, text: &str) -> Judged {
    let hook = compile(json!({"kind": "webhook", "url": url, "timeout_s": timeout_s, "data": {"is": "right"}}));
    pool.judge(hook, asked(0, text)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grader_is_asked_over_http() {
    let (address, calls) = grader().await;
    let pool = pool();
    let judged = join_all((0..100).map(|i| {
        let text = if i % 2 == 0 { "right" } else { "wr\u{f6}ng \"\\\n" };
        ask(&pool, format!("http://{address}/grade"), 30.0, text)
    }));
    for (i, judged) in judged.await.into_iter().enumerate() {
        assert_eq!(judged, Judged::at_once(scored(if i % 2 == 0 { 1.0 } else { 0.0 })));
    }
    let calls_made = calls.swap(0, Ordering::SeqCst);
    assert!((4..=20).contains(&calls_made), "{calls_made} calls for 100 samples");
    assert_eq!(ask(&pool, format!("http://{address}/third"), 30.0, "right").await, Judged::at_once(scored(1.0)));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graders_that_fail_make_failures() {
    let (address, calls) = grader().await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let broken = rude("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"items\": [{\"reward\": 1}]}").await;
    // (URL, deadline in seconds, what the failure says, deadlines passed)
    let rows = [
        (format!("http://{address}/error"), 30.0, "no reward after 3 calls", 0),
        (format!("http://{address}/error"), 30.0, "answered 500: out of memory", 0),
        (format!("http://{address}/teapot"), 30.0, "answered 418: no coffee", 0),
        (format!("http://{address}/nowhere"), 30.0, "answered 404", 0),
        (format!("http://{address}/rubbish"), 30.0, "<html>", 0),
        (format!("http://{address}/nan"), 30.0, "no reward after 3 calls", 0),
        (format!("http://{address}/empty"), 30.0, "gave no item for the id \"job-1/prompt-1/0\" among its 0", 0),
        (format!("http://{address}/moved"), 30.0, "redirects are not followed", 0),
        (format!("http://{address}/hang"), 0.2, "did not answer within 0.2 s", 3),
        (format!("http://{address}/slow"), 0.2, "did not answer within 0.2 s", 3),
        (format!("http://{address}/endless"), 30.0, "answered with more than 4194304 bytes", 0),
        (format!("http://{closed}/"), 30.0, "could not be reached", 0),
        (format!("http://{}/", rude("").await), 30.0, "could not be reached", 0),
        (format!("http://{}/", rude("SSH-2.0-rude\r\n").await), 30.0, "could not be reached", 0),
        (format!("http://{broken}/"), 30.0, "broke off its answer", 0),
        (format!("https://{address}/grade"), 30.0, "could not be reached", 0),
    ];
    let pool = pool();
    let started = Instant::now();
    for (url, timeout_s, why, timeouts) in rows {
        let judged = ask(&pool, url.clone(), timeout_s, "right").await;
        let told = failure(&judged.verdict);
        println!("{told}");
        assert!(told.contains(why), "{url}: {told}");
        assert_eq!(judged.wall_clock_timeouts, timeouts, "{url}");
    }
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(calls.load(Ordering::SeqCst), 0, "a redirect was followed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grader_that_hangs_does_not_delay_another() {
    let ((hanging, _), (good, _)) = (grader().await, grader().await);
    let pool = pool();
    let stuck = join_all((0..600).map(|_| ask(&pool, format!("http://{hanging}/hang"), 600.0, "right")));
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let started = Instant::now();
        for _ in 0..20 {
            assert_eq!(ask(&pool, format!("http://{good}/grade"), 30.0, "right").await.verdict, Verdict::Scored(1.0));
        }
        started.elapsed()
    };
    tokio::select! {
        _ = stuck => panic!("the hanging grader answered"),
        took = others => {
            println!("20 samples, one after another, beside 600 that hang: {took:?}");
            assert!(took < Duration::from_secs(20), "{took:?}");
        }
    }
}
