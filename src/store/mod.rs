//! The store: jobs, samples, groups, prompt history, usage and the versions of the weights, in one SQLite file (or in memory).
//!
//! Plain rows in, plain rows out: nothing here knows HTTP, rollouts or engines. One thread writes; everything that a handle asks of it is
//! queued in order, so that whoever asks for samples sees every row queued before. What is acknowledged is committed: jobs, their ends and weights
//! survive the loss of power (`synchronous = FULL`), samples, verdicts and groups survive the death of the process. A prompt with a group has
//! no samples; a closed job has no samples. After a failed write the store writes nothing more and says why.

pub mod blob;
mod read;
mod reader;
mod rows;
mod schema;
mod weights;
mod write;
mod writer;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;
use tokio::sync::oneshot;

pub use reader::StoreReader;
pub use rows::{
    CloseJob, GroupRow, HistoryUpdate, JobState, JobSummary, NewJob, Resume, ResumeSample, SampleRow, StoredJob, StoredSample, UsageRow,
    Verdict, VerdictRow,
};
pub use schema::{SCHEMA_VERSION, lock_path};
pub use weights::WeightsRow;
pub use writer::COMMIT_AFTER;

use writer::{Kind, Op, Shared};

const DAY_S: f64 = 86_400.0;

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePath {
    /// Nowhere: it ends with the process.
    Memory,
    /// A file; `-wal`, `-shm` and `.lock` stand beside it.
    File(PathBuf),
}

impl FromStr for StorePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("store: is empty; give a path, or :memory:".into()),
            ":memory:" => Ok(StorePath::Memory),
            path => Ok(StorePath::File(path.into())),
        }
    }
}

impl std::fmt::Display for StorePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StorePath::Memory => f.write_str(":memory:"),
            StorePath::File(path) => path.display().fmt(f),
        }
    }
}

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened as a store.
    #[error("{0}")]
    Open(String),
    /// Another process has the store.
    #[error("{0}")]
    Locked(String),
    /// A job with this id was admitted before.
    #[error("a job with this id exists")]
    Exists,
    /// The job is closed or unknown.
    #[error("the job is closed or unknown")]
    NotOpen,
    /// The prompt, or the place in the order of delivery, has its group.
    #[error("the group of prompt {prompt}, or another one in its place of the order of delivery, is stored already")]
    GroupExists {
        /// Position of the prompt in the request.
        prompt: u32,
    },
    /// A stored blob is damaged.
    #[error(transparent)]
    Damaged(#[from] blob::Damaged),
    /// A read failed.
    #[error("{0}")]
    Read(String),
    /// A write failed, now or before: see `Store::health`.
    #[error("{0}")]
    Failed(String),
}

impl From<rusqlite::Error> for StoreError {
    fn from(e: rusqlite::Error) -> Self {
        StoreError::Read(format!("the store cannot be read: {e}"))
    }
}

/// A handle. Cheap to clone; dropping the last one commits what is queued, folds the WAL into the file and closes it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: StorePath,
    queue: Option<Sender<Op>>,
    thread: Option<JoinHandle<()>>,
    /// The writer's connection.
    shared: Arc<Shared>,
    /// A second connection where there is a file; readers never wait for the writer there.
    reader: Option<Mutex<Connection>>,
    _lock: Option<schema::Lock>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.reader.take();
        // Closing would do it as well; truncating leaves no WAL to whoever copies the file.
        let _ = self.shared.conn().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
    }
}

fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

pub(crate) fn wal_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

