//! The routes with their handlers, and the OpenAPI description generated from them.

use super::problem::Problem;
use super::{batch, guard, keys, list, service};
use crate::web::app::App;
use axum::Router;
use axum::body::Body;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(OpenApi)]
#[openapi(info(
    title = "Larder",
    description = "Items and statistics of a cache server.",
    license(name = "MIT OR Apache-2.0"),
))]
struct Api;

/// Returns all routes behind the access checks, with CORS if origins are configured.
pub(crate) fn router(app: App) -> Router {
    let routes = OpenApiRouter::with_openapi(Api::openapi())
        .routes(routes!(keys::get, keys::put, keys::delete))
        .routes(routes!(keys::incr))
        .routes(routes!(keys::decr))
        .routes(routes!(keys::append))
        .routes(routes!(keys::prepend))
        .routes(routes!(keys::touch))
        .routes(routes!(list::list))
        .routes(routes!(batch::batch))
        .routes(routes!(service::statistics))
        .routes(routes!(service::flush))
        .routes(routes!(service::drop_tag))
        .routes(routes!(service::metrics))
        .routes(routes!(service::health))
        .routes(routes!(service::readiness));
    let (router, api) = routes.split_for_parts();
    // Serializing the description cannot fail.
    let api = Bytes::from(api.to_json().unwrap_or_default());
    let origins = app.origins.iter().filter_map(|origin| HeaderValue::try_from(origin).ok());
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([Method::GET, Method::PUT, Method::POST, Method::DELETE])
        .allow_headers(Any)
        .expose_headers(Any);
    let has_origins = !app.origins.is_empty();
    let json = HeaderValue::from_static("application/json");
    let router = router
        .route(
            "/openapi.json",
            get(async move || ([(CONTENT_TYPE, json)], Body::from(api.clone())).into_response()),
        )
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
