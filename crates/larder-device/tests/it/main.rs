//! The integration tests of larder-device, one program.

mod files;
mod memory;
mod reads;
mod support;
