//! Items and statistics over HTTP/1.1 and HTTP/2.
//!
//! | file | contains |
//! |---|---|
//! | `router.rs` | all routes with their handlers, and the OpenAPI description |
//! | `guard.rs` | access checks |
//! | `keys.rs`, `list.rs`, `batch.rs`, `service.rs` | the handlers |
//! | `answer.rs` | replies with counted memory |
//! | `parameters.rs`, `conditions.rs`, `content_types.rs`, `body.rs`, `range.rs` | parts of requests |
//! | `problem.rs` | errors |

mod answer;
mod batch;
mod body;
mod conditions;
mod content_types;
mod guard;
mod keys;
mod list;
mod parameters;
mod problem;
mod range;
mod router;
mod service;

pub(crate) use problem::refused;
pub(crate) use router::router;
