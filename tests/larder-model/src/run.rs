//! Replays a case of a transcript against a target.

use crate::piece::{Form, Piece};
use crate::transcript::{Action, Case};
use std::collections::BTreeMap;

/// An implementation under test: the model, a session, or a server.
pub trait Target {
    /// Empties the cache and closes the connections of all peers.
    fn reset(&mut self);
    /// Sends bytes from a peer. If the peer is not connected, connects it first.
    fn send(&mut self, peer: usize, bytes: &[u8]);
    /// Appends the bytes that have arrived for a peer to `into`. If the target is a server, waits
    /// for the bytes.
    fn receive(&mut self, peer: usize, into: &mut Vec<u8>) -> Received;
    /// Closes the sending direction of a peer. The target must close the connection after the last
    /// reply.
    fn end_input(&mut self, peer: usize);
    /// Advances the clock.
    fn advance(&mut self, secs: u32);
}

/// The result of [`Target::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes were appended.
    Bytes,
    /// Nothing has arrived, and nothing more will arrive.
    Nothing,
    /// The target has closed the connection.
    Closed,
}

/// Replays `case`. Sends consecutive requests together.
///
/// # Errors
/// The first difference: file and line, and the expected and the received bytes.
pub fn run(case: &Case, target: &mut impl Target) -> Result<(), String> {
    play(case, target, usize::MAX)
}

/// Replays `case`, with each byte sent separately.
///
/// # Errors
/// See [`run`].
pub fn run_bytewise(case: &Case, target: &mut impl Target) -> Result<(), String> {
    play(case, target, 1)
}

fn play(case: &Case, target: &mut impl Target, cut: usize) -> Result<(), String> {
    target.reset();
    let mut harness = Harness { target, cut, peers: BTreeMap::new(), numbers: BTreeMap::new() };
    for step in &case.steps {
        let line = step.line;
        harness.step(&step.action).map_err(|why| format!("{}, line {line}: {why}", case.place))?;
    }
    harness.finish().map_err(|why| format!("{}, at its end: {why}", case.place))
}

struct Harness<'t, T> {
    target: &'t mut T,
    /// Maximum number of bytes per call to [`Target::send`].
    cut: usize,
    peers: BTreeMap<usize, Peer>,
    /// The received CAS values by name.
    numbers: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Peer {
    /// Bytes of consecutive lines, to send together.
    unsent: Vec<u8>,
    /// Received bytes that the current step has already compared.
    read: Vec<u8>,
    /// Received bytes that no step has compared yet.
    unread: Vec<u8>,
    closed: bool,
}

