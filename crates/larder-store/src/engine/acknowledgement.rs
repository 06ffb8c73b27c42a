//! Acknowledgements by replicas.

use std::task::Waker;

/// Whether replicas have acknowledged a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckState {
    /// The required replicas have the change.
    Acknowledged,
    /// The required replicas do not have the change yet.
    Pending,
    /// Nothing can tell any more whether the replicas have the change: no reply may be sent.
    Lost,
}

/// Acknowledgements of changes. The default methods are for engines without replicas.
pub trait Acknowledge {
    /// A position in the history of changes. Replies wait until the replicas have acknowledged all
    /// changes up to it. [`std::convert::Infallible`] for engines without replicas.
    type Position: Send;

    /// The position that replicas have to acknowledge before the replies of this batch are sent:
    /// that of the batch's last change. `None` if no change of the batch needs an acknowledgement.
    fn ack_position(&mut self) -> Option<Self::Position> {
        None
    }

    /// Whether replicas have acknowledged all changes up to `position`. If not, the engine calls
    /// `waker` when the state changes.
    fn ack_state(&mut self, _position: &Self::Position, _waker: &Waker) -> AckState {
        AckState::Acknowledged
    }
}
