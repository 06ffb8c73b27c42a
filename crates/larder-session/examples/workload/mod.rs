//! A conversation without a socket, over a segment engine of 100,000 items: keys of 20 bytes, values of
//! 100. What `instructions` and the benches of this crate have in common.

use larder_operations::{Counters, Limits, OpContext};
use larder_protocol::Parser;
use larder_session::{Context, Host, Session, Settings, StatsAnswer};
use larder_store::{Seconds, SizeClasses, segment};
use std::io::Write;
use std::task::Waker;

/// Items that are there, numbered from 0.
const ITEMS: u64 = 100_000;
/// Requests in a turn.
pub(crate) const BATCH: u64 = 16;
const VALUE: [u8; 100] = [b'v'; 100];

struct Server;

impl Host for Server {
    fn version(&self) -> &str {
        "1"
    }

    fn set_verbosity(&self, _: u32) {}

    fn stats(&self, _: &[u8], _: &mut dyn FnMut(&str, &str)) -> StatsAnswer {
        StatsAnswer::Unknown
    }

    fn reserve(&self, _: usize) -> bool {
        true
    }

    fn release(&self, _: usize) {}
}

fn engine(classes: SizeClasses) -> segment::Handle {
    segment::Cache::new(segment::Config {
        limit_bytes: 256 << 20,
        cas: true,
        classes,
        seed: 0x5eed,
        evict: true,
        item_size_max: 1 << 20,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
    })
    .expect("256 MiB")
    .handle()
}

/// A request for the item of this number.
fn write_request(kind: &str, number: u64, out: &mut Vec<u8>) {
    let written = match kind {
        "get" => write!(out, "get key:{number:016}\r\n"),
        "mg" => write!(out, "mg key:{number:016} v f t\r\n"),
        "set" => write!(out, "set key:{number:016} 0 0 100\r\n"),
        "ms" => write!(out, "ms key:{number:016} 100\r\n"),
        "binary-get" => {
            out.extend_from_slice(&[0x80, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 20]);
            out.extend_from_slice(&[0; 12]);
            write!(out, "key:{number:016}")
        }
        "nothing" => Ok(()),
        _ => panic!("get, mg, set, ms, binary-get or nothing"),
    };
    written.expect("memory takes it");
    if kind == "set" || kind == "ms" {
        out.extend_from_slice(&VALUE);
        out.extend_from_slice(b"\r\n");
    }
}

/// Batches of requests of a kind, each for another item.
pub(crate) fn batches(kind: &str) -> Vec<Vec<u8>> {
    let write_batch = |batch| {
        let mut input = Vec::new();
        (0..BATCH).for_each(|i| {
            write_request(kind, (batch * BATCH + i) * 7919 % ITEMS, &mut input);
        });
        input
    };
    (0..256).map(write_batch).collect()
}

/// A session and all that it needs.
pub(crate) struct Conversation {
    session: Session<segment::Handle>,
    engine: segment::Handle,
    counters: Counters,
    settings: Settings,
    output: Vec<u8>,
}

impl Conversation {
    /// One that begins, with all items stored.
    pub(crate) fn begin() -> Self {
        let classes = SizeClasses::new(vec![96, 120, 152, 192, 240, 304, 1 << 20], 59);
        let mut conversation = Self {
            session: Session::new(),
            engine: engine(classes.clone()),
            counters: Counters::new(classes.count()),
            settings: Settings {
                opening: Parser::default(),
                limits: Limits { item_size_max: 1 << 20, classes },
                flush_enabled: true,
                requests_per_turn: 64,
                output_max: 1 << 20,
            },
            output: Vec::with_capacity(64 << 10),
        };
        let mut input = Vec::new();
        for number in 0..ITEMS {
            input.clear();
            write_request("set", number, &mut input);
            conversation.turn(&input);
        }
        // Whoever asks first chooses the dialect.
        conversation.session = Session::new();
        conversation
    }

    /// Answers all of `input`; bytes of the answer.
    pub(crate) fn turn(&mut self, input: &[u8]) -> usize {
        let Self { session, engine, counters, settings, output } = self;
        let now = Seconds(1_700_000_000);
        let operations = OpContext::new(engine, counters, &settings.limits, now);
        let mut cx =
            Context { operations, host: &Server, settings, waker: &|| Waker::noop().clone() };
        let turn = session.receive(&mut cx, input, output);
        assert_eq!(turn.consumed, input.len(), "all is answered");
        let answered = output.len();
        output.clear();
        answered
    }
}
