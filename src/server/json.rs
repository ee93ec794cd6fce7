//! JSON in and out of HTTP: bodies with a limit and a deadline, queries with named fields, and errors that name the path.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, RawQuery};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::field;

/// A response with this value as its body.
pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => json_text(status, text),
        Err(_) => json_text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "{\"error\":{\"code\":\"internal\",\"message\":\"the answer could not be written\",\"param\":null}}".into(),
        ),
    }
}

/// A response whose body is JSON already.
pub fn json_text(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Reads a whole body, within a size and a time.
pub async fn read_body(headers: &HeaderMap, body: Body, max_bytes: usize, deadline: Duration) -> Result<Vec<u8>, ApiError> {
    let too_large = || {
        let message = format!("the body is larger than {max_bytes} bytes; send fewer prompts at once, or raise the server's limit");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    };
    check_content_type(headers)?;
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > max_bytes) {
        return Err(too_large());
    }
    match tokio::time::timeout(deadline, axum::body::to_bytes(body, max_bytes)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        // The only other cause is a connection that broke, and then no one reads this.
        Ok(Err(_)) => Err(too_large()),
        Err(_) => {
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", format!("the body did not arrive within {} s", deadline.as_secs())))
        }
    }
}

/// A body that says it is something else than JSON is refused; one that says nothing is read as JSON.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or("");
    let kind = text.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if matches!(kind.as_str(), "application/json" | "text/json") || kind.ends_with("+json") {
        return Ok(());
    }
    let shown: String = kind.chars().take(100).collect();
    let message = format!("the body's content type is {shown:?}; send JSON with `Content-Type: application/json`");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message))
}

/// Reads a body as a `T`. Text that is no JSON is a 400, JSON of the wrong shape (a key given twice too) a 422; both say where.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bad_json = |message: String| ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("the body is not UTF-8: byte {} is wrong; send JSON in UTF-8", error.valid_up_to());
            return Err(bad_json(message).about(field::first_problem(&bytes[..bytes.len().min(error.valid_up_to() + 8)])));
        }
    };
    if text.trim().is_empty() {
        return Err(bad_json("the body is empty; send a JSON object".into()));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let found = field::of_serde(error.path(), error.inner());
        match error.inner().classify() {
            serde_json::error::Category::Data => ApiError::from(found),
            _ if field::is_out_of_range(error.inner()) => ApiError::from(found),
            _ if field::is_wrong_type(error.inner(), text) => {
                ApiError::field(found.path, "is of the wrong type; GET /openapi.json says what it takes")
            }
            _ => bad_json(format!("the body cannot be read as JSON: {}", error.inner())).about(found.path),
        }
    })?;
    reader.end().map_err(|error| bad_json(format!("the body goes on behind its JSON value: {error}")))?;
    field::refuse_duplicate_keys(text)?;
    Ok(value)
}

/// The `{id}` of a route.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| {
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_request", "the job id in the path is not UTF-8; write it as it was given")
                .about("id")
        })?;
        Ok(Id(id))
    }
}

/// Numbers in a query string, each named; any other name is refused.
pub struct Numbers(HashMap<String, usize>);

impl Numbers {
    /// The value of `name`, or `default`.
    pub fn get(&self, name: &str, default: usize) -> usize {
        self.0.get(name).copied().unwrap_or(default)
    }

    /// Reads a query string that may hold `names`.
    pub fn read(RawQuery(query): RawQuery, names: &[&str]) -> Result<Self, ApiError> {
        let mut numbers = HashMap::new();
        for pair in query.as_deref().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !names.contains(&name) {
                let shown: String = name.chars().take(100).collect();
                let help = if names.is_empty() { "this route takes no query".to_owned() } else { format!("use {}", names.join(" or ")) };
                return Err(ApiError::field(shown, format!("is not known here; {help}")));
            }
            // `parse` alone would also take "+1", which is " 1" in a query.
            let Some(number) = value.parse::<usize>().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit())) else {
                return Err(ApiError::field(name, "must be a whole number, 0 or more"));
            };
            if numbers.insert(name.to_owned(), number).is_some() {
                return Err(ApiError::field(name, "is given twice; give it once"));
            }
        }
        Ok(Numbers(numbers))
    }
}
