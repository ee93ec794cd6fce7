//! What the tests of rewards share.

use std::sync::Arc;

use adaroll::metrics::Metrics;
use adaroll::reward::{Asked, Judgement, Spec, Verdict, Verifier};
use serde_json::{Value, json};

pub fn compile(reward: Value) -> Arc<Verifier> {
    Arc::new(Spec::read(&reward).unwrap().compile().unwrap())
}

pub fn judge(reward: &Value, text: &str) -> Verdict {
    Spec::read(reward).unwrap().compile().unwrap().judge(text).verdict
}

/// Sample `index` of a prompt, with something in every field.
pub fn asked(index: u32, text: &str) -> Asked {
    Asked {
        job_id: "job-1".into(),
        prompt_id: "prompt-1".into(),
        index,
        text: text.into(),
        tokens: 7,
        metadata: Arc::new(json!({"level": 4})),
    }
}

/// A judgement that shows nothing but the reward.
pub fn scored(reward: f64) -> Judgement {
    Judgement::bare(Verdict::Scored(reward))
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
