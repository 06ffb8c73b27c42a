//! A request that is written and read again is the same request; whatever arrives, the parser says
//! something sensible and goes on.

use larder_protocol::{
    BinaryHead, Claim, Classic, Credentials, Get, Login, Parsed, Parser, Password, ReplyFormat,
    Request, write_request,
};
use proptest::prelude::*;
use proptest::sample::select;

type Bytes = Vec<u8>;

fn key() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[a-z0-9:_]{1,12}", 1 => "[!-~]{1,250}"]
}

fn value() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn exptime() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), Just(-1), any::<i32>()]
}

fn with_block(line: &str, value: &[u8]) -> Bytes {
    [line.as_bytes(), b"\r\n", value, b"\r\n"].concat()
}

fn line(line: String) -> Bytes {
    (line + "\r\n").into_bytes()
}

fn classic() -> impl Strategy<Value = Bytes> {
    let noreply = select(vec!["", " noreply"]);
    let store = select(vec!["set", "add", "replace", "append", "prepend"]);
    prop_oneof![
        (select(vec!["get", "gets"]), key()).prop_map(|(verb, key)| line(format!("{verb} {key}"))),
        (select(vec!["gat", "gats"]), exptime(), key())
            .prop_map(|(verb, at, key)| line(format!("{verb} {at} {key}"))),
        (store, key(), any::<u32>(), exptime(), value(), noreply.clone()).prop_map(
            |(verb, key, flags, at, value, noreply)| {
                let len = value.len();
                with_block(&format!("{verb} {key} {flags} {at} {len}{noreply}"), &value)
            }
        ),
        (key(), any::<u64>(), value(), noreply.clone()).prop_map(|(key, cas, value, noreply)| {
            with_block(&format!("cas {key} 0 0 {} {cas}{noreply}", value.len()), &value)
        }),
        (select(vec!["incr", "decr"]), key(), any::<u64>(), noreply.clone())
            .prop_map(|(verb, key, by, noreply)| line(format!("{verb} {key} {by}{noreply}"))),
        (key(), exptime(), noreply.clone())
            .prop_map(|(key, at, noreply)| line(format!("touch {key} {at}{noreply}"))),
        (key(), noreply.clone()).prop_map(|(key, noreply)| line(format!("delete {key}{noreply}"))),
        (exptime(), noreply).prop_map(|(at, noreply)| line(format!("flush_all {at}{noreply}"))),
        select(vec!["version", "quit", "stats", "stats items", "verbosity 1"])
            .prop_map(|text| line(text.to_owned())),
    ]
}

fn meta() -> impl Strategy<Value = Bytes> {
    let flags = |known: &'static [&'static str]| {
        prop::sample::subsequence(known, 0..known.len())
            .prop_shuffle()
            .prop_map(|flags| flags.iter().fold(String::new(), |all, flag| all + " " + flag))
    };
    let get = flags(&["v", "k", "c", "f", "t", "s", "h", "l", "q", "u", "Oab", "T9", "N5", "R3"]);
    let store = flags(&["k", "c", "q", "F7", "T60", "I", "C5", "E8", "O1", "MA", "s"]);
    let delete = flags(&["k", "q", "C9", "E3", "I", "T30", "x", "Oz"]);
    let count = flags(&["v", "t", "c", "q", "k", "N0", "J13", "D5", "MD", "T9", "E8", "C2", "O9"]);
    prop_oneof![
        (key(), get).prop_map(|(key, flags)| line(format!("mg {key}{flags}"))),
        (key(), value(), store).prop_map(|(key, value, flags)| {
            with_block(&format!("ms {key} {}{flags}", value.len()), &value)
        }),
        (key(), delete).prop_map(|(key, flags)| line(format!("md {key}{flags}"))),
        (key(), count).prop_map(|(key, flags)| line(format!("ma {key}{flags}"))),
        key().prop_map(|key| line(format!("me {key}"))),
        select(vec!["mn", "mg Zm9v b v k", "ms Zm9v 2 b\r\nhi", "md Zm9v q b"])
            .prop_map(|text| line(text.to_owned())),
    ]
}

