//! A server as one page of statistics sees it: what costs something to find out is found out once,
//! when the first row asks for it, so rows that add up agree with each other.

use crate::controls::TunedFlash;
use crate::options::suboptions::{Shown, Suboptions};
use crate::process::platform;
use crate::server::Server;
use larder_operations::{ClassCounters, Counter, Counters, HotKeyReport, HotKeys};
use larder_store::segment::MissRatioCurve;
use larder_store::{ClassGauges, FlashGauges, Gauges};
use std::cell::OnceCell;
use std::time::Duration;

/// How many keys and prefixes are shown.
const HOTTEST_SHOWN: usize = 20;

pub(super) struct Snapshot<'s> {
    pub(super) server: &'s Server,
    counters: OnceCell<Counters>,
    gauges: OnceCell<Gauges>,
    cpu_times: OnceCell<[Duration; 2]>,
    curve: OnceCell<Option<MissRatioCurve>>,
    tuned: OnceCell<Shown>,
    flash: OnceCell<Option<FlashGauges>>,
    tuned_flash: OnceCell<TunedFlash>,
    hottest: OnceCell<HotKeyReport>,
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
        }
    }

    pub(super) fn suboptions(&self) -> &'s Suboptions {
        &self.server.options.suboptions
    }

    /// The counts of all threads together.
    pub(super) fn counters(&self) -> &Counters {
        self.counters.get_or_init(|| {
            let classes = self.server.settings.limits.classes.count();
            Counters::sum(classes, self.server.counters.iter().map(AsRef::as_ref))
        })
    }

    /// A count of all threads and size classes together.
    pub(super) fn class_counter(&self, counter: fn(&ClassCounters) -> &Counter) -> u64 {
        self.counters().classes.iter().map(|class| counter(class).get()).sum()
    }

    /// What most requests are for.
    pub(super) fn hottest(&self) -> &HotKeyReport {
        self.hottest.get_or_init(|| {
            let threads = self.server.counters.iter().map(|counters| &counters.hot_keys);
            HotKeys::hottest(threads, self.server.clock.now(), HOTTEST_SHOWN)
        })
    }

    /// The engine's totals.
    pub(super) fn gauges(&self) -> &Gauges {
        self.gauges.get_or_init(|| self.server.gauges())
    }

    /// A total of all size classes together.
    pub(super) fn class_gauge(&self, gauge: fn(&ClassGauges) -> u64) -> u64 {
        self.gauges().classes.iter().map(gauge).fold(0, u64::wrapping_add)
    }

    /// User and system time of this process.
    pub(super) fn cpu_times(&self) -> [Duration; 2] {
        *self.cpu_times.get_or_init(platform::cpu_times)
    }

    /// The miss-ratio curve; `None` with an engine that has none.
    pub(super) fn curve(&self) -> Option<&MissRatioCurve> {
        self.curve.get_or_init(|| self.server.miss_ratio_curve()).as_ref()
    }

    /// What commands have set.
    pub(super) fn tuned(&self) -> &Shown {
        self.tuned.get_or_init(|| self.server.controls.tuned())
    }

    /// The totals of the flash tier, if there is one.
    pub(super) fn flash_gauges(&self) -> Option<&FlashGauges> {
        self.flash.get_or_init(|| self.server.flash_gauges()).as_ref()
    }

    /// A total of the flash tier; 0 without one.
    pub(super) fn flash_total(&self, read: fn(&FlashGauges) -> u64) -> u64 {
        self.flash_gauges().map_or(0, read)
    }

    /// What `extstore` has set.
    pub(super) fn tuned_flash(&self) -> &TunedFlash {
        self.tuned_flash.get_or_init(|| self.server.controls.tuned_flash())
    }
}
