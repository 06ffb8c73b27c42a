//! Hashing chooses a server for each key.
//!
//! A [`Ring`] is built from a list of [`Node`]s and a method ([`Hashing`]). Several methods are
//! taken from other clients, so a program that switches from such a client finds its keys on the
//! same servers.
//!
//! ```
//! use larder_client::ring::{Hashing, Node, Ring};
//!
//! let nodes = [Node::new("cache-1", 11211), Node::new("cache-2", 11211).weight(2)];
//! let ring = Ring::new(Hashing::Dalli, &nodes)?;
//! let server = ring.pick(b"user:1");
//! // The same server if it is usable, otherwise another one.
//! assert_eq!(ring.pick_where(b"user:1", |_| true), Some(server));
//! assert_eq!(ring.pick_where(b"user:1", |other| other != server), Some(1 - server));
//! # Ok::<(), larder_client::ring::RingError>(())
//! ```
//!
//! | file | contains |
//! |---|---|
//! | `node.rs` | a server and its names |
//! | `key_hash.rs`, `murmur3.rs` | key hash functions |
//! | `continuum.rs` | ketama, in the variants of several clients |
//! | `rendezvous.rs`, `jump.rs` | other consistent hashing methods |

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
/// *Consistent* methods move few keys when the list of servers changes. If the order of the list
/// matters, all clients need the same order (libmemcached's `SORT_HOSTS` sorts by host and port).
///
/// | method | consistent | order matters | weights |
/// |---|---|---|---|
/// | `Rendezvous` | yes | no | yes |
/// | `Jump` | for changes at the end of the list | yes | no |
/// | `Modula`, `Gomemcache` | no | yes | no |
/// | `Ketama`, `KetamaWeighted`, `Spymemcached`, `Dalli` | yes | no | yes |
/// | `Pymemcache` | yes | no | no |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hashing {
    /// Larder's own method, the best choice for most programs. The servers' shares of the keys are
    /// proportional to their weights, and adding or removing a server moves only keys to or from
    /// that server.
    ///
    /// The method is rendezvous hashing with rapidhash and SplitMix64's finaliser. Weighted scores
    /// also use logarithms.
    #[default]
    Rendezvous,
    /// Jump consistent hashing with rapidhash: equal shares of the keys, and no memory for points.
    /// The method identifies servers only by their index in the list. If another server takes over
    /// an index, it gets the keys of that index.
    ///
    /// If a server is not usable, further hashes choose other servers.
    Jump,
    /// The hash modulo the number of servers.
    ///
    /// - libmemcached and pylibmc: the default (with [`KeyHash::OneAtATime`]), and `distribution:
    ///   modula` (with the function that the option `hash` selects). Both clients ignore weights.
    /// - spymemcached: `ArrayModNodeLocator`, its default, with [`KeyHash::Java`].
    ///
    /// If a server is not usable, the ring uses the next server in the list, as spymemcached does
    /// with `FailureMode.Redistribute`. libmemcached does not use another server.
    Modula(KeyHash),
    /// libmemcached's `consistent` and `ketama` distributions: `MEMCACHED_BEHAVIOR_KETAMA`,
    /// pylibmc's `ketama` or `distribution: consistent`. Each server has 100 points. Keys and
    /// points use the same hash function, which pylibmc's option `hash` sets. The default is
    /// [`KeyHash::OneAtATime`].
    ///
    /// If a weight is above 1, the method is [`KetamaWeighted`](Self::KetamaWeighted) with the same
    /// hash function. libmemcached does the same if the program sets the distribution before it
    /// adds the servers, as pylibmc does.
    ///
    /// If a server is not usable, the ring uses the next server on the circle. libmemcached does
    /// the same with `AUTO_EJECT_HOSTS` without weights. With weights, libmemcached recomputes the
    /// points, like a ring with a node that is not [`alive`](Node::alive).
    Ketama(KeyHash),
    /// libmemcached's weighted ketama. Points are from MD5, 160 per server of average weight. The
    /// settings are `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`, pylibmc's `ketama_weighted`, and PHP's
    /// `OPT_LIBKETAMA_COMPATIBLE`. libmemcached hashes keys with [`KeyHash::Md5`], unless the
    /// program sets another hash afterwards. libmemcached treats a weight of 0 as 1.
    ///
    /// The ring handles unusable servers as with [`Ketama`](Self::Ketama).
    KetamaWeighted(KeyHash),
    /// spymemcached's `KetamaNodeLocator` with `KETAMA_HASH` and its own name format:
    /// `KetamaConnectionFactory`, or a `ConnectionFactoryBuilder` with `Locator.CONSISTENT` and
    /// `KETAMA_HASH`. spymemcached hashes `host/ip:port`, so servers configured by host name need
    /// [`Node::ip`] (IPv4). Servers configured by IP address do not need [`Node::ip`].
    ///
    /// If a server is not usable, up to six further hashes choose other servers, as in spymemcached
    /// with `FailureMode.Redistribute`. After these hashes, the ring uses the next servers on the
    /// circle, unlike spymemcached.
    Spymemcached,
    /// dalli's ring. Points are from SHA-1, 160 per server of average weight. The key hash is
    /// CRC-32. dalli includes its namespace in the hashed key.
    ///
    /// If a server is not usable, up to 19 further hashes choose other servers, as with dalli's
    /// `failover`. After these hashes, the ring uses the next servers on the circle, unlike dalli.
    Dalli,
    /// pymemcache's `HashClient` with its default hasher, for ASCII keys of type `str`. (pymemcache
    /// hashes keys of type `bytes` in their printed form, `b'user:1'`, including the quotes.) The
    /// hashed key does not include `key_prefix`.
    ///
    /// If a server is not usable, the ring uses the server with the next highest score, as
    /// pymemcache does.
    Pymemcache,
    /// gomemcache's `ServerList`: [`Modula`](Self::Modula) with [`KeyHash::Crc32`]. A server that
    /// is listed several times gets more keys. If a server is not usable, gomemcache does not use
    /// another server.
    Gomemcache,
}

