//! Requests back into bytes: for clients and load generators, and to hold the parsers to account.
#![expect(
    clippy::cast_possible_truncation,
    reason = "what is written back was read from fields of these widths"
)]

use crate::binary::{HEAD_LEN, MAGIC, NO_CREATE, opcode};
use crate::request::{
    Arithmetic, BinaryHead, Claim, Credentials, Delete, Exptime, Get, Key, Login, Password,
    ReplyFormat, Request, Store, StoreMode,
};

/// Writes `request` in the dialect of its format. Reading it again gives an equal request, but for
/// what the wire cannot say: faults write nothing, and a line of several keys becomes several lines.
pub fn write_request(request: &Request<'_>, out: &mut Vec<u8>) {
    match request {
        Request::Get(get) => write_get(get, out),
        Request::Store(store) => write_store(store, out),
        Request::Delete(delete) => write_delete(delete, out),
        Request::Arithmetic(arithmetic) => write_arithmetic(arithmetic, out),
        Request::Debug(debug) => meta(b"me", debug.key, &debug.format, out),
        Request::Noop(format) => bare(format, opcode::NOOP, "mn", out),
        Request::Version(format) => bare(format, opcode::VERSION, "version", out),
        Request::Quit(format) => bare(format, opcode::QUIT, "quit", out),
        Request::FlushAll { delay, format } => write_flush(*delay, format, out),
        Request::Verbosity { level, format } => {
            words(&["verbosity", &level.to_string()], format, out);
        }
        Request::Stats { topic, format } => write_stats(topic, format, out),
        Request::Admin { command, format } => words(&[&command.line()], format, out),
        Request::Login(login) => write_login(login, out),
        Request::GetEnd | Request::Fault(_) => (),
    }
}

