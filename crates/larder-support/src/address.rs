//! Addresses of servers before name resolution.

/// Returns the host of an address, which may have a port. The host is a name or an IP address
/// without brackets.
#[must_use]
pub fn host_of(address: &str) -> &str {
    let host = match address.parse::<std::net::IpAddr>() {
        Ok(_) => address,
        Err(_) => address.rsplit_once(':').map_or(address, |(host, _)| host),
    };
    host.trim_start_matches('[').trim_end_matches(']')
}
