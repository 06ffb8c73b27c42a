//! The interface of measured client libraries, and its implementation for Larder's client.

use super::arguments::Connections;
use larder_client::blocking::Client;
use larder_client::{Error, Ttl};
use std::fmt::Display;

/// A blocking client library. `measure/bench/clients/rust` contains further implementations.
pub trait Library {
    /// The library's name in CSV lines.
    const NAME: &'static str;
    /// A client with its connections.
    type Client: Send + Sync;
    /// The value that a get returns.
    type Value: AsRef<[u8]>;
    /// The error of a call.
    type Error: Display;

    /// Creates a client of the server at `HOST:PORT`. Its calls time out after a second.
    ///
    /// # Errors
    /// The library returned an error.
    fn connect(server: &str, connections: Connections) -> Result<Self::Client, Self::Error>;

    /// Stores a value that does not expire.
    ///
    /// # Errors
    /// The library returned an error.
    fn set(client: &Self::Client, key: &str, value: &[u8]) -> Result<(), Self::Error>;

    /// Returns the value of a key, or `None` if the server does not have the key.
    ///
    /// # Errors
    /// The library returned an error.
    fn get(client: &Self::Client, key: &str) -> Result<Option<Self::Value>, Self::Error>;

    /// Calls `visit` for each key in `keys`, with the index of the key and its value. The value is
    /// `None` if the server does not have the key.
    ///
    /// # Errors
    /// The library returned an error.
    fn get_many(
        client: &Self::Client,
        keys: &[&str],
        visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Self::Error>;
}

/// Larder's blocking client.
#[derive(Debug)]
pub struct Larder;

impl Library for Larder {
    const NAME: &'static str = "larder";
    type Client = Client;
    type Value = bytes::Bytes;
    type Error = Error;

    fn connect(server: &str, connections: Connections) -> Result<Client, Error> {
        let builder = Client::builder(server);
        match connections {
            Connections::Shared => builder.build(),
            Connections::Pool(max) => builder.connections(max).build(),
        }
    }

    fn set(client: &Client, key: &str, value: &[u8]) -> Result<(), Error> {
        client.set(key, value, Ttl::FOREVER).map(drop)
    }

    fn get(client: &Client, key: &str) -> Result<Option<bytes::Bytes>, Error> {
        client.get(key)
    }

    fn get_many(
        client: &Client,
        keys: &[&str],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), Error> {
        for (index, item) in client.get_many(keys)?.iter().enumerate() {
            visit(index, item.as_ref().map(|item| &*item.value));
        }
        Ok(())
    }
}
