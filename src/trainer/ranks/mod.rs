//! Data parallel training over the GPUs of a node: one process a GPU, each with the whole model, each with one part of every update's rows.
//!
//! Rank 0 is the run itself: server, data, checkpoints and journals are its alone. It starts the others ([`worker`]) as children of the same binary
//! and speaks with them over their standard input and output ([`message`]). Gradients go from GPU to GPU; all ranks then take the same optimizer
//! step, so their weights stay the same, and rank 0 checks after every update that the norms of the gradient have the same bits.
//!
//! Nothing outlives anything: a worker ends with its input, which ends with rank 0, and a worker's death ends the run. A thread of rank 0 reads each
//! worker's answers; where they end too early it gives up the communicator, so that nothing waits for the dead, and where rank 0 has not come to its
//! own end within [`GRACE`] it ends the process. A run may be killed at any time, so this loses nothing.

mod message;
pub mod worker;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command as Process, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use message::{Answer, Command, WireRow, to_part, to_scores};

use super::backend::Backend;
use super::part::{Objective, Part, Sample};
use super::policy::{Of, PolicyError};
use super::settings::Settings;
use crate::model::backward::{PackedSequence, TokenScore, TrainingError};
use crate::ops::cuda::{Communicator, UniqueId};

/// How long rank 0 has to end by itself once a rank has died.
const GRACE: Duration = Duration::from_secs(5);
/// How long after the first sign of a death it may be before its cause is known.
const LATE: Duration = Duration::from_secs(2);
/// How long a complaint of a rank waits for a death that it may come from.
const COMPLAINT: Duration = Duration::from_millis(500);
/// How long a worker has to end once its input has.
const FAREWELL: Duration = Duration::from_secs(2);

/// The other ranks, as rank 0 has them.
pub struct Ranks {
    workers: Vec<Worker>,
    watch: Arc<Watch>,
}

struct Worker {
    input: Option<ChildStdin>,
    answers: Receiver<Answer>,
    child: Arc<Mutex<Child>>,
}

/// What the threads that read answers share with rank 0.
#[derive(Default)]
struct Watch {
    /// Why the first rank that died did so.
    failure: Mutex<Option<String>>,
    communicator: Mutex<Option<Communicator>>,
    /// Rank 0 has come to its end.
    over: AtomicBool,
}

impl Ranks {
    /// Starts the ranks of a run, and connects them and `backend`, which is rank 0's. They load their model meanwhile; [`Ranks::ready`] waits for
    /// that.
    pub fn start(settings: &Settings, backend: &mut Backend) -> Result<Ranks, PolicyError> {
        let refused = |problem: String| PolicyError::Setting(format!("parallel.ranks: {problem}"));
        // Asked first: without NCCL nothing is started.
        let id = UniqueId::new().map_err(|e| refused(e.to_string()))?;
        let text = toml::to_string(settings).map_err(|e| refused(format!("the configuration cannot be told to them: {e}")))?;
        let watch = Arc::new(Watch::default());
        let mut ranks = Ranks { workers: Vec::new(), watch };
        let count = settings.parallel.ranks;
        for rank in 1..count {
            let worker = Worker::start(rank, &settings.run.dir, &ranks.watch);
            ranks.workers.push(worker.map_err(|e| refused(format!("rank {rank} cannot be started: {e}")))?);
            ranks.tell(rank, &Command::Open { settings: text.clone(), rank })?;
        }
        for rank in 1..count {
            match ranks.hear(rank)? {
                Answer::Opened(device) => tracing::info!("rank {rank} computes on {device}"),
                other => return Err(ranks.confused(rank, &other).into()),
            }
        }
        ranks.tell_all(&Command::Join { id: id.to_string() })?;
        let communicator = backend.join(&id, count, 0).map_err(|problem| ranks.blame(TrainingError::Device(problem)))?;
        *lock(&ranks.watch.communicator) = Some(communicator);
        Ok(ranks)
    }

    /// Waits until all have loaded the model, and checks that they compute alike.
    pub fn ready(&self, numerics_id: &str) -> Result<(), PolicyError> {
        for rank in 1..=self.workers.len() {
            match self.hear(rank)? {
                Answer::Ready(id) if id == numerics_id => {}
                Answer::Ready(id) => {
                    return Err(PolicyError::Setting(format!(
                        "parallel.gpus: rank {rank} computes with {id} and rank 0 with {numerics_id}: all ranks need GPUs of one kind"
                    )));
                }
                other => return Err(self.confused(rank, &other).into()),
            }
        }
        Ok(())
    }

