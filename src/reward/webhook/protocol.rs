//! What is said to a grader and what its answer means for every sample of the call.
//!
//! Samples and answers are matched by id, never by position. A finite `reward`, or a `verdict` that says it all, is a reward; a grader
//! may also say that the answer is too large (`limit`) or that its own reference is no good (`bad_gold`). Everything else is worth another
//! call, except a status that says the request itself is wrong: a redirect or a 4xx other than 429.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::transport::{Reply, Unanswered};
use crate::reward::{Asked, Found, Judgement, Ruling, Verdict};

/// So much of an answer that cannot be used is quoted, in bytes.
const QUOTED_BYTES: usize = 200;
/// Longest rule of a grader that is passed on, in characters.
const RULE_CHARS: usize = 200;

/// What one call came to for one sample. Sentences read on from "the grader".
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Came {
    /// The grader has judged.
    Judged(Judgement),
    /// Nothing that can be used; another call may help, no sooner than `wait` if there is one.
    Again { why: String, wait: Option<Duration> },
    /// Another call would not help.
    Never(String),
}

impl Came {
    fn again(why: impl Into<String>) -> Self {
        Came::Again { why: why.into(), wait: None }
    }
}

/// The names of a call's samples, `job/prompt/index`. One that is there already (two parts of one reward ask the same grader) gets a number,
/// which no such name ends with by itself.
pub(super) fn ids<'a>(samples: impl Iterator<Item = &'a Asked>) -> Vec<String> {
    let mut times: HashMap<String, usize> = HashMap::new();
    let named = samples.map(|asked| {
        let id = format!("{}/{}/{}", asked.job_id, asked.prompt_id, asked.index);
        let times = times.entry(id.clone()).or_default();
        *times += 1;
        if *times == 1 { id } else { format!("{id}#{times}") }
    });
    named.collect()
}

/// The body of a call of these samples, which may take so long.
pub(super) fn body<'a>(
    deadline: Duration,
    ids: &'a [String],
    samples: impl Iterator<Item = (&'a Asked, &'a Value)>,
) -> Result<Vec<u8>, String> {
    #[derive(Serialize)]
    struct Item<'a> {
        id: &'a str,
        job_id: &'a str,
        prompt_id: &'a str,
        index: u32,
        text: &'a str,
        metadata: &'a Value,
        data: &'a Value,
    }
    #[derive(Serialize)]
    struct Body<'a> {
        deadline_s: f64,
        items: Vec<Item<'a>>,
    }
    let item = |(id, (asked, data)): (&'a String, (&'a Asked, &'a Value))| Item {
        id,
        job_id: &asked.job_id,
        prompt_id: &asked.prompt_id,
        index: asked.index,
        text: &asked.text,
        metadata: &asked.metadata,
        data,
    };
    let body = Body { deadline_s: deadline.as_secs_f64(), items: ids.iter().zip(samples).map(item).collect() };
    serde_json::to_vec(&body).map_err(|error| format!("cannot be told of the samples: {error}"))
}

/// What an answer means for each of the samples that were sent under these ids.
pub(super) fn read(answer: Result<Reply, Unanswered>, ids: &[String]) -> Vec<Came> {
    let all = |came: Came| vec![came; ids.len()];
    let reply = match answer {
        Ok(reply) => reply,
        Err(Unanswered(why)) => return all(Came::again(why)),
    };
    let quoted = || match reply.body.is_empty() {
        true => String::new(),
        false => format!(": {}", String::from_utf8_lossy(&reply.body[..reply.body.len().min(QUOTED_BYTES)])),
    };
    let status = reply.status;
    match status {
        200..=299 => {}
        429 | 500..=599 => return all(Came::Again { why: format!("answered {status}{}", quoted()), wait: reply.retry_after }),
        300..=399 => return all(Came::Never(format!("answered {status}; redirects are not followed, give the address itself"))),
        _ => return all(Came::Never(format!("answered {status}{}", quoted()))),
    }
    #[derive(Deserialize)]
    struct Answer {
        items: Vec<Value>,
    }
    match serde_json::from_slice::<Answer>(&reply.body) {
        Err(error) => all(Came::again(format!("gave no {{\"items\": [...]}} ({error}){}", quoted()))),
        Ok(Answer { items }) => matched(ids, &items),
    }
}

