//! Generates streams of requests in the three dialects. Most requests are complete and valid.

use proptest::prelude::*;
use proptest::sample::select;

type Bytes = Vec<u8>;

/// Returns a strategy for requests of a text client.
pub(crate) fn text(value_len_max: usize) -> impl Strategy<Value = Vec<Bytes>> {
    let request = prop_oneof![
        12 => classic(value_len_max),
        12 => meta(value_len_max),
        3 => broken_text(),
    ];
    prop::collection::vec(request, 1..24)
}

/// Returns a strategy for requests of a binary client.
pub(crate) fn binary(value_len_max: usize) -> impl Strategy<Value = Vec<Bytes>> {
    let request = prop_oneof![24 => binary_request(value_len_max), 1 => broken_binary()];
    prop::collection::vec(request, 1..24)
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        20 => select(vec!["a", "b", "c", "key", "\u{1}odd"]).prop_map(str::to_owned),
        1 => Just("k".repeat(250)),
        1 => Just("k".repeat(251)),
    ]
}

fn value(len_max: usize) -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        3 => "[0-9 ab\r\n]{0,8}".prop_map(String::into_bytes),
        2 => (0..300_usize).prop_map(crate::common::pattern),
        1 => (0..len_max).prop_map(crate::common::pattern),
    ]
}

fn exptime() -> impl Strategy<Value = i64> {
    select(vec![0_i64, 0, 0, -1, 1, 100, 2_592_001, 1_700_000_050])
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..10_u64, any::<u64>()]
}

/// Returns a strategy for an optional ` noreply`. Most requests have none.
fn noreply() -> impl Strategy<Value = &'static str> {
    select(vec!["", "", "", " noreply"])
}

fn line(line: &str) -> Bytes {
    [line.as_bytes(), b"\r\n"].concat()
}

fn classic(value_len_max: usize) -> impl Strategy<Value = Bytes> {
    let keys = prop::collection::vec(key(), 1..6).prop_map(|keys| keys.join(" "));
    let store = (
        select(vec!["set", "set", "set", "add", "replace", "append", "prepend"]),
        key(),
        any::<u16>(),
        exptime(),
        noreply(),
        value(value_len_max),
    );
    prop_oneof![
        6 => (select(vec!["get", "gets", "gat 0", "gats 100"]), keys)
            .prop_map(|(verb, keys)| line(&format!("{verb} {keys}"))),
        8 => store.prop_map(|(verb, key, flags, exptime, noreply, value)| {
            let len = value.len();
            crate::common::store(&format!("{verb} {key} {flags} {exptime} {len}{noreply}"), &value)
        }),
        1 => (key(), 1..40_u64, value(value_len_max)).prop_map(|(key, cas, value)| {
            crate::common::store(&format!("cas {key} 0 0 {} {cas}", value.len()), &value)
        }),
        3 => (select(vec!["incr", "decr"]), key(), number(), noreply())
            .prop_map(|(verb, key, delta, noreply)| line(&format!("{verb} {key} {delta}{noreply}"))),
        1 => (key(), noreply()).prop_map(|(key, noreply)| line(&format!("delete {key}{noreply}"))),
        1 => (key(), exptime()).prop_map(|(key, at)| line(&format!("touch {key} {at}"))),
        1 => select(vec!["version", "verbosity 1", "stats", "stats reset", "stats x", "flush_all"])
            .prop_map(line),
    ]
}

/// Returns a strategy for meta flags: flags that `verb` uses, and some that it ignores.
fn flags(verb: &str) -> impl Strategy<Value = String> + use<> {
    let mut known = vec!["q", "k", "c", "O123", "t", "s"];
    known.extend(match verb {
        "mg" => &["v", "v", "f", "h", "l", "u", "T100", "N30", "R50", "E77"][..],
        "ms" => &["T60", "F5", "I", "C5", "MA", "MP", "ME", "MR", "N0", "E99"],
        "md" => &["I", "x", "C9", "T30", "E5"],
        _ => &["v", "N0", "J13", "D5", "MD", "T9", "E8"],
    });
    // Some streams contain a duplicate flag, which is an error.
    prop::collection::vec(select(known), 0..5)
        .prop_map(|flags| flags.iter().fold(String::new(), |all, flag| all + " " + flag))
}

fn meta(value_len_max: usize) -> impl Strategy<Value = Bytes> {
    let with_flags = |verb: &'static str| {
        (key(), flags(verb)).prop_map(move |(key, flags)| line(&format!("{verb} {key}{flags}")))
    };
    prop_oneof![
        6 => with_flags("mg"),
        6 => (key(), flags("ms"), value(value_len_max)).prop_map(|(key, flags, value)| {
            crate::common::store(&format!("ms {key} {}{flags}", value.len()), &value)
        }),
        2 => with_flags("md"),
        3 => with_flags("ma"),
        1 => key().prop_map(|key| line(&format!("me {key}"))),
        1 => select(vec![
            "mn",
            "ms Zm9v 2 b\r\nhi",
            "mg Zm9v b v k",
            "mg foo k v",
            "ma YmFy b N0 v",
            "mg !!! b",
        ])
        .prop_map(line),
    ]
}

