//! What handlers share.

use super::connections::Connections;
use crate::items::Items;
use crate::metrics::Metrics;
use crate::server_view::ServerView;
use std::ops::Deref;
use std::sync::Arc;

/// What handlers share.
#[derive(Clone)]
pub(crate) struct App(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) items: Box<dyn Items>,
    pub(crate) view: Arc<dyn ServerView>,
    pub(crate) metrics: Metrics,
    pub(crate) connections: Connections,
    /// Names that the server is known by, beside addresses.
    pub(crate) hosts: Vec<String>,
    /// Sites whose pages may use the server.
    pub(crate) origins: Vec<String>,
    /// Whether the server ends. The sender is dropped if it panics.
    #[cfg(feature = "grpc")]
    pub(crate) stopping: tokio::sync::watch::Receiver<bool>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
