//! What the system says about a server's process.

use crate::settings::Target;

/// Resident memory in bytes, where the system says.
#[cfg(target_os = "linux")]
#[must_use]
pub fn resident_bytes(pid: i32) -> Option<u64> {
    let status = procfs::process::Process::new(pid).ok()?.status().ok()?;
    Some(status.vmrss? << 10)
}

/// The process that listens at `target`, if it is on this machine and may be looked at.
#[cfg(target_os = "linux")]
#[must_use]
pub fn listener(target: &Target) -> Option<i32> {
    let sockets = listening_inodes(target);
    let holds = |process: &procfs::process::Process| {
        process.fd().is_ok_and(|mut fds| {
            fds.any(|fd| {
                fd.is_ok_and(|fd| match fd.target {
                    procfs::process::FDTarget::Socket(inode) => sockets.contains(&inode),
                    _ => false,
                })
            })
        })
    };
    let mut processes = procfs::process::all_processes().ok()?.flatten();
    if sockets.is_empty() { None } else { processes.find(holds).map(|process| process.pid) }
}

#[cfg(target_os = "linux")]
fn listening_inodes(target: &Target) -> Vec<u64> {
    match target {
        Target::Tcp(address) => {
            let all = [procfs::net::tcp(), procfs::net::tcp6()];
            all.into_iter()
                .flatten()
                .flatten()
                .filter(|socket| socket.state == procfs::net::TcpState::Listen)
                .filter(|socket| socket.local_address.port() == address.port())
                .filter(|socket| reaches(socket.local_address.ip(), address.ip()))
                .map(|socket| socket.inode)
                .collect()
        }
        Target::Unix(path) => procfs::net::unix()
            .into_iter()
            .flatten()
            .filter(|socket| socket.path.as_deref() == Some(path))
            .map(|socket| socket.inode)
            .collect(),
    }
}

#[cfg(target_os = "linux")]
fn reaches(bound: std::net::IpAddr, address: std::net::IpAddr) -> bool {
    bound == address || bound.is_unspecified()
}

/// Resident memory in bytes, where the system says.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn resident_bytes(_pid: i32) -> Option<u64> {
    None
}

/// The process that listens at `target`, if it is on this machine and may be looked at.
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn listener(_target: &Target) -> Option<i32> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn own_pid() -> Option<i32> {
        i32::try_from(std::process::id()).ok()
    }

    #[test]
    fn a_tcp_listener_is_found() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::Tcp(socket.local_addr().unwrap());
        assert_eq!(listener(&target), own_pid());
        drop(socket);
        assert_eq!(listener(&target), None);
    }

    #[test]
    fn a_unix_listener_is_found() {
        let path = std::env::temp_dir().join(format!("larder-bench-found-{}", std::process::id()));
        let socket = UnixListener::bind(&path).unwrap();
        assert_eq!(listener(&Target::Unix(path.clone())), own_pid());
        drop(socket);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn memory_is_some() {
        assert!(resident_bytes(own_pid().unwrap()).unwrap() > 1 << 20);
    }
}
