//! `adaroll jobs`: beside a running server and without one.

use adaroll::commands::jobs::{JobsCommand, export, list, prune, show};
use adaroll::store::JobState;
use clap::Parser;

use super::{close, group, in_file, new_job, open, sample};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: JobsCommand,
}

fn printed(args: &[&str]) -> String {
    let mut out = Vec::new();
    Cli::try_parse_from([&["jobs"], args].concat()).unwrap().command.run(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[tokio::test]
async fn jobs_are_seen_with_and_without_a_server() {
    let (dir, path) = in_file();
    let name = path.to_str().unwrap();
    let server = open(&path);
    let done = server.admit(new_job("done")).await.unwrap();
    for (seq, prompt) in [2, 0].into_iter().enumerate() {
        server.group(group(done, prompt, Some(seq as u64))).await.unwrap();
    }
    server.group(group(done, 1, None)).await.unwrap();
    server.close(close(done)).await.unwrap();
    let running = server.admit(new_job("running")).await.unwrap();
    server.sample(sample(running, 0, 0));
    server.flush().await;

    let see = || {
        let jobs = list(&path, 10).unwrap().jobs;
        assert_eq!(
            jobs.iter().map(|j| (j.id.as_str(), j.state, j.groups)).collect::<Vec<_>>(),
            [("running", JobState::Open, 0), ("done", JobState::Done, 2)]
        );
        let report = show(&path, "done").unwrap();
        assert_eq!((report.groups, report.dropped, report.signal, report.samples, report.positive, report.negative), (2, 1, 2, 24, 6, 6));
        assert_eq!((report.settings["seed"].as_i64(), report.totals["groups"].as_i64()), (Some(7), Some(1)));
        assert_eq!(show(&path, "running").unwrap().samples_waiting, 1);
        let out = dir.path().join("groups.jsonl");
        let exported = export(&path, "done", &out).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "{\"prompt\":2}\n{\"prompt\":0}\n");
        assert_eq!((exported.groups, exported.bytes), (2, 26));
        let missing = show(&path, "nobody").unwrap_err().to_string();
        assert!(missing.contains("\"nobody\"") && missing.contains("jobs list"), "{missing}");
    };
    see();
    // A server holds it: nothing is deleted under its feet.
    let refused = prune(&path, 0.0).unwrap_err().to_string();
    assert!(refused.contains("another server"), "{refused}");
    drop(server);
    see();

    let table = printed(&["list", "--store", name]);
    assert!(table.contains("running") && table.contains("2025-12-02 01:46:40"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&printed(&["list", "--store", name, "--json"])).unwrap();
    assert_eq!(json["jobs"][1]["state"], "done");
    assert!(printed(&["show", "done", "--store", name]).contains("pass rate 0.5000"));
    assert!(printed(&["prune", "--store", name, "--keep-days", "100000"]).starts_with("0 jobs"));
    assert!(printed(&["prune", "--store", name, "--keep-days", "0"]).starts_with("1 jobs"));
    assert_eq!(list(&path, 10).unwrap().jobs.len(), 1);
    assert!(Cli::try_parse_from(["jobs", "prune", "--store", name, "--keep-days", "-1"]).is_err());
    assert!(Cli::try_parse_from(["jobs", "prune", "--store", name]).is_err(), "how much to keep is said, never guessed");
}

#[tokio::test]
async fn prune_gives_the_room_back() {
    let (_dir, path) = in_file();
    let server = open(&path);
    let job = server.admit(new_job("a")).await.unwrap();
    let mut state = 1u64;
    let mut noise = String::new();
    for _ in 0..300_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        noise.push(char::from(33 + (state >> 57) as u8 % 90));
    }
    server.group(adaroll::store::GroupRow { json: Some(noise), ..group(job, 0, Some(0)) }).await.unwrap();
    server.close(close(job)).await.unwrap();
    drop(server);
    let pruned = prune(&path, 1.0).unwrap();
    assert_eq!(pruned.jobs, 1);
    assert!(pruned.bytes_after * 2 < pruned.bytes_before, "{pruned}");
}

#[test]
fn a_path_with_a_typo_does_not_become_a_store() {
    let (_dir, path) = in_file();
    assert!(prune(&path, 0.0).unwrap_err().to_string().contains("does not exist"));
    assert!(list(&path, 1).unwrap_err().to_string().contains("does not exist"));
    assert!(!path.exists());
}