/// Binary logs in by SASL PLAIN; what has no credentials is written as the list of mechanisms.
fn write_login(login: &Login<'_>, out: &mut Vec<u8>) {
    let Claim::Credentials(Credentials { user, password: Password(password) }) = login.claim else {
        return bare(&login.format, opcode::SASL_LIST, "", out);
    };
    match &login.format {
        ReplyFormat::Binary(head) => {
            let head = BinaryHead { opcode: opcode::SASL_AUTH, ..*head };
            let message = [&[0], user, &[0], password].concat();
            binary(&head, &[], b"PLAIN", &message, None, out);
        }
        ReplyFormat::Classic(_) | ReplyFormat::Meta(_) => {
            let len = user.len() + 1 + password.len();
            words(&["set auth 0 0", &len.to_string()], &login.format, out);
            for part in [user, b" ", password, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
    }
}

fn write_get(get: &Get<'_>, out: &mut Vec<u8>) {
    match &get.format {
        ReplyFormat::Classic(classic) => {
            let exptime = get.touch.map(|at| at.0.to_string());
            match (get.value, classic.with_cas, &exptime) {
                (true, false, None) => out.extend_from_slice(b"get "),
                (true, true, None) => out.extend_from_slice(b"gets "),
                (true, false, Some(at)) => out.extend_from_slice(format!("gat {at} ").as_bytes()),
                (true, true, Some(at)) => out.extend_from_slice(format!("gats {at} ").as_bytes()),
                (false, ..) => out.extend_from_slice(b"touch "),
            }
            out.extend_from_slice(get.key.wire);
            if let (false, Some(at)) = (get.value, exptime) {
                out.extend_from_slice(format!(" {at}").as_bytes());
            }
            line_end(&get.format, out);
        }
        ReplyFormat::Meta(_) => meta(b"mg", get.key, &get.format, out),
        ReplyFormat::Binary(head) => {
            let extras = get.touch.map(wire_exptime);
            let extras = extras.as_ref().map_or(&[][..], |bytes| bytes);
            binary(head, extras, get.key.wire, &[], None, out);
        }
    }
}

fn write_store(store: &Store<'_>, out: &mut Vec<u8>) {
    let value_len = store.value_len.to_string();
    match &store.format {
        ReplyFormat::Classic(_) => {
            let command = match (store.mode, store.compare) {
                (_, Some(_)) => "cas",
                (StoreMode::Set, _) => "set",
                (StoreMode::Add, _) => "add",
                (StoreMode::Replace, _) => "replace",
                (StoreMode::Append, _) => "append",
                (StoreMode::Prepend, _) => "prepend",
            };
            out.extend_from_slice(command.as_bytes());
            out.push(b' ');
            out.extend_from_slice(store.key.wire);
            let (flags, exptime) = (store.client_flags, store.expiry.0);
            out.extend_from_slice(format!(" {flags} {exptime} {value_len}").as_bytes());
            if let Some(cas) = store.compare {
                out.extend_from_slice(format!(" {cas}").as_bytes());
            }
            line_end(&store.format, out);
            block(store, out);
        }
        ReplyFormat::Meta(flags) => {
            out.extend_from_slice(b"ms ");
            out.extend_from_slice(store.key.wire);
            for part in [value_len.as_bytes(), flags.raw] {
                out.push(b' ');
                out.extend_from_slice(part);
            }
            out.extend_from_slice(b"\r\n");
            block(store, out);
        }
        ReplyFormat::Binary(head) => {
            let concatenates = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
            let mut extras = store.client_flags.to_be_bytes().to_vec();
            extras.extend_from_slice(&wire_exptime(store.expiry));
            let extras = if concatenates { &[][..] } else { &extras };
            binary(head, extras, store.key.wire, store.value, store.compare, out);
        }
    }
}

fn block(store: &Store<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(store.value);
    out.extend_from_slice(if store.terminated { b"\r\n" } else { b"??" });
}

fn write_delete(delete: &Delete<'_>, out: &mut Vec<u8>) {
    match &delete.format {
        ReplyFormat::Classic(_) => {
            out.extend_from_slice(b"delete ");
            out.extend_from_slice(delete.key.wire);
            line_end(&delete.format, out);
        }
        ReplyFormat::Meta(_) => meta(b"md", delete.key, &delete.format, out),
        ReplyFormat::Binary(head) => binary(head, &[], delete.key.wire, &[], delete.compare, out),
    }
}

fn write_arithmetic(arithmetic: &Arithmetic<'_>, out: &mut Vec<u8>) {
    match &arithmetic.format {
        ReplyFormat::Classic(_) => {
            out.extend_from_slice(if arithmetic.down { b"decr " } else { b"incr " });
            out.extend_from_slice(arithmetic.key.wire);
            out.extend_from_slice(format!(" {}", arithmetic.delta).as_bytes());
            line_end(&arithmetic.format, out);
        }
        ReplyFormat::Meta(_) => meta(b"ma", arithmetic.key, &arithmetic.format, out),
        ReplyFormat::Binary(head) => {
            let mut extras = arithmetic.delta.to_be_bytes().to_vec();
            extras.extend_from_slice(&arithmetic.initial.to_be_bytes());
            let exptime = arithmetic.vivify.map_or(NO_CREATE.to_be_bytes(), wire_exptime);
            extras.extend_from_slice(&exptime);
            binary(head, &extras, arithmetic.key.wire, &[], arithmetic.compare, out);
        }
    }
}

fn write_flush(delay: Exptime, format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => binary(head, &wire_exptime(delay), &[], &[], None, out),
        _ => words(&["flush_all", &delay.0.to_string()], format, out),
    }
}

fn write_stats(topic: &[u8], format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    if let ReplyFormat::Binary(head) = format {
        return binary(head, &[], topic, &[], None, out);
    }
    out.extend_from_slice(b"stats ");
    out.extend_from_slice(topic);
    line_end(format, out);
}

fn wire_exptime(exptime: Exptime) -> [u8; 4] {
    (exptime.0 as u32).to_be_bytes()
}

fn bare(format: &ReplyFormat<'_>, opcode: u8, word: &str, out: &mut Vec<u8>) {
    match format {
        ReplyFormat::Binary(head) => {
            let opcode = if head.quiet { head.opcode } else { opcode };
            binary(&BinaryHead { opcode, ..*head }, &[], &[], &[], None, out);
        }
        _ => words(&[word], format, out),
    }
}

fn words(words: &[&str], format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(words.join(" ").as_bytes());
    line_end(format, out);
}

fn line_end(format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    let noreply = matches!(format, ReplyFormat::Classic(classic) if classic.noreply);
    out.extend_from_slice(if noreply { b" noreply\r\n" } else { b"\r\n" });
}

fn meta(command: &[u8], key: Key<'_>, format: &ReplyFormat<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(command);
    out.push(b' ');
    out.extend_from_slice(key.wire);
    if let ReplyFormat::Meta(flags) = format {
        out.push(b' ');
        out.extend_from_slice(flags.raw);
    }
    out.extend_from_slice(b"\r\n");
}

fn binary(
    head: &BinaryHead,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
    cas: Option<u64>,
    out: &mut Vec<u8>,
) {
    let mut bytes = [0; HEAD_LEN];
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    bytes[0] = MAGIC;
    bytes[1] = head.opcode;
    bytes[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    bytes[4] = extras.len() as u8;
    bytes[8..12].copy_from_slice(&body_len.to_be_bytes());
    bytes[12..16].copy_from_slice(&head.opaque);
    bytes[16..].copy_from_slice(&cas.unwrap_or(0).to_be_bytes());
    out.extend_from_slice(&bytes);
    for part in [extras, key, value] {
        out.extend_from_slice(part);
    }
}
