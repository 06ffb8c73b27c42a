//! Starts a real etcd for tests (Debian's `etcd-server`).

use larder_etcd::{Etcd, EtcdGroup, EtcdSettings, GroupName, TimeLimits};
use larder_replica::Coordinator;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    _data: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts an etcd server. Returns `None` if etcd is not installed. Retries with other ports if
/// another process has taken the chosen ports.
pub(crate) fn start() -> Option<Server> {
    Command::new("etcd").arg("--version").stdout(Stdio::null()).status().ok()?;
    for _ in 0..20 {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (clients, peers) = (free(), free());
        let data = TempDir::new().unwrap();
        let url = format!("http://127.0.0.1:{clients}");
        let peer_url = format!("http://127.0.0.1:{peers}");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(data.path());
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Server { child, url, _data: data };
        let start = Instant::now();
        while server.child.try_wait().unwrap().is_none() {
            if server.group("ready").read().is_ok() {
                return Some(server);
            }
            assert!(start.elapsed() < TIMEOUT, "etcd does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    panic!("etcd does not start");
}

impl Server {
    pub(crate) fn client(&self) -> Etcd {
        // The first server is unreachable. The client must try the second.
        let urls = vec!["http://127.0.0.1:1".to_owned(), self.url.clone()];
        let settings = EtcdSettings { urls, ..EtcdSettings::default() };
        Etcd::with_limits(&settings, TimeLimits::COMMAND).unwrap()
    }

    pub(crate) fn group(&self, name: &str) -> EtcdGroup {
        EtcdGroup::new(self.client(), named(name))
    }
}

pub(crate) fn named(group: &str) -> GroupName {
    GroupName { cluster: "demo".to_owned(), group: group.to_owned() }
}
