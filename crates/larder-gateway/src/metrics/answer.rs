//! Replies to scrapes over HTTP. A connection is limited to one request and ten seconds, which
//! bounds the resources that a slow or silent peer can occupy.

use super::format::Format;
use super::scrape::scrape;
use crate::host::host_field;
use crate::server_view::ServerView;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The time limit of a connection.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// The maximum length of a request's head, in bytes.
const HEAD_MAX: usize = 16 << 10;

/// Serves one connection. An error closes only this connection.
pub(crate) async fn serve(stream: TcpStream, view: Arc<dyn ServerView>) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&request, &*view);
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => (),
        Ok(Err(error)) => tracing::debug!(%error, "metrics: connection failed"),
        Err(_) => tracing::debug!("metrics: connection timed out"),
    }
}

fn answer(request: &Request<Incoming>, view: &dyn ServerView) -> Response<Full<Bytes>> {
    if let Err(fault) = host_field(request.version(), request.headers()) {
        return plain(StatusCode::BAD_REQUEST, fault);
    }
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "The metrics are at /metrics.\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "Metrics can only be read.\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    response(StatusCode::OK, format.content_type(), scrape(view, format).into())
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
