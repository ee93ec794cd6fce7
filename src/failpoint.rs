//! Named points at which a test can kill the process, before and after each durable step. **A test instrument:** it exists to show that a job
//! survives `kill -9`; there is no other use for it.
//!
//! `ADAROLL_FAILPOINT=group.before_commit` kills the process with SIGKILL (nothing is flushed, nothing is dropped) when it first reaches that
//! point, `ADAROLL_FAILPOINT=group.before_commit:3` at the third time. Each row counts, not each transaction. Unset, a point is one load of
//! a word that never changes.

use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable.
pub const VARIABLE: &str = "ADAROLL_FAILPOINT";

/// A point. The names are those of `Point::name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A job was written and is not committed.
    JobBeforeCommit,
    /// A job is committed and its client was not told.
    JobAfterCommit,
    /// A sample or a verdict was written and is not committed.
    SamplesBeforeCommit,
    /// A sample or a verdict is committed.
    SamplesAfterCommit,
    /// A group was written and is not committed.
    GroupBeforeCommit,
    /// A group is committed and was not delivered.
    GroupAfterCommit,
    /// The end of a job was written and is not committed.
    CloseBeforeCommit,
    /// The end of a job is committed and nobody was told.
    CloseAfterCommit,
    /// A version of the weights is in its file and not in the store.
    WeightsAfterFile,
    /// A version of the weights was written and is not committed.
    WeightsBeforeCommit,
    /// A version of the weights is committed and does not serve.
    WeightsAfterCommit,
    /// A version of the weights serves and nobody was told.
    WeightsAfterSwap,
    /// The trainer has not asked for a step's samples.
    TrainBeforeRollout,
    /// The trainer has a step's samples and has not learned from them.
    TrainAfterRollout,
    /// The trainer has updated its weights; nothing of the step is written.
    TrainAfterUpdate,
    /// The step's numbers are written and its weights were not pushed.
    TrainBeforePush,
    /// The server has the weights and the step has no checkpoint.
    TrainAfterPush,
    /// The logs are on disk and nothing of the checkpoint is.
    CheckpointBeforeFiles,
    /// A checkpoint is written and has not got its name.
    CheckpointBeforeRename,
    /// A checkpoint is whole and older ones were not dropped.
    CheckpointAfterRename,
}

impl Point {
    /// All points.
    pub const ALL: [Point; 20] = [
        Point::JobBeforeCommit,
        Point::JobAfterCommit,
        Point::SamplesBeforeCommit,
        Point::SamplesAfterCommit,
        Point::GroupBeforeCommit,
        Point::GroupAfterCommit,
        Point::CloseBeforeCommit,
        Point::CloseAfterCommit,
        Point::WeightsAfterFile,
        Point::WeightsBeforeCommit,
        Point::WeightsAfterCommit,
        Point::WeightsAfterSwap,
        Point::TrainBeforeRollout,
        Point::TrainAfterRollout,
        Point::TrainAfterUpdate,
        Point::TrainBeforePush,
        Point::TrainAfterPush,
        Point::CheckpointBeforeFiles,
        Point::CheckpointBeforeRename,
        Point::CheckpointAfterRename,
    ];

    /// Whether it is the trainer that reaches it.
    pub fn is_of_the_trainer(self) -> bool {
        self.name().starts_with("train.") || self.name().starts_with("checkpoint.")
    }

    /// Its name in the environment variable.
    pub fn name(self) -> &'static str {
        match self {
            Point::JobBeforeCommit => "job.before_commit",
            Point::JobAfterCommit => "job.after_commit",
            Point::SamplesBeforeCommit => "samples.before_commit",
            Point::SamplesAfterCommit => "samples.after_commit",
            Point::GroupBeforeCommit => "group.before_commit",
            Point::GroupAfterCommit => "group.after_commit",
            Point::CloseBeforeCommit => "close.before_commit",
            Point::CloseAfterCommit => "close.after_commit",
            Point::WeightsAfterFile => "weights.after_file",
            Point::WeightsBeforeCommit => "weights.before_commit",
            Point::WeightsAfterCommit => "weights.after_commit",
            Point::WeightsAfterSwap => "weights.after_swap",
            Point::TrainBeforeRollout => "train.before_rollout",
            Point::TrainAfterRollout => "train.after_rollout",
            Point::TrainAfterUpdate => "train.after_update",
            Point::TrainBeforePush => "train.before_push",
            Point::TrainAfterPush => "train.after_push",
            Point::CheckpointBeforeFiles => "checkpoint.before_files",
            Point::CheckpointBeforeRename => "checkpoint.before_rename",
            Point::CheckpointAfterRename => "checkpoint.after_rename",
        }
    }
}

/// A point and the visit to it that kills, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where.
    pub point: Point,
    /// At which visit.
    pub visit: u64,
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, visit) = text.split_once(':').unwrap_or((text, "1"));
        let point = Point::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Point::ALL.into_iter().map(Point::name).collect();
            format!("{VARIABLE}: {name:?} is no failpoint; the names are {}", names.join(", "))
        })?;
        let visit = visit
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| format!("{VARIABLE}: {visit:?} is no visit; write {name} or {name}:N with N from 1 on"))?;
        Ok(Plan { point, visit })
    }
}

/// The plan of this process. Written once, at the start.
static PLAN: OnceLock<Plan> = OnceLock::new();
static VISITS: AtomicU64 = AtomicU64::new(0);

/// Reads the environment variable; call once at the start, before a store is opened. An unknown name is an error that lists the names.
pub fn arm_from_env() -> Result<(), String> {
    match std::env::var(VARIABLE) {
        Err(std::env::VarError::NotPresent) => Ok(()),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{VARIABLE}: is not UTF-8")),
        Ok(text) => {
            let plan: Plan = text.parse()?;
            PLAN.set(plan).map_err(|_| format!("{VARIABLE}: was read twice"))
        }
    }
}

/// Marks a visit to a point; does not return from the visit that is planned to kill.
#[inline]
pub fn visit(point: Point) {
    if let Some(plan) = PLAN.get()
        && plan.point == point
        && VISITS.fetch_add(1, Ordering::SeqCst) + 1 == plan.visit
    {
        die(point);
    }
}

#[cold]
fn die(point: Point) -> ! {
    eprintln!("{VARIABLE}: {} reached, the process kills itself", point.name());
    #[cfg(unix)]
    // SAFETY: kill and getpid take no pointers and touch no memory of this process.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
    }
    // Where there is no SIGKILL.
    std::process::abort()
}
