//! Logins. Until a login succeeds, the parser refuses all other requests, except a binary
//! `version`. The host checks the credentials.

use crate::Host;
use crate::context::Context;
use crate::session::Session;
use larder_protocol::{Claim, Login, reply};
use larder_store::Engine;

impl<E: Engine> Session<E> {
    #[cold]
    pub(crate) fn log_in<H: Host>(
        &mut self,
        cx: &mut Context<'_, E, H>,
        login: &Login<'_>,
        output: &mut Vec<u8>,
    ) {
        let admitted = match &login.claim {
            Claim::Mechanisms => return reply::mechanisms(&login.format, output),
            Claim::Started => return reply::login_started(&login.format, output),
            Claim::Credentials(credentials) => cx.host.authenticate(credentials),
            Claim::Invalid => false,
        };
        cx.operations.counters.thread.auth_cmds.add(1);
        if admitted {
            self.parser.admit();
            reply::admitted(&login.format, output);
        } else {
            cx.operations.counters.thread.auth_errors.add(1);
            reply::not_admitted(&login.format, output);
        }
    }
}
