//! A peer, a server around, and engines to try.

use larder_operations::{Counters, Limits, OpContext};
use larder_protocol::{Credentials, Parser};
use larder_session::{Context, Host, Next, Progress, Session, Settings, State, StatsAnswer};
use larder_store::{Engine, Seconds, SizeClasses, dashmap, delayed, segment};
use std::cell::Cell;
use std::task::Waker;

/// An engine to try sessions on.
pub(crate) trait Subject: Engine + Sized {
    /// Its look-ups may be `Pending`.
    const WAITS: bool = false;

    /// A handle to a cache of its own.
    fn fresh() -> Self;

    /// Ends a read of slower storage.
    fn complete_read(&mut self) {
        panic!("this engine has no slower storage");
    }
}

pub(crate) const ITEM_SIZE_MAX: usize = 300 << 10;
pub(crate) const CLASS_SIZES: [usize; 5] = [96, 120, 512, 4096, 512 << 10];
pub(crate) const START: u32 = 1_700_000_000;
const LIMIT_BYTES: usize = 64 << 20;
const SEED: u64 = 0x5eed;

pub(crate) fn classes() -> SizeClasses {
    SizeClasses::new(CLASS_SIZES.to_vec(), 59)
}

impl Subject for dashmap::Handle {
    fn fresh() -> Self {
        let (limit_bytes, classes) = (LIMIT_BYTES, classes());
        dashmap::Cache::new(dashmap::Config { limit_bytes, cas: true, classes, seed: SEED })
            .handle()
    }
}

impl Subject for segment::Handle {
    fn fresh() -> Self {
        segment::Cache::new(segment::Config {
            limit_bytes: LIMIT_BYTES,
            cas: true,
            classes: classes(),
            seed: SEED,
            evict: true,
            item_size_max: ITEM_SIZE_MAX,
            threads: 1,
            size_exponent: larder_store::eviction::SIZE_EXPONENT,
        })
        .unwrap()
        .handle()
    }
}

impl<E: Subject> Subject for delayed::Handle<E> {
    const WAITS: bool = true;

    fn fresh() -> Self {
        Self::new(E::fresh(), delayed::Storage::new(SEED))
    }

    fn complete_read(&mut self) {
        self.storage().complete(1);
    }
}

/// Makes a test for each engine of generic functions `fn name<E: Subject>()`.
macro_rules! for_each_engine {
    ($($test:ident)*) => {$(
        mod $test {
            #[test]
            fn dashmap() {
                super::$test::<larder_store::dashmap::Handle>();
            }

            #[test]
            fn segment() {
                super::$test::<larder_store::segment::Handle>();
            }

            #[test]
            fn delayed() {
                use larder_store::{delayed, segment};
                super::$test::<delayed::Handle<segment::Handle>>();
            }
        }
    )*};
}

/// A server with so much memory for connections.
pub(crate) struct Server {
    pub(crate) limit: usize,
    held: Cell<usize>,
}

impl Server {
    /// Bytes that its sessions hold.
    pub(crate) fn held(&self) -> usize {
        self.held.get()
    }
}

impl Host for Server {
    fn version(&self) -> &str {
        "1.6.45"
    }

    fn set_verbosity(&self, _: u32) {}

    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer {
        match topic {
            b"" => {
                stat("pid", "1");
                stat("uptime", "2");
                StatsAnswer::Lines
            }
            b"reset" => StatsAnswer::Reset,
            _ => StatsAnswer::Unknown,
        }
    }

    fn authenticate(&self, credentials: &Credentials<'_>) -> bool {
        let known: [(&[u8], &[u8]); 3] =
            [(b"ann", b"pass word"), (b"bob", b""), (b"", b"nameless")];
        known.contains(&(credentials.user, credentials.password.0))
    }

    fn reserve(&self, bytes: usize) -> bool {
        let fits = self.held.get() + bytes <= self.limit;
        self.held.set(self.held.get() + if fits { bytes } else { 0 });
        fits
    }

    fn release(&self, bytes: usize) {
        self.held.set(self.held.get().checked_sub(bytes).expect("no more than was reserved"));
    }
}

/// A server with one engine; conversations with it are [`Peer`]s.
pub(crate) struct World<E: Engine> {
    pub(crate) engine: E,
    pub(crate) server: Server,
    pub(crate) counters: Counters,
    pub(crate) settings: Settings,
    pub(crate) now: Seconds,
}

