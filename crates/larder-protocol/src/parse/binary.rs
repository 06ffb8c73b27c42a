//! Parsing of binary requests: a 24-byte head, then extras, key and value.
//!
//! ```text
//! 0      1      2        4       5     6        8        12       16       24
//! ┌──────┬──────┬────────┬───────┬─────┬────────┬────────┬────────┬────────┐
//! │magic │opcode│key len │extras │type │vbucket │body len│opaque  │cas     │
//! └──────┴──────┴────────┴───────┴─────┴────────┴────────┴────────┴────────┘
//! ```

use crate::parse::parsed::faulty;
use crate::request::{
    Admin, Arithmetic, BinaryHead, Delete, Exptime, Fault, FaultReply, Get, KEY_LEN_MAX, Key,
    Parsed, Recovery, ReplyFormat, Request, Status, Store, StoreMode,
};

/// The first byte of a request.
pub(crate) const MAGIC: u8 = 0x80;
/// The length of a head in bytes.
pub(crate) const HEAD_LEN: usize = 24;
/// The maximum length of an accepted body, in bytes.
pub(crate) const BODY_LEN_MAX: usize = 1 << 30;
/// The expiry of an increment or decrement that must not create the item.
pub(crate) const NO_CREATE: u32 = u32::MAX;

/// Opcodes. A name that ends in Q denotes a quiet form.
pub(crate) mod opcode {
    pub(crate) const GET: u8 = 0x00;
    pub(crate) const SET: u8 = 0x01;
    pub(crate) const ADD: u8 = 0x02;
    pub(crate) const REPLACE: u8 = 0x03;
    pub(crate) const DELETE: u8 = 0x04;
    pub(crate) const INCREMENT: u8 = 0x05;
    pub(crate) const DECREMENT: u8 = 0x06;
    pub(crate) const QUIT: u8 = 0x07;
    pub(crate) const FLUSH: u8 = 0x08;
    pub(crate) const GETQ: u8 = 0x09;
    pub(crate) const NOOP: u8 = 0x0a;
    pub(crate) const VERSION: u8 = 0x0b;
    pub(crate) const GETK: u8 = 0x0c;
    pub(crate) const GETKQ: u8 = 0x0d;
    pub(crate) const APPEND: u8 = 0x0e;
    pub(crate) const PREPEND: u8 = 0x0f;
    pub(crate) const STAT: u8 = 0x10;
    pub(crate) const SETQ: u8 = 0x11;
    pub(crate) const ADDQ: u8 = 0x12;
    pub(crate) const REPLACEQ: u8 = 0x13;
    pub(crate) const DELETEQ: u8 = 0x14;
    pub(crate) const INCREMENTQ: u8 = 0x15;
    pub(crate) const DECREMENTQ: u8 = 0x16;
    pub(crate) const QUITQ: u8 = 0x17;
    pub(crate) const FLUSHQ: u8 = 0x18;
    pub(crate) const APPENDQ: u8 = 0x19;
    pub(crate) const PREPENDQ: u8 = 0x1a;
    pub(crate) const TOUCH: u8 = 0x1c;
    pub(crate) const GAT: u8 = 0x1d;
    pub(crate) const GATQ: u8 = 0x1e;
    pub(crate) const SASL_LIST: u8 = 0x20;
    pub(crate) const SASL_AUTH: u8 = 0x21;
    pub(crate) const SASL_STEP: u8 = 0x22;
    pub(crate) const GATK: u8 = 0x23;
    pub(crate) const GATKQ: u8 = 0x24;
    /// Amazon ElastiCache's `config get`.
    pub(crate) const CONFIG_GET: u8 = 0x60;
}

/// The fields of a head.
pub(crate) struct Head {
    pub(crate) opcode: u8,
    pub(crate) key_len: usize,
    pub(crate) extras_len: usize,
    pub(crate) body_len: usize,
    opaque: [u8; 4],
    cas: u64,
}

impl Head {
    #[inline]
    pub(crate) fn read(input: &[u8]) -> Option<Self> {
        let &[_, opcode, k0, k1, extras_len, _, _, _, b0, b1, b2, b3, o0, o1, o2, o3, ref cas @ ..] =
            input.first_chunk::<HEAD_LEN>()?;
        Some(Self {
            opcode,
            key_len: u16::from_be_bytes([k0, k1]).into(),
            extras_len: extras_len.into(),
            body_len: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            opaque: [o0, o1, o2, o3],
            cas: u64::from_be_bytes(*cas),
        })
    }

    pub(crate) fn value_len(&self) -> usize {
        self.body_len - self.key_len - self.extras_len
    }

    pub(crate) fn binary_head(&self) -> BinaryHead {
        use opcode::*;
        let with_key = matches!(self.opcode, GETK | GETKQ | GATK | GATKQ);
        BinaryHead {
            opcode: self.opcode,
            opaque: self.opaque,
            quiet: is_quiet(self.opcode),
            with_key,
        }
    }

