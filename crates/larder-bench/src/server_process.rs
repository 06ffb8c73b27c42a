//! The server's process, if it runs on this machine: found by its socket, and what it takes.

use crate::settings::Target;

/// CPU time and memory of a process, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    pub(crate) user_secs: f64,
    pub(crate) system_secs: f64,
    pub(crate) rss_bytes: u64,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{Target, Usage};
    use perf_event::events::Hardware;
    use perf_event::{Builder, Counter};
    use procfs::process::{FDTarget, Process, all_processes};

    /// The process that listens on `target`.
    pub(crate) fn find(target: &Target) -> Option<i32> {
        let inode = listening_inode(target)?;
        let holds = |process: &Process| {
            let mut files = process.fd().ok()?.flatten();
            files.any(|file| file.target == FDTarget::Socket(inode)).then(|| process.pid())
        };
        all_processes().ok()?.flatten().find_map(|process| holds(&process))
    }

    fn listening_inode(target: &Target) -> Option<u64> {
        use procfs::net::{TcpState, tcp, tcp6, unix};
        match target {
            Target::Tcp(address) if address.ip().is_loopback() => {
                let entries = tcp().into_iter().flatten().chain(tcp6().into_iter().flatten());
                let mut listening = entries.filter(|entry| entry.state == TcpState::Listen);
                listening.find(|e| e.local_address.port() == address.port()).map(|e| e.inode)
            }
            // It may be another machine's.
            Target::Tcp(_) => None,
            Target::Unix(path) => {
                let path = path.canonicalize().ok()?;
                // Connections show the path too; the listener came first.
                let listening = |entry: &procfs::net::UnixNetEntry| {
                    entry.path.as_ref().and_then(|p| p.canonicalize().ok()) == Some(path.clone())
                };
                unix().ok()?.into_iter().find(listening).map(|entry| entry.inode)
            }
        }
    }

    /// What it has taken so far.
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process's life")]
    pub(crate) fn usage(pid: i32) -> Option<Usage> {
        let stat = Process::new(pid).and_then(|process| process.stat()).ok()?;
        let ticks = procfs::ticks_per_second() as f64;
        Some(Usage {
            user_secs: stat.utime as f64 / ticks,
            system_secs: stat.stime as f64 / ticks,
            rss_bytes: stat.rss * procfs::page_size(),
        })
    }

    /// Counts what all threads of a process do in user mode.
    #[derive(Debug)]
    pub(crate) struct Events {
        cycles: Vec<Counter>,
        instructions: Vec<Counter>,
    }

    impl Events {
        /// None where the machine does not count, or we may not look.
        pub(crate) fn count(pid: i32) -> Option<Self> {
            let threads: Vec<i32> =
                Process::new(pid).ok()?.tasks().ok()?.flatten().map(|task| task.tid).collect();
            let count = |event: Hardware| -> Option<Vec<Counter>> {
                threads.iter().map(|thread| counter(*thread, event)).collect()
            };
            let (cycles, instructions) =
                (count(Hardware::CPU_CYCLES)?, count(Hardware::INSTRUCTIONS)?);
            Some(Self { cycles, instructions })
        }

        /// Cycles and instructions since.
        pub(crate) fn read(&mut self) -> Option<(u64, u64)> {
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
pub(crate) use linux::{Events, find, usage};

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use super::{Target, Usage};

    /// Only Linux's /proc is read.
    pub(crate) fn find(_: &Target) -> Option<i32> {
        None
    }

    /// Only Linux's /proc is read.
    pub(crate) fn usage(_: i32) -> Option<Usage> {
        None
    }

    /// Only Linux's perf events are counted.
    #[derive(Debug)]
    pub(crate) struct Events;

    impl Events {
        pub(crate) fn count(_: i32) -> Option<Self> {
            None
        }

        pub(crate) fn read(&mut self) -> Option<(u64, u64)> {
            None
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{Events, find, usage};
