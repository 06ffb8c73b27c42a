//! Counters of one thread: requests, latencies and hot keys.

use crate::counter::Counter;
use crate::hot_keys::HotKeys;
use crate::latency::Latencies;

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($field:ident)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[expect(missing_docs, reason = "the names are memcached's own, from `stats`")]
        pub struct $name { $(pub $field: Counter,)* }

        impl $name {
            /// Returns all counters with their names.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &Counter)> {
                [$((stringify!($field), &self.$field)),*].into_iter()
            }

            fn add(&self, other: &Self) {
                $(self.$field.add(other.$field.get());)*
            }
        }
    };
}

counters! {
    /// Counts of one thread that do not depend on a slab class.
    ThreadCounters {
        get_misses get_expired get_flushed touch_misses cmd_flush cmd_meta
        delete_misses incr_misses decr_misses cas_misses cmd_touch
        store_too_large store_no_memory auth_cmds auth_errors
        bytes_read bytes_written conn_yields
        read_buf_oom response_obj_oom
    }
}

counters! {
    /// The counts of one thread for one slab class.
    ClassCounters {
        cmd_set get_hits touch_hits delete_hits incr_hits decr_hits cas_hits cas_badval
    }
}

/// The counters of one thread. The alignment keeps the counters of two threads in separate cache
/// lines. Only `classes`, which is on the heap, may share its first and last cache line with other
/// memory.
#[derive(Debug)]
#[repr(align(128))]
pub struct Counters {
    /// Counts that do not depend on an item.
    pub thread: ThreadCounters,
    /// Counts for each size class of items, starting with class 0.
    pub classes: Vec<ClassCounters>,
    /// Latency histograms, one per command class.
    pub latencies: Latencies,
    /// A sample of requests' keys.
    pub hot_keys: HotKeys,
}

impl Counters {
    /// Returns zeroed counters for this many size classes.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        Self {
            thread: ThreadCounters::default(),
            classes: (0..classes).map(|_| ClassCounters::default()).collect(),
            latencies: Latencies::default(),
            hot_keys: HotKeys::default(),
        }
    }

    /// Sums the counters of several threads, except hot keys: see [`HotKeys::hottest`].
    #[must_use]
    pub fn sum<'c>(classes: usize, threads: impl IntoIterator<Item = &'c Self>) -> Self {
        let sum = Self::new(classes);
        for counters in threads {
            sum.thread.add(&counters.thread);
            let classes = sum.classes.iter().zip(&counters.classes);
            classes.for_each(|(sum, class)| sum.add(class));
            sum.latencies.add(&counters.latencies);
        }
        sum
    }

    /// Calls `count` with the counters of `class`, the size class of an item. Does nothing if
    /// `class` is `None`.
    #[inline]
    pub fn class(&self, class: Option<usize>, count: impl FnOnce(&ClassCounters)) {
        if let Some(class) = class.and_then(|class| self.classes.get(class)) {
            count(class);
        }
    }

    /// Sets all counters to zero (`stats reset`).
    pub fn reset(&self) {
        let classes = self.classes.iter().flat_map(ClassCounters::each);
        self.thread.each().chain(classes).for_each(|(_, counter)| counter.reset());
        self.latencies.reset();
        self.hot_keys.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_the_counts_of_every_thread_and_class() {
        let threads = [Counters::new(2), Counters::new(2)];
        threads.iter().for_each(|counters| counters.thread.get_misses.add(2));
        threads[0].class(Some(1), |class| class.get_hits.add(3));
        threads[1].class(Some(1), |class| class.get_hits.add(4));
        threads[1].class(Some(2), |class| class.get_hits.add(5));
        let sum = Counters::sum(2, &threads);
        assert_eq!(sum.thread.get_misses.get(), 4);
        assert_eq!(sum.classes.iter().map(|class| class.get_hits.get()).sum::<u64>(), 7);
        assert_eq!(threads[0].thread.get_misses.get(), 2, "summing changes no thread's counts");
    }
}
