//! The calls of an asyncio client to one server. All calls share a connection.
//!
//! Python's event loop does the I/O, and no function here blocks. A call returns a future of the
//! loop. The future gets its result when the reply arrives:
//!
//! ```text
//!   get() … ─▶ pipeline ── _flush(), in the next event-loop iteration or at once ─▶ transport.write()
//!     │
//!     ▼
//!   future ◀── pipeline ◀── _receive() ◀─ the protocol's data_received()
//! ```
//!
//! No Python code may run while the state is locked, because Python code may call the channel.
//! Such code includes the destructors of Python objects.
//!
//! | file | contains |
//! |---|---|
//! | `mod.rs` | calls, and events of the connection and the loop |
//! | `state.rs` | the state of an event loop, and the decision to send |
//! | `result.rs` | results as Python objects |

mod result;
mod state;

use crate::arguments::{
    cas_number, collect, duration, integer, refused, serialized, sets, ttl as read_ttl,
};
use crate::errors::exception;
use crate::key::KeyRules;
use crate::value::Values;
use larder_client::pipeline::{CallId, Pipeline, Request};
use larder_client::{StoreMode, StoreRequest, Ttl};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use result::{Reading, Ticket};
use state::{State, Step};
use std::io;
use std::mem;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

type Object<'py> = Bound<'py, PyAny>;

/// The minimum of [`State::queue_len_max`].
const QUEUE_LEN_MIN: usize = 256;
/// The delay that is added to each timer. Some event loops fire timers early by up to this time.
const TIMER_SLACK: Duration = Duration::from_millis(1);

/// The calls to one server. The derived Python class `_Channel` opens the connections.
#[pyclass(subclass, frozen, module = "larder_client._native")]
#[derive(Debug)]
pub(crate) struct Channel {
    settings: OnceLock<Settings>,
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct Settings {
    name: String,
    timeout: Duration,
    keys: KeyRules,
    values: Values,
}

#[pymethods]
impl Channel {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self { settings: OnceLock::new(), state: Mutex::new(None) }
    }

    /// Configures the channel. Without a serde, values are bytes. With a serde, results contain the
    /// stored bytes and flags.
    #[pyo3(signature = (*, name, timeout, key_prefix, allow_unicode_keys, serde, encoding))]
    fn _configure(
        &self,
        name: String,
        timeout: Option<f64>,
        key_prefix: Vec<u8>,
        allow_unicode_keys: bool,
        serde: Option<Py<PyAny>>,
        encoding: String,
    ) -> PyResult<()> {
        let settings = Settings {
            name,
            timeout: duration(timeout)?,
            keys: KeyRules { allow_unicode: allow_unicode_keys, prefix: key_prefix },
            values: Values { serde, encoding },
        };
        let set_twice = |_| PyRuntimeError::new_err("the channel is already configured");
        self.settings.set(settings).map_err(set_twice)
    }

    /// Looks up an item. The result is the value, or with a serde, a pair of stored bytes and
    /// flags. The result is None if the item does not exist.
    fn get<'py>(slf: &Bound<'py, Self>, key: &Object<'py>) -> PyResult<Object<'py>> {
        let settings = slf.get().settings()?;
        let name = settings.keys.check(key)?;
        let reading = Reading::Value { with_flags: settings.with_flags() };
        Self::begin(slf, reading, &Request::Get { key: &name, cas: false, touch: None })
    }

    /// Looks up an item. The result is the value, its flags and its CAS, or None if the item does
    /// not exist.
    fn gets<'py>(slf: &Bound<'py, Self>, key: &Object<'py>) -> PyResult<Object<'py>> {
        let name = slf.get().settings()?.keys.check(key)?;
        let request = Request::Get { key: &name, cas: true, touch: None };
        Self::begin(slf, Reading::ValueAndCas, &request)
    }

