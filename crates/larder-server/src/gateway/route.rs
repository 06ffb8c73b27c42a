//! Forwards the gateway's requests to other cluster nodes.

use larder_gateway::{RemoteRequest, RemoteState};
use larder_session::{ForwardId, ForwardOutcome, Route};
use std::task::Waker;

/// Forwards one request to the leader of a group on another node.
pub(crate) struct GatewayRoute {
    route: Box<dyn Route>,
    /// The ID of the forwarded request; `None` before its first bytes are sent.
    forward_id: Option<ForwardId>,
}

impl GatewayRoute {
    pub(crate) fn new(route: Box<dyn Route>) -> Self {
        Self { route, forward_id: None }
    }
}

impl RemoteRequest for GatewayRoute {
    fn has_room(&mut self, waker: &Waker) -> bool {
        self.route.has_room(waker)
    }

    fn send(&mut self, bytes: &[u8], more: bool, waker: &Waker) {
        if self.forward_id.is_some() {
            self.route.pass_rest(bytes, more, waker);
        } else {
            self.forward_id = Some(self.route.pass(bytes, more, waker));
        }
    }

    fn take(&mut self, into: &mut Vec<u8>) -> RemoteState {
        let Some(forward_id) = self.forward_id else { return RemoteState::Waiting };
        match self.route.take(forward_id, into) {
            ForwardOutcome::Pending => RemoteState::Waiting,
            ForwardOutcome::More => RemoteState::Partial,
            ForwardOutcome::Done | ForwardOutcome::Close => RemoteState::Complete,
            ForwardOutcome::Retry => RemoteState::Retry,
            // The gateway needs the whole reply, so a partial reply is useless.
            ForwardOutcome::ConnectionLost | ForwardOutcome::RetryRest(_) => {
                RemoteState::ConnectionLost
            }
            ForwardOutcome::NoLeader => RemoteState::NoLeader,
        }
    }

    fn request_rest(&mut self) {
        self.route.resume();
    }
}
