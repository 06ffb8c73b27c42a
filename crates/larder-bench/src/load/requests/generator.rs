//! Generates the requests of a client: which command comes next, for which keys, with which value and
//! expiry.
//!
//! Nothing here writes bytes or knows a socket. A [`Request`] is a plain value, so that whatever
//! depends on its keys, such as the server that it is for, is decided before it is written.

use crate::load::connection::Load;
use crate::load::items::keys::KeyStream;
use crate::load::items::spaces::{Space, SpaceRequests};
use crate::load::items::values::Value;
use crate::load::stats::Kind;
use crate::load::wire::recorded::Recorded;
use crate::run::RunError;
use crate::settings::{Settings, Stop};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

/// The requests of one client, in their order.
#[derive(Debug)]
pub(crate) struct Generator {
    source: Source,
    rng: SmallRng,
    /// Number of requests that are still to come; none in a timed run.
    left: Option<u64>,
    /// The keys of the last request, kept to reuse its memory.
    keys: Vec<u64>,
}

/// Where the requests come from.
#[derive(Debug)]
enum Source {
    /// Sets and gets in the ratio of the settings.
    SetsAndGets {
        set_keys: KeyStream,
        get_keys: KeyStream,
        /// Number of requests since the current cycle of sets and gets began.
        turn: u32,
    },
    /// Sets and gets of several key spaces.
    KeySpaces(SpaceRequests),
    /// Recorded requests.
    Trace(TraceQueue),
    /// The user's own commands.
    Commands {
        /// The keys of each command.
        keys: Vec<KeyStream>,
        /// Number of requests since the current cycle of commands began.
        turn: u32,
    },
}

/// A request, before it is written in the words of a protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request<'r> {
    /// Stores a value in a key space. An `expiry` of 0 is none.
    Set { space: u16, key: u64, expiry: u32, value: Value<'r> },
    /// Fetches one key of a key space or several.
    Get { space: u16, keys: &'r [u64] },
    /// A recorded request.
    Recorded(&'r Recorded),
    /// The user's own command of this number, with a key and a value for each place that has one.
    Command { number: usize, keys: &'r [u64], value: Option<Value<'r>> },
}

impl Request<'_> {
    pub(crate) fn kind(&self, load: &Load) -> Kind {
        match self {
            Self::Set { space, .. } => Kind::Set(*space),
            Self::Get { space, .. } => Kind::Get(*space),
            Self::Recorded(request) => request.kind(),
            Self::Command { number, .. } => load.commands.kind(*number),
        }
    }
}

/// Recorded requests that wait for their connection.
#[derive(Debug, Default)]
pub(crate) struct TraceQueue {
    recorded: VecDeque<Recorded>,
    /// Sets after gets that missed. They are made before other requests.
    sets: VecDeque<Recorded>,
    /// The request that was made last.
    last: Option<Recorded>,
    /// Whether no more recorded requests come.
    pub(crate) has_ended: bool,
}

impl TraceQueue {
    pub(crate) fn push(&mut self, request: Recorded) {
        self.recorded.push_back(request);
    }

    pub(crate) fn push_set(&mut self, set: Recorded) {
        self.sets.push_back(set);
    }

    /// Number of recorded requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.recorded.len()
    }

    /// Removes the recorded requests that wait.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Recorded> {
        self.recorded.drain(..)
    }

    fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.sets.is_empty()
    }

    fn next(&mut self) -> &Recorded {
        let next = self.sets.pop_front().or_else(|| self.recorded.pop_front());
        self.last.insert(next.expect("the caller asks for what there is"))
    }
}

