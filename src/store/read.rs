//! What is read: the same statements on a server's connections and on a file that is only looked at.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::rows::{GroupRow, JobState, JobSummary, NewJob, Resume, ResumeSample, SampleRow, StoredJob, StoredSample, UsageRow, Verdict};
use super::{StoreError, blob};

/// Only an open job's spec is unpacked: nobody needs that of a closed one.
const JOB: &str = "SELECT job, id, digest, named, settings, CASE state WHEN 0 THEN spec END, prompts, namespace, model_digest, numerics_id,
     weights_version, key, accepted_unix_s, state, error, totals, closed_unix_s, weights_digest FROM jobs";

fn state(code: i64) -> Result<JobState, StoreError> {
    JobState::from_code(code).ok_or_else(|| StoreError::Read(format!("the store is damaged: a job has state {code}")))
}

fn stored_job(row: &Row<'_>) -> Result<StoredJob, StoreError> {
    let accepted = NewJob {
        id: row.get(1)?,
        digest: row.get(2)?,
        named: row.get(3)?,
        settings: row.get(4)?,
        spec: match row.get_ref(5)?.as_blob_or_null().map_err(rusqlite::Error::from)? {
            Some(spec) => blob::unpack_bytes(spec)?,
            None => Vec::new(),
        },
        prompts: row.get(6)?,
        namespace: row.get(7)?,
        model_digest: row.get(8)?,
        numerics_id: row.get(9)?,
        weights_version: row.get::<_, i64>(10)? as u64,
        weights_digest: row.get(17)?,
        key: row.get(11)?,
        accepted_unix_s: row.get(12)?,
    };
    let state = state(row.get(13)?)?;
    Ok(StoredJob { job: row.get(0)?, accepted, state, error: row.get(14)?, totals: row.get(15)?, closed_unix_s: row.get(16)? })
}

/// Runs a query and takes every row through `read`.
pub(super) fn all<T>(
    conn: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    mut read: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut out = Vec::new();
    while let Some(row) = rows.next()? {
        out.push(read(row)?);
    }
    Ok(out)
}

pub(super) fn find(conn: &Connection, id: &str) -> Result<Option<StoredJob>, StoreError> {
    Ok(all(conn, &format!("{JOB} WHERE id = ?1"), [id], stored_job)?.pop())
}

pub(super) fn open_jobs(conn: &Connection) -> Result<Vec<StoredJob>, StoreError> {
    all(conn, &format!("{JOB} WHERE state = 0 ORDER BY job"), (), stored_job)
}

pub(super) fn list(conn: &Connection, limit: u32) -> Result<Vec<JobSummary>, StoreError> {
    let sql = "SELECT j.job, id, state, prompts, accepted_unix_s, closed_unix_s, error, count(g.seq), count(g.grp), coalesce(sum(t), 0),
        coalesce(sum(tokens_seen), 0) FROM (SELECT * FROM jobs ORDER BY job DESC LIMIT ?1) j LEFT JOIN groups g ON g.job = j.job
        GROUP BY j.job ORDER BY j.job DESC";
    all(conn, sql, [limit], |row| {
        let count = |i| -> Result<u64, StoreError> { Ok(row.get::<_, i64>(i)? as u64) };
        Ok(JobSummary {
            job: row.get(0)?,
            id: row.get(1)?,
            state: state(row.get(2)?)?,
            prompts: row.get(3)?,
            groups: count(7)?,
            dropped: count(8)? - count(7)?,
            samples: count(9)?,
            tokens: count(10)?,
            accepted_unix_s: row.get(4)?,
            closed_unix_s: row.get(5)?,
            error: row.get(6)?,
        })
    })
}

/// Delivered groups from `cursor` on, (seq, JSON) packed.
pub(super) fn groups(conn: &Connection, job: i64, cursor: u64, limit: u32) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
    let Ok(cursor) = i64::try_from(cursor) else { return Ok(Vec::new()) };
    let sql = "SELECT seq, json FROM groups WHERE job = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3";
    all(conn, sql, params![job, cursor, limit], |row| {
        Ok((row.get::<_, i64>(0)? as u64, row.get::<_, Option<Vec<u8>>>(1)?.unwrap_or_default()))
    })
}

/// Packed JSON back into text; a group that was stored without any is the empty text.
pub(super) fn group_text(packed: Vec<u8>) -> Result<String, StoreError> {
    if packed.is_empty() { Ok(String::new()) } else { Ok(blob::unpack_text(&packed)?) }
}

fn verdict(row: &Row<'_>, first: usize) -> Result<Option<Verdict>, StoreError> {
    let Some(outcome) = row.get(first)? else { return Ok(None) };
    Ok(Some(Verdict {
        outcome,
        reward: row.get(first + 1)?,
        status: row.get(first + 2)?,
        note: row.get(first + 3)?,
        timeouts: row.get(first + 4)?,
        found: row.get(first + 5)?,
    }))
}

