//! Every route: method, path, what it asks of its caller, handler. The router, the access checks and the OpenAPI document all read this
//! table, so none of them can forget a route.

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};

use super::auth::{Access, Caller};
use super::error::ApiError;
use super::{AppState, admin, health, observe, openapi, rollouts, score, scores, verify, weights};

/// One route.
pub struct Route {
    /// Its method.
    pub method: Method,
    /// Its pattern.
    pub path: &'static str,
    /// What it asks of its caller.
    pub access: Access,
    handler: MethodRouter<AppState>,
}

/// The table.
pub fn table() -> Vec<Route> {
    use Access::{Admin, Data, Open};
    let route = |method, path, access, handler| Route { method, path, access, handler };
    vec![
        route(Method::POST, "/v1/rollouts", Data, post(rollouts::post)),
        route(Method::GET, "/v1/rollouts", Data, get(rollouts::list)),
        route(Method::GET, "/v1/rollouts/{id}", Data, get(rollouts::get)),
        route(Method::DELETE, "/v1/rollouts/{id}", Data, delete(rollouts::delete)),
        route(Method::GET, "/v1/rollouts/{id}/groups", Data, get(rollouts::groups)),
        route(Method::GET, "/v1/rollouts/{id}/events", Data, get(rollouts::events)),
        route(Method::GET, "/v1/rollouts/{id}/pending", Data, get(scores::pending)),
        route(Method::POST, "/v1/rollouts/{id}/scores", Data, post(scores::post)),
        route(Method::POST, "/v1/score", Data, post(score::post)),
        route(Method::POST, "/v1/verify", Data, post(verify::post)),
        route(Method::PUT, "/v1/weights", Admin, put(weights::put)),
        route(Method::POST, "/v1/weights", Admin, post(weights::post)),
        route(Method::GET, "/v1/weights", Admin, get(weights::get)),
        route(Method::POST, "/v1/weights/verify", Admin, post(weights::verify)),
        route(Method::GET, "/v1/state", Data, get(health::state)),
        route(Method::POST, "/v1/pause", Admin, post(admin::pause)),
        route(Method::POST, "/v1/resume", Admin, post(admin::resume)),
        route(Method::GET, "/livez", Open, get(health::livez)),
        route(Method::GET, "/readyz", Open, get(health::readyz)),
        route(Method::GET, "/metrics", Data, get(health::metrics)),
        route(Method::GET, "/openapi.json", Open, get(openapi::get)),
    ]
}

/// The server's router: the table, within the layers that every request passes.
pub fn router(state: AppState) -> Router {
    let mut router = Router::new();
    for Route { method, path, access, handler } in table() {
        // HEAD comes with GET.
        debug_assert!([Method::GET, Method::POST, Method::DELETE, Method::PUT].contains(&method), "{method} {path}");
        let check = middleware::from_fn_with_state((state.clone(), access), admit);
        router = router.route(path, handler.route_layer(check));
    }
    let id = HeaderName::from_static(observe::REQUEST_ID);
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // Bodies are read by the handlers, within their own limits.
        .layer(DefaultBodyLimit::disable())
        // From here on upwards: the last one is the first that a request passes.
        .layer(middleware::from_fn_with_state(state.clone(), observe::observe))
        .layer(PropagateRequestIdLayer::new(id.clone()))
        .layer(SetRequestIdLayer::new(id, MakeRequestUuid))
        .layer(middleware::from_fn(observe::drop_strange_id))
        .with_state(state)
}

/// Lets a request through to its route if its caller may use it.
async fn admit(State((state, access)): State<(AppState, Access)>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().copied().unwrap_or(Caller::Anonymous);
    match state.tokens.check(caller, access, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(denied) => {
            let mut response = ApiError::from(denied).into_response();
            if let Some(challenge) = denied.challenge() {
                response.headers_mut().insert(axum::http::header::WWW_AUTHENTICATE, challenge);
            }
            response
        }
    }
}

async fn no_route(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(200).collect();
    ApiError::new(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is no route {path:?}; GET /openapi.json lists them, the main one is POST /v1/rollouts"),
    )
}

async fn no_method(request: Request) -> ApiError {
    let route = request.extensions().get::<MatchedPath>().map_or("this route", |path| path.as_str()).to_owned();
    let methods: Vec<String> = table().iter().filter(|r| r.path == route).map(|r| r.method.to_string()).collect();
    let message = format!("{} is not possible on {route}; use {}", request.method(), methods.join(" or "));
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