impl Generator {
    /// The requests of client `index` of the run.
    ///
    /// # Errors
    /// The distribution of keys has invalid parameters.
    pub(crate) fn new(settings: &Settings, index: usize) -> Result<Self, RunError> {
        let (keys, all) = (&settings.keys, settings.all_clients());
        let stream = |pattern| KeyStream::new(keys, pattern, index, all).ok_or(RunError::Pattern);
        let own_seed = if settings.distinct_client_seed { index as u64 } else { 0 };
        let source = if settings.trace.is_some() {
            Source::Trace(TraceQueue::default())
        } else if !settings.key_spaces.is_empty() {
            Source::KeySpaces(SpaceRequests::new(settings, index)?)
        } else if settings.commands.is_empty() {
            let (set_keys, get_keys) = (stream(keys.set)?, stream(keys.get)?);
            Source::SetsAndGets { set_keys, get_keys, turn: 0 }
        } else {
            let keys = settings.commands.iter().map(|command| stream(command.pattern));
            Source::Commands { keys: keys.collect::<Result<_, _>>()?, turn: 0 }
        };
        Ok(Self {
            source,
            rng: SmallRng::seed_from_u64(settings.seed.wrapping_add(own_seed)),
            left: match settings.stop {
                Stop::Requests(count) => Some(count),
                Stop::After(_) | Stop::EndOfTrace => None,
            },
            keys: Vec::new(),
        })
    }

    /// Number of requests that are still to come; none in a timed run.
    #[inline]
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Whether all requests were made. A timed run is never exhausted, unless it replays a trace.
    #[inline]
    pub(crate) fn is_exhausted(&self) -> bool {
        match &self.source {
            Source::Trace(queue) => queue.has_ended && queue.is_empty(),
            _ => self.left == Some(0),
        }
    }

    /// Whether there is a request now.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        match &self.source {
            Source::Trace(queue) => !queue.is_empty(),
            _ => self.left != Some(0),
        }
    }

    /// The recorded requests that are to be made, in a run that replays a trace.
    pub(crate) fn trace(&mut self) -> Option<&mut TraceQueue> {
        match &mut self.source {
            Source::Trace(queue) => Some(queue),
            _ => None,
        }
    }

    /// The next request. The caller asks for none when the generator
    /// [is exhausted](Self::is_exhausted).
    #[expect(clippy::inline_always, reason = "a request is then kept in registers")]
    #[inline(always)]
    pub(crate) fn next<'r>(&'r mut self, load: &'r Load) -> Request<'r> {
        let Self { source, rng, left, keys } = self;
        if let Some(left) = left {
            *left -= 1;
        }
        match source {
            Source::SetsAndGets { set_keys, get_keys, turn } => {
                let space = load.space(0);
                if space.ratio.take_turn(turn) {
                    set(0, space, set_keys, rng)
                } else {
                    get(0, load.settings.multi_get, get_keys, rng, keys)
                }
            }
            Source::Trace(queue) => Request::Recorded(queue.next()),
            Source::KeySpaces(spaces) => spaces.next(load, rng, keys),
            Source::Commands { keys: streams, turn } => {
                let (number, next_turn) = load.commands.at(*turn);
                *turn = next_turn;
                command(load, number, &mut streams[number], rng, keys)
            }
        }
    }
}

#[inline]
pub(crate) fn set<'r>(
    number: u16,
    space: &'r Space,
    stream: &mut KeyStream,
    rng: &mut SmallRng,
) -> Request<'r> {
    let key = stream.next(rng);
    let expiry = space.expiry.map_or(0, |(from, to)| rng.random_range(from..=to));
    Request::Set { space: number, key, expiry, value: space.values.draw(key, rng) }
}

#[inline]
pub(crate) fn get<'r>(
    number: u16,
    multi_get: usize,
    stream: &mut KeyStream,
    rng: &mut SmallRng,
    keys: &'r mut Vec<u64>,
) -> Request<'r> {
    keys.clear();
    for _ in 0..multi_get {
        keys.push(stream.next(rng));
    }
    Request::Get { space: number, keys }
}

/// The value of a command is that of the last key before it.
fn command<'r>(
    load: &'r Load,
    number: usize,
    stream: &mut KeyStream,
    rng: &mut SmallRng,
    keys: &'r mut Vec<u64>,
) -> Request<'r> {
    let mut value_rng = SmallRng::seed_from_u64(rng.random());
    keys.clear();
    keys.extend((0..load.commands.key_count(number)).map(|_| stream.next(rng)));
    let value = load.commands.keys_before_value(number).map(|before| {
        let key = before.checked_sub(1).map_or(0, |last| keys[last]);
        load.space(0).values.draw(key, &mut value_rng)
    });
    Request::Command { number, keys, value }
}
