//! Idle connections. The pool reuses the most recently used connection first. After a burst, the
//! surplus connections are never reused, so the pool closes them after the idle time limit.

use std::time::{Duration, Instant};

/// The idle connections of a pool.
#[derive(Debug)]
pub(crate) struct IdleConnections<C> {
    /// Connections with the time of their last use, least recently used first.
    connections: Vec<(C, Instant)>,
    /// The idle time limit.
    time_max: Duration,
}

impl<C> IdleConnections<C> {
    pub(crate) fn new(time_max: Duration) -> Self {
        Self { connections: Vec::new(), time_max }
    }

    /// Removes and returns the most recently used connection. Returns `None` if no connection is
    /// idle.
    pub(crate) fn take(&mut self) -> Option<C> {
        self.connections.pop().map(|(connection, _)| connection)
    }

    /// Adds a connection that was last used at `now`. If the least recently used connection exceeds
    /// the idle time limit, removes and returns that connection, which the caller closes.
    pub(crate) fn put(&mut self, connection: C, now: Instant) -> Option<C> {
        self.connections.push((connection, now));
        let (_, since) = self.connections.first()?;
        let is_over = now.saturating_duration_since(*since) > self.time_max;
        is_over.then(|| self.connections.remove(0).0)
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Removes and returns all connections.
    pub(crate) fn drain(&mut self) -> Vec<(C, Instant)> {
        std::mem::take(&mut self.connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_recently_used_connection_is_reused_first() {
        let (start, secs) = (Instant::now(), Duration::from_secs);
        let mut idle = IdleConnections::new(secs(60));
        assert_eq!(idle.put('a', start), None);
        assert_eq!(idle.put('b', start + secs(1)), None);
        assert_eq!(idle.take(), Some('b'));
        assert_eq!(idle.put('b', start + secs(60)), None);
        assert_eq!(idle.put('c', start + secs(61)), Some('a'));
        assert_eq!((idle.len(), idle.take()), (2, Some('c')));
    }
}
