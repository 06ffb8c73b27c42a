//! The crate `memcache`: its classic client, and `memcache::exp`, the planned replacement.

use larder_bench::clients::{Connections, Library};
use memcache::exp::{self, Memcache, Ttl};
use memcache::{Client, MemcacheError};

/// The classic client, over the binary protocol, its default. r2d2 keeps all connections of the
/// pool open.
pub(crate) struct Classic;

impl Library for Classic {
    const NAME: &'static str = "memcache";
    type Client = Client;
    type Value = Vec<u8>;
    type Error = MemcacheError;

    fn connect(server: &str, connections: Connections) -> Result<Client, MemcacheError> {
        let url = format!("memcache://{server}?timeout=1&connect_timeout=1&tcp_nodelay=true");
        Client::with_pool_size(url, u32::try_from(connections.max()).unwrap_or(u32::MAX))
    }

    fn set(client: &Client, key: &str, value: &[u8]) -> Result<(), MemcacheError> {
        client.set(key, value, 0)
    }

    fn get(client: &Client, key: &str) -> Result<Option<Vec<u8>>, MemcacheError> {
        client.get(key)
    }

    fn get_many(
        client: &Client,
        keys: &[&str],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), MemcacheError> {
        let found = client.gets::<Vec<u8>>(keys)?;
        for (place, key) in keys.iter().enumerate() {
            visit(place, found.get(*key).map(Vec::as_slice));
        }
        Ok(())
    }
}

/// `memcache::exp`, over the meta protocol.
pub(crate) struct Experimental;

impl Library for Experimental {
    const NAME: &'static str = "memcache-exp";
    type Client = Memcache;
    type Value = Vec<u8>;
    type Error = exp::Error;

    fn connect(server: &str, connections: Connections) -> Result<Memcache, exp::Error> {
        // By default, connects and calls time out after a second.
        let builder = Memcache::builder()
            .max_idle(connections.max())
            .max_connections(Some(connections.max()));
        builder.connect([server])
    }

    fn set(client: &Memcache, key: &str, value: &[u8]) -> Result<(), exp::Error> {
        client.set(key, value, Ttl::NEVER)
    }

    fn get(client: &Memcache, key: &str) -> Result<Option<Vec<u8>>, exp::Error> {
        client.get(key)
    }

    fn get_many(
        client: &Memcache,
        keys: &[&str],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), exp::Error> {
        let found = client.get_many::<Vec<u8>, _>(keys.iter().copied())?;
        for (place, key) in keys.iter().enumerate() {
            visit(place, found.get(key).map(Vec::as_slice));
        }
        Ok(())
    }
}
