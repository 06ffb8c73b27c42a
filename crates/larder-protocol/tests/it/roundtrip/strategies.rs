//! Strategies for keys, values and flags, and comparisons with parsed requests.

use larder_protocol::encode::{WireKey, binary, meta};
use larder_protocol::{
    Arithmetic, Classic, Delete, Exptime, Get, KEY_LEN_MAX, Key, Parsed, Parser, ReplyFormat,
    Request, Store, StoreMode,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

pub(crate) type Bytes = Vec<u8>;

pub(crate) fn key() -> impl Strategy<Value = String> {
    prop_oneof![6 => "[a-z0-9:_é]{1,12}", 1 => "[!-~]{1,250}"]
}

pub(crate) fn any_key() -> impl Strategy<Value = Bytes> {
    let bytes = prop::collection::vec(any::<u8>(), 1..=186);
    prop_oneof![key().prop_map(String::into_bytes), bytes]
}

pub(crate) fn value() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (0..3000_usize).prop_map(|len| vec![b'v'; len]),
    ]
}

pub(crate) fn exptime() -> impl Strategy<Value = Exptime> {
    prop_oneof![Just(0), Just(-1), any::<i32>()].prop_map(|secs| Exptime(secs.into()))
}

pub(crate) fn mode() -> impl Strategy<Value = StoreMode> {
    use StoreMode::{Add, Append, Prepend, Replace, Set};
    select(vec![Set, Add, Replace, Append, Prepend])
}

pub(crate) fn maybe<S: Strategy>(strategy: S) -> impl Strategy<Value = Option<S::Value>> {
    prop::option::of(strategy)
}

pub(crate) fn wire(key: &str) -> WireKey<'_> {
    WireKey::new(key.as_bytes()).unwrap()
}

pub(crate) fn raw(key: &str) -> Key<'_> {
    Key { wire: key.as_bytes(), base64: false }
}

/// Parses `bytes`, which have to be exactly one request.
pub(crate) fn parsed(bytes: &[u8]) -> Request<'_> {
    match Parser::default().parse(bytes) {
        Parsed::Request { request, consumed } if consumed == bytes.len() => request,
        other => panic!("{other:?} of {}", bytes.escape_ascii()),
    }
}

/// Returns the bytes that `encode` appends.
pub(crate) fn encoded(encode: impl FnOnce(&mut Bytes)) -> Bytes {
    let mut out = b"before".to_vec();
    encode(&mut out);
    assert!(out.starts_with(b"before"), "encoding must only append");
    out.split_off(6)
}

pub(crate) fn classic_format<'b>(noreply: bool) -> ReplyFormat<'b> {
    ReplyFormat::Classic(Classic { noreply, ..Classic::default() })
}

pub(crate) fn no_get<'b>(key: Key<'b>, format: ReplyFormat<'b>) -> Get<'b> {
    let (touch, vivify, recache, compare, new_cas) = (None, None, None, None, None);
    Get { key, value: true, touch, vivify, recache, compare, new_cas, untracked: false, format }
}

pub(crate) fn no_store<'b>(key: Key<'b>, value: &'b [u8], format: ReplyFormat<'b>) -> Store<'b> {
    Store {
        key,
        mode: StoreMode::Set,
        client_flags: 0,
        expiry: Exptime::NEVER,
        value_len: value.len(),
        value,
        terminated: true,
        compare: None,
        new_cas: None,
        invalidate: false,
        vivify: None,
        format,
    }
}

pub(crate) fn no_delete<'b>(key: Key<'b>, format: ReplyFormat<'b>) -> Delete<'b> {
    Delete {
        key,
        compare: None,
        new_cas: None,
        invalidate: false,
        value_only: false,
        touch: None,
        client_flags: None,
        format,
    }
}

pub(crate) fn no_count<'b>(key: Key<'b>, format: ReplyFormat<'b>) -> Arithmetic<'b> {
    Arithmetic {
        key,
        down: false,
        delta: 1,
        vivify: None,
        initial: 0,
        touch: None,
        compare: None,
        new_cas: None,
        format,
    }
}

/// Checks that a meta request has this key and this opaque. Also checks that of the flags in `all`,
/// it has exactly `flags`.
pub(crate) fn check_meta<'b>(
    request: &(Key<'b>, ReplyFormat<'b>),
    key: &[u8],
    (flags, all): (&[u8], &[u8]),
    opaque: Option<u64>,
) {
    let (parsed, format) = request;
    assert_eq!(parsed.decode(&mut [0; KEY_LEN_MAX]), key);
    assert_eq!(parsed.base64, WireKey::new(key).is_err(), "base64 only for keys that require it");
    let shown = format.meta().expect("a meta request");
    for flag in all {
        assert_eq!(shown.has(*flag), flags.contains(flag), "{}", char::from(*flag));
    }
    let sent = shown.raw.split(|byte| *byte == b' ').find_map(|flag| flag.strip_prefix(b"O"));
    assert_eq!(sent.map(<[u8]>::to_vec), opaque.map(|number| number.to_string().into_bytes()));
}

/// The letter of each flag of a command, and the function that adds the flag to a set.
type AllFlags<F> = &'static [(u8, fn(F) -> F)];

/// Returns a strategy for some flags of a command: their letters, and the set.
pub(crate) fn flags<F: Copy + std::fmt::Debug + 'static>(
    none: F,
    all: AllFlags<F>,
) -> impl Strategy<Value = (Bytes, F)> {
    subsequence(all, 0..=all.len()).prop_shuffle().prop_map(move |some| {
        let letters = some.iter().map(|(letter, _)| *letter).collect();
        (letters, some.iter().fold(none, |set, (_, add)| add(add(set))))
    })
}

