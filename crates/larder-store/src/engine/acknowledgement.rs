//! Acknowledgements by replicas, which answers wait for.

use std::task::Waker;

/// Whether others have a change that answers depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckState {
    /// They have it.
    Acknowledged,
    /// They don't have it yet.
    Pending,
    /// Nobody knows whether they have it, and nobody will: no answer may be sent.
    Lost,
}

/// Acknowledgements of changes. The defaults are for engines whose changes nobody acknowledges.
pub trait Acknowledge {
    /// A point in the history of changes up to which others have to acknowledge them before the
    /// answers are sent. [`std::convert::Infallible`] where nothing is acknowledged.
    type Position: Send;

    /// The position that has to be acknowledged before answers of this batch are sent: that of the
    /// last change of the batch. `None` if nothing was changed that others have to know of.
    fn ack_position(&mut self) -> Option<Self::Position> {
        None
    }

    /// Whether everything up to `position` is acknowledged. If not, `waker` is called once something has become of
    /// it.
    fn ack_state(&mut self, _position: &Self::Position, _waker: &Waker) -> AckState {
        AckState::Acknowledged
    }
}
