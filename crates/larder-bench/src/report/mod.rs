//! A run's figures for people and for programs.

pub(crate) mod files;
pub(crate) mod table;
