//! The state of a channel that belongs to one event loop.

use super::result::Ticket;
use larder_client::pipeline::Pipeline;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::mem;
use std::time::{Duration, Instant};

/// If the connection was idle for at least this time, `_flush` sends in the next iteration of the
/// loop. The loop then first detects whether the server has closed the connection.
const IDLE_TIME_MIN: Duration = Duration::from_millis(2);
/// The state that belongs to one event loop.
#[derive(Debug)]
pub(super) struct State {
    pub(super) event_loop: Py<PyAny>,
    pub(super) create_future: Py<PyAny>,
    pub(super) call_soon: Py<PyAny>,
    pub(super) pipeline: Pipeline<Ticket>,
    /// The method `write` of the transport. `None` without an open connection.
    pub(super) write: Option<Py<PyAny>>,
    /// Whether the transport has paused writing.
    pub(super) is_paused: bool,
    /// Whether the loop calls `_flush` in its next iteration.
    pub(super) is_scheduled: bool,
    /// Whether the loop has polled the connection since the last send.
    pub(super) is_checked: bool,
    /// Whether the last output contained only one call. If so, the next call is probably also the
    /// only call in its iteration of the loop.
    pub(super) was_alone: bool,
    /// The time of the last send or receive.
    pub(super) used: Instant,
    /// The time at which the timer fires, and the timer's handle. `None` if no timer is set.
    pub(super) timer: Option<(Instant, Py<PyAny>)>,
    /// The queue length above which a new call removes calls whose futures are done.
    pub(super) queue_len_max: usize,
}

/// The next step in sending the queued calls.
pub(super) enum Step {
    Nothing,
    /// Open a connection first.
    Open,
    /// Send in the next iteration of the loop. The loop then first detects whether the server has
    /// closed the connection.
    Look(Py<PyAny>),
    Write(Py<PyAny>, Py<PyBytes>),
}

impl State {
    /// Returns whether the server may have closed the connection since its last use.
    fn is_old(&self, now: Instant) -> bool {
        self.pipeline.is_idle() && now - self.used >= IDLE_TIME_MIN
    }

    /// Returns whether to send a new call at once. This saves an iteration of the loop.
    pub(super) fn sends_at_once(&self, now: Instant) -> bool {
        let is_free = self.write.is_some() && !self.is_paused && !self.is_scheduled;
        let is_alone = self.was_alone && self.pipeline.is_idle() && self.pipeline.queue_len() == 1;
        is_free && is_alone && !self.is_old(now)
    }

    pub(super) fn step(&mut self, py: Python<'_>, now: Instant) -> Step {
        if self.pipeline.start_opening() {
            return Step::Open;
        }
        let Some(write) = &self.write else { return Step::Nothing };
        if self.is_paused || self.pipeline.queue_len() == 0 {
            return Step::Nothing;
        }
        if self.is_old(now) && !mem::replace(&mut self.is_checked, true) {
            self.is_scheduled = true;
            return Step::Look(self.call_soon.clone_ref(py));
        }
        (self.used, self.is_checked) = (now, false);
        self.was_alone = self.pipeline.queue_len() == 1;
        // Creating a `bytes` object does not trigger garbage collection, because it refers to no
        // other objects.
        let output = self.pipeline.poll_output(now, |output| PyBytes::new(py, output).unbind());
        output.map_or(Step::Nothing, |output| Step::Write(write.clone_ref(py), output))
    }
}
