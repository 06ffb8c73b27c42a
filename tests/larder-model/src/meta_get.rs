//! The reply to an `mg` that finds an item. The flags take effect in the order of the request.

use crate::item::{Item, expiry, left};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use larder_protocol::{Exptime, Get, MetaFlags};

/// Writes the reply about `item` and applies the flags to it. `created` says whether this request
/// created the item (vivify).
pub(crate) fn answer(
    get: &Get<'_>,
    flags: &MetaFlags<'_>,
    key: &[u8],
    item: &mut Item,
    created: bool,
    now: u32,
    out: &mut Vec<u8>,
) {
    let with_value = get.value && get.compare != Some(item.cas);
    let mut words = match with_value {
        true => vec![format!("VA {}", item.value.len()).into_bytes()],
        false => vec![b"HD".to_vec()],
    };
    let mut wins = false;
    for token in flags.raw.split(|byte| *byte == b' ').filter(|token| !token.is_empty()) {
        match token[0] {
            b'T' => item.expires = get.touch.and_then(|touch| expiry(now, touch)),
            b'N' if created => {
                item.expires = get.vivify.and_then(|vivify| expiry(now, vivify));
                wins = true;
            }
            b'R' if !created && !item.won => {
                let recache = get.recache.and_then(|within| expiry(now, Exptime(within.into())));
                let recache = recache.map_or(0, |at| at - now);
                wins |= left(item, now).is_some_and(|left| left < recache);
            }
            b't' => {
                let ttl = left(item, now).map_or(-1, i64::from);
                words.push(format!("t{ttl}").into_bytes());
            }
            b'c' => words.push(format!("c{}", item.cas).into_bytes()),
            b'f' => words.push(format!("f{}", item.client_flags).into_bytes()),
            b'h' => words.push(format!("h{}", u8::from(item.fetched)).into_bytes()),
            b'l' => words.push(format!("l{}", now - item.accessed).into_bytes()),
            b's' => words.push(format!("s{}", item.value.len()).into_bytes()),
            b'O' => words.push(token.to_vec()),
            b'k' if item.binary_key => words.push(format!("k{} b", STANDARD.encode(key)).into()),
            b'k' => words.push([b"k", key].concat()),
            _ => (),
        }
    }
    for (shown, mark) in [(item.won, b'Z'), (item.stale, b'X')] {
        if shown {
            words.push(vec![mark]);
        }
    }
    if wins || item.stale && !item.won {
        words.push(b"W".to_vec());
        item.won = true;
    }
    out.extend(words.join(&b' '));
    out.extend(b"\r\n");
    if with_value {
        out.extend(&item.value);
        out.extend(b"\r\n");
    }
}
