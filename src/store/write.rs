//! What is written, row by row, within the writer's transaction. An `Err` here is a failed write; what is merely refused comes back as `Ok(Err)`.

use rusqlite::{Connection, OptionalExtension, params};

use super::rows::{CloseJob, GroupRow, NewJob, VerdictRow};
use super::{JobState, StoreError};

type Written<T> = rusqlite::Result<Result<T, StoreError>>;

pub(super) fn admit(conn: &Connection, job: &NewJob, spec: &[u8]) -> Written<i64> {
    let made = conn
        .prepare_cached(
            "INSERT INTO jobs (id, digest, named, state, prompts, namespace, model_digest, numerics_id, weights_version, key, accepted_unix_s,
             settings, spec, weights_digest) VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT (id) DO NOTHING",
        )?
        .execute(params![
            job.id,
            job.digest,
            job.named,
            job.prompts,
            job.namespace,
            job.model_digest,
            job.numerics_id,
            // SQLite's integers are signed; the bits come back.
            job.weights_version as i64,
            job.key,
            job.accepted_unix_s,
            job.settings,
            spec,
            job.weights_digest
        ])?;
    Ok(if made == 0 { Err(StoreError::Exists) } else { Ok(conn.last_insert_rowid()) })
}

/// A sample without its blob's contents.
pub(super) struct PackedSample {
    pub job: i64,
    pub prompt: u32,
    pub index: u32,
    pub tokens: usize,
    pub finish_reason: String,
    pub stop_match: Option<String>,
    pub data: Vec<u8>,
}

/// Stores a sample. A second one in the same place is the same sample, run again after a restart: the first stays, and so does its verdict.
/// A late one, of a closed job or of a prompt that has its group, is not stored: nothing would ever delete it.
pub(super) fn sample(conn: &Connection, row: &PackedSample) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO samples (job, prompt, idx, tokens, finish_reason, stop_match, data) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
         WHERE EXISTS (SELECT 1 FROM jobs WHERE job = ?1 AND state = 0)
         AND NOT EXISTS (SELECT 1 FROM groups WHERE job = ?1 AND prompt = ?2) ON CONFLICT (job, prompt, idx) DO NOTHING",
    )?
    .execute(params![row.job, row.prompt, row.index, row.tokens as i64, row.finish_reason, row.stop_match, row.data])?;
    Ok(())
}

pub(super) fn verdict(conn: &Connection, row: &VerdictRow) -> rusqlite::Result<()> {
    let of = &row.verdict;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO verdicts (job, prompt, idx, outcome, reward, status, note, timeouts, found)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9
         WHERE EXISTS (SELECT 1 FROM samples WHERE job = ?1 AND prompt = ?2 AND idx = ?3)",
    )?
    .execute(params![row.job, row.prompt, row.index, of.outcome, of.reward, of.status, of.note, of.timeouts, of.found])?;
    Ok(())
}

fn is_open(conn: &Connection, job: i64) -> rusqlite::Result<bool> {
    let state: Option<i64> = conn.prepare_cached("SELECT state FROM jobs WHERE job = ?1")?.query_row([job], |r| r.get(0)).optional()?;
    Ok(state == Some(JobState::Open.code()))
}

pub(super) fn group(conn: &Connection, row: &GroupRow, json: Option<&[u8]>) -> Written<()> {
    if !is_open(conn, row.job)? {
        return Ok(Err(StoreError::NotOpen));
    }
    let seq = row.seq.map(|s| s as i64);
    let taken: bool = conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM groups WHERE job = ?1 AND (prompt = ?2 OR seq = ?3))")?
        .query_row(params![row.job, row.prompt, seq], |r| r.get(0))?;
    if taken {
        return Ok(Err(StoreError::GroupExists { prompt: row.prompt }));
    }
    conn.prepare_cached(
        "INSERT INTO groups (job, prompt, seq, t, kind, status, signal, positive, negative, tokens_seen, timeouts, json)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute(params![
        row.job,
        row.prompt,
        seq,
        row.t,
        row.kind,
        row.status,
        row.signal,
        row.positive,
        row.negative,
        row.tokens_seen as i64,
        row.timeouts,
        json
    ])?;
    conn.prepare_cached("DELETE FROM samples WHERE job = ?1 AND prompt = ?2")?.execute(params![row.job, row.prompt])?;
    conn.prepare_cached("DELETE FROM verdicts WHERE job = ?1 AND prompt = ?2")?.execute(params![row.job, row.prompt])?;
    Ok(Ok(()))
}

