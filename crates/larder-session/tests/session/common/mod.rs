//! The engines under test, and helpers that build requests.

pub(crate) mod conversation;
pub(crate) mod streams;
pub(crate) mod target;

use larder_session::test_util::{self, Complete};
use larder_store::cache::Cache;
use larder_store::{SizeClasses, dashmap, delayed, erased, segment};
use std::sync::Arc;

// The sessions of all tests use type-erased engines, so that the compiler instantiates the session
// only once.
pub(crate) type Session = larder_session::Session<erased::Handle>;
pub(crate) type TestClient = test_util::TestClient<erased::Handle>;
pub(crate) type TestServer = test_util::TestServer<erased::Handle>;

/// An engine under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TestEngine {
    Dashmap,
    Segment,
    /// The segment engine with delayed lookups and acknowledgements.
    Delayed,
}

/// A cache under test.
pub(crate) struct TestCache {
    pub(crate) cache: erased::Cache,
    /// Completes pending reads or acknowledgements; `None` if the engine never has any.
    pub(crate) complete: Option<Complete>,
}

pub(crate) const ITEM_SIZE_MAX: usize = 300 << 10;
pub(crate) const CLASS_SIZES: [usize; 5] = [96, 120, 512, 4096, 512 << 10];
const LIMIT_BYTES: usize = 64 << 20;
const SEED: u64 = 0x5eed;

pub(crate) fn classes() -> SizeClasses {
    SizeClasses::new(CLASS_SIZES.to_vec(), 59)
}

impl TestEngine {
    /// Returns whether lookups may return `Pending`.
    pub(crate) fn waits(self) -> bool {
        self == Self::Delayed
    }

    /// Returns a new cache.
    pub(crate) fn cache(self) -> TestCache {
        match self {
            Self::Dashmap => {
                let (limit_bytes, classes) = (LIMIT_BYTES, classes());
                let config = dashmap::Config { limit_bytes, cas: true, classes, seed: SEED };
                TestCache::new(dashmap::Cache::new(config))
            }
            Self::Segment => TestCache::new(segments()),
            Self::Delayed => TestCache::delayed(segments(), delayed::Storage::new(SEED)),
        }
    }
}

impl TestCache {
    pub(crate) fn new(cache: impl Cache) -> Self {
        Self { cache: erased::Cache::new(cache), complete: None }
    }

    pub(crate) fn delayed(cache: impl Cache, storage: Arc<delayed::Storage>) -> Self {
        let Self { cache, .. } = Self::new(delayed::Cache::new(cache, Arc::clone(&storage)));
        let complete = move || {
            storage.complete(1);
        };
        Self { cache, complete: Some(Arc::new(complete)) }
    }
}

pub(crate) fn segments() -> segment::Cache {
    segment::Cache::new(segment::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: SEED,
        evict: true,
        item_size_max: ITEM_SIZE_MAX,
        threads: 2,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    })
    .unwrap()
}

/// Defines one test per engine for each function `fn name(engine: TestEngine)`.
macro_rules! for_each_engine {
    ($($test:ident)*) => {$(
        mod $test {
            use crate::common::TestEngine;

            #[test]
            fn dashmap() {
                super::$test(TestEngine::Dashmap);
            }

            #[test]
            fn segment() {
                super::$test(TestEngine::Segment);
            }

            #[test]
            fn delayed() {
                super::$test(TestEngine::Delayed);
            }
        }
    )*};
}

/// Returns a server with a new cache.
pub(crate) fn new_server(engine: TestEngine) -> TestServer {
    let TestCache { cache, complete } = engine.cache();
    let mut server = TestServer::new(cache.engine(), ITEM_SIZE_MAX, classes());
    server.host.users = vec![(b"ann", b"pass word"), (b"bob", b""), (b"", b"nameless")];
    server.complete = complete;
    server
}

/// Returns a classic `set` of a value.
pub(crate) fn set(key: &str, value: &[u8]) -> Vec<u8> {
    store(&format!("set {key} 0 0 {}", value.len()), value)
}

/// Returns a store request: a command line, and the value with its line end.
pub(crate) fn store(line: &str, value: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\r\n", value, b"\r\n"].concat()
}

/// Returns `len` bytes without repetition, so that a test detects a shifted or missing part.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 3);
    for i in 0..u32::try_from(len.div_ceil(4)).unwrap() {
        bytes.extend_from_slice(&i.wrapping_mul(0x9e37_79b1).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns bytes as text with escaped control characters.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
