//! The connections whose requests a leader may still execute, and the events after which it can no
//! longer execute them.

use super::link::Link;
use larder_replica::Process;
use std::sync::{Arc, Weak};

/// This many consecutive refused connections prove that a process has ended. A process closes its
/// listening sockets only after its last connection has ended.
const REFUSALS_UNTIL_ENDED: u32 = 2;

/// The connections of one forwarder whose threads may still run, and the last refusals.
#[derive(Default)]
pub(super) struct EarlierLinks {
    links: Vec<(Process, Weak<Link>)>,
    /// The process that refused the last connections, and how many it refused in a row.
    refusals: Option<(Process, u32)>,
}

impl EarlierLinks {
    /// Records a connection that the process has accepted. By then, the process has closed its side
    /// of all earlier connections from this node.
    pub(super) fn note_connected(&mut self, process: &Process, link: &Arc<Link>) {
        self.note_end(process);
        self.refusals = None;
        self.links.retain(|(_, link)| link.strong_count() > 0);
        self.links.push((process.clone(), Arc::downgrade(link)));
    }

    /// Makes the last connection to the process usable again, and returns it. Returns `None` if the
    /// forwarder has made no connection to the process, or if that connection has ended.
    pub(super) fn revive(&self, process: Option<&Process>) -> Option<(Process, Arc<Link>)> {
        let (process, link) = self.links.iter().rev().find(|(of, _)| Some(of) == process)?;
        let link = link.upgrade().filter(|link| link.revive())?;
        Some((process.clone(), link))
    }

    /// Records an attempt to connect that failed for a reason other than a refusal by the port, and
    /// resets the count of refusals.
    pub(super) fn note_failed(&mut self) {
        self.refusals = None;
    }

    /// Records that the port of the process has refused a connection.
    pub(super) fn note_refused(&mut self, process: &Process) {
        let before = self.refusals.take().filter(|(of, _)| of == process);
        let refusals = before.map_or(0, |(_, refusals)| refusals) + 1;
        if refusals >= REFUSALS_UNTIL_ENDED {
            self.note_end(process);
        }
        self.refusals = Some((process.clone(), refusals));
    }

    /// Records that the process executes no more requests from the connections that this forwarder
    /// has made to it so far.
    pub(super) fn note_end(&self, process: &Process) {
        let of_process = self.links.iter().filter(|(of, _)| of == process);
        of_process.filter_map(|(_, link)| link.upgrade()).for_each(|link| link.note_peer_end());
    }
}
