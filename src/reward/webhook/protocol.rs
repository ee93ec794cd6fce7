//! What is said to a grader and what its answer means for every sample of the call.
//!
//! Only a finite number under `reward` is a reward. Everything else is worth another call, except a status that says the request itself
//! is wrong: a redirect or a 4xx other than 429.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::transport::{Reply, Unanswered};
use crate::reward::Asked;

/// So much of an answer that cannot be used is quoted, in bytes.
const QUOTED_BYTES: usize = 200;

/// What one call came to for one sample. Sentences read on from "the grader".
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Came {
    /// A finite reward.
    Reward(f64),
    /// Nothing that can be used; another call may help, no sooner than `wait` if there is one.
    Again { why: String, wait: Option<Duration> },
    /// Another call would not help.
    Never(String),
}

/// The body of a call.
pub(super) fn body<'a>(items: impl Iterator<Item = (&'a Asked, &'a Value)>) -> Result<Vec<u8>, String> {
    #[derive(Serialize)]
    struct Item<'a> {
        job_id: &'a str,
        prompt_id: &'a str,
        index: u32,
        text: &'a str,
        metadata: &'a Value,
        data: &'a Value,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        items: Vec<Item<'a>>,
    }
    let item = |(asked, data): (&'a Asked, &'a Value)| Item {
        job_id: &asked.job_id,
        prompt_id: &asked.prompt_id,
        index: asked.index,
        text: &asked.text,
        metadata: &asked.metadata,
        data,
    };
    serde_json::to_vec(&Body { items: items.map(item).collect() }).map_err(|error| format!("cannot be told of the samples: {error}"))
}

/// What an answer means for each of the `count` samples of its call.
pub(super) fn read(answer: Result<Reply, Unanswered>, count: usize) -> Vec<Came> {
    let again = |why: String, wait| vec![Came::Again { why, wait }; count];
    let reply = match answer {
        Ok(reply) => reply,
        Err(Unanswered(why)) => return again(why, None),
    };
    let quoted = || match reply.body.is_empty() {
        true => String::new(),
        false => format!(": {}", String::from_utf8_lossy(&reply.body[..reply.body.len().min(QUOTED_BYTES)])),
    };
    let status = reply.status;
    match status {
        200..=299 => {}
        429 | 500..=599 => return again(format!("answered {status}{}", quoted()), reply.retry_after),
        300..=399 => return vec![Came::Never(format!("answered {status}; redirects are not followed, give the address itself")); count],
        _ => return vec![Came::Never(format!("answered {status}{}", quoted())); count],
    }
    #[derive(Deserialize)]
    struct Answer {
        rewards: Vec<Value>,
    }
    match serde_json::from_slice::<Answer>(&reply.body) {
        Err(error) => again(format!("gave no {{\"rewards\": [...]}} ({error}){}", quoted()), None),
        Ok(Answer { rewards }) if rewards.len() != count => again(format!("gave {} rewards for {count} samples", rewards.len()), None),
        Ok(Answer { rewards }) => rewards.iter().map(read_one).collect(),
    }
}

fn read_one(reward: &Value) -> Came {
    let again = |why: String| Came::Again { why, wait: None };
    let shown = |value: &Value| value.to_string().chars().take(QUOTED_BYTES).collect::<String>();
    match (reward.get("reward"), reward.get("error")) {
        (_, Some(error)) if !error.is_null() => again(format!("reported the error {}", shown(error))),
        (Some(Value::Number(number)), _) => match number.as_f64().filter(|reward| reward.is_finite()) {
            Some(reward) => Came::Reward(reward),
            None => again(format!("gave the reward {number}, which is out of range")),
        },
        _ => again(format!("gave {} where {{\"reward\": NUMBER}} or {{\"error\": \"why\"}} belongs", shown(reward))),
    }
}
