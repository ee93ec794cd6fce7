//! A body of gigabytes on its way to a file: never more of it in memory than a few pieces, and refused when it is larger than any file that
//! could be right.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use futures::StreamExt;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::rollout::Updates;
use crate::rollout::updates::Source;
use crate::server::ApiError;

/// Bytes of a refused body that are read away at least.
const LEAST_SKIPPED: u64 = 64 << 20;
/// Pieces between the connection and the disk.
const PIECES: usize = 16;

/// A received file; it goes when this is dropped before it was handed on.
pub(super) struct Received {
    path: Option<PathBuf>,
    took: Duration,
}

impl Received {
    /// What was received, and how long that took.
    pub(super) fn into_source(mut self) -> (Source, Duration) {
        (Source::Received(self.path.take().unwrap_or_default()), self.took)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes the body to a file in the weights' folder; it may pause for `patience` at most.
pub(super) async fn receive(updates: &Updates, headers: &HeaderMap, body: Body, patience: Duration) -> Result<Received, ApiError> {
    let most = updates.layout().most_file_bytes();
    let expected = expected_digest(headers)?;
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > most) {
        skip(body, most, patience).await;
        return Err(too_large(most));
    }
    let began = Instant::now();
    let cannot = |error: std::io::Error| {
        ApiError::not_ready(format!("the weights cannot be written to {}: {error}; make room there", updates.home().dir().display()))
    };
    let (path, file) = updates.home().receive().map_err(cannot)?;
    let mut received = Received { path: Some(path), took: Duration::ZERO };
    let (pieces, inbox) = mpsc::channel::<Bytes>(PIECES);
    let hashes = expected.is_some();
    let writer = tokio::task::spawn_blocking(move || write(file, inbox, hashes));
    let copied = copy(body, pieces, most, patience).await;
    let written = writer.await.map_err(|_| ApiError::internal("receiving the weights stopped with an internal error"))?;
    let digest = written.map_err(cannot)?;
    copied?;
    if let (Some(expected), Some(digest)) = (expected, digest)
        && expected != digest
    {
        let message = format!(
            "Content-Digest: the body's sha-256 is {digest}, and {expected} was announced: it was damaged on the way; send it again"
        );
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "digest_mismatch", message).about("Content-Digest"));
    }
    received.took = began.elapsed();
    Ok(received)
}

/// Reads a body of a refused push away, as far as it is not absurd: many clients take a closed connection for an answer while they send.
pub(super) async fn skip(body: Body, most: u64, patience: Duration) {
    let mut body = body.into_data_stream();
    let mut left = most.max(LEAST_SKIPPED);
    while let Ok(Some(Ok(piece))) = tokio::time::timeout(patience, body.next()).await {
        left = left.saturating_sub(piece.len() as u64);
        if left == 0 {
            return;
        }
    }
}

fn too_large(most: u64) -> ApiError {
    let message =
        format!("the body is larger than {most} bytes, more than this model's tensors need; push the tensors of this model alone");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

async fn copy(body: Body, pieces: mpsc::Sender<Bytes>, most: u64, patience: Duration) -> Result<(), ApiError> {
    let mut body = body.into_data_stream();
    let mut bytes = 0u64;
    loop {
        let Ok(piece) = tokio::time::timeout(patience, body.next()).await else {
            let message = format!("no byte of the body came for {} s; send it again", patience.as_secs());
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message));
        };
        let Some(piece) = piece else { return Ok(()) };
        let piece = piece.map_err(|_| {
            ApiError::new(StatusCode::BAD_REQUEST, "truncated", format!("the body broke off after {bytes} bytes; send it again"))
        })?;
        bytes += piece.len() as u64;
        if bytes > most {
            return Err(too_large(most));
        }
        // The writer is gone only if it failed, which it says itself.
        if pieces.send(piece).await.is_err() {
            return Ok(());
        }
    }
}

fn write(mut file: File, mut inbox: mpsc::Receiver<Bytes>, hashes: bool) -> std::io::Result<Option<String>> {
    let mut hasher = hashes.then(Sha256::new);
    while let Some(piece) = inbox.blocking_recv() {
        file.write_all(&piece)?;
        if let Some(hasher) = &mut hasher {
            hasher.update(&piece);
        }
    }
    Ok(hasher.map(|hasher| base64(&hasher.finalize())))
}

/// The sha-256 of a `Content-Digest` header (RFC 9530), in base64.
fn expected_digest(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("content-digest") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let digest = text.split(',').find_map(|member| member.trim().strip_prefix("sha-256=:")?.strip_suffix(':'));
    match digest {
        Some(digest) if digest.len() == 44 => Ok(Some(digest.to_owned())),
        _ => Err(ApiError::field("Content-Digest", "must be sha-256=:BASE64: with the 32 bytes of the body's SHA-256")),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().chain([0, 0].iter()).take(3).fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        for digit in 0..4 {
            let shown = digit <= group.len();
            text.push(if shown { char::from(DIGITS[(word >> (18 - 6 * digit) & 63) as usize]) } else { '=' });
        }
    }
    text
}
