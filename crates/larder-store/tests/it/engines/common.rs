//! The engines under test, and helpers that call their functions with few arguments.

pub(crate) use crate::shared::*;
#[cfg(feature = "dashmap")]
use larder_store::dashmap;
#[cfg(feature = "moka")]
use larder_store::moka;
use larder_store::{
    Access, Attributes, Change, Engine, Item, Lease, Lookup, NewCas, NewTags, NewValue, Refusal,
    Seconds, SizeClasses, Updated, Value, segment,
};
use std::time::{Duration, Instant};

/// An engine under test: a cache that creates handles.
pub(crate) trait Subject: Send + Sync {
    type Handle: Engine;

    fn new(setup: &Setup) -> Self;
    fn handle(&self) -> Self::Handle;
}

/// The parameters that tests vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) limit_bytes: usize,
    pub(crate) cas: bool,
    pub(crate) evict: bool,
    pub(crate) threads: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self { limit_bytes: 64 << 20, cas: true, evict: true, threads: 1 }
    }
}

impl Setup {
    pub(crate) fn segments(&self) -> segment::Config {
        let &Self { limit_bytes, cas, evict, threads } = self;
        let (classes, item_size_max) = (classes(), limit_bytes / 2);
        segment::Config {
            limit_bytes,
            cas,
            classes,
            seed: SEED,
            evict,
            item_size_max,
            threads,
            size_exponent: larder_store::eviction::SIZE_EXPONENT,
            flash: None,
        }
    }
}

pub(crate) const OVERHEAD: usize = 59;
const SEED: u64 = 0x5eed;

pub(crate) fn classes() -> SizeClasses {
    SizeClasses::new(vec![96, 512, 4096, 1 << 20], OVERHEAD)
}

#[cfg(feature = "dashmap")]
impl Subject for dashmap::Cache {
    type Handle = dashmap::Handle;

    fn new(setup: &Setup) -> Self {
        let &Setup { limit_bytes, cas, .. } = setup;
        Self::new(dashmap::Config { limit_bytes, cas, classes: classes(), seed: SEED })
    }

    fn handle(&self) -> Self::Handle {
        self.handle()
    }
}

#[cfg(feature = "moka")]
impl Subject for moka::Cache {
    type Handle = moka::Handle;

    fn new(setup: &Setup) -> Self {
        let &Setup { limit_bytes, cas, .. } = setup;
        let policy = moka::Policy::Lru;
        Self::new(moka::Config { limit_bytes, cas, classes: classes(), seed: SEED, policy })
    }

    fn handle(&self) -> Self::Handle {
        self.handle()
    }
}

impl Subject for segment::Cache {
    type Handle = segment::Handle;

    fn new(setup: &Setup) -> Self {
        Self::new(setup.segments()).unwrap()
    }

    fn handle(&self) -> Self::Handle {
        self.handle()
    }
}

/// Defines one test for each engine and each generic function `fn name<S: Subject>()`.
macro_rules! for_every_engine {
    ($($test:ident)*) => { $(for_engines!($test: dashmap moka segment);)* };
}

/// Defines one test for each engine that evicts.
macro_rules! for_evicting_engines {
    ($($test:ident)*) => { $(for_engines!($test: moka segment);)* };
}

macro_rules! for_engines {
    ($test:ident: $($engine:ident)*) => {
        mod $test {
            $(test_engine!($test $engine);)*
        }
    };
}

/// Defines the test of one engine, if the build includes that engine.
macro_rules! test_engine {
    ($test:ident dashmap) => { test_engine!(#[cfg(feature = "dashmap")] $test dashmap); };
    ($test:ident moka) => { test_engine!(#[cfg(feature = "moka")] $test moka); };
    ($test:ident segment) => { test_engine!(#[cfg(all())] $test segment); };
    (#[$is_built:meta] $test:ident $engine:ident) => {
        #[$is_built]
        #[test]
        fn $engine() {
            super::$test::<larder_store::$engine::Cache>();
        }
    };
}

/// Stores an item, whether or not an old item exists.
pub(crate) fn set(engine: &mut impl Engine, key: &[u8], value: &[u8]) -> Result<u64, Refusal> {
    set_with(engine, key, value, Attributes::default())
}

pub(crate) fn set_with(
    engine: &mut impl Engine,
    key: &[u8],
    value: &[u8],
    attributes: Attributes,
) -> Result<u64, Refusal> {
    put(engine, key, NewValue::Bytes(value), attributes, NewCas::Fresh)
}

pub(crate) fn put(
    engine: &mut impl Engine,
    key: &[u8],
    value: NewValue<'_>,
    attributes: Attributes,
    cas: NewCas,
) -> Result<u64, Refusal> {
    change(engine, key, || Change::Put {
        attributes,
        cas,
        value,
        fetched: false,
        tags: NewTags::None,
    })
}

pub(crate) fn amend(
    engine: &mut impl Engine,
    key: &[u8],
    attributes: Attributes,
    cas: NewCas,
) -> u64 {
    let amend = || Change::SetAttributes { attributes, cas, access: Access::Untracked };
    change(engine, key, amend).expect("an amendment is never refused here")
}

pub(crate) fn remove(engine: &mut impl Engine, key: &[u8]) {
    change(engine, key, || Change::Remove).expect("a removal is never refused");
}

fn change<'v>(
    engine: &mut impl Engine,
    key: &[u8],
    change: impl Fn() -> Change<'v>,
) -> Result<u64, Refusal> {
    let key = hashed(engine, key);
    engine.update(key, &mut None, |_| (change(), ())).map(|updated: Updated<()>| updated.cas)
}

/// An item with a copy of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) attributes: Attributes,
    pub(crate) cas: u64,
    pub(crate) fetched: bool,
    pub(crate) accessed: Seconds,
    pub(crate) value: Vec<u8>,
}

pub(crate) fn see(engine: &mut impl Engine, key: &[u8], access: Access) -> Lookup<Seen> {
    let key = hashed(engine, key);
    engine.get(key, access, |item| Seen {
        attributes: item.attributes,
        cas: item.cas,
        fetched: item.fetched,
        accessed: item.accessed,
        value: copied(item),
    })
}

pub(crate) fn get(engine: &mut impl Engine, key: &[u8]) -> Option<Vec<u8>> {
    match see(engine, key, Access::Tracked) {
        Lookup::Hit(seen) => Some(seen.value),
        _ => None,
    }
}

pub(crate) fn copied<L: Lease>(item: &Item<'_, L>) -> Vec<u8> {
    match &item.value {
        Value::Whole(bytes) => bytes.to_vec(),
        Value::Large(lease) => read_lease(lease),
    }
}

/// Runs maintenance until there is nothing left to do.
pub(crate) fn tidy(engine: &mut impl Engine, now: Seconds) {
    let begun = Instant::now();
    while engine.maintain(now) {
        // moka searches a few hundred items in each step, so limit the time and not the number of
        // steps.
        assert!(begun.elapsed() < Duration::from_secs(30), "maintenance does not end");
    }
}
