//! Recorded requests that wait for their connection.

use crate::load::wire::recorded::Recorded;
use std::collections::VecDeque;

/// Recorded requests that wait for their connection.
#[derive(Debug, Default)]
pub(crate) struct TraceQueue {
    recorded: VecDeque<Recorded>,
    /// Sets after gets that missed. They are made before other requests.
    sets: VecDeque<Recorded>,
    /// The request that was made last.
    last: Option<Recorded>,
    /// Whether no more recorded requests come.
    pub(crate) has_ended: bool,
}

impl TraceQueue {
    pub(crate) fn push(&mut self, request: Recorded) {
        self.recorded.push_back(request);
    }

    pub(crate) fn push_set(&mut self, set: Recorded) {
        self.sets.push_back(set);
    }

    /// Number of recorded requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.recorded.len()
    }

    /// Removes the recorded requests that wait.
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
