//! A server in the test process that replies to `config get cluster`.

use super::wait_until;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server that replies with a server list.
pub struct Cluster {
    port: u16,
    reply: Arc<Mutex<String>>,
    /// The number of requests.
    pub requests: Arc<AtomicU64>,
}

impl Cluster {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (reply, requests) = (Arc::<Mutex<String>>::default(), Arc::<AtomicU64>::default());
        let (replies, count) = (Arc::clone(&reply), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut line = String::new();
                // Ignores errors, because a client may close its connection before the reply.
                if stream.read_line(&mut line).is_ok_and(|_| line == "config get cluster\r\n") {
                    drop(stream.get_mut().write_all(replies.lock().unwrap().as_bytes()));
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { port, reply, requests }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn set_reply(&self, reply: &str) {
        reply.clone_into(&mut self.reply.lock().unwrap());
    }

    pub fn set_list(&self, version: u64, ports: &[u16]) {
        // These entries have an IP address instead of a host name.
        let servers: Vec<_> = ports.iter().map(|port| format!("|127.0.0.1|{port}")).collect();
        let data = format!("{version}\n{}\n", servers.join(" "));
        self.set_reply(&format!("CONFIG cluster 0 {}\r\n{data}\r\nEND\r\n", data.len()));
    }

    /// Waits for three more requests. By then, the client has handled the current reply.
    pub fn wait_for_requests(&self) {
        let before = self.requests.load(Ordering::Relaxed);
        wait_until(|| self.requests.load(Ordering::Relaxed) > before + 2);
    }
}
