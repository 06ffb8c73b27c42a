//! Sessions over an engine, as a target of the judge's.

use larder_model::{Received, Target};
use larder_operations::{Counters, Limits, OpContext};
use larder_protocol::Parser;
use larder_session::{Context, Host, Next, Session, Settings, StatsAnswer};
use larder_store::{Engine, Seconds, SizeClasses, dashmap, delayed, moka, segment};
use std::collections::BTreeMap;
use std::task::Waker;

/// When a target's clock starts; the model's too.
const START: u32 = 1_700_000_000;
/// What memcached keeps for an item, CAS included.
const OVERHEAD: usize = 59;
const LIMIT_BYTES: usize = 256 << 20;
const ITEM_SIZE_MAX: usize = 1 << 20;
const SEED: u64 = 0x5eed;

/// Chunk sizes, for `me`.
fn class_sizes() -> Vec<usize> {
    vec![96, 120, 152, 192, 512, 4096, 1 << 20]
}

fn classes() -> SizeClasses {
    SizeClasses::new(class_sizes(), OVERHEAD)
}

pub(crate) fn dashmap() -> dashmap::Handle {
    let (limit_bytes, classes) = (LIMIT_BYTES, classes());
    dashmap::Cache::new(dashmap::Config { limit_bytes, cas: true, classes, seed: SEED }).handle()
}

pub(crate) fn moka() -> moka::Handle {
    moka::Cache::new(moka::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: SEED,
        policy: moka::Policy::Lru,
    })
    .handle()
}

pub(crate) fn segment() -> segment::Handle {
    segment::Cache::new(segment::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: SEED,
        evict: false,
        item_size_max: ITEM_SIZE_MAX,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
    })
    .unwrap()
    .handle()
}

pub(crate) fn delayed() -> delayed::Handle<segment::Handle> {
    delayed::Handle::new(segment(), delayed::Storage::new(SEED))
}

pub(crate) fn complete_read(engine: &mut delayed::Handle<segment::Handle>) {
    engine.storage().complete(1);
}

struct Server;

impl Host for Server {
    fn version(&self) -> &str {
        "1.6.45"
    }

    fn set_verbosity(&self, _: u32) {}

    fn stats(&self, topic: &[u8], _: &mut dyn FnMut(&str, &str)) -> StatsAnswer {
        if topic == b"reset" { StatsAnswer::Reset } else { StatsAnswer::Unknown }
    }

    fn reserve(&self, _: usize) -> bool {
        true
    }

    fn release(&self, _: usize) {}
}

/// Sessions that share an engine, and a clock that the test sets.
pub(crate) struct Sessions<E: Engine> {
    fresh: fn() -> E,
    /// Ends a read of slower storage that a session waits for.
    complete_read: fn(&mut E),
    engine: E,
    counters: Counters,
    settings: Settings,
    now: u32,
    peers: BTreeMap<usize, Peer<E>>,
}

/// The other end of a session, with what a driver keeps for it.
struct Peer<E: Engine> {
    session: Session<E>,
    unread: Vec<u8>,
    answers: Vec<u8>,
    closed: bool,
}

impl<E: Engine> Peer<E> {
    fn new() -> Self {
        Self { session: Session::new(), unread: vec![], answers: vec![], closed: false }
    }
}

impl<E: Engine> Sessions<E> {
    pub(crate) fn new(fresh: fn() -> E) -> Self {
        Self::waiting(fresh, |_| panic!("this engine has no slower storage"))
    }

    /// Over an engine whose look-ups may be `Pending`.
    pub(crate) fn waiting(fresh: fn() -> E, complete_read: fn(&mut E)) -> Self {
        let classes = classes();
        let counters = Counters::new(classes.count());
        let settings = Settings {
            opening: Parser::default(),
            limits: Limits { item_size_max: ITEM_SIZE_MAX, classes },
            flush_enabled: true,
            requests_per_turn: 20,
            output_max: 64 << 10,
        };
        let (engine, peers) = (fresh(), BTreeMap::new());
        Self { fresh, complete_read, engine, counters, settings, now: START, peers }
    }

    /// Turns until the session wants more bytes.
    fn turns(&mut self, id: usize) {
        let peer = self.peers.entry(id).or_insert_with(Peer::new);
        let mut output = Vec::new();
        while !peer.closed {
            let Self { engine, counters, settings, .. } = self;
            let now = Seconds(self.now);
            let operations = OpContext::new(engine, counters, &settings.limits, now);
            let waker = &|| Waker::noop().clone();
            let mut cx = Context { operations, host: &Server, settings, waker };
            let turn = peer.session.receive(&mut cx, &peer.unread, &mut output);
            peer.unread.drain(..turn.consumed);
            if turn.hold {
                (self.complete_read)(&mut self.engine);
                continue;
            }
            peer.answers.append(&mut output);
            peer.closed = turn.next == Next::Close;
            match turn.next {
                Next::Read { .. } => break,
                Next::Wait => (self.complete_read)(&mut self.engine),
                Next::Yield | Next::Write | Next::Close => (),
            }
        }
    }
}

impl<E: Engine> Target for Sessions<E> {
    fn reset(&mut self) {
        self.peers.clear();
        self.engine = (self.fresh)();
        self.now = START;
    }

    fn send(&mut self, id: usize, bytes: &[u8]) {
        let peer = self.peers.entry(id).or_insert_with(Peer::new);
        peer.unread.extend_from_slice(bytes);
        self.turns(id);
    }

    fn receive(&mut self, id: usize, into: &mut Vec<u8>) -> Received {
        let peer = self.peers.entry(id).or_insert_with(Peer::new);
        if !peer.answers.is_empty() {
            into.append(&mut peer.answers);
            Received::Bytes
        } else if peer.closed {
            Received::Closed
        } else {
            Received::Nothing
        }
    }

    fn end_input(&mut self, id: usize) {
        // A driver closes when the peer sends no more and what was whole is answered.
        self.peers.entry(id).or_insert_with(Peer::new).closed = true;
    }

    fn advance(&mut self, secs: u32) {
        self.now += secs;
        // A driver does this once a second; here no test may see the difference.
        self.engine.begin_batch(Seconds(self.now));
        self.engine.end_batch();
        while self.engine.maintain(Seconds(self.now)) {}
    }
}
