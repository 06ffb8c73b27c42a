//! Measures the server process's CPU time and memory, and the server's flash activity.

use crate::outcome::{FlashUse, ServerCost};
use crate::settings::{NamedServer, Settings};
use larder_target::process::{self, Events, Usage};
use larder_target::{FlashStats, Protocol, ServerAddress};

/// Measures the server process's CPU time and memory during a run, and the server's flash activity.
#[derive(Debug)]
pub(super) struct ServerMonitor {
    address: ServerAddress,
    flash: Option<FlashStats>,
    process: Option<ProcessMonitor>,
}

impl ServerMonitor {
    pub(super) fn begin(settings: &Settings, server: &NamedServer, pid: Option<i32>) -> Self {
        let address = server.address.clone();
        // The query for the flash tier's statistics supports neither TLS nor logins.
        let is_plain = settings.tls.is_none() && settings.login.is_none();
        let has_stats = settings.protocol != Protocol::Resp;
        let flash = (is_plain && has_stats).then(|| FlashStats::of(&address)).flatten();
        let pid = pid.or_else(|| process::find(&address));
        Self { address, flash, process: pid.and_then(ProcessMonitor::begin) }
    }

    pub(super) fn end(self, requests: u64) -> (Option<ServerCost>, Option<FlashUse>) {
        let cost = self.process.and_then(|process| process.end(requests));
        let flash = self
            .flash
            .and_then(|before| Some(FlashUse::between(&before, &FlashStats::of(&self.address)?)));
        (cost, flash)
    }
}

/// Measures the CPU time and memory of the server's process.
#[derive(Debug)]
struct ProcessMonitor {
    pid: i32,
    before: Usage,
    events: Option<Events>,
}

impl ProcessMonitor {
    pub(super) fn begin(pid: i32) -> Option<Self> {
        let before = process::usage(pid)?;
        Some(Self { pid, before, events: Events::count(pid) })
    }

    #[expect(clippy::cast_precision_loss, reason = "figures by request need no last digit")]
    pub(super) fn end(self, requests: u64) -> Option<ServerCost> {
        let after = process::usage(self.pid)?;
        let events = self.events.and_then(|mut events| events.read());
        let each = |count: f64| count / requests.max(1) as f64;
        Some(ServerCost {
            pid: self.pid,
            user_micros: each((after.user_secs - self.before.user_secs) * 1e6),
            system_micros: each((after.system_secs - self.before.system_secs) * 1e6),
            rss_before: self.before.rss_bytes,
            rss_after: after.rss_bytes,
            written_bytes: after
                .written_bytes
                .zip(self.before.written_bytes)
                .map(|(after, before)| after.saturating_sub(before)),
            cycles: events.map(|(cycles, _)| each(cycles as f64)),
            instructions: events.map(|(_, instructions)| each(instructions as f64)),
        })
    }
}
