//! The calls of a client for threads, with pymemcache's arguments and results.
//!
//! A call reads its arguments while it holds the interpreter's lock. The call borrows keys and
//! values from `str` and `bytes` objects, which are immutable, and its caller keeps these objects
//! alive. The call copies everything else.

use crate::arguments::{
    cas_number, collect, defaults, duration, integer, none, outcome, refused, seconds, serialized,
    sets, ttl,
};
use crate::errors::exception;
use crate::gil::Gil;
use crate::key::KeyRules;
use crate::tls::BaseTls;
use crate::value::Values;
use larder_client::{CountOutcome, Error, ErrorKind, Item, StoreMode, StoreRequest, blocking};
use pyo3::exceptions::{PyException, PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The base class of `Client` and `PooledClient`: a client of one server for any number of threads.
///
/// The Python classes derive from it. Their `__init__` calls `_configure`, so derived classes can
/// override `__init__`.
#[pyclass(subclass, frozen, module = "larder_client._native")]
#[derive(Debug)]
pub(crate) struct BaseClient {
    settings: OnceLock<Settings>,
    /// The client. `None` before the first call, after `close`, and in a forked child process.
    connected: Mutex<Option<blocking::Client>>,
}

#[derive(Debug)]
struct Settings {
    /// The server as a Python object: a pair of host and port, or a path.
    server: Py<PyAny>,
    address: String,
    timeout: Duration,
    connect_timeout: Duration,
    /// The maximum number of pooled connections. `None` if all calls share one connection.
    connections_max: Option<usize>,
    idle_time_max: Duration,
    tls: Option<Py<BaseTls>>,
    keys: KeyRules,
    values: Values,
    /// The serde of the client, even if the serde changes no values.
    serde: Py<PyAny>,
    default_noreply: bool,
    ignore_exc: bool,
    /// Whether `ignore_exc` also applies to invalid keys.
    ignore_keys: bool,
}

type Object<'py> = Bound<'py, PyAny>;

#[pymethods]
impl BaseClient {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self { settings: OnceLock::new(), connected: Mutex::new(None) }
    }

    #[expect(clippy::too_many_arguments, reason = "the arguments of Python's __init__")]
    #[pyo3(signature = (*, server, address, timeout, connect_timeout, max_pool_size, pool_idle_timeout, tls,
        key_prefix, allow_unicode_keys, serde, is_plain, encoding, default_noreply, ignore_exc, ignore_keys))]
    fn _configure(
        &self,
        py: Python<'_>,
        server: Py<PyAny>,
        address: String,
        timeout: Option<f64>,
        connect_timeout: Option<f64>,
        max_pool_size: Option<usize>,
        pool_idle_timeout: f64,
        tls: Option<Py<BaseTls>>,
        key_prefix: Vec<u8>,
        allow_unicode_keys: bool,
        serde: Py<PyAny>,
        is_plain: bool,
        encoding: String,
        default_noreply: bool,
        ignore_exc: bool,
        ignore_keys: bool,
    ) -> PyResult<()> {
        let converts = (!is_plain).then(|| serde.clone_ref(py));
        let settings = Settings {
            server,
            address,
            timeout: duration(timeout)?,
            connect_timeout: duration(connect_timeout)?,
            connections_max: max_pool_size,
            // In pymemcache, 0 means no limit.
            idle_time_max: duration((pool_idle_timeout != 0.0).then_some(pool_idle_timeout))?,
            tls,
            keys: KeyRules { allow_unicode: allow_unicode_keys, prefix: key_prefix },
            values: Values { serde: converts, encoding },
            serde,
            default_noreply,
            ignore_exc,
            ignore_keys,
        };
        let set_twice = |_| PyRuntimeError::new_err("the client is already configured");
        self.settings.set(settings).map_err(set_twice)
    }

    #[getter]
    fn server(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.settings()?.server.clone_ref(py))
    }

    #[getter]
    fn serde(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.settings()?.serde.clone_ref(py))
    }

    #[getter]
    fn timeout(&self) -> PyResult<Option<f64>> {
        Ok(seconds(self.settings()?.timeout))
    }

    #[getter]
    fn connect_timeout(&self) -> PyResult<Option<f64>> {
        Ok(seconds(self.settings()?.connect_timeout))
    }

    #[getter]
    fn key_prefix<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.settings()?.keys.prefix))
    }

    #[getter]
    fn allow_unicode_keys(&self) -> PyResult<bool> {
        Ok(self.settings()?.keys.allow_unicode)
    }

    #[getter]
    fn encoding(&self) -> PyResult<&str> {
        Ok(&self.settings()?.values.encoding)
    }

    #[getter]
    fn default_noreply(&self) -> PyResult<bool> {
        Ok(self.settings()?.default_noreply)
    }

    #[getter]
    fn tls(&self, py: Python<'_>) -> PyResult<Option<Py<BaseTls>>> {
        Ok(self.settings()?.tls.as_ref().map(|tls| tls.clone_ref(py)))
    }

    #[getter]
    fn ignore_exc(&self) -> PyResult<bool> {
        Ok(self.settings()?.ignore_exc)
    }

    /// Drops the connections of a forked child process without sending anything on them, because
    /// the parent still uses them.
    fn _drop_connections(&self) {
        *self.connected() = None;
    }

    /// Returns the numbers of open connections, idle connections, and threads that wait for a
    /// connection.
    fn connections(&self) -> (usize, usize, usize) {
        self.connected().as_ref().map_or((0, 0, 0), blocking::Client::connections)
    }

    /// Closes idle connections at once, and each busy connection when its calls have ended. The
    /// next call opens a new connection.
    fn close(&self) {
        let connected = self.connected().take();
        if let Some(client) = connected {
            client.close();
        }
    }

    /// Returns the value of an item, or `default` if the item does not exist.
    #[pyo3(signature = (key, default = None))]
    fn get<'py>(&self, key: &Object<'py>, default: Option<Object<'py>>) -> PyResult<Object<'py>> {
        let found = self.look_up(key, |client, key| client.get_with_flags(key), &Self::value)?;
        Ok(found.or(default).unwrap_or_else(|| none(key.py())))
    }

    /// Returns the value of an item and its CAS, or `(default, cas_default)` if the item does not
    /// exist.
    #[pyo3(signature = (key, default = None, cas_default = None))]
    fn gets<'py>(
        &self,
        key: &Object<'py>,
        default: Option<Object<'py>>,
        cas_default: Option<Object<'py>>,
    ) -> PyResult<Object<'py>> {
        let found = self.look_up(key, |client, key| client.gets(key), &Self::value_and_cas)?;
        found.map_or_else(|| defaults(key.py(), default, cas_default), Ok)
    }

    /// Sets the expiry of an item and returns its value, or `default` if the item does not exist.
    #[pyo3(signature = (key, expire = None, default = None), text_signature = "(self, key, expire=0, default=None)")]
    fn gat<'py>(
        &self,
        key: &Object<'py>,
        expire: Option<Object<'py>>,
        default: Option<Object<'py>>,
    ) -> PyResult<Object<'py>> {
        let ttl = ttl("expire", expire)?;
        let found = self.look_up(key, |client, key| client.gat(key, ttl), &Self::value)?;
        Ok(found.or(default).unwrap_or_else(|| none(key.py())))
    }

    /// Sets the expiry of an item and returns its value and CAS, or `(default, cas_default)` if the
    /// item does not exist.
    #[pyo3(signature = (key, expire = None, default = None, cas_default = None),
        text_signature = "(self, key, expire=0, default=None, cas_default=None)")]
    fn gats<'py>(
        &self,
        key: &Object<'py>,
        expire: Option<Object<'py>>,
        default: Option<Object<'py>>,
        cas_default: Option<Object<'py>>,
    ) -> PyResult<Object<'py>> {
        let ttl = ttl("expire", expire)?;
        let found = self.look_up(key, |client, key| client.gat(key, ttl), &Self::value_and_cas)?;
        found.map_or_else(|| defaults(key.py(), default, cas_default), Ok)
    }

    /// Returns a dictionary with the values of the keys that exist. Sends one batch of requests.
    fn get_many<'py>(&self, keys: &Object<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.look_up_many(keys, |client, keys| client.get_many(keys), &Self::value)
    }

    /// Returns a dictionary with pairs of value and CAS for the keys that exist. Sends one batch of
    /// requests.
    fn gets_many<'py>(&self, keys: &Object<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.look_up_many(keys, |client, keys| client.gets_many(keys), &Self::value_and_cas)
    }

    /// Stores an item, whether or not the key already has one. Returns True, even with `noreply`.
    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None),
        text_signature = "(self, key, value, expire=0, noreply=None, flags=None)")]
    fn set<'py>(
        &self,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        self.store(StoreMode::Set, key, value, expire, noreply, flags)
    }

    /// Stores an item if it does not exist. Returns whether the item was stored. With `noreply`,
    /// always returns True.
    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None),
        text_signature = "(self, key, value, expire=0, noreply=None, flags=None)")]
    fn add<'py>(
        &self,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        self.store(StoreMode::Add, key, value, expire, noreply, flags)
    }

    /// Stores an item if it exists. Returns whether the item was stored. With `noreply`, always
    /// returns True.
    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None),
        text_signature = "(self, key, value, expire=0, noreply=None, flags=None)")]
    fn replace<'py>(
        &self,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        self.store(StoreMode::Replace, key, value, expire, noreply, flags)
    }

    /// Appends to a value. Returns whether the item existed. With `noreply`, always returns True.
    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None),
        text_signature = "(self, key, value, expire=0, noreply=None, flags=None)")]
    fn append<'py>(
        &self,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        self.store(StoreMode::Append, key, value, expire, noreply, flags)
    }

    /// Prepends to a value. Returns whether the item existed. With `noreply`, always returns True.
    #[pyo3(signature = (key, value, expire = None, noreply = None, flags = None),
        text_signature = "(self, key, value, expire=0, noreply=None, flags=None)")]
    fn prepend<'py>(
        &self,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        self.store(StoreMode::Prepend, key, value, expire, noreply, flags)
    }

    /// Stores an item if the current item has this CAS. Returns True if the item was stored, False
    /// if the current item has another CAS, and None if there is no current item. With `noreply`,
    /// always returns True.
    #[pyo3(signature = (key, value, cas, expire = None, noreply = false, flags = None),
        text_signature = "(self, key, value, cas, expire=0, noreply=False, flags=None)")]
    fn cas<'py>(
        &self,
        key: &Object<'py>,
        value: &Object<'py>,
        cas: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: bool,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let cas = Some(cas_number(cas)?);
        let ttl = ttl("expire", expire)?;
        let settings = self.settings()?;
        let name = settings.keys.check(key)?;
        let (value, flags) = settings.values.serialize(key, value, flags)?;
        let value = value.as_bytes();
        let request = StoreRequest { mode: StoreMode::Set, key: &name, value, ttl, flags, cas };
        let stored = self.call(key.py(), |client| client.store_one(request))?;
        Ok(if noreply { Some(true) } else { outcome(stored) })
    }

    /// Stores the items of a dictionary. Sends one batch of requests. Returns the keys that were
    /// not stored. With `noreply`, always returns an empty list.
    #[pyo3(signature = (values, expire = None, noreply = None, flags = None),
        text_signature = "(self, values, expire=0, noreply=None, flags=None)")]
    fn set_many<'py>(
        &self,
        values: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, settings, ttl) = (values.py(), self.settings()?, ttl("expire", expire)?);
        let mut pairs: Vec<(Object<'py>, Object<'py>)> = Vec::new();
        for pair in values.call_method0("items")?.try_iter()? {
            pairs.push(pair?.extract()?);
        }
        let items = serialized(&settings.keys, &settings.values, &pairs, flags)?;
        let requests = sets(&items, ttl);
        let stored = self.call(py, |client| client.store_many(&requests))?;
        let failed = PyList::empty(py);
        if !noreply.unwrap_or(settings.default_noreply) {
            for ((key, _), _) in pairs.iter().zip(stored).filter(|(_, stored)| !stored.is_stored())
            {
                failed.append(key)?;
            }
        }
        Ok(failed)
    }

    /// Removes an item. Returns whether the item existed. With `noreply`, always returns True.
    #[pyo3(signature = (key, noreply = None))]
    fn delete(&self, key: &Object<'_>, noreply: Option<bool>) -> PyResult<bool> {
        let settings = self.settings()?;
        let name = settings.keys.check(key)?;
        let was_there = self.call(key.py(), |client| client.delete(&name))?;
        Ok(noreply.unwrap_or(settings.default_noreply) || was_there)
    }

    /// Removes items. Sends one batch of requests. Returns True.
    #[pyo3(signature = (keys, noreply = None))]
    fn delete_many(&self, keys: &Object<'_>, noreply: Option<bool>) -> PyResult<bool> {
        // The call ignores `noreply`, because its result is always True.
        let _ = noreply;
        let keys = collect(keys)?;
        let names = self.settings()?.keys.check_all(&keys)?;
        if let Some(key) = keys.first() {
            self.call(key.py(), |client| client.delete_many(&names))?;
        }
        Ok(true)
    }

    /// Adds `value` to a number, modulo 2^64. Returns the new number, or None if the item does not
    /// exist. With `noreply`, always returns None.
    #[pyo3(signature = (key, value, noreply = false))]
    fn incr(&self, key: &Object<'_>, value: &Object<'_>, noreply: bool) -> PyResult<Option<u64>> {
        self.count(key, value, noreply, |client, key, delta| client.incr(key, delta))
    }

    /// Subtracts `value` from a number, but not below 0. Returns the new number, or None if the
    /// item does not exist. With `noreply`, always returns None.
    #[pyo3(signature = (key, value, noreply = false))]
    fn decr(&self, key: &Object<'_>, value: &Object<'_>, noreply: bool) -> PyResult<Option<u64>> {
        self.count(key, value, noreply, |client, key, delta| client.decr(key, delta))
    }

    /// Sets the expiry of an item. Returns whether the item exists. With `noreply`, always returns
    /// True.
    #[pyo3(signature = (key, expire = None, noreply = None),
        text_signature = "(self, key, expire=0, noreply=None)")]
    fn touch<'py>(
        &self,
        key: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
    ) -> PyResult<bool> {
        let settings = self.settings()?;
        let name = settings.keys.check(key)?;
        let ttl = ttl("expire", expire)?;
        let is_there = self.call(key.py(), |client| client.touch(&name, ttl))?;
        Ok(noreply.unwrap_or(settings.default_noreply) || is_there)
    }

    /// Removes all items, now or after `delay` seconds. Returns True.
    #[pyo3(signature = (delay = None, noreply = None), text_signature = "(self, delay=0, noreply=None)")]
    fn flush_all<'py>(
        &self,
        py: Python<'py>,
        delay: Option<Object<'py>>,
        noreply: Option<bool>,
    ) -> PyResult<bool> {
        // The call ignores `noreply`, because its result is True with and without `noreply`.
        let _ = noreply;
        let delay = ttl("delay", delay)?;
        self.call(py, |client| client.flush_after(delay))?;
        Ok(true)
    }

    /// Returns the server's version.
    fn version<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let versions = self.call(py, blocking::Client::versions)?;
        let version = versions.first().map_or("", |(_, version)| version);
        Ok(PyBytes::new(py, version.as_bytes()))
    }

    fn __getitem__<'py>(&self, key: &Object<'py>) -> PyResult<Object<'py>> {
        let value = self.get(key, None)?;
        if value.is_none() { Err(PyKeyError::new_err(key.clone().unbind())) } else { Ok(value) }
    }

    fn __setitem__<'py>(&self, key: &Object<'py>, value: &Object<'py>) -> PyResult<()> {
        self.set(key, value, None, Some(true), None).map(drop)
    }

    fn __delitem__(&self, key: &Object<'_>) -> PyResult<()> {
        self.delete(key, Some(true)).map(drop)
    }
}

