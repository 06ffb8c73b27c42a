//! A connection that sends mixed commands.
//!
//! The connection writes its own keys and checks their values, and reads keys of other connections.
//! All connections share counters (`incr`) and registers (`gets` and `cas`).

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{EPOCH_SHIFT, Tally, Watch, new_epoch, record};
use crate::wire::{Peer, Random, broken};

/// The number of keys that each connection writes. With the value sizes of this file, the keys of
/// 24 connections hold about 200 MB.
const OWN_KEYS: u64 = 4000;
/// The number of counters, which are keys that all connections increment. It is also the number of
/// registers, which all connections change with `cas`.
const SHARED_KEYS: u64 = 16;
/// The maximum number of requests in a pipeline.
const DEPTH_MAX: u64 = 16;
/// A value longer than this, in bytes, ends its pipeline. Otherwise, client and server could block
/// each other: the client waits until the server reads requests, and the server waits until the
/// client reads replies.
const PIPELINED_LEN_MAX: usize = 8 << 10;
/// The maximum time that an item may stay visible after its expiry, because the server's clock
/// counts whole seconds.
const SLACK: Duration = Duration::from_secs(1);

/// Sends requests until the time is over or any connection has a fault.
pub(super) fn run(
    address: &str,
    thread: u64,
    threads: u64,
    epochs: &AtomicU64,
    watch: &Watch,
) -> Tally {
    let mut tally = Tally::default();
    watch.check(|| {
        let mut mixed = Mixed {
            peer: Peer::connect(address)?,
            random: Random(thread),
            thread,
            threads,
            epochs,
            own: vec![OwnKey::default(); usize::try_from(OWN_KEYS).unwrap_or(0)],
            requests: Vec::new(),
            value: Vec::new(),
            scratch: Vec::new(),
            tally: &mut tally,
        };
        while !watch.over() {
            mixed.run_pipeline()?;
        }
        Ok(())
    });
    tally
}

/// The state of a key that only this connection writes.
#[derive(Clone, Copy, Default)]
struct OwnKey {
    written: u64,
    /// The version that a lookup may return; 0 if the key was deleted or found missing.
    seen: u64,
    /// The time from which the key must be missing; `None` if it does not expire.
    expiry: Option<Instant>,
}

impl OwnKey {
    /// Returns whether a request sent at `when` may find the key.
    fn may_be_found(self, when: Instant) -> bool {
        self.seen != 0 && self.expiry.is_none_or(|expiry| when < expiry)
    }
}

/// A request, with the data to check its reply.
enum Request {
    Set { own: u64, version: u64, secs: u64 },
    Add { own: u64, version: u64 },
    Get { own: u64 },
    Delete { own: u64 },
    Touch { own: u64 },
    Foreign { owner: u64 },
    Count { key: u64 },
    ReadRegister { key: u64 },
    ChangeRegister { key: u64, unique: u64, number: u64 },
    Create,
}

struct Mixed<'a> {
    peer: Peer,
    random: Random,
    thread: u64,
    threads: u64,
    epochs: &'a AtomicU64,
    own: Vec<OwnKey>,
    requests: Vec<Request>,
    value: Vec<u8>,
    scratch: Vec<u8>,
    tally: &'a mut Tally,
}

