//! Finds the process of a server on this machine by its listening socket, and reads its CPU time
//! and memory.

use crate::ServerAddress;

/// Resources that a process and its descendants use or have used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User CPU time in seconds.
    pub user_secs: f64,
    /// System CPU time in seconds.
    pub system_secs: f64,
    /// Resident memory in bytes. Counts shared memory once per process.
    pub rss_bytes: u64,
    /// Bytes written to storage devices. A write counts as soon as it is in the page cache. `None`
    /// if the system does not report it.
    pub written_bytes: Option<u64>,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{ServerAddress, Usage};
    use perf_event::events::Hardware;
    use perf_event::{Builder, Counter};
    use procfs::ProcError;
    use procfs::process::{FDInfo, FDTarget, Process, Stat, all_processes};
    use std::net::IpAddr;

    /// Returns the ID of the process that listens on `address`. Returns `None` if no such process
    /// runs on this machine, or if its file descriptors cannot be read.
    pub fn find(address: &ServerAddress) -> Option<i32> {
        let sockets = listening_inodes(address);
        let listens = |file: FDInfo| matches!(file.target, FDTarget::Socket(inode) if sockets.contains(&inode));
        let holds =
            |process: &Process| process.fd().is_ok_and(|mut f| f.any(|f| f.is_ok_and(listens)));
        let mut processes = all_processes().ok()?.flatten();
        if sockets.is_empty() { None } else { processes.find(holds).map(|process| process.pid()) }
    }

    fn listening_inodes(address: &ServerAddress) -> Vec<u64> {
        use procfs::net::{TcpState, tcp, tcp6, unix};
        match address {
            ServerAddress::Tcp(address) => {
                let reaches = |bound: IpAddr| bound == address.ip() || bound.is_unspecified();
                let sockets = tcp().into_iter().flatten().chain(tcp6().into_iter().flatten());
                sockets
                    .filter(|socket| socket.state == TcpState::Listen)
                    .filter(|socket| socket.local_address.port() == address.port())
                    .filter(|socket| reaches(socket.local_address.ip()))
                    .map(|socket| socket.inode)
                    .collect()
            }
            ServerAddress::Unix(path) => {
                let sockets = unix().into_iter().flatten();
                sockets.filter(|s| s.path.as_deref() == Some(path)).map(|s| s.inode).collect()
            }
        }
    }

    /// Returns the CPU time, memory and written bytes of a process and its descendants. The CPU
    /// time includes that of exited descendants for which their parents have waited. Returns `None`
    /// if the process does not exist.
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process's life")]
    pub fn usage(pid: i32) -> Option<Usage> {
        let tree = tree(pid);
        if tree.is_empty() {
            return None;
        }
        let ticks = procfs::ticks_per_second() as f64;
        // `cutime` and `cstime` are the times of exited children for which the process has waited.
        let waited = |ticks: i64| u64::try_from(ticks).unwrap_or(0);
        let user: u64 = tree.iter().map(|stat| stat.utime + waited(stat.cutime)).sum();
        let system: u64 = tree.iter().map(|stat| stat.stime + waited(stat.cstime)).sum();
        Some(Usage {
            user_secs: user as f64 / ticks,
            system_secs: system as f64 / ticks,
            rss_bytes: tree.iter().map(|stat| stat.rss * procfs::page_size()).sum(),
            written_bytes: tree.iter().map(|stat| written_bytes(stat.pid, pid)).sum(),
        })
    }

    /// Returns the bytes that a process has written to storage devices. Returns `None` if the
    /// process belongs to another user or the system does not report the bytes. Returns 0 for a
    /// descendant of `root` that has exited.
    fn written_bytes(pid: i32, root: i32) -> Option<u64> {
        match Process::new(pid).and_then(|process| process.io()) {
            Ok(io) => Some(io.write_bytes),
            Err(ProcError::PermissionDenied(_)) => None,
            Err(_) => (pid != root).then_some(0),
        }
    }

    /// Returns a process and its descendants, or an empty list if it does not exist.
    fn tree(pid: i32) -> Vec<Stat> {
        let Ok(root) = Process::new(pid).and_then(|process| process.stat()) else {
            return Vec::new();
        };
        let mut others: Vec<Stat> =
            all_processes().into_iter().flatten().flatten().filter_map(|p| p.stat().ok()).collect();
        let mut tree = vec![root];
        let mut next = 0;
        while let Some(parent) = tree.get(next).map(|stat| stat.pid) {
            next += 1;
            let is_child = |stat: &mut Stat| stat.ppid == parent && stat.pid != parent;
            tree.extend(others.extract_if(.., is_child));
        }
        tree
    }

    /// Returns whether a process is `ancestor` or descends from it.
    pub fn descends(pid: i32, ancestor: i32) -> bool {
        tree(ancestor).iter().any(|stat| stat.pid == pid)
    }

    /// Returns the processes that are in a process group or have `mark` in their environment.
    /// Zombies are excluded.
    pub(crate) fn members(group: i32, mark: &[u8]) -> Vec<i32> {
        let belongs = |process: &Process| {
            let Ok(stat) = process.stat() else { return false };
            runs(&stat) && (stat.pgrp == group || is_marked(stat.pid, mark))
        };
        let all = all_processes().into_iter().flatten().flatten();
        all.filter(belongs).map(|process| process.pid()).collect()
    }

    fn runs(stat: &Stat) -> bool {
        !matches!(stat.state, 'Z' | 'X')
    }

    /// Returns whether a process exists and is not a zombie.
    pub(crate) fn is_running(pid: i32) -> bool {
        Process::new(pid).and_then(|process| process.stat()).is_ok_and(|stat| runs(&stat))
    }

    fn is_marked(pid: i32, mark: &[u8]) -> bool {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark)
    }

    /// Returns whether a process is in a process group.
    pub(crate) fn is_in_group(pid: i32, group: i32) -> bool {
        let stat = Process::new(pid).and_then(|process| process.stat());
        stat.is_ok_and(|stat| stat.pgrp == group)
    }

    /// Hardware counters that count in user mode. The counters cover the threads that a process and
    /// its descendants had when counting started.
    #[derive(Debug)]
    pub struct Events {
        cycles: Vec<Counter>,
        instructions: Vec<Counter>,
    }

    impl Events {
        /// Starts counting. Returns `None` if the machine has no hardware counters, access is
        /// denied, or a process or thread exits during the call.
        pub fn count(pid: i32) -> Option<Self> {
            let mut threads: Vec<i32> = Vec::new();
            for stat in tree(pid) {
                let tasks = Process::new(stat.pid).ok()?.tasks().ok()?;
                threads.extend(tasks.flatten().map(|task| task.tid));
            }
            let count = |event: Hardware| -> Option<Vec<Counter>> {
                threads.iter().map(|thread| counter(*thread, event)).collect()
            };
            let (cycles, instructions) =
                (count(Hardware::CPU_CYCLES)?, count(Hardware::INSTRUCTIONS)?);
            Some(Self { cycles, instructions })
        }

        /// Returns the cycles and instructions since the start of counting, or `None` if a counter
        /// cannot be read.
        pub fn read(&mut self) -> Option<(u64, u64)> {
            let sum = |counters: &mut Vec<Counter>| {
                counters.iter_mut().map(|counter| counter.read().ok()).sum::<Option<u64>>()
            };
            Some((sum(&mut self.cycles)?, sum(&mut self.instructions)?))
        }
    }

    fn counter(thread: i32, event: Hardware) -> Option<Counter> {
        let mut counter =
            Builder::new(event).observe_pid(thread).exclude_kernel(true).build().ok()?;
        counter.enable().ok()?;
        Some(counter)
    }
}

