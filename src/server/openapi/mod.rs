//! `GET /openapi.json`
use axum::response::Response;
/// The route.
pub async fn get() -> Response {
    todo!()
}
