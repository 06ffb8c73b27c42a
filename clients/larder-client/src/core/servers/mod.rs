//! Several servers, and which of them a key belongs to.

pub(crate) mod breaker;
pub(crate) mod health;
pub(crate) mod server_set;

use crate::core::key::Key;
use crate::core::servers::health::Admission;
use crate::error::Error;
use crate::metrics::ServerRecorder;
use crate::ring::Ring;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What becomes of keys whose server is left alone after many faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failover {
    /// Calls for them fail at once, until the server is back. No key is ever in two places.
    #[default]
    Fail,
    /// They go to the next server that the hashing has for them, until their own is back, which then has the values from
    /// before.
    Next,
}

/// Servers of the type `S`, and the ring that they are in.
#[derive(Debug)]
pub(crate) struct Servers<S> {
    pub(crate) list: Box<[Arc<S>]>,
    /// Whether each server knows meta commands, once it was asked.
    know_meta: Box<[OnceLock<bool>]>,
    ring: Ring,
    failover: Failover,
}

/// Keys that belong to the same server.
pub(crate) struct Part<'s, 'k, S> {
    pub(crate) server: &'s S,
    pub(crate) keys: Vec<Key<'k>>,
    /// Where they are among all the keys.
    positions: Vec<usize>,
}

/// A server, as one of several.
pub(crate) trait Member {
    /// Its address, as it was given.
    fn name(&self) -> &Arc<str>;

    /// What is counted of it.
    fn recorder(&self) -> &ServerRecorder;

    /// Whether calls are let through at the moment.
    fn is_available(&self, now: Instant) -> bool;

    /// Lets a call through.
    ///
    /// # Errors
    /// The server is left alone for a moment.
    fn admit(&self, now: Instant) -> Result<Admission<'_>, Error>;

    /// Closes all connections; further calls fail.
    fn close(&self);

    /// Connections that are open or being opened, those that are idle, and the calls that wait for one.
    fn connections(&self) -> (usize, usize, usize);
}

impl<S> Servers<S> {
    pub(crate) fn new(list: Vec<Arc<S>>, ring: Ring, failover: Failover) -> Self {
        let know_meta = list.iter().map(|_| OnceLock::new()).collect();
        Self { list: list.into(), know_meta, ring, failover }
    }
}

impl<S: Member> Servers<S> {
    fn index(&self, key: &[u8], now: Instant) -> usize {
        let is_available =
            |index| self.list.get(index).is_some_and(|server: &Arc<S>| server.is_available(now));
        match self.failover {
            Failover::Fail => self.ring.pick(key),
            // If none is available, its own one says so.
            Failover::Next => {
                self.ring.pick_where(key, is_available).unwrap_or_else(|| self.ring.pick(key))
            }
        }
    }

    fn of(&self, key: &[u8], now: Instant) -> &S {
        self.list.get(self.index(key, now)).expect("the ring is that of the list")
    }

    /// The server that a key belongs to, and whether it lets a call through.
    ///
    /// Another call may begin to try a server that was left alone, after this one has chosen it. With `Failover::Next`
    /// this call goes to the next server then.
    pub(crate) fn admit(&self, key: &[u8], now: Instant) -> (&S, Result<Admission<'_>, Error>) {
        let mut server = self.of(key, now);
        let mut admitted = server.admit(now);
        for _ in 1..self.list.len() {
            if admitted.is_ok() || self.failover == Failover::Fail {
                break;
            }
            server = self.of(key, now);
            admitted = server.admit(now);
        }
        (server, admitted)
    }

    /// The server that a key belongs to, and whether it knows meta commands, once it was asked.
    pub(crate) fn with_meta(&self, key: &[u8], now: Instant) -> (&S, &OnceLock<bool>) {
        let index = self.index(key, now);
        let server = self.list.get(index).map(Arc::as_ref);
        server.zip(self.know_meta.get(index)).expect("the ring is that of the list")
    }

    /// Keys by their servers, in the order of the list.
    pub(crate) fn parts<'k>(&self, keys: &[Key<'k>], now: Instant) -> Vec<Part<'_, 'k, S>> {
        let part = |server| Part { server, keys: Vec::new(), positions: Vec::new() };
        let mut parts: Vec<_> = self.list.iter().map(Arc::as_ref).map(part).collect();
        for (position, key) in keys.iter().enumerate() {
            if let Some(part) = parts.get_mut(self.index(key.bytes(), now)) {
                part.keys.push(*key);
                part.positions.push(position);
            }
        }
        parts.retain(|part| !part.keys.is_empty());
        parts
    }
}

