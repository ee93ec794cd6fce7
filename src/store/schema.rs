//! The file: its tables, its version, its lock, and how connections to it are opened.
//!
//! Samples are rows of their own key, appended in the order in which they finish (an index finds them by prompt), because rows of several
//! pages that are inserted in the middle of a tree leave half of its pages empty. Verdicts stand apart from samples, so that a verdict does
//! not write a sample's tokens again.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::StoreError;

/// The newest version that this program knows; it stands in the file as `user_version`.
pub const SCHEMA_VERSION: i64 = 4;
/// "ADAR": says whose file it is.
const APPLICATION_ID: i64 = 0x4144_4152;

/// `MIGRATIONS[v]` takes a file from version v to v + 1.
const MIGRATIONS: [&str; SCHEMA_VERSION as usize] = [
    "
CREATE TABLE jobs (
  job INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, named INTEGER NOT NULL, state INTEGER NOT NULL,
  prompts INTEGER NOT NULL, namespace TEXT NOT NULL, model_digest TEXT NOT NULL, numerics_id TEXT NOT NULL,
  weights_version INTEGER NOT NULL, key TEXT NOT NULL, accepted_unix_s REAL NOT NULL, closed_unix_s REAL, error TEXT, totals TEXT,
  settings TEXT NOT NULL, spec BLOB NOT NULL);
CREATE INDEX jobs_open ON jobs (job) WHERE state = 0;
CREATE TABLE samples (
  sample INTEGER PRIMARY KEY, job INTEGER NOT NULL, prompt INTEGER NOT NULL, idx INTEGER NOT NULL, tokens INTEGER NOT NULL,
  finish_reason TEXT NOT NULL, stop_match TEXT, data BLOB NOT NULL);
CREATE UNIQUE INDEX samples_place ON samples (job, prompt, idx);
-- reward has no type: a REAL column would lose the sign of -0.0.
CREATE TABLE verdicts (
  job INTEGER NOT NULL, prompt INTEGER NOT NULL, idx INTEGER NOT NULL, outcome INTEGER NOT NULL, reward, status INTEGER NOT NULL,
  timeouts INTEGER NOT NULL, note TEXT, PRIMARY KEY (job, prompt, idx)) WITHOUT ROWID;
CREATE TABLE groups (
  grp INTEGER PRIMARY KEY, job INTEGER NOT NULL, prompt INTEGER NOT NULL, seq INTEGER, t INTEGER NOT NULL, kind TEXT NOT NULL,
  status TEXT NOT NULL, signal INTEGER NOT NULL, positive INTEGER NOT NULL, negative INTEGER NOT NULL, tokens_seen INTEGER NOT NULL,
  timeouts INTEGER NOT NULL, json BLOB);
CREATE UNIQUE INDEX groups_prompt ON groups (job, prompt);
CREATE UNIQUE INDEX groups_seq ON groups (job, seq) WHERE seq IS NOT NULL;
CREATE TABLE history (
  namespace TEXT NOT NULL, prompt_id TEXT NOT NULL, n REAL NOT NULL, s REAL NOT NULL, PRIMARY KEY (namespace, prompt_id)) WITHOUT ROWID;
CREATE TABLE usage (
  day INTEGER NOT NULL, key TEXT NOT NULL, requests INTEGER NOT NULL, prompts INTEGER NOT NULL, samples INTEGER NOT NULL,
  tokens INTEGER NOT NULL, PRIMARY KEY (day, key)) WITHOUT ROWID;
",
    "
CREATE TABLE weights (seq INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, digest TEXT NOT NULL, file TEXT NOT NULL);
",
    // What an older file does not say is not compared.
    "
ALTER TABLE jobs ADD COLUMN weights_digest TEXT NOT NULL DEFAULT '';
ALTER TABLE weights ADD COLUMN model_digest TEXT NOT NULL DEFAULT '';
",
    "
ALTER TABLE verdicts ADD COLUMN found TEXT;
",
];

/// The lock that keeps a second server away. It stands on a file beside the store: SQLite's own locks on the store would go with the first
/// handle that anyone closes.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Where the lock of a store stands.
pub fn lock_path(store: &Path) -> PathBuf {
    let mut name = store.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

pub(super) fn lock(store: &Path) -> Result<Lock, StoreError> {
    let path = lock_path(store);
    let cannot = |e: std::io::Error| {
        StoreError::Open(format!("{}: cannot be made: {e}; the store needs a folder that can be written", path.display()))
    };
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => {
            // For people who look for the holder; nothing depends on it.
            let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(Lock { _file: file })
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { String::new() } else { format!(" (process {holder})") };
            Err(StoreError::Locked(format!(
                "{}: is in use by another server{holder}; stop it first, or give this one another store",
                store.display()
            )))
        }
        Err(TryLockError::Error(e)) => Err(cannot(e)),
    }
}

