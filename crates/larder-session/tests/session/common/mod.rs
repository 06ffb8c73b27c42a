//! The engines under test, and helpers for requests.

pub(crate) mod conversation;
pub(crate) mod streams;
pub(crate) mod target;

use larder_store::{Engine, SizeClasses, dashmap, delayed, segment};

pub(crate) use larder_session::test_util::{TestClient, TestServer};

/// An engine under test.
pub(crate) trait TestEngine: Engine + Sized {
    /// Whether lookups may be `Pending`.
    const WAITS: bool = false;

    /// A handle to a new cache.
    fn fresh() -> Self {
        Self::pair().0
    }

    /// Two handles to a new cache.
    fn pair() -> (Self, Self);

    /// Completes a read of slower storage.
    fn complete_read(&mut self) {
        panic!("this engine has no slower storage");
    }
}

pub(crate) const ITEM_SIZE_MAX: usize = 300 << 10;
pub(crate) const CLASS_SIZES: [usize; 5] = [96, 120, 512, 4096, 512 << 10];
const LIMIT_BYTES: usize = 64 << 20;
const SEED: u64 = 0x5eed;

pub(crate) fn classes() -> SizeClasses {
    SizeClasses::new(CLASS_SIZES.to_vec(), 59)
}

impl TestEngine for dashmap::Handle {
    fn pair() -> (Self, Self) {
        let (limit_bytes, classes) = (LIMIT_BYTES, classes());
        let config = dashmap::Config { limit_bytes, cas: true, classes, seed: SEED };
        let cache = dashmap::Cache::new(config);
        (cache.handle(), cache.handle())
    }
}

impl TestEngine for segment::Handle {
    fn pair() -> (Self, Self) {
        let cache = segment::Cache::new(segment::Config {
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
        .unwrap();
        (cache.handle(), cache.handle())
    }
}

impl<E: TestEngine> TestEngine for delayed::Handle<E> {
    const WAITS: bool = true;

    fn pair() -> (Self, Self) {
        let (one, other) = E::pair();
        let storage = delayed::Storage::new(SEED);
        (Self::new(one, storage.clone()), Self::new(other, storage))
    }

    fn complete_read(&mut self) {
        self.storage().complete(1);
    }
}

/// Defines a test for each engine and each generic function `fn name<E: TestEngine>()`.
macro_rules! for_each_engine {
    ($($test:ident)*) => {$(
        mod $test {
            #[test]
            fn dashmap() {
                super::$test::<larder_store::dashmap::Handle>();
            }

            #[test]
            fn segment() {
                super::$test::<larder_store::segment::Handle>();
            }

            #[test]
            fn delayed() {
                use larder_store::{delayed, segment};
                super::$test::<delayed::Handle<segment::Handle>>();
            }
        }
    )*};
}

/// A server with a new engine.
pub(crate) fn new_server<E: TestEngine>() -> TestServer<E> {
    let mut server = TestServer::new(E::fresh(), ITEM_SIZE_MAX, classes());
    server.host.users = vec![(b"ann", b"pass word"), (b"bob", b""), (b"", b"nameless")];
    server.complete = E::WAITS.then_some(E::complete_read);
    server
}

/// A classic `set` of a value.
pub(crate) fn set(key: &str, value: &[u8]) -> Vec<u8> {
    store(&format!("set {key} 0 0 {}", value.len()), value)
}

/// A command line and its value.
pub(crate) fn store(line: &str, value: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\r\n", value, b"\r\n"].concat()
}

/// Bytes without repetition, so that a shifted or lost part changes them.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0_u32..).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).take(len).collect()
}

/// Bytes in a readable form.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
