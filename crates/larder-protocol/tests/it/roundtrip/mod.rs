//! Property tests of the encoders and the parser: parsing an encoded request returns an equal
//! request, and the parser makes progress on arbitrary bytes.

mod strategies;

use larder_protocol::encode::{MetaKey, NewItem, binary, classic, meta};
use larder_protocol::{
    Arithmetic, BinaryHead, Claim, Classic, Credentials, Debug, Delete, Get, KEY_LEN_MAX, Login,
    Parsed, Parser, Password, ReplyFormat, Request, Store, StoreMode,
};
use proptest::prelude::*;
use strategies::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn classic_retrievals(
        keys in prop::collection::vec(key(), 1..5),
        touch in maybe(exptime()),
        with_cas: bool,
    ) {
        let all = || keys.iter().map(|key| wire(key));
        let bytes = encoded(|out| match (touch, with_cas) {
            (None, false) => classic::get(all(), out),
            (None, true) => classic::gets(all(), out),
            (Some(expiry), false) => classic::gat(expiry, all(), out),
            (Some(expiry), true) => classic::gats(expiry, all(), out),
        });
        let (mut parser, mut rest) = (Parser::default(), &bytes[..]);
        for (number, key) in (1..).zip(&keys) {
            let Parsed::Request { request, consumed } = parser.parse(rest) else { panic!("{rest:?}") };
            let last = number == keys.len();
            let format = ReplyFormat::Classic(Classic { noreply: false, with_cas, last });
            let get = Get { touch, ..no_get(raw(key), format) };
            prop_assert_eq!(request, Request::Get(get), "{}", bytes.escape_ascii());
            rest = &rest[consumed..];
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn classic_stores(
        (key, value, mode) in (key(), value(), mode()),
        (client_flags, expiry, cas) in (any::<u32>(), exptime(), maybe(any::<u64>())),
        noreply: bool,
    ) {
        let concatenates = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let item = NewItem { value: &value, client_flags, expiry };
        let bytes = encoded(|out| match (cas, mode) {
            (Some(cas), _) => classic::cas(wire(&key), &item, cas, noreply, out),
            (_, StoreMode::Set) => classic::set(wire(&key), &item, noreply, out),
            (_, StoreMode::Add) => classic::add(wire(&key), &item, noreply, out),
            (_, StoreMode::Replace) => classic::replace(wire(&key), &item, noreply, out),
            (_, StoreMode::Append) => classic::append(wire(&key), &value, noreply, out),
            (_, StoreMode::Prepend) => classic::prepend(wire(&key), &value, noreply, out),
        });
        let mut store = no_store(raw(&key), &value, classic_format(noreply));
        (store.mode, store.compare) = (if cas.is_some() { StoreMode::Set } else { mode }, cas);
        if cas.is_some() || !concatenates {
            (store.client_flags, store.expiry) = (client_flags, expiry);
        }
        prop_assert_eq!(parsed(&bytes), Request::Store(store), "{}", bytes.escape_ascii());
    }

    #[test]
    fn classic_commands_of_a_key(key in key(), expiry in exptime(), delta: u64, noreply: bool) {
        let format = classic_format(noreply);
        let touch = Get { value: false, touch: Some(expiry), ..no_get(raw(&key), format) };
        let count = Arithmetic { delta, ..no_count(raw(&key), format) };
        let key_of = wire(&key);
        let cases = [
            (encoded(|out| classic::touch(key_of, expiry, noreply, out)), Request::Get(touch)),
            (
                encoded(|out| classic::delete(key_of, noreply, out)),
                Request::Delete(no_delete(raw(&key), format)),
            ),
            (encoded(|out| classic::incr(key_of, delta, noreply, out)), Request::Arithmetic(count)),
            (
                encoded(|out| classic::decr(key_of, delta, noreply, out)),
                Request::Arithmetic(Arithmetic { down: true, ..count }),
            ),
        ];
        for (bytes, request) in &cases {
            prop_assert_eq!(&parsed(bytes), request, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn other_classic_commands(
        delay in exptime(),
        level in 0..3_u32,
        topic in prop::collection::vec("[a-z]{1,5}", 0..3),
        noreply: bool,
    ) {
        let (plain, format) = (classic_format(false), classic_format(noreply));
        let words = topic.join(" ");
        let cases = [
            (
                encoded(|out| classic::flush_all(delay, noreply, out)),
                Request::FlushAll { at: delay, format },
            ),
            (
                encoded(|out| classic::verbosity(level, noreply, out)),
                Request::Verbosity { level, format },
            ),
            (
                encoded(|out| classic::stats(topic.iter().map(|word| wire(word)), out)),
                Request::Stats { topic: words.as_bytes(), format: plain },
            ),
            (encoded(classic::version), Request::Version(plain)),
            (encoded(classic::quit), Request::Quit(plain)),
        ];
        for (bytes, request) in &cases {
            prop_assert_eq!(&parsed(bytes), request, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn meta_gets(key in any_key(), (letters, flags) in get_flags(), options in get_options()) {
        let bytes = encoded(|out| meta::get(MetaKey::new(&key).unwrap(), flags, &options, out));
        let Request::Get(get) = parsed(&bytes) else { panic!("{}", bytes.escape_ascii()) };
        check_meta(&(get.key, get.format), &key, (&letters, b"vfctskhluq"), options.opaque);
        let recache = options.recache.map(|time| i32::try_from(time.0).unwrap());
        let expected = Get {
            value: letters.contains(&b'v'),
            untracked: letters.contains(&b'u'),
            touch: options.touch,
            vivify: options.vivify,
            recache,
            compare: options.compare,
            new_cas: options.new_cas,
            ..no_get(get.key, get.format)
        };
        prop_assert_eq!(get, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn meta_stores(
        (key, value) in (any_key(), value()),
        (letters, flags) in set_flags(),
        options in set_options(),
    ) {
        let key_of = MetaKey::new(&key).unwrap();
        let bytes = encoded(|out| meta::set(key_of, &value, flags, &options, out));
        let Request::Store(store) = parsed(&bytes) else { panic!("{}", bytes.escape_ascii()) };
        check_meta(&(store.key, store.format), &key, (&letters, b"cskIq"), options.opaque);
        let concatenates = matches!(options.mode, StoreMode::Append | StoreMode::Prepend);
        let expected = Store {
            mode: options.mode,
            client_flags: options.client_flags,
            expiry: options.expiry,
            invalidate: letters.contains(&b'I'),
            compare: match options.mode {
                StoreMode::Add => None,
                _ => options.compare.filter(|cas| *cas != 0 || !concatenates),
            },
            new_cas: options.new_cas,
            vivify: options.vivify.filter(|_| concatenates),
            ..no_store(store.key, &value, store.format)
        };
        prop_assert_eq!(store, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn meta_removals(
        key in any_key(),
        (letters, flags) in delete_flags(),
        options in delete_options(),
    ) {
        let bytes = encoded(|out| meta::delete(MetaKey::new(&key).unwrap(), flags, &options, out));
        let Request::Delete(delete) = parsed(&bytes) else { panic!("{}", bytes.escape_ascii()) };
        check_meta(&(delete.key, delete.format), &key, (&letters, b"kIxq"), options.opaque);
        let expected = Delete {
            compare: options.compare,
            new_cas: options.new_cas,
            invalidate: letters.contains(&b'I'),
            value_only: letters.contains(&b'x'),
            touch: options.touch,
            client_flags: options.client_flags,
            ..no_delete(delete.key, delete.format)
        };
        prop_assert_eq!(delete, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn meta_counts(
        key in any_key(),
        (letters, flags) in arithmetic_flags(),
        options in arithmetic_options(),
    ) {
        let key_of = MetaKey::new(&key).unwrap();
        let bytes = encoded(|out| meta::arithmetic(key_of, flags, &options, out));
        let Request::Arithmetic(count) = parsed(&bytes) else { panic!("{}", bytes.escape_ascii()) };
        check_meta(&(count.key, count.format), &key, (&letters, b"vctkq"), options.opaque);
        let expected = Arithmetic {
            down: options.down,
            delta: options.delta,
            vivify: options.vivify,
            initial: options.initial,
            touch: options.touch,
            compare: options.compare,
            new_cas: options.new_cas,
            ..no_count(count.key, count.format)
        };
        prop_assert_eq!(count, expected, "{}", bytes.escape_ascii());
    }

    #[test]
    fn other_meta_commands(key in any_key()) {
        let bytes = encoded(|out| meta::debug(MetaKey::new(&key).unwrap(), out));
        let Request::Debug(Debug { key: sent, .. }) = parsed(&bytes) else { panic!("{bytes:?}") };
        let mut scratch = [0; KEY_LEN_MAX];
        prop_assert_eq!(sent.decode(&mut scratch), &key[..]);
        prop_assert!(matches!(parsed(&encoded(meta::noop)), Request::Noop(ReplyFormat::Meta(_))));
    }

    #[test]
    fn binary_retrievals(
        key in key(),
        expiry in exptime(),
        with_key: bool,
        options in binary_options(),
    ) {
        let (of, touch) = (wire(&key), Some(in_binary(expiry)));
        let cases = [
            (encoded(|out| binary::get(of, with_key, options, out)), true, None, with_key),
            (encoded(|out| binary::gat(of, expiry, with_key, options, out)), true, touch, with_key),
            (encoded(|out| binary::touch(of, expiry, options, out)), false, touch, false),
        ];
        for (bytes, value, touch, with_key) in &cases {
            let request = parsed(bytes);
            let format = binary_format(&request, options, *with_key);
            let expected = Get { value: *value, touch: *touch, ..no_get(raw(&key), format) };
            prop_assert_eq!(request, Request::Get(expected));
        }
    }

    #[test]
    fn binary_stores(
        (key, value, mode) in (key(), value(), mode()),
        (client_flags, expiry, cas) in (any::<u32>(), exptime(), prop_oneof![Just(0), any::<u64>()]),
        options in binary_options(),
    ) {
        let item = NewItem { value: &value, client_flags, expiry };
        let bytes = encoded(|out| binary::store(mode, wire(&key), &item, cas, options, out));
        let request = parsed(&bytes);
        let mut store = no_store(raw(&key), &value, binary_format(&request, options, false));
        let concatenates = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        store.compare = (cas != 0).then_some(cas);
        store.mode = if cas == 0 || concatenates { mode } else { StoreMode::Set };
        if !concatenates {
            (store.client_flags, store.expiry) = (client_flags, in_binary(expiry));
        }
        prop_assert_eq!(request, Request::Store(store));
    }

    #[test]
    fn other_binary_commands_of_a_key(
        key in key(),
        (down, delta, initial, vivify) in (any::<bool>(), any::<u64>(), any::<u64>(), maybe(exptime())),
        cas: u64,
        options in binary_options(),
    ) {
        let compare = (cas != 0).then_some(cas);
        let bytes = encoded(|out| binary::delete(wire(&key), cas, options, out));
        let request = parsed(&bytes);
        let format = binary_format(&request, options, false);
        prop_assert_eq!(request, Request::Delete(Delete { compare, ..no_delete(raw(&key), format) }));

        let count = binary::Count { down, delta, vivify, initial };
        let bytes = encoded(|out| binary::arithmetic(wire(&key), &count, cas, options, out));
        let request = parsed(&bytes);
        let format = binary_format(&request, options, false);
        let vivify = vivify.map(in_binary);
        let expected =
            Arithmetic { down, delta, initial, vivify, compare, ..no_count(raw(&key), format) };
        prop_assert_eq!(request, Request::Arithmetic(expected));
    }

    #[test]
    fn other_binary_commands(delay in exptime(), topic in "[a-z ]{0,9}", options in binary_options()) {
        let bytes = encoded(|out| binary::flush_all(delay, options, out));
        let request = parsed(&bytes);
        let format = binary_format(&request, options, false);
        prop_assert_eq!(request, Request::FlushAll { at: in_binary(delay), format });

        let bytes = encoded(|out| binary::stat(topic.as_bytes(), options, out));
        let request = parsed(&bytes);
        let format = binary_format(&request, options, false);
        prop_assert_eq!(request, Request::Stats { topic: topic.as_bytes(), format });

        let noop = encoded(|out| binary::noop(options, out));
        let version = encoded(|out| binary::version(options, out));
        let quit = encoded(|out| binary::quit(options, out));
        let requests = [parsed(&noop), parsed(&version), parsed(&quit)];
        let is = matches!(requests, [Request::Noop(_), Request::Version(_), Request::Quit(_)]);
        prop_assert!(is, "{:?}", requests);
        for request in &requests {
            binary_format(request, options, false);
        }
    }

    /// On arbitrary bytes, the parser consumes a request or reports an incomplete one.
    #[test]
    fn the_parser_makes_progress_on_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        make_progress(&bytes);
    }

    /// On lines that resemble requests, the parser consumes a request or reports an incomplete one.
    #[test]
    fn the_parser_makes_progress_on_malformed_requests(
        key in key(),
        value in value(),
        options in set_options(),
        kind in 0..5,
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let (of, item) = (wire(&key), NewItem::of(&value));
        let mut bytes = encoded(|out| match kind {
            0 => classic::get([of, of], out),
            1 => classic::store(options.mode, of, &item, true, out),
            2 => meta::set(of.into(), &value, meta::SetFlags::NONE, &options, out),
            3 => meta::get(of.into(), meta::GetFlags::NONE.value(), &Default::default(), out),
            _ => binary::store(options.mode, of, &item, 0, Default::default(), out),
        });
        let at = at.index(bytes.len());
        bytes[at] = byte;
        make_progress(&bytes);
    }
}

fn make_progress(bytes: &[u8]) {
    let (mut parser, mut rest) = (Parser::default(), bytes);
    while let Parsed::Request { consumed, .. } = parser.parse(rest) {
        assert!((1..=rest.len()).contains(&consumed), "{consumed} of {}", rest.escape_ascii());
        rest = &rest[consumed..];
    }
}

#[test]
fn an_encoded_login_is_parsed_and_debug_hides_the_password() {
    let credentials = Credentials { user: b"ann", password: Password(b"se cret") };
    let options = binary::Options { opaque: *b"abcd", quiet: false };
    let head = BinaryHead { opcode: 0x21, opaque: *b"abcd", ..BinaryHead::default() };
    for (mut parser, format, wire) in [
        (
            Parser::TEXT_LOGIN,
            classic_format(false),
            encoded(|out| classic::login(&credentials, out)),
        ),
        (
            Parser::BINARY_LOGIN,
            ReplyFormat::Binary(head),
            encoded(|out| binary::sasl_plain(&credentials, options, out)),
        ),
    ] {
        let request = Request::Login(Login { claim: Claim::Credentials(credentials), format });
        assert_eq!(parser.parse(&wire), Parsed::Request { request, consumed: wire.len() });
        let shown = format!("{request:?}");
        assert!(!shown.contains("cret") && !shown.contains("99, 114"), "{shown}");
    }
    let list = encoded(|out| binary::sasl_list(options, out));
    let head = BinaryHead { opcode: 0x20, ..head };
    let login = Login { claim: Claim::Mechanisms, format: ReplyFormat::Binary(head) };
    let request = Request::Login(login);
    let parsed = Parser::BINARY_LOGIN.clone().parse(&list);
    assert_eq!(parsed, Parsed::Request { request, consumed: list.len() });
}
