//! Tests that replies do not depend on how the input is split, on limits, or on the speed of the
//! client. `LARDER_CASES` sets the number of random cases, and `LARDER_SEED` their seed.

use crate::common::streams;
use crate::common::{TestClient, TestEngine, TestServer, new_server, text};
use larder_model::{Model, ModelConnection};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::hash::{BuildHasher, RandomState};
use std::{env, fmt};

/// How a test delivers a stream to a session.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The lengths of the pieces. The list repeats until the end of the stream.
    pub(crate) pieces: Vec<usize>,
    pub(crate) requests_per_poll: usize,
    pub(crate) output_max: usize,
    /// The number of bytes that the client reads after each poll.
    pub(crate) takes: usize,
}

impl Delivery {
    pub(crate) fn at_once() -> Self {
        Self {
            pieces: vec![],
            requests_per_poll: usize::MAX,
            output_max: usize::MAX,
            takes: usize::MAX,
        }
    }

    fn in_pieces(pieces: Vec<usize>) -> Self {
        Self { pieces, ..Self::at_once() }
    }

    /// Returns all replies to `stream`, and whether the session closed the connection.
    pub(crate) fn run(&self, engine: TestEngine, stream: &[u8]) -> (Vec<u8>, bool) {
        self.run_in(new_server(engine), TestClient::new(), stream)
    }

    /// Sends `stream` from `client` to `server`. Returns all replies, and whether the session
    /// closed the connection.
    pub(crate) fn run_in(
        &self,
        mut server: TestServer,
        mut client: TestClient,
        stream: &[u8],
    ) -> (Vec<u8>, bool) {
        server.settings.requests_per_poll = self.requests_per_poll;
        server.settings.output_max = self.output_max;
        client.takes = self.takes;
        let mut rest = stream;
        for &len in self.pieces.iter().cycle() {
            let (piece, unread) = rest.split_at(len.clamp(1, rest.len().max(1)).min(rest.len()));
            client.send(&mut server, piece);
            rest = unread;
            if rest.is_empty() {
                break;
            }
        }
        client.send(&mut server, rest);
        client.session.close(&server.host);
        assert_eq!(server.host.reserved(), 0, "the session releases its memory");
        (client.received, client.is_closed)
    }
}

fn same(engine: TestEngine, stream: &[u8], delivery: &Delivery) -> Result<(), TestCaseError> {
    let whole = Delivery::at_once().run(engine, stream);
    let split = delivery.run(engine, stream);
    prop_assert_eq!(text(&split.0), text(&whole.0), "{:?}", delivery);
    prop_assert_eq!(split.1, whole.1);
    Ok(())
}

pub(crate) fn check<S: Strategy>(
    cases: u32,
    strategy: S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let number = |name| env::var(name).ok().map(|value| value.parse().expect("a number"));
    let seed: u64 = number("LARDER_SEED").unwrap_or_else(|| RandomState::new().hash_one(0));
    let cases = number("LARDER_CASES").map_or(cases, |cases| cases.try_into().unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    TestRunner::new_with_rng(config, rng)
        .run(&strategy, test)
        .unwrap_or_else(|failure| panic!("LARDER_SEED={seed} {failure}"));
}

/// Bytes that `Debug` prints with escaped control characters.
#[derive(Clone)]
pub(crate) struct Stream(pub(crate) Vec<u8>);

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(&self.0))
    }
}

pub(crate) fn any_stream(value_len_max: usize) -> impl Strategy<Value = Stream> {
    prop_oneof![3 => streams::text(value_len_max), 1 => streams::binary(value_len_max)]
        .prop_map(|requests| Stream(requests.concat()))
}

/// Returns a strategy for streams with some bytes replaced, removed or inserted. Most of the new
/// bytes are significant in the protocol.
pub(crate) fn garbled_stream(value_len_max: usize) -> impl Strategy<Value = Stream> {
    let byte = prop_oneof![
        3 => prop::sample::select(b" \r\n0159bqvkSINTOC\0\x80\x01\xff".to_vec()),
        1 => any::<u8>(),
    ];
    let garbling = (any::<prop::sample::Index>(), byte, 0..3_u8);
    (any_stream(value_len_max), prop::collection::vec(garbling, 1..6)).prop_map(
        |(Stream(mut bytes), garblings)| {
            for (at, byte, how) in garblings {
                let at = at.index(bytes.len() + 1);
                let until = (at + usize::from(how > 0)).min(bytes.len());
                bytes.splice(at..until, (how < 2).then_some(byte));
            }
            Stream(bytes)
        },
    )
}

pub(crate) fn any_delivery() -> impl Strategy<Value = Delivery> {
    let pieces =
        prop::collection::vec(prop_oneof![1..64_usize, 1..8192_usize, 1..200_000_usize], 1..8);
    let requests_per_poll = prop_oneof![Just(1), Just(20), 1..64_usize];
    let output_max = prop_oneof![Just(1), Just(64), 1..100_000_usize];
    let takes = prop_oneof![Just(1000), Just(usize::MAX), 100..100_000_usize];
    (pieces, requests_per_poll, output_max, takes).prop_map(
        |(pieces, requests_per_poll, output_max, takes)| Delivery {
            pieces,
            requests_per_poll,
            output_max,
            takes,
        },
    )
}