/// Opens the connection that writes; makes the tables or brings them up to date.
pub(super) fn open_writer(path: Option<&Path>) -> Result<Connection, StoreError> {
    let name = path.map_or_else(|| ":memory:".to_owned(), |p| p.display().to_string());
    let failed = |e: rusqlite::Error| StoreError::Open(format!("{name}: cannot be opened as a store: {e}"));
    let mut conn = match path {
        Some(path) => Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        ),
        None => Connection::open_in_memory(),
    }
    .map_err(failed)?;
    conn.busy_timeout(Duration::from_secs(10)).map_err(failed)?;
    // Small pages: a sample of 2,000 tokens is about 15 kB, and what is left over of its first page is lost (measured: 4,096 costs a tenth more).
    // The size counts for new files only, and only before the journal is WAL.
    conn.execute_batch("PRAGMA page_size = 2048;").map_err(failed)?;
    check_version(&conn, &name)?;
    let journal: String = conn.query_row("PRAGMA journal_mode = WAL", (), |r| r.get(0)).map_err(failed)?;
    if path.is_some() && journal != "wal" {
        return Err(StoreError::Open(format!(
            "{name}: its file system cannot hold a write-ahead log (network drives often cannot); give a local path"
        )));
    }
    conn.execute_batch(
        "PRAGMA wal_autocheckpoint = 2000; PRAGMA journal_size_limit = 8388608; PRAGMA synchronous = NORMAL;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(failed)?;
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(failed)?;
    let version: i64 = tx.query_row("PRAGMA user_version", (), |r| r.get(0)).map_err(failed)?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
        tx.execute_batch(migration).map_err(failed)?;
    }
    tx.execute_batch(&format!("PRAGMA user_version = {SCHEMA_VERSION}; PRAGMA application_id = {APPLICATION_ID};")).map_err(failed)?;
    tx.commit().map_err(failed)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

/// Opens a connection that only reads. Works beside a server, after a crash, and on a read-only medium.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let name = path.display().to_string();
    let failed = |e: rusqlite::Error| StoreError::Open(format!("{name}: cannot be opened as a store: {e}"));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let open = |immutable: &str| -> rusqlite::Result<Connection> {
        let conn = Connection::open_with_flags(format!("file:{}?mode=ro{immutable}", uri_path(path)), flags)?;
        conn.busy_timeout(Duration::from_secs(10))?;
        conn.query_row("SELECT count(*) FROM sqlite_schema", (), |_| Ok(()))?;
        Ok(conn)
    };
    // In a folder that cannot be written SQLite cannot share a WAL; without one the file does not change.
    let wal = super::wal_path(path);
    let conn = open("").or_else(|e| if wal.exists() { Err(e) } else { open("&immutable=1") }).map_err(failed)?;
    match check_version(&conn, &name)? {
        0 => return Err(StoreError::Open(format!("{name}: is empty, not a store"))),
        SCHEMA_VERSION => {}
        older => {
            return Err(StoreError::Open(format!(
                "{name}: was written by an older adaroll (schema version {older}, this one reads {SCHEMA_VERSION}); start the server on it once, which brings it up to date"
            )));
        }
    }
    conn.set_prepared_statement_cache_capacity(64);
    Ok(conn)
}

fn uri_path(path: &Path) -> String {
    path.display().to_string().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

/// The file's version; refuses what is newer or is not ours.
fn check_version(conn: &Connection, name: &str) -> Result<i64, StoreError> {
    let ask = |sql: &str| {
        conn.query_row(sql, (), |r| r.get::<_, i64>(0)).map_err(|e| StoreError::Open(format!("{name}: cannot be opened as a store: {e}")))
    };
    let version = ask("PRAGMA user_version")?;
    let id = ask("PRAGMA application_id")?;
    let tables = ask("SELECT count(*) FROM sqlite_schema")?;
    if tables > 0 && id != APPLICATION_ID {
        return Err(StoreError::Open(format!("{name}: is a database of another program, not a store of adaroll; give another path")));
    }
    if version > SCHEMA_VERSION {
        return Err(StoreError::Open(format!(
            "{name}: was written by a newer adaroll (schema version {version}, this one knows up to {SCHEMA_VERSION}); use that version, or another store"
        )));
    }
    Ok(version)
}
