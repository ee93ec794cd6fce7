//! `adaroll jobs`: looks at a store, with or without a running server, and prunes it.
//!
//! `list`, `show` and `export` read committed rows through a connection that writes nothing and takes no lock; `prune` takes the lock and is
//! refused while a server has it.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;
use serde_json::Value;

use crate::rollout::progress::Totals;
use crate::store::{CloseJob, JobState, JobSummary, Store, StoreError, StorePath, StoreReader};

/// Groups read at a time by an export.
const EXPORT_AT_A_TIME: u32 = 64;

/// The arguments of `adaroll jobs`.
#[derive(Clone, Debug, Subcommand)]
pub enum JobsCommand {
    /// The last jobs, newest first.
    List {
        /// The store's file.
        #[arg(long)]
        store: PathBuf,
        /// Most jobs to list.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Settings and statistics of one job.
    Show {
        /// The job's id.
        id: String,
        /// The store's file.
        #[arg(long)]
        store: PathBuf,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// Write the delivered groups of a job, one JSON object a line, in the order of delivery.
    Export {
        /// The job's id.
        id: String,
        /// The store's file.
        #[arg(long)]
        store: PathBuf,
        /// The file to write; it appears when it is complete.
        #[arg(long)]
        out: PathBuf,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
    /// End an open job: it closes as cancelled, its delivered groups stay readable. No server may be running on the store (ask a running one
    /// with DELETE /v1/rollouts/ID).
    Cancel {
        /// The job's id.
        id: String,
        /// The store's file.
        #[arg(long)]
        store: PathBuf,
    },
    /// Delete jobs that were closed long ago and give their room back. Prompt history and usage stay. No server may be running on the store.
    Prune {
        /// The store's file.
        #[arg(long)]
        store: PathBuf,
        /// Jobs closed more than so many days ago go; 0 deletes every closed job.
        #[arg(long, value_parser = days)]
        keep_days: f64,
        /// One JSON object on stdout.
        #[arg(long)]
        json: bool,
    },
}

fn days(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|d| d.is_finite() && *d >= 0.0).ok_or_else(|| "a number of days is 0 or more".into())
}

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The job is closed.
    #[error("job {id:?} is {state} already")]
    Closed {
        /// What was asked for.
        id: String,
        /// Where it stands.
        state: &'static str,
    },
    /// No such job.
    #[error("{store}: has no job {id:?}; see `adaroll jobs list --store {store}`")]
    NoJob {
        /// What was asked for.
        id: String,
        /// Where.
        store: String,
    },
    /// The file to write.
    #[error("{path}: cannot be written: {error}")]
    Out {
        /// Which.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Standard output.
    #[error(transparent)]
    Print(#[from] std::io::Error),
    /// What is to be printed as JSON.
    #[error("cannot be printed as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl JobsCommand {
    /// Does it and prints what there is to see on `out`.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), JobsError> {
        match self {
            JobsCommand::List { store, limit, json } => print(out, &list(store, *limit)?, *json),
            JobsCommand::Show { id, store, json } => print(out, &show(store, id)?, *json),
            JobsCommand::Export { id, store, out: file, json } => print(out, &export(store, id, file)?, *json),
            JobsCommand::Cancel { id, store } => {
                cancel(store, id)?;
                Ok(writeln!(out, "job {id} is closed as cancelled")?)
            }
            JobsCommand::Prune { store, keep_days, json } => print(out, &prune(store, *keep_days)?, *json),
        }
    }
}

fn print<T: Display + Serialize>(out: &mut dyn Write, thing: &T, json: bool) -> Result<(), JobsError> {
    if json {
        writeln!(out, "{}", serde_json::to_string(thing)?)?;
    } else {
        writeln!(out, "{thing}")?;
    }
    Ok(())
}

/// What `list` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobList {
    /// Newest first.
    pub jobs: Vec<JobSummary>,
}

impl Display for JobList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.jobs.iter().map(|j| j.id.chars().count()).max().unwrap_or(0).max(2);
        write!(
            f,
            "{:width$}  {:<9}  {:>7}  {:>7}  {:>12}  {:>12}  accepted (UTC)",
            "id", "state", "prompts", "groups", "samples seen", "tokens"
        )?;
        for j in &self.jobs {
            write!(
                f,
                "\n{:width$}  {:<9}  {:>7}  {:>7}  {:>12}  {:>12}  {}",
                j.id,
                j.state.name(),
                j.prompts,
                j.groups,
                j.samples,
                j.tokens,
                utc(j.accepted_unix_s)
            )?;
        }
        Ok(())
    }
}