    /// Processes, rank 0 included.
    pub fn count(&self) -> usize {
        1 + self.workers.len()
    }

    /// Asks a rank for scores.
    pub fn ask_scores(&mut self, rank: usize, sequences: &[PackedSequence], temperature: f32, of: Of) -> Result<(), TrainingError> {
        let sequences = sequences.iter().map(Into::into).collect();
        self.tell(rank, &Command::Score { of, temperature: temperature.to_bits(), sequences })
    }

    /// The scores that it was asked for.
    pub fn scores(&self, rank: usize) -> Result<Vec<Vec<TokenScore>>, TrainingError> {
        match self.hear(rank)? {
            Answer::Scores(scores) => Ok(to_scores(scores)),
            other => Err(self.confused(rank, &other)),
        }
    }

    /// Gives a rank its part of an update.
    pub fn ask_part(&mut self, rank: usize, rows: &[Sample], objective: &Objective, temperature: f32) -> Result<(), TrainingError> {
        let rows: Vec<WireRow> = rows.iter().map(Into::into).collect();
        self.tell(rank, &Command::Train { objective: objective.clone(), temperature: temperature.to_bits(), rows })
    }

    /// What its part came to.
    pub fn part(&self, rank: usize) -> Result<Part, TrainingError> {
        match self.hear(rank)? {
            Answer::Trained { sums, scores } => Ok(to_part(sums, scores)),
            other => Err(self.confused(rank, &other)),
        }
    }

    /// Asks all ranks to take the optimizer's step. They wait within it until rank 0 takes it too.
    pub fn ask_update(&mut self, lr: f64) -> Result<(), TrainingError> {
        self.tell_all(&Command::Update { lr: lr.to_bits() })
    }

    /// Checks that every rank's gradient had the norm of rank 0's.
    pub fn agree(&self, norm: Option<f64>) -> Result<(), TrainingError> {
        for rank in 1..=self.workers.len() {
            match self.hear(rank)? {
                Answer::Updated(theirs) if theirs == norm.map(f64::to_bits) => {}
                Answer::Updated(theirs) => {
                    let shown = |norm: Option<f64>| norm.map_or("not finite".to_owned(), |norm| format!("{norm:e}"));
                    let (theirs, ours) = (shown(theirs.map(f64::from_bits)), shown(norm));
                    return Err(TrainingError::Device(format!(
                        "the norm of the gradient is {theirs} on rank {rank} and {ours} on rank 0: their weights are not the same any more, which \
                         is a fault of a GPU or of this program. Run the same command again: it goes on from the last checkpoint"
                    )));
                }
                other => return Err(self.confused(rank, &other)),
            }
        }
        Ok(())
    }

    /// Goes on from a checkpoint.
    pub fn restore(&mut self, checkpoint: &Path, updates: u64) -> Result<(), TrainingError> {
        self.tell_all(&Command::Restore { checkpoint: checkpoint.to_owned(), updates })?;
        for rank in 1..=self.workers.len() {
            match self.hear(rank)? {
                Answer::Restored => {}
                other => return Err(self.confused(rank, &other)),
            }
        }
        Ok(())
    }

