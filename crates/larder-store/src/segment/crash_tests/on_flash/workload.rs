//! The live cache of a scenario, and the changes that the test makes to it.

use super::*;

/// The live cache of a scenario, and its acknowledged items.
pub(super) struct Live {
    pub(super) cache: Cache,
    pub(super) handle: Handle,
    pub(super) oracle: Rc<RefCell<Oracle>>,
    pub(super) evicted: Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
    pub(super) rng: StdRng,
    pub(super) scenario: Scenario,
}

impl Live {
    pub(super) fn new(scenario: Scenario, config: Config) -> Self {
        let cache = Cache::new(config).unwrap();
        let oracle = Rc::new(RefCell::new(Oracle::default()));
        let evicted = Arc::new(std::sync::Mutex::new(Vec::new()));
        let evictions = Arc::clone(&evicted);
        cache.observe_evictions(Box::new(move |eviction| {
            if eviction.flash_bucket.is_none() {
                evictions.lock().unwrap().push(eviction.key.to_vec());
            }
        }));
        let handle = handle_of(&cache);
        let rng = StdRng::seed_from_u64(scenario.seed);
        Self { cache, handle, oracle, evicted, rng, scenario }
    }

    /// Reads or changes a key, and then does the work of maintenance and the tier's threads.
    pub(super) fn operate(&mut self) {
        let key = self.rng.random_range(0..self.scenario.keys).to_be_bytes().to_vec();
        self.oracle.borrow_mut().known.entry(key.clone()).or_default();
        if self.rng.random_ratio(self.scenario.reads, 20) {
            // The second lookup copies the item to memory.
            for _ in 0..3 {
                look(&mut self.handle, &key, Access::Tracked);
            }
            return self.end_operation();
        }
        match self.rng.random_range(0..16) {
            0..=2 => self.change(&key, None),
            3 => self.extend(&key),
            4 | 5 => self.touch(&key),
            _ => {
                let len = self.scenario.lens[self.rng.random_range(0..4)];
                let (byte, flags): (u8, u32) = (self.rng.random(), self.rng.random());
                let value: Vec<u8> = (0..len).map(|i| byte ^ (i as u8)).collect();
                let expiry = match self.rng.random_range(0..3) {
                    0 => Expiry::At(Seconds(NOW.0 + self.rng.random_range(100..200_000))),
                    _ => Expiry::Never,
                };
                self.change(&key, Some((value, flags, expiry)));
            }
        }
        self.end_operation();
    }

    /// Does the work of maintenance and the tier's threads.
    pub(super) fn end_operation(&mut self) {
        self.note_evictions();
        self.handle.begin_batch(NOW);
        self.handle.maintain(NOW);
        self.handle.end_batch();
        self.write();
        self.note_evictions();
    }

    /// Sets or removes a key.
    pub(super) fn change(&mut self, key: &[u8], after: Known) {
        self.oracle.borrow_mut().changing = HashMap::from([(key.to_vec(), after.clone())]);
        let done = until_done(&mut self.handle, key, |handle, key| {
            let change = match &after {
                None => Change::Remove,
                Some((value, flags, expiry)) => Change::Put {
                    attributes: Attributes {
                        client_flags: *flags,
                        expiry: *expiry,
                        ..Attributes::default()
                    },
                    cas: NewCas::Fresh,
                    value: NewValue::Bytes(value),
                    fetched: false,
                    tags: NewTags::None,
                },
            };
            match handle.update(key, &mut None, |_| (change, ())) {
                Err(Refusal::Pending) => None,
                done => Some(done.is_ok()),
            }
        });
        self.changed(done);
    }

