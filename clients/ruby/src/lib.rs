//! The native part of `Larder::Client`: calls with keys and values as bytes. Ruby code
//! (`lib/larder`) handles options, the conversion of keys and values, and the rest of dalli's
//! interface.
//!
//! Ruby calls the methods while the thread holds the global VM lock (GVL). The methods release the
//! GVL while they wait ([`waiter`]).

mod connections;
mod failure;
mod gvl;
mod tls;
mod waiter;

use magnus::{Error, Ruby};

#[magnus::init(name = "native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    tls::define(ruby)?;
    connections::define(ruby)
}
