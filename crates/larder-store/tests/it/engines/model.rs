//! Random operations: every engine behaves like the oracle.

use super::common::*;
use super::oracle::{Oracle, name};
use larder_store::{
    Access, Attributes, Change, Engine, Expiry, Item, Lookup, NewCas, NewTags, NewValue, Now,
    Seconds, Value,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::hash::{BuildHasher, RandomState};

for_every_engine! { every_operation_has_the_result_of_the_oracle }

#[derive(Clone, Debug)]
enum Op {
    Get(u8, bool),
    Keep(u8),
    Touch(u8),
    Remove(u8),
    Put {
        key: u8,
        source: ValueSource,
        marks: Marks,
        cas: Cas,
        fetched: bool,
    },
    Amend {
        key: u8,
        marks: Marks,
        cas: Cas,
        tracked: bool,
    },
    /// Takes a lease on a large value. The test keeps at most four leases, and reads them at the
    /// end of the test.
    Hold(u8),
    /// An upload that is not stored.
    Abandon {
        len: usize,
        sent: usize,
    },
    Flush,
    FlushIn(u32),
    Advance(u32),
    AdvanceMillis(u16),
    Maintain,
    /// Continue with the other handle.
    Switch,
    EndBatch,
}

/// A new value: its content, and the kind of change that stores it.
#[derive(Clone, Copy, Debug)]
enum ValueSource {
    Bytes(Text),
    Append(Text),
    Prepend(Text),
    Number { number: u64, padding: usize },
    Upload(Text),
    AppendUpload(Text),
    PrependUpload(Text),
}

#[derive(Clone, Copy, Debug)]
struct Text {
    seed: u8,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
enum Cas {
    Fresh,
    Same,
    Exactly(u64),
}

/// Attributes, with a lifetime in seconds and milliseconds in place of an expiry.
#[derive(Clone, Copy, Debug)]
struct Marks {
    lifetime: Option<(u32, u16)>,
    attributes: Attributes,
}

const KEYS: u8 = 8;
/// The maximum length in bytes of a value that the test extends or replaces.
const LEN_MAX: usize = 600_000;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = || 0..KEYS;
    let put = (key(), source(), marks(), cas(), any::<bool>()).prop_map(
        |(key, source, marks, cas, fetched)| Op::Put { key, source, marks, cas, fetched },
    );
    let amend = (key(), marks(), cas(), any::<bool>())
        .prop_map(|(key, marks, cas, tracked)| Op::Amend { key, marks, cas, tracked });
    let abandon = (0..300_000_usize, 0..300_000_usize)
        .prop_map(|(len, sent)| Op::Abandon { len, sent: sent.min(len) });
    let op = prop_oneof![
        8 => (key(), any::<bool>()).prop_map(|(key, tracked)| Op::Get(key, tracked)),
        20 => put,
        8 => amend,
        2 => key().prop_map(Op::Keep),
        2 => key().prop_map(Op::Touch),
        3 => key().prop_map(Op::Remove),
        1 => key().prop_map(Op::Hold),
        1 => abandon,
        1 => Just(Op::Flush),
        1 => (1..20_u32).prop_map(Op::FlushIn),
        6 => prop_oneof![5 => 1..5_u32, 1 => 5..40_000_u32].prop_map(Op::Advance),
        3 => (1..1000_u16).prop_map(Op::AdvanceMillis),
        4 => Just(Op::Maintain),
        2 => Just(Op::Switch),
        6 => Just(Op::EndBatch),
    ];
    vec(op, 1..120)
}

fn source() -> impl Strategy<Value = ValueSource> {
    prop_oneof![
        8 => text().prop_map(ValueSource::Bytes),
        3 => text().prop_map(ValueSource::Append),
        3 => text().prop_map(ValueSource::Prepend),
        3 => (any::<u64>(), 0..40_usize)
            .prop_map(|(number, padding)| ValueSource::Number { number, padding }),
        2 => text().prop_map(ValueSource::Upload),
        1 => text().prop_map(ValueSource::AppendUpload),
        1 => text().prop_map(ValueSource::PrependUpload),
    ]
}

fn text() -> impl Strategy<Value = Text> {
    let len = prop_oneof![
        10 => 0..100_usize,
        4 => 100..5_000_usize,
        2 => 5_000..70_000_usize,
        2 => 70_000..300_000_usize,
        // Lengths around multiples of 64 KiB, where large values start and their pieces end.
        1 => (1..5_usize, 0..3_usize).prop_map(|(n, off)| n * (64 << 10) + off - 1),
    ];
    (any::<u8>(), len).prop_map(|(seed, len)| Text { seed, len })
}

fn cas() -> impl Strategy<Value = Cas> {
    let chosen = prop_oneof![Just(1), 1..100_u64, Just(1 << 20), Just(1 << 40)];
    prop_oneof![10 => Just(Cas::Fresh), 3 => Just(Cas::Same), 1 => chosen.prop_map(Cas::Exactly)]
}

fn marks() -> impl Strategy<Value = Marks> {
    let lifetime = prop_oneof![
        5 => Just(None),
        3 => (0..6_u32).prop_map(Some),
        1 => (0..100_000_u32).prop_map(Some),
        1 => Just(Some(40_000_000)),
    ];
    let millis = prop_oneof![1 => Just(0), 1 => 0..1000_u16];
    let lifetime = (lifetime, millis).prop_map(|(secs, millis)| secs.map(|secs| (secs, millis)));
    let flags = prop_oneof![3 => Just(0), 1 => any::<u32>()];
    let states = (any::<bool>(), any::<bool>(), any::<bool>());
    (lifetime, flags, states).prop_map(|(lifetime, client_flags, (stale, won, binary_key))| Marks {
        lifetime,
        attributes: Attributes { client_flags, stale, won, binary_key, expiry: Expiry::Never },
    })
}

impl Text {
    fn bytes(self) -> Vec<u8> {
        pattern(self.seed.into(), self.len)
    }
}

impl Marks {
    fn at(self, now: Now) -> Attributes {
        let at = |(secs, millis): (u32, u16)| {
            Expiry::at_millis(now.in_millis() + u64::from(secs) * 1000 + u64::from(millis))
        };
        Attributes { expiry: self.lifetime.map_or(Expiry::Never, at), ..self.attributes }
    }
}

impl From<Cas> for NewCas {
    fn from(cas: Cas) -> Self {
        match cas {
            Cas::Fresh => Self::Fresh,
            Cas::Same => Self::Same,
            Cas::Exactly(cas) => Self::Exactly(cas),
        }
    }
}

/// An engine and the oracle with which it is compared.
struct Pair<E: Engine> {
    /// The handles. The first one is in use.
    handles: [E; 2],
    in_batch: bool,
    oracle: Oracle,
    leases: Vec<(E::Lease, Vec<u8>)>,
}

impl<E: Engine> Pair<E> {
    fn new<S: Subject<Handle = E>>(counting: bool) -> Self {
        let cache = S::new(&Setup { evict: false, threads: 2, ..Setup::default() });
        let handles = [cache.handle(), cache.handle()];
        let (oracle, leases) = (Oracle::new(counting), Vec::new());
        Self { handles, in_batch: false, oracle, leases }
    }

    fn engine(&mut self) -> &mut E {
        let [engine, _] = &mut self.handles;
        if !self.in_batch {
            engine.begin_batch(self.oracle.now);
            self.in_batch = true;
        }
        engine
    }

    fn end_batch(&mut self) {
        if self.in_batch {
            self.handles[0].end_batch();
            self.in_batch = false;
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Get(key, tracked) => {
                self.get(key, if tracked { Access::Tracked } else { Access::Untracked });
            }
            Op::Keep(key) => drop(self.change(key, || Change::Keep)),
            Op::Touch(key) => {
                self.change(key, || Change::MarkAccessed);
                self.oracle.note_access(key);
            }
            Op::Remove(key) => {
                self.change(key, || Change::Remove);
                self.oracle.remove(key);
            }
            Op::Put { key, source, marks, cas, fetched } => {
                self.put(key, source, marks, cas, fetched)
            }
            Op::Amend { key, marks, cas, tracked } => self.amend(key, marks, cas, tracked),
            Op::Hold(key) => self.hold(key),
            Op::Abandon { len, sent } => drop(self.upload(&pattern(0, sent), len)),
            Op::Flush => {
                self.engine().flush(None);
                self.oracle.flush_all();
            }
            Op::FlushIn(secs) => {
                let at = Seconds(self.oracle.now.secs.0 + secs);
                self.engine().flush(Some(at));
                self.oracle.flush_later(at);
            }
            Op::Advance(secs) => {
                self.end_batch();
                self.oracle.advance(secs);
            }
            Op::AdvanceMillis(millis) => {
                self.end_batch();
                self.oracle.advance_millis(millis);
            }
            Op::Maintain => {
                self.end_batch();
                let now = self.oracle.now.secs;
                self.handles[0].maintain(now);
            }
            Op::Switch => {
                self.end_batch();
                self.handles.reverse();
            }
            Op::EndBatch => self.end_batch(),
        }
    }

    fn get(&mut self, key: u8, access: Access) {
        let shown = see(self.engine(), &name(key), access);
        self.oracle.check(key, &shown);
        if access == Access::Tracked {
            self.oracle.note_access(key);
        }
    }

    /// Makes a change that needs no upload. Returns the CAS that the item has after the change.
    fn change<'v>(&mut self, key: u8, change: impl Fn() -> Change<'v>) -> u64 {
        self.update(key, &mut None, change)
    }

    /// Makes a change, and compares the item that the closure receives with the oracle. Returns the
    /// CAS that the item has after the change.
    fn update<'v>(
        &mut self,
        key: u8,
        upload: &mut Option<E::Upload>,
        change: impl Fn() -> Change<'v>,
    ) -> u64 {
        let engine = self.engine();
        let key_bytes = name(key);
        let hashed = hashed(engine, &key_bytes);
        let decide = |found: Lookup<&Item<'_, E::Lease>>| (change(), found.map(seen));
        let updated =
            engine.update(hashed, upload, decide).expect("the cache has room for all items");
        self.oracle.check(key, &updated.result);
        updated.cas
    }

    fn put(&mut self, key: u8, source: ValueSource, marks: Marks, cas: Cas, fetched: bool) {
        let attributes = marks.at(self.oracle.now);
        let old = self.oracle.live(key).map(|item| item.value.clone()).unwrap_or_default();
        if old.len() > LEN_MAX {
            return;
        }
        let (new, mut upload) = self.prepare(source);
        let value = match source {
            ValueSource::Bytes(_) => NewValue::Bytes(&new),
            ValueSource::Append(_) => NewValue::Append(&new),
            ValueSource::Prepend(_) => NewValue::Prepend(&new),
            ValueSource::Number { number, .. } => numeric(number, new.len()),
            ValueSource::Upload(_) => NewValue::Uploaded,
            ValueSource::AppendUpload(_) => NewValue::AppendUploaded,
            ValueSource::PrependUpload(_) => NewValue::PrependUploaded,
        };
        let put =
            || Change::Put { attributes, cas: cas.into(), value, fetched, tags: NewTags::None };
        let got = self.update(key, &mut upload, put);
        assert!(upload.is_none(), "the update has taken the upload");
        let whole = match source {
            ValueSource::Append(_) | ValueSource::AppendUpload(_) => [old, new].concat(),
            ValueSource::Prepend(_) | ValueSource::PrependUpload(_) => [new, old].concat(),
            _ => new,
        };
        self.oracle.put(key, whole, attributes, (cas.into(), got), fetched);
    }

    /// Returns the bytes of a new value, and an upload of the bytes if `source` requires one.
    fn prepare(&mut self, source: ValueSource) -> (Vec<u8>, Option<E::Upload>) {
        match source {
            ValueSource::Bytes(text) | ValueSource::Append(text) | ValueSource::Prepend(text) => {
                (text.bytes(), None)
            }
            ValueSource::Number { number, padding } => {
                let digits = number.to_string();
                (format!("{digits:width$}", width = digits.len() + padding).into(), None)
            }
            ValueSource::Upload(text)
            | ValueSource::AppendUpload(text)
            | ValueSource::PrependUpload(text) => {
                let bytes = text.bytes();
                let upload = self.upload(&bytes, bytes.len());
                (bytes, Some(upload))
            }
        }
    }

    fn upload(&mut self, bytes: &[u8], len: usize) -> E::Upload {
        let engine = self.engine();
        let mut upload = engine.upload(len).expect("the cache has room for all items");
        for piece in bytes.chunks(30_000) {
            engine.extend(&mut upload, piece).expect("the cache has room for all items");
        }
        upload
    }

    fn amend(&mut self, key: u8, marks: Marks, cas: Cas, tracked: bool) {
        let attributes = marks.at(self.oracle.now);
        let access = if tracked { Access::Tracked } else { Access::Untracked };
        let got =
            self.change(key, || Change::SetAttributes { attributes, cas: cas.into(), access });
        self.oracle.amend(key, attributes, (cas.into(), got), access);
    }

    fn hold(&mut self, key: u8) {
        let engine = self.engine();
        let key_bytes = name(key);
        let hashed = hashed(engine, &key_bytes);
        let lease = engine.get(hashed, Access::Untracked, |item| match &item.value {
            Value::Large(lease) => Some(lease.clone()),
            _ => None,
        });
        if let (Lookup::Hit(Some(lease)), Some(item)) = (lease, self.oracle.live(key)) {
            // The test keeps at most four leases, because leases keep memory that other operations
            // may need.
            self.leases.truncate(3);
            self.leases.push((lease, item.value.clone()));
        }
    }

    fn check_all(&mut self) {
        (0..KEYS).for_each(|key| self.get(key, Access::Untracked));
        self.end_batch();
        for (lease, value) in &self.leases {
            assert!(read_lease(lease) == *value, "a lease of {} B changed", value.len());
        }
        let gauges = self.handles[0].gauges();
        let (items, bytes) = self.oracle.live_len();
        let dead = self.oracle.dead_count();
        assert!((items..=items + dead).contains(&(usize::try_from(gauges.items).unwrap())));
        if dead == 0 {
            assert_eq!(gauges.bytes, bytes as u64);
        }
    }
}

fn seen<L: larder_store::Lease>(item: &Item<'_, L>) -> Seen {
    let &Item { attributes, cas, fetched, accessed, .. } = item;
    Seen { attributes, cas, fetched, accessed, value: copied(item) }
}

fn numeric(number: u64, width: usize) -> NewValue<'static> {
    let text = number.to_string();
    let mut digits = [0; 20];
    digits[..text.len()].copy_from_slice(text.as_bytes());
    NewValue::Number { digits, len: u8::try_from(text.len()).unwrap(), width }
}

fn every_operation_has_the_result_of_the_oracle<S: Subject>() {
    let (seed, cases) = (number_from_env("LARDER_SEED"), number_from_env("LARDER_CASES"));
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0));
    let cases = cases.map_or(64, |cases| u32::try_from(cases).unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let ran = TestRunner::new_with_rng(config, rng).run(&ops(), |ops| {
        let counting = !ops.iter().any(|op| matches!(op, Op::Switch));
        let mut pair = Pair::new::<S>(counting);
        ops.iter().for_each(|op| pair.apply(op));
        pair.check_all();
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("LARDER_SEED={seed} {failure}");
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}