    pub(crate) fn compare(&self) -> Option<u64> {
        (self.cas != 0).then_some(self.cas)
    }
}

fn is_quiet(op: u8) -> bool {
    use opcode::*;
    matches!(op, SETQ..=PREPENDQ | GETQ | GETKQ | GATQ | GATKQ)
}

#[inline]
pub(crate) fn parse(input: &[u8]) -> Parsed<'_> {
    match input.first() {
        None => return Parsed::Incomplete,
        Some(&MAGIC) => (),
        Some(_) => return faulty(FaultReply::Silent, Recovery::Close, input.len()),
    }
    let Some(head) = Head::read(input) else { return Parsed::Incomplete };
    if let Some((status, then)) = check_head(&head) {
        let reply = FaultReply::Binary { head: head.binary_head(), status };
        return faulty(reply, then, HEAD_LEN);
    }
    let fixed = HEAD_LEN + head.extras_len + head.key_len;
    let (Some(extras), Some(key)) = (
        input.get(HEAD_LEN..HEAD_LEN + head.extras_len),
        input.get(HEAD_LEN + head.extras_len..fixed),
    ) else {
        return Parsed::Incomplete;
    };
    let whole = |request| Parsed::Request { request, consumed: HEAD_LEN + head.body_len };
    let format = ReplyFormat::Binary(head.binary_head());
    use opcode::*;
    match head.opcode {
        GET | GETQ | GETK | GETKQ => whole(Request::Get(get(&head, key, None, true))),
        TOUCH => whole(Request::Get(get(&head, key, Some(expiry(extras)), false))),
        GAT | GATQ | GATK | GATKQ => {
            whole(Request::Get(get(&head, key, Some(expiry(extras)), true)))
        }
        SET..=REPLACE | SETQ..=REPLACEQ | APPEND | PREPEND | APPENDQ | PREPENDQ => {
            store(&head, extras, key, input.get(fixed..).unwrap_or_default(), fixed)
        }
        DELETE | DELETEQ => whole(Request::Delete(delete(&head, key))),
        INCREMENT | INCREMENTQ => whole(Request::Arithmetic(arithmetic(&head, extras, key, false))),
        DECREMENT | DECREMENTQ => whole(Request::Arithmetic(arithmetic(&head, extras, key, true))),
        QUIT | QUITQ => whole(Request::Quit(format)),
        FLUSH | FLUSHQ => whole(Request::FlushAll { at: expiry(extras), format }),
        NOOP => whole(Request::Noop(format)),
        VERSION => whole(Request::Version(format)),
        CONFIG_GET => whole(config(&head, key, format)),
        // STAT: ignore any value after the key.
        _ if input.len() < HEAD_LEN + head.body_len => Parsed::Incomplete,
        _ => whole(Request::Stats { topic: key, format }),
    }
}

/// Checks the lengths in a head, for any opcode. Returns the error if they are inconsistent or too
/// large.
#[inline]
pub(crate) fn bad_lengths(head: &Head) -> Option<(Status, Recovery)> {
    if head.key_len + head.extras_len > head.body_len {
        return Some((Status::UnknownCommand, Recovery::Close));
    }
    (head.body_len > BODY_LEN_MAX).then_some((Status::InvalidArguments, Recovery::Close))
}

/// Checks a head before its body has arrived. Returns the error if it is invalid.
#[inline]
fn check_head(head: &Head) -> Option<(Status, Recovery)> {
    use opcode::*;
    if let Some(bad) = bad_lengths(head) {
        return Some(bad);
    }
    if head.key_len > KEY_LEN_MAX {
        return Some((Status::InvalidArguments, Recovery::Close));
    }
    let (extras, has_key, has_value) = (head.extras_len, head.key_len > 0, head.value_len() > 0);
    let right = match head.opcode {
        GET | GETQ | GETK | GETKQ | DELETE | DELETEQ => extras == 0 && has_key && !has_value,
        SET..=REPLACE | SETQ..=REPLACEQ => extras == 8 && has_key,
        APPEND | PREPEND | APPENDQ | PREPENDQ => extras == 0 && has_key,
        INCREMENT | DECREMENT | INCREMENTQ | DECREMENTQ => extras == 20 && has_key && !has_value,
        TOUCH | GAT | GATQ | GATK | GATKQ => extras == 4 && has_key && !has_value,
        QUIT | QUITQ | NOOP | VERSION => head.body_len == 0,
        FLUSH | FLUSHQ => !has_key && !has_value && matches!(extras, 0 | 4),
        // STAT ignores its value. Refuse a long value, so that the server does not buffer it.
        STAT => extras == 0 && head.value_len() <= KEY_LEN_MAX,
        CONFIG_GET if extras == 0 && has_key && !has_value => true,
        SASL_LIST | SASL_AUTH | SASL_STEP if !has_sasl_shape(head) => false,
        _ => return Some((Status::UnknownCommand, Recovery::Swallow(head.body_len as u64))),
    };
    if right { None } else { Some((Status::InvalidArguments, Recovery::Close)) }
}

