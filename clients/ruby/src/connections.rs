//! `Larder::Connections`: the calls of a client. Keys and values are byte strings here.

use crate::failure::exception;
use crate::gvl;
use crate::tls::Tls;
use crate::waiter::RubyWaiter;
use larder_client::blocking::Client;
use larder_client::ring::Hashing;
use larder_client::{
    Builder, CountOutcome, Failover, Item, StoreMode, StoreOutcome, StoreRequest, Ttl,
};
use magnus::{
    Error, ExceptionClass, Module as _, Object as _, RArray, RHash, RModule, RString, Ruby,
    TryConvert as _, function, method,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// The connections to a client's servers. Calls open connections on demand, even after `close`.
#[derive(Debug)]
#[magnus::wrap(class = "Larder::Connections", free_immediately)]
struct Connections {
    builder: Builder<Client>,
    /// The maximum number of pooled connections per server. With `None`, threads share one
    /// connection per server, and fibers have a pool of [`FIBERS_MAX`] connections.
    max: Option<usize>,
    /// The client with a shared connection per server. `None` before the first call and after
    /// `close`. The GVL guards both cells: no code releases the GVL while a cell is borrowed.
    shared: RefCell<Option<Client>>,
    /// The client with a pool. Fibers always use this client: a fiber that reads from a shared
    /// connection could not wake another fiber that waits for a reply on that connection. `None`
    /// before the first call and after `close`.
    pooled: RefCell<Option<Client>>,
}

/// The default size of the pool for fibers.
const FIBERS_MAX: usize = 64;

pub(crate) fn define(ruby: &Ruby) -> Result<(), Error> {
    let larder: RModule = ruby.class_object().const_get("Larder")?;
    let class = larder.define_class("Connections", ruby.class_object())?;
    class.define_singleton_method("new", function!(Connections::new, 6))?;
    class.define_method("get", method!(Connections::get, 1))?;
    class.define_method("gat", method!(Connections::gat, 2))?;
    class.define_method("get_many", method!(Connections::get_many, 1))?;
    class.define_method("store", method!(Connections::store, 6))?;
    class.define_method("set_many", method!(Connections::set_many, 4))?;
    class.define_method("delete_many", method!(Connections::delete_many, 1))?;
    class.define_method("delete", method!(Connections::delete, 1))?;
    class.define_method("delete_if", method!(Connections::delete_if, 2))?;
    class.define_method("touch", method!(Connections::touch, 2))?;
    class.define_method("incr", method!(Connections::incr, 2))?;
    class.define_method("decr", method!(Connections::decr, 2))?;
    class.define_method("flush", method!(Connections::flush, 0))?;
    class.define_method("versions", method!(Connections::versions, 0))?;
    class.define_method("stats", method!(Connections::stats, 1))?;
    class.define_method("close", method!(Connections::close, 0))?;
    class.define_method("forget", method!(Connections::forget, 0))
}

impl Connections {
    /// Creates the connections to `servers`, which are pairs of address and weight. `timeout`
    /// limits a call, and `connect_timeout` limits opening a connection, both in seconds. `max` is
    /// the pool size per server, or `nil` for one shared connection per server. With `failover`,
    /// keys of an unavailable server move to other servers. `login` contains the user name and the
    /// password for each connection. With `tls`, connections are encrypted.
    fn new(
        ruby: &Ruby,
        servers: Vec<(String, u32)>,
        (timeout, connect_timeout): (f64, f64),
        max: Option<usize>,
        failover: bool,
        login: Option<(String, String)>,
        tls: Option<&Tls>,
    ) -> Result<Self, Error> {
        let duration = |name: &str, seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|error| Error::new(ruby.exception_arg_error(), format!("{name}: {error}")))
        };
        let builder = Client::builder(servers)
            .hashing(Hashing::Dalli)
            .failover(if failover { Failover::Next } else { Failover::Fail })
            .timeout(duration("socket_timeout", timeout)?)
            .connect_timeout(duration("connect_timeout", connect_timeout)?)
            .waiter(Arc::new(RubyWaiter::default()));
        let builder = match login {
            Some((user, password)) => builder.login(user, password),
            None => builder,
        };
        let builder = match tls {
            Some(tls) => builder.tls(tls.0.clone()),
            None => builder,
        };
        Ok(Self { builder, max, shared: RefCell::default(), pooled: RefCell::default() })
    }

    /// Returns the client, and builds it if necessary. Building releases the GVL, because resolving
    /// host names may take a long time.
    fn client(&self, ruby: &Ruby) -> Result<Client, Error> {
        let is_shared = self.max.is_none() && !gvl::has_fibers();
        let cell = if is_shared { &self.shared } else { &self.pooled };
        if let Some(client) = &*cell.borrow() {
            return Ok(client.clone());
        }
        let mut built = None;
        let builder = self.builder.clone();
        let builder = if is_shared {
            // The interpreter runs one thread at a time, so more connections would not be faster.
            builder.shared(1)
        } else {
            builder.connections(self.max.unwrap_or(FIBERS_MAX))
        };
        if gvl::without(|| built = Some(builder.clone().build())).is_err() {
            let interrupted = || Error::new(ruby.exception_interrupt(), "");
            return Err(gvl::take_pending().unwrap_or_else(interrupted));
        }
        let built = built.expect("the closure has run").map_err(|error| exception(ruby, &error))?;
        Ok(cell.borrow_mut().get_or_insert(built).clone())
    }

    fn call<T>(
        &self,
        ruby: &Ruby,
        call: impl FnOnce(&Client) -> Result<T, larder_client::Error>,
    ) -> Result<T, Error> {
        let called = call(&self.client(ruby)?);
        // A pending interrupt takes precedence over the result of the call. No Ruby code may run
        // before this check.
        match gvl::take_pending() {
            Some(pending) => Err(pending),
            None => called.map_err(|error| exception(ruby, &error)),
        }
    }

    /// Returns a value, its flags and its CAS, or `nil` if the item does not exist.
    fn get(ruby: &Ruby, this: &Self, key: RString) -> Result<Option<RArray>, Error> {
        let key = key.to_bytes();
        let item = this.call(ruby, |client| client.gets(&key))?;
        item.map(|item| parts(ruby, &item)).transpose()
    }

    fn gat(ruby: &Ruby, this: &Self, key: RString, ttl: u32) -> Result<Option<RArray>, Error> {
        let key = key.to_bytes();
        let item = this.call(ruby, |client| client.gat(&key, ttl))?;
        item.map(|item| parts(ruby, &item)).transpose()
    }

    /// Returns the items of several keys, in the order of the keys. An item is `nil` if it does not
    /// exist, or if its server is at fault (`larder_client::Error::is_fault`).
    fn get_many(ruby: &Ruby, this: &Self, keys: RArray) -> Result<RArray, Error> {
        let keys = strings(keys)?;
        let items = this.call(ruby, |client| client.gets_available(&keys))?;
        let found = ruby.ary_new_capa(items.len());
        for item in items {
            found.push(item.map(|item| parts(ruby, &item)).transpose()?)?;
        }
        Ok(found)
    }

    /// Stores an item. `mode` is "set", "add", "replace", "append" or "prepend". With a CAS, stores
    /// only if the current item has that CAS. Returns whether the item was stored, or `nil` if the
    /// call has a CAS and the item does not exist.
    #[expect(clippy::too_many_arguments, reason = "the parameters of the Ruby method")]
    fn store(
        ruby: &Ruby,
        this: &Self,
        mode: String,
        key: RString,
        value: RString,
        ttl: u32,
        flags: u32,
        cas: Option<u64>,
    ) -> Result<Option<bool>, Error> {
        let mode = match &*mode {
            "set" => StoreMode::Set,
            "add" => StoreMode::Add,
            "replace" => StoreMode::Replace,
            "append" => StoreMode::Append,
            "prepend" => StoreMode::Prepend,
            _ => return Err(Error::new(ruby.exception_arg_error(), "unknown store mode")),
        };
        let (key, value) = (key.to_bytes(), value.to_bytes());
        let request =
            StoreRequest { mode, key: &key, value: &value, ttl: Ttl::secs(ttl), flags, cas };
        this.call(ruby, |client| client.store_one(request)).map(outcome)
    }

    /// Stores items with these keys, values and flags. Sends one batch of requests to each server.
    fn set_many(
        ruby: &Ruby,
        this: &Self,
        keys: RArray,
        values: RArray,
        flags: RArray,
        ttl: u32,
    ) -> Result<bool, Error> {
        let (keys, values, flags) = (strings(keys)?, strings(values)?, flags.to_vec::<u32>()?);
        let requests: Vec<_> = { keys.iter().zip(&values).zip(flags) }
            .map(|((key, value), flags)| {
                let (mode, ttl) = (StoreMode::Set, Ttl::secs(ttl));
                let (key, value) = (key.as_ref(), value.as_ref());
                StoreRequest { mode, key, value, ttl, flags, cas: None }
            })
            .collect();
        this.call(ruby, |client| client.store_many(&requests)).map(|_| true)
    }

    /// Removes items. Sends one batch of requests to each server. Returns the number of removed
    /// items.
    fn delete_many(ruby: &Ruby, this: &Self, keys: RArray) -> Result<usize, Error> {
        let keys = strings(keys)?;
        let removed = this.call(ruby, |client| client.delete_many(&keys))?;
        Ok(removed.iter().filter(|is_removed| **is_removed).count())
    }

    fn delete(ruby: &Ruby, this: &Self, key: RString) -> Result<bool, Error> {
        let key = key.to_bytes();
        this.call(ruby, |client| client.delete(&key))
    }

    fn delete_if(ruby: &Ruby, this: &Self, key: RString, cas: u64) -> Result<bool, Error> {
        let key = key.to_bytes();
        this.call(ruby, |client| client.delete_if(&key, cas))
    }

    fn touch(ruby: &Ruby, this: &Self, key: RString, ttl: u32) -> Result<bool, Error> {
        let key = key.to_bytes();
        this.call(ruby, |client| client.touch(&key, ttl))
    }

    fn incr(ruby: &Ruby, this: &Self, key: RString, delta: u64) -> Result<Option<u64>, Error> {
        let key = key.to_bytes();
        number(ruby, this.call(ruby, |client| client.incr(&key, delta))?)
    }

    fn decr(ruby: &Ruby, this: &Self, key: RString, delta: u64) -> Result<Option<u64>, Error> {
        let key = key.to_bytes();
        number(ruby, this.call(ruby, |client| client.decr(&key, delta))?)
    }

    fn flush(ruby: &Ruby, this: &Self) -> Result<bool, Error> {
        this.call(ruby, |client| client.flush()).map(|()| true)
    }

    /// Returns a hash that maps server addresses to versions.
    fn versions(ruby: &Ruby, this: &Self) -> Result<RHash, Error> {
        let versions = ruby.hash_new();
        for (server, version) in this.call(ruby, |client| client.versions())? {
            versions.aset(&*server, version)?;
        }
        Ok(versions)
    }

    /// Returns a hash that maps server addresses to pages of statistics.
    fn stats(ruby: &Ruby, this: &Self, topic: String) -> Result<RHash, Error> {
        let pages = ruby.hash_new();
        for (server, statistics) in this.call(ruby, |client| client.stats(&topic))? {
            let page = ruby.hash_new();
            for (name, value) in statistics {
                page.aset(name, value)?;
            }
            pages.aset(&*server, page)?;
        }
        Ok(pages)
    }

    /// Closes idle connections at once, and each busy connection when its calls have ended.
    fn close(&self) {
        for client in [&self.shared, &self.pooled] {
            client.take().inspect(Client::close);
        }
    }

    /// Drops the connections in a forked child without sending anything on them, because the parent
    /// still uses them. Sockets that other threads of the parent were using at the fork stay open
    /// and unreachable in the child. Does not wait for locks, because other threads of the parent
    /// may have held the locks at the fork.
    fn forget(&self) {
        drop((self.shared.take(), self.pooled.take()));
    }
}

