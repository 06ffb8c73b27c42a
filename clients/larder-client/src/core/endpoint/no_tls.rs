//! Replaces `tls.rs` in builds without the feature `tls`. Its types have no values, so the compiler
//! removes the code that uses them.

use crate::waiter::Readiness;
use std::io::{self, Read, Write};

/// A type without values.
#[derive(Clone, Debug)]
pub(crate) enum Connector {}

/// A type without values.
#[derive(Debug)]
pub(crate) enum Session {}

impl Connector {
    pub(crate) fn session(&self) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(crate) fn handshake(
        &mut self,
        _: &mut (impl Read + Write),
    ) -> io::Result<Option<Readiness>> {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &mut (impl Read + Write), _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &mut (impl Read + Write), _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn is_quiet(&mut self, _: &mut (impl Read + Write)) -> io::Result<bool> {
        match *self {}
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn has_input(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn close(&mut self, _: &mut (impl Read + Write)) {
        match *self {}
    }
}
