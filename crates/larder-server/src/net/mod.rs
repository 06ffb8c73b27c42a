//! Sockets: binding them, the dialects that they speak, and the gate that closes them all at once.

pub mod activation;
pub mod dialect;
pub mod entry;
pub mod gate;
pub mod gateway_sockets;
pub mod listen_error;
pub mod listener;
pub mod udp;
