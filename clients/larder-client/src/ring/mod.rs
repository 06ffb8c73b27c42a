//! Which server a key belongs to.
//!
//! A [`Ring`] is made of a list of [`Node`]s and a method, a [`Hashing`]. Several methods are those of other clients,
//! so that a program that changes from one of them finds its keys where they are.
//!
//! ```
//! use larder_client::ring::{Hashing, Node, Ring};
//!
//! let nodes = [Node::new("cache-1", 11211), Node::new("cache-2", 11211).weight(2)];
//! let ring = Ring::new(Hashing::Dalli, &nodes)?;
//! let server = ring.pick(b"user:1");
//! // The same server, as long as it is well; then the next.
//! assert_eq!(ring.pick_where(b"user:1", |_| true), Some(server));
//! assert_eq!(ring.pick_where(b"user:1", |other| other != server), Some(1 - server));
//! # Ok::<(), larder_client::ring::RingError>(())
//! ```
//!
//! | file | contains |
//! |---|---|
//! | `node.rs` | a server and its names |
//! | `key_hash.rs`, `murmur3.rs` | hash functions of keys |
//! | `continuum.rs` | ketama, in several clients' ways |
//! | `rendezvous.rs`, `jump.rs` | other consistent hashing |

mod continuum;
mod jump;
mod key_hash;
mod murmur3;
mod node;
mod rendezvous;

pub use key_hash::KeyHash;
pub use larder_protocol::{SLOTS, slot};
pub use murmur3::murmur3;
pub use node::Node;

use continuum::Continuum;
use rendezvous::{Pymemcache, Rendezvous};
use thiserror::Error;

/// A method of distributing keys over servers.
///
/// *Consistent* methods move few keys if the list of servers changes. Where the order of the list counts, all clients
/// need to have it in the same order (libmemcached's `SORT_HOSTS` sorts by host and port).
///
/// | method | consistent | order counts | weights |
/// |---|---|---|---|
/// | `Rendezvous` | yes | no | yes |
/// | `Jump` | if servers come and go at the end of the list | yes | no |
/// | `Modula`, `Gomemcache` | no | yes | no |
/// | `Ketama`, `KetamaWeighted`, `Spymemcached`, `Dalli` | yes | no | yes |
/// | `Pymemcache` | yes | no | no |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hashing {
    /// Ours, which suits most: even shares, and a server that is added or removed moves its own keys alone.
    ///
    /// Rendezvous hashing by rapidhash and SplitMix64's finaliser; with weights, by logarithms.
    #[default]
    Rendezvous,
    /// Jump consistent hashing by rapidhash, with even shares and without memory for points. Servers are told by their
    /// places in the list alone: whoever takes the place of another gets its keys.
    ///
    /// Instead of a server that is not usable others are tried by further hashes.
    Jump,
    /// The hash modulo the number of servers.
    ///
    /// - libmemcached and pylibmc: their default, with [`KeyHash::OneAtATime`]; `distribution: modula` with the `hash`
    ///   in question. They ignore weights.
    /// - spymemcached: `ArrayModNodeLocator`, its default, with [`KeyHash::Java`].
    ///
    /// Instead of a server that is not usable the one after it in the list is tried, as spymemcached does by
    /// `FailureMode.Redistribute`. libmemcached does not try another.
    Modula(KeyHash),
    /// libmemcached's `consistent` and `ketama` distributions: `MEMCACHED_BEHAVIOR_KETAMA`, pylibmc's `ketama` or
    /// `distribution: consistent`. They use the same hash for keys and for points (100 for a server): in pylibmc
    /// `hash`, by default [`KeyHash::OneAtATime`].
    ///
    /// With a weight above 1 this is [`KetamaWeighted`](Self::KetamaWeighted) with the same hash, as there if the
    /// distribution was set before the servers were added, which pylibmc does.
    ///
    /// Instead of a server that is not usable the next on the circle is tried. libmemcached does the same by
    /// `AUTO_EJECT_HOSTS` without weights; with weights it distributes the points anew, as a ring does whose node is
    /// not [`alive`](Node::alive).
    Ketama(KeyHash),
    /// libmemcached's weighted ketama, with points by MD5, 160 for a server of average weight:
    /// `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`, pylibmc's `ketama_weighted`, PHP's `OPT_LIBKETAMA_COMPATIBLE`. Keys are
    /// hashed by [`KeyHash::Md5`], unless another hash is set after it. A weight of 0 is taken for 1 there.
    ///
    /// Servers that are not usable are treated as by [`Ketama`](Self::Ketama).
    KetamaWeighted(KeyHash),
    /// spymemcached's `KetamaNodeLocator` with `KETAMA_HASH` and its own format of names: `KetamaConnectionFactory`,
    /// or a `ConnectionFactoryBuilder` with `Locator.CONSISTENT` and `KETAMA_HASH`. It hashes `host/ip:port`: servers
    /// that are configured by host need [`Node::ip`] (IPv4), those that are configured by their IP address do not.
    ///
    /// Instead of a server that is not usable up to six others are tried by further hashes, as it does by
    /// `FailureMode.Redistribute`; after them, unlike there, the next on the circle.
    Spymemcached,
    /// dalli's ring, with points by SHA-1, 160 for a server of average weight, and keys by CRC-32. What is hashed is the
    /// key with its namespace.
    ///
    /// Instead of a server that is not usable up to 19 others are tried by further hashes, as with dalli's `failover`;
    /// after them, unlike there, the next on the circle.
    Dalli,
    /// pymemcache's `HashClient` with its default hasher, for keys of type `str` in ASCII. (It hashes keys of type
    /// `bytes` as they are printed: `b'user:1'`, quotes included.) What is hashed is the key without `key_prefix`.
    ///
    /// Instead of a server that is not usable the one with the next highest score is used, as there.
    Pymemcache,
    /// gomemcache's `ServerList`: [`Modula`](Self::Modula) with [`KeyHash::Crc32`]. Weights are given by listing a
    /// server several times. gomemcache does not try another server.
    Gomemcache,
}