/// The reason why a ring cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// No server is alive with a weight above 0.
    #[error("no server is alive with a weight above 0")]
    NoNodes,
    /// The method does not support weights, and the weights differ.
    #[error("this hashing method does not support weights: use equal weights")]
    WeightsUnsupported,
}

/// A method of distributing keys over an immutable list of servers, with its precomputed points or
/// hashes.
///
/// A server that is listed twice has two shares with [`Modula`](Hashing::Modula),
/// [`Gomemcache`](Hashing::Gomemcache) and [`Jump`](Hashing::Jump). With the other methods, one of
/// the two entries gets all keys if their weights are equal.
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
    /// Builds a ring of the servers that are alive and have a weight above 0. Methods with points
    /// use eight bytes of memory per point.
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
            // Omit servers of weight 0: these two clients include them in the number of servers
            // when they compute the points.
            Hashing::Spymemcached => Method::Continuum(Continuum::spymemcached(&alive)),
            Hashing::Dalli => Method::Continuum(Continuum::dalli(&alive)),
            Hashing::Pymemcache => Method::Pymemcache(Pymemcache::new(&members)),
        }))
    }

    /// Returns the index of a key's server in the node list.
    #[must_use]
    pub fn pick(&self, key: &[u8]) -> usize {
        self.pick_where(key, |_| true).expect("a ring has a server")
    }

    /// Returns the index of a key's server in the node list. If `is_usable` rejects that server,
    /// returns the next usable server for this key, or `None` if no server is usable.
    ///
    /// Keys of usable servers keep their server. The keys of an unusable server are spread over the
    /// usable servers, with two exceptions: [`Modula`](Hashing::Modula) and
    /// [`Gomemcache`](Hashing::Gomemcache) move all keys of the server to one other server.
    /// `is_usable` may be called several times for a server.
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
