//! Loads over several kinds of connections, and of servers that fail.

mod broken;
mod logins;
mod reconnect;
mod servers;
mod tls;
mod unix;
