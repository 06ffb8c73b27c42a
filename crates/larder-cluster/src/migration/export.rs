//! The export of slots to another group: sends the items of the slots and their changes to the
//! leader of that group, and releases the slots when that leader requests it.

use crate::error::{LocalError, PeerError, Timeout, Violation};
use crate::group::Group;
use crate::node::Node;
use crate::peers::{HeartbeatSchedule, PeerStream, Stop, is_silence};
use crate::replication::{JournalWaker, ReplicatedCache};
use larder_replica::{Frame, HANDSHAKE_FRAME_LEN_MAX, Migration, Millis, Sender, Step};
use larder_store::cache::Cache;
use larder_store::journal::{Acknowledgements, Notifier};
use larder_support::clock::boot_millis;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The maximum time from the release of the slots to the end of the connection. After this time,
/// the export fails, and this node revokes the release unless the other group has completed the
/// import.
const RELEASED_MAX: Duration = Duration::from_secs(5);
/// The maximum age of a request to release the slots. If the importer has given up by the time of
/// the release, no group serves the slots for [`RELEASED_MAX`].
const RELEASE_REQUEST_AGE_MAX: Millis = 1000;
/// A peer counts as unreachable after this time without received bytes.
const IMPORTER_SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// The length of a pacing round. A change waits for at most 25 rounds, half a second.
const PACE_INTERVAL: Duration = Duration::from_millis(20);
/// Changes are no longer paced after this time without sent bytes.
const PACE_PROGRESS_MAX: Duration = Duration::from_millis(300);
/// The interval at which a waiting export checks whether batches have ended.
const TICK: Duration = Duration::from_millis(1);

/// An export of slots to another group.
pub(crate) struct Export<'n> {
    pub(crate) node: &'n Node,
    pub(crate) cache: &'n ReplicatedCache,
    pub(crate) stop: &'n Stop,
    /// The local group.
    pub(crate) group: &'n Group,
    /// The migration. It must be the next one that the shard map plans.
    pub(crate) planned: Migration,
    /// The epoch in which this node's current leadership started.
    pub(crate) leadership: u32,
}

