//! Addresses of other servers and of listeners, before they are looked up.

/// The host of an address with or without a port: a name or an IP address, without brackets.
pub(crate) fn host_of(address: &str) -> &str {
    let host = match address.parse::<std::net::IpAddr>() {
        Ok(_) => address,
        Err(_) => address.rsplit_once(':').map_or(address, |(host, _)| host),
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether an address, with or without a port, is one of this machine alone.
pub(super) fn is_loopback(address: &str) -> bool {
    if address.parse::<u16>().is_ok() {
        return true;
    }
    let host = host_of(address);
    host == "localhost"
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}
