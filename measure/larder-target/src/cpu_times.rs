//! CPU time of other programs during a measurement.

/// CPU seconds used so far by all processes, and by this process and a server together.
#[derive(Clone, Copy, Debug)]
pub struct CpuTimes {
    all: f64,
    ours: f64,
    at: std::time::Instant,
}

impl CpuTimes {
    /// Returns the times so far. `pid` is the server's process. Returns `None` if that process does
    /// not exist or the system does not report the times.
    pub fn now(pid: i32) -> Option<Self> {
        let server = crate::process::usage(pid)?;
        let ours = crate::process::own_cpu_secs() + server.user_secs + server.system_secs;
        Some(Self { all: all()?, ours, at: std::time::Instant::now() })
    }

    /// Returns the CPU time of other processes since `earlier`, in percent of the total time of
    /// `cores` cores. Returns `None` after less than half a second, because the system rounds CPU
    /// times to 10 ms.
    pub fn others_since(&self, earlier: &Self, cores: usize) -> Option<f64> {
        let others = (self.all - earlier.all) - (self.ours - earlier.ours);
        let seconds = (self.at - earlier.at).as_secs_f64();
        let percent = (100.0 * others / (seconds * cores.max(1) as f64)).max(0.0);
        (seconds >= SECONDS_MIN).then_some(percent)
    }
}

const SECONDS_MIN: f64 = 0.5;

/// Returns the user and system time of all processes plus the hypervisor's steal time, in seconds.
/// Excludes interrupts, because the measured server and load also cause interrupts.
#[cfg(target_os = "linux")]
fn all() -> Option<f64> {
    use procfs::{CurrentSI, KernelStats};
    let total = KernelStats::current().ok()?.total;
    let steal = total.steal_ms().unwrap_or(0);
    let millis = total.user_ms() + total.nice_ms() + total.system_ms() + steal;
    Some(millis as f64 / 1e3)
}

#[cfg(not(target_os = "linux"))]
fn all() -> Option<f64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_is_not_counted_as_other_processes_time() {
        let here = i32::try_from(std::process::id()).unwrap();
        let before = CpuTimes::now(here).unwrap();
        let since = std::time::Instant::now();
        while since.elapsed() < std::time::Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        let after = CpuTimes::now(here).unwrap();
        assert!(after.all >= before.all && after.ours > before.ours);
        assert_eq!(after.others_since(&before, 1), None, "the time is too short");
        let made_up = CpuTimes { all: before.all + 3.0, ours: before.ours + 1.0, at: before.at };
        let later = CpuTimes { at: before.at + std::time::Duration::from_secs(4), ..made_up };
        assert!((later.others_since(&before, 2).unwrap() - 25.0).abs() < 1e-9);
    }
}
