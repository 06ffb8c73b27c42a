//! Ketama hashing. Each server has several points on a circle of 2³² hash values. A key belongs to
//! the server of the first point at or after the key's hash. In dalli, the key belongs to the
//! server of the last point at or before the hash.

use super::key_hash::KeyHash;
use super::node::{Member, Node};
use crc32fast::Hasher;
use itoa::Buffer;
use md5::{Digest, Md5};
use sha1::Sha1;
use std::cmp::Reverse;

/// The number of points for a server of average weight.
const POINTS: u16 = 160;
/// The number of points per server in libmemcached without weights.
const POINTS_UNWEIGHTED: u32 = 100;

#[derive(Clone, Debug)]
pub(super) struct Continuum {
    /// The points, sorted by value.
    points: Box<[Point]>,
    client: Client,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    value: u32,
    node: u32,
}

/// The client that defines the continuum.
#[derive(Clone, Copy, Debug)]
enum Client {
    Libmemcached(KeyHash),
    Spymemcached,
    Dalli,
}

impl Continuum {
    /// Computes the points like libmemcached's `update_continuum` without weights.
    pub(super) fn libmemcached(nodes: &[Member<'_>], hash: KeyHash) -> Self {
        let points = nodes.iter().flat_map(|(index, node)| {
            let name = node.libmemcached_name();
            let value = move |i| hash.hash(format!("{name}-{i}").as_bytes());
            (0..POINTS_UNWEIGHTED).map(value).map(|value| Point { value, node: *index })
        });
        let mut points: Box<[Point]> = points.collect();
        points.sort_by_key(|point| (point.value, point.node));
        Self { points, client: Client::Libmemcached(hash) }
    }

    /// Computes the points like libmemcached's `update_continuum` with weights. If several servers
    /// have the same point, the first of these servers gets the keys of the point.
    pub(super) fn libmemcached_weighted(nodes: &[Member<'_>], hash: KeyHash) -> Self {
        let mut points = md5_points(nodes, Node::libmemcached_name, &float_shares(nodes));
        points.sort_by_key(|point| (point.value, point.node));
        Self { points, client: Client::Libmemcached(hash) }
    }

    /// Computes the points like spymemcached's `setKetamaNodes`. If several servers have the same
    /// point, the last of these servers gets the keys of the point.
    pub(super) fn spymemcached(nodes: &[Member<'_>]) -> Self {
        let is_weighted = nodes.iter().any(|(_, node)| node.share() != 1);
        let digests = match is_weighted {
            true => float_shares(nodes),
            false => vec![u32::from(POINTS / 4); nodes.len()],
        };
        let mut points = md5_points(nodes, Node::spymemcached_name, &digests);
        points.sort_by_key(|point| (point.value, Reverse(point.node)));
        Self { points, client: Client::Spymemcached }
    }

    /// Computes the points like dalli's `build_continuum`.
    pub(super) fn dalli(nodes: &[Member<'_>]) -> Self {
        let total: u128 = nodes.iter().map(|(_, node)| u128::from(node.share())).sum();
        let all = nodes.len() as u128 * u128::from(POINTS);
        let points = nodes.iter().flat_map(|(index, node)| {
            let count = all * u128::from(node.share()) / total.max(1);
            let name = node.name();
            let value = move |i| {
                let [a, b, c, d, ..]: [u8; 20] = Sha1::digest(format!("{name}:{i}")).into();
                u32::from_be_bytes([a, b, c, d])
            };
            (0..count).map(value).map(|value| Point { value, node: *index })
        });
        let mut points: Box<[Point]> = points.collect();
        points.sort_by_key(|point| point.value);
        Self { points, client: Client::Dalli }
    }

    /// Returns the server of a key. If that server is not usable, tries the servers of the key's
    /// further hashes, if the client defines any, and then the servers of all following points on
    /// the circle. Returns `None` if no server is usable.
    pub(super) fn pick_where(
        &self,
        key: &[u8],
        mut is_usable: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut hash = self.client.hash(key);
        for attempt in 0..self.client.rehashes() {
            let node = self.points.get(self.position(hash))?.node as usize;
            if is_usable(node) {
                return Some(node);
            }
            hash = self.client.rehash(hash, attempt, key);
        }
        let (before, after) = self.points.split_at(self.position(hash));
        let mut nodes = after.iter().chain(before).map(|point| point.node as usize);
        nodes.find(|node| is_usable(*node))
    }

    /// Returns the index of the point to which a hash belongs.
    fn position(&self, hash: u32) -> usize {
        let last = self.points.len().saturating_sub(1);
        match self.client {
            Client::Libmemcached(_) | Client::Spymemcached => {
                let following = self.points.partition_point(|point| point.value < hash);
                if following > last { 0 } else { following }
            }
            Client::Dalli => {
                let following = self.points.partition_point(|point| point.value <= hash);
                following.checked_sub(1).unwrap_or(last)
            }
        }
    }
}

impl Client {
    fn hash(self, key: &[u8]) -> u32 {
        match self {
            Self::Libmemcached(hash) => hash.hash(key),
            Self::Spymemcached => KeyHash::Md5.hash(key),
            Self::Dalli => KeyHash::Crc32.hash(key),
        }
    }

    /// Returns how many further hashes the client tries if a server is unavailable.
    fn rehashes(self) -> u8 {
        match self {
            Self::Libmemcached(_) => 0,
            Self::Spymemcached => 6,
            Self::Dalli => 19,
        }
    }

    /// Returns the next hash of a key: the hash of the attempt's number followed by the key.
    /// spymemcached adds this hash to the previous one.
    fn rehash(self, hash: u32, attempt: u8, key: &[u8]) -> u32 {
        let mut number = Buffer::new();
        let number = number.format(attempt).as_bytes();
        match self {
            Self::Libmemcached(_) => hash,
            Self::Spymemcached => {
                let digest = Md5::new().chain_update(number).chain_update(key).finalize();
                let [a, b, c, d, ..]: [u8; 16] = digest.into();
                hash.wrapping_add(u32::from_le_bytes([a, b, c, d]))
            }
            Self::Dalli => {
                let mut hasher = Hasher::new();
                hasher.update(number);
                hasher.update(key);
                hasher.finalize()
            }
        }
    }
}

/// Computes how many digests each server gets, from its share of the total weight. Rounding affects
/// the result, so the function calculates in single precision and in the same order as the other
/// clients. The other clients also add 10⁻¹⁰, which is too small to change the result.
#[expect(clippy::cast_possible_truncation, reason = "the other clients truncate, too")]
fn float_shares(nodes: &[Member<'_>]) -> Vec<u32> {
    let total: u64 = nodes.iter().map(|(_, node)| u64::from(node.share())).sum();
    let shares = nodes.iter().map(|(_, node)| node.share() as f32 / total as f32);
    shares.map(|share| (share * f32::from(POINTS) / 4.0 * nodes.len() as f32) as u32).collect()
}

/// Computes the points. Each digest of a server's name and a number gives four points.
fn md5_points(
    nodes: &[Member<'_>],
    name: impl Fn(&Node) -> String,
    digests: &[u32],
) -> Box<[Point]> {
    let mut points = Vec::new();
    for ((index, node), digests) in nodes.iter().zip(digests) {
        let name = name(node);
        for i in 0..*digests {
            let digest: [u8; 16] = Md5::digest(format!("{name}-{i}")).into();
            let words = digest.as_chunks::<4>().0.iter();
            points
                .extend(words.map(|word| Point { value: u32::from_le_bytes(*word), node: *index }));
        }
    }
    points.into()
}
