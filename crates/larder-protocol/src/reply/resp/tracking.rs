//! Replies to `CLIENT TRACKINGINFO`, `SUBSCRIBE` and `UNSUBSCRIBE`, and invalidation messages.

use super::element::{Version, array, bulk, integer, length, map, null};
use crate::resp::INVALIDATION_CHANNEL;

/// The form of an invalidation message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageForm {
    /// RESP3: a push of the type `invalidate`.
    Push,
    /// RESP2: a message on the channel [`INVALIDATION_CHANNEL`].
    Channel,
}

/// Writes an invalidation message: the client must drop its copies of the items under these keys.
pub fn invalidate<'k>(
    form: MessageForm,
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
    out: &mut Vec<u8>,
) {
    message_head(form, out);
    array(keys.len(), out);
    keys.for_each(|key| bulk(key, out));
}

/// Writes an invalidation message: the client must drop its copies of all items.
pub fn invalidate_all(form: MessageForm, out: &mut Vec<u8>) {
    message_head(form, out);
    let version = if form == MessageForm::Push { Version::Resp3 } else { Version::Resp2 };
    null(version, out);
}

/// Writes the message that connection number `target` has closed, to which the client's
/// invalidation messages were redirected. Only RESP3 has this message.
pub fn redirect_broken(target: u64, out: &mut Vec<u8>) {
    length(b'>', 2, out);
    bulk(b"tracking-redir-broken", out);
    integer(target.cast_signed(), out);
}

fn message_head(form: MessageForm, out: &mut Vec<u8>) {
    match form {
        MessageForm::Push => {
            length(b'>', 2, out);
            bulk(b"invalidate", out);
        }
        MessageForm::Channel => {
            array(3, out);
            bulk(b"message", out);
            bulk(INVALIDATION_CHANNEL, out);
        }
    }
}

/// Writes the reply to `SUBSCRIBE` or `UNSUBSCRIBE` (`kind`) for a channel. `count` is the number
/// of channels that the connection subscribes to afterwards.
pub fn subscription(
    version: Version,
    kind: &str,
    channel: Option<&[u8]>,
    count: usize,
    out: &mut Vec<u8>,
) {
    match version {
        Version::Resp2 => array(3, out),
        Version::Resp3 => length(b'>', 3, out),
    }
    bulk(kind.as_bytes(), out);
    match channel {
        Some(channel) => bulk(channel, out),
        None => null(version, out),
    }
    integer(count.cast_signed() as i64, out);
}

/// Writes the reply to `PING` on a RESP2 connection that subscribes to a channel.
pub fn subscribed_pong(text: &[u8], out: &mut Vec<u8>) {
    array(2, out);
    bulk(b"pong", out);
    bulk(text, out);
}

/// Writes the reply to `CLIENT TRACKINGINFO`. `redirect` is -1 without tracking, and 0 if messages
/// are not redirected.
pub fn tracking_info(
    version: Version,
    flags: &[&str],
    redirect: i64,
    prefixes: &[Box<[u8]>],
    out: &mut Vec<u8>,
) {
    map(version, 3, out);
    bulk(b"flags", out);
    match version {
        Version::Resp2 => array(flags.len(), out),
        Version::Resp3 => length(b'~', flags.len(), out),
    }
    flags.iter().for_each(|flag| bulk(flag.as_bytes(), out));
    bulk(b"redirect", out);
    integer(redirect, out);
    bulk(b"prefixes", out);
    array(prefixes.len(), out);
    prefixes.iter().for_each(|prefix| bulk(prefix, out));
}
