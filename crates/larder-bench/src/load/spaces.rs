//! Key spaces: items of one kind, and the requests for several kinds in one run.

use super::connection::Load;
use super::generator::{Request, get, set};
use super::keys::{KeyNames, KeyStream};
use super::stats::Kind;
use super::values::Values;
use crate::run::RunError;
use crate::settings::{KeySpace, Ratio, Settings};
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::SmallRng;

/// What the requests for items of one kind have in common.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) names: KeyNames,
    pub(crate) values: Values,
    pub(crate) ratio: Ratio,
    pub(crate) expiry: Option<(u32, u32)>,
}

impl Space {
    /// The key spaces of a run, or the only one of a run without them. None if a distribution of
    /// value sizes has invalid parameters.
    pub(crate) fn all(settings: &Settings) -> Option<Vec<Self>> {
        if settings.key_spaces.is_empty() {
            let Settings { ratio, expiry, .. } = *settings;
            let (names, values) = (KeyNames::new(&settings.keys), Values::new(settings)?);
            return Some(vec![Self { names, values, ratio, expiry }]);
        }
        let space = |space: &KeySpace| {
            let KeySpace { ratio, expiry, .. } = *space;
            let values = Values::of_space(settings, space)?;
            Some(Self { names: KeyNames::new(&space.keys), values, ratio, expiry })
        };
        settings.key_spaces.iter().map(space).collect()
    }
}

/// The requests of one client for several key spaces.
#[derive(Debug)]
pub(crate) struct SpaceRequests {
    /// By the number of the key space.
    streams: Vec<SpaceStream>,
    shares: WeightedIndex<u32>,
}

#[derive(Debug)]
struct SpaceStream {
    set_keys: KeyStream,
    get_keys: KeyStream,
    /// Number of requests since the current cycle of sets and gets began.
    turn: u32,
}

impl SpaceRequests {
    /// The requests of client `index`.
    ///
    /// # Errors
    /// A distribution of keys has invalid parameters.
    pub(crate) fn new(settings: &Settings, index: usize) -> Result<Self, RunError> {
        let all = settings.all_clients();
        let streams = settings.key_spaces.iter().map(|space| {
            let keys = &space.keys;
            let stream =
                |pattern| KeyStream::new(keys, pattern, index, all).ok_or(RunError::Pattern);
            Ok(SpaceStream { set_keys: stream(keys.set)?, get_keys: stream(keys.get)?, turn: 0 })
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
        let number = u16::try_from(place).expect("the settings have at most 1,000 key spaces");
        let space = load.space(number);
        if space.ratio.take_turn(&mut stream.turn) {
            set(number, space, &mut stream.set_keys, rng)
        } else {
            get(number, load.settings.multi_get, &mut stream.get_keys, rng, keys)
        }
    }
}

/// The commands of a run in proportion to their numbers. With several key spaces, they are not sent
/// in this order.
pub(crate) fn cycle(settings: &Settings) -> Vec<(Kind, u64)> {
    if settings.key_spaces.is_empty() {
        let Ratio { sets, gets } = settings.ratio;
        return vec![(Kind::Set(0), sets.into()), (Kind::Get(0), gets.into())];
    }
    let spaces = settings.key_spaces.iter().zip(0_u16..);
    let of_space = |(space, number): (&KeySpace, u16)| {
        let Ratio { sets, gets } = space.ratio;
        // In a million requests of a share of 1.
        let part = |count: u32| {
            let all = u64::from(sets) + u64::from(gets);
            u64::from(space.share) * u64::from(count) * 1_000_000 / all
        };
        [(Kind::Set(number), part(sets)), (Kind::Get(number), part(gets))]
    };
    let cycle: Vec<_> = spaces.flat_map(of_space).collect();
    let divisor =
        cycle.iter().fold(0, |divisor, (_, times)| greatest_common_divisor(divisor, *times));
    cycle.into_iter().map(|(kind, times)| (kind, times / divisor.max(1))).collect()
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
