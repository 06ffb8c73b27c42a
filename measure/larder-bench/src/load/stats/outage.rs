//! Outages: losses of connections that are later reconnected.

/// Counts of lost connections, and of replies on reconnected connections. Times are in nanoseconds
/// since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) lost_connections: u64,
    pub(crate) lost_requests: u64,
    /// The time at which the first connection was lost.
    pub(crate) begun_at: u64,
    /// The time of the first reply on a reconnected connection; `None` if none has arrived.
    pub(crate) answered_at: Option<u64>,
    /// The time of the first hit on a reconnected connection; `None` if none has arrived.
    pub(crate) hit_at: Option<u64>,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Outage {
    pub(crate) fn begin(begun_at: u64) -> Self {
        Self {
            lost_connections: 0,
            lost_requests: 0,
            begun_at,
            answered_at: None,
            hit_at: None,
            hits: 0,
            misses: 0,
        }
    }

    /// Counts replies on a reconnected connection.
    pub(crate) fn answered(&mut self, now: u64, answers: u64, hits: u64, misses: u64) {
        if answers > 0 {
            self.answered_at.get_or_insert(now);
        }
        if hits > 0 {
            self.hit_at.get_or_insert(now);
        }
        self.hits += hits;
        self.misses += misses;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let first = |mine: Option<u64>, theirs: Option<u64>| mine.into_iter().chain(theirs).min();
        self.lost_connections += other.lost_connections;
        self.lost_requests += other.lost_requests;
        self.begun_at = self.begun_at.min(other.begun_at);
        self.answered_at = first(self.answered_at, other.answered_at);
        self.hit_at = first(self.hit_at, other.hit_at);
        self.hits += other.hits;
        self.misses += other.misses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_times_of_all_threads_count() {
        let mut one = Outage::begin(50);
        one.answered(70, 1, 0, 1);
        one.answered(90, 2, 2, 0);
        let mut other = Outage::begin(40);
        other.answered(75, 0, 0, 0);
        other.answered(80, 1, 1, 0);
        one.add(&other);
        assert_eq!((one.begun_at, one.answered_at, one.hit_at), (40, Some(70), Some(80)));
        assert_eq!((one.hits, one.misses), (3, 1));
    }
}
