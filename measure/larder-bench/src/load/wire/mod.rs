//! Encodes requests in each protocol, and decodes their replies.

pub(crate) mod custom;
pub(crate) mod recorded;

use crate::load::items::spaces::Space;
use crate::load::items::values::Value;
use crate::settings::Settings;
use larder_protocol::answer::{Answer, read_binary, read_resp, read_text};
use larder_protocol::encode::classic::KeyLine;
use larder_protocol::encode::{NewItem, NumberedKeys, WireKey, binary, classic, meta, resp};
use larder_protocol::response::Read;
use larder_protocol::{Exptime, RELATIVE_SECS_MAX, StoreMode};
use larder_target::Protocol;
use std::time::{SystemTime, UNIX_EPOCH};

/// Encodes requests. Each thread has its own writer, with buffers for keys and values.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    protocol: Protocol,
    /// Whether gets of several keys in the meta protocol also request the keys, which verification
    /// needs.
    with_keys: bool,
    /// The keys of each key space.
    names: Vec<NumberedKeys>,
    /// Buffer for joining the two parts of a value.
    value: Vec<u8>,
}

const META_GET: meta::GetFlags = meta::GetFlags::NONE.value().client_flags().ttl();
const META_GETS: meta::GetFlags = META_GET.quiet();
const META_GETS_WITH_KEYS: meta::GetFlags =
    meta::GetFlags::NONE.key().value().client_flags().ttl().quiet();
const BINARY: binary::Options = binary::Options { opaque: [0; 4], quiet: false };
const BINARY_QUIET: binary::Options = binary::Options { quiet: true, ..BINARY };

impl Writer {
    pub(crate) fn new(settings: &Settings, spaces: &[Space]) -> Self {
        Self {
            protocol: settings.protocol,
            with_keys: settings.verify,
            names: spaces.iter().map(|space| space.names.clone()).collect(),
            value: Vec::new(),
        }
    }

    /// Returns key `number` of a key space.
    #[inline]
    pub(crate) fn key(&mut self, space: u16, number: u64) -> WireKey<'_> {
        self.names[usize::from(space)].key(number)
    }

    /// Returns the names of a key space's keys, and the bytes of a value.
    pub(crate) fn parts<'v>(
        &'v mut self,
        space: u16,
        value: Option<&'v Value<'_>>,
    ) -> (&'v mut NumberedKeys, Option<&'v [u8]>) {
        let Self { names, value: memory, .. } = self;
        (&mut names[usize::from(space)], value.map(|value| value.bytes(memory)))
    }

    /// Appends a get of one key or several.
    #[expect(clippy::inline_always, reason = "part of the loop that fills a pipeline")]
    #[inline(always)]
    pub(crate) fn get(&mut self, space: u16, keys: &[u64], out: &mut Vec<u8>) {
        let names = &mut self.names[usize::from(space)];
        match (self.protocol, keys) {
            (Protocol::Text, _) => {
                let mut line = KeyLine::get(out);
                keys.iter().for_each(|key| line.push(names.key(*key)));
                line.end();
            }
            (Protocol::Meta, [key]) => {
                meta::get(names.key(*key).into(), META_GET, &meta::GetOptions::default(), out);
            }
            (Protocol::Meta, _) => {
                let flags = if self.with_keys { META_GETS_WITH_KEYS } else { META_GETS };
                for key in keys {
                    meta::get(names.key(*key).into(), flags, &meta::GetOptions::default(), out);
                }
                meta::noop(out);
            }
            (Protocol::Binary, [key]) => binary::get(names.key(*key), false, BINARY, out),
            (Protocol::Binary, _) => {
                keys.iter().for_each(|key| binary::get(names.key(*key), true, BINARY_QUIET, out));
                binary::noop(BINARY, out);
            }
            (Protocol::Resp, [key]) => resp::get(names.key(*key), out),
            (Protocol::Resp, _) => {
                resp::mget(keys.len(), out);
                keys.iter().for_each(|key| resp::mget_key(names.key(*key), out));
            }
        }
    }

    /// Appends a set. `expiry` is the TTL in seconds; 0 means no expiry.
    #[expect(clippy::inline_always, reason = "part of the loop that fills a pipeline")]
    #[inline(always)]
    pub(crate) fn set(
        &mut self,
        space: u16,
        key: u64,
        expiry: u32,
        value: &Value<'_>,
        out: &mut Vec<u8>,
    ) {
        let Self { names, value: memory, .. } = self;
        let key = names[usize::from(space)].key(key);
        let (value, ttl_secs, expiry) = (value.bytes(memory), expiry, exptime(expiry));
        let item = NewItem { expiry, ..NewItem::of(value) };
        match self.protocol {
            Protocol::Text => classic::set(key, &item, false, out),
            Protocol::Meta => {
                let options = meta::SetOptions { expiry, ..Default::default() };
                meta::set(key.into(), value, meta::SetFlags::NONE, &options, out);
            }
            Protocol::Binary => binary::store(StoreMode::Set, key, &item, 0, BINARY, out),
            Protocol::Resp => resp::set(key, value, ttl_secs, out),
        }
    }
}

