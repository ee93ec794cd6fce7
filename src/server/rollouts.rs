//! The rollout routes: start or attach, look, page, follow, cancel.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;

use super::AppState;
use super::auth::Caller;
use super::error::ApiError;
use super::json::{Id, Numbers, json, json_text, read_body};
use super::request::RolloutRequest;
use super::stream::{Framing, follow};
use crate::rollout::JobRecord;
use crate::rollout::progress::JobView;

/// `POST /v1/rollouts`: 202 with the job, or its stream if the client accepts one.
pub async fn post(
    State(state): State<AppState>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_body(&headers, body, state.limits.max_body_bytes, state.limits.body_deadline()).await?;
    let record = accept(&state, caller, body, Framing::accepted(&headers).is_some()).await?;
    match Framing::accepted(&headers) {
        // Without an id no one else can come back to the job: it ends with its stream.
        Some(framing) => {
            let cancel_on_drop = !record.named;
            Ok(follow(record, 0, framing, cancel_on_drop))
        }
        None => Ok(json(StatusCode::ACCEPTED, &record.view())),
    }
}

async fn accept(state: &AppState, caller: Caller, body: Vec<u8>, is_stream: bool) -> Result<Arc<JobRecord>, ApiError> {
    if state.jobs.is_closing() {
        return Err(ApiError::not_ready("the server is shutting down; send the job again when it is back"));
    }
    let worker = state.clone();
    // Parsing and tokenizing megabytes would hold up every other connection of this thread.
    let read = move || -> Result<_, ApiError> {
        let request = RolloutRequest::read(&body, &worker.limits)?;
        if let Some(id) = &request.job_id
            && let Some(record) = worker.jobs.attach(id, &request.digest()?)?
        {
            return Ok(Err(record));
        }
        let pin = request.pin(worker.jobs.versions())?;
        let spec = request.into_job(&*worker.text, worker.engine.info(), pin.version(), &worker.limits, &worker.rewards, caller.key())?;
        Ok(Ok((spec, pin)))
    };
    match tokio::task::spawn_blocking(read).await {
        // Detached: a client that hangs up now must not leave a job in the store that nobody runs.
        Ok(Ok(Ok((spec, pin)))) => {
            let (jobs, reads_alone) = (state.jobs.clone(), is_stream && !spec.named);
            let (tell, told) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let admission = jobs.admit(spec, pin).await.map(|admission| admission.record().clone());
                // Nobody else could ever read a stream without a name.
                if let Err(Ok(record)) = tell.send(admission)
                    && reads_alone
                {
                    record.cancel();
                }
            });
            match told.await {
                Ok(admission) => Ok(admission?),
                Err(_) => Err(ApiError::internal("accepting the job stopped with an internal error; please report this")),
            }
        }
        Ok(Ok(Err(record))) => Ok(record),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ApiError::internal("reading the request stopped with an internal error; please report this")),
    }
}

/// `GET /v1/rollouts?limit=`: the jobs, newest first.
pub async fn list(State(state): State<AppState>, query: RawQuery) -> Result<Response, ApiError> {
    let limit = Numbers::read(query, &["limit"])?.get("limit", 100);
    if limit == 0 || limit > 1000 {
        return Err(ApiError::field("limit", format!("is {limit}; it must be between 1 and 1000")));
    }
    let store = state.jobs.store().clone();
    let read = tokio::task::spawn_blocking(move || store.list(limit as u32));
    let listed = read.await.map_err(|_| ApiError::internal("the jobs could not be listed"))?.map_err(ApiError::store)?;
    let jobs = state.jobs.clone();
    // A job that is being started or was pruned in between is left out.
    let find = move || listed.iter().filter_map(|job| jobs.find(&job.id).ok().flatten()).collect::<Vec<_>>();
    let jobs = tokio::task::spawn_blocking(find).await.map_err(|_| ApiError::internal("the jobs could not be listed"))?;
    #[derive(Serialize)]
    struct List<'a> {
        jobs: Vec<JobView<'a>>,
    }
    Ok(json(StatusCode::OK, &List { jobs: jobs.iter().map(|record| record.view()).collect() }))
}

/// `GET /v1/rollouts/{id}`: the job's settings, state and statistics.
pub async fn get(State(state): State<AppState>, Id(id): Id) -> Result<Response, ApiError> {
    let record = state.jobs.find(&id)?.ok_or_else(|| ApiError::no_job(&id))?;
    Ok(json(StatusCode::OK, &record.view()))
}

/// `DELETE /v1/rollouts/{id}`: ends the job and answers when its samples' blocks are free.
pub async fn delete(State(state): State<AppState>, Id(id): Id) -> Result<Response, ApiError> {
    let record = state.jobs.find(&id)?.ok_or_else(|| ApiError::no_job(&id))?;
    state.jobs.cancel(&record).await?;
    Ok(json(StatusCode::OK, &record.view()))
}

/// `GET /v1/rollouts/{id}/groups?cursor=&limit=`: delivered groups from a position on.
pub async fn groups(State(state): State<AppState>, Id(id): Id, query: RawQuery) -> Result<Response, ApiError> {
    let record = state.jobs.find(&id)?.ok_or_else(|| ApiError::no_job(&id))?;
    let numbers = Numbers::read(query, &["cursor", "limit"])?;
    let (cursor, limit) = (numbers.get("cursor", 0), numbers.get("limit", state.limits.max_groups_page));
    if limit == 0 || limit > state.limits.max_groups_page {
        return Err(ApiError::field("limit", format!("is {limit}; it must be between 1 and {}", state.limits.max_groups_page)));
    }
    let groups = record.groups(cursor, limit).await.map_err(ApiError::store)?;
    let next = cursor.saturating_add(groups.len());
    Ok(json_text(StatusCode::OK, format!("{{\"groups\":[{}],\"cursor\":{next}}}", groups.join(","))))
}

/// `GET /v1/rollouts/{id}/events?cursor=`: the stream from an event on, as NDJSON unless the client asks for SSE.
pub async fn events(State(state): State<AppState>, Id(id): Id, query: RawQuery, headers: HeaderMap) -> Result<Response, ApiError> {
    let record = state.jobs.find(&id)?.ok_or_else(|| ApiError::no_job(&id))?;
    let mut cursor = Numbers::read(query, &["cursor"])?.get("cursor", 0);
    if let Some(last) = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<usize>().ok()) {
        // An EventSource that connects again says what it has seen.
        cursor = last.saturating_add(1);
    }
    Ok(follow(record, cursor, Framing::accepted(&headers).unwrap_or(Framing::Lines), false))
}
