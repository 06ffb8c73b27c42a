//! All racers read the CAS unique of the same key and send `cas` with it. Exactly one `cas` must
//! succeed, unless the key was evicted.

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Watch;
use crate::wire::{Peer, broken};

/// The shared state of the racing connections. They meet at a barrier between the steps of a round,
/// so relaxed atomics are enough.
pub(super) struct Race<'a> {
    address: &'a str,
    barrier: Barrier,
    is_running: AtomicBool,
    rounds: AtomicU64,
    /// The number of the racer that has won this round, counted from 1. If several racers have won,
    /// this is the sum of their numbers.
    winner_sum: AtomicU64,
    /// The number of racers whose `cas` succeeded in this round.
    winners: AtomicU64,
    /// The number of racers that found no key in this round, because it was evicted.
    absent: AtomicU64,
}

impl<'a> Race<'a> {
    pub(super) fn new(address: &'a str, racers: usize) -> Self {
        Self {
            address,
            barrier: Barrier::new(racers),
            is_running: AtomicBool::new(true),
            rounds: AtomicU64::new(0),
            winner_sum: AtomicU64::new(0),
            winners: AtomicU64::new(0),
            absent: AtomicU64::new(0),
        }
    }

    /// Returns the number of finished rounds with a winner.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Runs rounds until the time is over or a connection has a fault. A racer whose connection has
    /// failed still waits at every barrier, because the other racers would otherwise wait for it
    /// forever.
    pub(super) fn run(&self, racer: usize, watch: &Watch) {
        let leader = racer == 0;
        let mut peer = watch.check(|| Peer::connect(self.address));
        let mut step = |action: &dyn Fn(&mut Peer) -> io::Result<u64>| {
            peer.as_mut().and_then(|peer| watch.check(|| action(peer)))
        };
        loop {
            if leader {
                step(&|peer| self.prepare(peer));
                self.is_running.store(!watch.over(), Ordering::Relaxed);
            }
            self.barrier.wait();
            if !self.is_running.load(Ordering::Relaxed) {
                return;
            }
            let unique = step(&|peer| self.read_unique(peer));
            self.barrier.wait();
            step(&|peer| self.compare_and_swap(peer, racer as u64 + 1, unique.unwrap_or(0)));
            self.barrier.wait();
            if leader {
                step(&|peer| self.check_winner(peer));
            }
        }
    }

    fn prepare(&self, peer: &mut Peer) -> io::Result<u64> {
        for count in [&self.winner_sum, &self.winners, &self.absent] {
            count.store(0, Ordering::Relaxed);
        }
        peer.queue(format_args!("set race 0 0 1\r\n0"));
        peer.send()?;
        peer.expect("STORED")?;
        Ok(0)
    }

    fn read_unique(&self, peer: &mut Peer) -> io::Result<u64> {
        peer.queue(format_args!("gets race"));
        peer.send()?;
        Ok(peer.read_get_reply(&mut Vec::new())?.unwrap_or(0))
    }

    fn compare_and_swap(&self, peer: &mut Peer, number: u64, unique: u64) -> io::Result<u64> {
        peer.queue(format_args!("cas race 0 0 1 {unique}\r\n{number}"));
        peer.send()?;
        match peer.line()? {
            "STORED" => {
                self.winner_sum.fetch_add(number, Ordering::Relaxed);
                self.winners.fetch_add(1, Ordering::Relaxed);
            }
            "NOT_FOUND" => {
                self.absent.fetch_add(1, Ordering::Relaxed);
            }
            "EXISTS" => {}
            other => return Err(broken(other.as_bytes())),
        }
        Ok(0)
    }

    fn check_winner(&self, peer: &mut Peer) -> io::Result<u64> {
        let [winner, winners, absent] = [&self.winner_sum, &self.winners, &self.absent]
            .map(|count| count.load(Ordering::Relaxed));
        if winners > 1 || (winners == 0 && absent == 0) {
            return Err(io::Error::other(format!("a cas race had {winners} winners")));
        }
        let mut value = Vec::new();
        peer.queue(format_args!("get race"));
        peer.send()?;
        if peer.read_get_reply(&mut value)?.is_some() && winners == 1 {
            let kept = String::from_utf8_lossy(&value);
            if kept != winner.to_string() {
                return Err(io::Error::other(format!("racer {winner} won, but {kept} is kept")));
            }
        }
        self.rounds.fetch_add(winners, Ordering::Relaxed);
        Ok(0)
    }
}