impl Mixed<'_> {
    /// Sends a pipeline of requests and checks the replies.
    fn run_pipeline(&mut self) -> io::Result<()> {
        for _ in 0..=self.random.below(DEPTH_MAX) {
            self.queue_request()?;
        }
        self.check_replies()
    }

    fn queue_request(&mut self) -> io::Result<()> {
        // Choose lower numbers more frequently, so that some keys are hot and others are evicted.
        let own = self.random.below(OWN_KEYS).min(self.random.below(OWN_KEYS));
        let (key, thread) = (self.random.below(SHARED_KEYS), self.thread);
        match self.random.below(100) {
            0..25 => return self.write(own),
            25..50 => self.queue(Request::Get { own }, format_args!("get own:{thread}:{own}")),
            50..65 => self.read_foreign(own),
            65..70 => {
                self.queue(Request::Delete { own }, format_args!("delete own:{thread}:{own}"))
            }
            70..75 => {
                self.queue(Request::Touch { own }, format_args!("touch own:{thread}:{own} 1000"))
            }
            75..90 => self.queue(Request::Count { key }, format_args!("incr count:{key} 1")),
            _ => self.queue(Request::ReadRegister { key }, format_args!("gets register:{key}")),
        }
        Ok(())
    }

    fn queue(&mut self, request: Request, line: std::fmt::Arguments<'_>) {
        self.peer.queue(line);
        self.requests.push(request);
    }

    fn read_foreign(&mut self, own: u64) {
        let thread = self.random.below(self.threads);
        let owner = owner(thread, own);
        self.queue(Request::Foreign { owner }, format_args!("get own:{thread}:{own}"));
    }

    fn write(&mut self, own: u64) -> io::Result<()> {
        let (len, thread) = (self.len(), self.thread);
        if len > PIPELINED_LEN_MAX {
            self.check_replies()?;
        }
        let version = self.own_mut(own).map_or(0, |own| {
            own.written += 1;
            own.written
        });
        let secs = if self.random.below(10) == 0 { 1 + self.random.below(2) } else { 0 };
        let (verb, request) = match self.random.below(8) {
            0 if secs == 0 => ("add", Request::Add { own, version }),
            _ => ("set", Request::Set { own, version, secs }),
        };
        self.queue(request, format_args!("{verb} own:{thread}:{own} 0 {secs} {len}"));
        record::write(&mut self.value, owner(thread, own), version, len);
        self.peer.queue_block(&self.value);
        if len > PIPELINED_LEN_MAX { self.check_replies() } else { Ok(()) }
    }

    /// Returns a random length of a value in bytes: mostly small, about 2 KB on average, sometimes
    /// longer than a segment.
    fn len(&mut self) -> usize {
        let end = match self.random.below(1000) {
            0..700 => 200,
            700..950 => 4_000,
            950..995 => 40_000,
            _ => 300_000,
        };
        record::RECORD_LEN_MIN + usize::try_from(self.random.below(end)).unwrap_or(0)
    }

    /// Sends the queued requests and checks each reply. If a reply requires a further request,
    /// queues that request for the next pipeline.
    fn check_replies(&mut self) -> io::Result<()> {
        let sent = Instant::now();
        self.peer.send()?;
        for request in std::mem::take(&mut self.requests) {
            self.tally.requests += 1;
            match request {
                Request::Set { .. }
                | Request::Add { .. }
                | Request::Delete { .. }
                | Request::Touch { .. } => {
                    self.check_write(&request, sent)?;
                }
                Request::Get { .. } | Request::Foreign { .. } => self.check_read(&request, sent)?,
                Request::Count { key } => self.check_count(key)?,
                Request::ReadRegister { key } => self.check_register(key)?,
                Request::ChangeRegister { key, unique, number } => {
                    self.check_register_change(key, unique, number)?
                }
                Request::Create => {
                    let reply = self.peer.line()?;
                    if !matches!(reply, "STORED" | "NOT_STORED") {
                        return Err(broken(reply.as_bytes()));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_write(&mut self, request: &Request, sent: Instant) -> io::Result<()> {
        let reply = self.peer.line()?.to_owned();
        let index = match request {
            Request::Set { own, .. }
            | Request::Add { own, .. }
            | Request::Delete { own }
            | Request::Touch { own } => *own,
            _ => return Ok(()),
        };
        let thread = self.thread;
        let Some(own) = self.own_mut(index) else { return Ok(()) };
        let live = own.may_be_found(sent);
        match (request, reply.as_str()) {
            (Request::Set { version, secs, .. }, "STORED") => {
                own.seen = *version;
                own.expiry =
                    (*secs > 0).then(|| Instant::now() + Duration::from_secs(*secs) + SLACK);
            }
            (Request::Add { version, .. }, "STORED") => (own.seen, own.expiry) = (*version, None),
            (Request::Delete { .. }, "DELETED") if live => own.seen = 0,
            (Request::Touch { .. }, "TOUCHED") if live => own.expiry = None,
            (Request::Add { .. }, "NOT_STORED") if live => {}
            (Request::Delete { .. } | Request::Touch { .. }, "NOT_FOUND") => own.seen = 0,
            _ => {
                return Err(fault(
                    thread,
                    index,
                    &format!("{reply} (expected to be there: {live})"),
                ));
            }
        }
        Ok(())
    }

    fn check_read(&mut self, request: &Request, sent: Instant) -> io::Result<()> {
        let hit = self.peer.read_get_reply(&mut self.value)?.is_some();
        self.tally.hits += u64::from(hit);
        self.tally.misses += u64::from(!hit);
        match *request {
            Request::Foreign { owner } if hit => {
                self.version(owner)?;
            }
            Request::Get { own: index } => {
                let thread = self.thread;
                let version = if hit { self.version(owner(thread, index))? } else { 0 };
                let Some(own) = self.own_mut(index) else { return Ok(()) };
                if hit && (!own.may_be_found(sent) || own.seen != version) {
                    let OwnKey { written, seen, expiry } = *own;
                    let late = expiry.map(|expiry| sent.saturating_duration_since(expiry));
                    return Err(fault(
                        thread,
                        index,
                        &format!(
                            "version {version} came back, expected {seen}, last written {written}, late by {late:?}"
                        ),
                    ));
                }
                own.seen = version;
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the version of the record in `value`.
    fn version(&mut self, owner: u64) -> io::Result<u64> {
        record::version(&self.value, owner, &mut self.scratch)
            .map_err(|what| fault(owner >> 32, owner & 0xffff_ffff, &what))
    }

    fn check_count(&mut self, key: u64) -> io::Result<()> {
        let reply = self.peer.line()?;
        if reply == "NOT_FOUND" {
            let number = new_epoch(self.epochs);
            let len = number.to_string().len();
            self.queue(Request::Create, format_args!("add count:{key} 0 0 {len}\r\n{number}"));
            return Ok(());
        }
        let number = reply.parse().map_err(|_| broken(reply.as_bytes()))?;
        self.note_number(key, number)
    }

    fn check_register(&mut self, key: u64) -> io::Result<()> {
        let owner = register(key);
        let Some(unique) = self.peer.read_get_reply(&mut self.value)? else {
            let number = new_epoch(self.epochs);
            self.queue_register("add", Request::Create, key, number, None);
            return Ok(());
        };
        let number = self.version(owner)? + 1;
        self.queue_register(
            "cas",
            Request::ChangeRegister { key, unique, number },
            key,
            number,
            Some(unique),
        );
        Ok(())
    }

    fn queue_register(
        &mut self,
        verb: &str,
        request: Request,
        key: u64,
        number: u64,
        unique: Option<u64>,
    ) {
        let len = record::RECORD_LEN_MIN + usize::try_from(number % 100).unwrap_or(0);
        record::write(&mut self.value, register(key), number, len);
        let unique = unique.map_or(String::new(), |unique| format!(" {unique}"));
        self.queue(request, format_args!("{verb} register:{key} 0 0 {len}{unique}"));
        self.peer.queue_block(&self.value);
    }

    fn check_register_change(&mut self, key: u64, unique: u64, number: u64) -> io::Result<()> {
        match self.peer.line()? {
            "STORED" => {
                self.tally.ledger.uniques.push((key, unique));
                self.note_number(SHARED_KEYS + key, number)
            }
            "EXISTS" | "NOT_FOUND" => Ok(()),
            other => Err(broken(other.as_bytes())),
        }
    }

    /// Records a number that the server has acknowledged. If no connection has started the epoch of
    /// the number, the stored value is corrupt, and this function returns an error.
    fn note_number(&mut self, key: u64, number: u64) -> io::Result<()> {
        let epoch = number >> EPOCH_SHIFT;
        if epoch == 0 || epoch >= self.epochs.load(Ordering::Relaxed) {
            return Err(io::Error::other(format!("shared key {key} holds {number}")));
        }
        self.tally.ledger.numbers.push((key, number));
        Ok(())
    }

    fn own_mut(&mut self, own: u64) -> Option<&mut OwnKey> {
        usize::try_from(own).ok().and_then(|own| self.own.get_mut(own))
    }
}

fn owner(thread: u64, own: u64) -> u64 {
    thread << 32 | own
}

fn register(key: u64) -> u64 {
    u64::MAX - key
}

fn fault(thread: u64, own: u64, what: &str) -> io::Error {
    io::Error::other(format!("own:{thread}:{own}: {what}"))
}
