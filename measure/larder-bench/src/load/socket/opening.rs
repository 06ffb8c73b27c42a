//! Opens connections, and sends the requests outside the load: the login, and a version query on a
//! separate connection.

use crate::load::socket::{Socket, TlsClient};
use crate::run_error::RunError;
use crate::settings::{Login, Settings};
use larder_protocol::encode::{binary, classic, resp};
use larder_protocol::response::{Read, Resp, Text, read_binary, read_resp, read_text};
use larder_protocol::{Credentials, Password};
use larder_target::{Protocol, ServerAddress};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Timeout for connecting and for each read and write of the version query. The timeout limits how
/// long an unresponsive server delays the results.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects and, if the settings have a login, logs in. Blocks.
///
/// # Errors
/// The connection fails, or the server refuses the login or does not answer it in time.
pub(crate) fn open(
    settings: &Settings,
    address: &ServerAddress,
    tls: Option<&TlsClient>,
) -> io::Result<Socket> {
    let mut socket = Socket::connect(address, tls, settings.connection_timeout)?;
    if let Some(login) = &settings.login {
        let request = login_request(settings.protocol, login);
        let read = |bytes: &[u8]| login_answer(settings.protocol, bytes);
        exchange(&mut socket, settings.timeout, &request, read).map_err(name_login_timeout)?;
    }
    Ok(socket)
}

/// Returns whether [`open`] failed because the server refused the login.
pub(crate) fn is_refused_login(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

/// The server did not answer a login in time.
#[derive(Debug, thiserror::Error)]
#[error("the server did not answer the login in time (--timeout)")]
struct LoginTimeout;

fn name_login_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, LoginTimeout),
        _ => error,
    }
}

/// Returns whether [`open`] failed because the server did not answer the login in time.
pub(crate) fn is_login_timeout(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<LoginTimeout>())
}

/// Returns the version of each server, as [`server_version`] reports it.
pub(crate) fn server_versions(settings: &Settings) -> Vec<Option<String>> {
    settings.servers.iter().map(|server| server_version(settings, &server.address)).collect()
}

/// Returns the version that a server reports, or `None` if the connection, the login or the query
/// fails.
fn server_version(settings: &Settings, address: &ServerAddress) -> Option<String> {
    let settings = &Settings {
        connection_timeout: Some(VERSION_TIMEOUT),
        timeout: settings.timeout.min(VERSION_TIMEOUT),
        ..settings.clone()
    };
    let tls = match &settings.tls {
        Some(tls) => Some(TlsClient::new(tls, address).ok()?),
        None => None,
    };
    let mut socket = open(settings, address, tls.as_ref()).ok()?;
    let mut request = Vec::new();
    match settings.protocol {
        Protocol::Text | Protocol::Meta => classic::version(&mut request),
        Protocol::Binary => binary::version(binary::Options::default(), &mut request),
        Protocol::Resp => resp::command(&[b"INFO", b"server"], &mut request),
    }
    let read = |bytes: &[u8]| version_answer(settings.protocol, bytes);
    exchange(&mut socket, settings.timeout, &request, read).ok()
}

/// Returns the encoded login request.
pub(crate) fn login_request(protocol: Protocol, login: &Login) -> Vec<u8> {
    let mut out = Vec::new();
    let user = login.user.as_deref().unwrap_or_default().as_bytes();
    let password = login.password.as_bytes();
    let credentials = Credentials { user, password: Password(password) };
    match protocol {
        Protocol::Text | Protocol::Meta => classic::login(&credentials, &mut out),
        Protocol::Binary => {
            binary::sasl_plain(&credentials, binary::Options::default(), &mut out);
        }
        Protocol::Resp if login.user.is_none() => resp::command(&[b"AUTH", password], &mut out),
        Protocol::Resp => resp::command(&[b"AUTH", user, password], &mut out),
    }
    out
}

/// Checks the reply to a login. Returns its length in bytes, or `None` if it is incomplete.
///
/// # Errors
/// The server refused the login, or the reply is malformed.
pub(crate) fn login_answer(protocol: Protocol, bytes: &[u8]) -> io::Result<Option<((), usize)>> {
    let answer = match protocol {
        Protocol::Text | Protocol::Meta => whole(read_text(bytes), |answer| match answer {
            Text::Line(b"STORED") => Ok(()),
            Text::Line(line) => Err(line),
            _ => Err(&b"unexpected answer"[..]),
        }),
        Protocol::Binary => whole(read_binary(bytes), |answer| match answer.status {
            0 => Ok(()),
            _ => Err(answer.value),
        }),
        Protocol::Resp => whole(read_resp(bytes), |answer| match answer {
            Resp::Simple(_) => Ok(()),
            Resp::Error(text) => Err(text),
            _ => Err(&b"unexpected answer"[..]),
        }),
    };
    match answer? {
        Some((Ok(()), len)) => Ok(Some(((), len))),
        Some((Err(words), _)) => Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!("the server refused the login: {}", words.escape_ascii()),
        )),
        None => Ok(None),
    }
}