/// The last jobs of a store.
pub fn list(store: &Path, limit: u32) -> Result<JobList, JobsError> {
    Ok(JobList { jobs: StoreReader::open(store)?.list(limit)? })
}

/// What `show` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobReport {
    /// The job's id.
    pub id: String,
    /// Where it stands.
    pub state: JobState,
    /// Why it failed.
    pub error: Option<String>,
    /// Seconds since 1970.
    pub accepted_unix_s: f64,
    /// Seconds since 1970.
    pub closed_unix_s: Option<f64>,
    /// Whose history it reads and feeds.
    pub namespace: String,
    /// Name of the API key that sent it.
    pub key: String,
    /// The pinned version.
    pub weights_version: u64,
    /// Of the model's files.
    pub model_digest: String,
    /// Backend and kernels.
    pub numerics_id: String,
    /// Prompts of the request.
    pub prompts: u32,
    /// Groups delivered.
    pub groups: u64,
    /// Groups dropped.
    pub dropped: u64,
    /// Delivered groups with a signal.
    pub signal: u64,
    /// Samples that the strategy saw.
    pub samples: u64,
    /// Of those, positive.
    pub positive: u64,
    /// Of those, negative.
    pub negative: u64,
    /// Tokens of the samples seen.
    pub tokens: u64,
    /// Finished samples of prompts that have no group yet.
    pub samples_waiting: u64,
    /// What the server counted, once the job is closed.
    pub totals: Value,
    /// Effective settings.
    pub settings: Value,
}

impl Display for JobReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "job       {} ({}), sent by {:?}", self.id, self.state.name(), self.key)?;
        if let Some(error) = &self.error {
            writeln!(f, "error     {error}")?;
        }
        writeln!(f, "accepted  {}", utc(self.accepted_unix_s))?;
        if let Some(closed) = self.closed_unix_s {
            writeln!(f, "closed    {} ({:.1} s later)", utc(closed), closed - self.accepted_unix_s)?;
        }
        writeln!(f, "model     {}, weights version {}, numerics {}", self.model_digest, self.weights_version, self.numerics_id)?;
        writeln!(f, "groups    {} of {} prompts ({} with a signal), {} dropped", self.groups, self.prompts, self.signal, self.dropped)?;
        let scored = self.positive + self.negative;
        let rate = if scored == 0 { "-".to_owned() } else { format!("{:.4}", self.positive as f64 / scored as f64) };
        writeln!(
            f,
            "samples   {} seen, {} positive, {} negative (pass rate {rate}), {} waiting",
            self.samples, self.positive, self.negative, self.samples_waiting
        )?;
        writeln!(f, "tokens    {}", self.tokens)?;
        if !self.totals.is_null() {
            writeln!(f, "totals    {}", self.totals)?;
        }
        write!(f, "settings  {:#}", self.settings)
    }
}

/// JSON where it is JSON; else the text itself.
fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// One job of a store.
pub fn show(store: &Path, id: &str) -> Result<JobReport, JobsError> {
    let reader = StoreReader::open(store)?;
    let job = reader.find(id)?.ok_or_else(|| no_job(store, id))?;
    let resume = reader.resume(job.job)?;
    let delivered = || resume.groups.iter().filter(|g| g.seq.is_some());
    let sum = |of: fn(&crate::store::GroupRow) -> u64| resume.groups.iter().map(of).sum();
    Ok(JobReport {
        groups: delivered().count() as u64,
        dropped: (resume.groups.len() - delivered().count()) as u64,
        signal: delivered().filter(|g| g.signal).count() as u64,
        samples: sum(|g| g.t.into()),
        positive: sum(|g| g.positive.into()),
        negative: sum(|g| g.negative.into()),
        tokens: sum(|g| g.tokens_seen),
        samples_waiting: resume.samples.len() as u64,
        totals: job.totals.as_deref().map_or(Value::Null, json_or_text),
        settings: json_or_text(&job.accepted.settings),
        id: job.accepted.id,
        state: job.state,
        error: job.error,
        accepted_unix_s: job.accepted.accepted_unix_s,
        closed_unix_s: job.closed_unix_s,
        namespace: job.accepted.namespace,
        key: job.accepted.key,
        weights_version: job.accepted.weights_version,
        model_digest: job.accepted.model_digest,
        numerics_id: job.accepted.numerics_id,
        prompts: job.accepted.prompts,
    })
}

