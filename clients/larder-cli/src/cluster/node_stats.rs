//! Reads the statistics of nodes over memcached's text protocol.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit for a node's reply.
const REPLY_TIME_MAX: Duration = Duration::from_secs(1);
/// The maximum length of a node's reply, in bytes. A normal reply has about 10 KiB.
const REPLY_LEN_MAX: u64 = 1 << 20;

/// The command shows at most this many characters of a string from a server.
const TEXT_LEN_MAX: usize = 160;

const PAGES: [&str; 4] = ["", " memory", " cluster", " replication"];

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
/// statistics, or to the reason why they are unknown. Returns about 100 ms after [`REPLY_TIME_MAX`]
/// at the latest.
pub(super) fn read_all(addresses: Vec<String>) -> BTreeMap<String, Result<NodeStats, String>> {
    let timeout = || format!("no reply within {} s", REPLY_TIME_MAX.as_secs());
    let deadline = Instant::now() + REPLY_TIME_MAX;
    let (sender, answers) = mpsc::channel();
    let mut found = BTreeMap::new();
    for address in addresses {
        found.insert(address.clone(), Err(timeout()));
        let sender = sender.clone();
        // Name resolution has no time limit, so the command does not join the threads.
        std::thread::spawn(move || {
            let _ = sender.send((address.clone(), read(&address, deadline)));
        });
    }
    drop(sender);
    // A thread that times out sends its error shortly after the deadline.
    let wait_until = deadline + Duration::from_millis(100);
    while let Ok((address, stats)) =
        answers.recv_timeout(wait_until.saturating_duration_since(Instant::now()))
    {
        found.insert(address, stats);
    }
    found
}

fn read(address: &str, deadline: Instant) -> Result<NodeStats, String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
            format!("no reply within {} s", REPLY_TIME_MAX.as_secs())
        }
        _ => error.to_string(),
    };
    let mut stream = connect(address, deadline).map_err(failed)?;
    let requests = PAGES.map(|page| format!("stats{page}\r\n")).concat();
    stream.write_all(requests.as_bytes()).map_err(failed)?;
    let mut values = HashMap::new();
    let (mut pages_left, mut line) = (PAGES.len(), String::new());
    let mut reader = BufReader::new(stream.take(REPLY_LEN_MAX));
    while pages_left > 0 {
        line.clear();
        let time = time_left(deadline).map_err(failed)?;
        reader.get_ref().get_ref().set_read_timeout(Some(time)).map_err(failed)?;
        if reader.read_line(&mut line).map_err(failed)? == 0 {
            return Err(match reader.get_ref().limit() {
                0 => format!("a reply of more than {REPLY_LEN_MAX} bytes"),
                _ => "the node closed the connection; it may require TLS".to_owned(),
            });
        }
        match line.trim_end().split_once(' ') {
            Some(("STAT", stat)) => {
                let (name, value) = stat.split_once(' ').unwrap_or((stat, ""));
                values.insert(name.to_owned(), value.to_owned());
            }
            None if line.trim_end() == "END" => pages_left -= 1,
            _ => return Err(format!("unexpected reply to stats: {}", escaped(line.trim_end()))),
        }
    }
    Ok(NodeStats::new(&values))
}

/// Escapes and shortens a string from a server, to show it in the terminal. The server may be
/// hostile.
fn escaped(text: &str) -> String {
    text.chars().take(TEXT_LEN_MAX).flat_map(char::escape_debug).collect()
}

fn connect(address: &str, deadline: Instant) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, time_left(deadline)?) {
            Ok(stream) => {
                stream.set_write_timeout(Some(time_left(deadline)?))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn time_left(deadline: Instant) -> std::io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
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
    use std::net::TcpListener;

    /// Serves `reply` to one connection. If `stays` is true, keeps the connection open for a while.
    fn serve(reply: &'static str, stays: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(reply.as_bytes());
            std::thread::sleep(if stays { 3 * REPLY_TIME_MAX } else { Duration::ZERO });
        });
        address
    }

    fn check(reply: &'static str, stays: bool, expected: Result<NodeStats, &str>) {
        let address = serve(reply, stays);
        let found = read_all(vec![address.clone()]).remove(&address).unwrap();
        assert_eq!(found, expected.map_err(str::to_owned), "{reply:?}");
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
        let closed = "the node closed the connection; it may require TLS";
        check("", false, Err(closed));
        check("STAT a", false, Err(closed));
        let login = "unexpected reply to stats: CLIENT_ERROR unauthenticated";
        check("CLIENT_ERROR unauthenticated\r\n", true, Err(login));
        check("STAT a b\r\n", true, Err("no reply within 1 s"));
        let escape = "unexpected reply to stats: ERROR\\u{1b}[2J";
        check("ERROR\u{1b}[2J\r\n", true, Err(escape));
        let forged = NodeStats { ack: Some("a\\rb".to_owned()), ..NodeStats::default() };
        let reply =
            "STAT ack a\rb\r\nSTAT link_lag NaN\r\nSTAT synced 1\r\nEND\r\nEND\r\nEND\r\nEND\r\n";
        check(reply, true, Ok(forged));
    }

    #[test]
    fn an_unreachable_node_has_a_reason() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = read_all(vec![address.clone()]).remove(&address).unwrap().unwrap_err();
        assert!(error.contains("refused"), "{error}");
    }
}