#[cfg(target_os = "linux")]
pub use linux::{Events, descends, find, usage};
#[cfg(target_os = "linux")]
pub(crate) use linux::{is_in_group, is_running, members};

#[cfg(not(target_os = "linux"))]
mod other_systems {
    use super::{ServerAddress, Usage};

    /// Returns `None`, because only Linux's /proc provides this information.
    pub fn find(_: &ServerAddress) -> Option<i32> {
        None
    }

    /// Returns `None`, because only Linux's /proc provides this information.
    pub fn usage(_: i32) -> Option<Usage> {
        None
    }

    /// Returns false, because only Linux's /proc provides this information.
    pub fn descends(_: i32, _: i32) -> bool {
        false
    }

    /// Returns no processes, because only Linux's /proc provides this information.
    pub(crate) fn members(_: i32, _: &[u8]) -> Vec<i32> {
        Vec::new()
    }

    /// Returns true, because only Linux's /proc provides this information.
    pub(crate) fn is_running(_: i32) -> bool {
        true
    }

    /// Returns true, because only Linux's /proc provides this information.
    pub(crate) fn is_in_group(_: i32, _: i32) -> bool {
        true
    }

    /// No counters, because these need Linux's perf events.
    #[derive(Debug)]
    pub struct Events;

    impl Events {
        /// Returns `None`.
        pub fn count(_: i32) -> Option<Self> {
            None
        }

        /// Returns `None`.
        pub fn read(&mut self) -> Option<(u64, u64)> {
            None
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub use other_systems::{Events, descends, find, usage};
#[cfg(not(target_os = "linux"))]
pub(crate) use other_systems::{is_in_group, is_running, members};

/// Returns the user and system CPU time of this process so far, in seconds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "microseconds of a run")]
pub fn own_cpu_secs() -> f64 {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn own_pid() -> Option<i32> {
        i32::try_from(std::process::id()).ok()
    }

    #[test]
    fn a_tcp_listener_is_found() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp(socket.local_addr().unwrap());
        assert_eq!(find(&address), own_pid());
        drop(socket);
        assert_eq!(find(&address), None);
    }

    #[test]
    fn a_unix_listener_is_found() {
        let path = std::env::temp_dir().join(format!("larder-bench-found-{}", std::process::id()));
        let socket = UnixListener::bind(&path).unwrap();
        assert_eq!(find(&ServerAddress::Unix(path.clone())), own_pid());
        drop(socket);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn memory_is_some() {
        assert!(usage(own_pid().unwrap()).unwrap().rss_bytes > 1 << 20);
    }

    #[test]
    fn written_bytes_only_grow() {
        let written = || usage(own_pid().unwrap()).unwrap().written_bytes;
        let before = written().expect("a process may read its own counters");
        assert!(written() >= Some(before));
    }
}
