//! Clients and their options.

use crate::failure::{Failure, guarded};
use crate::memory::{free, handle, handle_mut, optional_text, put, text};
use crate::status::Status;
use larder_client::{Failover, Tls, blocking};
use std::ffi::c_char;
use std::io;
use std::ptr::null_mut;
use std::time::Duration;

/// A client for any number of threads.
#[derive(Debug)]
pub struct Client(pub(crate) blocking::Client);

/// Options for opening a client.
#[derive(Default)]
pub struct Options {
    timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    pool: Option<usize>,
    failover: Failover,
    login: Option<(String, String)>,
    tls: Option<Tls>,
}

/// Creates options with default values. larder_options_free() frees them.
#[unsafe(no_mangle)]
pub extern "C" fn larder_options_new() -> *mut Options {
    Box::into_raw(Box::default())
}

/// Frees options.
///
/// # Safety
/// `options` is NULL or valid. No thread uses it during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_free(options: *mut Options) {
    // SAFETY: `options` is NULL or was returned by `larder_options_new`, and is not used again.
    unsafe { free(options) };
}

/// Sets the time limit of a call in milliseconds. It includes the wait for a connection. 0 counts
/// as 1. [Default: 1000]
///
/// # Safety
/// `options` is NULL or valid, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_timeout(options: *mut Options, millis: u64) -> Status {
    guarded(|| {
        // SAFETY: `options` is NULL or valid, and no other thread uses it.
        unsafe { handle_mut(options) }?.timeout = Some(Duration::from_millis(millis));
        Ok(Status::Ok)
    })
}

/// Sets the time limit for opening a connection in milliseconds. 0 counts as 1. The time limit of
/// the call also applies. [Default: 250]
///
/// # Safety
/// `options` is NULL or valid, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_connect_timeout(
    options: *mut Options,
    millis: u64,
) -> Status {
    guarded(|| {
        // SAFETY: `options` is NULL or valid, and no other thread uses it.
        unsafe { handle_mut(options) }?.connect_timeout = Some(Duration::from_millis(millis));
        Ok(Status::Ok)
    })
}

/// Makes each call use a connection of its own from a pool with at most `max` connections per
/// server. 0 counts as 1. If all connections are in use, a call waits. [Default: calls share
/// connections, one per CPU core and at most 4 per server]
///
/// # Safety
/// `options` is NULL or valid, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_pool(options: *mut Options, max: usize) -> Status {
    guarded(|| {
        // SAFETY: `options` is NULL or valid, and no other thread uses it.
        unsafe { handle_mut(options) }?.pool = Some(max);
        Ok(Status::Ok)
    })
}

/// Moves the keys of a failed server to other servers. A call that has changed nothing, for example
/// because the connection was refused, uses the next server. After five failures of a server in a
/// row, calls use the other servers at once, except for probes. Calls that time out and calls whose
/// change may have happened still fail. A server that becomes available again without a restart
/// still has its old values. [Default: false]
///
/// # Safety
/// `options` is NULL or valid, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_failover(options: *mut Options, enabled: bool) -> Status {
    guarded(|| {
        let failover = if enabled { Failover::Next } else { Failover::Fail };
        // SAFETY: `options` is NULL or valid, and no other thread uses it.
        unsafe { handle_mut(options) }?.failover = failover;
        Ok(Status::Ok)
    })
}

/// Logs in on each new connection, as memcached with the option -Y requires. The user name must not
/// contain spaces, and memcached accepts no spaces in passwords either. larder_open() reports an
/// invalid user name. [Default: no login]
///
/// # Safety
/// `options` is NULL or valid, and no other thread uses it. `user` and `password` are NULL or end
/// with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_login(
    options: *mut Options,
    user: *const c_char,
    password: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: `user` is NULL or ends with a zero.
        let user = unsafe { text(user) }?;
        // SAFETY: `password` is NULL or ends with a zero.
        let password = unsafe { text(password) }?;
        // SAFETY: `options` is NULL or valid, and no other thread uses it.
        unsafe { handle_mut(options) }?.login = Some((user.to_owned(), password.to_owned()));
        Ok(Status::Ok)
    })
}

