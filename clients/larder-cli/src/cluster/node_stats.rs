//! Reads the statistics of nodes over memcached's text protocol.

use super::options::{NodeArguments, message};
use larder_client::blocking::Client;
use larder_client::{Error, ErrorKind, Tls};
use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit for a node's reply.
const REPLY_TIME_MAX: Duration = Duration::from_secs(3);

/// The maximum number of characters that the command shows of a string from a server.
const TEXT_LEN_MAX: usize = 160;

const PAGES: [&str; 4] = ["", "memory", "cluster", "replication"];

/// The statistics of a node. A value is `None` if the node's reply does not contain it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NodeStats {
    /// The cluster, group and node names, separated by slashes. `None` for a server outside of
    /// clusters.
    pub(super) member: Option<String>,
    /// The replication lag in seconds. `None` until the first full sync is complete.
    pub(super) lag: Option<f64>,
    /// The version of Larder.
    pub(super) version: Option<String>,
    /// The used memory, in bytes.
    pub(super) memory: Option<u64>,
    /// The memory limit, in bytes.
    pub(super) memory_limit: Option<u64>,
    /// The acknowledgement mode.
    pub(super) ack: Option<String>,
}

/// Reads the statistics of the nodes at these addresses concurrently. Maps each address to the
/// statistics, or to the reason why the statistics are unknown. Returns about 100 ms after
/// [`REPLY_TIME_MAX`] at the latest.
///
/// # Errors
/// A message for an unusable file in the arguments.
pub(super) fn read_all(
    addresses: Vec<String>,
    arguments: &NodeArguments,
) -> Result<BTreeMap<String, Result<NodeStats, String>>, String> {
    let connector = Connector::new(arguments)?;
    let deadline = Instant::now() + REPLY_TIME_MAX;
    let (sender, answers) = mpsc::channel();
    let mut found = BTreeMap::new();
    for address in addresses {
        found.insert(address.clone(), Err(timeout()));
        let (sender, connector) = (sender.clone(), connector.clone());
        // Name resolution has no time limit, so the command does not join the threads.
        std::thread::spawn(move || {
            let stats = connector.read(&address, deadline);
            let _ = sender.send((address, stats));
        });
    }
    drop(sender);
    // Wait a little longer, because a thread that times out sends its error shortly after the
    // deadline.
    let wait_until = deadline + Duration::from_millis(100);
    while let Ok((address, stats)) =
        answers.recv_timeout(wait_until.saturating_duration_since(Instant::now()))
    {
        found.insert(address, stats);
    }
    Ok(found)
}

fn timeout() -> String {
    format!("no reply within {} s", REPLY_TIME_MAX.as_secs())
}

/// Connects to nodes, with TLS and a login if the arguments request them.
#[derive(Clone)]
struct Connector {
    tls: Option<Tls>,
    login: Option<(String, String)>,
}

impl Connector {
    fn new(arguments: &NodeArguments) -> Result<Self, String> {
        Ok(Self { tls: arguments.tls()?, login: arguments.login()? })
    }

    fn read(self, address: &str, deadline: Instant) -> Result<NodeStats, String> {
        // Refuse lists and paths: the client would accept them, but etcd must contain a single host
        // and port.
        if address.contains(',') || address.starts_with('/') || address.starts_with("unix:") {
            return Err("the address is not HOST:PORT".to_owned());
        }
        let time_left = || deadline.saturating_duration_since(Instant::now());
        let mut builder = Client::builder(address)
            .connections(1)
            .timeout(time_left())
            .connect_timeout(time_left());
        if let Some(tls) = self.tls {
            builder = builder.tls(tls);
        }
        let has_login = self.login.is_some();
        if let Some((name, password)) = self.login {
            builder = builder.login(name, password);
        }
        let client = builder.build().map_err(message)?;
        let mut values = HashMap::new();
        for page in PAGES {
            if time_left().is_zero() {
                return Err(timeout());
            }
            let found = client.stats(page).map_err(|error| reason(&error, has_login))?;
            values.extend(found.into_iter().flat_map(|(_, page)| page));
        }
        Ok(NodeStats::new(&values))
    }
}