impl Store {
    /// Opens a store, makes it where there is none, brings an older one up to date, and takes the rows back that a killed process committed.
    ///
    /// # Errors
    /// A sentence: another server has it, a newer adaroll wrote it, it is no store, its folder cannot be written.
    pub fn open(path: &StorePath) -> Result<Store, StoreError> {
        let (file, lock) = match path {
            StorePath::Memory => (None, None),
            StorePath::File(path) => {
                // The same file by another name has the same lock.
                let path = path.canonicalize().unwrap_or_else(|_| path.clone());
                let lock = schema::lock(&path)?;
                (Some(path), Some(lock))
            }
        };
        let conn = schema::open_writer(file.as_deref())?;
        let reader = file.as_deref().map(schema::open_reader).transpose()?.map(Mutex::new);
        let shared = Arc::new(Shared { conn: Mutex::new(conn), poison: OnceLock::new() });
        let (queue, ops) = channel();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn({
                let shared = shared.clone();
                move || writer::run_guarded(&ops, &shared)
            })
            .map_err(|e| StoreError::Open(format!("{path}: no thread for its writer: {e}")))?;
        let path = file.map_or(StorePath::Memory, StorePath::File);
        Ok(Store(Arc::new(Inner { path, queue: Some(queue), thread: Some(thread), shared, reader, _lock: lock })))
    }

    /// Where it is.
    pub fn path(&self) -> &StorePath {
        &self.0.path
    }

    fn queue(&self, kind: Kind, run: impl FnOnce(&Connection) -> rusqlite::Result<writer::Finish> + Send + 'static) {
        if let Some(queue) = &self.0.queue {
            // Nobody listens after a panic of the writer; who waits for an answer is told.
            let _ = queue.send(Op { kind, run: Box::new(run) });
        }
    }