fn broken_text() -> impl Strategy<Value = Bytes> {
    let lines = vec![
        "",
        " ",
        "a",
        "bogus",
        "bogus noreply",
        "get",
        "gat x a",
        "gat 0",
        "set a 0 0",
        "set a 0 0 x",
        "set a x 0 3\r\nabc",
        "set a 0 0 3\r\nabcdef",
        "set a 0 0 3 noreply\r\nabcdef",
        "set a 0 0 400000 noreply",
        "incr a x",
        "incr a",
        "touch a x",
        "mg",
        "mg a v v",
        "mg a Tx",
        "ms a",
        "ms a x",
        "ms a 2 MX\r\nhi",
        "ms a 2\r\nhigh",
        "mg a O12345678901234567890123456789012",
        "ma a Dx",
        "flush_all x",
        "verbosity",
        "quit",
        "x y HTTP/1.1",
    ];
    let too_large = crate::common::pattern(crate::common::ITEM_SIZE_MAX);
    prop_oneof![
        20 => select(lines).prop_map(line),
        1 => Just(crate::common::set("a", &too_large)),
        1 => Just(crate::common::store(&format!("ms b {} k c s", too_large.len()), &too_large)),
        1 => Just(vec![b'x'; 3000]),
        1 => Just([&b"get a "[..], &[b' '; 3000], b"b\n"].concat()),
    ]
}

const OPAQUE: [u8; 4] = *b"opaq";

/// Returns a binary request.
pub(crate) fn frame(opcode: u8, cas: u64, extras: &[u8], key: &[u8], value: &[u8]) -> Bytes {
    let body_len = u32::try_from(extras.len() + key.len() + value.len()).unwrap();
    let mut bytes = vec![0x80, opcode];
    bytes.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
    bytes.extend([u8::try_from(extras.len()).unwrap(), 0, 0, 0]);
    bytes.extend(body_len.to_be_bytes());
    bytes.extend(OPAQUE);
    bytes.extend(cas.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

fn binary_request(value_len_max: usize) -> impl Strategy<Value = Bytes> {
    let key = || select(vec![&b"a"[..], b"b", b"c", b"\0\r\n", b"key"]);
    let cas = || select(vec![0_u64, 0, 0, 5]);
    let store = (select(vec![1_u8, 2, 3, 0x11, 0x12, 0x13]), key(), cas(), value(value_len_max));
    let count = (select(vec![5_u8, 6, 0x15, 0x16]), key(), number(), select(vec![0, u32::MAX]));
    prop_oneof![
        6 => (select(vec![0_u8, 9, 0xc, 0xd]), key()).prop_map(|(op, key)| frame(op, 0, &[], key, &[])),
        6 => store.prop_map(|(op, key, cas, value)| frame(op, cas, &[0, 0, 0, 7, 0, 0, 0, 0], key, &value)),
        2 => (select(vec![0xe_u8, 0xf, 0x19, 0x1a]), key(), cas(), value(value_len_max))
            .prop_map(|(op, key, cas, value)| frame(op, cas, &[], key, &value)),
        3 => count.prop_map(|(op, key, delta, exptime)| {
            let extras = [&delta.to_be_bytes()[..], &[0; 8], &exptime.to_be_bytes()].concat();
            frame(op, 0, &extras, key, &[])
        }),
        1 => (select(vec![4_u8, 0x14]), key(), cas()).prop_map(|(op, key, cas)| frame(op, cas, &[], key, &[])),
        1 => (select(vec![0x1c_u8, 0x1d, 0x1e, 0x23, 0x24]), key())
            .prop_map(|(op, key)| frame(op, 0, &[0, 0, 0, 50], key, &[])),
        2 => select(vec![8_u8, 0xa, 0xb, 0x10, 0x18]).prop_map(|op| frame(op, 0, &[], &[], &[])),
    ]
}

fn broken_binary() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => Just(frame(0x77, 0, b"ex", b"key", b"value")),
        2 => Just(frame(1, 0, &[0; 8], b"a", &crate::common::pattern(crate::common::ITEM_SIZE_MAX))),
        1 => Just(frame(0, 0, b"extras", b"a", &[])),
        1 => Just(frame(0, 0, &[], &[b'k'; 251], &[])),
        1 => Just(frame(7, 0, &[], &[], &[])),
        1 => Just(b"get a\r\n".to_vec()),
    ]
}
