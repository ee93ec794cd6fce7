//! Checkpoints: everything that a run needs to go on as if it had never stopped.
//!
//! `checkpoints/step-000120/` holds `state.json` (counts, cursor, lengths of the logs), `optimizer.safetensors` (f32 master parameters and
//! AdamW's two moments) and `model/`, a Hugging Face folder of the serving weights. It is written beside the others under another name,
//! synced, and renamed: a folder with that name is whole. Where a run goes on, what a crash left half written is removed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::learner::ServingTensor;
use crate::failpoint::{self, Point};
use crate::model::params::{Param, Params};
use crate::model::safetensors_writer::write_safetensors;
use crate::model::{Dtype, SafetensorsFile, TensorView};

/// The counts of a run after a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Steps done.
    pub step: u64,
    /// Optimizer updates done.
    pub updates: u64,
    /// Lines of the data taken.
    pub cursor: u64,
    /// Samples that strategies saw.
    pub samples: u64,
    /// Rows trained on.
    pub rows: u64,
    /// Samples per prompt, decayed: how many prompts the next step asks for.
    pub samples_per_prompt: Option<f64>,
    /// Share of groups with contrast, decayed: how many `dapo` waits for.
    pub signal_share: Option<f64>,
    /// Bytes of metrics.jsonl.
    pub metrics_bytes: u64,
    /// Bytes of timings.jsonl.
    pub timings_bytes: u64,
    /// The step that was sampled ahead: prompt ids in request order and the groups as they came.
    pub ahead: Option<Ahead>,
    /// Backend and kernels; going on under others is another run, and said so.
    pub numerics_id: String,
    /// The configuration, as TOML.
    pub settings: String,
}

/// A sampled step that is not trained on yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ahead {
    /// Prompt ids in request order, of each job of the step.
    pub ids: Vec<Vec<String>>,
    /// Groups as they came, of each job.
    pub groups: Vec<Vec<String>>,
    /// Samples charged.
    pub samples: u64,
    /// Groups dropped.
    pub dropped: u64,
    /// Lines of the data that it took.
    pub taken: u64,
    /// Step whose weights sampled it.
    pub sampled_at: u64,
}

/// What AdamW keeps of every parameter.
#[derive(Clone, Debug)]
pub struct Tensors {
    /// Master parameters.
    pub master: Params,
    /// First moments.
    pub first: Params,
    /// Second moments.
    pub second: Params,
}

/// The folder of a run's checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    keep: usize,
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system.
    #[error("{}: {error}; check the disk and its permissions", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
    /// What was read makes no sense.
    #[error("{}: {problem}; remove this folder to go on from an earlier checkpoint", path.display())]
    Damaged {
        /// Where.
        path: PathBuf,
        /// What.
        problem: String,
    },
}

fn io_at(path: &Path) -> impl Fn(io::Error) -> CheckpointError + '_ {
    move |error| CheckpointError::Io { path: path.to_owned(), error }
}

const PREFIX: &str = "step-";
const UNFINISHED: &str = "unfinished-";

impl Checkpoints {
    /// The checkpoints below `run`; at most `keep` are kept. What a crash left half written is removed.
    pub fn open(run: &Path, keep: usize) -> Result<Self, CheckpointError> {
        let dir = run.join("checkpoints");
        fs::create_dir_all(&dir).map_err(io_at(&dir))?;
        for entry in fs::read_dir(&dir).map_err(io_at(&dir))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                fs::remove_dir_all(entry.path()).map_err(io_at(&entry.path()))?;
            }
        }
        Ok(Checkpoints { dir, keep })
    }

    /// Steps that have a checkpoint, ascending.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let entries = fs::read_dir(&self.dir).map_err(io_at(&self.dir))?;
        let mut steps: Vec<u64> =
            entries.flatten().filter_map(|e| e.file_name().to_string_lossy().strip_prefix(PREFIX)?.parse().ok()).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The folder of a step's checkpoint.
    pub fn path(&self, step: u64) -> PathBuf {
        self.dir.join(format!("{PREFIX}{step:06}"))
    }

    /// Writes a checkpoint, then drops those that are too many.
    pub fn write(
        &self,
        state: &State,
        tensors: &Tensors,
        export: impl FnOnce(&Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let unfinished = self.dir.join(format!("{UNFINISHED}{}", state.step));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(io_at(&unfinished))?;
        }
        failpoint::visit(Point::CheckpointBeforeFiles);
        fs::create_dir_all(&unfinished).map_err(io_at(&unfinished))?;
        let path = unfinished.join("optimizer.safetensors");
        write_synced(&path, &optimizer_bytes(tensors)).map_err(io_at(&path))?;
        let path = unfinished.join("state.json");
        let text = serde_json::to_string_pretty(state).map_err(|e| io_at(&path)(e.into()))?;
        write_synced(&path, text.as_bytes()).map_err(io_at(&path))?;
        export(&unfinished.join("model"))?;
        sync_dir(&unfinished).map_err(io_at(&unfinished))?;
        failpoint::visit(Point::CheckpointBeforeRename);
        let place = self.path(state.step);
        if place.exists() {
            // Written by an earlier life of the run, which then fell back further; it holds the same.
            fs::remove_dir_all(&place).map_err(io_at(&place))?;
        }
        fs::rename(&unfinished, &place).map_err(io_at(&place))?;
        sync_dir(&self.dir).map_err(io_at(&self.dir))?;
        failpoint::visit(Point::CheckpointAfterRename);
        let steps = self.steps()?;
        for step in steps.iter().filter(|&&step| step <= state.step).rev().skip(self.keep) {
            let old = self.path(*step);
            fs::remove_dir_all(&old).map_err(io_at(&old))?;
        }
        Ok(())
    }

    /// The last checkpoint, if there is one; `shape` has the names and shapes of the trained parameters.
    pub fn read_last(&self, shape: &Params<()>) -> Result<Option<(State, Tensors)>, CheckpointError> {
        self.steps()?.pop().map(|step| read(&self.path(step), shape)).transpose()
    }
}

