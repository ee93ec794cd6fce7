//! `/v1/weights`: what serves, new weights over HTTP, from files of this machine or from another process's memory of the GPU, and the digests of
//! what is loaded.

mod receive;
mod refuse;
mod roots;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::AppState;
use super::error::ApiError;
use super::json::{json, parse, read_body};
use crate::field::Object;
use crate::model::tensor_set::TensorSpec;
use crate::ops::handover::{DeviceId, Exported};
use crate::rollout::Updates;
use crate::rollout::updates::{Progress, Push, Pushed, Source, Version};

fn updates(state: &AppState) -> Result<&Arc<Updates>, ApiError> {
    let fixed = || ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported", "the weights of this server cannot be changed");
    state.updates.as_ref().ok_or_else(fixed)
}

/// The query of a push.
#[derive(Clone, Copy, Debug, Default)]
struct Query {
    version: u64,
    base: Option<u64>,
    rollback: bool,
    detached: bool,
}

impl Query {
    fn read(RawQuery(query): RawQuery) -> Result<Self, ApiError> {
        let (mut version, mut base, mut rollback, mut detached) = (None, None, None, None);
        for pair in query.as_deref().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = || {
                let number = value.parse::<u64>().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
                number.ok_or_else(|| ApiError::field(name, "must be a whole number, 0 or more"))
            };
            let flag = || match value {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(ApiError::field(name, "must be true or false")),
            };
            let again = match name {
                "version" => version.replace(number()?).is_some(),
                "base" => base.replace(number()?).is_some(),
                "rollback" => rollback.replace(flag()?).is_some(),
                "async" => detached.replace(flag()?).is_some(),
                _ => {
                    let shown: String = name.chars().take(100).collect();
                    return Err(ApiError::field(shown, "is not known here; use version, base, rollback or async"));
                }
            };
            if again {
                return Err(ApiError::field(name, "is given twice; give it once"));
            }
        }
        let version = version.ok_or_else(|| ApiError::field("version", "is missing; say PUT /v1/weights?version=N"))?;
        Ok(Query { version, base, rollback: rollback.unwrap_or(false), detached: detached.unwrap_or(false) })
    }

    fn push(&self, source: Source, receive: Duration) -> Push {
        Push { version: self.version, base: self.base, rollback: self.rollback, source, receive }
    }
}

/// `PUT /v1/weights?version=N`: a safetensors file as the body.
pub async fn put(State(state): State<AppState>, query: RawQuery, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    // Before gigabytes are kept for nothing.
    let checked = || -> Result<_, ApiError> {
        let (query, updates) = (Query::read(query)?, updates(&state)?);
        updates.check(query.version, query.base, query.rollback)?;
        Ok((query, updates))
    };
    let (query, updates) = match checked() {
        Ok(checked) => checked,
        Err(refused) => {
            receive::hear_out(&mut body.into_data_stream()).await;
            return Err(refused);
        }
    };
    let received = receive::receive(updates, &headers, body, state.limits.body_deadline()).await?;
    let (source, took) = received.into_source();
    finish(&state, updates, query, query.push(source, took)).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u64,
    dir: Option<String>,
    file: Option<String>,
    ipc: Option<Exported>,
    base: Option<u64>,
    #[serde(default)]
    rollback: bool,
    #[serde(default, rename = "async")]
    detached: bool,
}