    /// The cause of an error in what all ranks do together: the rank that died, if one did.
    pub fn blame(&self, error: TrainingError) -> TrainingError {
        // The connection between GPUs may break before the end of the process is seen.
        let begun = Instant::now();
        loop {
            if let Some(failure) = lock(&self.watch.failure).clone() {
                return TrainingError::Device(failure);
            }
            if begun.elapsed() >= LATE {
                return error;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn tell_all(&mut self, command: &Command) -> Result<(), TrainingError> {
        (1..=self.workers.len()).try_for_each(|rank| self.tell(rank, command))
    }

    fn tell(&mut self, rank: usize, command: &Command) -> Result<(), TrainingError> {
        let Some(input) = &mut self.workers[rank - 1].input else { return Err(self.died(rank)) };
        match say(input, command) {
            Ok(()) => Ok(()),
            // Its last words come with its end.
            Err(_) => Err(self.hear(rank).err().unwrap_or_else(|| self.died(rank))),
        }
    }

    fn hear(&self, rank: usize) -> Result<Answer, TrainingError> {
        self.workers[rank - 1].answers.recv().map_err(|_| self.died(rank))
    }

    fn died(&self, rank: usize) -> TrainingError {
        self.blame(TrainingError::Device(format!("rank {rank} has ended")))
    }

    fn confused(&self, rank: usize, answer: &Answer) -> TrainingError {
        let answer = format!("{answer:?}");
        let answer: String = answer.chars().take(60).collect();
        TrainingError::Device(format!("rank {rank} answers something else than it was asked ({answer}); is the binary being replaced?"))
    }
}

impl Drop for Ranks {
    /// Ends them. What a thread says of their ends is no failure from now on.
    fn drop(&mut self) {
        self.watch.over.store(true, Ordering::SeqCst);
        self.workers.iter_mut().for_each(|worker| worker.input = None);
        for worker in &self.workers {
            let begun = Instant::now();
            while begun.elapsed() < FAREWELL && matches!(lock(&worker.child).try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = lock(&worker.child).kill();
            let _ = lock(&worker.child).wait();
        }
    }
}

impl Worker {
    fn start(rank: usize, dir: &Path, watch: &Arc<Watch>) -> std::io::Result<Worker> {
        let log = dir.join(format!("rank-{rank}.log"));
        let mut process = Process::new(std::env::current_exe()?);
        process.args(["train", "--worker"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        // Ctrl-C is for rank 0, which may want a checkpoint first.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut process, 0);
        let mut child = process.spawn()?;
        let missing = || std::io::Error::other("it has no standard input or output");
        let (input, output) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let child = Arc::new(Mutex::new(child));
        let (sender, answers) = channel();
        let reader = Reader { rank, log, child: child.clone(), watch: watch.clone() };
        std::thread::Builder::new().name(format!("rank-{rank}")).spawn(move || reader.read(output, &sender))?;
        Ok(Worker { input: Some(input), answers, child })
    }
}

/// The thread that reads a worker's answers.
struct Reader {
    rank: usize,
    log: PathBuf,
    child: Arc<Mutex<Child>>,
    watch: Arc<Watch>,
}

impl Reader {
    fn read(self, output: ChildStdout, answers: &Sender<Answer>) {
        let mut reason = None;
        for line in BufReader::new(output).lines() {
            match line.map_err(|e| e.to_string()).and_then(|line| serde_json::from_str(&line).map_err(|e| e.to_string())) {
                Ok(Answer::Failed(why)) => reason = Some(why),
                Ok(answer) => {
                    if answers.send(answer).is_err() {
                        break;
                    }
                }
                Err(e) => reason = Some(format!("it answered something that cannot be read: {e}")),
            }
            if reason.is_some() {
                break;
            }
        }
        if self.watch.over.load(Ordering::SeqCst) {
            return;
        }
        let Reader { rank, log, .. } = &self;
        let failure = match reason {
            Some(why) => {
                std::thread::sleep(COMPLAINT);
                format!("rank {rank}: {why}")
            }
            None => {
                let status = lock(&self.child).wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                let words = std::fs::read_to_string(log).ok().and_then(|text| text.trim_end().lines().last().map(str::to_owned));
                let words =
                    words.filter(|words| !words.is_empty()).map_or("it left no words".into(), |words| format!("its last words: {words}"));
                format!(
                    "rank {rank} has ended ({status}); {words}. See {}, and run the same command to go on from the last checkpoint",
                    log.display()
                )
            }
        };
        let failure = lock(&self.watch.failure).get_or_insert(failure).clone();
        // In a thread of its own: it may take locks that whoever waits for the dead rank holds.
        let (watch, why) = (self.watch.clone(), failure.clone());
        std::thread::spawn(move || {
            if let Some(communicator) = lock(&watch.communicator).clone() {
                communicator.abort(&why);
            }
        });
        let watch = self.watch.clone();
        std::thread::spawn(move || {
            std::thread::sleep(GRACE);
            if !watch.over.load(Ordering::SeqCst) {
                eprintln!("error: {failure}");
                end_now(1);
            }
        });
        // The answers end when this returns: whoever waits for one is told.
    }
}

/// Ends the process without waiting for anything: other threads may hang within the driver.
fn end_now(code: i32) -> ! {
    #[cfg(unix)]
    // SAFETY: it ends the process, and touches no memory of it.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// Writes a message as one line.
fn say(to: &mut impl Write, message: &impl serde::Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
