//! Forwarding: sends requests to the leader of the group that owns their keys, and answers the
//! requests of other nodes.
//!
//! ```text
//!  session ──▶ RemoteRoute (route.rs) ──▶ Link (link.rs) ──▶ LinkDriver (link_driver.rs) ──▶ connection to the leader
//!                    │                      ▲                                                    │
//!              RouteState (pending.rs)      └── Connector (connector.rs), one for each group     ▼
//!                                                                                  Answerer (answerer/)
//! ```
//!
//! Event loops (`peers/event_loops.rs`) run the drivers of all links and all answerers on a fixed
//! number of threads.
//!
//! A leader executes forwarded changes only until the end of the lease that the forwarding node has
//! granted (`larder_replica::LinkLeases`). When the forwarding node opens a newer connection, the
//! leader first ends the older one permanently (`peers/link_registry.rs`). If the leader's process
//! has accepted a newer connection, or refuses connections, the forwarding node need not wait for
//! the end of a lease (`earlier_links.rs`).
//!
//! Answerers also send the keys of changed items that the other node's clients have cached
//! (`answerer/change_relay.rs`).

mod answerer;
mod connector;
mod conversation;
mod earlier_links;
mod forwarder;
mod forwarder_set;
mod link;
mod link_driver;
mod map_watch;
mod owner;
mod pending;
mod route;

pub(crate) use answerer::Answerer;
pub use answerer::SessionHost;
pub(crate) use connector::{ConnectorContext, connect_local_group, connect_other_groups};
pub use forwarder_set::Forwarders;
pub(crate) use map_watch::MapWatch;
