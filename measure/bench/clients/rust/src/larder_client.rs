//! Larder's own client for Tokio.

use super::tasks::AsyncLibrary;
use ::larder_client::{Client, Ttl};
use larder_bench::clients::Connections;

pub(crate) struct Larder;

impl AsyncLibrary for Larder {
    const NAME: &'static str = "larder-tokio";
    type Client = Client;

    fn connect(server: &str, connections: Connections) -> Result<Client, String> {
        let builder = Client::builder(server);
        let builder = match connections {
            Connections::Shared => builder,
            Connections::Pool(max) => builder.connections(max),
        };
        builder.build().map_err(|error| error.to_string())
    }

    async fn set(client: &Client, key: &str, value: &[u8]) -> Result<(), String> {
        client.set(key, value, Ttl::FOREVER).await.map(drop).map_err(|error| error.to_string())
    }

    async fn get(client: &Client, key: &str) -> Result<Option<Vec<u8>>, String> {
        let found = client.get(key).await.map_err(|error| error.to_string())?;
        Ok(found.map(Vec::from))
    }

    async fn get_many(client: &Client, keys: &[&str]) -> Result<Vec<Vec<u8>>, String> {
        let found = client.get_many(keys).await.map_err(|error| error.to_string())?;
        Ok(found.into_iter().flatten().map(|item| item.value.into()).collect())
    }
}
