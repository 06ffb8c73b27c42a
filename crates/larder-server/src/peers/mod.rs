//! Connections to other larderds.

mod credentials;
mod dial;
mod greeting;
mod stop;
mod stream;

pub use credentials::Credentials;
pub(crate) use dial::{Dialed, Target, dial};
pub(crate) use greeting::{GreetingLimit, greeting_frame, is_silence};
pub(crate) use stop::Stop;
pub(crate) use stream::PeerStream;
