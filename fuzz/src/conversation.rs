//! A whole session over an engine.

use larder_protocol::Parser;
use larder_session::{Context, Counters, Host, Next, Session, Settings, StatsAnswer};
use larder_store::{Engine, Seconds, SizeClasses};
use std::cell::Cell;

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
    mut engine: E,
    pieces: impl Iterator<Item = &'s [u8]>,
    requests_per_turn: usize,
) -> Answers {
    let counters = Counters::new(classes().count());
    let settings = Settings {
        opening: Parser::default(),
        item_size_max: ITEM_SIZE_MAX,
        flush_enabled: true,
        requests_per_turn,
        output_max: 4096,
        classes: classes(),
    };
    let host = Server(Cell::new(0));
    let mut session = Session::new();
    let (mut input, mut output, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let now = Seconds(START);
            let mut cx = Context {
                engine: &mut engine,
                host: &host,
                counters: &counters,
                settings: &settings,
                now,
            };
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
                    session.close(&host);
                    assert_eq!(host.0.get(), 0, "memory is given back");
                    return (answers, true);
                }
                Next::Yield | Next::Write => (),
            }
        }
        engine.maintain(Seconds(START));
    }
    session.close(&host);
    assert_eq!(host.0.get(), 0, "memory is given back");
    (answers, false)
}

struct Server(Cell<usize>);

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

    fn reserve(&self, bytes: usize) -> bool {
        let fits = self.0.get() + bytes <= HELD_MAX;
        self.0.set(self.0.get() + if fits { bytes } else { 0 });
        fits
    }

    fn release(&self, bytes: usize) {
        self.0.set(self.0.get().checked_sub(bytes).expect("no more than was reserved"));
    }
}
