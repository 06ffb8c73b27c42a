//! The integration tests of larder-bench, one program.

mod arguments;
mod broken;
mod clients;
mod commands;
mod common;
mod files;
mod flash;
mod key_spaces;
mod load;
mod logins;
mod published;
mod reconnect;
mod servers;
mod tls;
mod trace;
mod unix;
