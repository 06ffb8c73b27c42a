//! The segment engine under eviction, expiry, growth and flushes: a lookup finds the last stored
//! value, or nothing.
#![no_main]

use arbitrary::Arbitrary;
use larder_fuzz::classes;
use larder_store::{
    Access, Attributes, Batches, Change, Expiry, HashedKey, Lease, Lookup, Lookups, Maintenance,
    NewCas, NewTags, NewValue, Seconds, Updates, Uploads, Value, segment,
};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;

/// The memory limit. The limit is close to the minimum, so that few items fill the cache.
const LIMIT_BYTES: usize = 3 << 20;
const START: u32 = 1_700_000_000;

#[derive(Arbitrary, Debug)]
enum Step {
    /// Stores `count` items with values of about `len` bytes. No lookup reads these items.
    Fill {
        count: u8,
        len: u16,
    },
    Set {
        key: u8,
        len: u16,
        ttl: u8,
    },
    Large {
        key: u8,
        kib: u8,
    },
    Append {
        key: u8,
        len: u8,
    },
    Get {
        key: u8,
    },
    Amend {
        key: u8,
        ttl: u8,
    },
    Remove {
        key: u8,
    },
    Flush,
    Wait {
        secs: u8,
    },
    Tidy,
}

struct CheckedEngine {
    engine: segment::Handle,
    now: Seconds,
    /// The last stored value of each key, and its expiry.
    stored: HashMap<u8, (Vec<u8>, Expiry)>,
    fillers: u64,
    versions: u32,
}

impl CheckedEngine {
    fn step(&mut self, step: &Step) {
        self.engine.begin_batch(self.now);
        match *step {
            Step::Fill { count, len } => (0..count).for_each(|_| self.fill(len.into())),
            Step::Set { key, len, ttl } => self.set(key, len.into(), ttl),
            Step::Large { key, kib } => self.set(key, usize::from(kib) << 10, 0),
            Step::Append { key, len } => self.append(key, len.into()),
            Step::Get { key } => self.get(key),
            Step::Amend { key, ttl } => self.amend(key, ttl),
            Step::Remove { key } => self.remove(key),
            Step::Flush => {
                self.engine.flush(None);
                self.stored.clear();
            }
            Step::Wait { secs } => self.now.0 += u32::from(secs),
            Step::Tidy => drop(self.engine.maintain(self.now)),
        }
        self.engine.end_batch();
    }

    fn value(&mut self, len: usize) -> Vec<u8> {
        self.versions += 1;
        let mut value: Vec<u8> =
            self.versions.to_le_bytes().into_iter().cycle().take(len).collect();
        value.iter_mut().step_by(64).zip((0..=u8::MAX).cycle()).for_each(|(byte, i)| *byte ^= i);
        value
    }

    fn expiry(&self, ttl: u8) -> Expiry {
        if ttl == 0 { Expiry::Never } else { Expiry::At(Seconds(self.now.0 + u32::from(ttl))) }
    }

    fn remove(&mut self, key: u8) {
        let hashed = HashedKey { bytes: &[key], hash: self.engine.hash(&[key]) };
        let removed = self.engine.update(hashed, &mut None, |_| (Change::Remove, ()));
        assert!(removed.is_ok(), "removing needs no memory");
        self.stored.remove(&key);
    }

    fn put(&mut self, key: &[u8], value: &[u8], expiry: Expiry) -> bool {
        let key = HashedKey { bytes: key, hash: self.engine.hash(key) };
        let attributes = Attributes { expiry, ..Attributes::default() };
        let put = || {
            let value = NewValue::Bytes(value);
            Change::Put {
                attributes,
                cas: NewCas::Fresh,
                value,
                fetched: false,
                tags: NewTags::None,
            }
        };
        self.engine.update(key, &mut None, |_| (put(), ())).is_ok()
    }

    fn fill(&mut self, len: usize) {
        self.fillers += 1;
        let key = [b"filler".as_slice(), &self.fillers.to_le_bytes()].concat();
        let value = self.value(len);
        self.put(&key, &value, Expiry::Never);
    }