/// Returns whether a SASL request has the fields that its opcode requires.
pub(crate) fn has_sasl_shape(head: &Head) -> bool {
    match head.opcode {
        opcode::SASL_LIST => head.body_len == 0,
        _ => head.extras_len == 0 && head.key_len > 0,
    }
}

#[inline]
fn get<'b>(head: &Head, key: &'b [u8], touch: Option<Exptime>, value: bool) -> Get<'b> {
    Get {
        key: Key::raw(key),
        value,
        touch,
        vivify: None,
        recache: None,
        compare: None,
        new_cas: None,
        untracked: false,
        format: ReplyFormat::Binary(head.binary_head()),
    }
}

/// Parses `config get`. The only configuration is `cluster`. The reply to any other configuration
/// is "unknown command".
fn config<'b>(head: &Head, key: &[u8], format: ReplyFormat<'b>) -> Request<'b> {
    if key == b"cluster" {
        return Request::Admin { command: Admin::Servers, format };
    }
    let reply = FaultReply::Binary { head: head.binary_head(), status: Status::UnknownCommand };
    Request::Fault(Fault { reply, then: Recovery::Continue })
}

#[inline]
fn store<'b>(
    head: &Head,
    extras: &[u8],
    key: &'b [u8],
    body: &'b [u8],
    head_len: usize,
) -> Parsed<'b> {
    use opcode::*;
    let compare = head.compare();
    let mode = match head.opcode {
        APPEND | APPENDQ => StoreMode::Append,
        PREPEND | PREPENDQ => StoreMode::Prepend,
        // With a CAS, set, add and replace are all a compare-and-swap.
        _ if compare.is_some() => StoreMode::Set,
        ADD | ADDQ => StoreMode::Add,
        REPLACE | REPLACEQ => StoreMode::Replace,
        _ => StoreMode::Set,
    };
    let value_len = head.value_len();
    let store = Store {
        key: Key::raw(key),
        mode,
        client_flags: word(extras, 0),
        expiry: Exptime(word(extras, 4).into()),
        value_len,
        value: &[],
        terminated: true,
        compare,
        new_cas: None,
        invalidate: false,
        vivify: None,
        format: ReplyFormat::Binary(head.binary_head()),
    };
    match body.get(..value_len) {
        Some(value) => {
            let request = Request::Store(Store { value, ..store });
            Parsed::Request { request, consumed: head_len + value_len }
        }
        None => Parsed::StoreHead { store, head_len, body_len: value_len as u64 },
    }
}

fn delete<'b>(head: &Head, key: &'b [u8]) -> Delete<'b> {
    Delete {
        key: Key::raw(key),
        compare: head.compare(),
        new_cas: None,
        invalidate: false,
        value_only: false,
        touch: None,
        client_flags: None,
        format: ReplyFormat::Binary(head.binary_head()),
    }
}

fn arithmetic<'b>(head: &Head, extras: &[u8], key: &'b [u8], down: bool) -> Arithmetic<'b> {
    let long = |at| u64::from(word(extras, at)) << 32 | u64::from(word(extras, at + 4));
    let exptime = word(extras, 16);
    Arithmetic {
        key: Key::raw(key),
        down,
        delta: long(0),
        vivify: (exptime != NO_CREATE).then(|| Exptime(exptime.into())),
        initial: long(8),
        touch: None,
        compare: head.compare(),
        new_cas: None,
        format: ReplyFormat::Binary(head.binary_head()),
    }
}

/// Returns the big-endian 32-bit number at offset `at`, or 0 if fewer than four bytes remain.
#[inline]
fn word(extras: &[u8], at: usize) -> u32 {
    extras.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn expiry(extras: &[u8]) -> Exptime {
    Exptime(word(extras, 0).into())
}

impl Status {
    /// Returns the text in the body of an error reply.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Exists => "Data exists for key.",
            Self::TooLarge => "Too large.",
            Self::InvalidArguments => "Invalid arguments",
            Self::NotStored => "Not stored.",
            Self::NonNumeric => "Non-numeric server-side value for incr or decr",
            Self::AuthFailure => "Auth failure.",
            Self::UnknownCommand => "Unknown command",
            Self::OutOfMemory => "Out of memory",
            // Larder uses this status only for a group without a leader.
            Self::TemporaryFailure => "No leader",
            Self::NotSupported => "This server is a replica: send changes to its leader",
        }
    }
}
