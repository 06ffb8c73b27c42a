//! Loads over all kinds of connections, and loads on servers that fail.

mod broken;
mod logins;
mod reconnect;
mod servers;
mod tls;
mod unix;
