//! A job's log as a stream.
//!
//! NDJSON, one line per event: `{"job": {...}}` first, then each group as it is (a line with `prompt_id`), then `{"end": {...}}` with the
//! job's state and statistics. SSE, the same objects with their kind and position: `event: job | group | end`, `id: N`, `data: {...}`.
//! `cursor=N` starts at event N.
//!
//! The client pulls: an event is read from the log only when the connection has taken the one before, so a slow reader costs one event.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::rollout::{EventKind, JobRecord};

/// A quiet SSE stream gets a comment this often, so that proxies keep it.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `application/x-ndjson`
    Lines,
    /// `text/event-stream`
    Events,
}

impl Framing {
    /// The framing that the client asks for, if it asks for a stream.
    pub fn accepted(headers: &HeaderMap) -> Option<Self> {
        let mut kinds = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        kinds.find_map(|kind| match kind.split(';').next().unwrap_or("").trim() {
            "application/x-ndjson" | "application/ndjson" => Some(Framing::Lines),
            "text/event-stream" => Some(Framing::Events),
            _ => None,
        })
    }

    fn content_type(self) -> HeaderValue {
        match self {
            Framing::Lines => HeaderValue::from_static("application/x-ndjson"),
            Framing::Events => HeaderValue::from_static("text/event-stream"),
        }
    }

    fn frame(self, cursor: usize, kind: EventKind, data: &str) -> Bytes {
        let name = match kind {
            EventKind::Job => "job",
            EventKind::Group => "group",
            EventKind::End => "end",
        };
        match self {
            Framing::Lines => format!("{data}\n").into(),
            Framing::Events => format!("event: {name}\nid: {cursor}\ndata: {data}\n\n").into(),
        }
    }
}

/// A reader of a job's log; cancels the job when it is dropped before the end, if it is the only one who could read it.
struct Reader {
    record: Arc<JobRecord>,
    cursor: usize,
    framing: Framing,
    cancel_on_drop: bool,
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.cancel_on_drop {
            self.record.cancel();
        }
    }
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Reader)> {
        let frame = match tokio::time::timeout(KEEP_ALIVE, self.record.event(self.cursor)).await {
            Ok(Some((kind, data))) => {
                let frame = self.framing.frame(self.cursor, kind, &data);
                self.cursor += 1;
                if kind == EventKind::End {
                    self.cancel_on_drop = false;
                }
                frame
            }
            Ok(None) => return None,
            // An empty line between events is legal in both framings.
            Err(_) if self.framing == Framing::Events => Bytes::from_static(b": waiting\n\n"),
            Err(_) => Bytes::from_static(b"\n"),
        };
        Some((Ok(frame), self))
    }
}

/// The response that follows `record` from event `cursor` on.
pub fn follow(record: Arc<JobRecord>, cursor: usize, framing: Framing, cancel_on_drop: bool) -> Response {
    let reader = Reader { record, cursor, framing, cancel_on_drop };
    let body = Body::from_stream(futures::stream::unfold(reader, Reader::next));
    let headers = [(header::CONTENT_TYPE, framing.content_type()), (header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))];
    (StatusCode::OK, headers, body).into_response()
}
