//! The store: what goes in comes out, in order, once, and is still there after a restart. Every promise that does not need a file is tried on
//! a file and in memory.

mod blobs;
mod command;
mod crash;
mod size;

use std::path::{Path, PathBuf};

use adaroll::store::{
    CloseJob, GroupRow, HistoryUpdate, JobState, NewJob, SampleRow, Store, StoreError, StorePath, StoreReader, Verdict, VerdictRow,
    lock_path,
};
use tempfile::TempDir;

fn new_job(id: &str) -> NewJob {
    NewJob {
        id: id.into(),
        digest: format!("digest of {id}"),
        named: true,
        settings: r#"{"seed":7}"#.into(),
        spec: b"spec spec spec spec spec spec spec".repeat(20),
        prompts: 3,
        namespace: "default".into(),
        model_digest: "m".into(),
        numerics_id: "cpu-1".into(),
        weights_version: u64::MAX - 1,
        weights_digest: "blake3:00".into(),
        key: "trainer".into(),
        accepted_unix_s: 1_764_640_000.25,
    }
}

fn sample(job: i64, prompt: u32, index: u32) -> SampleRow {
    let tokens = 3 + index;
    SampleRow {
        job,
        prompt,
        index,
        token_ids: (0..tokens).map(|i| i * 50_000 + prompt).collect(),
        logprobs: (0..tokens).map(|i| -(i as f32) / 7.0).collect(),
        logprobs_raw: Some((0..tokens).map(|i| -(i as f32) / 8.0).collect()),
        text: format!("answer {index} ünïcode"),
        finish_reason: "stop".into(),
        stop_match: (index == 1).then(|| r#""\n""#.into()),
        weight_versions: vec![(u64::MAX, 0, tokens)],
    }
}

fn verdict(job: i64, prompt: u32, index: u32, reward: Option<f64>) -> VerdictRow {
    let verdict =
        Verdict { outcome: 1, reward, status: 2, note: Some("why".into()), found: Some("{\"verdict\":\"wrong\"}".into()), timeouts: 3 };
    VerdictRow { job, prompt, index, verdict }
}

fn group(job: i64, prompt: u32, seq: Option<u64>) -> GroupRow {
    GroupRow {
        job,
        prompt,
        seq,
        t: 8,
        kind: "plan".into(),
        status: "resolved".into(),
        signal: true,
        positive: prompt + 1,
        negative: 2,
        tokens_seen: 100,
        timeouts: 2,
        json: Some(format!(r#"{{"prompt":{prompt}}}"#)),
    }
}

fn close(job: i64) -> CloseJob {
    let totals = r#"{"groups":1}"#.into();
    CloseJob { job, state: JobState::Done, error: None, totals, closed_unix_s: 1_764_640_100.0, update_history: None }
}

fn indices(samples: &[adaroll::store::StoredSample]) -> Vec<(u32, u32)> {
    samples.iter().map(|s| (s.sample.prompt, s.sample.index)).collect()
}

/// A folder and a store in it.
fn in_file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.db");
    (dir, path)
}

fn open(path: &Path) -> Store {
    Store::open(&StorePath::File(path.to_owned())).unwrap()
}

/// Runs a test's body on a file and in memory.
fn on_both<F: Future<Output = ()>>(body: impl Fn(Store) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let (_dir, path) = in_file();
    runtime.block_on(body(open(&path)));
    runtime.block_on(body(Store::open(&":memory:".parse().unwrap()).unwrap()));
}

#[test]
fn what_goes_in_comes_out() {
    on_both(|store| async move {
        let job = store.admit(new_job("a")).await.unwrap();
        let found = store.find("a").unwrap().unwrap();
        assert_eq!((found.job, &found.accepted, found.state), (job, &new_job("a"), JobState::Open));
        assert_eq!(store.find("b").unwrap(), None);
        store.sample(sample(job, 0, 1));
        store.sample(sample(job, 0, 0));
        store.sample(sample(job, 2, 0));
        store.verdict(verdict(job, 0, 1, Some(-0.0)));
        // Queued, not awaited: the answer must see all of it, in the order asked for.
        let back = store.samples(job, 0, vec![1, 7, 0]).await.unwrap();
        assert_eq!(back.iter().map(|s| s.sample.clone()).collect::<Vec<_>>(), [sample(job, 0, 1), sample(job, 0, 0)]);
        let scored = back[0].verdict.clone().unwrap();
        assert_eq!((scored.outcome, scored.status, scored.note.as_deref()), (1, 2, Some("why")));
        assert_eq!(scored.found.as_deref(), Some("{\"verdict\":\"wrong\"}"));
        assert_eq!(scored.reward.map(f64::to_bits), Some((-0.0f64).to_bits()), "the sign of a zero reward is kept");
        assert_eq!(back[1].verdict, None);
        // A verdict replaces; one on nothing is nothing.
        store.verdict(verdict(job, 0, 1, None));
        store.verdict(verdict(job, 1, 5, Some(1.0)));
        assert_eq!(store.samples(job, 0, vec![1]).await.unwrap()[0].verdict.as_ref().unwrap().reward, None);
        // The first sample in a place stays, with its verdict.
        store.sample(SampleRow { text: "other".into(), ..sample(job, 0, 1) });
        let again = store.samples(job, 0, vec![1]).await.unwrap();
        assert_eq!((&again[0].sample, again[0].verdict.is_some()), (&sample(job, 0, 1), true));

        let waiting = store.unscored(job, None, 10).await.unwrap();
        assert_eq!(indices(&waiting), [(0, 0), (2, 0)]);
        assert_eq!(indices(&store.unscored(job, Some((0, 0)), 10).await.unwrap()), [(2, 0)]);
        assert_eq!(indices(&store.unscored(job, None, 1).await.unwrap()), [(0, 0)]);

        let resume = store.resume(job).unwrap();
        let places: Vec<_> = resume.samples.iter().map(|s| (s.prompt, s.index, s.tokens, s.verdict.is_some())).collect();
        assert_eq!(places, [(0, 0, 3, false), (0, 1, 4, true), (2, 0, 3, false)]);
        store.close(close(job)).await.unwrap();
        let closed = store.find("a").unwrap().unwrap();
        assert_eq!(
            (closed.state, closed.totals.as_deref(), closed.closed_unix_s),
            (JobState::Done, Some(r#"{"groups":1}"#), Some(1_764_640_100.0))
        );
    });
}

#[test]
fn a_group_takes_its_samples_with_it_and_comes_once() {
    on_both(|store| async move {
        let job = store.admit(new_job("a")).await.unwrap();
        for index in 0..3 {
            store.sample(sample(job, 0, index));
            store.sample(sample(job, 1, index));
        }
        store.verdict(verdict(job, 0, 0, Some(1.0)));
        store.group(group(job, 0, Some(1))).await.unwrap();
        let resume = store.resume(job).unwrap();
        assert!(resume.samples.iter().all(|s| s.prompt == 1) && resume.samples.len() == 3, "{:?}", resume.samples);
        assert_eq!(resume.groups, [GroupRow { json: None, ..group(job, 0, Some(1)) }]);
        // Neither the prompt nor the place twice; and the store goes on.
        assert_eq!(store.group(group(job, 0, Some(5))).await, Err(StoreError::GroupExists { prompt: 0 }));
        assert_eq!(store.group(group(job, 1, Some(1))).await, Err(StoreError::GroupExists { prompt: 1 }));
        // A late sample of a finished prompt would never be deleted.
        store.sample(sample(job, 0, 9));
        assert_eq!(store.samples(job, 0, vec![0, 9]).await.unwrap(), []);
        store.group(group(job, 2, Some(0))).await.unwrap();
        store.group(group(job, 1, None)).await.unwrap();
        // By delivery, not by prompt, and without the dropped one.
        assert_eq!(store.groups(job, 0, 10).unwrap(), [r#"{"prompt":2}"#, r#"{"prompt":0}"#]);
        assert_eq!(store.groups(job, 1, 10).unwrap(), [r#"{"prompt":0}"#]);
        assert_eq!(store.groups(job, 0, 1).unwrap(), [r#"{"prompt":2}"#]);
        assert_eq!(store.groups(job, u64::MAX, 10).unwrap(), Vec::<String>::new());
        let summary = &store.list(5).unwrap()[0];
        assert_eq!((summary.groups, summary.dropped, summary.samples, summary.tokens), (2, 1, 24, 300));
        store.close(close(job)).await.unwrap();
        assert_eq!(store.group(group(job, 1, Some(7))).await, Err(StoreError::NotOpen));
        assert_eq!(store.close(close(job)).await, Err(StoreError::NotOpen));
        assert_eq!(store.health(), Ok(()));
    });
}

#[test]
fn ten_admissions_of_one_id_make_one_job() {
    on_both(|store| async move {
        let tries: Vec<_> = (0..10).map(|_| tokio::spawn(store.admit(new_job("same")))).collect();
        let mut made = Vec::new();
        for each in tries {
            match each.await.unwrap() {
                Ok(job) => made.push(job),
                Err(e) => assert_eq!(e, StoreError::Exists),
            }
        }
        assert_eq!(made.len(), 1);
        assert_eq!(store.find("same").unwrap().unwrap().job, made[0]);
        assert_eq!(store.list(10).unwrap().len(), 1);
    });
}

#[test]
fn jobs_are_listed_newest_first_and_resumed_in_order_of_acceptance() {
    on_both(|store| async move {
        let mut keys = Vec::new();
        for id in ["c", "a", "b"] {
            keys.push(store.admit(new_job(id)).await.unwrap());
        }
        store.close(CloseJob { state: JobState::Failed, error: Some("no".into()), ..close(keys[1]) }).await.unwrap();
        let ids = |jobs: Vec<adaroll::store::StoredJob>| jobs.into_iter().map(|j| j.accepted.id).collect::<Vec<_>>();
        assert_eq!(ids(store.open_jobs().unwrap()), ["c", "b"]);
        assert_eq!(store.list(2).unwrap().iter().map(|j| j.id.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(store.find("a").unwrap().unwrap().error.as_deref(), Some("no"));
    });
}

#[test]
fn history_decays_in_request_order_and_only_when_asked() {
    on_both(|store| async move {
        let ids: Vec<String> = ["x", "y", "x"].map(String::from).to_vec();
        let run = async |id: &str, update: bool| {
            let job = store.admit(new_job(id)).await.unwrap();
            // Committed in another order than the request's.
            for (seq, prompt) in [2, 0].into_iter().enumerate() {
                store.group(group(job, prompt, Some(seq as u64))).await.unwrap();
            }
            let update_history = update.then(|| HistoryUpdate { lambda: 0.5, ids: ids.clone() });
            store.close(CloseJob { update_history, ..close(job) }).await.unwrap();
        };
        run("silent", false).await;
        assert_eq!(store.history("default", &ids).unwrap(), [None, None, None]);
        run("first", true).await;
        // Prompt 0: n = 3, k = 1; prompt 2, the same id: n = 5, k = 3. In request order N = 3/2 + 5; the other way round 5/2 + 3.
        assert_eq!(store.history("default", &ids[..2]).unwrap(), [Some((6.5, 3.5)), None]);
        run("second", true).await;
        assert_eq!(store.history("default", &ids[..1]).unwrap(), [Some(((6.5 / 2.0 + 3.0) / 2.0 + 5.0, (3.5 / 2.0 + 1.0) / 2.0 + 3.0))]);
        assert_eq!(store.history("other", &ids[..1]).unwrap(), [None]);
    });
}

#[test]
fn usage_adds_up_by_key() {
    on_both(|store| async move {
        store.usage("a", 1, 2, 3, 4);
        store.usage("b", 1, 1, 1, 1);
        store.usage("a", 1, 10, 100, 1000);
        store.flush().await;
        let mut sums = std::collections::BTreeMap::<String, [u64; 4]>::new();
        // Midnight may pass between two calls.
        for row in store.usages().unwrap() {
            let sum = sums.entry(row.key).or_default();
            for (sum, n) in sum.iter_mut().zip([row.requests, row.prompts, row.samples, row.tokens]) {
                *sum += n;
            }
        }
        assert_eq!(sums.into_iter().collect::<Vec<_>>(), [("a".into(), [2, 12, 103, 1004]), ("b".into(), [1, 1, 1, 1])]);
    });
}

#[test]
fn prune_deletes_closed_jobs_only_and_old_ones_only() {
    on_both(|store| async move {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        for (id, days_ago) in [("old", Some(3.0)), ("recent", Some(1.0)), ("open", None)] {
            let job = store.admit(new_job(id)).await.unwrap();
            store.group(group(job, 0, Some(0))).await.unwrap();
            if let Some(days) = days_ago {
                store.close(CloseJob { closed_unix_s: now - days * 86_400.0, ..close(job) }).await.unwrap();
            }
        }
        let old = store.find("old").unwrap().unwrap().job;
        assert_eq!(store.prune(2.0).unwrap(), 1);
        assert_eq!(store.find("old").unwrap(), None);
        assert!(store.groups(old, 0, 10).unwrap().is_empty());
        assert_eq!(store.prune(0.0).unwrap(), 1);
        assert_eq!(store.list(10).unwrap().iter().map(|j| j.id.as_str()).collect::<Vec<_>>(), ["open"]);
        assert!(store.admit(new_job("old")).await.unwrap() > old, "a row key is never used again");
        store.vacuum().unwrap();
        assert!(store.bytes() > 0);
    });
}

/// What is queued when the disk is full is refused with a sentence, and so is everything after; what was acknowledged stays readable.
#[test]
fn a_full_disk_poisons_with_a_sentence() {
    on_both(|store| async move {
        let job = store.admit(new_job("a")).await.unwrap();
        store.group(group(job, 0, Some(0))).await.unwrap();
        store.limit_pages(2).unwrap();
        for index in 0..100 {
            store.sample(SampleRow {
                text: format!("{index}").repeat(10),
                logprobs: (0..3000).map(|i| (i as f32).sin()).collect(),
                ..sample(job, 1, index)
            });
        }
        let refused = store.samples(job, 1, vec![0]).await.unwrap_err();
        let StoreError::Failed(sentence) = refused else { panic!("{refused:?}") };
        assert!(sentence.contains("full") && sentence.contains("restart"), "{sentence}");
        assert_eq!(store.health(), Err(sentence.clone()));
        let failed = StoreError::Failed(sentence);
        assert_eq!(store.admit(new_job("b")).await, Err(failed.clone()));
        assert_eq!(store.group(group(job, 2, Some(1))).await, Err(failed.clone()));
        assert_eq!(store.close(close(job)).await, Err(failed.clone()));
        assert_eq!(store.prune(0.0), Err(failed));
        store.flush().await;
        assert_eq!(store.groups(job, 0, 9).unwrap().len(), 1);
    });
}

#[tokio::test]
async fn a_dropped_store_is_one_file_with_everything_in_it() {
    let (_dir, path) = in_file();
    let store = open(&path);
    let job = store.admit(new_job("a")).await.unwrap();
    for index in 0..50 {
        store.sample(sample(job, 0, index));
    }
    let second = store.clone();
    drop(store);
    second.sample(sample(job, 1, 0));
    drop(second);
    assert!(!path.with_extension("db-wal").exists());
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    let store = open(&copy);
    assert_eq!(store.resume(job).unwrap().samples.len(), 51);
    assert_eq!(store.samples(job, 0, vec![49]).await.unwrap()[0].sample, sample(job, 0, 49));
}

#[tokio::test]
async fn one_file_serves_one_server() {
    let (dir, path) = in_file();
    let store = open(&path);
    store.admit(new_job("a")).await.unwrap();
    let link = dir.path().join("other name");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for name in [&path, &link] {
        let refused = Store::open(&StorePath::File(name.clone())).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Locked(s) if s.contains("another server") && s.contains(&std::process::id().to_string())),
            "{refused}"
        );
    }
    // Looking is allowed.
    assert_eq!(StoreReader::open(&path).unwrap().list(9).unwrap().len(), 1);
    drop(store);
    drop(open(&path));
    assert!(lock_path(&path).exists());
}

/// Before version 4 nobody wrote down what a verifier had read.
#[tokio::test]
async fn a_store_of_an_older_version_goes_on() {
    let (_dir, path) = in_file();
    let store = open(&path);
    let job = store.admit(new_job("a")).await.unwrap();
    store.sample(sample(job, 0, 0));
    store.sample(sample(job, 0, 1));
    store.verdict(verdict(job, 0, 0, Some(1.0)));
    store.flush().await;
    drop(store);
    let older = rusqlite::Connection::open(&path).unwrap();
    older.execute_batch("ALTER TABLE verdicts DROP COLUMN found; PRAGMA user_version = 3").unwrap();
    drop(older);
    let refused = StoreReader::open(&path).unwrap_err().to_string();
    assert!(refused.contains("schema version 3") && refused.contains("start the server on it once"), "{refused}");
    let store = open(&path);
    store.verdict(verdict(job, 0, 1, Some(0.5)));
    let back = store.samples(job, 0, vec![0, 1]).await.unwrap();
    let old = Verdict { found: None, ..verdict(job, 0, 0, Some(1.0)).verdict };
    assert_eq!(back.into_iter().map(|s| s.verdict.unwrap()).collect::<Vec<_>>(), [old, verdict(job, 0, 1, Some(0.5)).verdict]);
    drop(store);
    assert_eq!(StoreReader::open(&path).unwrap().list(9).unwrap().len(), 1);
}

#[test]
fn what_is_no_store_is_refused_with_a_sentence() {
    let (dir, path) = in_file();
    drop(open(&path));
    let set = |sql: &str| rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    let refused = |path: &Path, words: &str| {
        let sentence = Store::open(&StorePath::File(path.to_owned())).unwrap_err().to_string();
        assert!(sentence.contains(words) && sentence.contains(&*path.to_string_lossy()), "{sentence}");
    };
    set("PRAGMA user_version = 99");
    refused(&path, "newer adaroll (schema version 99");
    assert!(StoreReader::open(&path).unwrap_err().to_string().contains("newer adaroll"));
    set("PRAGMA user_version = 1; PRAGMA application_id = 5");
    refused(&path, "another program");
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "no database at all, but long enough to look like one".repeat(100)).unwrap();
    refused(&text, "cannot be opened as a store");
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("no database"));
    refused(&dir.path().join("missing/store.db"), "cannot be made");
    refused(Path::new("/proc/store.db"), "cannot be made");
    assert!("".parse::<StorePath>().unwrap_err().contains("empty"));
}
