//! Sessions with one engine as a target for transcripts.

use crate::common::{TestCache, TestClient, TestServer};
use larder_model::{Received, Target};
use larder_store::cache::Cache as _;
use larder_store::{SizeClasses, dashmap, delayed, moka, segment};
use std::collections::BTreeMap;

/// memcached's overhead per item, in bytes, including the CAS value.
const OVERHEAD: usize = 59;
const LIMIT_BYTES: usize = 256 << 20;
const ITEM_SIZE_MAX: usize = 1 << 20;
const SEED: u64 = 0x5eed;

/// Returns the chunk sizes of the slab classes. Replies to `me` depend on them.
fn class_sizes() -> Vec<usize> {
    vec![96, 120, 152, 192, 512, 4096, 1 << 20]
}

fn classes() -> SizeClasses {
    SizeClasses::new(class_sizes(), OVERHEAD)
}

pub(crate) fn dashmap() -> TestServer {
    let (limit_bytes, classes) = (LIMIT_BYTES, classes());
    let config = dashmap::Config { limit_bytes, cas: true, classes, seed: SEED };
    server(TestCache::new(dashmap::Cache::new(config)))
}

pub(crate) fn moka() -> TestServer {
    let config = moka::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: SEED,
        policy: moka::Policy::Lru,
    };
    server(TestCache::new(moka::Cache::new(config)))
}

pub(crate) fn segment() -> TestServer {
    server(TestCache::new(segments()))
}

fn segments() -> segment::Cache {
    segment::Cache::new(segment::Config {
        limit_bytes: LIMIT_BYTES,
        cas: true,
        classes: classes(),
        seed: SEED,
        evict: false,
        item_size_max: ITEM_SIZE_MAX,
        threads: 1,
        size_exponent: larder_store::eviction::SIZE_EXPONENT,
        flash: None,
    })
    .unwrap()
}

pub(crate) fn delayed() -> TestServer {
    server(TestCache::delayed(segments(), delayed::Storage::new(SEED)))
}

/// Sessions that share an engine and a clock. The test advances the clock.
pub(crate) struct Sessions {
    fresh: fn() -> TestServer,
    server: TestServer,
    peers: BTreeMap<usize, TestClient>,
}

impl Sessions {
    pub(crate) fn new(fresh: fn() -> TestServer) -> Self {
        Self { fresh, server: fresh(), peers: BTreeMap::new() }
    }

    fn client(&mut self, id: usize) -> &mut TestClient {
        self.peers.entry(id).or_default()
    }
}

fn server(TestCache { cache, complete }: TestCache) -> TestServer {
    let mut server = TestServer::new(cache.engine(), ITEM_SIZE_MAX, classes());
    server.host.memory_limit = usize::MAX;
    server.complete = complete;
    server
}

impl Target for Sessions {
    fn reset(&mut self) {
        self.peers.clear();
        self.server = (self.fresh)();
    }

    fn send(&mut self, id: usize, bytes: &[u8]) {
        self.peers.entry(id).or_default().send(&mut self.server, bytes);
    }

    fn receive(&mut self, id: usize, into: &mut Vec<u8>) -> Received {
        let client = self.client(id);
        if !client.received.is_empty() {
            into.append(&mut client.received);
            Received::Bytes
        } else if client.is_closed {
            Received::Closed
        } else {
            Received::Nothing
        }
    }

    fn end_input(&mut self, id: usize) {
        // After a client has closed its side of the connection, a driver closes the other side when
        // all complete requests are answered.
        self.client(id).is_closed = true;
    }

    fn advance(&mut self, secs: u32) {
        self.server.advance(secs);
    }
}
