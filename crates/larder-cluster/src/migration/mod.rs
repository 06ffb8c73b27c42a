//! Migration of slots from one group to another: the leader of the destination imports them, and that of the source
//! exports them.

mod export;
mod import;

pub(crate) use export::Export;
pub(crate) use import::Importer;
