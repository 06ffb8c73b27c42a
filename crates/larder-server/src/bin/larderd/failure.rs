//! The errors that end larderd, with their exit statuses.

use std::fmt::Display;

/// Exit statuses, as memcached uses them (`sysexits.h`).
pub(crate) const EX_USAGE: u8 = 64;
pub(crate) const EX_NOUSER: u8 = 67;
pub(crate) const EX_OSERR: u8 = 71;

/// Why the server did not start, or ended.
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) message: String,
}

pub(crate) fn failure(status: u8) -> impl Fn(&dyn Display) -> Failure {
    move |message| Failure { status, message: message.to_string() }
}