/// `POST /v1/weights`: a folder or a file of this machine, under one of `weights.roots`, or another process's memory of the engine's GPU.
pub async fn post(State(state): State<AppState>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    let body = read_body(&headers, body, state.limits.max_body_bytes, state.limits.body_deadline()).await?;
    let Object(written): Object<Written> = parse(&body)?;
    let updates = updates(&state)?;
    let query = Query { version: written.version, base: written.base, rollback: written.rollback, detached: written.detached };
    let source = match (written.dir, written.file, written.ipc) {
        (Some(_), None, None) | (None, None, Some(_)) if query.base.is_some() => {
            return Err(ApiError::field("base", "goes with `file` alone: a folder and a GPU's memory hold all tensors; leave it out"));
        }
        (Some(dir), None, None) => Source::Folder(roots::folder(&state.weight_roots, &dir)?),
        (None, Some(file), None) => Source::File(roots::file(&state.weight_roots, "file", &file)?),
        (None, None, Some(_)) if query.version == 0 => {
            return Err(ApiError::field("version", "is 0, which is what the server's model folder holds; give a higher one with ipc"));
        }
        (None, None, Some(exported)) => {
            updates.check_device(&exported)?;
            Source::Device(Arc::new(exported))
        }
        _ => {
            let problem = "must name one of dir, a Hugging Face folder, file, a safetensors file, and ipc, memory of the engine's GPU";
            return Err(ApiError::field("", problem));
        }
    };
    updates.check(query.version, query.base, query.rollback)?;
    finish(&state, updates, query, query.push(source, Duration::ZERO)).await
}

async fn finish(state: &AppState, updates: &Arc<Updates>, query: Query, push: Push) -> Result<Response, ApiError> {
    if query.detached {
        let pushed = updates.push_until_staged(push).await?;
        let status = if matches!(pushed, Pushed::Serves(_)) { StatusCode::OK } else { StatusCode::ACCEPTED };
        return Ok(json(status, &pushed));
    }
    // Its sender may be the one who is to resume the server.
    if state.pause.is_paused() && updates.versions().is_held() {
        let problem = "the server is paused, and open jobs keep the live version until they are done, which they cannot be;                        resume it first, or push with async=true";
        return Err(ApiError::new(StatusCode::CONFLICT, "conflict", problem));
    }
    Ok(json(StatusCode::OK, &updates.push(push).await?))
}

/// `GET /v1/weights`: what serves, what waits, and how the last push went.
pub async fn get(State(state): State<AppState>) -> Result<Response, ApiError> {
    Ok(json(StatusCode::OK, &Status::of(updates(&state)?)))
}

/// The weights in `GET /v1/weights` and `/v1/state`.
#[derive(Serialize)]
pub(super) struct Status {
    version: u64,
    digest: String,
    bytes: u64,
    loaded_unix_s: f64,
    staged: Option<u64>,
    needed: Option<u64>,
    last: Option<Progress>,
    ipc: Option<DeviceId>,
    numerics_id: String,
}

impl Status {
    pub(super) fn of(updates: &Updates) -> Self {
        let live = updates.live();
        let Version { number, digest, loaded_unix_s, .. } = &*live;
        Status {
            version: *number,
            digest: digest.clone(),
            bytes: updates.layout().num_bytes(),
            loaded_unix_s: *loaded_unix_s,
            staged: updates.versions().staged(),
            needed: updates.versions().needed(),
            last: updates.last(),
            ipc: updates.ipc_device(),
            numerics_id: updates.numerics_id(),
        }
    }
}

/// `POST /v1/weights/verify`: reads the files of what serves again and gives the digest of each tensor.
pub async fn verify(State(state): State<AppState>) -> Result<Response, ApiError> {
    #[derive(Serialize)]
    struct Answer<'a> {
        version: u64,
        digest: &'a str,
        changed: &'a [String],
        tensors: Vec<Tensor<'a>>,
    }
    #[derive(Serialize)]
    struct Tensor<'a> {
        #[serde(flatten)]
        spec: &'a TensorSpec,
        digest: String,
    }
    let updates = updates(&state)?;
    let (live, verified) = updates.verify().await?;
    let tensors = updates.layout().tensors().iter().zip(verified.digests.hex()).map(|(spec, digest)| Tensor { spec, digest }).collect();
    Ok(json(StatusCode::OK, &Answer { version: live.number, digest: &live.digest, changed: &verified.changed, tensors }))
}
