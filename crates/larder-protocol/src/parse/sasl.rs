//! Parsing of binary streams that require a SASL login. The only mechanism is PLAIN (RFC 4616).
//!
//! ```text
//!            credentials accepted
//!  New ───────────────────────────▶ Authenticated ── any SASL request ──▶ Spent
//!   │ ▲                                ▲
//!   │ └───── AUTH, refused ─────┐      │ credentials accepted
//!   └─ AUTH without message ─▶ Started ┘  (a refused STEP keeps this state)
//! ```
//!
//! As with memcached's SASL library, a connection can log in once. Any further SASL request revokes
//! the login, even a request for the list of mechanisms.

use crate::parse::binary::{self, HEAD_LEN, Head, MAGIC, has_sasl_shape, opcode};
use crate::parse::login::MESSAGE_LEN_MAX;
use crate::parse::parsed::faulty;
use crate::request::{
    Claim, Credentials, FaultReply, KEY_LEN_MAX, Login, Parsed, Password, Recovery, ReplyFormat,
    Request, Status,
};

/// The state of a connection's login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    New,
    Started,
    Authenticated,
    Spent,
}

/// The maximum length of a mechanism's name, in bytes.
const MECHANISM_LEN_MAX: usize = 32;

/// Parses the start of a binary stream that requires a login.
pub(crate) fn parse<'b>(stage: &mut Stage, input: &'b [u8]) -> Parsed<'b> {
    if *stage == Stage::Authenticated && !input.get(1).is_some_and(|&op| is_sasl(op)) {
        return binary::parse(input);
    }
    let (Some(&MAGIC), Some(head)) = (input.first(), Head::read(input)) else {
        // The head is incomplete, or the request is not binary.
        return binary::parse(input);
    };
    let refuse = |status, then| {
        let reply = FaultReply::Binary { head: head.binary_head(), status };
        faulty(reply, then, HEAD_LEN)
    };
    if let Some((status, then)) = binary::bad_lengths(&head) {
        return refuse(status, then);
    }
    if !is_sasl(head.opcode) {
        return match head.opcode {
            opcode::VERSION => binary::parse(input),
            _ => refuse(Status::AuthFailure, Recovery::Close),
        };
    }
    if !has_sasl_shape(&head) || head.key_len > KEY_LEN_MAX {
        return refuse(Status::InvalidArguments, Recovery::Close);
    }
    if head.key_len > MECHANISM_LEN_MAX {
        return refuse(Status::InvalidArguments, Recovery::Swallow(head.body_len as u64));
    }
    if head.value_len() > MESSAGE_LEN_MAX {
        return refuse(Status::OutOfMemory, Recovery::Swallow(head.body_len as u64));
    }
    let consumed = HEAD_LEN + head.body_len;
    let Some(body) = input.get(HEAD_LEN..consumed) else { return Parsed::Incomplete };
    let (mechanism, message) = body.split_at_checked(head.key_len).unwrap_or_default();
    let (claim, next) = step(*stage, head.opcode, mechanism, message);
    *stage = next;
    let login = Login { claim, format: ReplyFormat::Binary(head.binary_head()) };
    Parsed::Request { request: Request::Login(login), consumed }
}

fn is_sasl(op: u8) -> bool {
    matches!(op, opcode::SASL_LIST | opcode::SASL_AUTH | opcode::SASL_STEP)
}

/// Returns the claim of a request, and the next state if the claim is not accepted.
fn step<'b>(stage: Stage, op: u8, mechanism: &[u8], message: &'b [u8]) -> (Claim<'b>, Stage) {
    use Stage::{Authenticated, New, Spent, Started};
    match (stage, op) {
        (Authenticated | Spent, opcode::SASL_LIST) => (Claim::Mechanisms, Spent),
        (New | Started, opcode::SASL_LIST) => (Claim::Mechanisms, stage),
        (Authenticated | Spent, _) => (Claim::Invalid, Spent),
        (New | Started, opcode::SASL_AUTH) if !mechanism.eq_ignore_ascii_case(b"PLAIN") => {
            (Claim::Invalid, New)
        }
        (New | Started, opcode::SASL_AUTH) if message.is_empty() => (Claim::Started, Started),
        (New | Started, opcode::SASL_AUTH) => (plain(message), New),
        // A step continues the started mechanism. The parser ignores the name of the mechanism in
        // the step.
        (Started, _) => (plain(message), Started),
        (New, _) => (Claim::Invalid, New),
    }
}

/// Parses `[authorization] NUL user NUL password`. The authorization identity must be empty or
/// equal to the user name.
fn plain(message: &[u8]) -> Claim<'_> {
    let mut parts = message.split(|&byte| byte == 0);
    let parts = [parts.next(), parts.next(), parts.next(), parts.next()];
    let [Some(acts_for), Some(user), Some(password), None] = parts else { return Claim::Invalid };
    let whole = !user.is_empty() && !password.is_empty();
    if !whole || !(acts_for.is_empty() || acts_for == user) {
        return Claim::Invalid;
    }
    Claim::Credentials(Credentials { user, password: Password(password) })
}