/// Returns the expiry of an item with a TTL of `ttl_secs` seconds; 0 means no expiry.
#[inline]
fn exptime(ttl_secs: u32) -> Exptime {
    // A TTL above the limit for relative times is sent as a Unix time. A shorter TTL is sent
    // unchanged, so the load loop need not read the clock.
    if i64::from(ttl_secs) <= RELATIVE_SECS_MAX {
        return Exptime(ttl_secs.into());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Exptime::after(ttl_secs, now.map_or(0, |now| now.as_secs()))
}

/// Reads the reply at the start of `bytes`.
#[inline]
pub(crate) fn read(protocol: Protocol, bytes: &[u8]) -> Read<Answer<'_>> {
    match protocol {
        Protocol::Text | Protocol::Meta => read_text(bytes),
        Protocol::Binary => read_binary(bytes),
        Protocol::Resp => read_resp(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;
    use crate::load::workload::Load;
    use crate::run_error::RunError;
    use clap::Parser;
    use larder_protocol::encode::InvalidKey;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn load(words: &[&str]) -> Result<Load, RunError> {
        let line = ["bench", "-s", "127.0.0.1", "-d", "3"].iter().chain(words);
        Load::new(&Line::parse_from(line).arguments.settings().unwrap())
    }

    /// Returns a get of one key, a get of two keys, a set, and a set with an expiry.
    fn written(protocol: &str) -> [String; 4] {
        let load = load(&["-P", protocol, "--key-prefix", "k-"]).unwrap();
        let value = load.space(0).values.draw(7, &mut SmallRng::seed_from_u64(0));
        [
            (|writer: &mut Writer, out: &mut Vec<u8>, _| writer.get(0, &[7], out))
                as fn(&mut Writer, &mut Vec<u8>, &Value<'_>),
            |writer, out, _| writer.get(0, &[7, 12], out),
            |writer, out, value| writer.set(0, 7, 0, value, out),
            |writer, out, value| writer.set(0, 7, 60, value, out),
        ]
        .map(|write| {
            let mut out = Vec::new();
            write(&mut load.writer(), &mut out, &value);
            out.escape_ascii().to_string()
        })
    }

    #[test]
    fn requests_are_spelled_as_each_protocol_wants() {
        let text = [
            r"get k-7\r\n",
            r"get k-7 k-12\r\n",
            r"set k-7 0 0 3\r\nxxx\r\n",
            r"set k-7 0 60 3\r\nxxx\r\n",
        ];
        assert_eq!(written("text"), text);
        let meta = [
            r"mg k-7 v f t\r\n",
            r"mg k-7 v f t q\r\nmg k-12 v f t q\r\nmn\r\n",
            r"ms k-7 3\r\nxxx\r\n",
            r"ms k-7 3 T60\r\nxxx\r\n",
        ];
        assert_eq!(written("meta"), meta);
        let resp = [
            r"*2\r\n$3\r\nGET\r\n$3\r\nk-7\r\n",
            r"*3\r\n$4\r\nMGET\r\n$3\r\nk-7\r\n$4\r\nk-12\r\n",
            r"*3\r\n$3\r\nSET\r\n$3\r\nk-7\r\n$3\r\nxxx\r\n",
            r"*5\r\n$3\r\nSET\r\n$3\r\nk-7\r\n$3\r\nxxx\r\n$2\r\nEX\r\n$2\r\n60\r\n",
        ];
        assert_eq!(written("resp"), resp);
    }

    #[test]
    fn binary_requests_have_heads() {
        let head = |opcode, key_len, extras_len, body_len| {
            let head = [0x80, opcode, 0, key_len, extras_len, 0, 0, 0, 0, 0, 0, body_len];
            format!("{}{}", head.escape_ascii(), [0; 12].escape_ascii())
        };
        let [get, set, noop, getkq] = [0, 1, 10, 13];
        let extras = r"\x00".repeat(7);
        let expected = [
            head(get, 3, 0, 3) + "k-7",
            head(getkq, 3, 0, 3) + "k-7" + &head(getkq, 4, 0, 4) + "k-12" + &head(noop, 0, 0, 0),
            head(set, 3, 8, 14) + &extras + r"\x00" + "k-7xxx",
            head(set, 3, 8, 14) + &extras + "<" + "k-7xxx",
        ];
        assert_eq!(written("binary"), expected);
    }

    #[test]
    fn expiries_beyond_30_days_are_unix_times() {
        let load = load(&["-P", "text"]).unwrap();
        let value = load.space(0).values.draw(7, &mut SmallRng::seed_from_u64(0));
        let mut out = Vec::new();
        load.writer().set(0, 7, 30 * 86_400 + 1, &value, &mut out);
        let line = String::from_utf8(out).unwrap();
        let expiry: u64 = line.split(' ').nth(3).unwrap().parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(expiry > now.as_secs(), "{line}");
    }

    #[test]
    fn gets_of_several_keys_ask_for_the_keys_of_values_to_check() {
        let load = load(&["-P", "meta", "--verify", "--multi-get", "2"]).unwrap();
        let mut out = Vec::new();
        load.writer().get(0, &[7, 8], &mut out);
        let expected = "mg memtier-7 k v f t q\r\nmg memtier-8 k v f t q\r\nmn\r\n";
        assert_eq!(out.escape_ascii().to_string(), expected.escape_default().to_string());
    }

    #[test]
    fn a_prefix_that_no_key_can_have_is_refused() {
        let error = load(&["--key-prefix", "a b"]).unwrap_err();
        assert!(matches!(error, RunError::KeyPrefix(InvalidKey::BlankOrControl)), "{error}");
        assert_eq!(error.to_string(), "--key-prefix: the key has a blank or control character");
    }
}