pub(super) fn close(conn: &Connection, close: &CloseJob) -> Written<()> {
    if !is_open(conn, close.job)? || close.state == JobState::Open {
        return Ok(Err(StoreError::NotOpen));
    }
    conn.execute(
        "UPDATE jobs SET state = ?2, error = ?3, totals = ?4, closed_unix_s = ?5 WHERE job = ?1",
        params![close.job, close.state.code(), close.error, close.totals, close.closed_unix_s],
    )?;
    conn.execute("DELETE FROM samples WHERE job = ?1", [close.job])?;
    conn.execute("DELETE FROM verdicts WHERE job = ?1", [close.job])?;
    let Some(history) = &close.update_history else { return Ok(Ok(())) };
    let namespace: String = conn.query_row("SELECT namespace FROM jobs WHERE job = ?1", [close.job], |r| r.get(0))?;
    let mut groups = conn.prepare_cached("SELECT prompt, positive, negative FROM groups WHERE job = ?1 ORDER BY prompt")?;
    let mut update = conn.prepare_cached(
        "INSERT INTO history (namespace, prompt_id, n, s) VALUES (?1, ?2, ?4, ?5)
         ON CONFLICT DO UPDATE SET n = ?3 * n + excluded.n, s = ?3 * s + excluded.s",
    )?;
    let mut rows = groups.query([close.job])?;
    while let Some(row) = rows.next()? {
        let (prompt, positive, negative): (u32, u32, u32) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if let Some(id) = history.ids.get(prompt as usize) {
            let n = f64::from(positive) + f64::from(negative);
            update.execute(params![namespace, id, history.lambda, n, f64::from(positive)])?;
        }
    }
    Ok(Ok(()))
}

/// Notes that a job goes on under other numerics, if that is news.
pub(super) fn note_numerics(conn: &Connection, job: i64, numerics_id: &str) -> rusqlite::Result<()> {
    conn.execute("UPDATE jobs SET numerics_id = numerics_id || ' ' || ?2 WHERE job = ?1", params![job, numerics_id])?;
    Ok(())
}

pub(super) fn usage(conn: &Connection, day: i64, key: &str, counts: [u64; 4]) -> rusqlite::Result<()> {
    let [requests, prompts, samples, tokens] = counts.map(|n| n as i64);
    conn.prepare_cached(
        "INSERT INTO usage (day, key, requests, prompts, samples, tokens) VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT DO UPDATE SET
         requests = requests + excluded.requests, prompts = prompts + excluded.prompts, samples = samples + excluded.samples,
         tokens = tokens + excluded.tokens",
    )?
    .execute(params![day, key, requests, prompts, samples, tokens])?;
    Ok(())
}

/// Deletes a job that was closed before a time; says whether there was one.
pub(super) fn prune_one(conn: &Connection, closed_before_unix_s: f64) -> rusqlite::Result<bool> {
    let found: Option<i64> = conn
        .prepare_cached("SELECT job FROM jobs WHERE state != 0 AND closed_unix_s < ?1 ORDER BY job LIMIT 1")?
        .query_row([closed_before_unix_s], |r| r.get(0))
        .optional()?;
    let Some(job) = found else { return Ok(false) };
    for sql in [
        "DELETE FROM samples WHERE job = ?1",
        "DELETE FROM verdicts WHERE job = ?1",
        "DELETE FROM groups WHERE job = ?1",
        "DELETE FROM jobs WHERE job = ?1",
    ] {
        conn.prepare_cached(sql)?.execute([job])?;
    }
    Ok(true)
}
