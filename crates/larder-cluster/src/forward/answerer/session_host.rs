//! The interface through which the answerer runs sessions on the server.

use larder_operations::OpContext;
use larder_session::{Context, Host, Progress, Session, Settings};
use larder_store::erased;
use std::task::Waker;

/// Runs sessions for requests that other nodes forward. The trait hides the type of the server,
/// which is the [`Host`] of the sessions.
pub trait SessionHost: Send + Sync {
    /// Answers the complete requests of `input`, as [`Session::receive`] does.
    fn receive(
        &self,
        session: &mut Session<erased::Handle>,
        operations: OpContext<'_, erased::Handle>,
        settings: &Settings,
        waker: &dyn Fn() -> Waker,
        buffers: (&[u8], &mut Vec<u8>),
    ) -> Progress;

    /// Ends a session.
    fn close(&self, session: &mut Session<erased::Handle>);

    /// Makes the cache report its changes to the tracker.
    fn start_tracking(&self);

    /// Shuts the server down at once.
    fn shut_down(&self);
}

impl<H: Host + Send + Sync> SessionHost for H {
    fn receive(
        &self,
        session: &mut Session<erased::Handle>,
        operations: OpContext<'_, erased::Handle>,
        settings: &Settings,
        waker: &dyn Fn() -> Waker,
        (input, output): (&[u8], &mut Vec<u8>),
    ) -> Progress {
        session.receive(&mut Context { operations, host: self, settings, waker }, input, output)
    }

    fn close(&self, session: &mut Session<erased::Handle>) {
        session.close(self);
    }

    fn start_tracking(&self) {
        Host::start_tracking(self);
    }

    fn shut_down(&self) {
        Host::shut_down(self, false);
    }
}
