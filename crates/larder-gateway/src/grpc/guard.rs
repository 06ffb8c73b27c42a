//! Middleware of each request: access checks, deadline and memory.
//!
//! A web page of any site can make a browser send requests to every server that the browser can
//! reach. Such requests use HTTP/1.1 (without TLS) or have an `Origin` field. gRPC clients send no
//! such requests, so `check` refuses them.

use super::deadline::Deadline;
use super::memory::{CountedBody, RequestMemory};
use crate::abort::{self, Abort};
use crate::server_view::Rights;
use crate::web::app::App;
use crate::web::body::discard;
use crate::web::login::rights;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper::Version;
use hyper::header::ORIGIN;
use tonic::{Status, body};

/// The path prefix of the service that needs no login.
const OPEN: &str = "/grpc.health.v1.Health/";
/// The methods that change nothing. An entry that ends in a dot is the prefix of a package or
/// service.
const READS: [&str; 7] = [
    "/grpc.reflection.",
    "/larder.v1.Cache/Get",
    "/larder.v1.Cache/GetMany",
    "/larder.v1.Cache/Read",
    "/larder.v1.Cache/Watch",
    "/larder.v1.Cache/Stats",
    "/grpc.health.",
];

/// Passes allowed requests to their methods, with a deadline and a memory account.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let checked = check(&app, &request).and_then(|()| Deadline::of(request.headers()));
    let deadline = match checked {
        Ok(deadline) => deadline,
        Err(status) => {
            // Some clients read no reply before they have sent their whole stream, so receive the
            // rest of the stream first.
            discard(&mut request.into_body()).await;
            return refuse(&status);
        }
    };
    let memory = RequestMemory::new(&app.view);
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(memory.clone());
    let body = Body::new(CountedBody::new(body, app, memory.clone()));
    let answer = abort::run_abortable(next.run(Request::from_parts(parts, body)));
    let answered = deadline.bound(answer).await.and_then(|answer| {
        answer.map_err(|ended| match ended {
            Abort::Unconfirmed => {
                let text = "No other server has confirmed the change in time: it may be lost.";
                Status::deadline_exceeded(text)
            }
            Abort::OwnerUnreachable => owner_unreachable(),
        })
    });
    match answered {
        Ok(response) => response.map(|body| Body::new(deadline.wrap_body(body, memory))),
        Err(status) => refuse(&status),
    }
}

/// Returns the error for an item whose owner is unreachable.
pub(super) fn owner_unreachable() -> Status {
    let text =
        "The server that owns the item is unreachable: send requests to the leader of its group.";
    Status::unavailable(text)
}

fn refuse(status: &Status) -> Response {
    status.clone().into_http::<body::Body>().map(Body::new)
}

fn check(app: &App, request: &Request) -> Result<(), Status> {
    if request.version() != Version::HTTP_2 || request.headers().contains_key(ORIGIN) {
        let text = "gRPC requires HTTP/2 and refuses requests of web pages.";
        return Err(Status::permission_denied(text));
    }
    let path = request.uri().path();
    if path.starts_with(OPEN) {
        return Ok(());
    }
    if !reads(path) && app.view.read_only() {
        let text = "This server is a replica: send changes to its leader.";
        return Err(Status::failed_precondition(text));
    }
    match rights(app, request.headers()) {
        Some(Rights::All) => Ok(()),
        Some(Rights::Read) if reads(path) => Ok(()),
        Some(Rights::Read) => Err(Status::permission_denied("This login may only read.")),
        None => {
            Err(Status::unauthenticated("A login is required: authorization with Basic or Bearer."))
        }
    }
}

fn reads(path: &str) -> bool {
    READS
        .iter()
        .any(|known| if known.ends_with('.') { path.starts_with(known) } else { path == *known })
}