    /// Sets the expiry of an item and looks up the item. The result is the same as that of `gets`.
    fn gats<'py>(
        slf: &Bound<'py, Self>,
        key: &Object<'py>,
        expire: Object<'py>,
    ) -> PyResult<Object<'py>> {
        let touch = Some(read_ttl("expire", Some(expire))?);
        let name = slf.get().settings()?.keys.check(key)?;
        let request = Request::Get { key: &name, cas: true, touch };
        Self::begin(slf, Reading::ValueAndCas, &request)
    }

    /// Looks up items. The result is a dictionary that maps each existing key to the result of
    /// `get`, or to the result of `gets` if `cas` is set.
    fn get_many<'py>(
        slf: &Bound<'py, Self>,
        keys: &Object<'py>,
        cas: bool,
    ) -> PyResult<Object<'py>> {
        let settings = slf.get().settings()?;
        let keys = collect(keys)?;
        let names = settings.keys.check_all(&keys)?;
        let names: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
        let reading =
            Reading::Values { keys: unbound(&keys), cas, with_flags: settings.with_flags() };
        Self::begin(slf, reading, &Request::GetMany { keys: &names, cas })
    }

    /// Stores an item. The result is True if the item was stored. `mode` is `set`, `add`,
    /// `replace`, `append` or `prepend`.
    fn store<'py>(
        slf: &Bound<'py, Self>,
        mode: &str,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Object<'py>,
        flags: Option<u32>,
    ) -> PyResult<Object<'py>> {
        Self::store_if(slf, store_mode(mode)?, None, key, value, expire, flags)
    }

    /// Stores an item if the current item has this CAS. The result is True if the item was stored,
    /// False if the current item has another CAS, and None if there is no current item.
    fn cas<'py>(
        slf: &Bound<'py, Self>,
        key: &Object<'py>,
        value: &Object<'py>,
        cas: &Object<'py>,
        expire: Object<'py>,
        flags: Option<u32>,
    ) -> PyResult<Object<'py>> {
        let cas = Some(cas_number(cas)?);
        Self::store_if(slf, StoreMode::Set, cas, key, value, expire, flags)
    }

    /// Stores pairs of keys and values. The result is the list of keys that were not stored.
    fn set_many<'py>(
        slf: &Bound<'py, Self>,
        pairs: Vec<(Object<'py>, Object<'py>)>,
        expire: Object<'py>,
        flags: Option<u32>,
    ) -> PyResult<Object<'py>> {
        let ttl = read_ttl("expire", Some(expire))?;
        let settings = slf.get().settings()?;
        let items = serialized(&settings.keys, &settings.values, &pairs, flags)?;
        let requests = sets(&items, ttl);
        let keys = pairs.iter().map(|(key, _)| key.clone().unbind()).collect();
        Self::begin(slf, Reading::NotStored(keys), &Request::Store(&requests))
    }

    /// Removes an item. The result is True if the item existed.
    fn delete<'py>(slf: &Bound<'py, Self>, key: &Object<'py>) -> PyResult<Object<'py>> {
        let name = slf.get().settings()?.keys.check(key)?;
        Self::begin(slf, Reading::Found, &Request::Delete(&[&name]))
    }

    /// Removes items. The result is True.
    fn delete_many<'py>(slf: &Bound<'py, Self>, keys: &Object<'py>) -> PyResult<Object<'py>> {
        let keys = collect(keys)?;
        let names = slf.get().settings()?.keys.check_all(&keys)?;
        let names: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
        Self::begin(slf, Reading::Done, &Request::Delete(&names))
    }

    /// Sets the expiry of an item. The result is True if the item exists.
    fn touch<'py>(
        slf: &Bound<'py, Self>,
        key: &Object<'py>,
        expire: Object<'py>,
    ) -> PyResult<Object<'py>> {
        let ttl = read_ttl("expire", Some(expire))?;
        let name = slf.get().settings()?.keys.check(key)?;
        Self::begin(slf, Reading::Found, &Request::Touch { key: &name, ttl })
    }

    /// Increments or decrements a number. The result is the new number, or None if the item does
    /// not exist.
    fn count<'py>(
        slf: &Bound<'py, Self>,
        key: &Object<'py>,
        value: &Object<'py>,
        down: bool,
    ) -> PyResult<Object<'py>> {
        let name = slf.get().settings()?.keys.check(key)?;
        let delta = integer("value", value)?.extract();
        let delta = delta.map_err(|_| refused(key.py(), "invalid numeric delta argument"))?;
        Self::begin(slf, Reading::Counted, &Request::Count { key: &name, down, delta })
    }

    /// Removes all items, now or after a delay. The result is True.
    fn flush_all<'py>(slf: &Bound<'py, Self>, delay: Object<'py>) -> PyResult<Object<'py>> {
        let delay: Ttl = read_ttl("delay", Some(delay))?;
        Self::begin(slf, Reading::Done, &Request::Flush(delay))
    }

    /// Requests the server's version. The result is a `bytes` object.
    fn version<'py>(slf: &Bound<'py, Self>) -> PyResult<Object<'py>> {
        Self::begin(slf, Reading::Version, &Request::Version)
    }

    /// Requests a page of statistics. The result is a list of pairs of name and value, both
    /// `bytes`.
    fn stats<'py>(slf: &Bound<'py, Self>, topic: &str) -> PyResult<Object<'py>> {
        Self::begin(slf, Reading::Stats, &Request::Stats(Some(topic)))
    }

    /// Handles an opened connection.
    fn _opened<'py>(slf: &Bound<'py, Self>, transport: &Object<'py>) -> PyResult<()> {
        let (now, write) = (Instant::now(), transport.getattr("write")?.unbind());
        slf.get().with(|state| {
            state.pipeline.handle_opened(now);
            (state.used, state.is_checked, state.is_paused) = (now, false, false);
            state.write.replace(write)
        });
        Self::_flush(slf)
    }

    /// Handles a failed attempt to open the connection. `number` is the system's error number, if
    /// there is one.
    #[pyo3(signature = (number, is_timeout, text))]
    fn _failed(
        slf: &Bound<'_, Self>,
        number: Option<i32>,
        is_timeout: bool,
        text: String,
    ) -> PyResult<()> {
        let kind = if is_timeout { io::ErrorKind::TimedOut } else { io::ErrorKind::Other };
        let error = number.map_or_else(|| io::Error::new(kind, text), io::Error::from_raw_os_error);
        slf.get().with(|state| state.pipeline.handle_failed(error, Instant::now()));
        Self::settle(slf)
    }

    /// Handles the loss of the connection. If `number` and `text` are `None`, the server has closed
    /// the connection.
    #[pyo3(signature = (number, text))]
    fn _lost(slf: &Bound<'_, Self>, number: Option<i32>, text: Option<String>) -> PyResult<()> {
        let error = match (number, text) {
            (Some(number), _) => Some(io::Error::from_raw_os_error(number)),
            (None, text) => text.map(io::Error::other),
        };
        slf.get().with(|state| state.pipeline.handle_lost(error, Instant::now()));
        Self::settle(slf)
    }

    /// Fails all calls and cancels the timer. The caller closes the connection.
    fn _end(slf: &Bound<'_, Self>) -> PyResult<()> {
        let timer = slf.get().with(|state| {
            state.pipeline.close(Instant::now());
            state.timer.take()
        });
        if let Some((_, timer)) = timer.flatten() {
            timer.call_method0(slf.py(), "cancel")?;
        }
        Self::settle(slf)
    }

    /// Drops the state of the loop, its calls and its connection. The calls get no results, and the
    /// connection stays open.
    fn _forget(&self) {
        let state = self.lock().take();
        drop(state);
    }

    /// Handles data from the server.
    fn _receive(slf: &Bound<'_, Self>, data: &[u8]) -> PyResult<()> {
        let now = Instant::now();
        slf.get().with(|state| {
            state.used = now;
            state.pipeline.handle_input(data, now);
        });
        Self::settle(slf)
    }

    /// Stops sending until `_resume`.
    fn _pause(&self) {
        self.with(|state| state.is_paused = true);
    }

    fn _resume(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().with(|state| state.is_paused = false);
        Self::_flush(slf)
    }

    /// Sends the queued calls, unless writing is paused. If there is no connection, starts to open
    /// one instead. If the connection was idle, sends in the next iteration, so that the loop first
    /// detects whether the server has closed the connection.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this, now) = (slf.py(), slf.get(), Instant::now());
        this.with(|state| state.is_scheduled = false);
        this.cancel_unwanted(py, |pipeline| waiting(py, pipeline.queued()))?;
        let step = this.with(|state| {
            state.queue_len_max = (2 * state.pipeline.queue_len()).max(QUEUE_LEN_MIN);
            state.step(py, now)
        });
        let done = match step.unwrap_or(Step::Nothing) {
            Step::Nothing => Ok(()),
            Step::Open => slf.call_method0(intern!(py, "_open")).map(drop),
            Step::Look(call_soon) => {
                call_soon.call1(py, (slf.getattr(intern!(py, "_flush"))?,)).map(drop)
            }
            Step::Write(write, output) => write.call1(py, (output,)).map(drop),
        };
        Self::settle(slf)?;
        Self::set_timer(slf, now)?;
        done
    }

    /// Fails calls whose deadline has passed, and cancels calls whose futures are done. Drops the
    /// connection if a caller has given up and no reply has arrived for a second.
    fn _tick(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let timer = this.with(|state| state.timer.take());
        drop(timer);
        this.cancel_unwanted(py, |pipeline| {
            waiting(py, pipeline.queued().chain(pipeline.under_way()))
        })?;
        let now = Instant::now();
        this.with(|state| state.pipeline.handle_time(now));
        Self::settle(slf)?;
        Self::set_timer(slf, now)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(Settings { values: Values { serde: Some(serde), .. }, .. }) =
            self.settings.get()
        {
            visit.call(serde)?;
        }
        // The lock is free here: garbage collection cannot start while the state is locked, because
        // the code that holds the lock neither frees Python objects nor creates objects that refer
        // to others.
        let Ok(state) = self.state.try_lock() else { return Ok(()) };
        let Some(state) = &*state else { return Ok(()) };
        visit.call(&state.event_loop)?;
        visit.call(&state.create_future)?;
        visit.call(&state.call_soon)?;
        visit.call(state.write.as_ref())?;
        visit.call(state.timer.as_ref().map(|(_, timer)| timer))?;
        for (_, ticket) in state.pipeline.queued().chain(state.pipeline.under_way()) {
            visit.call(&ticket.future)?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        self._forget();
    }
}

