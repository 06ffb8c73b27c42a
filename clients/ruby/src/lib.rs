//! The native part of `Larder::Client`: requests and replies as bytes. Options, keys, values and
//! the rest of dalli's interface are in Ruby (`lib/larder`).
//!
//! Ruby calls the methods while the thread holds the global VM lock (GVL). Methods release the lock
//! while they wait ([`waiter`]).

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