/// Gives every sample what was said under its id.
fn matched(ids: &[String], items: &[Value]) -> Vec<Came> {
    let places: HashMap<&str, usize> = ids.iter().enumerate().map(|(place, id)| (id.as_str(), place)).collect();
    let mut came: Vec<Option<Came>> = vec![None; ids.len()];
    let mut strangers = items.iter().filter(|item| place_of(&places, item).is_none());
    if let Some(first) = strangers.next() {
        let (count, shown) = (1 + strangers.count(), shown(first));
        tracing::warn!(
            "a grader's answer holds {count} items without the id of a sample of the call; they are passed over. The first: {shown}"
        );
    }
    for item in items {
        let Some(place) = place_of(&places, item) else { continue };
        let said = read_one(item);
        came[place] = Some(match came[place].take() {
            Some(before) if before != said => Came::again(format!("gave two different items for the id {:?}", ids[place])),
            _ => said,
        });
    }
    let missing = |id: &String| Came::again(format!("gave no item for the id {id:?} among its {}", items.len()));
    came.into_iter().zip(ids).map(|(came, id)| came.unwrap_or_else(|| missing(id))).collect()
}

fn place_of(places: &HashMap<&str, usize>, item: &Value) -> Option<usize> {
    places.get(item.get("id")?.as_str()?).copied()
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(QUOTED_BYTES).collect()
}

/// What an item says. A field that is `null` is as good as absent.
fn read_one(item: &Value) -> Came {
    let field = |name: &str| item.get(name).filter(|value| !value.is_null());
    if let Some(error) = field("error") {
        return Came::again(format!("reported the error {}", shown(error)));
    }
    let reward = match field("reward").map(|reward| (reward, reward.as_f64())) {
        None => None,
        Some((_, Some(reward))) if reward.is_finite() => Some(reward),
        Some((other, _)) => return Came::again(format!("gave the reward {}, which is no finite number", shown(other))),
    };
    let text = |name: &'static str| match field(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(Came::again(format!("gave {} as {name}, where a string belongs", shown(other)))),
    };
    let (verdict, extracted, rule) = match (text("verdict"), text("extracted"), text("rule")) {
        (Ok(verdict), Ok(extracted), Ok(rule)) => (verdict, extracted, rule),
        (Err(came), _, _) | (_, Err(came), _) | (_, _, Err(came)) => return came,
    };
    let Some(verdict) = verdict else {
        return match reward {
            Some(_) if extracted.or(rule).is_some() => {
                Came::again("gave extracted or rule without a verdict, which they belong to; add \"verdict\", such as \"correct\"")
            }
            Some(reward) => Came::Judged(Judgement::bare(Verdict::Scored(reward))),
            None => Came::again(format!("gave {}, which holds neither reward nor verdict nor error", shown(item))),
        };
    };
    let Some(ruling) = Ruling::from_name(verdict) else {
        return Came::again(format!("gave the verdict {verdict:.QUOTED_BYTES$?}; known are {}", Ruling::ALL.map(Ruling::name).join(", ")));
    };
    let rule: Option<String> = rule.map(|rule| rule.chars().take(RULE_CHARS).collect());
    let why = rule.as_ref().map_or_else(String::new, |rule| format!(" ({rule})"));
    let found = Found::new(ruling, extracted, rule.unwrap_or_else(|| "webhook".into()));
    let verdict = match (ruling, reward) {
        (Ruling::Limit | Ruling::BadGold, Some(reward)) => {
            return Came::again(format!("gave the reward {reward} with the verdict {verdict}, which has none"));
        }
        (Ruling::Limit, None) => Verdict::Limit(format!("the answer is too large for its grader{why}")),
        (Ruling::BadGold, None) => Verdict::Failed(format!("its grader says that the reference cannot be used{why}")),
        (_, Some(reward)) => Verdict::Scored(reward),
        (Ruling::Correct, None) => Verdict::Scored(1.0),
        (Ruling::Wrong | Ruling::NoAnswer, None) => Verdict::Scored(0.0),
    };
    Came::Judged(Judgement { verdict, found: Some(found) })
}
