//! Connections to one server that threads share. One write carries the requests of several callers.
//!
//! Connections have no threads of their own. One waiting caller at a time has the read permit: it
//! reads from the connection, and delivers the replies to all callers. Once it has its own reply,
//! it passes the permit on:
//!
//! ```text
//!   start() ──▶ queue ─▶ sent by any caller, or by the reader before its next read
//!   finish() ─▶ the permit is free: take it and read until the own reply has come ─▶ pass it to a waiting caller
//!           └─▶ another thread reads: wait for the reply, or for the permit
//! ```

mod attempt;
mod connection;
mod slot;
mod state;
mod ticket;

use crate::blocking::stream::NewConnection;
use crate::blocking::wait::Wait;
use crate::core::operation::Operation;
use crate::core::shared::{CALLS_BUSY, CallGuard, LostCall};
use crate::error::{Error, ErrorKind};
use crate::metrics::CloseReason;
use connection::{PendingCall, SharedConnection};
use slot::Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The shared connections to a server.
#[derive(Debug)]
pub(crate) struct Shared {
    slots: Box<[Slot]>,
    is_closed: AtomicBool,
    wait: Wait,
}

/// A call whose request is sent or queued.
#[derive(Debug)]
pub(crate) struct Call<'s> {
    slot: &'s Slot,
    attempt: Attempt,
    _counted: CallGuard<'s>,
}

#[derive(Debug)]
struct Attempt {
    connection: Arc<SharedConnection>,
    pending: Result<PendingCall, LostCall>,
    /// Whether a reply had arrived on the connection before the attempt.
    was_used: bool,
}

impl Shared {
    pub(crate) fn new(connections: usize, wait: Wait) -> Self {
        let slots = (0..connections.max(1)).map(|_| Slot::default()).collect();
        Self { slots, is_closed: AtomicBool::new(false), wait }
    }

    /// Starts an operation over one of the connections. `open` opens the connection if necessary.
    /// Sends as many bytes as the socket accepts without waiting, or leaves the request in the
    /// queue, so that one write can send it together with later requests.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) fn start<O: Operation>(
        &self,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<NewConnection, Error>,
    ) -> Result<Call<'_>, Error> {
        let slot = self.slot();
        let counted = CallGuard::new(&slot.calls);
        let attempt = self.start_at(slot, operation, deadline, open)?;
        Ok(Call { slot, attempt, _counted: counted })
    }

    /// Finishes a started operation.
    ///
    /// # Errors
    /// The operation failed, or its deadline has passed.
    pub(crate) fn finish<O: Operation>(
        &self,
        call: Call<'_>,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<NewConnection, Error>,
    ) -> Result<O::Output, Error> {
        let Call { slot, mut attempt, _counted } = call;
        let mut is_repeated = false;
        loop {
            let Attempt { connection, pending, was_used } = attempt;
            let broken = match connection.finish(pending, operation, deadline) {
                Ok(output) => return Ok(output),
                Err(broken) => broken,
            };
            if !broken.is_usable {
                slot.close(&connection, CloseReason::of(broken.error.kind()));
            }
            // Repeats the call once if a connection that worked before was lost without a reply.
            // The second attempt opens a new connection, which shows whether the server still
            // works.
            if is_repeated || !(was_used && broken.was_stale) {
                return Err(broken.error);
            }
            is_repeated = true;
            attempt = self.start_at(slot, operation, deadline, &open)?;
        }
    }

    /// Starts an operation over the connection of a slot, and opens the connection if necessary.
    fn start_at<O: Operation>(
        &self,
        slot: &Slot,
        operation: &mut O,
        deadline: Instant,
        open: impl Fn() -> Result<NewConnection, Error>,
    ) -> Result<Attempt, Error> {
        loop {
            let connection = self.connection(slot, deadline, &open)?;
            let was_used = connection.has_answered.load(Ordering::Relaxed);
            match connection.start(operation) {
                // Another call has closed the connection since this call selected it, for example
                // because no caller waited for its replies. This call selects a connection again.
                Err(lost) if lost.is_echo && Instant::now() < deadline => (),
                pending => return Ok(Attempt { connection, pending, was_used }),
            }
        }
    }

    fn connection(
        &self,
        slot: &Slot,
        deadline: Instant,
        open: impl Fn() -> Result<NewConnection, Error>,
    ) -> Result<Arc<SharedConnection>, Error> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::definite(ErrorKind::ClientClosed));
        }
        let connection = slot.connection(deadline, open, &self.wait)?;
        if self.is_closed.load(Ordering::Relaxed) {
            // The client was closed while the connection was being opened. This call may still use
            // the connection, which is closed when the last caller drops it.
            slot.close(&connection, CloseReason::ClientClosed);
        }
        Ok(connection)
    }

    /// Returns the slot with the fewest calls. A slot without calls and without a connection counts
    /// as a slot with [`CALLS_BUSY`] calls, so a call opens another connection only if no open
    /// connection has fewer calls.
    fn slot(&self) -> &Slot {
        let load = |slot: &&Slot| {
            let calls = slot.calls.load(Ordering::Relaxed);
            // A slot with calls has a connection or is opening one, so only a slot without calls
            // needs the check.
            if calls > 0 || slot.lock().connection.is_some() { calls } else { CALLS_BUSY }
        };
        match &*self.slots {
            [one] => one,
            slots => slots.iter().min_by_key(load).expect("there is at least one slot"),
        }
    }

    /// Makes later calls fail, and closes each connection once no call uses it.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| drop(slot.lock().connection.take()));
    }

    /// Returns the numbers of open connections, open connections without calls, and waiting calls.
    /// The last number is always 0: calls wait for a connection only in a pool.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let is_open = |slot: &&Slot| {
            slot.lock().connection.as_ref().is_some_and(|connection| connection.is_open())
        };
        let open = || self.slots.iter().filter(is_open);
        let idle = open().filter(|slot| slot.calls.load(Ordering::Relaxed) == 0).count();
        (open().count(), idle, 0)
    }
}
