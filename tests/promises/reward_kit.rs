//! What the tests of rewards share.

use std::sync::Arc;

use adaroll::metrics::Metrics;
use adaroll::reward::{Asked, Spec, Verdict, Verifier};
use serde_json::{Value, json};

pub fn compile(reward: Value) -> Arc<Verifier> {
    Arc::new(Spec::read(&reward).unwrap().compile().unwrap())
}

pub fn judge(reward: &Value, text: &str) -> Verdict {
    Spec::read(reward).unwrap().compile().unwrap().judge(text)
}

/// Sample `index` of a prompt, with something in every field.
pub fn asked(index: u32, text: &str) -> Asked {
    Asked { job_id: "job-1".into(), prompt_id: "prompt-1".into(), index, text: text.into(), metadata: Arc::new(json!({"level": 4})) }
}

pub fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new().unwrap())
}

/// The reasons of a failure.
pub fn failure(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Failed(why) => why,
        other => panic!("{other:?} where a failure belongs"),
    }
}
