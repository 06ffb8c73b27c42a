//! A client's servers, and how a key selects one of them.

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

/// The handling of keys whose server is unreachable, or unavailable after several faults in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failover {
    /// Calls for these keys fail at once, except for probes, until the server works again. With
    /// this setting, only one server ever stores a key.
    #[default]
    Fail,
    /// Calls for these keys use the next server in the order of the hashing method. If a call
    /// certainly changed nothing, for example because the connection was refused, the client
    /// repeats it on the next server. It does not repeat a call that timed out. A server that
    /// becomes available again without a restart still has its old values, and callers get these
    /// values.
    Next,
}

/// Servers of the type `S`, with their hash ring.
#[derive(Debug)]
pub(crate) struct Servers<S> {
    pub(crate) list: Box<[Arc<S>]>,
    /// Whether each server supports meta commands, in the order of `list`. A cell is empty until
    /// its server is probed.
    know_meta: Box<[OnceLock<bool>]>,
    ring: Ring,
    failover: Failover,
}

/// The keys of a call that belong to one server.
pub(crate) struct ServerKeys<'s, 'k, S> {
    pub(crate) server: &'s S,
    pub(crate) keys: Vec<Key<'k>>,
    /// The keys' indexes in the call's list of keys.
    positions: Vec<usize>,
}

/// The interface of a server in [`Servers`].
pub(crate) trait ServerHandle {
    /// Returns the address as configured or discovered.
    fn name(&self) -> &Arc<str>;

    /// Returns the server's metrics.
    fn recorder(&self) -> &ServerRecorder;

    /// Returns whether the server's breaker would admit a call.
    fn is_available(&self, now: Instant) -> bool;

    /// Admits a call.
    ///
    /// # Errors
    /// `Unavailable`: the breaker is open.
    fn admit(&self, now: Instant) -> Result<Admission<'_>, Error>;

    /// Closes all connections. Further calls fail.
    fn close(&self);

    /// Returns the numbers of open connections, idle connections, and calls that wait for a
    /// connection. With a pool, the first number includes connections that are being opened. With
    /// shared connections, the third number is always 0.
    fn connections(&self) -> (usize, usize, usize);
}

impl<S> Servers<S> {
    pub(crate) fn new(list: Vec<Arc<S>>, ring: Ring, failover: Failover) -> Self {
        let know_meta = list.iter().map(|_| OnceLock::new()).collect();
        Self { list: list.into(), know_meta, ring, failover }
    }
}

impl<S: ServerHandle> Servers<S> {
    /// Returns the index of a key's server. With failover, the function skips unavailable servers
    /// and the servers that have `failed` in this call, if any other server is usable.
    fn index(&self, key: &[u8], now: Instant, failed: &[&S]) -> usize {
        let is_usable = |index: usize| {
            self.list.get(index).is_some_and(|server| is_usable(&**server, now, failed))
        };
        match self.failover {
            Failover::Fail => self.ring.pick(key),
            // If no server is usable, the key's own server reports the error.
            Failover::Next => {
                self.ring.pick_where(key, is_usable).unwrap_or_else(|| self.ring.pick(key))
            }
        }
    }

    fn choose(&self, key: &[u8], now: Instant, failed: &[&S]) -> &S {
        self.list.get(self.index(key, now, failed)).expect("the ring was built from the list")
    }

    /// Returns the server of a key, and the admission of a call to it. With failover, the function
    /// skips unavailable servers and the servers that have `failed` in this call, if any other
    /// server is usable.
    ///
    /// Between the choice of a server and the admission, another call may become the probe of that
    /// server. With `Failover::Next`, this call then uses the next server.
    pub(crate) fn admit(
        &self,
        key: &[u8],
        now: Instant,
        failed: &[&S],
    ) -> (&S, Result<Admission<'_>, Error>) {
        let mut server = self.choose(key, now, failed);
        let mut admitted = server.admit(now);
        for _ in 1..self.list.len() {
            if admitted.is_ok() || self.failover == Failover::Fail {
                break;
            }
            server = self.choose(key, now, failed);
            admitted = server.admit(now);
        }
        (server, admitted)
    }