pub(crate) fn get_flags() -> impl Strategy<Value = (Bytes, meta::GetFlags)> {
    use meta::GetFlags as F;
    flags(
        F::NONE,
        &[
            (b'v', F::value),
            (b'f', F::client_flags),
            (b'c', F::cas),
            (b't', F::ttl),
            (b's', F::value_len),
            (b'k', F::key),
            (b'h', F::hit_before),
            (b'l', F::idle_secs),
            (b'u', F::untracked),
            (b'q', F::quiet),
        ],
    )
}

pub(crate) fn get_options() -> impl Strategy<Value = meta::GetOptions> {
    let times = (maybe(exptime()), maybe(exptime()), maybe(exptime()));
    let numbers = (maybe(any::<u64>()), maybe(1..u64::MAX), maybe(any::<u64>()));
    (times, numbers).prop_map(|((touch, vivify, recache), (compare, new_cas, opaque))| {
        meta::GetOptions { touch, vivify, recache, compare, new_cas, opaque }
    })
}

pub(crate) fn set_flags() -> impl Strategy<Value = (Bytes, meta::SetFlags)> {
    use meta::SetFlags as F;
    flags(
        F::NONE,
        &[
            (b'c', F::cas),
            (b's', F::value_len),
            (b'k', F::key),
            (b'I', F::invalidate),
            (b'q', F::quiet),
        ],
    )
}

pub(crate) fn set_options() -> impl Strategy<Value = meta::SetOptions> {
    let of_item = (mode(), any::<u32>(), exptime(), maybe(exptime()));
    let numbers = (maybe(any::<u64>()), maybe(1..u64::MAX), maybe(any::<u64>()));
    (of_item, numbers).prop_map(|(of_item, (compare, new_cas, opaque))| {
        let (mode, client_flags, expiry, vivify) = of_item;
        meta::SetOptions { mode, client_flags, expiry, compare, new_cas, vivify, opaque }
    })
}

pub(crate) fn delete_flags() -> impl Strategy<Value = (Bytes, meta::DeleteFlags)> {
    use meta::DeleteFlags as F;
    let all: AllFlags<F> =
        &[(b'k', F::key), (b'I', F::invalidate), (b'x', F::value_only), (b'q', F::quiet)];
    flags(F::NONE, all)
}

pub(crate) fn delete_options() -> impl Strategy<Value = meta::DeleteOptions> {
    let of_item = (maybe(exptime()), maybe(any::<u32>()));
    let numbers = (maybe(any::<u64>()), maybe(1..u64::MAX), maybe(any::<u64>()));
    (of_item, numbers).prop_map(|((touch, client_flags), (compare, new_cas, opaque))| {
        meta::DeleteOptions { compare, new_cas, touch, client_flags, opaque }
    })
}

pub(crate) fn arithmetic_flags() -> impl Strategy<Value = (Bytes, meta::ArithmeticFlags)> {
    use meta::ArithmeticFlags as F;
    flags(
        F::NONE,
        &[(b'v', F::value), (b'c', F::cas), (b't', F::ttl), (b'k', F::key), (b'q', F::quiet)],
    )
}

pub(crate) fn arithmetic_options() -> impl Strategy<Value = meta::ArithmeticOptions> {
    let times = (maybe(exptime()), maybe(exptime()));
    let counts = (any::<bool>(), any::<u64>(), any::<u64>());
    let numbers = (maybe(1..u64::MAX), maybe(1..u64::MAX), maybe(any::<u64>()));
    (times, counts, numbers).prop_map(|((vivify, touch), (down, delta, initial), numbers)| {
        let (compare, new_cas, opaque) = numbers;
        meta::ArithmeticOptions { down, delta, vivify, initial, touch, compare, new_cas, opaque }
    })
}

/// Returns the expiry that a binary request carries. A negative expiry becomes a time in the past.
pub(crate) fn in_binary(expiry: Exptime) -> Exptime {
    if expiry.0 < 0 { Exptime(2_592_001) } else { expiry }
}

pub(crate) fn binary_options() -> impl Strategy<Value = binary::Options> {
    any::<([u8; 4], bool)>().prop_map(|(opaque, quiet)| binary::Options { opaque, quiet })
}

/// Checks that the head of a binary request matches the options, and returns it.
pub(crate) fn binary_format<'b>(
    request: &Request<'b>,
    options: binary::Options,
    with_key: bool,
) -> ReplyFormat<'b> {
    let format = match request {
        Request::Get(get) => get.format,
        Request::Store(store) => store.format,
        Request::Delete(delete) => delete.format,
        Request::Arithmetic(arithmetic) => arithmetic.format,
        Request::Stats { format, .. } | Request::FlushAll { format, .. } => *format,
        Request::Noop(format) | Request::Version(format) | Request::Quit(format) => *format,
        other => panic!("{other:?}"),
    };
    let ReplyFormat::Binary(head) = format else { panic!("{request:?}") };
    assert_eq!((head.opaque, head.with_key), (options.opaque, with_key));
    let has_quiet_form = |opcode| !matches!(opcode, 0x1c | 0x0a | 0x0b | 0x10);
    // 0x17 and 0x18 are the quiet forms of quit and flush.
    let is_quiet = head.quiet || matches!(head.opcode, 0x17 | 0x18);
    assert_eq!(is_quiet, options.quiet && has_quiet_form(head.opcode), "{head:?}");
    format
}
