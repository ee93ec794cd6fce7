//! Promise 1 at the level of jobs (G1): the same groups, bit for bit, as one sample at a time, whatever the delays, the preemptions, the
//! reward latencies, the width of the sampling and the restarts.

use std::sync::Arc;
use std::time::Duration;

use adaroll::metrics::Metrics;
use adaroll::reward::{Asked, Judge, Judged, Pool, PoolSettings, Verifier};
use adaroll::rollout::{Context, Ending, JobRecord, JobSpec, Origin, Pause, Slots, Versions, Width, job};
use adaroll::server::Limits;
use adaroll::server::request::RolloutRequest;
use adaroll::store::{Resume, Store, StorePath};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::fake_engine::{FakeEngine, FakeText, Manner, mix, scripted, unit};
use crate::server_kit::job as body_of;

/// Judges by the text, after a delay of its own seed.
struct SlowJudge {
    seed: u64,
    most: Duration,
}

impl Judge for SlowJudge {
    fn judge(&self, verifier: Arc<Verifier>, asked: Asked) -> BoxFuture<'static, Judged> {
        let delay =
            self.most.mul_f64(unit(&[self.seed, mix(&asked.prompt_id.bytes().map(u64::from).collect::<Vec<_>>()), u64::from(asked.index)]));
        async move {
            tokio::time::sleep(delay).await;
            Judged::at_once(verifier.judge_counted(&asked.text, Some(asked.tokens)))
        }
        .boxed()
    }
}

/// How a run goes in time.
struct Run {
    manner: Manner,
    judge: SlowJudge,
    slots: usize,
    width: Width,
    /// The process dies after each of these.
    deaths: Vec<Duration>,
}

impl Run {
    fn one_at_a_time() -> Self {
        let manner = Manner { delay: Duration::ZERO, ..Manner::default() };
        let width = Width { q_min: 0.999, look_ahead: 1 };
        Run { manner, judge: SlowJudge { seed: 0, most: Duration::ZERO }, slots: 1, width, deaths: Vec::new() }
    }

    fn wild(seed: u64) -> Self {
        let pick = |what: u64, from: &[usize]| from[(mix(&[seed, what]) % from.len() as u64) as usize];
        let manner = Manner {
            seed,
            delay: Duration::from_millis(pick(1, &[5, 50, 500]) as u64),
            slots: pick(2, &[1, 3, 8, 64]),
            queue: pick(3, &[2, 10, 10_000]),
            ..Manner::default()
        };
        let most = Duration::from_millis(pick(4, &[0, 20, 900]) as u64);
        let width = Width { q_min: pick(5, &[1, 10, 30, 90]) as f64 / 100.0, look_ahead: pick(6, &[1, 3, 100]) };
        let deaths = (0..pick(7, &[0, 1, 3])).map(|i| Duration::from_millis(mix(&[seed, 8, i as u64]) % 600)).collect();
        Run { manner, judge: SlowJudge { seed: seed + 1, most }, slots: pick(9, &[1, 4, 30, 500]), width, deaths }
    }
}

pub fn spec(body: &Value) -> JobSpec {
    let engine = FakeEngine::new(Manner::default());
    let metrics = Arc::new(Metrics::new().unwrap());
    let webhook_hosts = ["good", "hang", "broken", "rubbish", "moody"].map(str::to_owned).to_vec();
    let pool = Pool::new(PoolSettings { webhook_hosts, ..PoolSettings::default() }, metrics);
    let request = RolloutRequest::read(body.to_string().as_bytes(), &Limits::default()).unwrap();
    let info = adaroll::engine::Engine::info(&*engine).clone();
    request.into_job(&FakeText, &info, 3, &Limits::default(), &pool, "test").unwrap()
}

/// Runs a job to its end and gives its groups up to their timing, with how many deaths it met.
async fn groups(body: &Value, run: Run) -> (Vec<String>, usize) {
    let store = Store::open(&StorePath::Memory).unwrap();
    let spec = Arc::new(spec(body));
    let key = store.admit(spec.to_stored(&Origin::default(), "").unwrap()).await.unwrap();
    let context = |engine| Context {
        engine,
        rewards: Arc::new(SlowJudge { seed: run.judge.seed, most: run.judge.most }),
        journal: Arc::new(store.clone()),
        metrics: Arc::new(Metrics::new().unwrap()),
        slots: Slots::new(run.slots),
        pause: Pause::default(),
        versions: Versions::new(3, ""),
        width: run.width,
    };
    let mut met = 0;
    let mut deaths = run.deaths.iter();
    loop {
        let context = context(FakeEngine::new(run.manner));
        // What a new process would read back.
        let stored = store.open_jobs().unwrap().pop().unwrap();
        let again = Arc::new(JobSpec::from_stored(&stored).unwrap());
        assert_eq!(again.settings, spec.settings);
        let record = JobRecord::open(again.clone(), key, store.clone()).unwrap();
        let resume: Resume = store.resume(key).unwrap();
        record.restore(&resume.groups, false);
        let running = job::run(&context, &again, &record, resume);
        let ending = match deaths.next() {
            Some(&death) => tokio::time::timeout(death, running).await,
            None => Ok(running.await),
        };
        // A death: the job's task is dropped in the middle, and what it had queued may or may not be written.
        let Ok(ending) = ending else {
            store.flush().await;
            met += 1;
            continue;
        };
        assert_eq!(ending, Ending::Done);
        let groups = store.groups(key, 0, 10_000).unwrap();
        return (groups.iter().map(|group| group.split_once(",\"timing\":{").unwrap().0.to_owned()).collect(), met);
    }
}