/// Why there is no such ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// No server is alive and has a weight.
    #[error("there is no server that takes keys")]
    NoNodes,
    /// The method has no weights, and those of the servers differ.
    #[error("this method of hashing gives all servers the same share: their weights must be equal")]
    WeightsUnsupported,
}

/// A method of distributing keys, made ready for a list of servers. It does not change: for another list another is
/// made.
///
/// A server that is listed twice has two shares with [`Modula`](Hashing::Modula), [`Gomemcache`](Hashing::Gomemcache)
/// and [`Jump`](Hashing::Jump). With the others one of the two gets all the keys, if
/// their weights are equal.
#[derive(Clone, Debug)]
pub struct Ring(Method);

#[derive(Clone, Debug)]
enum Method {
    One(usize),
    Modula(KeyHash, Box<[usize]>),
    Jump(Box<[usize]>),
    Continuum(Continuum),
    Rendezvous(Rendezvous),
    Pymemcache(Pymemcache),
}

impl Ring {
    /// A ring of the servers that are alive and whose weight is not 0. Methods with points keep eight bytes for each.
    ///
    /// # Errors
    /// See [`RingError`].
    pub fn new(hashing: Hashing, nodes: &[Node]) -> Result<Self, RingError> {
        let alive: Vec<_> = (0_u32..).zip(nodes).filter(|(_, node)| node.is_alive()).collect();
        let mut members = alive.clone();
        members.retain(|(_, node)| node.share() > 0);
        let [(first, node), others @ ..] = members.as_slice() else {
            return Err(RingError::NoNodes);
        };
        let is_weighted = others.iter().any(|(_, other)| other.share() != node.share());
        if is_weighted && !hashing.has_weights() {
            return Err(RingError::WeightsUnsupported);
        }
        if others.is_empty() {
            return Ok(Self(Method::One(*first as usize)));
        }
        let indexes = || members.iter().map(|(index, _)| *index as usize).collect();
        Ok(Self(match hashing {
            Hashing::Rendezvous => Method::Rendezvous(Rendezvous::new(&members)),
            Hashing::Jump => Method::Jump(indexes()),
            Hashing::Modula(hash) => Method::Modula(hash, indexes()),
            Hashing::Gomemcache => Method::Modula(KeyHash::Crc32, indexes()),
            Hashing::Ketama(hash) if members.iter().all(|(_, node)| node.share() == 1) => {
                Method::Continuum(Continuum::libmemcached(&members, hash))
            }
            Hashing::Ketama(hash) | Hashing::KetamaWeighted(hash) => {
                Method::Continuum(Continuum::libmemcached_weighted(&members, hash))
            }
            // These two count servers without weight when they distribute the points.
            Hashing::Spymemcached => Method::Continuum(Continuum::spymemcached(&alive)),
            Hashing::Dalli => Method::Continuum(Continuum::dalli(&alive)),
            Hashing::Pymemcache => Method::Pymemcache(Pymemcache::new(&members)),
        }))
    }

    /// The index of the server that a key belongs to, in the list that the ring was made of.
    #[must_use]
    pub fn pick(&self, key: &[u8]) -> usize {
        self.pick_where(key, |_| true).expect("a ring has a server")
    }

    /// The index of the server that a key belongs to, or, unless `is_usable`, of the first usable one of those that
    /// come after it for this key; `None` if none that takes keys is usable.
    ///
    /// Keys of usable servers stay where they are. The others are spread over the usable servers, except with
    /// [`Modula`](Hashing::Modula) and [`Gomemcache`](Hashing::Gomemcache), where those of one server all go to another.
    /// `is_usable` can be asked of a server several times.
    #[must_use]
    pub fn pick_where(
        &self,
        key: &[u8],
        mut is_usable: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        match &self.0 {
            Method::One(index) => is_usable(*index).then_some(*index),
            Method::Modula(hash, indexes) => {
                let (before, after) = indexes.split_at(hash.hash(key) as usize % indexes.len());
                after.iter().chain(before).copied().find(|index| is_usable(*index))
            }
            Method::Jump(indexes) => {
                let index = |bucket: usize| indexes.get(bucket).copied();
                let is_usable = |bucket| index(bucket).is_some_and(&mut is_usable);
                jump::pick_where(key, indexes.len(), is_usable).and_then(index)
            }
            Method::Continuum(continuum) => continuum.pick_where(key, is_usable),
            Method::Rendezvous(rendezvous) => rendezvous.pick_where(key, is_usable),
            Method::Pymemcache(pymemcache) => pymemcache.pick_where(key, is_usable),
        }
    }
}

impl Hashing {
    fn has_weights(self) -> bool {
        match self {
            Self::Rendezvous | Self::Ketama(_) | Self::KetamaWeighted(_) => true,
            Self::Spymemcached | Self::Dalli => true,
            Self::Jump | Self::Modula(_) | Self::Pymemcache | Self::Gomemcache => false,
        }
    }
}
