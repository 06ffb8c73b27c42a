//! A client connection to the model. It converts request bytes to reply bytes.

use crate::model::{Model, Settings};
use crate::run::{Received, Target};
use larder_protocol::{Parsed, Parser, Recovery, Request};
use std::collections::BTreeMap;

/// A client connection to a [`Model`].
#[derive(Clone, Debug, Default)]
pub struct ModelConnection {
    parser: Parser,
    input: Vec<u8>,
    waiting: Waiting,
    closed: bool,
}

/// Input that the connection must skip before the next request.
#[derive(Clone, Debug, Default)]
enum Waiting {
    #[default]
    Nothing,
    /// The connection skips this number of bytes and then sends this reply.
    Swallow(usize, Vec<u8>),
    /// The connection skips input up to the end of a line.
    SwallowLine,
}

impl ModelConnection {
    /// Processes bytes from the client at the Unix time `now`, in seconds. Returns the replies.
    pub fn receive(&mut self, model: &mut Model, now: u32, bytes: &[u8]) -> Vec<u8> {
        self.input.extend(bytes);
        let mut out = Vec::new();
        while !self.closed && self.step(model, now, &mut out) {}
        out
    }

    /// Returns whether the model has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Processes the next request or skips input. Returns false if more input is needed.
    fn step(&mut self, model: &mut Model, now: u32, out: &mut Vec<u8>) -> bool {
        match std::mem::take(&mut self.waiting) {
            Waiting::Nothing => self.answer(model, now, out),
            Waiting::Swallow(len, answer) if self.input.len() >= len => {
                self.input.drain(..len);
                out.extend(answer);
                true
            }
            Waiting::SwallowLine if self.input.contains(&b'\n') => {
                let end = self.input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
                self.input.drain(..=end);
                true
            }
            waiting => {
                self.waiting = waiting;
                false
            }
        }
    }

    fn answer(&mut self, model: &mut Model, now: u32, out: &mut Vec<u8>) -> bool {
        let before = self.parser;
        let Parsed::Request { request, consumed } = self.parser.parse(&self.input) else {
            // When more input has arrived, an incomplete request is parsed again from its start.
            self.parser = before;
            return false;
        };
        let answer = model.answer(now, &request);
        match request {
            Request::Quit(_) => self.closed = true,
            Request::Fault(fault) => match fault.then {
                Recovery::Continue => (),
                Recovery::Swallow(len) => {
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    self.waiting = Waiting::Swallow(len, answer);
                    self.input.drain(..consumed);
                    return true;
                }
                Recovery::SwallowLine => self.waiting = Waiting::SwallowLine,
                Recovery::Close => self.closed = true,
            },
            _ => (),
        }
        self.input.drain(..consumed);
        out.extend(answer);
        true
    }
}

/// A target of transcripts: a model with a simulated clock.
#[derive(Debug)]
pub struct ModelTarget {
    settings: Settings,
    model: Model,
    now: u32,
    peers: BTreeMap<usize, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    connection: ModelConnection,
    arrived: Vec<u8>,
    input_ended: bool,
}

impl ModelTarget {
    /// Returns an empty cache. Its clock starts at a fixed time.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let model = Model::new(settings.clone());
        Self { settings, model, now: 1_700_000_000, peers: BTreeMap::new() }
    }
}

impl Target for ModelTarget {
    fn reset(&mut self) {
        self.model = Model::new(self.settings.clone());
        self.peers.clear();
    }

    fn send(&mut self, peer: usize, bytes: &[u8]) {
        let peer = self.peers.entry(peer).or_default();
        let answer = peer.connection.receive(&mut self.model, self.now, bytes);
        peer.arrived.extend(answer);
    }

    fn receive(&mut self, peer: usize, into: &mut Vec<u8>) -> Received {
        let peer = self.peers.entry(peer).or_default();
        if !peer.arrived.is_empty() {
            into.append(&mut peer.arrived);
            Received::Bytes
        } else if peer.connection.is_closed() || peer.input_ended {
            Received::Closed
        } else {
            Received::Nothing
        }
    }

    fn end_input(&mut self, peer: usize) {
        self.peers.entry(peer).or_default().input_ended = true;
    }

    fn advance(&mut self, secs: u32) {
        self.now += secs;
    }
}