/// Encrypts all connections with TLS 1.2 or 1.3. NULL selects the default of an argument:
///
/// - `ca_file`: a PEM file with CAs. One of them must have signed the server's certificate.
///   [Default: the CAs of the system]
/// - `cert_file`: a PEM file with the client certificate followed by its intermediate CAs, for
///   servers that request a client certificate. [Default: no client certificate]
/// - `key_file`: a PEM file with the key of the client certificate. [Default: `cert_file`]
/// - `server_name`: the name that the certificates of all servers must contain. [Default: the host
///   of each server; `localhost` for unix sockets]
///
/// This call reads the files, and later changes of the files have no effect. If a file or the name
/// is unusable, the call returns LARDER_STATUS_INVALID_ARGUMENT and leaves the options unchanged,
/// and larder_error_message() names the file. If the certificate of a server is invalid, the calls
/// of the client return LARDER_STATUS_CONNECT. [Default: no encryption]
///
/// # Safety
/// `options` is NULL or valid, and no other thread uses it. The other arguments are NULL or end
/// with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_tls(
    options: *mut Options,
    ca_file: *const c_char,
    cert_file: *const c_char,
    key_file: *const c_char,
    server_name: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: `options` is NULL or valid, and no other thread uses it.
        let options = unsafe { handle_mut(options) }?;
        // SAFETY: `ca_file` is NULL or ends with a zero.
        let ca_file = unsafe { optional_text(ca_file) }?;
        // SAFETY: `cert_file` is NULL or ends with a zero.
        let cert_file = unsafe { optional_text(cert_file) }?;
        // SAFETY: `key_file` is NULL or ends with a zero.
        let key_file = unsafe { optional_text(key_file) }?;
        // SAFETY: `server_name` is NULL or ends with a zero.
        let server_name = unsafe { optional_text(server_name) }?;
        let server_name = server_name.map(str::to_owned);
        let tls = Tls::load_parts(ca_file, cert_file, key_file, server_name);
        let invalid = |error: io::Error| Failure::new(Status::InvalidArgument, &error.to_string());
        options.tls = Some(tls.map_err(invalid)?);
        Ok(Status::Ok)
    })
}

/// Opens a client for the server at an address: HOST, HOST:PORT, [V6]:PORT, or the path of a unix
/// socket. Separate the addresses of several servers with commas. Rendezvous hashing distributes
/// keys over the servers, and the order of the addresses does not matter. `options` may be NULL,
/// and may be freed after the call. This call resolves host names. The calls of the client open
/// connections on demand. larder_close() closes the client.
///
/// # Safety
/// `address` is NULL or ends with a zero. `options` is NULL or valid, and no thread changes it
/// during the call. `client` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_open(
    address: *const c_char,
    options: *const Options,
    client: *mut *mut Client,
) -> Status {
    guarded(|| {
        // SAFETY: `client` is NULL or writable.
        unsafe { put(client, null_mut()) }?;
        // SAFETY: `address` is NULL or ends with a zero.
        let address = unsafe { text(address) }?;
        let mut builder = blocking::Client::builder(address);
        // SAFETY: `options` is NULL or valid.
        if let Ok(options) = unsafe { handle(options) } {
            builder = match options.timeout {
                Some(time) => builder.timeout(time),
                None => builder,
            };
            builder = match options.connect_timeout {
                Some(time) => builder.connect_timeout(time),
                None => builder,
            };
            builder = match options.pool {
                Some(max) => builder.connections(max),
                None => builder,
            };
            builder = builder.failover(options.failover);
            builder = match &options.login {
                Some((user, password)) => builder.login(user, password),
                None => builder,
            };
            builder = match &options.tls {
                Some(tls) => builder.tls(tls.clone()),
                None => builder,
            };
        }
        let opened = Box::into_raw(Box::new(Client(builder.build()?)));
        // SAFETY: `client` is NULL or writable.
        unsafe { put(client, opened) }?;
        Ok(Status::Ok)
    })
}

/// Closes a client and its connections.
///
/// # Safety
/// `client` is NULL or valid. No thread uses it during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_close(client: *mut Client) {
    // SAFETY: `client` is NULL or was returned by `larder_open`, and is not used again.
    unsafe { free(client) };
}
