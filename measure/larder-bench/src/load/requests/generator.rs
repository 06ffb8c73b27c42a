//! Generates the requests of a client: the next command, its keys, its value and its expiry.

use crate::load::items::keys::KeyStream;
use crate::load::requests::request::{Request, get, set};
use crate::load::requests::space_requests::SpaceRequests;
use crate::load::requests::trace_queue::TraceQueue;
use crate::load::workload::Load;
use crate::run_error::RunError;
use crate::settings::{Settings, Stop};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The requests of one client, in order.
#[derive(Debug)]
pub(crate) struct Generator {
    source: Source,
    rng: SmallRng,
    /// Number of remaining requests; `None` in a timed run and in a trace replay.
    left: Option<u64>,
    /// The keys of the last request. Each request reuses this allocation.
    keys: Vec<u64>,
}

/// The origin of the requests.
#[derive(Debug)]
enum Source {
    /// Sets and gets in the ratio of the settings.
    SetsAndGets {
        set_keys: KeyStream,
        get_keys: KeyStream,
        /// Position in the cycle of sets and gets.
        position: u32,
    },
    /// Sets and gets of several key spaces.
    KeySpaces(SpaceRequests),
    /// Recorded requests.
    Trace(TraceQueue),
    /// Custom commands.
    Commands {
        /// The keys of each command.
        keys: Vec<KeyStream>,
        /// Position in the cycle of commands.
        position: u32,
    },
}

impl Generator {
    /// Returns the request generator of client `index`.
    ///
    /// # Errors
    /// The distribution of keys or the shares of the key spaces are invalid.
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
            Source::SetsAndGets { set_keys, get_keys, position: 0 }
        } else {
            let keys = settings.commands.iter().map(|command| stream(command.pattern));
            Source::Commands { keys: keys.collect::<Result<_, _>>()?, position: 0 }
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

    /// Returns the number of remaining requests; `None` in a timed run and in a trace replay.
    #[inline]
    pub(crate) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Returns whether all requests were generated. In a timed run, this is possible only at the
    /// end of a trace.
    #[inline]
    pub(crate) fn is_exhausted(&self) -> bool {
        match &self.source {
            Source::Trace(queue) => queue.has_ended && queue.is_empty(),
            _ => self.left == Some(0),
        }
    }

    /// Returns whether [`next`](Self::next) can return a request now. In a replay, further requests
    /// can follow later.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        match &self.source {
            Source::Trace(queue) => !queue.is_empty(),
            _ => self.left != Some(0),
        }
    }

    /// Returns the queue of recorded requests, or `None` unless the run replays a trace.
    pub(crate) fn trace(&mut self) -> Option<&mut TraceQueue> {
        match &mut self.source {
            Source::Trace(queue) => Some(queue),
            _ => None,
        }
    }

    /// Returns the next request. The caller checks [`has_next`](Self::has_next) first.
    #[expect(clippy::inline_always, reason = "a request is then kept in registers")]
    #[inline(always)]
    pub(crate) fn next<'r>(&'r mut self, load: &'r Load) -> Request<'r> {
        let Self { source, rng, left, keys } = self;
        if let Some(left) = left {
            *left -= 1;
        }
        match source {
            Source::SetsAndGets { set_keys, get_keys, position } => {
                let space = load.space(0);
                if space.ratio.take_turn(position) {
                    set(0, space, set_keys, rng)
                } else {
                    get(0, load.settings.multi_get, get_keys, rng, keys)
                }
            }
            Source::Trace(queue) => Request::Recorded(queue.next()),
            Source::KeySpaces(spaces) => spaces.next(load, rng, keys),
            Source::Commands { keys: streams, position } => {
                let (number, next_position) = load.commands.at(*position);
                *position = next_position;
                command(load, number, &mut streams[number], rng, keys)
            }
        }
    }
}

/// Returns a custom command. Its value derives from the last key before the `__data__` placeholder,
/// or from key 0 if no key precedes it.
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
