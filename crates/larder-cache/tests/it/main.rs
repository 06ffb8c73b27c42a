//! The integration tests of larder-cache, as one program. `resident.rs` measures its own process,
//! so it is a separate program.

mod async_makers;
mod conditional;
mod embedded;
mod iteration;
mod typed;
