//! The replies to `CLIENT LIST` and `CLIENT INFO`.

use super::element::{Version, text_page};
use crate::resp::Clients;

/// Builds the `CLIENT LIST` or `CLIENT INFO` page from the lines of memcached's `stats conns`.
#[derive(Debug)]
pub struct ClientPage<'b> {
    wanted: Clients<'b>,
    /// The number and name of the requesting connection.
    own: (u64, &'b [u8]),
    client: Client,
    page: Vec<u8>,
}

/// The fields of a connection.
#[derive(Debug, Default)]
struct Client {
    id: u64,
    peer: String,
    /// The local address; `None` for a listening socket.
    listener: Option<String>,
    idle_secs: String,
}

impl<'b> ClientPage<'b> {
    /// Starts a page for the requesting connection with this number and name.
    #[must_use]
    pub fn new(wanted: Clients<'b>, id: u64, name: &'b [u8]) -> Self {
        Self { wanted, own: (id, name), client: Client::default(), page: Vec::new() }
    }

    /// Adds a line of `stats conns`. The lines of one connection are adjacent.
    pub fn set(&mut self, name: &str, value: &str) {
        let Some((id, field)) = name.split_once(':') else { return };
        let Ok(id) = id.parse() else { return };
        if id != self.client.id {
            self.end_client();
            self.client.id = id;
        }
        // `stats conns` writes `tcp:127.0.0.1:7` where Redis writes `127.0.0.1:7`.
        let address = || value.split_once(':').map_or(value, |(_, address)| address).to_owned();
        match field {
            "addr" => self.client.peer = address(),
            "listen_addr" => self.client.listener = Some(address()),
            "secs_since_last_cmd" => value.clone_into(&mut self.client.idle_secs),
            _ => (),
        }
    }

    fn end_client(&mut self) {
        let Client { id, peer, listener, idle_secs } = std::mem::take(&mut self.client);
        let Some(listener) = listener.filter(|_| self.wants(id)) else { return };
        let begin = format!("id={id} addr={peer} laddr={listener} name=");
        self.page.extend_from_slice(begin.as_bytes());
        if id == self.own.0 {
            self.page.extend_from_slice(self.own.1);
        }
        let end =
            format!(" idle={idle_secs} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 user=default\n");
        self.page.extend_from_slice(end.as_bytes());
    }

    fn wants(&self, id: u64) -> bool {
        match self.wanted {
            Clients::All => true,
            Clients::Own => id == self.own.0,
            Clients::None => false,
            Clients::Ids(mut ids) => ids.any(|text| text == id.to_string().as_bytes()),
        }
    }

    /// Writes the reply: a bulk string in RESP2, a verbatim string in RESP3.
    pub fn write(mut self, version: Version, out: &mut Vec<u8>) {
        self.end_client();
        text_page(version, &self.page, out);
    }
}
