//! What handlers share.

use super::connections::Connections;
use crate::items::Items;
use crate::metrics::Metrics;
use crate::server_view::ServerView;
use std::ops::Deref;
use std::sync::Arc;

/// What handlers share.
#[derive(Clone)]
pub(super) struct App(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) items: Box<dyn Items>,
    pub(super) view: Arc<dyn ServerView>,
    pub(super) metrics: Metrics,
    pub(super) connections: Connections,
    /// Names that the server is known by, beside addresses.
    pub(super) hosts: Vec<String>,
    /// Sites whose pages may use the server.
    pub(super) origins: Vec<String>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