impl Export<'_> {
    /// Exports the slots to the peer.
    ///
    /// # Errors
    /// The peer is refused, or the export fails. A successful export ends when the peer closes the
    /// connection, and returns an error only if the peer resets the connection during a read.
    pub(crate) fn run(&self, stream: &PeerStream) -> Result<(), PeerError> {
        let Self { group, planned, leadership, .. } = self;
        if group.ready_leadership() != Some(*leadership) {
            return Err(stream.refuse(LocalError::NotLeader));
        }
        if group.topology.next_migration().as_ref() != Some(planned) {
            group.topology.read_soon();
            return Err(stream.refuse(LocalError::NotPlanned));
        }
        if self.cache.journals.flush_pends(self.node.clock.now()) {
            return Err(stream.refuse(LocalError::FlushPending));
        }
        let (has_requested, mut has_released) = (AtomicBool::new(false), false);
        let notifier = self.cache.journals.notifier();
        let pacing = Pacing::new(self.cache.journals.acks());
        let ended = std::thread::scope(|scope| {
            let reader = std::thread::Builder::new().name("acks".to_owned());
            let reader = reader.spawn_scoped(scope, || {
                let ended = read(stream, &has_requested, notifier, &pacing);
                let _ = stream.shutdown(Shutdown::Both);
                ended
            })?;
            let sent = self.send_slots(stream, (&has_requested, &mut has_released), &pacing);
            let _ = stream.shutdown(Shutdown::Both);
            reader.join().unwrap_or(Ok(())).and(sent)
        });
        if has_released {
            group.topology.end_release();
        }
        ended
    }

    fn send_slots(
        &self,
        mut stream: &PeerStream,
        (has_requested, has_released): (&AtomicBool, &mut bool),
        pacing: &Pacing<'_>,
    ) -> Result<(), PeerError> {
        let Self { group, planned, leadership, .. } = self;
        let journals = &self.cache.journals;
        let (engine, slots) = (self.cache.plain.engine(), planned.slots.clone());
        let mut sender = Sender::for_export(engine, Arc::clone(journals), slots);
        let journal_waker = Arc::new(JournalWaker::new(journals.notifier()));
        let waker = Waker::from(Arc::clone(&journal_waker));
        let (mut heartbeats, mut out) = (HeartbeatSchedule::default(), Vec::new());
        let (mut released_at, mut under_way, mut ends, mut is_done) =
            (None, Vec::new(), None, false);
        while !self.stop.is_set() {
            if group.ready_leadership() != Some(*leadership) {
                return Err(LocalError::LeadershipLost.into());
            }
            if let Some(number) = heartbeats.due() {
                Frame::Heartbeat { number, lag_ms: None, sent: boot_millis(), cas_end: 0 }
                    .write(&mut out);
            }
            let step = sender.step(self.node.clock.moment().into(), &waker, &mut out);
            let watermarks = sender.take_watermarks();
            if released_at.is_none() && has_requested.load(Ordering::Acquire) {
                if !group.topology.release(&planned.slots, &planned.to, *leadership) {
                    return Err(LocalError::SlotsReleased.into());
                }
                *has_released = true;
                released_at = Some(Instant::now());
            }
            // When a batch has ended, the journals have all its changes.
            if released_at.is_some()
                && ends.is_none()
                && journals.batches_have_ended(&mut under_way)
            {
                ends = Some(journals.ends());
            }
            if !is_done && ends.as_ref().is_some_and(|ends| sender.has_sent(ends)) {
                // This leader assigns no more CAS values to items of the slots, so the barrier's
                // counter is above all assigned values.
                let cas_end = self.cache.plain.control().next_cas();
                Frame::Barrier { cas_end }.write(&mut out);
                is_done = true;
            }
            match stream.write_all(&out) {
                // The importer closes the connection when it has all items and changes. If it has
                // not replaced the map, `Topology::has_unused_release` detects that.
                Err(_) if is_done => return Ok(()),
                written => written?,
            }
            if !out.is_empty() {
                pacing.note_sent(watermarks.last().map(|watermark| &*watermark.offsets));
            }
            out.clear();
            // Without pacing, clients could change items faster than this node sends the changes.
            // The importer would never catch up.
            let is_behind = sender.lag_bytes() > journals.each() / 4;
            pacing.want(released_at.is_none() && (is_behind || !sender.is_full_syncing()));
            if released_at.is_some_and(|at: Instant| at.elapsed() > RELEASED_MAX) {
                return Err(Timeout::Import.into());
            }
            match step {
                Step::More => (),
                Step::Idle if released_at.is_some() && !is_done => std::thread::sleep(TICK),
                Step::Idle => {
                    let has_more = || sender.has_more() || self.stop.is_set();
                    let is_requested =
                        || released_at.is_none() && has_requested.load(Ordering::Acquire);
                    journals.notifier().wait(heartbeats.left(), || has_more() || is_requested());
                }
                Step::Waiting => {
                    journals.notifier().wait(heartbeats.left(), || journal_waker.take());
                }
            }
        }
        if is_done { Ok(()) } else { Err(LocalError::Stopped.into()) }
    }
}

/// Paces changes during an export. Dropping this value stops the pacing. The sending thread
/// switches pacing on and off. The reading thread ends the rounds, because a write may block the
/// sending thread.
struct Pacing<'a> {
    acks: &'a Acknowledgements,
    state: Mutex<PacingState>,
}

struct PacingState {
    is_wanted: bool,
    /// The number that identifies this exporter while it paces changes; `None` while it does not.
    pacer: Option<u64>,
    /// The time at which bytes were last sent.
    progress: Instant,
}

impl<'a> Pacing<'a> {
    fn new(acks: &'a Acknowledgements) -> Self {
        let state = PacingState { is_wanted: false, pacer: None, progress: Instant::now() };
        Self { acks, state: Mutex::new(state) }
    }

