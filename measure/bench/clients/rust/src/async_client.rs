//! The crate `async-memcached`, with a connection pool of the crate `deadpool`.

use super::tasks::AsyncLibrary;
use async_memcached::{AsciiProtocol, Client, Error};
use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, Pool, RecycleError, RecycleResult};
use larder_bench::clients;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout for waiting for a connection of the pool, for opening a connection, and for each
/// operation. async-memcached itself has no timeouts.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct AsyncMemcached;

pub(crate) struct Connections {
    server: String,
}

impl managed::Manager for Connections {
    type Type = Client;
    type Error = Error;

    async fn create(&self) -> Result<Client, Error> {
        Client::new(&self.server).await
    }

    async fn recycle(&self, client: &mut Client, _: &Metrics) -> RecycleResult<Error> {
        match client.is_closed() {
            true => Err(RecycleError::message("closed")),
            false => Ok(()),
        }
    }
}

impl AsyncLibrary for AsyncMemcached {
    const NAME: &'static str = "async-memcached";
    type Client = Pool<Connections>;

    fn connect(
        server: &str,
        connections: clients::Connections,
    ) -> Result<Pool<Connections>, String> {
        let manager = Connections { server: format!("tcp://{server}") };
        let pool = Pool::builder(manager).max_size(connections.max()).runtime(Runtime::Tokio1);
        let pool = pool.wait_timeout(Some(TIMEOUT)).create_timeout(Some(TIMEOUT));
        pool.build().map_err(|error| error.to_string())
    }

    async fn set(pool: &Pool<Connections>, key: &str, value: &[u8]) -> Result<(), String> {
        let mut client = take(pool).await?;
        let outcome = timeout(TIMEOUT, client.set(key, value, None, None)).await;
        settled(client, outcome.map_err(|error| error.to_string()))
    }

    async fn get(pool: &Pool<Connections>, key: &str) -> Result<Option<Vec<u8>>, String> {
        let mut client = take(pool).await?;
        let outcome = timeout(TIMEOUT, client.get(key)).await;
        let found = settled(client, outcome.map_err(|error| error.to_string()))?;
        Ok(found.and_then(|value| value.data))
    }

    async fn get_many(pool: &Pool<Connections>, keys: &[&str]) -> Result<Vec<Vec<u8>>, String> {
        let mut client = take(pool).await?;
        let outcome = timeout(TIMEOUT, client.get_multi(keys)).await;
        let found = settled(client, outcome.map_err(|error| error.to_string()))?;
        Ok(found.into_iter().filter_map(|value| value.data).collect())
    }
}

async fn take(pool: &Pool<Connections>) -> Result<Object<Connections>, String> {
    pool.get().await.map_err(|error| error.to_string())
}

/// Removes a connection from the pool after an error, because async-memcached does not detect that
/// the server has closed it.
fn settled<T>(
    client: Object<Connections>,
    outcome: Result<Result<T, Error>, String>,
) -> Result<T, String> {
    let outcome = outcome.and_then(|answer| answer.map_err(|error| error.to_string()));
    if outcome.is_err() {
        drop(Object::take(client));
    }
    outcome
}
