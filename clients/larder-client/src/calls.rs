//! The calls of both clients. `calls!([] [])` generates the calls of the blocking client, and
//! `calls!([async] [.await])` generates the calls of the asynchronous client.
//!
//! Each client implements `many` (lookups of several keys) and `each` (an operation on every
//! server) itself, and has the field `group` (its servers).

macro_rules! calls {
    ([$($async:tt)?] [$($await:tt)*]) => {
        /// Returns the value of an item, or `None` if the item does not exist.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
            Ok(self.get_with_flags(key)$($await)*?.map(|item| item.value))
        }

        /// Returns an item with its flags.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn get_with_flags(&self, key: impl AsRef<[u8]>) -> Result<Option<Item>, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Get { key, cas: false, touch: None })$($await)*
        }

        /// Returns an item with its flags and CAS.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn gets(&self, key: impl AsRef<[u8]>) -> Result<Option<Item>, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Get { key, cas: true, touch: None })$($await)*
        }

        /// Sets the expiry of an item, and returns the item with its flags and CAS.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn gat(&self, key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Result<Option<Item>, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Get { key, cas: true, touch: Some(ttl.into().exptime()) })$($await)*
        }

        /// Returns the items of several keys, in the order of the keys. Each server gets one batch
        /// of requests.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Item>>, Error> {
            self.many(keys, false)$($await)*
        }

        /// Like [`get_many`](Self::get_many), but each item also has its CAS.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn gets_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Item>>, Error> {
            self.many(keys, true)$($await)*
        }

        /// Stores an item, whether or not it exists.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn set(
            &self,
            key: impl AsRef<[u8]>,
            value: impl AsRef<[u8]>,
            ttl: impl Into<Ttl>,
        ) -> Result<StoreOutcome, Error> {
            self.store(StoreMode::Set, key.as_ref(), new_item(value.as_ref(), ttl), None)$($await)*
        }

        /// Stores an item with flags: a number that the server stores with the value.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn set_with_flags(
            &self,
            key: impl AsRef<[u8]>,
            value: impl AsRef<[u8]>,
            ttl: impl Into<Ttl>,
            flags: u32,
        ) -> Result<StoreOutcome, Error> {
            let item = NewItem { client_flags: flags, ..new_item(value.as_ref(), ttl) };
            self.store(StoreMode::Set, key.as_ref(), item, None)$($await)*
        }

        /// Stores an item only if it does not exist. Otherwise returns [`StoreOutcome::NotStored`].
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn add(
            &self,
            key: impl AsRef<[u8]>,
            value: impl AsRef<[u8]>,
            ttl: impl Into<Ttl>,
        ) -> Result<StoreOutcome, Error> {
            self.store(StoreMode::Add, key.as_ref(), new_item(value.as_ref(), ttl), None)$($await)*
        }

        /// Stores an item only if it exists. Otherwise returns [`StoreOutcome::NotStored`].
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn replace(
            &self,
            key: impl AsRef<[u8]>,
            value: impl AsRef<[u8]>,
            ttl: impl Into<Ttl>,
        ) -> Result<StoreOutcome, Error> {
            self.store(StoreMode::Replace, key.as_ref(), new_item(value.as_ref(), ttl), None)$($await)*
        }

        /// Appends bytes to a value if the item exists. Otherwise returns
        /// [`StoreOutcome::NotStored`].
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn append(&self, key: impl AsRef<[u8]>, more: impl AsRef<[u8]>) -> Result<StoreOutcome, Error> {
            self.store(StoreMode::Append, key.as_ref(), NewItem::of(more.as_ref()), None)$($await)*
        }

        /// Prepends bytes to a value if the item exists. Otherwise returns
        /// [`StoreOutcome::NotStored`].
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn prepend(&self, key: impl AsRef<[u8]>, more: impl AsRef<[u8]>) -> Result<StoreOutcome, Error> {
            self.store(StoreMode::Prepend, key.as_ref(), NewItem::of(more.as_ref()), None)$($await)*
        }

        /// Stores an item only if the current item has this CAS. Otherwise returns
        /// [`StoreOutcome::Exists`] or [`StoreOutcome::NotFound`].
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn cas(
            &self,
            key: impl AsRef<[u8]>,
            value: impl AsRef<[u8]>,
            ttl: impl Into<Ttl>,
            cas: u64,
        ) -> Result<StoreOutcome, Error> {
            self.store(StoreMode::Set, key.as_ref(), new_item(value.as_ref(), ttl), Some(cas))$($await)*
        }

        /// Stores an item with any of the options in [`StoreRequest`].
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn store_one(&self, request: StoreRequest<'_>) -> Result<StoreOutcome, Error> {
            self.store(request.mode, request.key, request.item(), request.cas)$($await)*
        }

        /// Changes a value with optimistic locking. Calls `change` with the current value, stores
        /// the result by CAS, and starts over if another client has changed the item concurrently.
        /// Returns the stored value. If `change` returns `None`, leaves the item unchanged and
        /// returns `None`. If the server does not support CAS, the last writer wins.
        ///
        /// # Errors
        /// See [`Client`]. Each lookup and each store has its own deadline.
        pub $($async)? fn update<V: AsRef<[u8]>>(
            &self,
            key: impl AsRef<[u8]>,
            ttl: impl Into<Ttl>,
            mut change: impl FnMut(Option<&[u8]>) -> Option<V>,
        ) -> Result<Option<V>, Error> {
            let (key, ttl) = (key.as_ref(), ttl.into());
            loop {
                let old = self.gets(key)$($await)*?;
                let Some(value) = change(old.as_ref().map(|item| &*item.value)) else {
                    return Ok(None);
                };
                let item = NewItem {
                    client_flags: old.as_ref().map_or(0, |item| item.flags),
                    ..new_item(value.as_ref(), ttl)
                };
                let stored = match &old {
                    Some(Item { cas: Some(cas), .. }) => {
                        self.store(StoreMode::Set, key, item, Some(*cas))$($await)*?
                    }
                    // Without a CAS, the last writer wins.
                    Some(_) => self.store(StoreMode::Set, key, item, None)$($await)*?,
                    None => self.store(StoreMode::Add, key, item, None)$($await)*?,
                };
                if stored.is_stored() {
                    return Ok(Some(value));
                }
            }
        }

        /// Removes an item. Returns whether the item existed.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Delete { key, compare: None, stale: None })$($await)*
        }

        /// Removes an item if it has this CAS. Returns false if the item has another CAS or does
        /// not exist. Needs a server with meta commands.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn delete_if(&self, key: impl AsRef<[u8]>, cas: u64) -> Result<bool, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Delete { key, compare: Some(cas), stale: None })$($await)*
        }

        /// Marks an item as stale and sets its expiry. Returns whether the item existed. Needs a
        /// server with meta commands.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn invalidate(&self, key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Result<bool, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Delete { key, compare: None, stale: Some(ttl.into().exptime()) })$($await)*
        }

        /// Sets the expiry of an item. Returns whether the item exists.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn touch(&self, key: impl AsRef<[u8]>, ttl: impl Into<Ttl>) -> Result<bool, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Touch { key, expiry: ttl.into().exptime() })$($await)*
        }

        /// Adds `delta` to a number, modulo 2^64.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<CountOutcome, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Count { key, down: false, delta, create: None })$($await)*
        }

        /// Subtracts `delta` from a number, but not below 0.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<CountOutcome, Error> {
            let key = Key::new(key.as_ref())?;
            self.call(key, Count { key, down: true, delta, create: None })$($await)*
        }

        /// Adds `delta` to a number. If the item does not exist, creates it with the number
        /// `initial`. Needs a server with meta commands.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn incr_or_create(
            &self,
            key: impl AsRef<[u8]>,
            delta: u64,
            initial: u64,
            ttl: impl Into<Ttl>,
        ) -> Result<CountOutcome, Error> {
            let key = Key::new(key.as_ref())?;
            let create = Some((initial, ttl.into().exptime()));
            self.call(key, Count { key, down: false, delta, create })$($await)*
        }

        /// Removes all items from every server.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn flush(&self) -> Result<(), Error> {
            self.each(|| Flush(Exptime::NEVER))$($await)*.map(drop)
        }

        /// Removes all items from every server after a delay. The removed items include items
        /// stored during the delay.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn flush_after(&self, delay: impl Into<Ttl>) -> Result<(), Error> {
            let delay = delay.into().exptime();
            self.each(|| Flush(delay))$($await)*.map(drop)
        }

        /// Returns the address and the version of each server.
        ///
        /// # Errors
        /// See [`Client`].
        pub $($async)? fn versions(&self) -> Result<PerServer<String>, Error> {
            self.each(|| Version)$($await)*
        }

        /// Returns a page of statistics from each server: the server's address, and the names and
        /// values of the statistics. An empty topic selects the general page.
        ///
        /// # Errors
        /// See [`Client`]. The call also fails if the topic is invalid.
        pub $($async)? fn stats(&self, topic: &str) -> Result<PerServer<Vec<(String, String)>>, Error> {
            let topic = if topic.is_empty() { None } else { Some(WireKey::new(topic.as_bytes())?) };
            self.each(|| Stats(topic))$($await)*
        }

        pub(crate) $($async)? fn call<O: Operation>(&self, key: Key<'_>, mut operation: O) -> Result<O::Output, Error> {
            let (servers, now) = (self.group.servers(), Instant::now());
            let (mut server, admitted) = servers.admit(key.bytes(), now, &[]);
            let mut called = server.call_admitted(admitted, &mut operation, now)$($await)*;
            let mut failed = Vec::new();
            while let Err(error) = &called {
                failed.push(server);
                if !servers.can_move(error, &failed) {
                    break;
                }
                let admitted;
                (server, admitted) = servers.admit(key.bytes(), Instant::now(), &failed);
                called = server.call_admitted(admitted, &mut operation, now)$($await)*;
            }
            called
        }

        $($async)? fn store(
            &self,
            mode: StoreMode,
            key: &[u8],
            item: NewItem<'_>,
            compare: Option<u64>,
        ) -> Result<StoreOutcome, Error> {
            let store = Store::new(mode, key, item, compare)?;
            self.call(store.key, store)$($await)*
        }
    };
}

pub(crate) use calls;