impl<T: Target> Harness<'_, T> {
    fn step(&mut self, action: &Action) -> Result<(), String> {
        if !matches!(action, Action::Send(..)) {
            self.send_unsent();
        }
        match action {
            Action::Send(peer, pieces) => {
                let bytes = self.fill_in(pieces)?;
                self.peer(*peer).unsent.extend(bytes);
                Ok(())
            }
            Action::Expect(peer, pieces) => {
                self.peer(*peer).read.clear();
                self.expect(*peer, pieces).map_err(|why| {
                    let (expected, Peer { read, unread, .. }) =
                        (show_pieces(pieces), self.peer(*peer));
                    let got = show(&[read.as_slice(), unread].concat());
                    format!("{why}\n  expected {expected}\n  got      {got}")
                })
            }
            Action::Closed(peer) => self.closed(*peer),
            Action::Advance(secs) => {
                self.target.advance(*secs);
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        self.send_unsent();
        for id in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.peer(id).closed {
                self.target.end_input(id);
                self.closed(id)?;
            }
        }
        Ok(())
    }

    fn peer(&mut self, id: usize) -> &mut Peer {
        self.peers.entry(id).or_default()
    }

    fn send_unsent(&mut self) {
        for (id, peer) in &mut self.peers {
            for piece in std::mem::take(&mut peer.unsent).chunks(self.cut) {
                self.target.send(*id, piece);
            }
        }
    }

    fn fill_in(&self, pieces: &[Piece]) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => out.extend(bytes),
                Piece::Cas { name, offset, form } => {
                    let cas = self
                        .numbers
                        .get(name)
                        .ok_or_else(|| format!("CAS {name} is sent before it was received"))?;
                    let cas = cas.wrapping_add_signed(*offset);
                    match form {
                        Form::Decimal => out.extend(cas.to_string().bytes()),
                        Form::Binary => out.extend(cas.to_be_bytes()),
                    }
                }
                Piece::Number => return Err("{number} can only be expected, not sent".to_owned()),
            }
        }
        Ok(out)
    }

    fn expect(&mut self, peer: usize, pieces: &[Piece]) -> Result<(), String> {
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.expect_bytes(peer, bytes)?,
                Piece::Number => drop(self.decimal(peer)?),
                Piece::Cas { name, form, .. } => {
                    let cas = match form {
                        Form::Decimal => self.decimal(peer)?,
                        Form::Binary => {
                            let bytes = self.take(peer, 8)?;
                            bytes.iter().fold(0, |cas, byte| cas << 8 | u64::from(*byte))
                        }
                    };
                    self.bind(name, cas)?;
                }
            }
        }
        Ok(())
    }

    fn bind(&mut self, name: &str, cas: u64) -> Result<(), String> {
        let known = self.numbers.iter().find(|(other, number)| *other == name || **number == cas);
        match known {
            Some((other, number)) if other != name || *number != cas => {
                Err(format!("CAS {name} is {cas}, and CAS {other} is {number}"))
            }
            Some(_) => Ok(()),
            None => {
                self.numbers.insert(name.to_owned(), cas);
                Ok(())
            }
        }
    }

    fn expect_bytes(&mut self, peer: usize, bytes: &[u8]) -> Result<(), String> {
        let got = self.take(peer, bytes.len())?;
        if got == bytes { Ok(()) } else { Err("the answer differs".to_owned()) }
    }

    fn take(&mut self, peer: usize, len: usize) -> Result<Vec<u8>, String> {
        while self.peer(peer).unread.len() < len {
            self.more(peer)?;
        }
        let Peer { read, unread, .. } = self.peer(peer);
        read.extend_from_slice(&unread[..len]);
        Ok(unread.drain(..len).collect())
    }

    fn decimal(&mut self, peer: usize) -> Result<u64, String> {
        loop {
            let Peer { read, unread, .. } = self.peer(peer);
            if let Some(end) = unread.iter().position(|byte| !byte.is_ascii_digit()) {
                let digits: Vec<u8> = unread.drain(..end).collect();
                read.extend_from_slice(&digits);
                let number = String::from_utf8(digits).ok().and_then(|text| text.parse().ok());
                return number.ok_or_else(|| "the answer has no number here".to_owned());
            }
            self.more(peer)?;
        }
    }

    fn more(&mut self, id: usize) -> Result<(), String> {
        let peer = self.peers.entry(id).or_default();
        let received =
            if peer.closed { Received::Closed } else { self.target.receive(id, &mut peer.unread) };
        match received {
            Received::Bytes => Ok(()),
            Received::Nothing => Err("there is no further answer".to_owned()),
            Received::Closed => {
                peer.closed = true;
                Err("the connection was closed".to_owned())
            }
        }
    }

    fn closed(&mut self, peer: usize) -> Result<(), String> {
        while self.more(peer).is_ok() {}
        let Peer { unread, closed, .. } = self.peer(peer);
        if !unread.is_empty() {
            return Err(format!("unexpected bytes before the end: {}", show(unread)));
        }
        if *closed { Ok(()) } else { Err("the connection is still open".to_owned()) }
    }
}

fn show_pieces(pieces: &[Piece]) -> String {
    let show_piece = |piece: &Piece| match piece {
        Piece::Bytes(bytes) => show(bytes),
        Piece::Cas { name, .. } => format!("{{cas:{name}}}"),
        Piece::Number => "{number}".to_owned(),
    };
    pieces.iter().map(show_piece).collect()
}

fn show(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(400)];
    let more = if shown.len() < bytes.len() { " ..." } else { "" };
    format!("{}{more}", shown.escape_ascii())
}