    /// Appends to an item.
    pub(super) fn extend(&mut self, key: &[u8]) {
        let known = self.oracle.borrow().known[key].clone();
        let Some((mut value, flags, expiry)) = known else { return };
        if value.len() > 2 * self.scenario.lens[3] {
            return;
        }
        value.extend_from_slice(b"more");
        let after = Some((value, flags, expiry));
        self.oracle.borrow_mut().changing = HashMap::from([(key.to_vec(), after)]);
        let attributes = Attributes { client_flags: flags, expiry, ..Attributes::default() };
        let done = until_done(&mut self.handle, key, |handle, key| {
            let decide = |found: Lookup<&Item<'_, ChainLease>>| match found {
                Lookup::Hit(_) => {
                    let value = NewValue::Append(b"more");
                    let cas = NewCas::Fresh;
                    (
                        Change::Put { attributes, cas, value, fetched: false, tags: NewTags::None },
                        true,
                    )
                }
                _ => (Change::Keep, false),
            };
            match handle.update(key, &mut None, decide) {
                Err(Refusal::Pending) => None,
                done => Some(done.is_ok_and(|done| done.result)),
            }
        });
        self.changed(done);
    }

    /// Changes the expiry of an item.
    pub(super) fn touch(&mut self, key: &[u8]) {
        let known = self.oracle.borrow().known[key].clone();
        let Some((value, flags, _)) = known else { return };
        let expiry = Expiry::At(Seconds(NOW.0 + self.rng.random_range(100..200_000)));
        let after = Some((value, flags, expiry));
        self.oracle.borrow_mut().changing = HashMap::from([(key.to_vec(), after)]);
        let attributes = Attributes { client_flags: flags, expiry, ..Attributes::default() };
        let done = until_done(&mut self.handle, key, |handle, key| {
            let decide = |found: Lookup<&Item<'_, ChainLease>>| match found {
                Lookup::Hit(_) => {
                    let (cas, access) = (NewCas::Same, Access::Tracked);
                    (Change::SetAttributes { attributes, cas, access }, true)
                }
                _ => (Change::Keep, false),
            };
            match handle.update(key, &mut None, decide) {
                Err(Refusal::Pending) => None,
                done => Some(done.is_ok_and(|done| done.result)),
            }
        });
        self.changed(done);
    }

    pub(super) fn changed(&self, done: bool) {
        let mut oracle = self.oracle.borrow_mut();
        let changed = std::mem::take(&mut oracle.changing);
        if done {
            oracle.known.extend(changed);
        }
    }

    /// Does the work of the tier's threads: empties pages and writes segments.
    pub(super) fn write(&mut self) {
        let shared = Arc::clone(&self.cache.shared);
        let flash = shared.flash.as_ref().unwrap();
        flash.note_time(NOW);
        // The number of rounds is bounded, because the tier's threads would not stop while pages
        // are sparse.
        for _ in 0..ROUNDS_MAX {
            let oracle = Rc::clone(&self.oracle);
            let may_lose = |may_lose: bool| {
                let mut oracle = oracle.borrow_mut();
                if may_lose {
                    oracle.may_miss = oracle.known.keys().cloned().collect();
                }
            };
            let empties = page_reclaim::empty_next(&mut self.handle, flash, may_lose);
            if !self.oracle.borrow().may_miss.is_empty() {
                self.note_evictions();
            }
            if !block_writer::write_next(&mut self.handle, flash) && !empties {
                break;
            }
        }
    }

    /// Looks up the keys that may have been evicted.
    pub(super) fn note_evictions(&mut self) {
        let mut may_miss = std::mem::take(&mut self.oracle.borrow_mut().may_miss);
        may_miss.extend(self.evicted.lock().unwrap().drain(..));
        // Borrow the oracle, so that the process does not die during the test's own lookups, which
        // are not part of the scenario.
        let oracle = Rc::clone(&self.oracle);
        let mut oracle = oracle.borrow_mut();
        for key in may_miss {
            let found = look(&mut self.handle, &key, Access::Untracked);
            assert!(
                found.is_none() || oracle.known.get(&key) == Some(&found),
                "the live cache has the acknowledged items"
            );
            oracle.known.insert(key, found);
        }
    }
}