pub(super) fn resume(conn: &Connection, job: i64) -> Result<Resume, StoreError> {
    // One transaction: a group that is committed between the two queries would be missing with its samples.
    let tx = conn.unchecked_transaction()?;
    let samples =
        "SELECT s.prompt, s.idx, finish_reason, tokens, outcome, reward, status, note, timeouts, found FROM samples s LEFT JOIN verdicts v
        ON v.job = s.job AND v.prompt = s.prompt AND v.idx = s.idx WHERE s.job = ?1 ORDER BY s.prompt, s.idx";
    let samples = all(&tx, samples, [job], |row| {
        Ok(ResumeSample {
            prompt: row.get(0)?,
            index: row.get(1)?,
            finish_reason: row.get(2)?,
            tokens: row.get(3)?,
            verdict: verdict(row, 4)?,
        })
    })?;
    let groups =
        "SELECT prompt, seq, t, kind, status, signal, positive, negative, tokens_seen, timeouts FROM groups WHERE job = ?1 ORDER BY prompt";
    let groups = all(&tx, groups, [job], |row| {
        Ok(GroupRow {
            job,
            prompt: row.get(0)?,
            seq: row.get::<_, Option<i64>>(1)?.map(|s| s as u64),
            t: row.get(2)?,
            kind: row.get(3)?,
            status: row.get(4)?,
            signal: row.get(5)?,
            positive: row.get(6)?,
            negative: row.get(7)?,
            tokens_seen: row.get::<_, i64>(8)? as u64,
            timeouts: row.get(9)?,
            json: None,
        })
    })?;
    let weights = tx
        .query_row("SELECT weights_version, weights_digest FROM jobs WHERE job = ?1", [job], |row| {
            Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))
        })
        .optional()?;
    Ok(Resume { samples, groups, weights })
}

pub(super) fn history(conn: &Connection, namespace: &str, ids: &[String]) -> Result<Vec<Option<(f64, f64)>>, StoreError> {
    let mut statement = conn.prepare_cached("SELECT n, s FROM history WHERE namespace = ?1 AND prompt_id = ?2")?;
    ids.iter().map(|id| Ok(statement.query_row([namespace, id], |r| Ok((r.get(0)?, r.get(1)?))).optional()?)).collect()
}

pub(super) fn usage(conn: &Connection) -> Result<Vec<UsageRow>, StoreError> {
    all(conn, "SELECT day, key, requests, prompts, samples, tokens FROM usage ORDER BY day, key", (), |row| {
        let count = |i| -> Result<u64, StoreError> { Ok(row.get::<_, i64>(i)? as u64) };
        Ok(UsageRow { day: row.get(0)?, key: row.get(1)?, requests: count(2)?, prompts: count(3)?, samples: count(4)?, tokens: count(5)? })
    })
}

/// A sample whose blob is still packed, so that the writer's thread does not unpack it.
pub(super) struct PackedStored {
    sample: SampleRow,
    verdict: Option<Verdict>,
    data: Vec<u8>,
}

impl PackedStored {
    pub fn unpack(self) -> Result<StoredSample, StoreError> {
        let blob::Tokens { token_ids, logprobs, logprobs_raw, text, weight_versions } = blob::unpack_tokens(&self.data)?;
        let sample = SampleRow { token_ids, logprobs, logprobs_raw, text, weight_versions, ..self.sample };
        Ok(StoredSample { sample, verdict: self.verdict })
    }
}

const SAMPLE: &str =
    "SELECT s.job, s.prompt, s.idx, outcome, reward, status, note, timeouts, found, finish_reason, stop_match, data FROM samples s
     LEFT JOIN verdicts v ON v.job = s.job AND v.prompt = s.prompt AND v.idx = s.idx";

fn packed(row: &Row<'_>) -> Result<PackedStored, StoreError> {
    let sample = SampleRow {
        job: row.get(0)?,
        prompt: row.get(1)?,
        index: row.get(2)?,
        finish_reason: row.get(9)?,
        stop_match: row.get(10)?,
        ..SampleRow::default()
    };
    Ok(PackedStored { sample, verdict: verdict(row, 3)?, data: row.get(11)? })
}

pub(super) fn samples(conn: &Connection, job: i64, prompt: u32, indices: &[u32]) -> Result<Vec<PackedStored>, StoreError> {
    let sql = format!("{SAMPLE} WHERE s.job = ?1 AND s.prompt = ?2 AND s.idx = ?3");
    let mut out = Vec::with_capacity(indices.len());
    for index in indices {
        out.extend(all(conn, &sql, params![job, prompt, index], packed)?);
    }
    Ok(out)
}

pub(super) fn unscored(conn: &Connection, job: i64, after: Option<(u32, u32)>, limit: u32) -> Result<Vec<PackedStored>, StoreError> {
    let (prompt, index) = after.map_or((-1, -1), |(p, i)| (i64::from(p), i64::from(i)));
    let sql = format!("{SAMPLE} WHERE s.job = ?1 AND (s.prompt, s.idx) > (?2, ?3) AND v.job IS NULL ORDER BY s.prompt, s.idx LIMIT ?4");
    all(conn, &sql, params![job, prompt, index, limit], packed)
}
