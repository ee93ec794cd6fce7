//! Promise 3 for a whole job: where a tenth of the golds is bad and the grader fails now and then and hangs now and then, every reward is what the
//! grader would have said, every other sample is failed, statistics count what there is, and the job ends. On a virtual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adaroll::reward::webhook::{Reply, Transport, Unanswered};
use adaroll::reward::{Asked, Judge, Judged, Judgement, Pool, PoolSettings, Verdict, Verifier};
use adaroll::rollout::progress::Totals;
use adaroll::rollout::{Context, Ending, JobRecord, MemoryJournal, Pause, Slots, Versions, Width, job};
use adaroll::store::{Resume, Store, StorePath};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fake_engine::{FakeEngine, Manner, mix};
use crate::identity::spec;
use crate::reward_kit::metrics;

const PROMPTS: usize = 60;
/// Every so many prompts have a gold that cannot be used.
const BAD_GOLD: usize = 10;

/// What the grader says of a text. It never says 0, so that every zero is a failure that was counted.
fn said(text: &str) -> f64 {
    if text.ends_with("#### 72") { 1.0 } else { 0.125 }
}

/// Of a hundred calls five fail, each in another way, and one hangs.
struct Moody {
    calls: AtomicU64,
    failed: AtomicU64,
    hung: AtomicU64,
    faults: bool,
}

impl Transport for Moody {
    fn post(&self, _: reqwest::Url, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, Unanswered>> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let luck = if self.faults { mix(&[call, 5]) % 100 } else { 99 };
        self.failed.fetch_add(u64::from(luck < 5), Ordering::SeqCst);
        self.hung.fetch_add(u64::from(luck == 5), Ordering::SeqCst);
        let body: Value = serde_json::from_slice(&body).unwrap();
        let items = body["items"].as_array().unwrap().clone();
        async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let answer =
                |items: Vec<Value>| Ok(Reply { status: 200, retry_after: None, body: json!({"items": items}).to_string().into_bytes() });
            let item = |item: &Value| json!({"id": item["id"], "reward": said(item["text"].as_str().unwrap())});
            match luck {
                0 => Ok(Reply { status: 500, ..Reply::default() }),
                1 => Err(Unanswered("could not be reached: connection refused".into())),
                2 => answer(items.iter().map(|item| json!({"id": item["id"], "error": "no compiler"})).collect()),
                3 => answer(Vec::new()),
                4 => answer(items.iter().map(|_| json!({"reward": 0})).collect()),
                5 => futures::future::pending().await,
                _ => answer(items.iter().map(item).collect()),
            }
        }
        .boxed()
    }
}

/// The wrong twin: what cannot be judged is worth nothing.
struct Zeros(Pool);

impl Judge for Zeros {
    fn judge(&self, verifier: Arc<Verifier>, asked: Asked) -> BoxFuture<'static, Judged> {
        let judged = self.0.judge(verifier, asked);
        async move {
            match judged.await {
                Judged { verdict: Verdict::Failed(_), wall_clock_timeouts, .. } => {
                    Judged::after(Judgement::bare(Verdict::Scored(0.0)), wall_clock_timeouts)
                }
                judged => judged,
            }
        }
        .boxed()
    }
}

fn body(strategy: &Value) -> Value {
    let prompt = |i: usize| {
        let reward = match i % BAD_GOLD {
            3 => json!({"kind": "math", "answer": "todo"}),
            _ => json!({"kind": "webhook", "url": "http://good/grade", "timeout_s": 20}),
        };
        let rate = [10, 30, 50, 70, 90][i % 5];
        json!({"id": format!("p{i}"), "token_ids": [rate, 0, 0, i], "reward": reward})
    };
    json!({"prompts": (0..PROMPTS).map(prompt).collect::<Vec<_>>(), "seed": 4, "bad_gold": "fail_group", "strategy": strategy,
           "sampling": {"max_tokens": 64}, "return": {"all_samples": true}})
}

struct Run {
    groups: Vec<Value>,
    totals: Totals,
    took: Duration,
    failed_calls: u64,
    hung_calls: u64,
}

