//! Copies of the cache: a leader sends its items and changes to followers (`--replicate-on`), and a follower
//! stores those of its leader (`--follow`). `larder-replica` decides what is sent and what is done with it; here
//! are the sockets and threads.
//!
//! A leader has a thread that accepts followers, and two for each follower: one that sends, with a handle to the
//! cache of its own, and one that reads what the follower acknowledges. A follower has one thread.

mod follower;
mod leader;
mod status;
mod stop;

pub(crate) use status::{FollowerStatus, LinkShown, ReplicationStatus};

use crate::server::Server;
use larder_replica::Secret;
use larder_store::cache::Cache;
use larder_store::journal::JournaledCache;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use stop::Stop;

/// The threads of replication.
#[derive(Debug)]
pub struct Replication {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

impl Replication {
    /// Starts to follow the leader that the options name: without one, no thread.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn follow<C: Cache>(
        server: &Arc<Server>,
        cache: &C,
        secret: Option<Secret>,
    ) -> io::Result<Self> {
        let mut replication = Self { stop: Arc::new(Stop::new()?), threads: Vec::new() };
        if let Some(address) = server.options.follow.clone() {
            let (server, cache) = (Arc::clone(server), cache.clone());
            let stop = Arc::clone(&replication.stop);
            replication.spawn("follower", move || {
                follower::Follower::new(server, address, secret, stop).run(cache.engine());
            })?;
        }
        Ok(replication)
    }

    /// Starts to serve followers at these sockets.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn lead<C: Cache + Send + Sync>(
        &mut self,
        server: &Arc<Server>,
        cache: &JournaledCache<C>,
        secret: Option<Secret>,
        listeners: Vec<TcpListener>,
    ) -> io::Result<()> {
        let leader = leader::Leader::new(server, cache, secret, &self.stop);
        self.spawn("leader", move || leader.accept(&listeners))
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(run)?);
        Ok(())
    }

    /// Ends all connections and threads.
    pub fn stop(self) {
        self.stop.set();
        for thread in self.threads {
            // A thread that has panicked has said so.
            let _ = thread.join();
        }
    }
}
