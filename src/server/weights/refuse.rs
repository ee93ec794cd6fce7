//! A push that was not taken, as HTTP says it.

use axum::http::StatusCode;

use crate::rollout::updates::PushError;
use crate::server::ApiError;

impl From<PushError> for ApiError {
    fn from(error: PushError) -> Self {
        let conflict = |param: &str| ApiError::new(StatusCode::CONFLICT, "conflict", error.to_string()).about(param);
        match &error {
            PushError::Stale { .. } | PushError::Conflict { .. } | PushError::Zero => conflict("version"),
            PushError::BaseNotLive { .. } => conflict("base"),
            PushError::NoFiles(_) => conflict(""),
            PushError::NoIpc { field, .. } => {
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "ipc_unavailable", error.to_string()).about(field.clone())
            }
            PushError::Field { field, problem } => ApiError::field(field.clone(), problem),
            PushError::Bad { tensor, .. } => {
                let refusal = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_weights", error.to_string());
                refusal.about(tensor.clone().unwrap_or_default())
            }
            PushError::Busy(_) => ApiError::overloaded(error.to_string()),
            PushError::Fixed => ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_supported", error.to_string()),
            PushError::Keep(_) | PushError::Failed(_) => ApiError::not_ready(error.to_string()),
        }
    }
}
