//! The gRPC services.

use super::cache::CacheService;
use super::codec::MESSAGE_LEN_MAX;
use super::guard;
use super::health::HealthService;
use super::pb;
use super::pb::cache_server::CacheServer;
use crate::web::app::App;
use axum::Router;
use axum::body::Body;
use axum::middleware::from_fn_with_state;
use std::convert::Infallible;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;
use tonic::{Status, body};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::pb::{v1, v1alpha};
use tonic_reflection::server::Builder;

/// The maximum length, in bytes, of a message to the standard services. Such a message contains
/// only one or two names. The limit also bounds the reply, which repeats the names.
const NAME_LEN_MAX: usize = 4 << 10;

/// Returns the routes of all services for an address without HTTP. Requests to other paths get
/// `UNIMPLEMENTED`.
pub(crate) fn router(app: &App) -> Router {
    services(app).fallback(async || {
        let status = Status::unimplemented("There is no such service: see gRPC reflection.");
        status.into_http::<body::Body>().map(Body::new)
    })
}

/// Returns the routes of all services.
pub(crate) fn services(app: &App) -> Router {
    let cache = CacheServer::new(CacheService(app.clone()))
        .max_decoding_message_size(MESSAGE_LEN_MAX)
        .max_encoding_message_size(MESSAGE_LEN_MAX);
    let health =
        HealthServer::new(HealthService(app.clone())).max_decoding_message_size(NAME_LEN_MAX);
    let described = || {
        Builder::configure()
            .include_reflection_service(false)
            .register_encoded_file_descriptor_set(pb::DESCRIPTION)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(v1alpha::FILE_DESCRIPTOR_SET)
    };
    let mut router = with(with(Router::new(), cache), health);
    // Building the services cannot fail, because the descriptions are generated. Older clients use
    // v1alpha.
    if let (Ok(current), Ok(old)) = (described().build_v1(), described().build_v1alpha()) {
        let current = current.max_decoding_message_size(NAME_LEN_MAX);
        router = with(with(router, current), old.max_decoding_message_size(NAME_LEN_MAX));
    }
    router.layer(from_fn_with_state(app.clone(), guard::guard))
}

fn with<S>(router: Router, service: S) -> Router
where
    S: Service<Request<Body>, Response = Response<body::Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    router.route_service(&format!("/{}/{{*method}}", S::NAME), service)
}
