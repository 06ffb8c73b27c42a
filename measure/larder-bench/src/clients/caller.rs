//! A measured thread, with its item and its client.

use super::arguments::{Arguments, Connections, Mode};
use super::item::ThreadItem;
use super::library::Library;
use super::results::Failure;

/// A measured thread: it sets and gets its own item.
pub(crate) struct Caller<'d, L: Library> {
    arguments: &'d Arguments,
    access: Access<'d, L::Client>,
    pub(crate) item: ThreadItem,
}

enum Access<'d, C> {
    Shared(&'d C),
    Own(C),
    /// Each operation creates a client and opens a connection.
    New,
}

impl<'d, L: Library> Caller<'d, L> {
    /// Uses the shared client if there is one. Otherwise, the mode `none` creates a client for each
    /// operation, and other modes create one for the thread.
    pub(crate) fn new(
        arguments: &'d Arguments,
        shared: Option<&'d L::Client>,
        thread: usize,
    ) -> Result<Self, Failure> {
        let access = match (arguments.mode, shared) {
            (_, Some(shared)) => Access::Shared(shared),
            (Mode::None, None) => Access::New,
            (_, None) => Access::Own(connect::<L>(arguments, Connections::Pool(1))?),
        };
        Ok(Self { arguments, access, item: ThreadItem::new(arguments, thread) })
    }

    fn with<T>(&self, call: impl FnOnce(&L::Client) -> Result<T, L::Error>) -> Result<T, Failure> {
        match &self.access {
            Access::Shared(client) => call(client),
            Access::Own(client) => call(client),
            Access::New => call(&connect::<L>(self.arguments, Connections::Pool(1))?),
        }
        .map_err(Failure::client)
    }

    /// Stores value `number` of the item.
    pub(crate) fn set(&self, number: usize) -> Result<(), Failure> {
        self.with(|client| L::set(client, &self.item.key, self.item.value(number)))
    }

    /// Gets the key, and checks that the result is value `number` of the item.
    pub(crate) fn get(&self, number: usize) -> Result<(), Failure> {
        let found = self.with(|client| L::get(client, &self.item.key))?;
        self.item.judge(number, found.as_ref().map(AsRef::as_ref))
    }
}

/// Creates a client that uses `connections`.
pub(crate) fn connect<L: Library>(
    arguments: &Arguments,
    connections: Connections,
) -> Result<L::Client, Failure> {
    L::connect(&arguments.server, connections).map_err(Failure::client)
}