/// The outputs of all servers, or the first error. Whether it is ambiguous is said of all: one that did nothing is none
/// for a change that others may have made.
pub(crate) fn all<T>(called: Vec<Result<T, Error>>, reads: bool) -> Result<Vec<T>, Error> {
    let has_changed =
        !reads && called.iter().any(|called| called.as_ref().err().is_none_or(Error::is_ambiguous));
    let outputs: Result<_, Error> = called.into_iter().collect();
    outputs.map_err(|error| if has_changed { error.ambiguous() } else { error })
}

impl<S> Part<'_, '_, S> {
    /// Of what there is for each of all the keys, what is for its own.
    pub(crate) fn pick<T: Clone>(&self, all: &[T]) -> Vec<T> {
        self.positions.iter().filter_map(|position| all.get(*position).cloned()).collect()
    }

    /// Puts what was found for its keys among what was found for all.
    pub(crate) fn put<T>(&self, items: impl IntoIterator<Item = T>, found: &mut [T]) {
        for (position, item) in self.positions.iter().zip(items) {
            if let Some(slot) = found.get_mut(*position) {
                *slot = item;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::servers::health::Health;
    use crate::error::ErrorKind;
    use crate::ring::{Hashing, Node};
    use std::time::Duration;

    /// A server that another call begins to try as soon as this one has seen that it may be tried.
    #[derive(Debug)]
    struct Contended {
        name: Arc<str>,
        health: Health,
        recorder: Arc<ServerRecorder>,
    }

    impl Member for Contended {
        fn name(&self) -> &Arc<str> {
            &self.name
        }

        fn recorder(&self) -> &ServerRecorder {
            &self.recorder
        }

        fn is_available(&self, now: Instant) -> bool {
            let is_available = self.health.is_available(now);
            // It does not end.
            std::mem::forget(self.health.admit(now));
            is_available
        }

        fn admit(&self, now: Instant) -> Result<Admission<'_>, Error> {
            self.health.admit(now)
        }

        fn close(&self) {}

        fn connections(&self) -> (usize, usize, usize) {
            (0, 0, 0)
        }
    }

    /// Three servers, of which some have failed, and a key of the first of them.
    fn servers(failed: &[&str], failover: Failover) -> (Servers<Contended>, String) {
        let names = ["a", "b", "c"];
        let server = |name: &&str| {
            let recorder = Arc::new(ServerRecorder::new(name));
            let health = Health::new(None, Arc::clone(&recorder));
            let fault = Error::definite(ErrorKind::Timeout);
            if failed.contains(name) {
                (0..5).for_each(|_| health.admit(Instant::now()).unwrap().note(Some(&fault)));
            }
            Arc::new(Contended { name: (*name).into(), health, recorder })
        };
        let ring = Ring::new(Hashing::default(), &names.map(|name| Node::new(name, 1))).unwrap();
        let key = (0..).map(|n| n.to_string()).find(|key| ring.pick(key.as_bytes()) == 0).unwrap();
        (Servers::new(names.iter().map(server).collect(), ring, failover), key)
    }

    #[test]
    fn a_call_goes_to_the_next_server_if_another_one_tries_its_own() {
        let later = Instant::now() + Duration::from_secs(1);
        for (failed, is_let_through) in
            [(&["a"][..], true), (&["a", "b"], true), (&["a", "b", "c"], false)]
        {
            let (servers, key) = servers(failed, Failover::Next);
            let (server, admitted) = servers.admit(key.as_bytes(), later);
            assert_eq!(admitted.is_ok(), is_let_through, "{failed:?}");
            assert_eq!(failed.contains(&&*server.name), !is_let_through, "{failed:?}");
        }
    }

    #[test]
    fn without_failover_a_key_stays_with_its_server() {
        let later = Instant::now() + Duration::from_secs(1);
        let (servers, key) = servers(&["a"], Failover::Fail);
        let (server, admitted) = servers.admit(key.as_bytes(), later);
        assert!(&*server.name == "a" && admitted.is_ok());
        let (server, refused) = servers.admit(key.as_bytes(), later);
        assert!(&*server.name == "a" && refused.is_err());
    }
}
