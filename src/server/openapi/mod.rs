//! `GET /openapi.json`: the interface as an OpenAPI 3.1 document.
//!
//! [`paths`] describes operations, [`schemas`] what they take and give, with the limits of the server that is asked. Only operations that
//! the route table has are in the document, and a test holds that every route has one.

mod paths;
mod schemas;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::json::json as answer;
use super::routes::{self, Route};
use super::{AppState, Limits};
use crate::server::auth::Access;

/// The route.
pub async fn get(State(state): State<AppState>) -> Response {
    answer(StatusCode::OK, &document(&state.limits))
}

/// The document.
pub fn document(limits: &Limits) -> Value {
    let mut all: Map<String, Value> = Map::new();
    for Route { method, path, access, .. } in routes::table() {
        let Some(mut operation) = paths::operation(method.as_str(), path, limits) else { continue };
        guard(&mut operation, access);
        let entry = all.entry(path).or_insert_with(|| json!({}));
        entry[method.as_str().to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "adaroll",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Adaptive rollouts for reinforcement learning of language models: POST prompts, get balanced groups with honest statistics. \
                The same weights, request and seed give the same groups, `timing` aside.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "rollouts", "description": "Jobs: start, look, follow, cancel."},
            {"name": "scoring", "description": "What is there already: log-probabilities of tokens, verdicts on texts."},
            {"name": "state", "description": "How the server is."},
            {"name": "weights", "description": "New weights for the running server."},
            {"name": "admin", "description": "Holding the server back."}
        ],
        "paths": all,
        "components": {
            "schemas": schemas::all(limits),
            "responses": paths::responses(),
            "securitySchemes": {
                "data": {"type": "http", "scheme": "bearer", "description": "The data token; the admin token does as well. Not asked for by a server without tokens."},
                "admin": {"type": "http", "scheme": "bearer", "description": "The admin token."}
            }
        }
    })
}

/// Adds who may call, and the refusals that follow from it.
fn guard(operation: &mut Value, access: Access) {
    let name = match access {
        Access::Open => return,
        Access::Data => "data",
        Access::Admin => "admin",
    };
    // A server without tokens lets everyone in.
    operation["security"] = json!([{ name: [] }, {}]);
    operation["responses"]["401"] = json!({"$ref": "#/components/responses/Unauthorized"});
    if access == Access::Admin {
        operation["responses"]["403"] = json!({"$ref": "#/components/responses/Forbidden"});
    }
}
