//! `Larder::Connections`: the calls of a client, whose keys and values are strings of bytes.

use crate::failure::exception;
use crate::gvl;
use crate::waiter::RubyWaiter;
use larder_client::blocking::Client;
use larder_client::ring::Hashing;
use larder_client::{Builder, CountOutcome, Failover, Item, StoreMode, StoreRequest, StoreOutcome, Ttl};
use magnus::{
    Error, ExceptionClass, Module as _, Object as _, RArray, RHash, RModule, RString, Ruby,
    TryConvert as _, function, method,
};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, TryFromFloatSecsError};

/// The connections to servers. They are opened when they are needed, also after they were closed.
#[derive(Debug)]
#[magnus::wrap(class = "Larder::Connections", free_immediately)]
struct Connections {
    builder: Builder<Client>,
    /// How many connections a pool has. `None`: threads share one.
    max: Option<usize>,
    /// With a connection that is shared. Guarded by the GVL, which is not released while it is borrowed.
    shared: RefCell<Option<Client>>,
    /// With a pool: fibers that share a connection could not be woken by the one that reads.
    pooled: RefCell<Option<Client>>,
}

/// How many connections fibers have, unless they are told.
const FIBERS_MAX: usize = 64;

pub(crate) fn define(ruby: &Ruby) -> Result<(), Error> {
    let larder: RModule = ruby.class_object().const_get("Larder")?;
    let class = larder.define_class("Connections", ruby.class_object())?;
    class.define_singleton_method("new", function!(Connections::new, 5))?;
    class.define_method("get", method!(Connections::get, 1))?;
    class.define_method("gat", method!(Connections::gat, 2))?;
    class.define_method("get_many", method!(Connections::get_many, 1))?;
    class.define_method("store", method!(Connections::store, 6))?;
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
    /// For servers, which are pairs of an address and a weight, with a time in seconds for each call, and pools of at most
    /// so many connections to each of them, or one that threads share. Whether keys of a server that is down go to another; the user and the password that each
    /// connection logs in with.
    fn new(
        ruby: &Ruby,
        servers: Vec<(String, u32)>,
        timeout: f64,
        max: Option<usize>,
        failover: bool,
        login: Option<(String, String)>,
    ) -> Result<Self, Error> {
        let invalid = |error: TryFromFloatSecsError| {
            Error::new(ruby.exception_arg_error(), format!("socket_timeout: {error}"))
        };
        let timeout = Duration::try_from_secs_f64(timeout).map_err(invalid)?;
        let builder = Client::builder(servers)
            .hashing(Hashing::Dalli)
            .failover(if failover { Failover::Next } else { Failover::Fail })
            .timeout(timeout)
            .waiter(Arc::new(RubyWaiter::default()));
        let builder = match login {
            Some((user, password)) => builder.login(user, password),
            None => builder,
        };
        Ok(Self { builder, max, shared: RefCell::default(), pooled: RefCell::default() })
    }

    /// The client. Names of hosts are looked up with the first call, which may take long, so others run meanwhile.
    fn client(&self, ruby: &Ruby) -> Result<Client, Error> {
        let is_shared = self.max.is_none() && !gvl::has_fibers();
        let place = if is_shared { &self.shared } else { &self.pooled };
        if let Some(client) = &*place.borrow() {
            return Ok(client.clone());
        }
        let mut built = None;
        let builder = self.builder.clone();
        let builder = if is_shared {
            // One thread at a time runs, so more connections would make nothing faster.
            builder.shared(1)
        } else {
            builder.connections(self.max.unwrap_or(FIBERS_MAX))
        };
        if gvl::without(|| built = Some(builder.clone().build())).is_err() {
            let interrupted = || Error::new(ruby.exception_interrupt(), "");
            return Err(gvl::take_pending().unwrap_or_else(interrupted));
        }
        let built = built.expect("the work was done").map_err(|error| exception(ruby, &error))?;
        Ok(place.borrow_mut().get_or_insert(built).clone())
    }

    fn call<T>(
        &self,
        ruby: &Ruby,
        call: impl FnOnce(&Client) -> Result<T, larder_client::Error>,
    ) -> Result<T, Error> {
        let called = call(&self.client(ruby)?);
        // Whatever became of the call: what has interrupted the thread comes first. No Ruby code may run before.
        match gvl::take_pending() {
            Some(pending) => Err(pending),
            None => called.map_err(|error| exception(ruby, &error)),
        }
    }

    /// A value with its flags and CAS.
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

    /// Keys of a server that is down are as if they were not there.
    fn get_many(ruby: &Ruby, this: &Self, keys: RArray) -> Result<RArray, Error> {
        let keys: Result<Vec<_>, Error> = keys
            .into_iter()
            .map(|key| RString::try_convert(key).map(|key| key.to_bytes()))
            .collect();
        let keys = keys?;
        let items = this.call(ruby, |client| client.gets_available(&keys))?;
        let found = ruby.ary_new_capa(items.len());
        for item in items {
            found.push(item.map(|item| parts(ruby, &item)).transpose()?)?;
        }
        Ok(found)
    }

    /// Stores an item, as `mode` says: "set", "add", "replace", "append" or "prepend". With a CAS, only if the item that
    /// is there has it.
    #[expect(clippy::too_many_arguments, reason = "they are what the method of Ruby takes")]
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
            _ => return Err(Error::new(ruby.exception_arg_error(), "no such mode")),
        };
        let (key, value) = (key.to_bytes(), value.to_bytes());
        let request =
            StoreRequest { mode, key: &key, value: &value, ttl: Ttl::secs(ttl), flags, cas };
        this.call(ruby, |client| client.store_one(request)).map(outcome)
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

    /// The version of each server, by its address.
    fn versions(ruby: &Ruby, this: &Self) -> Result<RHash, Error> {
        let versions = ruby.hash_new();
        for (server, version) in this.call(ruby, |client| client.versions())? {
            versions.aset(&*server, version)?;
        }
        Ok(versions)
    }

    /// A page of statistics of each server, by its address.
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

    /// Closes all connections, those in use after their call.
    fn close(&self) {
        for client in [&self.shared, &self.pooled] {
            client.take().inspect(Client::close);
        }
    }

    /// After a fork, in the child: closes its copies of the sockets, which are the parent's. Those that other threads of
    /// the parent were using stay open, as nobody can reach them; nothing of these threads, as a lock, is waited for.
    fn forget(&self) {
        drop((self.shared.take(), self.pooled.take()));
    }
}

/// An item's value, flags and CAS.
fn parts(ruby: &Ruby, item: &Item) -> Result<RArray, Error> {
    let parts = ruby.ary_new_capa(3);
    parts.push(ruby.str_from_slice(&item.value))?;
    parts.push(item.flags)?;
    parts.push(item.cas)?;
    Ok(parts)
}

/// Whether an item was stored; `nil` if there is no such item.
fn outcome(stored: Stored) -> Option<bool> {
    match stored {
        StoreOutcome::Stored => Some(true),
        StoreOutcome::NotStored | StoreOutcome::Exists => Some(false),
        StoreOutcome::NotFound => None,
    }
}

fn number(ruby: &Ruby, counted: Counted) -> Result<Option<u64>, Error> {
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
