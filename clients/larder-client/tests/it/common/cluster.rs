//! A server inside the test that has the list of servers.

use super::wait_until;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server that answers `config get cluster`.
pub struct Cluster {
    port: u16,
    answer: Arc<Mutex<String>>,
    /// How often it was asked.
    pub asked: Arc<AtomicU64>,
}

impl Cluster {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (answer, asked) = (Arc::<Mutex<String>>::default(), Arc::<AtomicU64>::default());
        let (answers, count) = (Arc::clone(&answer), Arc::clone(&asked));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut line = String::new();
                // Whoever does not wait for the answer is gone.
                if stream.read_line(&mut line).is_ok_and(|_| line == "config get cluster\r\n") {
                    drop(stream.get_mut().write_all(answers.lock().unwrap().as_bytes()));
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { port, answer, asked }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn set(&self, answer: &str) {
        answer.clone_into(&mut self.answer.lock().unwrap());
    }

    pub fn list(&self, version: u64, ports: &[u16]) {
        // A host without a name is known by its address.
        let servers: Vec<_> = ports.iter().map(|port| format!("|127.0.0.1|{port}")).collect();
        let data = format!("{version}\n{}\n", servers.join(" "));
        self.set(&format!("CONFIG cluster 0 {}\r\n{data}\r\nEND\r\n", data.len()));
    }

    /// Waits until it was asked a few times more.
    pub fn wait(&self) {
        let before = self.asked.load(Ordering::Relaxed);
        wait_until(|| self.asked.load(Ordering::Relaxed) > before + 2);
    }
}
