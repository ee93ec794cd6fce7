//! Requests in, tokens out.
//!
//! One loop on its own thread, three calls a step: schedule, run, postprocess. On a device that answers one step late, a step is scheduled and
//! launched before the one before it is postprocessed. The handle in [`api`] is the only way in: plain
//! structs go in, a stream of events comes out.

pub mod api;
mod asks;
pub mod blocks;
pub mod detokenize;
mod local;
mod output;
mod runner;
pub mod scheduler;
mod settings;
pub mod weights;

pub use api::{
    CancelAck, Engine, EngineInfo, EngineStats, Event, FinishReason, RequestId, Sample, SampleRequest, SampleStream, SamplingParams,
    ScoreRequest, Scores, StopMatch, StreamKey, SubmitError, VersionSpan,
};
pub use local::LocalEngine;
pub use settings::EngineSettings;
pub use weights::{StageError, Swapped};