    /// Returns whether a call that failed with this error can use another server: failover is on,
    /// the error permits it, and a usable server is left. `failed` contains all servers that have
    /// failed in the call.
    pub(crate) fn can_move(&self, error: &Error, failed: &[&S]) -> bool {
        let moves = self.failover == Failover::Next && error.may_try_another_server();
        let is_other = |server: &Arc<S>| is_usable(&**server, Instant::now(), failed);
        moves && failed.len() < self.list.len() && self.list.iter().any(is_other)
    }

    /// Returns the server of a key, and the cell that records whether the server supports meta
    /// commands. The cell is empty before the first probe.
    pub(crate) fn with_meta(&self, key: &[u8], now: Instant) -> (&S, &OnceLock<bool>) {
        let index = self.index(key, now, &[]);
        let server = self.list.get(index).map(Arc::as_ref);
        server.zip(self.know_meta.get(index)).expect("the ring was built from the list")
    }
}

/// The keys of a call that have no result yet. In each round, the client sends these keys to
/// servers that have not failed in this call.
pub(crate) struct Rounds<'s, 'k, S> {
    servers: &'s Servers<S>,
    /// The keys, with their indexes among all keys.
    left: Vec<(usize, Key<'k>)>,
    /// The servers that have failed in this call.
    failed: Vec<&'s S>,
    /// The start of the call.
    now: Instant,
}

impl<'s, 'k, S: ServerHandle> Rounds<'s, 'k, S> {
    pub(crate) fn new(
        servers: &'s Servers<S>,
        keys: impl IntoIterator<Item = Key<'k>>,
        now: Instant,
    ) -> Self {
        let left = keys.into_iter().enumerate().collect();
        Self { servers, left, failed: Vec::new(), now }
    }

    /// Groups the remaining keys by server, in the order of the server list. Returns no group if
    /// all keys have results.
    pub(crate) fn parts(&mut self) -> Vec<ServerKeys<'s, 'k, S>> {
        let part = |server| ServerKeys { server, keys: Vec::new(), positions: Vec::new() };
        let mut parts: Vec<_> = self.servers.list.iter().map(Arc::as_ref).map(part).collect();
        for (position, key) in self.left.drain(..) {
            if let Some(part) =
                parts.get_mut(self.servers.index(key.bytes(), self.now, &self.failed))
            {
                part.keys.push(key);
                part.positions.push(position);
            }
        }
        parts.retain(|part| !part.keys.is_empty());
        parts
    }

    /// Passes the results of servers to `take`. If a failed server's keys can move to another
    /// server, keeps them for the next round. Otherwise returns the server's error.
    pub(crate) fn settle<T>(
        &mut self,
        parts: &[ServerKeys<'s, 'k, S>],
        called: Vec<Result<T, Error>>,
        mut take: impl FnMut(&ServerKeys<'s, 'k, S>, T),
    ) -> Vec<Error> {
        let mut errors = Vec::new();
        for (part, called) in parts.iter().zip(called) {
            match called {
                Ok(result) => take(part, result),
                Err(error) => {
                    self.failed.push(part.server);
                    if self.servers.can_move(&error, &self.failed) {
                        self.left.extend(part.indexed());
                    } else {
                        errors.push(error);
                    }
                }
            }
        }
        errors
    }
}

/// Checks all keys. Returns the error of the first invalid key.
pub(crate) fn checked<K: AsRef<[u8]>>(keys: &[K]) -> Result<Vec<Key<'_>>, Error> {
    keys.iter().map(|key| Ok(Key::new(key.as_ref())?)).collect()
}

fn is_usable<S: ServerHandle>(server: &S, now: Instant, failed: &[&S]) -> bool {
    !failed.iter().any(|other| std::ptr::eq(*other, server)) && server.is_available(now)
}

