//! The connections whose requests may still be under way at a leader, and the events after which it
//! can't execute them any more.

use super::link::Link;
use larder_replica::Process;
use std::sync::{Arc, Weak};

/// The number of refused connections in a row that prove the end of a process. A process closes its
/// listening socket after its last connection.
const REFUSALS_UNTIL_ENDED: u32 = 2;

/// The connections of one forwarder.
#[derive(Default)]
pub(super) struct EarlierLinks {
    links: Vec<(Process, Weak<Link>)>,
    /// The process that has refused the last connections, and their number.
    refusals: Option<(Process, u32)>,
}

impl EarlierLinks {
    /// Notes a connection that the process has accepted. The process has closed its side of all
    /// earlier ones before.
    pub(super) fn note_connected(&mut self, process: &Process, link: &Arc<Link>) {
        self.note_end(process);
        self.refusals = None;
        self.links.retain(|(_, link)| link.strong_count() > 0);
        self.links.push((process.clone(), Arc::downgrade(link)));
    }

    /// Makes the last connection to the process usable again, and returns it. Returns `None` if there
    /// is none, or it has ended.
    pub(super) fn revive(&self, process: Option<&Process>) -> Option<(Process, Arc<Link>)> {
        let (process, link) = self.links.iter().rev().find(|(of, _)| Some(of) == process)?;
        let link = link.upgrade().filter(|link| link.revive())?;
        Some((process.clone(), link))
    }

    /// Notes an attempt to connect to the process that failed for another reason than a refusal.
    pub(super) fn note_failed(&mut self) {
        self.refusals = None;
    }

    /// Notes that the port of the process has refused a connection.
    pub(super) fn note_refused(&mut self, process: &Process) {
        let before = self.refusals.take().filter(|(of, _)| of == process);
        let refusals = before.map_or(0, |(_, refusals)| refusals) + 1;
        if refusals >= REFUSALS_UNTIL_ENDED {
            self.note_end(process);
        }
        self.refusals = Some((process.clone(), refusals));
    }

    /// Notes that the process executes no more requests of the connections so far.
    pub(super) fn note_end(&self, process: &Process) {
        let of_process = self.links.iter().filter(|(of, _)| of == process);
        of_process.filter_map(|(_, link)| link.upgrade()).for_each(|link| link.note_peer_end());
    }
}
