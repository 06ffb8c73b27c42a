//! The server's process, if it runs on this machine: finds it by its listening socket and reads its
//! CPU time and memory.

use crate::ServerAddress;

/// CPU time of a process so far, and its resident memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User CPU time in seconds.
    pub user_secs: f64,
    /// System CPU time in seconds.
    pub system_secs: f64,
    /// Resident memory in bytes.
    pub rss_bytes: u64,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{ServerAddress, Usage};
    use perf_event::events::Hardware;
    use perf_event::{Builder, Counter};
    use procfs::process::{FDInfo, FDTarget, Process, all_processes};
    use std::net::IpAddr;

    /// The ID of the process that listens on `address`, if it runs on this machine and its file
    /// descriptors can be read.
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

    /// CPU time and memory of a process; none if it does not exist.
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process's life")]
    pub fn usage(pid: i32) -> Option<Usage> {
        let stat = Process::new(pid).and_then(|process| process.stat()).ok()?;
        let ticks = procfs::ticks_per_second() as f64;
        Some(Usage {
            user_secs: stat.utime as f64 / ticks,
            system_secs: stat.stime as f64 / ticks,
            rss_bytes: stat.rss * procfs::page_size(),
        })
    }

    /// Hardware counters of all threads that a process had when counting began, in user mode.
    #[derive(Debug)]
    pub struct Events {
        cycles: Vec<Counter>,
        instructions: Vec<Counter>,
    }

    impl Events {
        /// Starts counting. None if the machine has no hardware counters or access is denied.
        pub fn count(pid: i32) -> Option<Self> {
            let threads: Vec<i32> =
                Process::new(pid).ok()?.tasks().ok()?.flatten().map(|task| task.tid).collect();
            let count = |event: Hardware| -> Option<Vec<Counter>> {
                threads.iter().map(|thread| counter(*thread, event)).collect()
            };
            let (cycles, instructions) =
                (count(Hardware::CPU_CYCLES)?, count(Hardware::INSTRUCTIONS)?);
            Some(Self { cycles, instructions })
        }

        /// Cycles and instructions since counting began.
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
pub use linux::{Events, find, usage};

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{ServerAddress, Usage};

    /// Finds no process: this needs Linux's /proc.
    pub fn find(_: &ServerAddress) -> Option<i32> {
        None
    }

    /// Reads nothing: this needs Linux's /proc.
    pub fn usage(_: i32) -> Option<Usage> {
        None
    }

    /// Counts nothing: this needs Linux's perf events.
    #[derive(Debug)]
    pub struct Events;

    impl Events {
        /// Starts nothing.
        pub fn count(_: i32) -> Option<Self> {
            None
        }

        /// Reads nothing.
        pub fn read(&mut self) -> Option<(u64, u64)> {
            None
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub use elsewhere::{Events, find, usage};

/// User and system CPU time of this process so far, in seconds.
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
}