/// Returns the outputs of all servers, or the first error. The error of a change is ambiguous if
/// any server has made, or may have made, the change.
pub(crate) fn all<T>(called: Vec<Result<T, Error>>, reads: bool) -> Result<Vec<T>, Error> {
    let has_changed =
        !reads && called.iter().any(|called| called.as_ref().err().is_none_or(Error::is_ambiguous));
    let outputs: Result<_, Error> = called.into_iter().collect();
    outputs.map_err(|error| if has_changed { error.ambiguous() } else { error })
}

impl<'k, S> ServerKeys<'_, 'k, S> {
    /// Selects the elements of `all` that belong to these keys.
    pub(crate) fn pick<T: Clone>(&self, all: &[T]) -> Vec<T> {
        self.positions.iter().filter_map(|position| all.get(*position).cloned()).collect()
    }

    /// Returns the keys with their indexes.
    fn indexed(&self) -> impl Iterator<Item = (usize, Key<'k>)> {
        self.positions.iter().copied().zip(self.keys.iter().copied())
    }

    /// Stores the elements for these keys at their indexes in `found`.
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

    /// A server that a competing call starts to probe after the tested call has checked the breaker
    /// and before the breaker admits that call.
    #[derive(Debug)]
    struct ContendedServer {
        name: Arc<str>,
        health: Health,
        recorder: Arc<ServerRecorder>,
    }

    impl ServerHandle for ContendedServer {
        fn name(&self) -> &Arc<str> {
            &self.name
        }

        fn recorder(&self) -> &ServerRecorder {
            &self.recorder
        }

        fn is_available(&self, now: Instant) -> bool {
            let is_available = self.health.is_available(now);
            // Admits the competing call. If that call is the probe, it never ends, because `forget`
            // skips the drop of its admission.
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

    /// Returns three servers and a key of the first server. The servers named in `failed` have an
    /// open breaker.
    fn servers(failed: &[&str], failover: Failover) -> (Servers<ContendedServer>, String) {
        let names = ["a", "b", "c"];
        let server = |name: &&str| {
            let recorder = Arc::new(ServerRecorder::new(name));
            let health = Health::new(None, Arc::clone(&recorder));
            let fault = Error::definite(ErrorKind::Timeout);
            if failed.contains(name) {
                (0..5).for_each(|_| health.admit(Instant::now()).unwrap().note(Some(&fault)));
            }
            Arc::new(ContendedServer { name: (*name).into(), health, recorder })
        };
        let ring = Ring::new(Hashing::default(), &names.map(|name| Node::new(name, 1))).unwrap();
        let key = (0..).map(|n| n.to_string()).find(|key| ring.pick(key.as_bytes()) == 0).unwrap();
        (Servers::new(names.iter().map(server).collect(), ring, failover), key)
    }

    #[test]
    fn a_call_uses_the_next_server_if_another_call_probes_its_own() {
        let later = Instant::now() + Duration::from_secs(1);
        for (failed, is_admitted) in
            [(&["a"][..], true), (&["a", "b"], true), (&["a", "b", "c"], false)]
        {
            let (servers, key) = servers(failed, Failover::Next);
            let (server, admitted) = servers.admit(key.as_bytes(), later, &[]);
            assert_eq!(admitted.is_ok(), is_admitted, "{failed:?}");
            assert_eq!(failed.contains(&&*server.name), !is_admitted, "{failed:?}");
        }
    }

    #[test]
    fn without_failover_a_key_stays_with_its_server() {
        let later = Instant::now() + Duration::from_secs(1);
        let (servers, key) = servers(&["a"], Failover::Fail);
        let (server, admitted) = servers.admit(key.as_bytes(), later, &[]);
        assert!(&*server.name == "a" && admitted.is_ok());
        let (server, refused) = servers.admit(key.as_bytes(), later, &[]);
        assert!(&*server.name == "a" && refused.is_err());
    }
}
