//! The state that all handlers share.

use super::connections::Connections;
use crate::items::Items;
use crate::server_view::ServerView;
use std::ops::Deref;
use std::sync::Arc;

/// A handle to the state that all handlers share.
#[derive(Clone)]
pub(crate) struct App(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) items: Box<dyn Items>,
    pub(crate) view: Arc<dyn ServerView>,
    pub(crate) connections: Connections,
    /// Host names that clients may use for the server, in addition to IP addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Origins of web pages that may use the server.
    pub(crate) origins: Vec<String>,
    /// Whether the server is shutting down. The sender is dropped if the server panics.
    #[cfg(feature = "grpc")]
    pub(crate) stopping: tokio::sync::watch::Receiver<bool>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
