//! A session with a segment engine and 100,000 items (keys of 20 bytes, values of 100 bytes), for
//! the program `instructions` and the benchmarks of this crate.

use larder_session::Session;
use larder_session::test_util::TestServer;
use larder_store::{SizeClasses, segment};
use std::io::Write;

/// The number of items in the cache.
const ITEMS: u64 = 100_000;
/// The number of requests in a poll.
pub(crate) const BATCH: u64 = 16;
const VALUE: [u8; 100] = [b'v'; 100];

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
        flash: None,
    })
    .expect("256 MiB")
    .handle()
}

/// Writes a request for the item with this number.
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
        "resp-get" => write!(out, "*2\r\n$3\r\nGET\r\n$20\r\nkey:{number:016}\r\n"),
        "resp-set" => {
            write!(out, "*3\r\n$3\r\nSET\r\n$20\r\nkey:{number:016}\r\n$100\r\n")
        }
        "nothing" => Ok(()),
        _ => panic!("get, mg, set, ms, binary-get, resp-get, resp-set or nothing"),
    };
    written.expect("writing to memory succeeds");
    if ["set", "ms", "resp-set"].contains(&kind) {
        out.extend_from_slice(&VALUE);
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns 256 batches of requests of one kind. Each request is for a different item.
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

/// A session and its server.
pub(crate) struct Conversation {
    session: Session<segment::Handle>,
    server: TestServer<segment::Handle>,
    output: Vec<u8>,
}

impl Conversation {
    /// Starts a session for requests of one kind, with a server that has stored all items.
    pub(crate) fn start(kind: &str) -> Self {
        let classes = SizeClasses::new(vec![96, 120, 152, 192, 240, 304, 1 << 20], 59);
        let mut server = TestServer::new(engine(classes.clone()), 1 << 20, classes);
        (server.settings.requests_per_poll, server.settings.output_max) = (64, 1 << 20);
        let output = Vec::with_capacity(64 << 10);
        let mut conversation = Self { session: Session::new(), server, output };
        let mut input = Vec::new();
        for number in 0..ITEMS {
            input.clear();
            write_request("set", number, &mut input);
            conversation.poll(&input);
        }
        // The first request of a session chooses the dialect, so the measured requests need a new
        // session.
        let is_resp = kind.starts_with("resp-");
        conversation.session = if is_resp { Session::resp(1, false) } else { Session::new() };
        conversation
    }

    /// Answers all requests of `input`, and returns the length of the replies in bytes.
    pub(crate) fn poll(&mut self, input: &[u8]) -> usize {
        let progress = self.server.poll(&mut self.session, input, &mut self.output);
        assert_eq!(progress.consumed, input.len(), "the session consumes all of the input");
        let answered = self.output.len();
        self.output.clear();
        answered
    }
}
