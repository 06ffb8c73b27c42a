//! Rendezvous hashing: each server has a score for each key, and the key belongs to the server with
//! the highest score (Thaler and Ravishankar, 1996).

use super::murmur3::Murmur3;
use super::node::Member;
use rapidhash::v3::rapidhash_v3;
use std::f64::consts::{LN_2, SQRT_2};

/// Larder's own method. The 64-bit hash of a server and a key is
/// `mix(rapidhash(name) ^ rapidhash(key))`.
#[derive(Clone, Debug)]
pub(super) struct Rendezvous {
    servers: Box<[Server]>,
    is_weighted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Server {
    name_hash: u64,
    /// 1 ÷ weight.
    inverse: f64,
    index: u32,
}

impl Rendezvous {
    pub(super) fn new(nodes: &[Member<'_>]) -> Self {
        let server = |(index, node): &Member<'_>| Server {
            name_hash: rapidhash_v3(node.name().as_bytes()),
            inverse: f64::from(node.share()).recip(),
            index: *index,
        };
        let mut servers: Box<[Server]> = nodes.iter().map(server).collect();
        // The heaviest servers come first, because they win most often. For a server after the
        // winner, the upper bound of its score usually suffices to reject the server without a
        // logarithm.
        servers.sort_by(|a, b| a.inverse.total_cmp(&b.inverse));
        let inverse = |server: Option<&Server>| server.map(|server| server.inverse);
        let is_weighted = inverse(servers.first()) != inverse(servers.last());
        Self { servers, is_weighted }
    }

    pub(super) fn pick_where(
        &self,
        key: &[u8],
        is_usable: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let key_hash = rapidhash_v3(key);
        match self.is_weighted {
            false => self.highest(key_hash, is_usable),
            true => self.highest_weighted(key_hash, is_usable),
        }
    }

    fn highest(&self, key_hash: u64, mut is_usable: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut best: Option<(u64, usize)> = None;
        for server in &self.servers {
            let score = mix(server.name_hash ^ key_hash);
            let index = server.index as usize;
            if best.is_none_or(|(highest, _)| score > highest) && is_usable(index) {
                best = Some((score, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Returns the usable server with the highest score. The score is ln(hash ÷ 2⁶⁴) ÷ weight. With
    /// this score, the servers' shares of the keys are proportional to their weights (Schindelhauer
    /// and Schomaker, 2005). The score is at most (hash ÷ 2⁶⁴ − 1) ÷ weight, and this bound avoids
    /// most logarithms.
    fn highest_weighted(
        &self,
        key_hash: u64,
        mut is_usable: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut highest = f64::NEG_INFINITY;
        let mut best = None;
        for server in &self.servers {
            let uniform = unit_interval(mix(server.name_hash ^ key_hash));
            if (uniform - 1.0) * server.inverse <= highest {
                continue;
            }
            let score = ln(uniform) * server.inverse;
            let index = server.index as usize;
            if score > highest && is_usable(index) {
                (highest, best) = (score, Some(index));
            }
        }
        best
    }
}

/// Mixes a hash with the finaliser of SplitMix64. The function is a bijection. Flipping one bit of
/// the input flips each bit of the output with a probability of about one half.
pub(super) fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// Converts the upper 52 bits of a hash to a number between 0 and 1, both exclusive. With 53 bits,
/// the largest number would round up to 1.
fn unit_interval(hash: u64) -> f64 {
    ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// Computes the natural logarithm of a positive, normal number. The last bits of the standard
/// library's result differ between machines, and the machines could then choose different servers
/// for a key. This function uses only operations whose rounding IEEE 754 defines. For m near 1, it
/// evaluates ln m = 2 artanh((m − 1) ÷ (m + 1)) as a series.
fn ln(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    let mut exponent = (x.to_bits() >> 52) as f64 - 1023.0;
    let mut m = f64::from_bits(x.to_bits() & MANTISSA | 1.0_f64.to_bits());
    if m > SQRT_2 {
        m *= 0.5;
        exponent += 1.0;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let terms = [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0];
    let series = terms.into_iter().fold(0.0, |sum, odd| sum * square + 1.0 / odd);
    exponent * LN_2 + 2.0 * s * series
}

/// pymemcache's `RendezvousHash` with its default seed, 0: the score is MurmurHash3 of `name-key`.
#[derive(Clone, Debug)]
pub(super) struct Pymemcache {
    /// For each server: the hash state after the server's name and the `-`, and the server's index
    /// in the list. The servers are sorted by name in descending order. Of several servers with
    /// equal scores, the first one wins, as in pymemcache.
    servers: Box<[(Murmur3, u32)]>,
}

impl Pymemcache {
    pub(super) fn new(nodes: &[Member<'_>]) -> Self {
        let mut named: Vec<_> = nodes.iter().map(|(index, node)| (node.name(), *index)).collect();
        named.sort_by(|(a, _), (b, _)| b.cmp(a));
        let server = |(name, index): (String, u32)| {
            (Murmur3::new(0).update(name.as_bytes()).update(b"-"), index)
        };
        Self { servers: named.into_iter().map(server).collect() }
    }

    pub(super) fn pick_where(
        &self,
        key: &[u8],
        mut is_usable: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut best: Option<(u32, usize)> = None;
        for (name, index) in &self.servers {
            let score = name.update(key).finish();
            let index = *index as usize;
            if best.is_none_or(|(highest, _)| score > highest) && is_usable(index) {
                best = Some((score, index));
            }
        }
        best.map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_exact_to_the_last_bits() {
        let smallest = unit_interval(0);
        let greatest = unit_interval(u64::MAX);
        let hashes = (0..10_000_u64).map(|n| unit_interval(mix(n) >> (n % 60)));
        for x in hashes.chain([smallest, greatest, 0.5, SQRT_2 / 2.0]) {
            let error = (ln(x) - x.ln()).abs();
            assert!(error <= 4.0 * f64::EPSILON * x.ln().abs(), "ln {x}: {error}");
        }
        assert!(smallest > 0.0 && greatest < 1.0);
    }
}
