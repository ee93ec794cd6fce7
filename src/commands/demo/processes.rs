//! The demonstration's processes: a server and a trainer, as a user would start them, with their output in files.
//!
//! They are in process groups of their own, so Ctrl-C in the terminal reaches the demonstration alone, which then ends them; should it be
//! killed itself, the system ends them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::ops::cuda::compile::{KERNELS_VARIABLE, NVRTC_VARIABLE};

/// How long a process may take to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process that ends with this value.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts this very program with these arguments; what it prints goes to `log`.
    pub fn start(arguments: &[String], log: &Path) -> io::Result<Self> {
        let out = File::create(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        // The demonstration's processes have no secrets and no settings from outside, but for where a GPU's kernels come from.
        for (name, _) in std::env::vars_os() {
            let is_ours = name.to_string_lossy().starts_with("ADAROLL_");
            if is_ours && name != KERNELS_VARIABLE && name != NVRTC_VARIABLE {
                command.env_remove(name);
            }
        }
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        #[cfg(target_os = "linux")]
        {
            use std::os::unix::process::CommandExt;
            // SAFETY: prctl is async-signal-safe and takes plain numbers; nothing else runs between fork and exec.
            unsafe {
                command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                });
            }
        }
        Ok(Process { child: command.spawn()?, log: log.to_owned() })
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// The last lines of its output.
    pub fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Asks it to end, and ends it if it does not.
    pub fn stop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        #[cfg(unix)]
        // SAFETY: kill takes plain numbers; the process has not been waited for, so its id is still its own.
        unsafe {
            libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}