    /// Queues at the call; the answer comes after the commit.
    fn ask<T: Send + 'static>(
        &self,
        kind: Kind,
        run: impl FnOnce(&Connection) -> rusqlite::Result<Result<T, StoreError>> + Send + 'static,
    ) -> Pending<T> {
        let (reply, answer) = oneshot::channel();
        self.queue(kind, move |conn| {
            let result = run(conn)?;
            Ok(Some(Box::new(move || drop(reply.send(result)))))
        });
        Pending { answer, shared: self.0.shared.clone() }
    }

    /// Takes a job; durable before it resolves. Returns its row key.
    ///
    /// # Errors
    /// `Exists`: the id was admitted before, open or closed.
    pub fn admit(&self, job: NewJob) -> impl Future<Output = Result<i64, StoreError>> + Send + 'static + use<> {
        let spec = blob::pack_bytes(&job.spec);
        self.ask(Kind::Admit, move |conn| write::admit(conn, &job, &spec)).answer()
    }

    /// Queues a finished sample; packs it in the caller's thread (2 to 4 ms for 2,000 tokens on a slow core). The first one in a place stays.
    pub fn sample(&self, row: SampleRow) {
        let data = blob::pack_parts(&row.token_ids, &row.logprobs, row.logprobs_raw.as_deref(), &row.text, &row.weight_versions);
        let row = write::PackedSample {
            job: row.job,
            prompt: row.prompt,
            index: row.index,
            tokens: row.token_ids.len(),
            finish_reason: row.finish_reason,
            stop_match: row.stop_match,
            data,
        };
        self.queue(Kind::Sample, move |conn| write::sample(conn, &row).map(|()| None));
    }

    /// Queues a verdict on a stored sample; it replaces an earlier one. Without such a sample it is nothing.
    pub fn verdict(&self, row: VerdictRow) {
        self.queue(Kind::Sample, move |conn| write::verdict(conn, &row).map(|()| None));
    }

    /// Stored samples in the order asked for, without those that are not there. Sees every row queued before the call.
    pub fn samples(
        &self,
        job: i64,
        prompt: u32,
        indices: Vec<u32>,
    ) -> impl Future<Output = Result<Vec<StoredSample>, StoreError>> + Send + 'static + use<> {
        unpacked(self.ask(Kind::Other, move |conn| Ok(read::samples(conn, job, prompt, &indices))))
    }

    /// Stored samples without a verdict, by (prompt, index), after a place. Sees every row queued before the call.
    pub fn unscored(
        &self,
        job: i64,
        after: Option<(u32, u32)>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<StoredSample>, StoreError>> + Send + 'static + use<> {
        unpacked(self.ask(Kind::Other, move |conn| Ok(read::unscored(conn, job, after, limit))))
    }

    /// Stores a group and deletes the samples of its prompt, in one transaction; packs the JSON in the caller's thread (10 to 20 ms for four
    /// samples of 2,000 tokens: not on a thread of the runtime that others wait for), resolves after the
    /// commit.
    ///
    /// # Errors
    /// `NotOpen`, `GroupExists`.
    pub fn group(&self, mut row: GroupRow) -> impl Future<Output = Result<(), StoreError>> + Send + 'static + use<> {
        let json = row.json.take().map(|json| blob::pack_bytes(json.as_bytes()));
        self.ask(Kind::Group, move |conn| write::group(conn, &row, json.as_deref())).answer()
    }

    /// Ends a job, deletes its leftover samples and enters its groups into the history, in one durable transaction.
    ///
    /// # Errors
    /// `NotOpen`: it was closed before, or the state to close it with is `Open`.
    pub fn close(&self, close: CloseJob) -> impl Future<Output = Result<(), StoreError>> + Send + 'static + use<> {
        self.ask(Kind::Close, move |conn| write::close(conn, &close)).answer()
    }

    /// Queues the note that a job goes on under other numerics than it was accepted for; its `numerics_id` then lists both.
    pub fn note_numerics(&self, job: i64, numerics_id: &str) {
        let numerics_id = numerics_id.to_owned();
        self.queue(Kind::Other, move |conn| write::note_numerics(conn, job, &numerics_id).map(|()| None));
    }

    /// Queues what a key used today (UTC).
    pub fn usage(&self, key: &str, requests: u64, prompts: u64, samples: u64, tokens: u64) {
        let day = (now_unix_s() / DAY_S).floor() as i64;
        let key = key.to_owned();
        self.queue(Kind::Other, move |conn| write::usage(conn, day, &key, [requests, prompts, samples, tokens]).map(|()| None));
    }

    /// Its file, if it has one.
    pub fn file(&self) -> Option<&Path> {
        match self.path() {
            StorePath::File(path) => Some(path),
            StorePath::Memory => None,
        }
    }

    /// Whether it is on disk.
    pub fn is_durable(&self) -> bool {
        matches!(self.path(), StorePath::File(_))
    }

    /// Resolves after everything queued before is committed, or the store has failed.
    pub fn flush(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let done = self.ask(Kind::Other, |_| Ok(Ok(())));
        async move { drop(done.answer().await) }
    }

    /// The sentence of the first failed write, if there was one; from then on the store writes nothing.
    pub fn health(&self) -> Result<(), String> {
        self.0.shared.poison.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Reads committed rows; blocks the calling thread for as long as the query takes.
    fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        match &self.0.reader {
            Some(reader) => query(&reader.lock().unwrap_or_else(PoisonError::into_inner)),
            None => query(&self.0.shared.conn()),
        }
    }

    /// The JSON of delivered groups whose place in the order of delivery is at least `cursor`, in that order. Blocks.
    pub fn groups(&self, job: i64, cursor: u64, limit: u32) -> Result<Vec<String>, StoreError> {
        // Unpacked without the connection: slow readers do not wait for each other.
        self.read(|conn| read::groups(conn, job, cursor, limit))?.into_iter().map(|(_, packed)| read::group_text(packed)).collect()
    }

    /// The job with an id. Blocks.
    pub fn find(&self, id: &str) -> Result<Option<StoredJob>, StoreError> {
        self.read(|conn| read::find(conn, id))
    }

    /// The last jobs, newest first. Blocks.
    pub fn list(&self, limit: u32) -> Result<Vec<JobSummary>, StoreError> {
        self.read(|conn| read::list(conn, limit))
    }

    /// Jobs that are not closed, in order of acceptance. Blocks.
    pub fn open_jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        self.read(read::open_jobs)
    }

    /// What a restarted process needs to go on with a job: its samples without their tokens, and its groups without their JSON. Blocks.
    pub fn resume(&self, job: i64) -> Result<Resume, StoreError> {
        self.read(|conn| read::resume(conn, job))
    }

    /// The decayed counts (N, S) of prompts, `None` where there is no history. Blocks.
    pub fn history(&self, namespace: &str, ids: &[String]) -> Result<Vec<Option<(f64, f64)>>, StoreError> {
        self.read(|conn| read::history(conn, namespace, ids))
    }

    /// What each key used on each day. Blocks.
    pub fn usages(&self) -> Result<Vec<UsageRow>, StoreError> {
        self.read(read::usage)
    }

    /// Bytes of the file and its WAL, or of the pages in memory.
    pub fn bytes(&self) -> u64 {
        match &self.0.path {
            StorePath::File(path) => {
                [path.as_path(), &wal_path(path)].into_iter().filter_map(|p| std::fs::metadata(p).ok()).map(|m| m.len()).sum()
            }
            StorePath::Memory => {
                let conn = self.0.shared.conn();
                let ask = |sql| conn.query_row(sql, (), |r| r.get::<_, i64>(0)).map_or(0, |n| n as u64);
                ask("PRAGMA page_count") * ask("PRAGMA page_size")
            }
        }
    }

    /// Works on the writer's connection, between its transactions.
    fn maintain<T>(&self, what: &str, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        let mut conn = self.0.shared.conn();
        self.health().map_err(StoreError::Failed)?;
        work(&mut conn).map_err(|e| {
            self.0.shared.fail(what, &e);
            StoreError::Failed(self.health().err().unwrap_or_default())
        })
    }

    /// Deletes jobs that were closed more than so many days ago, one transaction each; says how many. Their room is used again; `vacuum` gives
    /// it back. History and usage stay. Blocks.
    pub fn prune(&self, keep_days: f64) -> Result<u64, StoreError> {
        let before = now_unix_s() - keep_days * DAY_S;
        let mut gone = 0;
        loop {
            let found = self.maintain("old jobs cannot be deleted", |conn| {
                let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
                let found = write::prune_one(&tx, before)?;
                tx.commit()?;
                Ok(found)
            })?;
            if !found {
                return Ok(gone);
            }
            gone += 1;
        }
    }

    /// Writes the file anew without its empty pages. Needs as much room again while it runs; blocks, and everything that is written waits.
    pub fn vacuum(&self) -> Result<(), StoreError> {
        self.maintain("the file cannot be written anew", |conn| conn.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);"))
    }

    /// Lets the file grow by so many pages and no further: what a full disk does, for tests.
    #[doc(hidden)]
    pub fn limit_pages(&self, more: u32) -> Result<(), StoreError> {
        self.maintain("the limit cannot be set", |conn| {
            let pages: i64 = conn.query_row("PRAGMA page_count", (), |r| r.get(0))?;
            conn.query_row(&format!("PRAGMA max_page_count = {}", pages + i64::from(more)), (), |_| Ok(()))
        })
    }
}

/// An answer of the writer that is to come.
struct Pending<T> {
    answer: oneshot::Receiver<Result<T, StoreError>>,
    shared: Arc<Shared>,
}

impl<T> Pending<T> {
    async fn answer(self) -> Result<T, StoreError> {
        self.answer.await.unwrap_or_else(|_| {
            // A writer that fails holds its connection until it has said why.
            drop(self.shared.conn());
            Err(StoreError::Failed(self.shared.poison.get().cloned().unwrap_or_else(|| "the store's writer has stopped; restart".into())))
        })
    }
}

/// Unpacks in the caller's thread what the writer found.
async fn unpacked(found: Pending<Vec<read::PackedStored>>) -> Result<Vec<StoredSample>, StoreError> {
    found.answer().await?.into_iter().map(read::PackedStored::unpack).collect()
}
