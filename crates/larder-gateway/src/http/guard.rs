//! Who may do what: logins, and pages of other sites that a browser shows.
//!
//! A page of any site can have a browser send requests to a server that the browser can reach. Two checks
//! keep it from using this server: the name in `Host` must be one that the server is known by, so that a site
//! can't pass its own name off as this server's address (DNS rebinding), and a request that changes something
//! must not come from another site (`Origin`).

use super::problem::Problem;
use crate::abort;
use crate::server_view::Rights;
use crate::web::app::App;
use crate::web::body::discard;
use crate::web::login::rights;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use hyper::header::{EXPECT, HOST, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, StatusCode};
use std::net::IpAddr;

/// What is shown without a login.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];
/// What shows items of this server alone; other requests about items are answered wherever these are.
const LIST: &str = "/v1/keys";

/// Lets requests through that are allowed.
///
/// # Errors
/// A [`Problem`].
pub(super) async fn guard(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if let Err(problem) = check(&app, &request) {
        // Many clients read no answer before they have sent the body, unless they ask first.
        if !request.headers().contains_key(EXPECT) {
            discard(&mut request.into_body()).await;
        }
        return Err(problem);
    }
    abort::run_abortable(next.run(request)).await.map_err(Problem::from)
}

fn check(app: &App, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let host = host(request)?;
    if let Some(host) = &host
        && !is_known(host.host(), &app.hosts)
    {
        let detail = "The server is not known by the name in Host: give it as --http-host.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if !reads && !is_of_this_site(headers, host.as_ref(), &app.origins) {
        let detail = "The request comes from another site: allow it by --http-cors.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    if OPEN_PATHS.contains(&request.uri().path()) {
        return Ok(());
    }
    if request.uri().path() == LIST && !app.view.serves(reads) {
        return Err(Problem::owner_unreachable());
    }
    if !reads && app.view.read_only() {
        let detail = "This server has a copy: send changes to its leader.";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    match rights(app, headers).ok_or_else(Problem::login_required)? {
        Rights::All => Ok(()),
        Rights::Read if reads => Ok(()),
        Rights::Read => Err(Problem::new(StatusCode::FORBIDDEN, "This login may only read.")),
    }
}

/// The name that the client has for the server; `None` if it says none, as HTTP/1.0 allows.
fn host(request: &Request) -> Result<Option<Authority>, Problem> {
    if let Some(authority) = request.uri().authority() {
        return Ok(Some(authority.clone()));
    }
    let Some(host) = request.headers().get(HOST) else { return Ok(None) };
    let parsed = Authority::try_from(host.as_bytes());
    parsed.map(Some).map_err(|_| Problem::bad_request("Host is not a name or an address."))
}

fn is_known(host: &str, hosts: &[String]) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}

/// Whether the page that sent the request, if one did, is of this server, or of a site that is allowed.
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
    fn a_server_is_known_by_addresses_and_by_names_that_were_given() {
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
    fn changes_come_from_no_page_or_from_one_of_this_server() {
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