/// Copies the strings of an array. Fails if an element is not a string.
fn strings(array: RArray) -> Result<Vec<impl AsRef<[u8]>>, Error> {
    array.into_iter().map(|text| RString::try_convert(text).map(|text| text.to_bytes())).collect()
}

/// Returns an item as a Ruby array of value, flags and CAS.
fn parts(ruby: &Ruby, item: &Item) -> Result<RArray, Error> {
    let parts = ruby.ary_new_capa(3);
    parts.push(ruby.str_from_slice(&item.value))?;
    parts.push(item.flags)?;
    parts.push(item.cas)?;
    Ok(parts)
}

/// Returns whether an item was stored, or `None` if a store by CAS found no item.
fn outcome(stored: StoreOutcome) -> Option<bool> {
    match stored {
        StoreOutcome::Stored => Some(true),
        StoreOutcome::NotStored | StoreOutcome::Exists => Some(false),
        StoreOutcome::NotFound => None,
    }
}

fn number(ruby: &Ruby, counted: CountOutcome) -> Result<Option<u64>, Error> {
    match counted {
        CountOutcome::Number(number) => Ok(Some(number)),
        CountOutcome::NotFound => Ok(None),
        CountOutcome::NotANumber => {
            let larder: RModule = ruby.class_object().const_get("Larder")?;
            let class: ExceptionClass = larder.const_get("Error")?;
            Err(Error::new(class, "the value is not a number"))
        }
    }
}
