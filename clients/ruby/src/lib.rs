//! What `Larder::Client` calls: requests and answers as bytes. Options, keys, values and everything else that dalli's
//! users know is written in Ruby (`lib/larder`).
//!
//! All functions are called with Ruby's global VM lock (GVL); threads release it while they wait ([`waiter`]).

mod connections;
mod failure;
mod gvl;
mod waiter;

use magnus::{Error, Ruby};

#[magnus::init(name = "native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    connections::define(ruby)
}