fn bodies() -> Vec<Value> {
    let all = json!({"all_samples": true});
    // The stored job must be read back with all its parts.
    let mut composed = body_of(9, json!({"return": all.clone()}));
    for prompt in composed["prompts"].as_array_mut().unwrap() {
        let length = json!({"kind": "length", "max_tokens": 20, "buffer": 10});
        let right = json!({"kind": "all", "parts": [prompt["reward"], {"kind": "format", "mark": "hashes"}]});
        prompt["reward"] = json!({"kind": "weighted", "parts": [{"weight": 1, "reward": right}, {"weight": 0.25, "reward": length}]});
    }
    vec![
        body_of(12, json!({})),
        body_of(12, json!({"strategy": {"exit": "positive", "round_size": 8}, "return": all})),
        body_of(12, json!({"strategy": {"exit": "signal", "budget": 70}})),
        body_of(14, json!({"strategy": {"kind": "dapo", "group_size": 4, "groups_wanted": 2}})),
        body_of(9, json!({"strategy": {"kind": "uniform", "group_size": 6, "mask_truncated": true}, "advantage": "grpo"})),
        body_of(10, json!({"strategy": {"kind": "estimate", "budget": 60, "min_samples": 2, "max_samples": 16}, "advantage": "ada_est"})),
        composed,
    ]
}

#[tokio::test(start_paused = true)]
async fn the_same_groups_as_one_at_a_time_for_200_seeds() {
    let bodies = bodies();
    let mut references = Vec::new();
    for body in &bodies {
        references.push(groups(body, Run::one_at_a_time()).await.0);
    }
    assert_eq!(references[0].len(), 12);
    assert_eq!(references[3].len(), 2, "dapo delivers the informative groups that were wanted");
    let mut deaths = 0;
    for seed in 0..200 {
        let which = seed as usize % bodies.len();
        let (got, met) = groups(&bodies[which], Run::wild(seed)).await;
        assert_eq!(got, references[which], "seed {seed}, body {which}");
        deaths += met;
    }
    assert!(deaths > 60, "jobs died and were restored: {deaths}");
    println!("200 seeds, {deaths} deaths, the same groups");
}

/// The wrong twin: stop at whichever samples finish first. It keeps other samples, and shorter ones.
#[test]
fn first_to_finish_differs_and_is_biased() {
    let (mut different, mut index_order, mut first_to_finish) = (0, Vec::new(), Vec::new());
    for i in 0..400u64 {
        let ids = [30, 0, 0, i as u32 % 200];
        let key = adaroll::engine::StreamKey::new(i, "p");
        let samples: Vec<_> = (0..32).map(|index| scripted(&ids, key, index)).collect();
        // A longer answer takes longer.
        let mut by_end: Vec<usize> = (0..32).collect();
        by_end.sort_by_key(|&index| (samples[index].token_ids.len(), mix(&[i, index as u64])));
        let keep = |order: &[usize]| {
            let (mut right, mut wrong) = (Vec::new(), Vec::new());
            for &index in order {
                let class = if samples[index].text.ends_with("#### 72") { &mut right } else { &mut wrong };
                if class.len() < 2 {
                    class.push(index);
                }
                if right.len() == 2 && wrong.len() == 2 {
                    break;
                }
            }
            [right, wrong].concat()
        };
        let (index, first) = (keep(&(0..32).collect::<Vec<_>>()), keep(&by_end));
        let mean = |kept: &[usize]| kept.iter().map(|&k| samples[k].token_ids.len() as f64).sum::<f64>() / kept.len() as f64;
        different += usize::from(index != first);
        index_order.push(mean(&index));
        first_to_finish.push(mean(&first));
    }
    let mean = |lengths: &[f64]| lengths.iter().sum::<f64>() / lengths.len() as f64;
    let (index, first) = (mean(&index_order), mean(&first_to_finish));
    println!("mean length kept: {index:.2} tokens by index order, {first:.2} by who finishes first; {different} of 400 groups differ");
    assert!(different > 350);
    assert!(first < 0.75 * index, "the bias that index order avoids: {first} against {index}");
}
