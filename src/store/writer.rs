//! The thread that writes. It takes what is queued, in order, and commits when the queue is empty or after 10 ms, whichever comes first.
//!
//! The queue has no bound. What enters it is made by sampling, at tens of rows a second where the writer does thousands; a bound would stop a
//! thread of the runtime, which serves everybody, when a disk stalls; and a job waits for the commit of each group, so that no more than its
//! open prompts can stand here.
//!
//! A commit that fails poisons the store: its rows are rolled back, everything queued then and later gets the sentence, and nothing is
//! written any more. (Going on would let a job believe in rows that are not there.)

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};

use crate::failpoint::{self, Point};

/// Longest time between a row's turn and its commit.
pub const COMMIT_AFTER: Duration = Duration::from_millis(10);

/// What is done after the commit. Dropped undone where the commit failed: who waits then reads the store's health.
pub(super) type Finish = Option<Box<dyn FnOnce() + Send>>;

/// What is done within the transaction.
pub(super) type Run = Box<dyn FnOnce(&Connection) -> rusqlite::Result<Finish> + Send>;

/// What an operation is, for durability and failpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Admit,
    Sample,
    Group,
    Close,
    Weights,
    Other,
}

impl Kind {
    /// Survives the loss of power, not only the death of the process.
    fn full(self) -> bool {
        matches!(self, Kind::Admit | Kind::Close | Kind::Weights)
    }

    fn before(self) -> Option<Point> {
        match self {
            Kind::Admit => Some(Point::JobBeforeCommit),
            Kind::Sample => Some(Point::SamplesBeforeCommit),
            Kind::Group => Some(Point::GroupBeforeCommit),
            Kind::Close => Some(Point::CloseBeforeCommit),
            Kind::Weights => Some(Point::WeightsBeforeCommit),
            Kind::Other => None,
        }
    }

    fn after(self) -> Option<Point> {
        match self {
            Kind::Admit => Some(Point::JobAfterCommit),
            Kind::Sample => Some(Point::SamplesAfterCommit),
            Kind::Group => Some(Point::GroupAfterCommit),
            Kind::Close => Some(Point::CloseAfterCommit),
            Kind::Weights => Some(Point::WeightsAfterCommit),
            Kind::Other => None,
        }
    }
}

/// One operation of the queue.
pub(super) struct Op {
    pub kind: Kind,
    /// Runs within a transaction. An error is a failed write and poisons the store; anything else that is wrong goes through `Finish`.
    pub run: Run,
}

/// What the writer shares with the store's handles.
#[derive(Debug)]
pub(super) struct Shared {
    pub conn: Mutex<Connection>,
    pub poison: OnceLock<String>,
}

impl Shared {
    /// The connection. A panic elsewhere rolled its transaction back; the connection itself is sound.
    pub fn conn(&self) -> MutexGuard<'_, Connection> {
        self.conn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses everything from now on.
    pub fn fail(&self, what: &str, error: &rusqlite::Error) {
        let sentence = format!(
            "the store failed ({what}: {error}); nothing more is written; make room or repair the disk and restart, no committed row is lost"
        );
        tracing::error!("{sentence}");
        let _ = self.poison.set(sentence);
    }
}

/// The writer's thread. A panic in it, which would be an error of the program, poisons the store like a failed write.
pub(super) fn run_guarded(queue: &Receiver<Op>, shared: &Arc<Shared>) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| run(queue, shared))).is_err() {
        let _ = shared.poison.set("the store's writer stopped with an internal error; restart, no committed row is lost".into());
    }
}

fn run(queue: &Receiver<Op>, shared: &Arc<Shared>) {
    let mut waiting = VecDeque::new();
    let mut full = false;
    loop {
        if waiting.is_empty() {
            match queue.recv() {
                Ok(op) => waiting.push_back(op),
                Err(_) => return,
            }
        }
        waiting.extend(queue.try_iter());
        if shared.poison.get().is_none() {
            let mut conn = shared.conn();
            match commit_some(&mut conn, &mut waiting, &mut full) {
                Ok(done) => {
                    drop(conn);
                    done.iter().filter_map(|(kind, _)| kind.after()).for_each(failpoint::visit);
                    done.into_iter().filter_map(|(_, finish)| finish).for_each(|finish| finish());
                }
                // While the connection is held: who finds that its operation was dropped takes the connection, then reads this.
                Err((what, e)) => shared.fail(what, &e),
            }
        }
        if shared.poison.get().is_some() {
            waiting.clear();
        }
    }
}

/// One transaction: what it did, to be told after it.
fn commit_some(
    conn: &mut Connection,
    waiting: &mut VecDeque<Op>,
    full: &mut bool,
) -> Result<Vec<(Kind, Finish)>, (&'static str, rusqlite::Error)> {
    // It cannot be changed within a transaction.
    let needs_full = waiting.iter().any(|op| op.kind.full());
    if needs_full != *full {
        let set = if needs_full { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        conn.execute_batch(set).map_err(|e| ("it cannot set how commits are synchronised", e))?;
        *full = needs_full;
    }
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| ("a transaction cannot begin", e))?;
    let began = Instant::now();
    let mut done = Vec::new();
    while let Some(op) = waiting.pop_front() {
        done.push((op.kind, (op.run)(&tx).map_err(|e| ("a row cannot be written", e))?));
        if began.elapsed() >= COMMIT_AFTER {
            break;
        }
    }
    done.iter().filter_map(|(kind, _)| kind.before()).for_each(failpoint::visit);
    tx.commit().map_err(|e| ("a commit failed", e))?;
    Ok(done)
}
