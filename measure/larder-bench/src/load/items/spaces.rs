//! Key spaces: groups of similar items.

use crate::load::items::values::Values;
use crate::load::stats::Kind;
use crate::run_error::RunError;
use crate::settings::{KeySpace, Keys, Ratio, Settings};
use larder_protocol::encode::NumberedKeys;

/// The state that all requests to one key space share.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) names: NumberedKeys,
    pub(crate) values: Values,
    pub(crate) ratio: Ratio,
    pub(crate) expiry: Option<(u32, u32)>,
}

impl Space {
    /// Returns the key spaces of a run. Without `--key-spaces`, this is a single key space.
    ///
    /// # Errors
    /// A prefix is not valid in a key, or a distribution of value sizes has invalid parameters.
    pub(crate) fn all(settings: &Settings) -> Result<Vec<Self>, RunError> {
        let names =
            |keys: &Keys| NumberedKeys::new(keys.prefix.as_bytes()).map_err(RunError::KeyPrefix);
        if settings.key_spaces.is_empty() {
            let Settings { ratio, expiry, .. } = *settings;
            let values = Values::new(settings).ok_or(RunError::Sizes)?;
            return Ok(vec![Self { names: names(&settings.keys)?, values, ratio, expiry }]);
        }
        let space = |space: &KeySpace| {
            let KeySpace { ratio, expiry, .. } = *space;
            let values = Values::of_space(settings, space).ok_or(RunError::Sizes)?;
            Ok(Self { names: names(&space.keys)?, values, ratio, expiry })
        };
        settings.key_spaces.iter().map(space).collect()
    }
}

/// Number of rounds in the cycle of several key spaces.
const ROUNDS: u32 = 100;
/// Mean number of requests in a round.
const ROUND_LEN: u32 = 100;

/// Returns the cycle of sets and gets that clients repeat. Each entry has the number of consecutive
/// requests. With `--key-spaces`, clients choose key spaces at random, so the cycle has the right
/// proportions of the requests but not their order.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number from 0 to the requests of a round"
)]
pub(crate) fn cycle(settings: &Settings) -> Vec<(Kind, u64)> {
    if settings.key_spaces.is_empty() {
        let Ratio { sets, gets } = settings.ratio;
        return vec![(Kind::Set(0), sets.into()), (Kind::Get(0), gets.into())];
    }
    let spaces = settings.key_spaces.iter().zip(0_u16..);
    let shares: f64 = settings.key_spaces.iter().map(|space| f64::from(space.share)).sum();
    let of_space = |(space, number): (&KeySpace, u16)| {
        let Ratio { sets, gets } = space.ratio;
        let all = f64::from(sets) + f64::from(gets);
        let part = |count: u32| f64::from(space.share) / shares * f64::from(count) / all;
        [(Kind::Set(number), part(sets)), (Kind::Get(number), part(gets))]
    };
    let parts: Vec<_> = spaces.flat_map(of_space).collect();
    // The rounds are short, so any section of the cycle has about the proportions of the entire
    // cycle.
    let round = |round: u32| {
        parts.iter().map(move |(kind, part)| {
            let until = |rounds: u32| (part * f64::from(rounds * ROUND_LEN)).floor();
            (*kind, (until(round + 1) - until(round)) as u64)
        })
    };
    (0..ROUNDS).flat_map(round).filter(|(_, times)| *times > 0).collect()
}
