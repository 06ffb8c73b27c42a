//! The integration tests of larder-bench, in one program.

mod arguments;
mod clients;
mod commands;
mod common;
mod connections;
mod files;
mod flash;
mod key_spaces;
mod load;
mod published;
mod trace;