async fn run(strategy: &Value, attempts: u32, faults: bool, zeros: bool) -> Run {
    let settings = PoolSettings {
        webhook_hosts: vec!["good".into()],
        webhook_attempts: attempts,
        webhook_batch: 2,
        webhook_concurrency: 32,
        ..PoolSettings::default()
    };
    let grader = Arc::new(Moody { calls: AtomicU64::new(0), failed: AtomicU64::new(0), hung: AtomicU64::new(0), faults });
    let pool = Pool::with_transport(settings, metrics(), grader.clone());
    let journal = Arc::new(MemoryJournal::default());
    let context = Context {
        engine: FakeEngine::new(Manner { delay: Duration::from_millis(40), ..Manner::default() }),
        rewards: if zeros { Arc::new(Zeros(pool)) } else { Arc::new(pool) },
        journal: journal.clone(),
        metrics: metrics(),
        slots: Slots::new(256),
        pause: Pause::default(),
        versions: Versions::new(3, ""),
        width: Width::default(),
    };
    let spec = Arc::new(spec(&body(strategy)));
    let record = JobRecord::open(spec.clone(), 1, Store::open(&StorePath::Memory).unwrap()).unwrap();
    let began = Instant::now();
    // No sample may keep the job for ever: an hour of virtual time is for ever.
    let ending = tokio::time::timeout(Duration::from_secs(3600), job::run(&context, &spec, &record, Resume::default())).await;
    assert_eq!(ending.expect("the job hangs"), Ending::Done);
    let groups = journal.groups().iter().map(|row| serde_json::from_str(row.json.as_deref().unwrap()).unwrap()).collect();
    let count = |calls: &AtomicU64| calls.load(Ordering::SeqCst);
    Run { groups, totals: record.totals(), took: began.elapsed(), failed_calls: count(&grader.failed), hung_calls: count(&grader.hung) }
}

fn samples(group: &Value) -> &[Value] {
    group["samples"].as_array().unwrap()
}

fn reproducible(group: &Value) -> Value {
    let mut group = group.clone();
    group.as_object_mut().unwrap().remove("timing");
    group
}

/// Every reward is the grader's, and statistics are what this counts; gives the number of failed samples.
fn check(run: &Run) -> u64 {
    let mut sums = (0, 0, 0, 0);
    for (position, group) in run.groups.iter().enumerate() {
        assert_eq!(group["prompt_id"], format!("p{position}"));
        let stats = &group["stats"];
        let number = |name: &str| stats[name].as_u64().unwrap();
        let is_bad = position % BAD_GOLD == 3;
        if is_bad {
            assert_eq!((&group["status"], &group["samples"], number("seen")), (&json!("failed"), &json!([]), 0));
            assert!(group["error"].as_str().unwrap().starts_with("bad gold: reward.answer is \"todo\""), "{group}");
        }
        let (mut positive, mut negative, mut failed) = (0u64, 0u64, 0u64);
        let mut rewards = Vec::new();
        for sample in samples(group) {
            match sample["reward_status"].as_str().unwrap() {
                "scored" => {
                    let reward = sample["reward"].as_f64().unwrap();
                    assert_eq!(reward, said(sample["text"].as_str().unwrap()), "{sample}");
                    assert_eq!(sample["positive"], reward > 0.5);
                    if reward > 0.5 {
                        positive += 1
                    } else {
                        negative += 1
                    }
                    rewards.push(reward);
                }
                "failed" => {
                    failed += 1;
                    assert_eq!([&sample["reward"], &sample["positive"], &sample["advantage"]], [&Value::Null; 3], "{sample}");
                }
                other => panic!("{other}: {sample}"),
            }
        }
        assert_eq!((number("positive"), number("negative"), number("failed"), number("skipped")), (positive, negative, failed, 0));
        assert_eq!(number("seen"), positive + negative + failed);
        assert_eq!(number("seen"), samples(group).len() as u64);
        let counted = positive + negative;
        let rate = (counted > 0).then(|| positive as f64 / counted as f64);
        assert_eq!(stats["pass_rate"].as_f64(), rate, "{stats}");
        let mean = (counted > 0).then(|| rewards.iter().sum::<f64>() / counted as f64);
        assert!(stats["reward_mean"].as_f64().zip(mean).is_none_or(|(got, mean)| (got - mean).abs() < 1e-12), "{stats}");
        assert_eq!(stats["reward_mean"].is_null(), mean.is_none());
        let is_failed = group["status"] == "failed";
        if is_failed && !is_bad {
            let why = group["error"].as_str().unwrap();
            assert!(why.contains("more than max_failed") && why.contains("; sample "), "{why}");
        }
        assert_eq!(is_failed, !group["error"].is_null(), "{group}");
        sums = (sums.0 + number("seen"), sums.1 + positive, sums.2 + failed, sums.3 + u64::from(is_failed));
    }
    let totals = run.totals;
    assert_eq!((totals.prompts, totals.groups), (PROMPTS as u64, PROMPTS as u64));
    assert_eq!((totals.samples_seen, totals.samples_positive, totals.failed), (sums.0, sums.1, sums.3));
    assert_eq!(totals.resolved + totals.exhausted + totals.failed, PROMPTS as u64);
    sums.2
}

