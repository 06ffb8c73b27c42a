//! The process metrics that Prometheus client libraries provide by convention. Metrics that the system does not
//! provide are omitted.

use crate::server_view::MetricSample;

#[cfg(not(target_os = "linux"))]
pub(super) fn samples(_visit: &mut dyn FnMut(MetricSample)) {}

#[cfg(target_os = "linux")]
pub(super) fn samples(visit: &mut dyn FnMut(MetricSample)) {
    use crate::server_view::MetricKind::{self, Counter, Gauge};
    use procfs::process::{LimitValue, Process};

    let Ok(process) = Process::myself() else { return };
    let mut show = |name, kind: MetricKind, value: f64, help| {
        visit(MetricSample { name, labels: &[], help, kind, value });
    };
    if let Ok(stat) = process.stat() {
        let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
        show(
            "process_cpu_seconds_total",
            Counter,
            seconds(stat.utime + stat.stime),
            "Total user and system CPU time spent in seconds.",
        );
        show(
            "process_virtual_memory_bytes",
            Gauge,
            stat.vsize as f64,
            "Virtual memory size in bytes.",
        );
        show(
            "process_resident_memory_bytes",
            Gauge,
            stat.rss as f64 * procfs::page_size() as f64,
            "Resident memory size in bytes.",
        );
        if let Ok(boot) = procfs::boot_time_secs() {
            show(
                "process_start_time_seconds",
                Gauge,
                boot as f64 + seconds(stat.starttime),
                "Start time of the process since unix epoch in seconds.",
            );
        }
    }
    if let Ok(open) = process.fd_count() {
        show("process_open_fds", Gauge, open as f64, "Number of open file descriptors.");
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(max) = limits.max_open_files.soft_limit
    {
        show("process_max_fds", Gauge, max as f64, "Maximum number of open file descriptors.");
    }
}
