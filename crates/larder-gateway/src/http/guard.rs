//! Access checks: logins, and protection against cross-site requests (CSRF) and DNS rebinding.
//!
//! A web page of any site can make a browser send requests to every server that the browser
//! reaches. Two checks protect this server. `Host` must have an IP address, `localhost` or a name
//! of the server, which prevents DNS rebinding. `Origin` of a request that changes something must
//! not name another site, unless the configuration allows that site, which prevents CSRF.

use super::problem::Problem;
use crate::abort;
use crate::host::host_field;
use crate::server_view::Rights;
use crate::web::app::App;
use crate::web::body::{SharedBody, discard};
use crate::web::login::rights;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{EXPECT, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, StatusCode};
use std::net::IpAddr;

/// Paths that need no login.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];
/// The path of key lists. A list contains only items of this server, so the server refuses requests
/// for lists while it does not serve its group.
const LIST: &str = "/v1/keys";

/// Passes allowed requests to their handlers. Receives the body of a refused request before the
/// reply is sent.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return answer(&app, request, next).await;
    }
    let expects_continue = request.headers().contains_key(EXPECT);
    let (parts, body) = request.into_parts();
    let body = SharedBody::new(body);
    let request = Request::from_parts(parts, Body::new(body.clone()));
    let answer = answer(&app, request, next).await;
    let timed_out = answer.status() == StatusCode::REQUEST_TIMEOUT;
    // Many clients first send the whole body and then read the reply, so receive the body. A client
    // that still waits for `100 Continue` sends nothing.
    let client_sends_body = body.is_polled() || !expects_continue;
    if answer.status().is_client_error() && !timed_out && client_sends_body && !body.is_end_stream()
    {
        discard(&mut Body::new(body)).await;
    }
    answer
}

async fn answer(app: &App, request: Request, next: Next) -> Response {
    let answer = match check(app, &request) {
        Ok(()) => abort::run_abortable(next.run(request)).await.map_err(Problem::from),
        Err(problem) => Err(problem),
    };
    answer.into_response()
}

fn check(app: &App, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let host = host(request)?;
    if let Some(host) = &host
        && !is_known(host.host(), &app.hosts)
    {
        let detail = "The name in Host is not a name of this server: allow it with --http-host.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if !reads && !is_of_this_site(headers, host.as_ref(), &app.origins) {
        let detail =
            "The request comes from a page of another site: allow its origin with --http-cors.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if OPEN_PATHS.contains(&request.uri().path()) {
        return Ok(());
    }
    if request.uri().path() == LIST && !app.view.serves(reads) {
        return Err(Problem::owner_unreachable());
    }
    if !reads && app.view.read_only() {
        let detail = "This server is a replica: send changes to its leader.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    match rights(app, headers).ok_or_else(Problem::login_required)? {
        Rights::All => Ok(()),
        Rights::Read if reads => Ok(()),
        Rights::Read => Err(Problem::new(StatusCode::FORBIDDEN, "This login may only read.")),
    }
}

/// Returns the host and port that the client uses for the server; `None` if the request names no
/// host, which HTTP/1.0 allows.
///
/// # Errors
/// The host is invalid or given twice, or an HTTP/1.1 request has none (RFC 9112, 3.2).
fn host(request: &Request) -> Result<Option<Authority>, Problem> {
    let host = host_field(request.version(), request.headers()).map_err(Problem::bad_request)?;
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.clone()));
    }
    let Some(host) = host else { return Ok(None) };
    let parsed = Authority::try_from(host.as_bytes());
    parsed.map(Some).map_err(|_| Problem::bad_request("Host is neither a name nor an address."))
}

fn is_known(host: &str, hosts: &[String]) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}

/// Returns whether the request's `Origin` is missing, is the origin of this server, or is an
/// allowed origin.
fn is_of_this_site(headers: &HeaderMap, host: Option<&Authority>, origins: &[String]) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let Ok(origin) = origin.to_str() else { return false };
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    let is_own = authority.zip(host).is_some_and(|(from, host)| host == from);
    is_own || origins.iter().any(|allowed| allowed == origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_an_address_or_a_configured_name() {
        let hosts = ["cache.example".to_owned()];
        for (host, expected) in [
            ("127.0.0.1", true),
            ("[::1]", true),
            ("10.1.2.3", true),
            ("localhost", true),
            ("Cache.Example", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_known(host, &hosts), expected, "{host}");
        }
    }

    #[test]
    fn origin_is_absent_or_of_this_server_or_allowed() {
        let host = Authority::from_static("127.0.0.1:8080");
        let origins = ["https://app.example".to_owned()];
        for (origin, expected) in [
            (None, true),
            (Some("http://127.0.0.1:8080"), true),
            (Some("http://127.0.0.1:8081"), false),
            (Some("https://app.example"), true),
            (Some("http://app.example"), false),
            (Some("null"), false),
            (Some("https://evil.example"), false),
        ] {
            let mut headers = HeaderMap::new();
            origin.map(|origin| headers.insert(ORIGIN, origin.parse().unwrap()));
            assert_eq!(is_of_this_site(&headers, Some(&host), &origins), expected, "{origin:?}");
        }
    }
}
