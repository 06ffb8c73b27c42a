//! One scrape: all metrics in the requested format.

use super::collector::ServerCollector;
use super::format::Format;
use super::text;
use crate::server_view::ServerView;
use prometheus_client::encoding::{prometheus_protobuf, text as openmetrics};
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// The registry of all metrics.
pub(crate) struct Metrics(Registry);

impl Metrics {
    pub(crate) fn new(view: Arc<dyn ServerView>) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ServerCollector(view)));
        Self(registry)
    }

    /// Encodes all metrics; `None` if the values cannot be encoded, which is a bug.
    pub(crate) fn encode(&self, format: Format) -> Option<Vec<u8>> {
        match format {
            Format::Text => {
                let families = prometheus_protobuf::encode(&self.0).ok()?;
                Some(text::encode(&families).into_bytes())
            }
            Format::OpenMetrics => {
                let mut body = String::new();
                openmetrics::encode(&mut body, &self.0).ok()?;
                Some(body.into_bytes())
            }
            Format::Protobuf => prometheus_protobuf::encode_to_vec(&self.0).ok(),
        }
    }
}
