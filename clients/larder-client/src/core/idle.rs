//! Idle connections: the one that was used last is used next, so that those of a burst become idle for long and are
//! closed.

use std::time::{Duration, Instant};

/// Connections that nobody uses.
#[derive(Debug)]
pub(crate) struct Idle<C> {
    /// With the time of their last use, the earliest one first.
    connections: Vec<(C, Instant)>,
    /// How long one is kept.
    time_max: Duration,
}

impl<C> Idle<C> {
    pub(crate) fn new(time_max: Duration) -> Self {
        Self { connections: Vec::new(), time_max }
    }

    /// The connection that was used last.
    pub(crate) fn take(&mut self) -> Option<C> {
        self.connections.pop().map(|(connection, _)| connection)
    }

    /// Keeps a connection, and returns one that was idle for too long, if there is one.
    pub(crate) fn put(&mut self, connection: C, now: Instant) -> Option<C> {
        self.connections.push((connection, now));
        let (_, since) = self.connections.first()?;
        let is_over = now.saturating_duration_since(*since) > self.time_max;
        is_over.then(|| self.connections.remove(0).0)
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// All of them.
    pub(crate) fn drain(&mut self) -> Vec<(C, Instant)> {
        std::mem::take(&mut self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_was_used_last_is_used_next() {
        let (start, secs) = (Instant::now(), Duration::from_secs);
        let mut idle = Idle::new(secs(60));
        assert_eq!(idle.put('a', start), None);
        assert_eq!(idle.put('b', start + secs(1)), None);
        assert_eq!(idle.take(), Some('b'));
        assert_eq!(idle.put('b', start + secs(60)), None);
        assert_eq!(idle.put('c', start + secs(61)), Some('a'));
        assert_eq!((idle.len(), idle.take()), (2, Some('c')));
    }
}