impl Settings {
    fn with_flags(&self) -> bool {
        self.values.serde.is_some()
    }
}

impl Channel {
    fn settings(&self) -> PyResult<&Settings> {
        let unset = || PyRuntimeError::new_err("the channel is not configured");
        self.settings.get().ok_or_else(unset)
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        // Each change leaves the state consistent, so a poisoned lock is safe to use. Threads lock
        // it only while they hold the interpreter's lock, so no other thread holds it during a
        // fork.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function on the state. Returns `None` if the channel has no event loop.
    fn with<T>(&self, run: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.lock().as_mut().map(run)
    }

    /// Creates a future of the running loop. If the channel has no loop, or its loop has stopped,
    /// attaches the channel to the running loop.
    fn future<'py>(slf: &Bound<'py, Self>) -> PyResult<Object<'py>> {
        let py = slf.py();
        let running = running_loop(py)?;
        let of_running = |state: &mut State| {
            let is_running = state.event_loop.is(&running);
            is_running.then(|| state.create_future.clone_ref(py))
        };
        let create_future = match slf.get().with(of_running).flatten() {
            Some(create_future) => create_future,
            None => Self::attach(slf, &running)?,
        };
        Ok(create_future.call0(py)?.into_bound(py))
    }

    /// Attaches the channel to the running loop. Returns the loop's method `create_future`.
    ///
    /// # Errors
    /// `RuntimeError` if the channel belongs to another loop that still runs.
    fn attach<'py>(slf: &Bound<'py, Self>, running: &Object<'py>) -> PyResult<Py<PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        if let Some(old) = this.with(|state| state.event_loop.clone_ref(py)) {
            let is_used = old.call_method0(py, "is_running")?.is_truthy(py)?;
            if is_used {
                let text = "the client belongs to another event loop that is still running";
                return Err(PyRuntimeError::new_err(text));
            }
            // A stopped loop may run again later, so the calls that wait in this loop fail now. A
            // closed loop never runs again, and accepts no results.
            if !old.call_method0(py, "is_closed")?.is_truthy(py)? {
                Self::_end(slf)?;
            }
            slf.call_method0("_drop")?;
        }
        let create_future = running.getattr("create_future")?.unbind();
        let (settings, now) = (this.settings()?, Instant::now());
        let state = State {
            event_loop: running.clone().unbind(),
            create_future: create_future.clone_ref(py),
            call_soon: running.getattr("call_soon")?.unbind(),
            pipeline: Pipeline::new(&settings.name, settings.timeout, now),
            write: None,
            is_paused: false,
            is_scheduled: false,
            is_checked: false,
            was_alone: false,
            used: now,
            timer: None,
            queue_len_max: QUEUE_LEN_MIN,
        };
        let old = this.lock().replace(state);
        drop(old);
        Ok(create_future)
    }

    fn store_if<'py>(
        slf: &Bound<'py, Self>,
        mode: StoreMode,
        cas: Option<u64>,
        key: &Object<'py>,
        value: &Object<'py>,
        expire: Object<'py>,
        flags: Option<u32>,
    ) -> PyResult<Object<'py>> {
        let ttl = read_ttl("expire", Some(expire))?;
        let settings = slf.get().settings()?;
        let name = settings.keys.check(key)?;
        let (value, flags) = settings.values.serialize(key, value, flags)?;
        let value = value.as_bytes();
        let request = StoreRequest { mode, key: &name, value, ttl, flags, cas };
        Self::begin(slf, Reading::Stored, &Request::Store(&[request]))
    }

    /// Starts a call and returns its future.
    fn begin<'py>(
        slf: &Bound<'py, Self>,
        reading: Reading,
        request: &Request<'_>,
    ) -> PyResult<Object<'py>> {
        let (py, this) = (slf.py(), slf.get());
        let future = Self::future(slf)?;
        let ticket = Ticket { future: future.clone().unbind(), reading };
        let pushed = this.with(|state| {
            let now = Instant::now();
            state.pipeline.push(ticket, request, now).map(|_| {
                let is_full = state.pipeline.queue_len() > state.queue_len_max;
                let is_sent = state.sends_at_once(now);
                let begins = !is_sent && !mem::replace(&mut state.is_scheduled, true);
                (is_full, is_sent, begins.then(|| state.call_soon.clone_ref(py)))
            })
        });
        match pushed {
            Some(Ok((is_full, is_sent, call_soon))) => {
                if is_sent {
                    Self::_flush(slf)?;
                }
                if is_full {
                    this.cancel_unwanted(py, |pipeline| waiting(py, pipeline.queued()))?;
                    this.with(|state| {
                        let len = state.pipeline.queue_len();
                        state.queue_len_max = (2 * len).max(QUEUE_LEN_MIN);
                    });
                }
                if let Some(call_soon) = call_soon {
                    call_soon.call1(py, (slf.getattr(intern!(py, "_flush"))?,))?;
                }
                Ok(future)
            }
            Some(Err((_, error))) => Err(exception(py, &error)),
            None => Err(PyRuntimeError::new_err("the channel has no event loop")),
        }
    }

    /// Cancels each call in the result of `select` whose future is done, because no caller waits for
    /// the result of such a call.
    fn cancel_unwanted(
        &self,
        py: Python<'_>,
        select: impl FnOnce(&Pipeline<Ticket>) -> Vec<(CallId, Py<PyAny>)>,
    ) -> PyResult<()> {
        let calls = self.with(|state| select(&state.pipeline)).unwrap_or_default();
        for (id, future) in calls {
            if future.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
                let ticket = self.with(|state| state.pipeline.cancel(id, Instant::now()));
                drop(ticket);
            }
        }
        Ok(())
    }

    /// Delivers results, closes the connection if it is unusable, and schedules `_flush` if there
    /// are queued calls to send.
    ///
    /// # Errors
    /// Delivering a result raised an exception that ends the program, such as `KeyboardInterrupt`.
    fn settle(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let settled = this.with(|state| {
            let answers: Vec<_> = std::iter::from_fn(|| state.pipeline.poll_answer()).collect();
            let dropped = if state.pipeline.is_open() { None } else { state.write.take() };
            let can_send = !state.is_paused || state.write.is_none();
            let is_due = state.pipeline.queue_len() > 0 && can_send && !state.is_scheduled;
            state.is_scheduled |= is_due;
            (answers, dropped, is_due.then(|| state.call_soon.clone_ref(py)))
        });
        let Some((answers, dropped, call_soon)) = settled else { return Ok(()) };
        let mut interrupted = Ok(());
        for (ticket, answer) in answers {
            if let Err(error) = ticket.settle(py, answer) {
                interrupted = Err(error);
            }
        }
        if dropped.is_some() {
            slf.call_method0(intern!(py, "_drop"))?;
        }
        if let Some(call_soon) = call_soon {
            call_soon.call1(py, (slf.getattr(intern!(py, "_flush"))?,))?;
        }
        interrupted
    }

    /// Sets a timer of the loop that calls `_tick` at the pipeline's next deadline, unless a timer
    /// for an earlier time is set.
    fn set_timer(slf: &Bound<'_, Self>, now: Instant) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let due = this.with(|state| {
            let at = state.pipeline.poll_time(now)?;
            let is_set = state.timer.as_ref().is_some_and(|(set, _)| *set <= at);
            (!is_set).then(|| (at, state.event_loop.clone_ref(py), state.timer.take()))
        });
        let Some((at, event_loop, old)) = due.flatten() else { return Ok(()) };
        if let Some((_, old)) = old {
            old.call_method0(py, "cancel")?;
        }
        let delay = (at.saturating_duration_since(now) + TIMER_SLACK).as_secs_f64();
        let arguments = (delay, slf.getattr(intern!(py, "_tick"))?);
        let timer = event_loop.call_method1(py, intern!(py, "call_later"), arguments)?;
        let old = this.with(|state| state.timer.replace((at, timer)));
        drop(old);
        Ok(())
    }
}

fn unbound(objects: &[Object<'_>]) -> Vec<Py<PyAny>> {
    objects.iter().map(|object| object.clone().unbind()).collect()
}

/// Collects the identifiers and the futures of calls.
fn waiting<'a>(
    py: Python<'_>,
    calls: impl Iterator<Item = (CallId, &'a Ticket)>,
) -> Vec<(CallId, Py<PyAny>)> {
    calls.map(|(id, ticket)| (id, ticket.future.clone_ref(py))).collect()
}

fn store_mode(name: &str) -> PyResult<StoreMode> {
    Ok(match name {
        "set" => StoreMode::Set,
        "add" => StoreMode::Add,
        "replace" => StoreMode::Replace,
        "append" => StoreMode::Append,
        "prepend" => StoreMode::Prepend,
        _ => return Err(PyValueError::new_err(format!("unknown store mode {name:?}"))),
    })
}

fn running_loop(py: Python<'_>) -> PyResult<Object<'_>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FUNCTION.import(py, "asyncio", "get_running_loop")?.call0()
}