/// Returns the reason why a node's statistics are unknown.
fn reason(error: &Error, has_login: bool) -> String {
    match error.kind() {
        ErrorKind::Timeout => timeout(),
        ErrorKind::Connect(error) => escaped(&error.to_string()),
        ErrorKind::Refused(line) if line.contains("unauthenticated") && !has_login => {
            "the node requires a login: set --password".to_owned()
        }
        ErrorKind::Unexpected(text) if text.contains("requires TLS") => {
            "the node requires TLS: set --tls".to_owned()
        }
        kind => escaped(&kind.to_string()),
    }
}

/// Escapes and shortens a string from a server, to show it in the terminal. The server may be
/// hostile.
fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(TEXT_LEN_MAX) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    shown
}

impl NodeStats {
    fn new(values: &HashMap<String, String>) -> Self {
        let text = |name: &str| values.get(name).map(|value| escaped(value));
        let number = |name: &str| values.get(name)?.parse::<u64>().ok();
        let is_synced = number("synced") == Some(1);
        let lag = text("link_lag").and_then(|lag| lag.parse::<f64>().ok());
        let lag = lag.filter(|lag| lag.is_finite() && *lag >= 0.0);
        let limit = number("limit_maxbytes");
        let names = [text("cluster"), text("group"), text("node")];
        let names: Option<Vec<String>> = names.into_iter().collect();
        Self {
            member: names.map(|names| names.join("/")),
            lag: lag.filter(|_| is_synced),
            version: text("larder_version"),
            memory: limit.zip(number("free_bytes")).map(|(limit, free)| limit.saturating_sub(free)),
            memory_limit: limit,
            ack: text("ack"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Serves `reply` to one connection, one page for each request. If `stays` is true, keeps the
    /// connection open for a while.
    fn serve(reply: &'static str, stays: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut pages = reply.split_inclusive("END\r\n");
            let mut next = Some(pages.next().unwrap_or_default());
            // Closing a connection with an unread request would reset the connection.
            while let Some(page) = next {
                let mut request = [0; 64];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(page.as_bytes());
                next = pages.next();
            }
            std::thread::sleep(if stays { 2 * REPLY_TIME_MAX } else { Duration::ZERO });
        });
        address
    }

    fn read(address: &str) -> Result<NodeStats, String> {
        read_all(vec![address.to_owned()], &NodeArguments::default())
            .unwrap()
            .remove(address)
            .unwrap()
    }

    fn check(reply: &'static str, stays: bool, expected: Result<NodeStats, &str>) {
        assert_eq!(read(&serve(reply, stays)), expected.map_err(str::to_owned), "{reply:?}");
    }

    #[test]
    fn replies_are_parsed_or_explained() {
        let all = "STAT limit_maxbytes 64\r\nSTAT libevent a b\r\nEND\r\nSTAT free_bytes 60\r\nEND\r\n\
                   STAT cluster c\r\nSTAT group 0\r\nSTAT node n\r\nSTAT ack none\r\nSTAT larder_version 1.2\r\nEND\r\nSTAT synced 1\r\n\
                   STAT link_lag 0.250000\r\nEND\r\n";
        let stats = NodeStats {
            member: Some("c/0/n".to_owned()),
            lag: Some(0.25),
            version: Some("1.2".to_owned()),
            memory: Some(4),
            memory_limit: Some(64),
            ack: Some("none".to_owned()),
        };
        check(all, true, Ok(stats));
        check("END\r\nEND\r\nEND\r\nEND\r\n", true, Ok(NodeStats::default()));
        check("", false, Err("connection closed by the server"));
        check("STAT a", false, Err("connection closed by the server"));
        let login = "the node requires a login: set --password";
        check("CLIENT_ERROR unauthenticated\r\n", true, Err(login));
        check("STAT a b\r\n", true, Err("no reply within 3 s"));
        let escape = r#"unexpected reply "ERROR\\x1b[2J\\r\\n""#;
        check("ERROR\u{1b}[2J\r\n", true, Err(escape));
        let forged = NodeStats { ack: Some("a\\rb".to_owned()), ..NodeStats::default() };
        let reply =
            "STAT ack a\rb\r\nSTAT link_lag NaN\r\nSTAT synced 1\r\nEND\r\nEND\r\nEND\r\nEND\r\n";
        check(reply, true, Ok(forged));
    }

    #[test]
    fn an_unreachable_node_has_a_reason() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = read(&address).unwrap_err();
        assert!(error.contains("refused"), "{error}");
    }
}