/// A stream with many kinds of requests. The stream is short enough to test every position at which
/// it can be split.
pub(crate) const SAMPLER: &[u8] = b"set a 5 0 2\r\n10\r\nincr a 5\r\nget a b a\r\ngets a\n\ngat 0 a nope a\r\nbogus\r\n\
    add a 0 0 1 noreply\r\n1\r\nset b 0 0 3\r\nabcdef\r\nms c 4 c k O7 T90\r\nhigh\r\nmg c v t f s k\r\n\
    md c I\r\nmg c v h\r\nmg c v h\r\nmg new N30 v t\r\nma n N0 J7 v\r\nma n v D3\r\nma n MD v D90\r\nmn\r\n\
    ms Zm9v b 3 b k\r\nmg Zm9v b k v\r\nms a 400000x\r\nmg a S S\r\nappend a 0 0 2\r\n77\r\nget a\r\n\
    cas a 0 0 1 1\r\n1\r\ntouch a 10\r\nme zz\r\nset k 0 0 9\r\nno end !!\rstats\r\nflush_all\r\nget a\r\nquit\r\nget a\r\n";

fn one_byte_at_a_time(engine: TestEngine) {
    same(engine, SAMPLER, &Delivery::in_pieces(vec![1])).unwrap();
    let every_limit = Delivery { requests_per_poll: 1, output_max: 1, takes: 1, pieces: vec![1] };
    same(engine, SAMPLER, &every_limit).unwrap();
    check(24, any_stream(2000), |stream| same(engine, &stream.0, &Delivery::in_pieces(vec![1])));
}

fn cut_in_two_anywhere(engine: TestEngine) {
    for cut in 1..SAMPLER.len() {
        same(engine, SAMPLER, &Delivery::in_pieces(vec![cut, SAMPLER.len()])).unwrap();
    }
}

fn random_cuts_under_random_limits(engine: TestEngine) {
    check(200, (any_stream(200_000), any_delivery()), |(stream, delivery)| {
        same(engine, &stream.0, &delivery)
    });
}

/// The first byte determines the dialect, even if the first request arrives in many pieces.
fn the_first_byte_chooses_the_dialect(engine: TestEngine) {
    let large = crate::common::set("a", &[b'x'; 200_000]);
    for first in [&b"mn\r\n"[..], &large] {
        let stream = [first, b"\x80bogus\r\nmn\r\n"].concat();
        for pieces in [vec![1], vec![30], vec![70_000]] {
            same(engine, &stream, &Delivery::in_pieces(pieces)).unwrap();
        }
        let (replies, _) = Delivery::in_pieces(vec![100_000]).run(engine, &stream);
        assert!(text(&replies).ends_with("ERROR\\r\\nMN\\r\\n"), "{}", text(&replies));
    }
}

fn garbled_streams_with_random_cuts(engine: TestEngine) {
    check(200, (garbled_stream(1000), any_delivery()), |(stream, delivery)| {
        same(engine, &stream.0, &delivery)
    });
}

for_each_engine!(garbled_streams_with_random_cuts the_first_byte_chooses_the_dialect one_byte_at_a_time cut_in_two_anywhere random_cuts_under_random_limits);

/// Returns the model's replies to a stream, and whether the model closed the connection.
fn model_replies(stream: &[u8]) -> (Vec<u8>, bool) {
    let mut model = Model::new(larder_model::Settings {
        version: "1.6.45".to_owned(),
        item_size_max: crate::common::ITEM_SIZE_MAX,
        classes: crate::common::CLASS_SIZES.to_vec(),
    });
    let mut connection = ModelConnection::default();
    let answers = connection.receive(&mut model, larder_session::test_util::START.0, stream);
    (answers, connection.is_closed())
}

/// Returns whether a stream may contain tags. The `dashmap` engine does not support tags.
fn may_use_tags(stream: &[u8]) -> bool {
    holds(stream, b" G") || holds(stream, b"mt ")
}

fn holds(stream: &[u8], part: &[u8]) -> bool {
    stream.windows(part.len()).any(|bytes| bytes == part)
}

/// The session gives the same replies as the model, which is slow but simple. The test skips
/// streams with statistics, because the model has none. It skips streams in which clients choose
/// CAS values, because later CAS values then differ between engines. It skips tags, because the
/// `dashmap` engine does not support them.
#[test]
fn the_model_agrees() {
    const BINARY_STAT: &[u8] = b"\x80\x10";
    check(2000, garbled_stream(2000), |stream| {
        let excluded = [&b" E"[..], b"stats", BINARY_STAT];
        if excluded.iter().any(|part| holds(&stream.0, part)) || may_use_tags(&stream.0) {
            return Ok(());
        }
        let session = Delivery::at_once().run(TestEngine::Dashmap, &stream.0);
        let model = model_replies(&stream.0);
        prop_assert_eq!(text(&session.0), text(&model.0));
        prop_assert_eq!(session.1, model.1);
        Ok(())
    });
}

/// All engines give the same replies. The test skips streams with tags, and streams in which
/// clients choose CAS values.
#[test]
fn the_engines_agree() {
    check(300, any_stream(200_000), |stream| {
        if holds(&stream.0, b" E") || may_use_tags(&stream.0) {
            return Ok(());
        }
        let dashmap = Delivery::at_once().run(TestEngine::Dashmap, &stream.0);
        let segment = Delivery::at_once().run(TestEngine::Segment, &stream.0);
        prop_assert_eq!(text(&dashmap.0), text(&segment.0));
        Ok(())
    });
}
