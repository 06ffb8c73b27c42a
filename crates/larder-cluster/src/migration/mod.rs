//! Migration of slots between groups. The importing leader connects to the exporting one: see
//! `larder_replica::Ownership` for the protocol.

mod export;
mod import;

pub(crate) use export::Export;
pub(crate) use import::Importer;
