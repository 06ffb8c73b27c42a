//! Acknowledgements by replicas.

use std::task::Waker;

/// Whether replicas have acknowledged a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckState {
    /// The required replicas have the change.
    Acknowledged,
    /// The required replicas do not have the change yet.
    Pending,
    /// The wait took too long, or this process is no longer the leader. It is unknown whether the
    /// replicas have the change, so the caller must not send the replies.
    Lost,
}

/// Acknowledgements of changes. The default methods are for engines without replicas.
pub trait Acknowledge {
    /// A position in the history of a handle's changes. Replies wait until the replicas have
    /// acknowledged all changes up to the position. Engines without replicas use
    /// [`std::convert::Infallible`].
    type Position: Send;

    /// Returns the position of this batch's last change that needs an acknowledgement, or `None` if
    /// no change needs one. The caller calls this function once for each batch, and sends the
    /// replies of the batch when replicas have acknowledged the position.
    fn ack_position(&mut self) -> Option<Self::Position> {
        None
    }

    /// Returns whether replicas have acknowledged the changes up to `position`. After
    /// [`AckState::Pending`], the engine calls `waker` when the state changes. After another
    /// result, the caller drops the position.
    fn ack_state(&mut self, _position: &Self::Position, _waker: &Waker) -> AckState {
        AckState::Acknowledged
    }
}
