//! Versions of the weights that a server has taken: which files hold them, in the order in which they were committed.

use rusqlite::{Connection, params};

use super::writer::Kind;
use super::{Store, StoreError, read};

/// A committed version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsRow {
    /// Its number.
    pub version: u64,
    /// Of its tensors.
    pub digest: String,
    /// Name of its file in the weights' folder.
    pub file: String,
    /// Digest of the files of the model that it is a version of; empty where it is not known.
    pub model_digest: String,
}

impl Store {
    /// Commits a version whose file is in its place; durable before it resolves.
    pub fn commit_weights(&self, row: WeightsRow) -> impl Future<Output = Result<(), StoreError>> + Send + 'static + use<> {
        self.ask(Kind::Weights, move |conn| insert(conn, &row).map(Ok)).answer()
    }

    /// Forgets a version, or the older ones of several with this file.
    pub fn forget_weights(&self, file: &str) -> impl Future<Output = Result<(), StoreError>> + Send + 'static + use<> {
        let file = file.to_owned();
        self.ask(Kind::Other, move |conn| conn.execute("DELETE FROM weights WHERE file = ?1", [file]).map(|_| Ok(()))).answer()
    }

    /// Committed versions, the last one first. Blocks.
    pub fn weights(&self) -> Result<Vec<WeightsRow>, StoreError> {
        self.read(|conn| {
            read::all(conn, "SELECT version, digest, file, model_digest FROM weights ORDER BY seq DESC", (), |row| {
                Ok(WeightsRow { version: row.get::<_, i64>(0)? as u64, digest: row.get(1)?, file: row.get(2)?, model_digest: row.get(3)? })
            })
        })
    }

    /// Versions, with their digests, that open jobs were accepted for, whether they run or not. Blocks.
    pub fn weights_of_open_jobs(&self) -> Result<Vec<(u64, String)>, StoreError> {
        self.read(|conn| {
            read::all(conn, "SELECT DISTINCT weights_version, weights_digest FROM jobs WHERE state = 0", (), |row| {
                Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))
            })
        })
    }

    /// Queues that a job's open prompts start again under other weights: their samples go.
    pub fn restart(&self, job: i64, prompts: Vec<u32>, version: u64, digest: &str) {
        let digest = digest.to_owned();
        self.queue(Kind::Other, move |conn| restart(conn, job, &prompts, version, &digest).map(|()| None));
    }
}

fn insert(conn: &Connection, row: &WeightsRow) -> rusqlite::Result<()> {
    // A version that is committed again (a rollback to it) is the last one again.
    conn.execute("DELETE FROM weights WHERE version = ?1 AND digest = ?2", params![row.version as i64, row.digest])?;
    conn.execute(
        "INSERT INTO weights (version, digest, file, model_digest) VALUES (?1, ?2, ?3, ?4)",
        params![row.version as i64, row.digest, row.file, row.model_digest],
    )?;
    Ok(())
}

fn restart(conn: &Connection, job: i64, prompts: &[u32], version: u64, digest: &str) -> rusqlite::Result<()> {
    for prompt in prompts {
        conn.prepare_cached("DELETE FROM samples WHERE job = ?1 AND prompt = ?2")?.execute(params![job, prompt])?;
        conn.prepare_cached("DELETE FROM verdicts WHERE job = ?1 AND prompt = ?2")?.execute(params![job, prompt])?;
    }
    conn.execute("UPDATE jobs SET weights_version = ?2, weights_digest = ?3 WHERE job = ?1", params![job, version as i64, digest])?;
    Ok(())
}
