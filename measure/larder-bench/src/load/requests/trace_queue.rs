//! A client's queue of recorded requests.

use crate::load::wire::recorded::Recorded;
use std::collections::VecDeque;

/// The recorded requests of a client that wait while the client's pipeline is full.
#[derive(Debug, Default)]
pub(crate) struct TraceQueue {
    recorded: VecDeque<Recorded>,
    /// Sets that follow misses. The client sends them before other waiting requests.
    sets: VecDeque<Recorded>,
    /// Storage for the request that [`next`](Self::next) returned last; `None` before the first
    /// call.
    last: Option<Recorded>,
    /// Whether the trace has no further requests.
    pub(crate) has_ended: bool,
}

impl TraceQueue {
    pub(crate) fn push(&mut self, request: Recorded) {
        self.recorded.push_back(request);
    }

    pub(crate) fn push_set(&mut self, set: Recorded) {
        self.sets.push_back(set);
    }

    /// Returns the number of waiting recorded requests. Sets that follow misses do not count.
    pub(crate) fn len(&self) -> usize {
        self.recorded.len()
    }

    /// Removes and returns the waiting recorded requests, but leaves the sets that follow misses.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Recorded> {
        self.recorded.drain(..)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.sets.is_empty()
    }

    pub(super) fn next(&mut self) -> &Recorded {
        let next = self.sets.pop_front().or_else(|| self.recorded.pop_front());
        self.last.insert(next.expect("callers check `has_next` first"))
    }
}