#[tokio::test(start_paused = true)]
async fn no_fault_is_a_zero_and_none_is_for_ever() {
    for strategy in
        [json!({"exit": "balance", "max_samples": 16, "group_size": 4}), json!({"kind": "uniform", "group_size": 8, "max_failed": 4})]
    {
        let good = run(&strategy, 3, false, false).await;
        assert_eq!((check(&good), good.totals.failed), (0, (PROMPTS / BAD_GOLD) as u64), "nothing fails but bad golds");
        let mut failed = Vec::new();
        for attempts in [3, 1] {
            let run = run(&strategy, attempts, true, false).await;
            failed.push(check(&run));
            let (calls, hung) = (run.failed_calls, run.hung_calls);
            println!(
                "{attempts} attempts: {calls} calls failed, {hung} hung, {} samples failed, {} groups, {:?}",
                failed[failed.len() - 1],
                run.totals.failed,
                run.took
            );
            assert!(calls > 3 && hung > 0, "{calls} calls failed, {hung} hung");
            // A group that met no failure is what it would have been; one that met a failure has an index less, and no other change of rewards.
            let mut same = 0;
            for (group, without) in run.groups.iter().zip(&good.groups) {
                if group["stats"]["failed"] == 0 {
                    assert_eq!(reproducible(group), reproducible(without));
                    same += 1;
                }
                for (sample, other) in samples(group).iter().zip(samples(without)) {
                    assert_eq!(sample["token_ids"], other["token_ids"]);
                    assert!(sample["reward"].is_null() || sample["reward"] == other["reward"], "{sample}");
                }
            }
            assert!(same > 10, "{same}");
            // A call that hangs costs its deadline; a prompt can meet a few of them one after another.
            assert!(run.took < Duration::from_secs(300), "{:?}", run.took);
        }
        assert!(failed[1] > 5, "without retries samples fail: {failed:?}");
        assert!(failed[0] < failed[1], "and retries help: {failed:?}");
        // The twin: with failures as zeros there are rewards that nobody gave, and the numbers are others.
        let zeros = run(&strategy, 1, true, true).await;
        let invented = zeros.groups.iter().flat_map(samples).filter(|sample| sample["reward"] == 0.0).count();
        let mean = |run: &Run| {
            let rewards: Vec<f64> = run.groups.iter().flat_map(samples).filter_map(|sample| sample["reward"].as_f64()).collect();
            rewards.iter().sum::<f64>() / rewards.len() as f64
        };
        println!("as zeros: {invented} rewards that nobody gave, mean {:.4} for {:.4}", mean(&zeros), mean(&good));
        assert!(invented > 5 && mean(&zeros) < mean(&good));
        assert!(std::panic::catch_unwind(|| check(&zeros)).is_err(), "the check sees it");
        let changed = zeros.groups.iter().zip(&good.groups).filter(|(a, b)| a["stats"]["pass_rate"] != b["stats"]["pass_rate"]).count();
        assert!(changed > 3, "{changed}");
    }
}