fn version_answer(protocol: Protocol, bytes: &[u8]) -> io::Result<Option<(String, usize)>> {
    let answer = match protocol {
        Protocol::Text | Protocol::Meta => whole(read_text(bytes), |answer| match answer {
            Text::Line(line) => line.strip_prefix(b"VERSION ").map(text),
            _ => None,
        }),
        Protocol::Binary => {
            whole(read_binary(bytes), |answer| (answer.status == 0).then(|| text(answer.value)))
        }
        Protocol::Resp => whole(read_resp(bytes), |answer| match answer {
            Resp::Bulk(info) => version_in_info(&text(info)),
            _ => None,
        }),
    };
    match answer? {
        Some((Some(version), len)) => Ok(Some((version, len))),
        Some((None, _)) => Err(ErrorKind::InvalidData.into()),
        None => Ok(None),
    }
}

/// Returns the product and version in the reply to `INFO`. Products other than Redis report their
/// own version in addition to the compatible version of Redis. Returns `None` if the reply contains
/// no version of a known product.
fn version_in_info(info: &str) -> Option<String> {
    let mut versions: Vec<(&str, &str)> = info
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(name, version)| Some((name.strip_suffix("_version")?, version)))
        .filter(|(name, _)| ["redis", "valkey", "dragonfly", "garnet"].contains(name))
        .collect();
    versions.sort_by_key(|(name, _)| *name == "redis");
    versions.first().map(|(name, version)| format!("{name} {version}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn whole<R, T>(read: Read<R>, convert: impl FnOnce(R) -> T) -> io::Result<Option<(T, usize)>> {
    match read {
        Read::Whole(response, len) => Ok(Some((convert(response), len))),
        Read::Incomplete { .. } => Ok(None),
        Read::Malformed => Err(io::Error::new(ErrorKind::InvalidData, "check --protocol")),
    }
}

/// Sends a request and waits for its reply. A write or read that takes longer than `timeout` fails
/// with [`ErrorKind::WouldBlock`].
fn exchange<T>(
    socket: &mut Socket,
    timeout: Duration,
    request: &[u8],
    read: impl Fn(&[u8]) -> io::Result<Option<(T, usize)>>,
) -> io::Result<T> {
    socket.set_blocking(Some(timeout))?;
    let mut sent = 0;
    while sent < request.len() || !socket.is_flushed() {
        sent += retry(|| socket.write(&request[sent..]))?;
    }
    let mut bytes = vec![0; 1 << 16];
    let mut len = 0;
    let answer = loop {
        if let Some((answer, _)) = read(&bytes[..len])? {
            break answer;
        }
        match retry(|| socket.read(&mut bytes[len..]))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
    };
    socket.set_blocking(None)?;
    Ok(answer)
}

/// Repeats a call while a signal interrupts it. The socket's timeout applies to each call
/// separately.
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            done => return done,
        }
    }
}

/// `EMFILE` and `ENFILE`: the process or the system has too many open files.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// Converts the error of a failed attempt to connect client `index` to a server.
pub(crate) fn failure(
    settings: &Settings,
    index: usize,
    server: usize,
    error: io::Error,
) -> RunError {
    let Settings { servers, connection_timeout, timeout, .. } = settings;
    let address = servers[server].address.to_string();
    if is_refused_login(&error) {
        return RunError::Login(error.to_string());
    }
    if is_login_timeout(&error) {
        return RunError::LoginTimeout { address, timeout: *timeout };
    }
    match (error.raw_os_error(), connection_timeout) {
        (Some(code), _) if TOO_MANY_FILES.contains(&code) => {
            let number = index * servers.len() + server + 1;
            RunError::OpenFiles { number, connections: settings.connections(), error }
        }
        (_, Some(timeout)) if error.kind() == ErrorKind::TimedOut => {
            RunError::ConnectTimeout { address, timeout: *timeout }
        }
        _ => RunError::Connect { address, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_spelled_as_each_protocol_wants() {
        let ann = Login { user: Some("ann".to_owned()), password: "pass: word".to_owned() };
        let check = |protocol, login: &Login, expected: &str| {
            let request = login_request(protocol, login);
            assert_eq!(request.escape_ascii().to_string(), expected);
        };
        check(Protocol::Text, &ann, "set auth 0 0 14\\r\\nann pass: word\\r\\n");
        check(
            Protocol::Resp,
            &ann,
            "*3\\r\\n$4\\r\\nAUTH\\r\\n$3\\r\\nann\\r\\n$10\\r\\npass: word\\r\\n",
        );
        let word = Login { user: None, password: "word".to_owned() };
        check(Protocol::Resp, &word, "*2\\r\\n$4\\r\\nAUTH\\r\\n$4\\r\\nword\\r\\n");
        let binary = login_request(Protocol::Binary, &ann);
        assert_eq!(binary[..12], *b"\x80\x21\0\x05\0\0\0\0\0\0\0\x14");
        assert_eq!(binary[24..], *b"PLAIN\0ann\0pass: word");
    }

    #[test]
    fn a_product_that_imitates_redis_is_named() {
        let valkey =
            "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n";
        assert_eq!(version_in_info(valkey).as_deref(), Some("valkey 8.1.1"));
        assert_eq!(version_in_info("redis_version:7.0.15\r\n").as_deref(), Some("redis 7.0.15"));
        assert_eq!(version_in_info("os:Linux\r\n"), None);
    }
}
