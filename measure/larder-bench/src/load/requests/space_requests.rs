//! The requests of one client for several key spaces.

use crate::load::items::keys::KeyStream;
use crate::load::requests::request::{Request, get, set};
use crate::load::workload::Load;
use crate::run_error::RunError;
use crate::settings::Settings;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;

/// The requests of one client for several key spaces.
#[derive(Debug)]
pub(crate) struct SpaceRequests {
    /// Each key space's keys and ratio, indexed by key space number.
    streams: Vec<SpaceStream>,
    shares: WeightedIndex<u32>,
}

#[derive(Debug)]
struct SpaceStream {
    set_keys: KeyStream,
    get_keys: KeyStream,
    /// Position in the key space's cycle of sets and gets.
    position: u32,
}

impl SpaceRequests {
    /// Returns the request generator of client `index`.
    ///
    /// # Errors
    /// A distribution of keys has invalid parameters, or the shares of the key spaces are all 0 or
    /// add up to 2^32 or more.
    pub(crate) fn new(settings: &Settings, index: usize) -> Result<Self, RunError> {
        let all = settings.all_clients();
        let streams = settings.key_spaces.iter().map(|space| {
            let keys = &space.keys;
            let stream =
                |pattern| KeyStream::new(keys, pattern, index, all).ok_or(RunError::Pattern);
            Ok(SpaceStream {
                set_keys: stream(keys.set)?,
                get_keys: stream(keys.get)?,
                position: 0,
            })
        });
        let shares = WeightedIndex::new(settings.key_spaces.iter().map(|space| space.share));
        let shares = shares.map_err(|_| RunError::Pattern)?;
        Ok(Self { streams: streams.collect::<Result<_, _>>()?, shares })
    }

    pub(crate) fn next<'r>(
        &mut self,
        load: &'r Load,
        rng: &mut SmallRng,
        keys: &'r mut Vec<u64>,
    ) -> Request<'r> {
        let place = self.shares.sample(rng);
        let stream = &mut self.streams[place];
        let number = u16::try_from(place).expect("the settings have at most 100 key spaces");
        let space = load.space(number);
        if space.ratio.take_turn(&mut stream.position) {
            set(number, space, &mut stream.set_keys, rng)
        } else {
            get(number, load.settings.multi_get, &mut stream.get_keys, rng, keys)
        }
    }
}
