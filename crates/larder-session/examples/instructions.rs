//! Work to be counted: `instructions REQUEST ROUNDS` answers that many batches of 16 requests, each
//! for another of 100,000 items (keys of 20 bytes, values of 100), in one turn each. Counting two runs
//! and taking the difference leaves the requests alone; `scripts/instructions` does.

use larder_protocol::Parser;
use larder_session::{Context, Counters, Host, Session, Settings, StatsAnswer};
use larder_store::{Seconds, SizeClasses, segment};
use std::io::Write;

const ITEMS: u64 = 100_000;
const BATCH: u64 = 16;
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

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().expect("a request's name");
    let rounds: u64 = arguments.next().and_then(|text| text.parse().ok()).expect("rounds");
    let classes = SizeClasses::new(vec![96, 120, 152, 192, 240, 304, 1 << 20], 59);
    let counters = Counters::new(classes.count());
    let mut engine = engine(classes.clone());
    let settings = Settings {
        opening: Parser::default(),
        item_size_max: 1 << 20,
        flush_enabled: true,
        requests_per_turn: 64,
        output_max: 1 << 20,
        classes,
    };
    let (mut session, mut output) = (Session::new(), Vec::with_capacity(64 << 10));
    let mut turn = |session: &mut Session<_>, input: &[u8]| {
        let now = Seconds(1_700_000_000);
        let (host, counters, settings) = (&Server, &counters, &settings);
        let mut cx = Context { engine: &mut engine, host, counters, settings, now };
        let turn = session.receive(&mut cx, input, &mut output);
        assert_eq!(turn.consumed, input.len(), "all is answered");
        let answered = output.len();
        output.clear();
        answered
    };
    let mut input = Vec::new();
    let mut filling = Session::new();
    for number in 0..ITEMS {
        input.clear();
        write_request("set", number, &mut input);
        turn(&mut filling, &input);
    }
    // All batches are written before: drawing them is not counted twice.
    let batches: Vec<Vec<u8>> = (0..256)
        .map(|batch| {
            let mut input = Vec::new();
            (0..BATCH).for_each(|i| {
                write_request(&kind, (batch * BATCH + i) * 7919 % ITEMS, &mut input);
            });
            input
        })
        .collect();
    let mut answered = 0;
    for batch in batches.iter().cycle().take(usize::try_from(rounds).expect("few")) {
        answered += turn(&mut session, batch);
    }
    assert!(kind == "nothing" || rounds == 0 || answered > 0, "somebody answers");
}
