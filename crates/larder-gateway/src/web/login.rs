//! The login of a request, from its `Authorization` header.

use super::app::App;
use crate::server_view::{Login, Rights};
use headers::authorization::{Basic, Bearer};
use headers::{Authorization, HeaderMapExt};
use hyper::HeaderMap;

/// Returns the permissions of the client: all if no login is required, `None` if a required login
/// is missing or wrong.
pub(crate) fn rights(app: &App, headers: &HeaderMap) -> Option<Rights> {
    if !app.view.login_required() {
        return Some(Rights::All);
    }
    if let Some(basic) = headers.typed_get::<Authorization<Basic>>() {
        let (user, password) = (basic.username().as_bytes(), basic.password().as_bytes());
        return app.view.log_in(&Login::User(user, password));
    }
    let bearer = headers.typed_get::<Authorization<Bearer>>()?;
    app.view.log_in(&Login::Token(bearer.token().as_bytes()))
}
