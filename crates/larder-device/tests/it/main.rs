//! The integration tests of larder-device, as one program.

mod files;
mod memory;
mod reads;
mod support;
