//! Promise: a reward made of others is what its rule says; what a part cannot say makes a failure or a limit of the whole, never a zero, unless
//! the other parts decide; and what is found does not depend on who answers first.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adaroll::reward::webhook::{Reply, Transport, Unanswered};
use adaroll::reward::{Found, Judge, Judged, Judgement, Pool, PoolSettings, Ruling, Spec, Verdict};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::fake_engine::Manner;
use crate::reward_kit::{asked, compile, failure, judge, metrics};
use crate::server_kit::{Kit, job};

/// Graders by host, each with one word for every sample; `hang` has none. A host may begin with milliseconds that it takes: `50-wrong`.
#[derive(Default)]
struct Graders {
    calls: AtomicUsize,
    seen: Mutex<Vec<Value>>,
}

const WORDS: [(&str, &str); 9] = [
    ("right", r#""verdict": "correct", "extracted": "R""#),
    ("wrong", r#""verdict": "wrong", "extracted": "W""#),
    ("silent", r#""verdict": "no_answer""#),
    ("half", r#""reward": 0.5"#),
    ("bare", r#""reward": 0.75"#),
    ("large", r#""verdict": "limit", "rule": "64 kB""#),
    ("lost", r#""verdict": "bad_gold""#),
    ("broken", r#""error": "no compiler""#),
    ("high", r#""reward": 1e308"#),
];

impl Transport for Graders {
    fn post(&self, url: reqwest::Url, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, Unanswered>> {
        let host = url.host_str().unwrap().to_owned();
        let body: Value = serde_json::from_slice(&body).unwrap();
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.seen.lock().unwrap().extend(body["items"].as_array().unwrap().iter().cloned());
        let (wait, name) = host.split_once('-').map_or((0, host.as_str()), |(wait, name)| (wait.parse().unwrap(), name));
        let word = WORDS.iter().find(|(word, _)| *word == name).map(|(_, said)| *said);
        let item = |item: &Value| format!("{{\"id\": {}, {}}}", item["id"], word.unwrap());
        let answer = word.map(|_| body["items"].as_array().unwrap().iter().map(item).collect::<Vec<_>>().join(", "));
        async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            match answer {
                Some(items) => Ok(Reply { status: 200, retry_after: None, body: format!("{{\"items\": [{items}]}}").into_bytes() }),
                None => futures::future::pending().await,
            }
        }
        .boxed()
    }
}

fn pool(graders: &Arc<Graders>) -> Pool {
    let names = WORDS.iter().map(|(word, _)| *word).chain(["hang"]);
    let hosts = names.flat_map(|name| [name.to_owned(), format!("50-{name}"), format!("200-{name}")]).collect();
    Pool::with_transport(PoolSettings { webhook_hosts: hosts, ..PoolSettings::default() }, metrics(), graders.clone())
}

/// A part by name: a grader's word, or a verifier of text on the answer `B`.
fn part(name: &str) -> Value {
    match name {
        "yes" => json!({"kind": "exact", "answer": "B"}),
        "no" => json!({"kind": "exact", "answer": "A"}),
        "none" => json!({"kind": "json", "schema": {}}),
        "late" => json!({"kind": "length", "max_tokens": 8, "buffer": 4}),
        host => json!({"kind": "webhook", "url": format!("http://{host}/grade"), "timeout_s": 10}),
    }
}

fn of(kind: &str, names: &[&str]) -> Value {
    json!({"kind": kind, "parts": names.iter().map(|name| part(name)).collect::<Vec<_>>()})
}

fn sum(parts: &[(f64, &str)]) -> Value {
    let part = |(weight, name): &(f64, &str)| json!({"weight": weight, "reward": part(name)});
    json!({"kind": "weighted", "parts": parts.iter().map(part).collect::<Vec<_>>()})
}

async fn ask(reward: &Value) -> (Judged, usize) {
    let graders = Arc::new(Graders::default());
    let judged = pool(&graders).judge(compile(reward.clone()), asked(0, "B")).await;
    (judged, graders.calls.load(Ordering::SeqCst))
}

/// What is expected of a whole: its reward, or what is said of it.
#[derive(Clone, Copy, Debug)]
enum Whole {
    Is(f64),
    TooLarge(&'static str),
    Fails(&'static str),
}

/// `verdict extracted rule`, or nothing.
fn shown(found: &Option<Found>) -> String {
    let shown = |found: &Found| format!("{} {} {}", found.ruling.name(), found.extracted.as_deref().unwrap_or("-"), found.rule);
    found.as_ref().map(shown).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn the_whole_is_what_the_parts_make_it() {
    use Whole::{Fails, Is, TooLarge};
    let rows = [
        // Every part must be positive; the first that is not decides.
        (of("all", &["yes", "yes"]), Is(1.0), "correct B all"),
        (of("all", &["yes", "no"]), Is(0.0), "wrong B all/1:exact"),
        (of("all", &["no", "no"]), Is(0.0), "wrong B all/0:exact"),
        (of("all", &["yes", "none"]), Is(0.0), "no_answer - all/1:json"),
        (of("all", &["yes", "right"]), Is(1.0), "correct B all"),
        (of("all", &["right", "bare"]), Is(1.0), "correct R all"),
        (of("all", &["bare"]), Is(1.0), "correct - all"),
        (of("all", &["yes", "half"]), Is(0.0), "wrong - all/1:webhook"),
        (of("all", &["right", "silent"]), Is(0.0), "no_answer - all/1:webhook"),
        // What a part cannot say fails the whole, unless another is not positive.
        (of("all", &["yes", "broken"]), Fails("parts[1]: no reward after 3 calls"), ""),
        (of("all", &["broken", "right"]), Fails("parts[0]: no reward after 3 calls"), ""),
        (of("all", &["broken", "wrong"]), Is(0.0), "wrong W all/1:webhook"),
        (of("all", &["broken", "no"]), Is(0.0), "wrong B all/1:exact"),
        (of("all", &["hang", "wrong"]), Is(0.0), "wrong W all/1:webhook"),
        (of("all", &["lost", "yes"]), Fails("parts[0]: its grader says"), "bad_gold - all/0:webhook"),
        (of("all", &["large", "yes"]), TooLarge("parts[0]: the answer is too large"), "limit - all/0:64 kB"),
        (of("all", &["large", "no"]), Is(0.0), "wrong B all/1:exact"),
        (of("all", &["large", "broken"]), Fails("parts[1]: no reward"), ""),
        // One part must be positive; the first that is decides.
        (of("any", &["no", "yes"]), Is(1.0), "correct B any/1:exact"),
        (of("any", &["no", "none"]), Is(0.0), "wrong B any"),
        (of("any", &["none", "silent"]), Is(0.0), "no_answer - any"),
        (of("any", &["half", "bare"]), Is(1.0), "correct - any/1:webhook"),
        (of("any", &["wrong", "no"]), Is(0.0), "wrong W any"),
        (of("any", &["broken", "yes"]), Is(1.0), "correct B any/1:exact"),
        (of("any", &["broken", "right"]), Is(1.0), "correct R any/1:webhook"),
        (of("any", &["broken", "no"]), Fails("parts[0]: no reward"), ""),
        (of("any", &["large", "no"]), TooLarge("parts[0]: "), "limit - any/0:64 kB"),
        (of("any", &["large", "right"]), Is(1.0), "correct R any/1:webhook"),
        // A sum; the part of the largest weight speaks.
        (sum(&[(1.0, "yes"), (0.25, "no")]), Is(1.0), "correct B weighted/0:exact"),
        (sum(&[(0.25, "yes"), (0.75, "wrong")]), Is(0.25), "wrong W weighted/1:webhook"),
        (sum(&[(0.5, "yes"), (0.5, "right")]), Is(1.0), "correct B weighted/0:exact"),
        (sum(&[(2.0, "bare"), (-1.0, "yes")]), Is(0.5), "correct B weighted/1:exact"),
        (sum(&[(1.0, "yes"), (0.5, "late")]), Is(1.0 - 0.5 * 0.75), "correct B weighted/0:exact"),
        (sum(&[(1.0, "late")]), Is(-0.75), ""),
        (sum(&[(0.1, "yes"), (0.2, "yes"), (0.3, "yes")]), Is(0.1 + 0.2 + 0.3), "correct B weighted/2:exact"),
        (sum(&[(1.0, "yes"), (1e-9, "broken")]), Fails("parts[1]: no reward"), ""),
        (sum(&[(1.0, "yes"), (0.0, "broken")]), Is(1.0), "correct B weighted/0:exact"),
        (sum(&[(1.0, "yes"), (1.0, "large")]), TooLarge("parts[1]: "), "limit - weighted/1:64 kB"),
        (sum(&[(1.0, "large"), (1.0, "lost")]), Fails("parts[1]: its grader says"), "bad_gold - weighted/1:webhook"),
        (sum(&[(10.0, "high"), (1.0, "yes")]), Fails("the weighted verifier gave inf, which is no reward"), ""),
    ];
    for (reward, whole, found) in rows {
        let (judged, _) = ask(&reward).await;
        let fits = match (&judged.verdict, whole) {
            (Verdict::Scored(got), Is(reward)) => *got == reward,
            (Verdict::Limit(why), TooLarge(begins)) | (Verdict::Failed(why), Fails(begins)) => why.starts_with(begins),
            _ => false,
        };
        assert!(fits, "{reward}: {:?}, expected {whole:?}", judged.verdict);
        assert_eq!(shown(&judged.found), found, "{reward}");
    }
    // The twin: were failures zeros, these would have rewards.
    for reward in [of("all", &["yes", "broken"]), of("any", &["broken", "no"]), sum(&[(1.0, "yes"), (0.5, "broken")])] {
        failure(&ask(&reward).await.0.verdict);
    }
}

#[tokio::test(start_paused = true)]
async fn nested_ones_name_their_way() {
    let deep = json!({"kind": "all", "parts": [part("yes"), {"kind": "any", "parts": [part("no"), {"kind": "weighted", "parts": [
        {"weight": 2.0, "reward": part("wrong")}, {"weight": 0.4, "reward": of("all", &["yes", "right"])}]}]}]});
    let (judged, calls) = ask(&deep).await;
    assert_eq!((judged.verdict, shown(&judged.found)), (Verdict::Scored(0.0), "wrong B all/1:any".to_owned()));
    assert_eq!(calls, 2);
    let mut other = deep.clone();
    other["parts"][1]["parts"][1]["parts"][1]["weight"] = json!(0.6);
    let (judged, _) = ask(&other).await;
    assert_eq!((judged.verdict, shown(&judged.found)), (Verdict::Scored(1.0), "correct B all".to_owned()));
    other["kind"] = json!("any");
    other["parts"][0] = part("no");
    assert_eq!(shown(&ask(&other).await.0.found), "correct W any/1:any/1:weighted/0:webhook");
    let mut failing = deep;
    failing["parts"][1]["parts"][1]["parts"][1]["reward"]["parts"][1] = part("broken");
    assert!(failure(&ask(&failing).await.0.verdict).starts_with("parts[1]: parts[1]: parts[1]: parts[1]: no reward after 3 calls"));
}

#[tokio::test(start_paused = true)]
async fn what_text_decides_asks_nobody_and_graders_are_asked_together() {
    for reward in [of("all", &["right", "no"]), of("any", &["wrong", "yes"]), of("all", &["hang", "yes", "no"])] {
        assert_eq!(ask(&reward).await.1, 0, "{reward}");
    }
    // Two graders of 200 ms take 200 ms.
    let begun = tokio::time::Instant::now();
    let (judged, calls) = ask(&of("all", &["200-right", "200-bare", "yes"])).await;
    assert_eq!((judged.verdict, calls), (Verdict::Scored(1.0), 2));
    assert!(begun.elapsed() < Duration::from_millis(250), "{:?}", begun.elapsed());
    // Whoever is first: the first by position is named. A part behind it that hangs is not waited for.
    for (first, second) in [("50-wrong", "200-silent"), ("200-wrong", "50-silent")] {
        let (judged, _) = ask(&of("all", &["yes", first, second, "hang"])).await;
        assert_eq!(shown(&judged.found), "wrong W all/1:webhook", "{first}, {second}");
        assert_eq!(judged.wall_clock_timeouts, 0);
    }
    // Two parts that ask one grader share a call, and each hears its own word.
    let graders = Arc::new(Graders::default());
    let same = |data: u32| json!({"kind": "webhook", "url": "http://right/grade", "data": data});
    let both = json!({"kind": "all", "parts": [same(1), same(2)]});
    let judged = pool(&graders).judge(compile(both), asked(3, "B")).await;
    assert_eq!(judged.verdict, Verdict::Scored(1.0));
    let seen: Vec<_> = graders.seen.lock().unwrap().iter().map(|item| (item["id"].clone(), item["data"].clone())).collect();
    assert_eq!(seen, [(json!("job-1/prompt-1/3"), json!(1)), (json!("job-1/prompt-1/3#2"), json!(2))]);
    assert_eq!(graders.calls.load(Ordering::SeqCst), 1);
}

#[test]
fn by_the_text_alone_the_same_rules_hold() {
    assert_eq!(judge(&of("all", &["yes", "no"]), "B"), Verdict::Scored(0.0));
    // Nobody is asked here, and a length is not known: neither is a zero.
    assert_eq!(judge(&of("all", &["right", "no"]), "B"), Verdict::Scored(0.0));
    assert!(failure(&judge(&of("all", &["right", "yes"]), "B")).contains("judged by its grader"));
    assert!(failure(&judge(&sum(&[(1.0, "yes"), (1.0, "late")]), "B")).contains("length in tokens is not known"));
    let counted = compile(sum(&[(1.0, "yes"), (1.0, "late")])).judge_counted("B", Some(4));
    assert_eq!(
        counted,
        Judgement { verdict: Verdict::Scored(1.0), found: Some(Found::new(Ruling::Correct, Some("B"), "weighted/0:exact")) }
    );
}

#[test]
fn what_cannot_be_a_part_is_named() {
    let wrap = |depth: usize| (0..depth).fold(part("yes"), |inner, _| json!({"kind": "all", "parts": [inner]}));
    let many = |n: usize| json!({"kind": "any", "parts": vec![part("yes"); n]});
    let inside =
        |reward: Value| json!({"kind": "all", "parts": [part("yes"), {"kind": "weighted", "parts": [{"weight": 1, "reward": reward}]}]});
    for good in [wrap(4), many(16), inside(part("late"))] {
        Spec::read(&good).unwrap().compile().unwrap();
    }
    let rows = [
        (json!({"kind": "all"}), "parts", "is missing"),
        (json!({"kind": "all", "parts": []}), "parts", "give 1 to 16"),
        (json!({"kind": "all", "parts": {}}), "parts", "expected a sequence"),
        (json!({"kind": "any", "parts": ["exact"]}), "parts[0]", "must be an object"),
        (json!({"kind": "any", "parts": [part("yes"), {"kind": "exact"}]}), "parts[1].answer", "is missing"),
        (json!({"kind": "any", "parts": [part("yes")], "weights": [1]}), "weights", "is not a field here"),
        (wrap(5), "parts[0].parts[0].parts[0].parts[0].parts", "nested more than 4 deep"),
        (wrap(60), "parts[0].parts[0].parts[0].parts[0].parts", "nested more than 4 deep"),
        (many(17), "parts", "makes 17 parts in all"),
        (json!({"kind": "all", "parts": [many(8), many(8)]}), "parts[1].parts", "makes 18 parts in all"),
        (json!({"kind": "all", "parts": [part("yes"), {"kind": "pull"}]}), "parts[1].kind", "cannot be a part"),
        (inside(json!({"kind": "pull"})), "parts[1].parts[0].reward.kind", "cannot be a part"),
        (json!({"kind": "all", "parts": [part("late")]}), "parts[0].kind", "never positive"),
        (inside(json!({"kind": "regex", "pattern": "("})), "parts[1].parts[0].reward.pattern", "unclosed group"),
        (json!({"kind": "weighted", "parts": [part("yes")]}), "parts[0].kind", "is not a field here"),
        (json!({"kind": "weighted", "parts": [{"reward": part("yes")}]}), "parts[0].weight", "is missing"),
        (json!({"kind": "weighted", "parts": [{"weight": "1", "reward": part("yes")}]}), "parts[0].weight", "expected f64"),
        (sum(&[(0.0, "yes"), (-0.0, "no")]), "parts", "no weight but 0"),
        (json!({"kind": "length", "max_tokens": 8}), "buffer", "is missing"),
        (json!({"kind": "length", "max_tokens": 0, "buffer": 0}), "max_tokens", "is 0"),
        (json!({"kind": "length", "max_tokens": 8, "buffer": 9}), "buffer", "more than max_tokens (8)"),
        (json!({"kind": "format"}), "mark", "is missing"),
        (json!({"kind": "format", "think": "maybe"}), "think", "\"prefilled\""),
        (json!({"kind": "format", "mark": "bold"}), "mark", "unknown variant `bold`"),
        (json!({"kind": "format", "mark": "boxed", "once": true}), "once", "is not a field here"),
    ];
    for (reward, path, problem) in rows {
        let error = Spec::read(&reward).map(|_| reward.clone()).expect_err("was taken");
        assert_eq!(error.path, path, "{reward}: {error}");
        assert!(error.problem.contains(problem), "{reward}: {error}");
    }
    // A bad gold is told from a bad field here too.
    let bad = Spec::read(&inside(json!({"kind": "math", "answer": "todo"}))).unwrap().compile().unwrap_err();
    assert_eq!(bad.field, "parts[1].parts[0].reward.answer");
    // A grader that may not be asked is found in any depth.
    let error = pool(&Arc::default()).check(&Spec::read(&inside(part("elsewhere"))).unwrap()).unwrap_err();
    assert_eq!(error.path, "parts[1].parts[0].reward.url");
}

#[test]
fn a_length_costs_what_it_should() {
    let soft = json!({"kind": "length", "max_tokens": 100, "buffer": 20});
    let sharp = json!({"kind": "length", "max_tokens": 100, "buffer": 0});
    let whole = json!({"kind": "length", "max_tokens": 4, "buffer": 4});
    let rows = [
        (&soft, 0, 0.0),
        (&soft, 80, 0.0),
        (&soft, 81, -0.05),
        (&soft, 90, -0.5),
        (&soft, 99, -0.95),
        (&soft, 100, -1.0),
        (&soft, u32::MAX, -1.0),
        (&sharp, 100, 0.0),
        (&sharp, 101, -1.0),
        (&whole, 0, 0.0),
        (&whole, 1, -0.25),
        (&whole, 4, -1.0),
    ];
    for (reward, tokens, expected) in rows {
        let judged = compile(reward.clone()).judge_counted("x", Some(tokens));
        assert_eq!(judged, Judgement::bare(Verdict::Scored(expected)), "{reward}, {tokens} tokens");
    }
}

/// Right answers, minus what their length costs, in every group of a job; what was cut off has its length's cost and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_see_compositions() {
    let kit = Kit::start(Manner { seed: 3, delay: Duration::from_millis(2), ..Manner::default() }).await;
    let mut body =
        job(12, json!({"return": {"all_samples": true}, "strategy": {"kind": "uniform", "group_size": 8, "positive_above": 0.4}}));
    for prompt in body["prompts"].as_array_mut().unwrap() {
        prompt["reward"] = json!({"kind": "weighted", "parts": [
            {"weight": 1.0, "reward": {"kind": "all", "parts": [prompt["reward"], {"kind": "format", "mark": "hashes"}]}},
            {"weight": 0.5, "reward": {"kind": "length", "max_tokens": 12, "buffer": 6}}]});
    }
    let streamed = kit.stream(&body).await;
    let (mut rights, mut cut, mut shortened) = (0, 0, 0);
    for sample in (0..12).flat_map(|i| streamed.group(i)["samples"].as_array().unwrap().clone()) {
        let tokens = sample["token_ids"].as_array().unwrap().len() as f64;
        let penalty = 0.5 * -((tokens - 6.0).max(0.0) / 6.0).min(1.0);
        if sample["reward_status"] == "failed" {
            continue;
        }
        let is_cut = sample["finish_reason"] == "length";
        let right = !is_cut && sample["text"].as_str().unwrap().ends_with("#### 72");
        let expected = f64::from(u8::from(right)) + penalty;
        assert!((sample["reward"].as_f64().unwrap() - expected).abs() < 1e-12, "{sample}");
        assert_eq!(sample["positive"], expected > 0.4, "{sample}");
        match (is_cut, right) {
            (true, _) => assert_eq!(sample["verdict"], Value::Null),
            (false, true) => assert_eq!(
                (&sample["verdict"], &sample["extracted"], &sample["rule"]),
                (&json!("correct"), &json!("72"), &json!("weighted/0:all"))
            ),
            (false, false) => {
                assert_eq!((&sample["verdict"], &sample["rule"]), (&json!("wrong"), &json!("weighted/0:all/0:hashes/number")))
            }
        }
        (rights, cut, shortened) = (rights + u32::from(right), cut + u32::from(is_cut), shortened + u32::from(penalty < 0.0));
    }
    assert!(rights > 20 && cut > 2 && shortened > 20, "{rights} right, {cut} cut off, {shortened} too long");
}
