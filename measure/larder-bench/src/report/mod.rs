//! Writes the results of runs: a table for the terminal, and files.

pub(crate) mod client_files;
pub(crate) mod files;
pub(crate) mod table;