    /// Records that bytes were sent. `offsets` are the journal offsets up to which all changes were
    /// sent, if they are known.
    fn note_sent(&self, offsets: Option<&[u64]>) {
        let mut state = self.lock();
        state.progress = Instant::now();
        if let (Some(pacer), Some(offsets)) = (state.pacer, offsets) {
            self.acks.note_exported(pacer, offsets);
        }
    }

    fn want(&self, is_wanted: bool) {
        let mut state = self.lock();
        state.is_wanted = is_wanted;
        self.switch(&mut state);
    }

    fn end_round(&self) {
        let mut state = self.lock();
        if let Some(pacer) = state.pacer {
            self.acks.end_pacing_round(pacer);
        }
        self.switch(&mut state);
    }

    /// Starts pacing if it is wanted and bytes were sent within [`PACE_PROGRESS_MAX`]. Otherwise
    /// stops pacing.
    fn switch(&self, state: &mut PacingState) {
        let is_on = state.is_wanted && state.progress.elapsed() <= PACE_PROGRESS_MAX;
        match state.pacer {
            None if is_on => state.pacer = Some(self.acks.start_pacing()),
            Some(pacer) if !is_on => {
                self.acks.stop_pacing(pacer);
                state.pacer = None;
            }
            _ => (),
        }
    }

    fn lock(&self) -> MutexGuard<'_, PacingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pacing<'_> {
    fn drop(&mut self) {
        self.want(false);
    }
}

/// Reads frames from the importing leader until the connection ends. Ends the pacing rounds.
fn read(
    mut stream: &PeerStream,
    has_requested: &AtomicBool,
    notifier: &Notifier,
    pacing: &Pacing<'_>,
) -> Result<(), PeerError> {
    stream.set_read_timeout(Some(PACE_INTERVAL))?;
    let (mut input, mut bytes, mut received_at) = (Vec::new(), [0; 4096], Instant::now());
    let mut round_start = received_at;
    loop {
        let read = stream.read(&mut bytes);
        if round_start.elapsed() >= PACE_INTERVAL {
            round_start = Instant::now();
            pacing.end_round();
        }
        let len = match read {
            Ok(0) => return Ok(()),
            Ok(len) => len,
            Err(error) if is_silence(&error) => {
                if received_at.elapsed() > IMPORTER_SILENCE_TIMEOUT {
                    return Err(Timeout::Importer.into());
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        received_at = Instant::now();
        input.extend_from_slice(bytes.get(..len).unwrap_or_default());
        while let Some((frame, len)) = Frame::read(&input, HANDSHAKE_FRAME_LEN_MAX)? {
            match frame {
                Frame::Ack { .. } => (),
                Frame::ReleaseSlots { sent } => {
                    if boot_millis().saturating_sub(sent) > RELEASE_REQUEST_AGE_MAX {
                        return Err(Timeout::ReleaseRequest.into());
                    }
                    has_requested.store(true, Ordering::Release);
                    notifier.notify();
                }
                _ => return Err(Violation::UnexpectedFrame.into()),
            }
            input.drain(..len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::HandshakeLimit;
    use std::net::{TcpListener, TcpStream};

    /// Returns whether the exporter accepts a release request of this age.
    fn accepts(age: Millis) -> Result<bool, PeerError> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut importer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stop = Stop::new().unwrap();
        let limit = HandshakeLimit::new(RELEASED_MAX, &stop);
        let exporter = PeerStream::accept(listener.accept().unwrap().0, None, &limit).unwrap();
        let mut request = Vec::new();
        Frame::ReleaseSlots { sent: boot_millis() - age }.write(&mut request);
        importer.write_all(&request).unwrap();
        importer.shutdown(Shutdown::Write).unwrap();
        let (acks, has_requested) = (Acknowledgements::default(), AtomicBool::new(false));
        read(&exporter, &has_requested, &Notifier::default(), &Pacing::new(&acks))?;
        Ok(has_requested.into_inner())
    }

    #[test]
    fn a_late_request_releases_no_slots() {
        assert!(accepts(0).unwrap());
        let late = accepts(RELEASE_REQUEST_AGE_MAX + 1);
        assert!(matches!(late, Err(PeerError::Timeout(Timeout::ReleaseRequest))));
    }
}