/// Reads the checkpoint in a folder; `shape` has the names and shapes of the trained parameters.
pub fn read(dir: &Path, shape: &Params<()>) -> Result<(State, Tensors), CheckpointError> {
    let damaged = |path: PathBuf| move |problem: String| CheckpointError::Damaged { path, problem };
    let path = dir.join("state.json");
    let text = fs::read_to_string(&path).map_err(io_at(&path))?;
    let state: State = serde_json::from_str(&text).map_err(|e| damaged(path)(e.to_string()))?;
    let path = dir.join("optimizer.safetensors");
    let file = SafetensorsFile::open(&path).map_err(|e| damaged(path.clone())(e.to_string()))?;
    let read = |part: &str| -> Result<Params, CheckpointError> {
        let mut params = shape.map(|_| Vec::new());
        for param in &mut params.entries {
            let tensor = file.tensor(&format!("{part}.{}", param.name)).map_err(|e| damaged(path.clone())(e.to_string()))?;
            if tensor.dtype != Dtype::F32 || tensor.shape != param.shape {
                return Err(damaged(path.clone())(format!("{} has another type or shape than the model", tensor.name)));
            }
            param.values = tensor.to_f32();
        }
        Ok(params)
    };
    Ok((state, Tensors { master: read("master")?, first: read("first")?, second: read("second")? }))
}

fn optimizer_bytes(tensors: &Tensors) -> Vec<u8> {
    let parts = [("master", &tensors.master), ("first", &tensors.first), ("second", &tensors.second)];
    let named: Vec<(String, &Param)> =
        parts.iter().flat_map(|(part, params)| params.entries.iter().map(move |p| (format!("{part}.{}", p.name), p))).collect();
    let bytes: Vec<Vec<u8>> = named.iter().map(|(_, p)| p.values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views: Vec<TensorView<'_>> =
        named.iter().zip(&bytes).map(|((name, p), bytes)| TensorView { name, dtype: Dtype::F32, shape: p.shape.clone(), bytes }).collect();
    serialized(&views)
}

/// A safetensors file in memory.
fn serialized(views: &[TensorView<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(views.iter().map(|view| view.bytes.len() + 256).sum());
    // Memory takes what is written to it.
    let _ = write_safetensors(&mut bytes, views);
    bytes
}

/// Tensors of one type as one safetensors file.
pub fn file_bytes(tensors: &[ServingTensor], dtype: Dtype) -> Vec<u8> {
    let views = tensors.iter().map(|t| TensorView { name: &t.name, dtype, shape: t.shape.clone(), bytes: &t.bytes });
    serialized(&views.collect::<Vec<_>>())
}

/// Writes `dir` as a Hugging Face folder: the files of `from` that are not weights, and these weights.
pub fn export(from: &Path, weights: &[u8], dir: &Path) -> Result<(), CheckpointError> {
    fs::create_dir_all(dir).map_err(io_at(dir))?;
    for entry in fs::read_dir(from).map_err(io_at(from))?.flatten() {
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let is_text = [".json", ".jinja", ".txt", ".model"].iter().any(|ending| text.ends_with(ending));
        if is_text && !text.ends_with(".safetensors.index.json") {
            let path = dir.join(&name);
            let bytes = fs::read(entry.path()).map_err(io_at(&entry.path()))?;
            write_synced(&path, &bytes).map_err(io_at(&path))?;
        }
    }
    let path = dir.join("model.safetensors");
    write_synced(&path, weights).map_err(io_at(&path))?;
    sync_dir(dir).map_err(io_at(dir))
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