impl BaseClient {
    fn settings(&self) -> PyResult<&Settings> {
        let unset = || PyRuntimeError::new_err("__init__ of the client was not called");
        self.settings.get().ok_or_else(unset)
    }

    fn connected(&self) -> MutexGuard<'_, Option<blocking::Client>> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use. Threads lock
        // it only while they hold the interpreter's lock, so no other thread holds it during a
        // fork.
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client, and builds it if necessary. Building releases the interpreter's lock.
    fn client(&self, py: Python<'_>) -> PyResult<blocking::Client> {
        if let Some(client) = &*self.connected() {
            return Ok(client.clone());
        }
        let settings = self.settings()?;
        let builder = blocking::Client::builder(settings.address.clone())
            .timeout(settings.timeout)
            .connect_timeout(settings.connect_timeout)
            .idle_time(settings.idle_time_max)
            .waiter(Arc::new(Gil::default()));
        let builder = match settings.connections_max {
            Some(max) => builder.connections(max),
            // The interpreter runs one thread at a time, so more connections would not be faster.
            None => builder.shared(1),
        };
        let builder = match &settings.tls {
            Some(tls) => builder.tls(tls.get().settings.clone()),
            None => builder,
        };
        // Release the interpreter lock, because building resolves the server's name, which may take
        // a long time.
        let built = py.detach(|| builder.build()).map_err(|error| exception(py, &error))?;
        // If another thread has built a client concurrently, this call uses the other thread's
        // client.
        Ok(self.connected().get_or_insert(built).clone())
    }

