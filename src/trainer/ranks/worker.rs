//! A rank other than 0: a process that does what rank 0 asks, until its standard input ends. It holds nothing that is not computed again.

use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, channel};

use super::message::{Answer, Command, of_part, of_scores};
use super::{end_now, say};
use crate::model::backward::PackedSequence;
use crate::ops::cuda::UniqueId;
use crate::trainer::backend::Backend;
use crate::trainer::checkpoint;
use crate::trainer::part::Sample;
use crate::trainer::policy::Policy;
use crate::trainer::settings::Settings;

/// Serves rank 0 over standard input and output. It returns with an error; where the input ends it ends the process.
pub fn run() -> Result<(), String> {
    let mut output = output().map_err(|e| format!("standard output cannot be used: {e}"))?;
    let (sender, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let command = line.map_err(|e| e.to_string()).and_then(|line| serde_json::from_str(&line).map_err(|e| e.to_string()));
            if sender.send(command).is_err() {
                break;
            }
        }
        tracing::info!("rank 0 has ended, and so does this rank");
        end_now(0);
    });
    serve(&commands, &mut output).inspect_err(|problem| {
        // Who reads it is told; who is gone needs no answer.
        let _ = answer(&mut output, &Answer::Failed(problem.clone()));
    })
}

/// Standard output for answers alone: what libraries print there from now on, as NCCL does when it is asked to, goes to the log.
#[cfg(unix)]
fn output() -> std::io::Result<impl Write> {
    use std::os::fd::AsFd;
    let own = std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    // SAFETY: both are open; nothing of this process has been written to standard output.
    match unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(own),
    }
}

#[cfg(not(unix))]
fn output() -> std::io::Result<impl Write> {
    Ok(std::io::stdout())
}

fn answer(output: &mut impl Write, answer: &Answer) -> Result<(), String> {
    say(output, answer).map_err(|e| format!("rank 0 cannot be answered: {e}"))
}

/// The next command. The input's thread ends the process before the channel does.
fn next(commands: &Receiver<Result<Command, String>>) -> Result<Command, String> {
    let command = commands.recv().map_err(|_| "rank 0 has ended".to_owned())?;
    command.map_err(|e| format!("a command cannot be read: {e}"))
}

fn serve(commands: &Receiver<Result<Command, String>>, output: &mut impl Write) -> Result<(), String> {
    let Command::Open { settings, rank } = next(commands)? else { return Err("the first command is not to open".into()) };
    let settings: Settings = toml::from_str(&settings).map_err(|e| format!("the configuration cannot be read: {e}"))?;
    let settings = settings.of_rank(rank);
    let mut backend = Backend::open(&settings.model)?;
    answer(output, &Answer::Opened(backend.name()))?;
    let Command::Join { id } = next(commands)? else { return Err("the second command is not to join".into()) };
    backend.join(&id.parse::<UniqueId>()?, settings.parallel.ranks, rank)?;
    let mut policy = Policy::on(backend, &settings).map_err(|e| e.to_string())?;
    answer(output, &Answer::Ready(policy.numerics_id.clone()))?;
    loop {
        answer(output, &obey(&mut policy, next(commands)?)?)?;
    }
}

fn obey(policy: &mut Policy, command: Command) -> Result<Answer, String> {
    let failed = |e: crate::model::backward::TrainingError| e.to_string();
    Ok(match command {
        Command::Open { .. } | Command::Join { .. } => return Err("this rank is open already".into()),
        Command::Restore { checkpoint, updates } => {
            let (_, tensors) = checkpoint::read(&checkpoint, &policy.shapes()).map_err(|e| e.to_string())?;
            policy.restore(&checkpoint, &tensors, updates).map_err(failed)?;
            Answer::Restored
        }
        Command::Score { of, temperature, sequences } => {
            let sequences: Vec<PackedSequence> = sequences.into_iter().map(Into::into).collect();
            Answer::Scores(of_scores(&policy.score(&sequences, f32::from_bits(temperature), of).map_err(failed)?))
        }
        Command::Train { objective, temperature, rows } => {
            let rows: Vec<Sample> = rows.into_iter().map(Into::into).collect();
            of_part(&policy.part(&rows, &objective, f32::from_bits(temperature)).map_err(failed)?)
        }
        Command::Update { lr } => Answer::Updated(policy.update(f64::from_bits(lr)).map_err(failed)?.map(f64::to_bits)),
    })
}
