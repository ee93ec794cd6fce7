//! Promise: a grader that hangs, fails or lies makes retries and then a failure, never a silent zero, and holds nobody else up.
//!
//! On a virtual clock: graders are scripts behind the transport, so every deadline and every wait is exact.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adaroll::reward::webhook::{Reply, Transport, Unanswered};
use adaroll::reward::{Asked, Found, Judge, Judged, Pool, PoolSettings, Ruling, Spec, Verdict};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::reward_kit::{asked, compile, failure, metrics, scored};

/// What a scripted grader does with one call.
#[derive(Clone)]
enum Act {
    /// Answers so late with this status and body.
    Say(u64, u16, String),
    /// Gives every sample its index as reward, so late.
    Grade(u64),
    /// Tells to come back in so many seconds.
    Busy(u64),
    /// Cannot be reached.
    Gone,
    Hang,
    Panic,
}

#[derive(Clone, Debug)]
struct Call {
    host: String,
    at: Duration,
    body: Value,
}

/// Scripts by host: the n-th call does the n-th act, every further one the last.
struct Graders {
    scripts: HashMap<String, Vec<Act>>,
    calls: Mutex<Vec<Call>>,
    begun: Instant,
}

impl Graders {
    fn new(scripts: &[(&str, Vec<Act>)]) -> Arc<Self> {
        let scripts = scripts.iter().map(|(host, acts)| ((*host).to_owned(), acts.clone())).collect();
        Arc::new(Graders { scripts, calls: Mutex::default(), begun: Instant::now() })
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// When calls began, in milliseconds.
    fn times(&self) -> Vec<u128> {
        self.calls().iter().map(|call| call.at.as_millis()).collect()
    }

    /// The indices of the samples in each call.
    fn indices(&self) -> Vec<Vec<u64>> {
        let of = |call: &Call| call.body["items"].as_array().unwrap().iter().map(|i| i["index"].as_u64().unwrap()).collect();
        self.calls().iter().map(of).collect()
    }
}

impl Transport for Graders {
    fn post(&self, url: reqwest::Url, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, Unanswered>> {
        let host = url.host_str().unwrap().to_owned();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let mut calls = self.calls.lock().unwrap();
        let nth = calls.iter().filter(|call| call.host == host).count();
        calls.push(Call { host: host.clone(), at: self.begun.elapsed(), body: body.clone() });
        let script = &self.scripts[&host];
        let act = script[nth.min(script.len() - 1)].clone();
        let reply = |status, body: String| Reply { status, retry_after: None, body: body.into_bytes() };
        async move {
            match act {
                Act::Say(late, status, body) => {
                    sleep(Duration::from_millis(late)).await;
                    Ok(reply(status, body))
                }
                Act::Grade(late) => {
                    sleep(Duration::from_millis(late)).await;
                    let item = |item: &Value| json!({"id": item["id"], "reward": item["index"]});
                    let items: Vec<_> = body["items"].as_array().unwrap().iter().map(item).collect();
                    Ok(reply(200, json!({"items": items}).to_string()))
                }
                Act::Busy(seconds) => Ok(Reply { status: 429, retry_after: Some(Duration::from_secs(seconds)), body: Vec::new() }),
                Act::Gone => Err(Unanswered("could not be reached: connection refused".into())),
                Act::Hang => futures::future::pending().await,
                Act::Panic => panic!("on purpose"),
            }
        }
        .boxed()
    }
}

fn settings() -> PoolSettings {
    let webhook_hosts = ["good", "slow", "bad", "other"].map(str::to_owned).to_vec();
    PoolSettings { webhook_hosts, ..PoolSettings::default() }
}

fn pool(graders: &Arc<Graders>) -> Pool {
    Pool::with_transport(settings(), metrics(), graders.clone())
}

fn hook(host: &str) -> Value {
    json!({"kind": "webhook", "url": format!("http://{host}/grade"), "timeout_s": 10, "data": {"tests": [1]}})
}

async fn judge(pool: &Pool, host: &str, index: u32) -> Judged {
    pool.judge(compile(hook(host)), asked(index, "an answer")).await
}

fn say(body: &str) -> Act {
    Act::Say(0, 200, body.into())
}

/// An answer with these items; `ID` is the name of sample 7, `I0` to `I9` are those of samples 0 to 9.
fn items(items: &str) -> Act {
    let named = (0..10).fold(items.to_owned(), |text, i| text.replace(&format!("I{i}"), &format!("\"id\": \"job-1/prompt-1/{i}\"")));
    say(&format!("{{\"items\": [{}]}}", named.replace("ID", "\"id\": \"job-1/prompt-1/7\"")))
}

#[tokio::test(start_paused = true)]
async fn samples_share_calls() {
    let graders = Graders::new(&[("good", vec![Act::Grade(1000)])]);
    let pool = pool(&graders);
    let judged = join_all((0..70).map(|i| judge(&pool, "good", i))).await;
    for (i, judged) in judged.iter().enumerate() {
        assert_eq!(*judged, Judged::at_once(scored(i as f64)));
    }
    let mut sizes: Vec<_> = graders.indices().iter().map(Vec::len).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [6, 32, 32]);
    // A full call goes at once, the last one after its linger; the clock counts in whole milliseconds.
    assert!(graders.times().iter().all(|at| *at <= 6), "{:?}", graders.times());
    assert!(graders.begun.elapsed() <= Duration::from_millis(1010), "{:?}", graders.begun.elapsed());
    let index = graders.indices()[0][0];
    let expected = json!({"id": format!("job-1/prompt-1/{index}"), "job_id": "job-1", "prompt_id": "prompt-1", "index": index,
        "text": "an answer", "metadata": {"level": 4}, "data": {"tests": [1]}});
    assert_eq!(graders.calls()[0].body["items"][0], expected);
    assert_eq!(graders.calls()[0].body["deadline_s"], 10.0);
    assert_eq!(graders.calls()[0].body.as_object().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_helps_is_tried_again_and_then_failed() {
    type Row = (Vec<Act>, usize, Result<f64, &'static str>, u32);
    let rows: Vec<Row> = vec![
        (vec![items("{ID, \"reward\": 0.5}")], 1, Ok(0.5), 0),
        (vec![say(r#"{"items": [{"more": 1, "error": null, "reward": -2, "id": "job-1/prompt-1/7"}], "version": 3}"#)], 1, Ok(-2.0), 0),
        (vec![Act::Gone, Act::Gone, Act::Grade(0)], 3, Ok(7.0), 0),
        (vec![Act::Gone], 3, Err("no reward after 3 calls; at last the grader http://bad/grade could not be reached"), 0),
        (vec![Act::Hang], 3, Err("did not answer within 10 s"), 3),
        (vec![Act::Hang, Act::Grade(0)], 2, Ok(7.0), 1),
        (vec![Act::Grade(9_990)], 1, Ok(7.0), 0),
        (vec![Act::Grade(10_010)], 3, Err("did not answer within 10 s"), 3),
        (vec![Act::Say(0, 500, "out of\nmemory".into())], 3, Err("answered 500: out of\nmemory"), 0),
        (vec![Act::Say(0, 503, String::new()), Act::Grade(0)], 2, Ok(7.0), 0),
        (vec![Act::Busy(1), Act::Grade(0)], 2, Ok(7.0), 0),
        (vec![Act::Say(0, 400, "x".repeat(5000))], 1, Err("answered 400: xxx"), 0),
        (vec![Act::Say(0, 404, String::new())], 1, Err("answered 404"), 0),
        (vec![Act::Say(0, 302, String::new())], 1, Err("redirects are not followed"), 0),
        (vec![say("")], 3, Err("gave no {\"items\": [...]}"), 0),
        (vec![say("<html>")], 3, Err("<html>"), 0),
        (vec![say("[1]")], 3, Err("gave no {\"items\": [...]}"), 0),
        (vec![say(r#"{"reward": 1}"#)], 3, Err("missing field `items`"), 0),
        (vec![say(r#"{"rewards": [{"reward": 1}]}"#)], 3, Err("missing field `items`"), 0),
        (vec![items("")], 3, Err("gave no item for the id \"job-1/prompt-1/7\" among its 0"), 0),
        (vec![items("{\"reward\": 1}")], 3, Err("gave no item for the id"), 0),
        (vec![items("{\"id\": 7, \"reward\": 1}")], 3, Err("gave no item for the id"), 0),
        (vec![items("{I6, \"reward\": 1}, {ID, \"reward\": 0.25}")], 1, Ok(0.25), 0),
        (vec![items("{ID, \"reward\": 1}, {ID, \"reward\": 1}")], 1, Ok(1.0), 0),
        (vec![items("{ID, \"reward\": 1}, {ID, \"verdict\": \"correct\"}")], 3, Err("gave two different items for the id"), 0),
        (vec![items("{ID, \"reward\": 1}, {ID, \"reward\": 0}")], 3, Err("gave two different items for the id"), 0),
        (vec![items("{ID, \"reward\": 1}, {ID, \"error\": \"no\"}")], 3, Err("gave two different items for the id"), 0),
        (vec![items("{ID, \"reward\": NaN}")], 3, Err("gave no {\"items\": [...]}"), 0),
        (vec![items("{ID, \"reward\": 1e999}")], 3, Err("out of range"), 0),
        (vec![items("{ID, \"reward\": null}")], 3, Err("holds neither reward nor verdict nor error"), 0),
        (vec![items("{ID, \"reward\": \"1\"}")], 3, Err("gave the reward \"1\", which is no finite number"), 0),
        (vec![items("{ID, \"reward\": true}")], 3, Err("gave the reward true"), 0),
        (vec![items("1")], 3, Err("gave no item for the id"), 0),
        (vec![items("null")], 3, Err("gave no item for the id"), 0),
        (vec![items("{ID}")], 3, Err("holds neither reward nor verdict nor error"), 0),
        (vec![items("{ID, \"error\": \"no compiler\"}")], 3, Err("reported the error \"no compiler\""), 0),
        (vec![items("{ID, \"reward\": 1, \"error\": \"unsure\"}")], 3, Err("reported the error \"unsure\""), 0),
        (vec![items("{ID, \"reward\": 1, \"extracted\": \"42\"}")], 3, Err("add \"verdict\""), 0),
        (vec![items("{ID, \"reward\": 1, \"verdict\": \"right\"}")], 3, Err("known are correct, wrong, no_answer, bad_gold, limit"), 0),
        (vec![items("{ID, \"reward\": 1, \"verdict\": 1}")], 3, Err("gave 1 as verdict"), 0),
        (vec![items("{ID, \"verdict\": \"wrong\", \"extracted\": 42}")], 3, Err("gave 42 as extracted"), 0),
        (vec![items("{ID, \"reward\": 0, \"verdict\": \"limit\"}")], 3, Err("gave the reward 0 with the verdict limit"), 0),
        (vec![items("{ID, \"reward\": 0, \"verdict\": \"bad_gold\"}")], 3, Err("with the verdict bad_gold"), 0),
        (vec![items("{ID, \"verdict\": \"bad_gold\"}")], 1, Err("its grader says that the reference cannot be used"), 0),
        (vec![say("rubbish"), Act::Hang, items("{ID, \"reward\": 1}")], 3, Ok(1.0), 1),
        (vec![Act::Panic], 1, Err("internal error"), 0),
    ];
    for (row, (script, calls, expected, timeouts)) in rows.into_iter().enumerate() {
        let graders = Graders::new(&[("bad", script)]);
        let judged = judge(&pool(&graders), "bad", 7).await;
        match expected {
            Ok(reward) => assert_eq!(judged.verdict, Verdict::Scored(reward), "row {row}"),
            Err(why) => {
                let told = failure(&judged.verdict);
                assert!(told.contains(why), "row {row}: {told}");
                assert!(told.len() < 600, "row {row}: {} bytes", told.len());
            }
        }
        assert_eq!(graders.calls().len(), calls, "row {row}");
        assert_eq!(judged.wall_clock_timeouts, timeouts, "row {row}");
    }
}

#[tokio::test(start_paused = true)]
async fn waits_between_calls_are_as_told() {
    let times = |acts: Vec<Act>, attempts| async move {
        let graders = Graders::new(&[("bad", acts)]);
        let settings = PoolSettings { webhook_linger_ms: 0, webhook_attempts: attempts, ..settings() };
        let judged = judge(&Pool::with_transport(settings, metrics(), graders.clone()), "bad", 0).await;
        failure(&judged.verdict);
        let times = graders.times();
        times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
    };
    assert_eq!(times(vec![Act::Gone], 5).await, [250, 500, 1000, 2000]);
    // From the end of the call, not from its start.
    assert_eq!(times(vec![Act::Hang], 3).await, [10_250, 10_500]);
    // Retry-After, up to a bound.
    assert_eq!(times(vec![Act::Busy(2), Act::Busy(0), Act::Busy(3600)], 4).await, [2000, 500, 30_000]);
    assert_eq!(times(vec![Act::Gone], 60).await.last(), Some(&30_000));
}

#[tokio::test(start_paused = true)]
async fn failing_samples_are_sent_again_alone() {
    let first = items("{I3, \"reward\": \"x\"}, {I0, \"reward\": 1}, {I2, \"reward\": 0}");
    let second = items("{I1, \"reward\": 0.25}, {I3, \"error\": \"b\"}");
    let graders = Graders::new(&[("bad", vec![first, second, items("{I3, \"error\": \"c\"}")])]);
    let pool = pool(&graders);
    let judged = join_all((0..4).map(|i| judge(&pool, "bad", i))).await;
    assert_eq!(graders.indices(), [vec![0, 1, 2, 3], vec![1, 3], vec![3]]);
    assert_eq!(judged[0].verdict, Verdict::Scored(1.0));
    assert_eq!(judged[1].verdict, Verdict::Scored(0.25));
    assert_eq!(judged[2].verdict, Verdict::Scored(0.0));
    assert!(failure(&judged[3].verdict).contains("reported the error \"c\""), "{:?}", judged[3]);
}

#[tokio::test(start_paused = true)]
async fn a_grader_may_say_what_it_found() {
    let found = |ruling, extracted: Option<&str>, rule: &'static str| Some(Found::new(ruling, extracted, rule));
    let rows = [
        (r#""reward": 0.5"#, Verdict::Scored(0.5), None),
        (r#""verdict": "correct""#, Verdict::Scored(1.0), found(Ruling::Correct, None, "webhook")),
        (r#""verdict": "wrong", "extracted": "41""#, Verdict::Scored(0.0), found(Ruling::Wrong, Some("41"), "webhook")),
        (r#""verdict": "no_answer", "extracted": null"#, Verdict::Scored(0.0), found(Ruling::NoAnswer, None, "webhook")),
        (
            r#""verdict": "wrong", "reward": 0.3, "rule": "3 of 10 tests""#,
            Verdict::Scored(0.3),
            found(Ruling::Wrong, None, "3 of 10 tests"),
        ),
        (r#""verdict": "no_answer", "reward": -1"#, Verdict::Scored(-1.0), found(Ruling::NoAnswer, None, "webhook")),
        (
            r#""verdict": "limit", "reward": null, "rule": "too much code""#,
            Verdict::Limit("the answer is too large for its grader (too much code)".into()),
            found(Ruling::Limit, None, "too much code"),
        ),
        (
            r#""verdict": "bad_gold""#,
            Verdict::Failed("its grader says that the reference cannot be used".into()),
            found(Ruling::BadGold, None, "webhook"),
        ),
    ];
    for (said, verdict, found) in rows {
        let graders = Graders::new(&[("good", vec![items(&format!("{{ID, {said}}}"))])]);
        let judged = judge(&pool(&graders), "good", 7).await;
        assert_eq!(judged, Judged { verdict, found, wall_clock_timeouts: 0 }, "{said}");
        assert_eq!(graders.calls().len(), 1, "{said}");
    }
    // What is shown is cut.
    let long = "9".repeat(5000);
    let said = format!(r#"{{ID, "verdict": "wrong", "extracted": "{long}", "rule": "{long}"}}"#);
    let found = judge(&pool(&Graders::new(&[("good", vec![items(&said)])])), "good", 7).await.found.unwrap();
    assert_eq!((found.extracted.unwrap().len(), found.rule.len()), (1003, 200));
}

#[tokio::test(start_paused = true)]
async fn names_are_unique_whatever_ids_hold() {
    let graders = Graders::new(&[("good", vec![Act::Grade(0)])]);
    let pool = pool(&graders);
    let of = |job: &str, prompt: &str, index| Asked { job_id: job.into(), prompt_id: prompt.into(), ..asked(index, "x") };
    // The same sample twice, as where two parts of a reward ask one grader, and ids with all that could be taken for a separator.
    let all = [
        of("a", "b/1", 2),
        of("a", "b", 1),
        of("a", "b/1", 2),
        of("a", "b/1/2#2", 0),
        of("a", "", 0),
        of("a", "b/1", 2),
        of("a", "b#2", 1),
    ];
    let judged = join_all(all.iter().map(|asked| pool.judge(compile(hook("good")), asked.clone()))).await;
    for (asked, judged) in all.iter().zip(judged) {
        assert_eq!(judged, Judged::at_once(scored(f64::from(asked.index))));
    }
    let ids: Vec<String> = graders.calls()[0].body["items"].as_array().unwrap().iter().map(|i| i["id"].as_str().unwrap().into()).collect();
    assert_eq!(ids, ["a/b/1/2", "a/b/1", "a/b/1/2#2", "a/b/1/2#2/0", "a//0", "a/b/1/2#3", "a/b#2/1"]);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_starts_with_the_call() {
    // Eight calls at once, of 8 s each: the last of 40 calls begins after 32 s, far beyond the deadline of 10 s, and no call is late.
    let graders = Graders::new(&[("slow", vec![Act::Grade(8_000)])]);
    let settings = PoolSettings { webhook_batch: 1, ..settings() };
    let pool = Pool::with_transport(settings, metrics(), graders.clone());
    let judged = join_all((0..40).map(|i| judge(&pool, "slow", i))).await;
    assert!(judged.iter().enumerate().all(|(i, j)| *j == Judged::at_once(scored(i as f64))), "{judged:?}");
    assert_eq!(graders.calls().len(), 40);
    assert!(graders.times()[39] >= 32_000, "{:?}", graders.times());
    // Never more than eight at once.
    let times = graders.times();
    assert!((8..40).all(|i| times[i] >= times[i - 8] + 8_000), "{times:?}");
}

/// How long 20 samples of another host and 20 judged by their text take while 400 wait for a grader that hangs.
async fn beside_a_hanging_grader(host: &str) -> (Duration, Duration) {
    let graders = Graders::new(&[("slow", vec![Act::Hang]), ("good", vec![Act::Grade(100)])]);
    let settings = PoolSettings { webhook_queue: 300, webhook_batch: 4, ..settings() };
    let pool = Pool::with_transport(settings, metrics(), graders.clone());
    let hanging = {
        let pool = pool.clone();
        tokio::spawn(async move { join_all((0..400).map(|i| judge(&pool, "slow", i))).await })
    };
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    join_all((0..20).map(|i| judge(&pool, host, i))).await;
    let other = begun.elapsed();
    let begun = Instant::now();
    let math = compile(json!({"kind": "math", "answer": "1"}));
    join_all((0..20).map(|i| pool.judge(math.clone(), asked(i, "1")))).await;
    let text = begun.elapsed();
    for judged in hanging.await.unwrap() {
        assert_eq!(judged.wall_clock_timeouts, 3);
        failure(&judged.verdict);
    }
    (other, text)
}

#[tokio::test(start_paused = true)]
async fn a_hanging_grader_holds_nobody_else_up() {
    let (other, text) = beside_a_hanging_grader("good").await;
    println!("beside a hanging grader: another host {other:?}, text {text:?}");
    assert!(other <= Duration::from_millis(110), "{other:?}");
    assert!(text <= Duration::from_millis(5), "{text:?}");
    // The twin: in the queue that the hanging grader stands in, the same 20 samples wait for minutes.
    let (shared, _) = beside_a_hanging_grader("slow").await;
    println!("in one shared queue: {shared:?}");
    assert!(shared > Duration::from_secs(120), "{shared:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_grader_gives_its_place_away_while_it_waits() {
    let graders = Graders::new(&[("bad", vec![Act::Busy(20), Act::Grade(0)])]);
    let settings = PoolSettings { webhook_concurrency: 1, webhook_batch: 1, ..settings() };
    let pool = Pool::with_transport(settings, metrics(), graders.clone());
    let first = async {
        judge(&pool, "bad", 0).await;
        graders.begun.elapsed()
    };
    let second = async {
        sleep(Duration::from_millis(1)).await;
        judge(&pool, "bad", 1).await;
        graders.begun.elapsed()
    };
    let (first, second) = tokio::join!(first, second);
    assert!(first >= Duration::from_secs(20) && second < Duration::from_millis(50), "{first:?}, {second:?}");
}

#[tokio::test(start_paused = true)]
async fn samples_given_up_cost_no_call() {
    let graders = Graders::new(&[("slow", vec![Act::Hang, Act::Grade(0)])]);
    let settings = PoolSettings { webhook_concurrency: 1, webhook_batch: 1, webhook_queue: 3, ..settings() };
    let pool = Pool::with_transport(settings, metrics(), graders.clone());
    let given_up = {
        let pool = pool.clone();
        tokio::spawn(async move { join_all((0..9).map(|i| judge(&pool, "slow", i))).await })
    };
    sleep(Duration::from_secs(1)).await;
    given_up.abort();
    let begun = Instant::now();
    assert_eq!(judge(&pool, "slow", 9).await.verdict, Verdict::Scored(9.0));
    assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    assert_eq!(graders.indices(), [[0], [9]]);
}

#[tokio::test(start_paused = true)]
async fn only_listed_hosts_are_asked() {
    let list = ["grader.example", "127.0.0.1:9000", "[::1]:80", "Upper.Example:443"].map(str::to_owned).to_vec();
    let settings = PoolSettings { webhook_hosts: list, ..PoolSettings::default() };
    assert!(settings.webhook_hosts.iter().all(|host| PoolSettings::names_host(host)));
    let graders = Graders::new(&[]);
    let pool = Pool::with_transport(settings, metrics(), graders.clone());
    let rows = [
        ("http://grader.example/x", true),
        ("https://GRADER.example:8443/x", true),
        ("http://127.0.0.1:9000/", true),
        ("http://127.1:9000/", true),
        ("http://[::1]/", true),
        ("https://upper.example/", true),
        ("http://127.0.0.1:9001/", false),
        ("http://127.0.0.1/", false),
        ("http://localhost:9000/", false),
        ("http://upper.example/", false),
        ("http://[::1]:81/", false),
        ("http://sub.grader.example/", false),
        ("http://grader.example.org/", false),
        ("http://grader.example./", false),
        ("http://x/?grader.example", false),
    ];
    for (url, allowed) in rows {
        let spec = Spec::read(&json!({"kind": "webhook", "url": url})).unwrap();
        match (pool.check(&spec), allowed) {
            (Ok(()), true) => {}
            (Err(error), false) => {
                assert_eq!(error.path, "url");
                assert!(error.problem.contains("[reward] webhook_hosts"), "{error}");
                // A job accepted under other settings fails its samples and asks nobody.
                let judged = pool.judge(Arc::new(spec.compile().unwrap()), asked(0, "x")).await;
                assert!(failure(&judged.verdict).contains("[reward] webhook_hosts"), "{judged:?}");
            }
            (result, _) => panic!("{url}: {result:?}"),
        }
    }
    assert!(graders.calls().is_empty());
    let nobody = Pool::new(PoolSettings::default(), metrics());
    assert!(nobody.check(&Spec::read(&hook("good")).unwrap()).is_err());
    assert_eq!(nobody.check(&Spec::read(&json!({"kind": "math", "answer": "1"})).unwrap()), Ok(()));
    for entry in ["", "http://x", "x/y", "*", "a b", "x:99999", "x:", "me@x", ":80"] {
        assert!(!PoolSettings::names_host(entry), "{entry}");
    }
}
