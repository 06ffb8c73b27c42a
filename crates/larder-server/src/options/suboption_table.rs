//! memcached's extended options and Larder's own: values, effects and help.

use super::flash::FlashFile;
use super::suboptions::Suboptions;
use larder_store::Admission;
use larder_support::tls::{KeyFormat, VerifyMode, Version};
use std::ops::RangeInclusive;

/// One suboption.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) takes: ValueSyntax,
    pub(super) does: Effect,
}

/// The values that can follow the `=`. The string in a variant is the message for a refused value.
pub(super) enum ValueSyntax {
    /// No value. A given value is ignored, as in memcached.
    Nothing,
    /// A whole number.
    Number(RangeInclusive<u64>, &'static str),
    /// A whole number; 1 if omitted.
    Switch(RangeInclusive<u64>, &'static str),
    /// A number above 0, up to this number.
    Fraction(f64, &'static str),
    /// Any number.
    Real,
    /// One of these words.
    Word(&'static [&'static str], &'static str),
    /// Any string.
    Text,
    /// Sizes in bytes, separated by hyphens.
    SlabSizes,
    /// `FILE:SIZE[:bucket]`.
    FlashFile,
}

/// The effect of a suboption.
pub(super) enum Effect {
    /// The help for `--help`, and the function that sets the option.
    Set(&'static str, fn(&mut Suboptions, &Value<'_>)),
    /// No effect. The string is the reason.
    Nothing(&'static str),
}

/// A checked value: its string and, for a numeric suboption, its number.
pub(super) struct Value<'t> {
    pub(super) text: &'t str,
    pub(super) number: u64,
    pub(super) fraction: f64,
}

impl Value<'_> {
    fn u32(&self) -> u32 {
        u32::try_from(self.number).unwrap_or(u32::MAX)
    }

    fn bytes(&self, unit: usize) -> usize {
        usize::try_from(self.number).unwrap_or(usize::MAX).saturating_mul(unit)
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const U32: RangeInclusive<u64> = 0..=u32::MAX as u64;
const ANY: RangeInclusive<u64> = 0..=u64::MAX;
const UNREADABLE_WBUF: &str = "could not parse argument to ssl_wbuf_size";
/// The message for a range that accepts every value. It is never shown.
const NEVER: &str = "";

const GROWS: &str = "the index grows automatically, in small steps";
const NO_LISTS: &str = "there are no LRU lists";
const NO_SLABS: &str = "there are no slabs";
const SHOWN: &str = "only appears in stats settings";

/// memcached's extended options, and Larder's own.
pub(super) const TABLE: &[Row] = &{
    use ValueSyntax::{Fraction, Nothing, Number, Real, SlabSizes, Switch, Text, Word};
    [
        set("maxconns_fast", Nothing, "refuse connections beyond -c at once (default)", |o, _| {
            o.maxconns_fast = true
        }),
        set(
            "no_maxconns_fast",
            Nothing,
            "let connections beyond -c wait until another closes",
            |o, _| o.maxconns_fast = false,
        ),
        without(
            "hashpower",
            Number(12..=32, "Initial hashtable multiplier must be between 12 and 32"),
            GROWS,
        ),
        without("no_hashexpand", Nothing, GROWS),
        without(
            "tail_repair_time",
            Number(10..=u64::MAX, "Cannot set tail_repair_time to less than 10 seconds"),
            NO_LISTS,
        ),
        without(
            "hash_algorithm",
            Word(
                &["jenkins", "murmur3", "xxh3"],
                "Unknown hash_algorithm option (jenkins, murmur3, xxh3)",
            ),
            "keys are hashed with rapidhash and a secret seed",
        ),
        set(
            "lru_crawler",
            Nothing,
            "search for expired items in the background (default)",
            |o, _| o.lru_crawler = true,
        ),
        set(
            "no_lru_crawler",
            Nothing,
            "keep expired items until a request or an eviction finds them",
            |o, _| o.lru_crawler = false,
        ),
        set(
            "lru_crawler_sleep",
            Number(0..=1_000_000, "LRU crawler sleep must be between 0 and 1 second"),
            SHOWN,
            |o, v| o.shown.lru_crawler_sleep = v.u32(),
        ),
        set(
            "lru_crawler_tocrawl",
            Number(U32, "lru_crawler_tocrawl takes a numeric 32bit value"),
            SHOWN,
            |o, v| o.shown.lru_crawler_tocrawl = v.u32(),
        ),
        without("lru_maintainer", Nothing, NO_LISTS),
        without("no_lru_maintainer", Nothing, NO_LISTS),
        set("hot_lru_pct", Number(1..=79, "hot_lru_pct must be > 1 and < 80"), SHOWN, |o, v| {
            o.shown.hot_lru_pct = v.u32()
        }),
        set("warm_lru_pct", Number(1..=79, "warm_lru_pct must be > 1 and < 80"), SHOWN, |o, v| {
            o.shown.warm_lru_pct = v.u32()
        }),
        set("hot_max_factor", Fraction(f64::MAX, "hot_max_factor must be > 0"), SHOWN, |o, v| {
            o.shown.hot_max_factor = v.fraction
        }),
        set("warm_max_factor", Fraction(f64::MAX, "warm_max_factor must be > 0"), SHOWN, |o, v| {
            o.shown.warm_max_factor = v.fraction
        }),
        without(
            "temporary_ttl",
            Number(U32, "temporary_ttl takes a numeric 32bit value"),
            NO_LISTS,
        ),
        set(
            "idle_timeout",
            Number(U32, "idle_timeout takes a numeric 32bit value"),
            "close idle TCP connections after this many seconds (default: 0, never)",
            |o, v| o.idle_timeout = v.u32(),
        ),
        without("slab_reassign", Nothing, NO_SLABS),
        without("no_slab_reassign", Nothing, NO_SLABS),
        set(
            "slab_automove",
            Switch(0..=2, "slab_automove must be between 0 and 2"),
            SHOWN,
            |o, v| o.shown.slab_automove = v.u32(),
        ),
        set("no_slab_automove", Nothing, SHOWN, |o, _| o.shown.slab_automove = 0),
        set(
            "slab_automove_ratio",
            Fraction(1.0, "slab_automove_ratio must be > 0 and < 1"),
            SHOWN,
            |o, v| o.shown.slab_automove_ratio = v.fraction,
        ),
        set(
            "slab_automove_window",
            Number(3..=1800, "slab_automove_window must be > 2 and <= 1800"),
            SHOWN,
            |o, v| o.shown.slab_automove_window = v.u32(),
        ),
        set(
            "slab_automove_freeratio",
            Fraction(1.0, "slab_automove_freeratio must be > 0 and < 1"),
            SHOWN,
            |o, v| o.shown.slab_automove_freeratio = v.fraction,
        ),
        without("slab_sizes", SlabSizes, NO_SLABS),
        without(
            "slab_chunk_max",
            Number(1..=1024, "slab_chunk_max must be 1 to 1024 kilobytes"),
            NO_SLABS,
        ),
        without("no_chunked_items", Nothing, "large items span whole segments"),
        set(
            "watcher_logbuf_size",
            Number(1..=1_048_576, "watcher_logbuf_size must be 1 to 1048576 kilobytes"),
            "buffer of each watcher, in kilobytes (default: 256)",
            |o, v| o.watcher_logbuf_size = v.bytes(KIB),
        ),
        without(
            "worker_logbuf_size",
            Number(ANY, NEVER),
            "worker threads write log lines directly to the buffers of watchers",
        ),
        set("track_sizes", Nothing, "count items by size for stats sizes", |o, _| {
            o.track_sizes = true
        }),
        without(
            "inline_ascii_resp",
            Nothing,
            "items hold no prepared answers; memcached ignores it too",
        ),
        without(
            "no_inline_ascii_resp",
            Nothing,
            "items hold no prepared answers; memcached ignores it too",
        ),
        without("modern", Nothing, "its options are on by default"),
        set("no_modern", Nothing, "the same as no_maxconns_fast and no_lru_crawler", |o, _| {
            (o.maxconns_fast, o.lru_crawler) = (false, false)
        }),
        without(
            "drop_privileges",
            Nothing,
            "system calls are limited from outside: see contrib/larderd.service",
        ),
        without(
            "no_drop_privileges",
            Nothing,
            "system calls are limited from outside: see contrib/larderd.service",
        ),
        set(
            "resp_db",
            Number(0..=16_383, "resp_db must be at most 16383"),
            "maximum number for SELECT in RESP (default: 0); all databases share the same items",
            |o, v| o.resp_db = v.u32(),
        ),
        set(
            "read_buf_mem_limit",
            Number(0..=1_048_576, "read_buf_mem_limit must be at most 1048576 megabytes"),
            "memory limit of all connections, in megabytes (default: 0, a share of -m)",
            |o, v| o.read_buf_mem_limit = v.bytes(MIB),
        ),
        without("resp_obj_mem_limit", Text, "deprecated: use read_buf_mem_limit"),
        without("sock_cookie_id", Text, "sockets are not marked"),
        set(
            "memory_image",
            Text,
            "(Larder's) file for planned restarts of the machine: SIGUSR1 writes all items to it, the next start \
             reads them",
            |o, v| o.memory_image = Some(v.text.into()),
        ),
        set(
            "ext_path",
            ValueSyntax::FlashFile,
            "FILE:SIZE[:bucket], a file or block device for items evicted from memory; units: m, g, t, p; may be \
             repeated",
            // check() has already parsed the value.
            |o, v| o.flash.files.extend(FlashFile::parse(v.text).ok()),
        ),
        set(
            "ext_page_size",
            Number(U32, "ext_page_size takes a 32bit value"),
            "page size in megabytes, a power of two (default: 1 to 1024, for 128 pages)",
            |o, v| o.flash.page_size = Some(v.number << 20),
        ),
        set("ext_wbuf_size", Number(U32, "ext_wbuf_size takes a 32bit value"), SHOWN, |o, v| {
            o.flash.shown.wbuf_size = v.u32().wrapping_mul(1 << 20);
        }),
        set(
            "ext_threads",
            Number(1..=256, "ext_threads must be 1 to 256"),
            "threads that read for HTTP, gRPC and the Tokio runtimes, and for all protocols without io_uring (default: 8)",
            |o, v| o.flash.threads = v.bytes(1),
        ),
        set(
            "ext_io_depth",
            Number(1..=4096, "ext_io_depth must be 1 to 4096"),
            "maximum number of concurrent reads per worker thread (default: 128)",
            |o, v| o.flash.depth = v.bytes(1),
        ),
        set(
            "ext_item_size",
            Number(U32, "ext_item_size takes a 32bit value"),
            "minimum size of items written to flash, in bytes (default: 512)",
            |o, v| o.flash.settings.item_size = v.bytes(1),
        ),
        set(
            "ext_item_age",
            Number(U32, "ext_item_age takes a 32bit value"),
            "write items that were idle for this many seconds (default: at eviction)",
            |o, v| o.flash.settings.item_age = Some(v.u32()).filter(|&secs| secs != u32::MAX),
        ),
        set(
            "ext_low_ttl",
            Number(U32, "ext_low_ttl takes a 32bit value"),
            "items with a TTL below this many seconds share pages (default: 0, none)",
            |o, v| o.flash.settings.low_ttl = v.u32(),
        ),
        set(
            "ext_recache_rate",
            Number(U32, "ext_recache_rate takes a 32bit value"),
            "promote one in this many items that are read again to memory (default: 1; 0: none)",
            |o, v| o.flash.settings.recache_rate = v.u32(),
        ),
        set(
            "ext_compact_under",
            Number(U32, "ext_compact_under takes a 32bit value"),
            "number of free pages below which pages are rewritten (default: 1 % of the pages)",
            |o, v| o.flash.settings.compact_under = v.u32(),
        ),
        set(
            "ext_drop_under",
            Number(U32, "ext_drop_under takes a 32bit value"),
            "number of free pages below which the oldest page is evicted (default: 1 % of the pages)",
            |o, v| o.flash.settings.drop_under = v.u32(),
        ),
        set("ext_max_sleep", Number(U32, "ext_max_sleep takes a 32bit value"), SHOWN, |o, v| {
            o.flash.shown.max_sleep = v.u32();
        }),
        set(
            "ext_max_frag",
            Real,
            "rewrite pages with a smaller share of used bytes than this (default: 0.8)",
            |o, v| o.flash.settings.max_frag = v.fraction,
        ),
        set("ext_drop_unread", Nothing, "do not rewrite items that were never read", |o, _| {
            o.flash.settings.drop_unread = true
        }),
        set(
            "ext_admit",
            Word(&["all", "reused"], "ext_admit must be all or reused"),
            "(Larder's) evicted items to write to flash: all (default), or reused: items that were read, or stored \
             again after an eviction",
            |o, v| {
                let is_reused = v.text.eq_ignore_ascii_case("reused");
                o.flash.settings.admit = if is_reused { Admission::Reused } else { Admission::All };
            },
        ),
        set("ssl_chain_cert", Text, "certificate chain file in PEM format", |o, v| {
            o.tls.chain_cert = Some(v.text.into())
        }),
        set("ssl_key", Text, "private key file (default: the file of ssl_chain_cert)", |o, v| {
            o.tls.key = Some(v.text.into())
        }),
        set(
            "ssl_keyformat",
            Word(&["1", "2", "PEM", "DER"], "ssl_keyformat must be PEM (1) or DER (2)"),
            "format of the private key, PEM or DER (default: PEM)",
            |o, v| o.tls.key_format = KeyFormat::parse(v.text).unwrap_or_default(),
        ),
        set(
            "ssl_verify_mode",
            Number(0..=3, "Invalid ssl_verify_mode. Use help to see valid options."),
            "client certificates: 0 none (default), 1 request, 2 and 3 require",
            |o, v| o.tls.verify_mode = VerifyMode::new(v.number),
        ),
        set("ssl_ca_cert", Text, "CA certificates that verify client certificates, PEM", |o, v| {
            o.tls.ca_cert = Some(v.text.into())
        }),
        set(
            "ssl_min_version",
            Number(0..=3, "Invalid ssl_min_version. Use help to see valid options."),
            "minimum TLS version: 2 is TLS 1.2 (default), 3 is TLS 1.3; 0 and 1 mean TLS 1.2",
            |o, v| o.tls.min_version = Version::new(v.number),
        ),
        set(
            "ssl_session_cache",
            Nothing,
            "let clients without ticket support resume sessions",
            |o, _| o.tls.session_cache = true,
        ),
        set(
            "ssl_handshake_timeout",
            Number(1..=3600, "ssl_handshake_timeout must be 1 to 3600 seconds"),
            "(Larder's) maximum duration of a handshake, in seconds (default: 30)",
            |o, v| o.tls.handshake_timeout = Some(v.u32()),
        ),
        without("ssl_ciphers", Text, "rustls has no weak suites to leave out"),
        // memcached also stores the product in 32 bits.
        set("ssl_wbuf_size", Number(U32, UNREADABLE_WBUF), SHOWN, |o, v| {
            o.tls.wbuf_size = v.u32().wrapping_mul(1024);
        }),
        without("ssl_kernel_tls", Nothing, "encryption stays in the process"),
    ]
};

const fn set(
    name: &'static str,
    takes: ValueSyntax,
    help: &'static str,
    set: fn(&mut Suboptions, &Value<'_>),
) -> Row {
    Row { name, takes, does: Effect::Set(help, set) }
}

const fn without(name: &'static str, takes: ValueSyntax, reason: &'static str) -> Row {
    Row { name, takes, does: Effect::Nothing(reason) }
}
