//! Connections to other larderds.

mod dial;
mod stop;

pub(crate) use dial::{Dialed, dial, is_silence, receive};
pub(crate) use stop::Stop;