impl<E: Subject> World<E> {
    pub(crate) fn new() -> Self {
        let classes = classes();
        let counters = Counters::new(classes.count());
        let settings = Settings {
            opening: Parser::default(),
            limits: Limits { item_size_max: ITEM_SIZE_MAX, classes },
            flush_enabled: true,
            requests_per_turn: 20,
            output_max: 64 << 10,
        };
        let server = Server { limit: 1 << 20, held: Cell::new(0) };
        let now = Seconds(START);
        Self { engine: E::fresh(), server, counters, settings, now }
    }

    /// What a new peer that sends all this gets, all told.
    pub(crate) fn ask(&mut self, input: &[u8]) -> Vec<u8> {
        let mut peer = Peer::new();
        peer.send(self, input);
        assert!(peer.unread.is_empty() || peer.closed, "the last request is not whole");
        peer.received
    }
}

/// The other end of a session, with what a driver keeps for it.
pub(crate) struct Peer<E: Engine> {
    pub(crate) session: Session<E>,
    /// Sent by the peer, not consumed by the session.
    pub(crate) unread: Vec<u8>,
    /// Answered by the session, not taken by the peer.
    pub(crate) unsent: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) closed: bool,
    /// The most that was ever unsent.
    pub(crate) unsent_max: usize,
    /// What it takes at a time.
    pub(crate) takes: usize,
}

impl<E: Subject> Peer<E> {
    pub(crate) fn new() -> Self {
        Self {
            session: Session::new(),
            unread: Vec::new(),
            unsent: Vec::new(),
            received: Vec::new(),
            closed: false,
            unsent_max: 0,
            takes: usize::MAX,
        }
    }

    /// One turn, after which the peer takes nothing. Reads of slower storage that it waits for are
    /// ended at once.
    pub(crate) fn turn(&mut self, world: &mut World<E>) -> Progress {
        loop {
            let World { engine, server: host, counters, settings, now } = world;
            let operations = OpContext::new(engine, counters, &settings.limits, *now);
            let mut cx = Context { operations, host, settings, waker: &|| Waker::noop().clone() };
            let turn = self.session.receive(&mut cx, &self.unread, &mut self.unsent);
            self.unread.drain(..turn.consumed);
            self.unsent_max = self.unsent_max.max(self.unsent.len());
            let is_for_nothing = E::WAITS && turn.next == Next::Yield && turn.consumed == 0;
            if turn.hold || turn.next == Next::Wait {
                world.engine.complete_read();
            } else if !is_for_nothing || self.session.state() != State::Waiting {
                return turn;
            }
        }
    }

    /// Sends `input`, and reads answers until the session wants more.
    pub(crate) fn send(&mut self, world: &mut World<E>, input: &[u8]) {
        self.unread.extend_from_slice(input);
        while !self.closed {
            let (unsent, unread) = (self.unsent.len(), self.unread.len());
            let turn = self.turn(world);
            self.closed = turn.next == Next::Close;
            let moved = self.unsent.len() > unsent || self.unread.len() < unread;
            let taken = self.unsent.len().min(self.takes);
            self.received.extend(self.unsent.drain(..taken));
            match turn.next {
                Next::Read { wanted } => {
                    assert!(wanted > 0);
                    break;
                }
                // A dump may come to places where there is nothing to show.
                Next::Yield if self.session.state() == State::Dumping => (),
                // What was to be fetched is there by now.
                Next::Yield if E::WAITS => (),
                Next::Yield | Next::Write => assert!(moved || taken > 0, "a turn for nothing"),
                Next::Wait => unreachable!("a turn waits"),
                Next::Close => (),
            }
        }
        self.received.append(&mut self.unsent);
    }
}

/// A classic `set` of a value.
pub(crate) fn set(key: &str, value: &[u8]) -> Vec<u8> {
    store(&format!("set {key} 0 0 {}", value.len()), value)
}

/// A line, and a value behind it.
pub(crate) fn store(line: &str, value: &[u8]) -> Vec<u8> {
    [line.as_bytes(), b"\r\n", value, b"\r\n"].concat()
}

/// Bytes that are different at every place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0_u32..).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).take(len).collect()
}

/// Bytes as a person reads them.
pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