    fn call<T>(
        &self,
        py: Python<'_>,
        call: impl Fn(&blocking::Client) -> Result<T, Error>,
    ) -> PyResult<T> {
        loop {
            match call(&self.client(py)?) {
                Ok(output) => return Ok(output),
                // Another thread has closed the client, so this call builds a new client.
                Err(error) if matches!(error.kind(), ErrorKind::ClientClosed) => (),
                Err(error) => return Err(exception(py, &error)),
            }
        }
    }

    fn value<'py>(&self, key: &Object<'py>, item: &Item) -> PyResult<Object<'py>> {
        self.settings()?.values.deserialize(key, item)
    }

    /// Returns a value and its CAS. The CAS is a `bytes` object with digits, as in pymemcache.
    fn value_and_cas<'py>(&self, key: &Object<'py>, item: &Item) -> PyResult<Object<'py>> {
        let py = key.py();
        let cas = item.cas.map(|cas| PyBytes::new(py, cas.to_string().as_bytes()));
        Ok((self.value(key, item)?, cas).into_pyobject(py)?.into_any())
    }

    fn look_up<'py>(
        &self,
        key: &Object<'py>,
        call: impl Fn(&blocking::Client, &[u8]) -> Result<Option<Item>, Error>,
        convert: &dyn Fn(&Self, &Object<'py>, &Item) -> PyResult<Object<'py>>,
    ) -> PyResult<Option<Object<'py>>> {
        let (py, settings) = (key.py(), self.settings()?);
        let name = match settings.keys.check(key) {
            Ok(name) => name,
            Err(_) if settings.ignore_exc && settings.ignore_keys => return Ok(None),
            Err(error) => return Err(error),
        };
        let found = || {
            let item = self.call(py, |client| call(client, &name))?;
            item.map(|item| convert(self, key, &item)).transpose()
        };
        self.forgive(py, found())
    }

    fn look_up_many<'py>(
        &self,
        keys: &Object<'py>,
        call: impl Fn(&blocking::Client, &[Cow<'_, [u8]>]) -> Result<Vec<Option<Item>>, Error>,
        convert: &dyn Fn(&Self, &Object<'py>, &Item) -> PyResult<Object<'py>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (py, settings) = (keys.py(), self.settings()?);
        let keys = collect(keys)?;
        let names = match settings.keys.check_all(&keys) {
            Ok(names) => names,
            Err(_) if settings.ignore_exc && settings.ignore_keys => return Ok(PyDict::new(py)),
            Err(error) => return Err(error),
        };
        let found = || {
            let dict = PyDict::new(py);
            let items = self.call(py, |client| call(client, &names))?;
            for (key, item) in keys.iter().zip(items) {
                if let Some(item) = item {
                    dict.set_item(key, convert(self, key, &item)?)?;
                }
            }
            Ok(Some(dict))
        };
        Ok(self.forgive(py, found())?.unwrap_or_else(|| PyDict::new(py)))
    }

    /// If `ignore_exc` is set, converts exceptions to misses.
    fn forgive<T>(&self, py: Python<'_>, found: PyResult<Option<T>>) -> PyResult<Option<T>> {
        match found {
            // Exceptions that end the program, such as `KeyboardInterrupt`, pass through.
            Err(error)
                if self.settings()?.ignore_exc && error.is_instance_of::<PyException>(py) =>
            {
                Ok(None)
            }
            found => found,
        }
    }

    fn store<'py>(
        &self,
        mode: StoreMode,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Option<Object<'py>>,
        noreply: Option<bool>,
        flags: Option<u32>,
    ) -> PyResult<Option<bool>> {
        let (settings, ttl) = (self.settings()?, ttl("expire", expire)?);
        let name = settings.keys.check(key)?;
        let (value, flags) = settings.values.serialize(key, value, flags)?;
        let value = value.as_bytes();
        let request = StoreRequest { mode, key: &name, value, ttl, flags, cas: None };
        let stored = self.call(key.py(), |client| client.store_one(request))?;
        let noreply = noreply.unwrap_or(settings.default_noreply);
        Ok(if noreply { Some(true) } else { outcome(stored) })
    }

    fn count(
        &self,
        key: &Object<'_>,
        value: &Object<'_>,
        noreply: bool,
        call: impl Fn(&blocking::Client, &[u8], u64) -> Result<CountOutcome, Error>,
    ) -> PyResult<Option<u64>> {
        let py = key.py();
        let name = self.settings()?.keys.check(key)?;
        let delta = integer("value", value)?.extract();
        let delta = delta.map_err(|_| refused(py, "invalid numeric delta argument"))?;
        match self.call(py, |client| call(client, &name, delta))? {
            CountOutcome::NotANumber => {
                Err(refused(py, "cannot increment or decrement non-numeric value"))
            }
            CountOutcome::Number(number) if !noreply => Ok(Some(number)),
            CountOutcome::Number(_) | CountOutcome::NotFound => Ok(None),
        }
    }
}
