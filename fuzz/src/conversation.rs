//! A whole session over an engine.

use larder_operations::{Counters, Limits, OpContext};
use larder_protocol::{Credentials, Parser};
use larder_session::{Context, Host, Next, Session, Settings, StatsAnswer};
use larder_store::{Engine, Seconds, SizeClasses};
use std::cell::Cell;
use std::task::Waker;

const OVERHEAD: usize = 59;
const ITEM_SIZE_MAX: usize = 64 << 10;
/// Bytes that sessions may hold.
const HELD_MAX: usize = 1 << 20;
const START: u32 = 1_700_000_000;

/// What came back, and whether the session hung up.
pub type Answers = (Vec<u8>, bool);

/// How items are counted.
#[must_use]
pub fn classes() -> SizeClasses {
    SizeClasses::new(vec![96, 512, 4096, 1 << 20], OVERHEAD)
}

/// Talks to a new session over `engine`.
///
/// # Panics
/// The session claims bytes that it was not given, or keeps memory.
pub fn converse<'s, E: Engine>(
    engine: E,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_turn: usize,
) -> Answers {
    converse_from(Parser::default(), engine, pieces, requests_per_turn)
}

/// The same, begun as `opening` says. `u` comes in with the password `p`.
///
/// # Panics
/// As [`converse`], or somebody was served who did not come in.
pub fn converse_from<'s, E: Engine>(
    opening: Parser,
    engine: E,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_turn: usize,
) -> Answers {
    let host = Server::default();
    let counters = Counters::new(classes().count());
    let answers = talk(opening, engine, &host, &counters, pieces, requests_per_turn);
    let begins_with_login = [Parser::TEXT_LOGIN, Parser::BINARY_LOGIN].contains(&opening);
    if begins_with_login && !host.admitted.get() {
        let of_items = counters.classes.iter().flat_map(|class| class.each());
        let of_all = counters.thread.each().filter(|(name, _)| !name.starts_with("auth_"));
        assert!(of_items.chain(of_all).all(|(_, count)| count.get() == 0), "served a stranger");
    }
    answers
}

fn talk<'s, E: Engine>(
    opening: Parser,
    mut engine: E,
    host: &Server,
    counters: &Counters,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_turn: usize,
) -> Answers {
    let settings = Settings {
        opening,
        limits: Limits { item_size_max: ITEM_SIZE_MAX, classes: classes() },
        flush_enabled: true,
        requests_per_turn,
        output_max: 4096,
    };
    let mut session = Session::new();
    let (mut input, mut output, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let now = Seconds(START);
            let operations = OpContext::new(&mut engine, counters, &settings.limits, now);
            let waker = &|| Waker::noop().clone();
            let mut cx = Context { operations, host, settings: &settings, waker };
            let turn = session.receive(&mut cx, &input, &mut output);
            assert!(turn.consumed <= input.len());
            input.drain(..turn.consumed);
            answers.append(&mut output);
            match turn.next {
                Next::Read { wanted } => {
                    assert!(wanted > 0);
                    break;
                }
                Next::Close => {
                    session.close(host);
                    assert_eq!(host.held.get(), 0, "memory is given back");
                    return (answers, true);
                }
                Next::Yield | Next::Write | Next::Wait => (),
            }
        }
        engine.maintain(Seconds(START));
    }
    session.close(host);
    assert_eq!(host.held.get(), 0, "memory is given back");
    (answers, false)
}

#[derive(Default)]
struct Server {
    held: Cell<usize>,
    admitted: Cell<bool>,
}

impl Host for Server {
    fn version(&self) -> &str {
        "1"
    }

    fn set_verbosity(&self, _: u32) {}

    fn stats(&self, topic: &[u8], stat: &mut dyn FnMut(&str, &str)) -> StatsAnswer {
        match topic {
            b"" => {
                stat("pid", "1");
                StatsAnswer::Lines
            }
            b"reset" => StatsAnswer::Reset,
            _ => StatsAnswer::Unknown,
        }
    }

    fn authenticate(&self, credentials: &Credentials<'_>) -> bool {
        let right = (credentials.user, credentials.password.0) == (b"u", b"p");
        self.admitted.set(self.admitted.get() || right);
        right
    }

    fn reserve(&self, bytes: usize) -> bool {
        let fits = self.held.get() + bytes <= HELD_MAX;
        self.held.set(self.held.get() + if fits { bytes } else { 0 });
        fits
    }

    fn release(&self, bytes: usize) {
        self.held.set(self.held.get().checked_sub(bytes).expect("no more than was reserved"));
    }
}