/// Each opcode with what belongs to it.
fn binary() -> impl Strategy<Value = Bytes> {
    (0..0x1f_u8, any::<[u8; 4]>(), any::<u64>(), any::<[u8; 20]>(), key(), value()).prop_map(
        |(opcode, opaque, cas, extras, key, value)| {
            let (extras_len, has_key, has_value) = match opcode {
                0x01..=0x03 | 0x11..=0x13 => (8, true, true),
                0x05 | 0x06 | 0x15 | 0x16 => (20, true, false),
                0x08 | 0x18 | 0x1b => (4, false, false),
                0x1c..=0x1e => (4, true, false),
                0x0e | 0x0f | 0x19 | 0x1a => (0, true, true),
                0x00 | 0x04 | 0x09 | 0x0c | 0x0d | 0x10 | 0x14 => (0, true, false),
                _ => (0, false, false),
            };
            let key = if has_key { key.as_bytes() } else { &[] };
            let value = if has_value { &value[..] } else { &[] };
            let body = [&extras[..extras_len], key, value].concat();
            let mut head = vec![0x80, opcode];
            head.extend(u16::try_from(key.len()).unwrap().to_be_bytes());
            head.extend([u8::try_from(extras_len).unwrap(), 0, 0, 0]);
            head.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
            head.extend(opaque);
            head.extend(cas.to_be_bytes());
            [head, body].concat()
        },
    )
}

/// The first request, without what says how much of its line has arrived.
fn first<'b>(parser: &mut Parser, bytes: &'b [u8]) -> (Request<'b>, usize) {
    match parser.parse(bytes) {
        Parsed::Request { mut request, consumed } => {
            if let Request::Get(Get { format: ReplyFormat::Classic(classic), .. }) = &mut request {
                classic.last = true;
            }
            (request, consumed)
        }
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
}

fn comes_back(bytes: &[u8]) -> Result<(), TestCaseError> {
    let (request, consumed) = first(&mut Parser::default(), bytes);
    if let Request::Fault(_) = request {
        return Ok(());
    }
    prop_assert_eq!(consumed, bytes.len(), "all of it");
    let mut written = Vec::new();
    write_request(&request, &mut written);
    let (again, consumed) = first(&mut Parser::default(), &written);
    prop_assert_eq!(&again, &request, "{}", written.escape_ascii());
    prop_assert_eq!(consumed, written.len(), "all of it");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn classic_requests_come_back(bytes in classic()) {
        comes_back(&bytes)?;
    }

    #[test]
    fn meta_requests_come_back(bytes in meta()) {
        comes_back(&bytes)?;
    }

    #[test]
    fn binary_requests_come_back(bytes in binary()) {
        comes_back(&bytes)?;
    }

    /// Progress is made, or more is asked for, whatever arrives.
    #[test]
    fn any_bytes_are_some_requests(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let (mut parser, mut rest) = (Parser::default(), &bytes[..]);
        while let Parsed::Request { consumed, .. } = parser.parse(rest) {
            prop_assert!((1..=rest.len()).contains(&consumed));
            rest = &rest[consumed..];
        }
    }

    /// As above, with lines that look like something.
    #[test]
    fn garbled_requests_are_some_requests(
        mut bytes in prop_oneof![classic(), meta(), binary()],
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let (mut parser, mut rest) = (Parser::default(), &bytes[..]);
        while let Parsed::Request { consumed, .. } = parser.parse(rest) {
            prop_assert!((1..=rest.len()).contains(&consumed));
            rest = &rest[consumed..];
        }
    }
}

#[test]
fn a_login_comes_back_and_hides_its_password() {
    let credentials = Credentials { user: b"ann", password: Password(b"se cret") };
    let binary = ReplyFormat::Binary(BinaryHead { opcode: 0x21, ..BinaryHead::default() });
    for (mut parser, format) in [
        (Parser::TEXT_LOGIN, ReplyFormat::Classic(Classic::default())),
        (Parser::BINARY_LOGIN, binary),
    ] {
        let request = Request::Login(Login { claim: Claim::Credentials(credentials), format });
        let mut wire = Vec::new();
        write_request(&request, &mut wire);
        assert_eq!(parser.parse(&wire), Parsed::Request { request, consumed: wire.len() });
        let shown = format!("{request:?}");
        assert!(!shown.contains("cret") && !shown.contains("99, 114"), "{shown}");
    }
}
