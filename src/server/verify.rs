//! `POST /v1/verify`: verdicts on texts that are already there, by the verifiers that judge samples. The engine has no part in it.
//!
//! Items are judged in chunks on blocking threads, at most so many at once over all requests. Those places are not the ones of samples: a large
//! request here holds up no job.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::AppState;
use super::error::ApiError;
use super::json::{self, read_body};
use crate::field::Object;
use crate::reward::{PoolSettings, Ruling};
use crate::verify::{Question, Reference, read_id};

/// Most items of a request.
pub const MAX_ITEMS: usize = 10_000;
/// Items that are judged one after the other on one thread; then another request has its turn.
const CHUNK: usize = 64;

/// How much is judged at once, and for how long.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    count: usize,
    /// An item may take so long.
    deadline: Duration,
}

impl Places {
    /// As many as samples have, and the same deadline.
    pub fn new(settings: &PoolSettings) -> Self {
        let count = settings.workers.max(1);
        let deadline = Duration::try_from_secs_f64(settings.local_timeout_s).unwrap_or_default();
        Places { free: Arc::new(Semaphore::new(count)), count, deadline }
    }

    async fn take(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.free.clone().acquire_owned().await.map_err(|_| ApiError::not_ready("the server is shutting down"))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    items: Vec<Object<WrittenItem>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenItem {
    id: Option<Value>,
    gold: Option<Value>,
    response: String,
    kind: Option<String>,
    options: Option<Object<Map<String, Value>>>,
    reward: Option<Value>,
}

/// An item that can be judged.
struct Item {
    id: Value,
    question: Question,
    response: String,
}

#[derive(Serialize)]
struct Answer {
    items: Vec<Judged>,
}

#[derive(Serialize)]
struct Judged {
    id: Value,
    verdict: Ruling,
    extracted: Option<String>,
    rule: Cow<'static, str>,
    reward: Option<f64>,
}

/// The route.
pub async fn post(State(state): State<AppState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let body = read_body(&headers, body, state.limits.max_body_bytes, state.limits.body_deadline()).await?;
    let places = &state.verify;
    let place = places.take().await?;
    let reading = tokio::task::spawn_blocking(move || {
        let _place = place;
        read(&body)
    });
    let items =
        reading.await.map_err(|_| ApiError::internal("reading the request stopped with an internal error; please report this"))??;
    let items: Arc<[Item]> = items.into();
    let chunks = (0..items.len()).step_by(CHUNK).map(|from| judge(places.clone(), items.clone(), from));
    let judged: Vec<Vec<Judged>> = stream::iter(chunks).buffered(places.count).try_collect().await?;
    Ok(json::json(StatusCode::OK, &Answer { items: judged.into_iter().flatten().collect() }))
}

/// Reads a body. Takes time; it is called off the server's own threads.
fn read(body: &[u8]) -> Result<Vec<Item>, ApiError> {
    let Object(written): Object<Written> = json::parse(body)?;
    if written.items.is_empty() {
        return Err(ApiError::field("items", "is empty; give at least one item"));
    }
    if written.items.len() > MAX_ITEMS {
        return Err(ApiError::field("items", format!("holds {} items; at most {MAX_ITEMS} are taken at once", written.items.len())));
    }
    let items = written.items.into_iter().enumerate().map(|(position, Object(item))| {
        let within = |error: crate::field::FieldError| error.within(&format!("items[{position}]"));
        let id = read_id(item.id).map_err(within)?.unwrap_or_else(|| position.to_string().into());
        let options = item.options.map(|Object(options)| options);
        let reference = Reference { gold: item.gold, kind: item.kind, options, reward: item.reward };
        Ok(Item { id, question: reference.read().map_err(within)?, response: item.response })
    });
    items.collect()
}

/// Judges the items from `from` on, a chunk of them.
async fn judge(places: Places, items: Arc<[Item]>, from: usize) -> Result<Vec<Judged>, ApiError> {
    let place = places.take().await?;
    let position = Arc::new(AtomicUsize::new(from));
    let (all, now) = (items.clone(), position.clone());
    // The place goes with the thread: one that does not end keeps it, so that there are never more threads than places.
    let mut running = tokio::task::spawn_blocking(move || {
        let _place = place;
        let chunk = all[from..].iter().take(CHUNK).enumerate();
        let judged = chunk.map(|(offset, item)| {
            now.store(from + offset, Ordering::Relaxed);
            let answer = item.question.judge(&item.response).map_err(|problem| (from + offset, problem))?;
            Ok(Judged {
                id: item.id.clone(),
                verdict: answer.ruling,
                extracted: answer.extracted,
                rule: answer.rule,
                reward: answer.reward,
            })
        });
        judged.collect::<Result<Vec<_>, (usize, String)>>()
    });
    let mut seen = None;
    loop {
        match tokio::time::timeout(places.deadline, &mut running).await {
            Ok(Ok(Ok(judged))) => return Ok(judged),
            Ok(Ok(Err((position, problem)))) => return Err(ApiError::internal(format!("items[{position}]: {problem}"))),
            Ok(Err(_)) => return Err(ApiError::internal("judging stopped with an internal error; please report this")),
            Err(_) => {
                let now = position.load(Ordering::Relaxed);
                if seen.replace(now) == Some(now) {
                    let problem = format!("takes longer than {} s to judge; shorten it", places.deadline.as_secs_f64());
                    return Err(ApiError::field(format!("items[{now}].response"), problem));
                }
            }
        }
    }
}
