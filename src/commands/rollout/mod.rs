//! `adaroll rollout`: sends a file of prompts to a server as one job and writes the groups that come back.
//!
//! [`args`] and [`prompts`] make the request, [`follow`] sends it and follows its stream across broken connections, [`output`] writes each
//! group as one whole line, [`tally`] counts what is shown while it runs ([`progress`]) and at the end. The job always has an id and a seed,
//! so sending it again attaches to it and the same groups come back.

pub mod args;
pub mod follow;
pub mod output;
pub mod progress;
pub mod prompts;
pub mod tally;

use std::future::Future;
use std::time::{Duration, Instant};

use serde_json::Value;

pub use args::RolloutArgs;
pub use progress::Progress;
pub use tally::{GroupHead, Tally};

use follow::{Connection, Event, Follower};
use output::Output;

/// Why a rollout ended without all of its groups. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// An argument, or a line of the prompts file.
    #[error("{0}")]
    Input(String),
    /// The server refused the request.
    #[error("the server refused the job ({status} {code}): {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The error's code.
        code: String,
        /// Its sentence, with the line of the prompts file where it is about a prompt.
        message: String,
    },
    /// No connection for too long.
    #[error("{problem}; gave up after {} s. The job goes on if the server has it: run the same command with --job-id {job_id} --resume", patience.as_secs())]
    Unreachable {
        /// What went wrong last.
        problem: String,
        /// The job.
        job_id: String,
        /// How long it was tried.
        patience: Duration,
    },
    /// The server sent something else than a job's stream.
    #[error("{0}; is this an adaroll server of this version?")]
    Protocol(String),
    /// The output file.
    #[error("{0}")]
    Output(String),
    /// Ctrl-C.
    #[error(
        "interrupted after {groups} groups. The job goes on: run the same command with --job-id {job_id} --resume, or end it with DELETE /v1/rollouts/{job_id}"
    )]
    Interrupted {
        /// The job.
        job_id: String,
        /// Groups written.
        groups: u64,
    },
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The job's id.
    pub job_id: String,
    /// `done`, `failed` or `cancelled`.
    pub state: String,
    /// Why it failed.
    pub error: Option<String>,
    /// Its groups.
    pub tally: Tally,
    /// Seconds that it took.
    pub took: Duration,
    /// Times that the connection was made again.
    pub reconnects: u32,
}

impl Summary {
    /// Whether every group is there.
    pub fn is_done(&self) -> bool {
        self.state == "done"
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {} is {}", self.job_id, self.state)?;
        if let Some(error) = &self.error {
            write!(f, ": {error}")?;
        }
        if self.reconnects > 0 {
            write!(f, " (connected again {} times)", self.reconnects)?;
        }
        write!(f, "\n{}", self.tally.report(self.took))
    }
}

/// Runs a job to its end. `interrupt` ends the command early; the job then goes on.
pub async fn run(args: &RolloutArgs, mut progress: Progress, interrupt: impl Future<Output = ()>) -> Result<Summary, RolloutError> {
    let file = prompts::read(args)?;
    let mut output = Output::open(&args.out, args.resume, args.overwrite)?;
    let request = args.request(file.prompts.clone())?;
    let connection = Connection { server: args.server.clone(), token: args.token.clone(), patience: Duration::from_secs(args.patience_s) };
    connection.base().map_err(|problem| RolloutError::Input(format!("--{problem}")))?;
    let mut follower = Follower::new(&connection, request, file.lines)?;
    let started = Instant::now();
    let mut tally = Tally::new(file.prompts.len() as u64);
    for head in output.found() {
        tally.add(head);
    }
    let job_id = follower.job_id().to_owned();
    let mut interrupt = std::pin::pin!(interrupt);
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    let end: Value = loop {
        let event = tokio::select! {
            event = follower.next() => event?,
            _ = tick.tick() => {
                progress.show(&tally, started.elapsed());
                continue;
            }
            () = &mut interrupt => return Err(RolloutError::Interrupted { job_id, groups: tally.groups }),
        };
        match event {
            Event::Job(_) => {}
            Event::Group(line) => {
                let head: GroupHead = serde_json::from_str(&line)
                    .map_err(|e| RolloutError::Protocol(format!("the server sent a line that is no group: {e}")))?;
                // A server that has lost the job starts it again and sends every group again.
                if output.write(&head.prompt_id, &line)? {
                    tally.add(&head);
                }
            }
            Event::End(end) => break end,
        }
        progress.show(&tally, started.elapsed());
    };
    progress.finish();
    output.finish()?;
    let text = |name: &str| end.get(name).and_then(Value::as_str).map(str::to_owned);
    Ok(Summary {
        job_id,
        state: text("state").unwrap_or_else(|| "unknown".into()),
        error: text("error"),
        tally,
        took: started.elapsed(),
        reconnects: follower.reconnects(),
    })
}
