//! Simulated caches, which determine the hits and misses of an eviction policy without a server.
//!
//! All caches are look-aside: a request for a key that the cache does not hold is a miss. After a
//! miss, [`Policy::request`] stores the item unless it is too large or the policy rejects it;
//! [`Policy::look_up`] stores nothing. A cache holds at most its capacity in bytes. Expired items
//! never hit. The caller passes the time.

mod bound;
mod contents;
mod ghost_table;
mod lru;
mod optimum;
mod policy;
mod queue;
mod request;
mod s3fifo;

pub use bound::hits_at_most;
pub use lru::Lru;
pub use optimum::Optimum;
pub use policy::Policy;
pub use request::Request;
pub use s3fifo::{S3Fifo, Settings};
