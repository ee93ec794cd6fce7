//! Promise 3 at the level of jobs: a grader that hangs, fails, answers late or lies makes failed samples and failed groups, never a zero, and
//! other prompts are not delayed. On a virtual clock, so that "not delayed" is a number.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use adaroll::reward::webhook::{Reply, Transport, Unanswered};
use adaroll::reward::{Pool, PoolSettings};
use adaroll::rollout::{Context, Ending, JobRecord, MemoryJournal, Pause, Slots, Versions, Width, job};
use adaroll::store::{Resume, Store, StorePath};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fake_engine::{FakeEngine, Manner};
use crate::identity::spec;
use crate::reward_kit::metrics;

/// Graders by host: `good` grades, `hang` never answers, `broken` says 500, `rubbish` says what is no answer, `moody` hangs at its first two
/// calls and then grades.
#[derive(Default)]
struct Graders {
    moody: AtomicUsize,
}

impl Transport for Graders {
    fn post(&self, url: reqwest::Url, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, Unanswered>> {
        let host = url.host_str().unwrap().to_owned();
        let hangs = host == "hang" || (host == "moody" && self.moody.fetch_add(1, Ordering::SeqCst) < 2);
        async move {
            if hangs {
                futures::future::pending::<()>().await;
            }
            let body: Value = serde_json::from_slice(&body).unwrap();
            // Word for word what our verifier says.
            let item = |item: &Value| {
                let (_, number) = item["text"].as_str().unwrap().rsplit_once("#### ").unwrap();
                let (verdict, rule) = if number == "72" { ("correct", "hashes/identical") } else { ("wrong", "hashes/number") };
                json!({"id": item["id"], "verdict": verdict, "extracted": number, "rule": rule})
            };
            let items: Vec<Value> = body["items"].as_array().unwrap().iter().map(item).collect();
            Ok(match host.as_str() {
                "broken" => Reply { status: 500, ..Reply::default() },
                "rubbish" => Reply { status: 200, retry_after: None, body: b"{\"items\": \"all good\"}".to_vec() },
                _ => Reply { status: 200, retry_after: None, body: json!({"items": items}).to_string().into_bytes() },
            })
        }
        .boxed()
    }
}

fn body(graders: &[&str]) -> Value {
    let prompt = |(i, grader): (usize, &&str)| {
        let reward = match *grader {
            "math" => json!({"kind": "math", "answer": "72"}),
            host => json!({"kind": "webhook", "url": format!("http://{host}/grade"), "timeout_s": 20}),
        };
        // The same ids give the same samples, whoever grades them.
        json!({"id": format!("p{i}"), "token_ids": [40, 0, 0, i], "reward": reward})
    };
    json!({"prompts": graders.iter().enumerate().map(prompt).collect::<Vec<_>>(), "seed": 3, "order": "completion",
           "strategy": {"exit": "signal", "max_samples": 16, "group_size": 2}, "sampling": {"max_tokens": 64}})
}

/// Runs a job; gives its groups by prompt, each with the virtual time of its delivery.
async fn run(graders: &[&str]) -> Vec<(Value, Duration)> {
    let hosts = ["good", "hang", "broken", "rubbish", "moody"].map(str::to_owned).to_vec();
    let pool = Pool::with_transport(PoolSettings { webhook_hosts: hosts, ..PoolSettings::default() }, metrics(), Arc::<Graders>::default());
    let journal = Arc::new(MemoryJournal::default());
    let context = Context {
        engine: FakeEngine::new(Manner { delay: Duration::from_millis(40), ..Manner::default() }),
        rewards: Arc::new(pool),
        journal: journal.clone(),
        metrics: metrics(),
        slots: Slots::new(64),
        pause: Pause::default(),
        versions: Versions::new(3, ""),
        width: Width::default(),
    };
    let spec = Arc::new(spec(&body(graders)));
    let record = JobRecord::open(spec.clone(), 1, Store::open(&StorePath::Memory).unwrap()).unwrap();
    let began = Instant::now();
    let times = Mutex::new(Vec::new());
    let watch = async {
        loop {
            times.lock().unwrap().resize(journal.groups().len(), began.elapsed());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ending = tokio::select! {
        ending = job::run(&context, &spec, &record, Resume::default()) => ending,
        () = watch => unreachable!(),
    };
    assert_eq!(ending, Ending::Done);
    let end = began.elapsed();
    let times = times.into_inner().unwrap();
    let mut rows: Vec<_> = journal.groups().into_iter().enumerate().collect();
    rows.sort_by_key(|(_, row)| row.prompt);
    let group = |(i, row): (usize, adaroll::store::GroupRow)| {
        (serde_json::from_str(row.json.as_deref().unwrap()).unwrap(), times.get(i).copied().unwrap_or(end))
    };
    rows.into_iter().map(group).collect()
}

fn reproducible(group: &Value) -> Value {
    let mut group = group.clone();
    group.as_object_mut().unwrap().remove("timing");
    group
}

#[tokio::test(start_paused = true)]
async fn a_bad_grader_fails_its_own_groups_and_delays_nobody() {
    let graders = ["hang", "math", "broken", "good", "rubbish", "math", "hang", "good", "moody", "good"];
    let alone = run(&["math"; 10]).await;
    let groups = run(&graders).await;
    let mut last_good = Duration::ZERO;
    for (i, (grader, (group, at))) in graders.iter().zip(&groups).enumerate() {
        match *grader {
            "math" | "good" => {
                assert_eq!(reproducible(group), reproducible(&alone[i].0), "{grader}: the group is that of a job without bad graders");
                assert_eq!(group["timing"]["wall_clock_timeouts"], 0);
                last_good = last_good.max(*at);
            }
            "moody" => {
                assert_eq!(reproducible(group), reproducible(&alone[i].0), "what came late is what comes at once");
                assert!(group["timing"]["wall_clock_timeouts"].as_u64().unwrap() > 0, "and the group says that a deadline passed");
                assert!(*at > Duration::from_secs(20), "{at:?}");
            }
            _ => {
                assert_eq!((&group["status"], &group["samples"]), (&json!("failed"), &json!([])), "{grader}: {group}");
                let stats = &group["stats"];
                assert_eq!((&stats["positive"], &stats["negative"]), (&json!(0), &json!(0)), "a failure is no negative: {stats}");
                assert_eq!((&stats["pass_rate"], &stats["reward_mean"]), (&Value::Null, &Value::Null));
                assert!(stats["failed"].as_u64().unwrap() > 1, "{stats}");
                if *grader == "hang" {
                    assert!(group["timing"]["wall_clock_timeouts"].as_u64().unwrap() >= 6, "three calls for each sample: {group}");
                    assert!(*at > Duration::from_secs(60), "{at:?}");
                }
            }
        }
    }
    let undisturbed = alone.iter().map(|(_, at)| *at).max().unwrap();
    println!("groups of good graders: all by {last_good:?} beside hanging ones, {undisturbed:?} alone (virtual time)");
    assert!(last_good < Duration::from_secs(2), "other prompts were delayed: {last_good:?}");
}
