//! Sockets: addresses, binding, the protocol of each listener, UDP, and the gate that pauses the
//! acceptance of connections.

pub mod activation;
pub mod dialect;
pub mod entry;
pub mod gate;
pub mod gateway_sockets;
pub mod listen_error;
pub mod listener;
pub mod udp;
