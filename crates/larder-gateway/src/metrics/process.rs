//! The process metrics that Prometheus client libraries provide by convention. Metrics that the
//! system does not provide are omitted.

use crate::server_view::MetricSample;

#[cfg(not(target_os = "linux"))]
pub(super) fn samples(_visit: &mut dyn FnMut(MetricSample)) {}

#[cfg(target_os = "linux")]
pub(super) fn samples(visit: &mut dyn FnMut(MetricSample)) {
    use crate::server_view::MetricKind::{self, Counter, Gauge};
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

    let mut show = |name, kind: MetricKind, value: f64, help| {
        let dynamic_labels = Vec::new();
        visit(MetricSample { name, labels: &[], dynamic_labels, help, kind, value });
    };
    if let Some(stat) = linux::Stat::read() {
        show(
            "process_cpu_seconds_total",
            Counter,
            stat.cpu_seconds,
            "Total user and system CPU time spent in seconds.",
        );
        show(
            "process_virtual_memory_bytes",
            Gauge,
            stat.virtual_bytes,
            "Virtual memory size in bytes.",
        );
        show(
            "process_resident_memory_bytes",
            Gauge,
            stat.resident_bytes,
            "Resident memory size in bytes.",
        );
        if let Some(boot) = linux::boot_seconds() {
            show(
                "process_start_time_seconds",
                Gauge,
                boot + stat.started_after_boot,
                "Start time of the process since unix epoch in seconds.",
            );
        }
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // Exclude the descriptor that is open only while the directory is read.
        let open = open.count().saturating_sub(1);
        show("process_open_fds", Gauge, open as f64, "Number of open file descriptors.");
    }
    if let Ok((max, _)) = getrlimit(Resource::RLIMIT_NOFILE)
        && max != RLIM_INFINITY
    {
        show("process_max_fds", Gauge, max as f64, "Maximum number of open file descriptors.");
    }
}

/// Reads files in `/proc`, which proc(5) describes.
#[cfg(target_os = "linux")]
mod linux {
    use nix::unistd::{SysconfVar, sysconf};
    use std::fs::read_to_string;

    /// Fields of `/proc/self/stat`, in seconds and bytes.
    #[derive(Debug, PartialEq)]
    pub(super) struct Stat {
        pub(super) cpu_seconds: f64,
        pub(super) started_after_boot: f64,
        pub(super) virtual_bytes: f64,
        pub(super) resident_bytes: f64,
    }

    impl Stat {
        pub(super) fn read() -> Option<Self> {
            let ticks_per_second = sysconf(SysconfVar::CLK_TCK).ok()?? as f64;
            let page_size = sysconf(SysconfVar::PAGE_SIZE).ok()?? as f64;
            Self::parse(&read_to_string("/proc/self/stat").ok()?, ticks_per_second, page_size)
        }

        pub(super) fn parse(line: &str, ticks_per_second: f64, page_size: f64) -> Option<Self> {
            // Field 2 is the program's name in parentheses. The name itself may contain blanks and
            // parentheses.
            let (_, rest) = line.rsplit_once(") ")?;
            let fields: Vec<&str> = rest.split(' ').collect();
            let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
            Some(Self {
                cpu_seconds: (field(14)? + field(15)?) / ticks_per_second,
                started_after_boot: field(22)? / ticks_per_second,
                virtual_bytes: field(23)?,
                resident_bytes: field(24)? * page_size,
            })
        }
    }

    /// Returns the time of the system's start, in seconds since the Unix epoch.
    pub(super) fn boot_seconds() -> Option<f64> {
        let stat = read_to_string("/proc/stat").ok()?;
        stat.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::linux::Stat;

    #[test]
    fn a_line_of_proc_is_read_by_its_numbers_of_fields() {
        let line = "7 (a) b (c) S 1 7 7 0 -1 4194560 2512 0 0 0 250 150 0 0 20 0 9 0 80012 4679761920 3340 184467";
        let expected = Stat {
            cpu_seconds: 4.0,
            started_after_boot: 800.12,
            virtual_bytes: 4_679_761_920.0,
            resident_bytes: 13_680_640.0,
        };
        assert_eq!(Stat::parse(line, 100.0, 4096.0), Some(expected));
        assert_eq!(Stat::parse("7 (a) S 1", 100.0, 4096.0), None);
    }
}
