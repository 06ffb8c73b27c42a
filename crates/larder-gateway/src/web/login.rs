//! The login of a request, in its `Authorization`.

use super::app::App;
use crate::server_view::{Login, Rights};
use headers::authorization::{Basic, Bearer};
use headers::{Authorization, HeaderMapExt};
use hyper::HeaderMap;

/// What the client may do; `None` if it has to log in, or its login is wrong.
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