    fn set(&mut self, key: u8, len: usize, ttl: u8) {
        let (value, expiry) = (self.value(len), self.expiry(ttl));
        if len < self.engine.upload_len_min() {
            if self.put(&[key], &value, expiry) {
                self.stored.insert(key, (value, expiry));
            }
        } else {
            self.upload(key, value, expiry);
        }
    }

    fn upload(&mut self, key: u8, value: Vec<u8>, expiry: Expiry) {
        let Ok(mut upload) = self.engine.upload(value.len()) else { return };
        for piece in value.chunks(10_000) {
            if self.engine.extend(&mut upload, piece).is_err() {
                return;
            }
        }
        let hashed = HashedKey { bytes: &[key], hash: self.engine.hash(&[key]) };
        let attributes = Attributes { expiry, ..Attributes::default() };
        let put = || {
            let value = NewValue::Uploaded;
            Change::Put {
                attributes,
                cas: NewCas::Fresh,
                value,
                fetched: false,
                tags: NewTags::None,
            }
        };
        if self.engine.update(hashed, &mut Some(upload), |_| (put(), ())).is_ok() {
            self.stored.insert(key, (value, expiry));
        }
    }

    fn append(&mut self, key: u8, len: usize) {
        let more = self.value(len);
        let hashed = HashedKey { bytes: &[key], hash: self.engine.hash(&[key]) };
        let appended = self.engine.update(hashed, &mut None, |found| match found {
            Lookup::Hit(item) => {
                let (attributes, value) = (item.attributes, NewValue::Append(&more));
                (
                    Change::Put {
                        attributes,
                        cas: NewCas::Fresh,
                        value,
                        fetched: false,
                        tags: NewTags::None,
                    },
                    true,
                )
            }
            _ => (Change::Keep, false),
        });
        match appended.map(|updated| updated.result) {
            Ok(true) => {
                self.stored
                    .get_mut(&key)
                    .expect("a found item was stored")
                    .0
                    .extend_from_slice(&more);
            }
            Ok(false) => drop(self.stored.remove(&key)),
            Err(_) => (),
        }
    }

    fn amend(&mut self, key: u8, ttl: u8) {
        let expiry = self.expiry(ttl);
        let attributes = Attributes { expiry, ..Attributes::default() };
        let access = Access::Untracked;
        let hashed = HashedKey { bytes: &[key], hash: self.engine.hash(&[key]) };
        let found = self.engine.update(hashed, &mut None, |found| match found {
            Lookup::Hit(_) => {
                (Change::SetAttributes { attributes, cas: NewCas::Same, access }, true)
            }
            _ => (Change::Keep, false),
        });
        match found.map(|updated| updated.result) {
            Ok(true) => self.stored.get_mut(&key).expect("a found item was stored").1 = expiry,
            Ok(false) => drop(self.stored.remove(&key)),
            Err(_) => (),
        }
    }

    fn get(&mut self, key: u8) {
        let hashed = HashedKey { bytes: &[key], hash: self.engine.hash(&[key]) };
        let found = self.engine.get(hashed, Access::Tracked, |item| match &item.value {
            Value::Whole(bytes) => Some(bytes.to_vec()),
            Value::Large(lease) => {
                let mut all = Vec::new();
                while all.len() < lease.len() {
                    all.extend_from_slice(lease.piece(all.len()));
                }
                Some(all)
            }
        });
        if let Lookup::Hit(Some(value)) = found {
            let (stored, expiry) = self.stored.get(&key).expect("a found item was stored");
            assert!(&value == stored, "the last stored value");
            assert!(!expiry.is_past(self.now), "no expired item is found");
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let config = segment::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: 0x5eed,
        evict: true,
        item_size_max: LIMIT_BYTES / 2,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    };
    let engine =
        segment::Cache::new(config).expect("the limit is large enough for an engine").handle();
    let (now, stored) = (Seconds(START), HashMap::new());
    let mut checked = CheckedEngine { engine, now, stored, fillers: 0, versions: 0 };
    steps.iter().take(400).for_each(|step| checked.step(step));
});
