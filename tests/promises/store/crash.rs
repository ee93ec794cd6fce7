//! Nothing that was acknowledged is lost, wherever the process dies; nothing that was not committed is half there.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use adaroll::failpoint::{Plan, Point, VARIABLE};
use adaroll::store::Store;

use super::{close, group, in_file, new_job, open, sample, verdict};

const STORE: &str = "ADAROLL_TEST_STORE";
const JOBS: u32 = 2;
const PROMPTS: u32 = 3;
const SAMPLES: u32 = 4;

/// Runs in a process of its own: two jobs of three prompts, a line on stdout for everything that is acknowledged.
#[tokio::test]
#[ignore = "the child of the tests below"]
async fn child() {
    let Ok(path) = std::env::var(STORE) else { return };
    adaroll::failpoint::arm_from_env().unwrap();
    let store = open(Path::new(&path));
    for j in 0..JOBS {
        let job = store.admit(new_job(&format!("job{j}"))).await.unwrap();
        println!("ack job {j}");
        for p in 0..PROMPTS {
            for i in 0..SAMPLES {
                store.sample(sample(job, p, i));
                store.verdict(verdict(job, p, i, Some(1.0)));
            }
            store.flush().await;
            println!("ack samples {j} {p}");
            store.group(group(job, p, Some(p.into()))).await.unwrap();
            println!("ack group {j} {p}");
        }
        store.close(close(job)).await.unwrap();
        println!("ack close {j}");
    }
}

fn child_command(path: &Path) -> Command {
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("{module}::child"), "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(STORE, path);
    command
}

/// What a line of the child acknowledges; the first one stands behind the test's name.
fn ack(line: &str) -> Option<String> {
    line.find("ack ").map(|at| line[at + 4..].to_owned())
}

/// Runs the child and returns what it acknowledged and whether SIGKILL ended it.
fn run_child(path: &Path, failpoint: Option<&str>) -> (BTreeSet<String>, bool) {
    let mut command = child_command(path);
    match failpoint {
        Some(name) => command.env(VARIABLE, name),
        None => command.env_remove(VARIABLE),
    };
    let output = command.output().unwrap();
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    assert!(killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap().lines().filter_map(ack).collect(), killed)
}

/// What a store holds, in the words of the child. Half a prompt's samples would be missing here, and a group with its samples is refused.
fn held(store: &Store) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for j in 0..JOBS {
        let Some(job) = store.find(&format!("job{j}")).unwrap() else { continue };
        found.insert(format!("job {j}"));
        if job.totals.is_some() {
            found.insert(format!("close {j}"));
        }
        let resume = store.resume(job.job).unwrap();
        assert_eq!(store.groups(job.job, 0, 99).unwrap().len(), resume.groups.len());
        for p in 0..PROMPTS {
            let samples = resume.samples.iter().filter(|s| s.prompt == p && s.verdict.is_some()).count();
            if resume.groups.iter().any(|g| g.prompt == p) {
                assert_eq!(samples, 0);
                found.extend([format!("group {j} {p}"), format!("samples {j} {p}")]);
            } else if samples == SAMPLES as usize {
                found.insert(format!("samples {j} {p}"));
            }
        }
    }
    found
}

#[test]
fn a_process_killed_at_any_failpoint_loses_nothing_that_it_acknowledged() {
    // (point, the row at whose visit it dies, whether the row is there afterwards though nobody was told). Eight rows a prompt.
    let rows = [("job", 2, "job 1"), ("samples", 16, "samples 0 1"), ("group", 2, "group 0 1"), ("close", 1, "close 0")];
    for (name, visit, row) in rows {
        for (point, is_there) in [("before_commit", false), ("after_commit", true)] {
            let (_dir, path) = in_file();
            let failpoint = format!("{name}.{point}:{visit}");
            let (acknowledged, killed) = run_child(&path, Some(&failpoint));
            assert!(killed, "{failpoint}");
            assert!(!acknowledged.is_empty() && !acknowledged.contains(row), "{failpoint}: {acknowledged:?}");
            let held = held(&open(&path));
            assert!(acknowledged.is_subset(&held), "{failpoint}: lost {:?}", acknowledged.difference(&held));
            assert_eq!(held.contains(row), is_there, "{failpoint}: {held:?}");
        }
    }
}

/// Killed from outside after each acknowledgement, wherever the child is by then.
#[test]
fn a_process_killed_at_any_moment_loses_nothing_that_it_acknowledged() {
    let (mut lost_work, all) = (false, (JOBS * (2 + 2 * PROMPTS)) as usize);
    for after in 1..all {
        let (_dir, path) = in_file();
        let mut child = child_command(&path).env_remove(VARIABLE).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut acknowledged: BTreeSet<String> = lines.by_ref().filter_map(|l| ack(&l)).take(after).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said between the line and the signal counts too.
        acknowledged.extend(lines.filter_map(|l| ack(&l)));
        assert!(acknowledged.len() >= after);
        let held = held(&open(&path));
        assert!(acknowledged.is_subset(&held), "lost {:?}", acknowledged.difference(&held));
        lost_work |= held.len() < all;
    }
    assert!(lost_work, "the child was never killed in the middle of its work");
}

#[test]
fn the_child_ends_by_itself_without_a_failpoint() {
    let (_dir, path) = in_file();
    let (acknowledged, killed) = run_child(&path, None);
    assert!(!killed);
    assert_eq!(acknowledged.len() as u32, JOBS * (2 + 2 * PROMPTS));
    assert_eq!(held(&open(&path)), acknowledged);
}

#[test]
fn failpoints_have_names_and_these_are_checked() {
    for point in Point::ALL {
        assert_eq!(point.name().parse(), Ok(Plan { point, visit: 1 }));
        assert_eq!(format!("{}:3", point.name()).parse(), Ok(Plan { point, visit: 3 }));
    }
    let refused = "group.commit".parse::<Plan>().unwrap_err();
    assert!(Point::ALL.iter().all(|p| refused.contains(p.name())), "{refused}");
    for text in ["group.after_commit:0", "group.after_commit:x", "group.after_commit:", ""] {
        assert!(text.parse::<Plan>().is_err(), "{text}");
    }
}

/// A copy of the file and its WAL, taken while the store is open, is what a crash leaves. Without the WAL rows are missing: it is the WAL
/// that holds them, not luck.
#[tokio::test]
async fn a_copy_of_file_and_wal_holds_every_acknowledged_row() {
    let (dir, path) = in_file();
    let store = open(&path);
    let wal = |path: &Path| path.with_extension("db-wal");
    let mut acknowledged = Vec::new();
    for round in 0..5u32 {
        let job = store.admit(new_job(&format!("job{round}"))).await.unwrap();
        for index in 0..40 {
            store.sample(sample(job, 0, index));
        }
        store.flush().await;
        store.group(group(job, 1, Some(0))).await.unwrap();
        acknowledged.push(job);
        let copy = dir.path().join(format!("{round}.db"));
        std::fs::copy(&path, &copy).unwrap();
        let bare = dir.path().join(format!("bare{round}.db"));
        std::fs::copy(&path, &bare).unwrap();
        std::fs::copy(wal(&path), wal(&copy)).unwrap();
        let copy = open(&copy);
        for job in &acknowledged {
            let resume = copy.resume(*job).unwrap();
            assert_eq!((resume.samples.len(), resume.groups.len()), (40, 1), "round {round}");
            assert_eq!(copy.samples(*job, 0, vec![39]).await.unwrap()[0].sample, sample(*job, 0, 39));
        }
        assert_eq!(open(&bare).list(99).unwrap().len(), 0, "all of it fits in the WAL");
    }
}
