//! One scrape: all metrics in the requested format.

use super::collector::collect;
use super::format::Format;
use super::text::{Dialect, encode};
use crate::server_view::ServerView;
use prost::Message;

/// Returns all metrics of a server in the given format.
pub(crate) fn scrape(view: &dyn ServerView, format: Format) -> Vec<u8> {
    let families = collect(view);
    match format {
        Format::Text => encode(&families, Dialect::Prometheus).into_bytes(),
        Format::OpenMetrics => encode(&families, Dialect::OpenMetrics).into_bytes(),
        Format::Protobuf => {
            families.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
        }
    }
}
