//! How long new weights take from a process that trains to one that serves, within the card's memory: hashed where they were written, copied, hashed
//! and looked through where they will serve. The trainer is this program, started again with `--hold`. What is not in the figure is the request that
//! carries the handles and the swap itself, which waits for the step that runs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::model::places::places;
use crate::ops::Ops;
use crate::ops::cuda::CudaOps;
use crate::ops::handover::{Exported, Handover};

use super::super::measure::median;
use super::rig::{check, weights};
use super::shapes::Shape;
use super::{GpuBenchError, Workload, open};

/// Weights of a model, from one process to another.
#[derive(Clone, Debug, Serialize)]
pub struct HandoverFigure {
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Time of the hashes and handles of the process that has them.
    pub export_us: f64,
    /// Time of opening, copying and verifying by the process that takes them.
    pub import_us: f64,
    /// Both.
    pub total_us: f64,
    /// What it is to stay below.
    pub target_us: Option<f64>,
}

/// 3 GB are to take at most 50 ms.
const TARGET_US_A_BYTE: f64 = 50e3 / 3e9;
/// Handovers that are measured; the medians count.
const TIMES: usize = 5;

/// What the process that holds weights says of each export.
#[derive(Serialize, Deserialize)]
struct Held {
    seconds: f64,
    exported: Exported,
}

fn failed(reason: impl std::fmt::Display) -> GpuBenchError {
    GpuBenchError::Card(format!("weights of another process: {reason}"))
}

/// Holds weights of a shape on the card, and exports them anew for each line that comes, until no more can come.
pub fn hold(workload: &Workload) -> Result<(), GpuBenchError> {
    let shape = *workload.shapes.first().ok_or_else(|| failed("no shape"))?;
    let (mut ops, _) = open(workload)?;
    let config = shape.config()?;
    let weights = weights(&ops, &config, &mut ops.noise(0.04));
    let placed = places(&config, &weights);
    check(&ops)?;
    for line in std::io::stdin().lock().lines() {
        line.map_err(failed)?;
        ops.settle();
        let began = Instant::now();
        let exported = ops.export(&placed).map_err(failed)?;
        let held = Held { seconds: began.elapsed().as_secs_f64(), exported };
        println!("{}", serde_json::to_string(&held).map_err(failed)?);
    }
    Ok(())
}

/// The other process. It ends with its input.
struct Holder {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn start(shape: Shape, workload: &Workload) -> Result<Holder, GpuBenchError> {
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["bench", "gpu", "--hold", "--shapes", shape.name]).arg(format!("--device=cuda:{}", workload.ordinal));
        if let Some(kernels) = &workload.kernels {
            command.arg("--kernels").arg(kernels);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (asks, answers) = (child.stdin.take(), child.stdout.take().ok_or_else(|| failed("no output"))?);
        Ok(Holder { child, asks, answers: BufReader::new(answers) })
    }

    fn export(&mut self) -> Result<Held, GpuBenchError> {
        let mut line = String::new();
        self.asks.as_mut().ok_or_else(|| failed("no input"))?.write_all(b"\n").map_err(failed)?;
        if self.answers.read_line(&mut line).map_err(failed)? == 0 {
            return Err(failed("the process that holds them has ended; what it said stands above"));
        }
        serde_json::from_str(&line).map_err(failed)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.asks.take());
        let _ = self.child.wait();
    }
}

/// Measures handovers of a shape's weights. `None` where there is no room for both processes' copies.
pub(super) fn measure(base: &CudaOps, shape: Shape, workload: &Workload) -> Result<Option<HandoverFigure>, GpuBenchError> {
    let config = shape.config()?;
    let ops = base.another()?;
    let bytes = 2 * config.num_parameters() as u64;
    if ops.free_memory().is_some_and(|free| 5 * bytes / 2 > free) {
        return Ok(None);
    }
    let mut holder = Holder::start(shape, workload)?;
    let times = if shape.is_tiny() { 1 } else { TIMES };
    let (mut exports, mut imports) = (Vec::new(), Vec::new());
    // The first one loads what is loaded once.
    for time in 0..=times {
        let held = holder.export()?;
        let began = Instant::now();
        let weights = ops.import(&config, &held.exported).map_err(|e| failed(format!("{e:?}")))?;
        let took = began.elapsed().as_secs_f64();
        drop(weights);
        check(&ops)?;
        if time > 0 {
            exports.push(1e6 * held.seconds);
            imports.push(1e6 * took);
        }
    }
    let (export_us, import_us) = (median(&mut exports), median(&mut imports));
    let target_us = (!shape.is_tiny()).then_some(TARGET_US_A_BYTE * bytes as f64);
    Ok(Some(HandoverFigure { bytes, export_us, import_us, total_us: export_us + import_us, target_us }))
}
