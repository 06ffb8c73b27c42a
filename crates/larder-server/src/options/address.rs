//! Checks of addresses before name resolution.

use larder_support::address::host_of;

/// Returns whether an address is on the loopback: a bare port, `localhost[:PORT]`, or a loopback IP
/// address with an optional port.
pub(super) fn is_loopback(address: &str) -> bool {
    if address.parse::<u16>().is_ok() {
        return true;
    }
    let host = host_of(address);
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}
