//! The routes with their handlers. `openapi.json` describes them.

use super::problem::Problem;
use super::{batch, guard, keys, list, service};
use crate::web::app::App;
use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::routing::{MethodRouter, delete, get, post};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

/// The OpenAPI description of all routes.
const OPENAPI: &str = include_str!("openapi.json");

/// Returns all routes behind the access checks, with CORS if origins are configured.
pub(crate) fn router(app: App) -> Router {
    let origins = app.origins.iter().filter_map(|origin| HeaderValue::try_from(origin).ok());
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([Method::GET, Method::PUT, Method::POST, Method::DELETE])
        // `*` does not cover `Authorization`, so list the requested headers.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any);
    let has_origins = !app.origins.is_empty();
    let router = Router::new()
        .route("/v1/keys/{key}", without_query(get(keys::get).delete(keys::delete)).put(keys::put))
        .route("/v1/keys/{key}/incr", post(keys::incr))
        .route("/v1/keys/{key}/decr", post(keys::decr))
        .route("/v1/keys/{key}/append", without_query(post(keys::append)))
        .route("/v1/keys/{key}/prepend", without_query(post(keys::prepend)))
        .route("/v1/keys/{key}/touch", post(keys::touch))
        .route("/v1/keys", get(list::list))
        .route("/v1/batch", without_query(post(batch::batch)))
        .route("/v1/stats/{topic}", without_query(get(service::statistics)))
        .route("/v1/flush", post(service::flush))
        .route("/v1/tags/{tag}", without_query(delete(service::drop_tag)))
        .route("/metrics", get(service::metrics))
        .route("/healthz", get(service::health))
        .route("/readyz", get(service::readiness))
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "There is no such path: see /openapi.json.")
        })
        .method_not_allowed_fallback(async || {
            let detail = "The path does not support this method: see the header Allow.";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(from_fn_with_state(app.clone(), guard::guard));
    if has_origins { router.layer(cors) } else { router }.with_state(app)
}

/// Refuses requests with a query, because the handlers of these routes would ignore it.
fn without_query(methods: MethodRouter<App>) -> MethodRouter<App> {
    methods.layer(from_fn(async |request: Request, next: Next| {
        match request.uri().query().filter(|query| !query.is_empty()) {
            Some(_) => Err(Problem::bad_request("This request takes no query: remove it.")),
            None => Ok(next.run(request).await),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::OPENAPI;
    use serde_json::Value;

    #[test]
    fn the_description_has_the_version_of_the_server() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        assert_eq!(description["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
