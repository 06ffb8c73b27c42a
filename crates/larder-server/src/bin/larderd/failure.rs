//! The errors that stop larderd, and their exit statuses.

use std::fmt::Display;

/// The exit statuses, from `sysexits.h`. memcached uses all but `EX_UNAVAILABLE`.
pub(crate) const EX_USAGE: u8 = 64;
pub(crate) const EX_NOUSER: u8 = 67;
pub(crate) const EX_UNAVAILABLE: u8 = 69;
pub(crate) const EX_OSERR: u8 = 71;

/// The exit status and the message of an error that stops the server.
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) message: String,
}

pub(crate) fn failure(status: u8) -> impl Fn(&dyn Display) -> Failure {
    move |message| Failure { status, message: message.to_string() }
}
