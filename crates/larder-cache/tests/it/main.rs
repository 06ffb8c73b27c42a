//! The integration tests of larder-cache, one program. `resident.rs` measures its own process and is another.

mod embedded;
mod typed;
