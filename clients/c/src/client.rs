//! Clients and their options.

use crate::failure::guarded;
use crate::memory::{free, handle, handle_mut, put, text};
use crate::status::Status;
use larder_client::blocking;
use std::ffi::c_char;
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
    login: Option<(String, String)>,
}

/// Creates options with default values. larder_options_free() frees them.
#[unsafe(no_mangle)]
pub extern "C" fn larder_options_new() -> *mut Options {
    Box::into_raw(Box::default())
}

/// Frees options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_free(options: *mut Options) {
    // SAFETY: as larder.h demands.
    unsafe { free(options) };
}

/// Sets the time limit of a call in milliseconds, including the wait for a connection. [Default: 1000]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_timeout(options: *mut Options, millis: u64) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { handle_mut(options) }?.timeout = Some(Duration::from_millis(millis));
        Ok(Status::Ok)
    })
}

/// Sets the time limit for opening a connection in milliseconds, within the time limit of the call. [Default: 250]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_connect_timeout(
    options: *mut Options,
    millis: u64,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { handle_mut(options) }?.connect_timeout = Some(Duration::from_millis(millis));
        Ok(Status::Ok)
    })
}

/// Gives each call a connection of a pool to itself. The pool has at most `max` connections per server; calls wait for
/// a free one. [Default: calls share up to 4 connections per server]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_pool(options: *mut Options, max: usize) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { handle_mut(options) }?.pool = Some(max);
        Ok(Status::Ok)
    })
}

/// Logs in on each connection with memcached's text protocol (its option -Y). Neither the user name nor the password
/// may contain spaces. [Default: no login]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_options_login(
    options: *mut Options,
    user: *const c_char,
    password: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        let user = unsafe { text(user) }?;
        // SAFETY: as larder.h demands.
        let password = unsafe { text(password) }?;
        // SAFETY: as larder.h demands.
        unsafe { handle_mut(options) }?.login = Some((user.to_owned(), password.to_owned()));
        Ok(Status::Ok)
    })
}

/// Opens a client for the server at an address: HOST, HOST:PORT, [V6]:PORT, or the path of a unix socket. Separate the
/// addresses of several servers by commas; keys are distributed over them by rendezvous hashing, which depends only on
/// the addresses. Options may be NULL, and may be freed after the call. Connections are opened on first use.
/// larder_close() closes the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_open(
    address: *const c_char,
    options: *const Options,
    client: *mut *mut Client,
) -> Status {
    guarded(|| {
        // SAFETY: as larder.h demands.
        unsafe { put(client, null_mut()) }?;
        // SAFETY: as larder.h demands.
        let address = unsafe { text(address) }?;
        let mut builder = blocking::Client::builder(address);
        // SAFETY: as larder.h demands.
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
            builder = match &options.login {
                Some((user, password)) => builder.login(user, password),
                None => builder,
            };
        }
        let opened = Box::into_raw(Box::new(Client(builder.build()?)));
        // SAFETY: as larder.h demands.
        unsafe { put(client, opened) }?;
        Ok(Status::Ok)
    })
}

/// Closes a client and its connections.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn larder_close(client: *mut Client) {
    // SAFETY: as larder.h demands.
    unsafe { free(client) };
}