fn no_job(store: &Path, id: &str) -> JobsError {
    JobsError::NoJob { id: id.to_owned(), store: store.display().to_string() }
}

/// What `export` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The job's id.
    pub id: String,
    /// Where it stood.
    pub state: JobState,
    /// Groups written.
    pub groups: u64,
    /// Bytes written.
    pub bytes: u64,
    /// The file.
    pub out: PathBuf,
}

impl Display for Exported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} groups, {} bytes, of {}", self.out.display(), self.groups, self.bytes, self.id)?;
        if self.state == JobState::Open {
            write!(f, ", which is still open: more may come")?;
        }
        Ok(())
    }
}

/// Writes the delivered groups of a job as JSON lines. The file gets its name when it is complete.
pub fn export(store: &Path, id: &str, out: &Path) -> Result<Exported, JobsError> {
    let reader = StoreReader::open(store)?;
    let job = reader.find(id)?.ok_or_else(|| no_job(store, id))?;
    let cannot = |error| JobsError::Out { path: out.display().to_string(), error };
    let mut partial = out.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&partial).map_err(cannot)?);
    let mut exported = Exported { id: id.to_owned(), state: job.state, groups: 0, bytes: 0, out: out.to_owned() };
    let mut cursor = 0;
    loop {
        let groups = reader.groups_with_seq(job.job, cursor, EXPORT_AT_A_TIME)?;
        let Some((last, _)) = groups.last() else { break };
        cursor = last + 1;
        for (_, json) in &groups {
            writeln!(file, "{json}").map_err(cannot)?;
            exported.groups += 1;
            exported.bytes += json.len() as u64 + 1;
        }
    }
    file.into_inner().map_err(|e| cannot(e.into_error()))?.sync_all().map_err(cannot)?;
    std::fs::rename(&partial, out).map_err(cannot)?;
    Ok(exported)
}

/// What `prune` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pruned {
    /// Jobs deleted.
    pub jobs: u64,
    /// Days that were kept.
    pub keep_days: f64,
    /// Bytes of the store before.
    pub bytes_before: u64,
    /// Bytes after.
    pub bytes_after: u64,
}

impl Display for Pruned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} jobs closed more than {} days ago deleted; the store went from {} to {} bytes",
            self.jobs, self.keep_days, self.bytes_before, self.bytes_after
        )
    }
}

/// Deletes jobs closed more than so many days ago and gives their room back.
pub fn prune(store: &Path, keep_days: f64) -> Result<Pruned, JobsError> {
    // A reader first: a path with a typo must not become a new store.
    drop(StoreReader::open(store)?);
    let opened = Store::open(&StorePath::File(store.to_owned()))?;
    let bytes_before = opened.bytes();
    let jobs = opened.prune(keep_days)?;
    opened.vacuum()?;
    Ok(Pruned { jobs, keep_days, bytes_before, bytes_after: opened.bytes() })
}

/// Closes an open job as cancelled.
pub fn cancel(store: &Path, id: &str) -> Result<(), JobsError> {
    drop(StoreReader::open(store)?);
    let opened = Store::open(&StorePath::File(store.to_owned()))?;
    let job = opened.find(id)?.ok_or_else(|| JobsError::NoJob { id: id.to_owned(), store: store.display().to_string() })?;
    if job.state != JobState::Open {
        return Err(JobsError::Closed { id: id.to_owned(), state: job.state.name() });
    }
    let error = Some("ended by `adaroll jobs cancel`".to_owned());
    let mut totals = Totals { prompts: u64::from(job.accepted.prompts), ..Totals::default() };
    opened.resume(job.job)?.groups.iter().for_each(|row| totals.add(row));
    let totals = serde_json::to_string(&totals)?;
    let closed_unix_s = crate::rollout::unix_now();
    // Queued by the call, and written before the store is gone; then the file itself says whether it worked.
    drop(opened.close(CloseJob { job: job.job, state: JobState::Cancelled, error, totals, closed_unix_s, update_history: None }));
    drop(opened);
    match StoreReader::open(store)?.find(id)?.map(|job| job.state) {
        Some(JobState::Cancelled) => Ok(()),
        _ => Err(StoreError::Failed("the job's end could not be written; see that the disk has room".into()).into()),
    }
}

/// `2026-12-02 03:20:09` of seconds since 1970 (the civil calendar, proleptic: Howard Hinnant's days algorithm).
pub(super) fn utc(unix_s: f64) -> String {
    let seconds = unix_s.floor() as i64;
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}
