//! A server's state for one statistics page or one scrape. Expensive values are read once, at their
//! first use, so all rows that use the same value are consistent.

use crate::controls::TunedFlash;
use crate::options::suboptions::{Suboptions, UnusedSettings};
use crate::process::platform;
use crate::server::Server;
use larder_operations::{ClassCounters, Counter, Counters, HotKeyReport, HotKeys, TrackingTotals};
use larder_store::segment::MissRatioCurve;
use larder_store::{ClassGauges, FlashGauges, Gauges};
use std::cell::OnceCell;
use std::time::Duration;

/// The maximum numbers of hot keys and hot prefixes on a page.
const HOTTEST_SHOWN: usize = 20;

pub(super) struct Snapshot<'s> {
    pub(super) server: &'s Server,
    counters: OnceCell<Counters>,
    gauges: OnceCell<Gauges>,
    cpu_times: OnceCell<[Duration; 2]>,
    curve: OnceCell<Option<MissRatioCurve>>,
    tuned: OnceCell<UnusedSettings>,
    flash: OnceCell<Option<FlashGauges>>,
    tuned_flash: OnceCell<TunedFlash>,
    hottest: OnceCell<HotKeyReport>,
    tracking: OnceCell<TrackingTotals>,
}

impl<'s> Snapshot<'s> {
    pub(super) fn new(server: &'s Server) -> Self {
        Self {
            server,
            counters: OnceCell::new(),
            gauges: OnceCell::new(),
            cpu_times: OnceCell::new(),
            curve: OnceCell::new(),
            tuned: OnceCell::new(),
            flash: OnceCell::new(),
            tuned_flash: OnceCell::new(),
            hottest: OnceCell::new(),
            tracking: OnceCell::new(),
        }
    }

    pub(super) fn suboptions(&self) -> &'s Suboptions {
        &self.server.options.suboptions
    }

    /// Returns the counters, summed over all threads.
    pub(super) fn counters(&self) -> &Counters {
        self.counters.get_or_init(|| {
            let classes = self.server.settings.limits.classes.count();
            Counters::sum(classes, self.server.counters.iter().map(AsRef::as_ref))
        })
    }

    /// Returns a counter, summed over all threads and size classes.
    pub(super) fn class_counter(&self, counter: fn(&ClassCounters) -> &Counter) -> u64 {
        self.counters().classes.iter().map(|class| counter(class).get()).sum()
    }

    /// Returns the keys and prefixes with the most requests.
    pub(super) fn hottest(&self) -> &HotKeyReport {
        self.hottest.get_or_init(|| {
            let threads = self.server.counters.iter().map(|counters| &counters.hot_keys);
            HotKeys::hottest(threads, self.server.clock.now(), HOTTEST_SHOWN)
        })
    }

    /// Returns the totals of `CLIENT TRACKING`.
    pub(super) fn tracking(&self) -> &TrackingTotals {
        self.tracking.get_or_init(|| self.server.connections.tracker.totals())
    }

    /// Returns the gauges of the engine. For an item on flash, only the header counts, because key
    /// and value take no memory.
    pub(super) fn gauges(&self) -> &Gauges {
        self.gauges.get_or_init(|| {
            let mut gauges = self.server.gauges();
            let header = self.server.settings.limits.classes.footprint(0, 0, 0) as u64;
            let on_flash = self.flash_total(|flash| flash.bytes_counted);
            let headers = self.flash_total(|flash| flash.objects_used) * header;
            let first = gauges.classes.first_mut().map(|class| &mut class.bytes);
            for bytes in std::iter::once(&mut gauges.bytes).chain(first) {
                *bytes = bytes.saturating_sub(on_flash) + headers;
            }
            gauges
        })
    }

    /// Returns the memory that items take, in bytes, including the free part of open segments.
    pub(super) fn items_memory(&self) -> u64 {
        let gauges = self.gauges();
        let others = gauges.index_bytes + gauges.dead_bytes + gauges.tags_bytes;
        gauges.used_bytes.saturating_sub(others)
    }

    /// Returns the bytes that memcached would count for the items. If the items take less memory in
    /// Larder, returns that memory instead, because monitoring agents compare the number with the
    /// limit.
    pub(super) fn item_bytes(&self) -> u64 {
        self.gauges().bytes.min(self.items_memory())
    }

    /// Returns whether the memory is full: items were evicted, and less than 1/32 of the limit is
    /// free.
    pub(super) fn is_full(&self) -> bool {
        let gauges = self.gauges();
        let free = gauges.limit_bytes.saturating_sub(gauges.used_bytes);
        gauges.evictions > 0 && free < gauges.limit_bytes / 32
    }

    /// Returns a gauge, summed over all size classes.
    pub(super) fn class_gauge(&self, gauge: fn(&ClassGauges) -> u64) -> u64 {
        self.gauges().classes.iter().map(gauge).fold(0, u64::wrapping_add)
    }

    /// Returns the CPU time of the process: user, then system.
    pub(super) fn cpu_times(&self) -> [Duration; 2] {
        *self.cpu_times.get_or_init(platform::cpu_times)
    }

    /// Returns the miss-ratio curve, or `None` if the engine has none.
    pub(super) fn curve(&self) -> Option<&MissRatioCurve> {
        self.curve.get_or_init(|| self.server.miss_ratio_curve()).as_ref()
    }

    /// Returns the settings that commands can change but that have no effect.
    pub(super) fn tuned(&self) -> &UnusedSettings {
        self.tuned.get_or_init(|| self.server.controls.tuned())
    }

    /// Returns the gauges of the flash tier, or `None` without a flash tier.
    pub(super) fn flash_gauges(&self) -> Option<&FlashGauges> {
        self.flash.get_or_init(|| self.server.flash_gauges()).as_ref()
    }

    /// Returns a gauge of the flash tier, or 0 without a flash tier.
    pub(super) fn flash_total(&self, read: fn(&FlashGauges) -> u64) -> u64 {
        self.flash_gauges().map_or(0, read)
    }

    /// Returns the settings of the `extstore` command.
    pub(super) fn tuned_flash(&self) -> &TunedFlash {
        self.tuned_flash.get_or_init(|| self.server.controls.tuned_flash())
    }
}
