//! Errors as the caller sees them: `{"error": {"code", "message", "param"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::engine::SubmitError;
use crate::field::FieldError;
use crate::rollout::Refusal;

/// A refusal. 4xx is the caller's to mend, 429 and 503 pass with time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the response.
    pub status: StatusCode,
    /// A short name that programs can compare.
    pub code: &'static str,
    /// A sentence that a person can act on.
    pub message: String,
    /// Path of the offending field.
    pub param: Option<String>,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
    /// Every place that it is about, where it is about prompts; the first ones if there are many.
    pub details: Vec<Detail>,
}

/// One of the prompts that an error is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Detail {
    /// Its id.
    pub prompt_id: String,
    /// Path of the field.
    pub param: String,
    /// What is wrong with it and what would be right; reads on from the field's name.
    pub problem: String,
}

/// Most details of an error.
const DETAILS: usize = 100;

impl ApiError {
    /// An error about the request as a whole.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, code, message: message.into(), param: None, retry_after: None, details: Vec::new() }
    }

    /// The same error with the field it is about.
    pub fn about(self, param: impl Into<String>) -> Self {
        ApiError { param: Some(param.into()).filter(|param| !param.is_empty()), ..self }
    }

    /// A field that cannot be used.
    pub fn field(path: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let path = path.into();
        let subject = if path.is_empty() { "the request" } else { path.as_str() };
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", format!("{subject}: {problem}")).about(path)
    }

    /// Reference answers that cannot be used, if there are any: the message tells of the first, the details of every one.
    pub fn bad_golds(mut bad: Vec<Detail>) -> Option<Self> {
        let (count, first) = (bad.len(), bad.first()?.clone());
        bad.truncate(DETAILS);
        let cut = if count > DETAILS { format!(", which name the first {DETAILS}") } else { String::new() };
        let (all, them) = match count {
            1 => (String::new(), "it"),
            _ => (format!("in all {count} prompts have a reference answer that cannot be used, see details{cut}; "), "them"),
        };
        let help = "or send \"bad_gold\": \"fail_group\" to fail such prompts' groups and run the rest";
        let error = ApiError::field(first.param, format!("{}; {all}mend {them}, {help}", first.problem));
        Some(ApiError { details: bad, ..error })
    }

    /// A job that is not there.
    pub fn no_job(id: &str) -> Self {
        let shown: String = id.chars().take(128).collect();
        let message = format!("there is no job {shown:?}; GET /v1/rollouts lists those that are there");
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message).about("id")
    }

    /// Too much load.
    pub fn overloaded(message: impl Into<String>) -> Self {
        ApiError { retry_after: Some(1), ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message) }
    }

    /// The server cannot serve now.
    pub fn not_ready(message: impl Into<String>) -> Self {
        ApiError { retry_after: Some(5), ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", message) }
    }

    /// The store failed.
    pub fn store(error: impl std::fmt::Display) -> Self {
        ApiError::not_ready(format!("the store failed: {error}"))
    }

    /// A fault of the server's own.
    pub fn internal(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
}

/// The code of a refusal, in its response's extensions: what logs may say of it. Messages quote the caller and stay out of logs.
#[derive(Clone, Copy, Debug)]
pub struct ErrorCode(pub &'static str);

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        ApiError::field(error.path, error.problem)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OtherRequest => ApiError::new(StatusCode::CONFLICT, "conflict", format!("job_id: {refusal}")).about("job_id"),
            Refusal::Full(_) => ApiError::overloaded(refusal.to_string()),
            Refusal::Closing => ApiError::not_ready(refusal.to_string()),
            Refusal::Starting => ApiError::not_ready(refusal.to_string()),
            Refusal::Store(_) => ApiError::not_ready(refusal.to_string()),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Field(error) => ApiError::field(error.field, error.problem),
            SubmitError::QueueFull(_) => ApiError::overloaded(error.to_string()),
            SubmitError::Stopped(_) => ApiError::not_ready(error.to_string()),
            SubmitError::Numerics(_) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "numerics", error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        #[derive(Serialize)]
        struct Inner<'a> {
            code: &'a str,
            message: &'a str,
            param: Option<&'a str>,
            #[serde(skip_serializing_if = "<[Detail]>::is_empty")]
            details: &'a [Detail],
        }
        #[derive(Serialize)]
        struct Outer<'a> {
            error: Inner<'a>,
        }
        let body = Outer { error: Inner { code: self.code, message: &self.message, param: self.param.as_deref(), details: &self.details } };
        let mut response = super::json::json(self.status, &body);
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(ErrorCode(self.code));
        response
    }
}
