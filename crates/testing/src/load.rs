//! Load from inside the test: every answer is checked, and every failure is kept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::{Client, request};
use crate::secs;

/// Requests that are sent until [`Load::stop`].
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    good: AtomicU64,
    failures: Mutex<Vec<String>>,
    slowest_micros: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
pub enum Connections {
    /// One connection per thread, reopened only if the server sent `Connection: close`.
    Kept,
    New,
}

#[derive(Debug)]
pub struct Totals {
    /// Answers with status 200.
    pub good: u64,
    /// All other results, in words.
    pub failures: Vec<String>,
    /// Longest time from the first byte of a request to its whole answer.
    pub slowest: Duration,
}

impl Load {
    /// Starts `threads` clients that send GET `target`. `rate` is their total per second; `None` is as fast as
    /// possible.
    pub fn start(
        address: &str,
        target: &str,
        connections: Connections,
        threads: u32,
        rate: Option<u32>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let gap = rate.map(|rate| Duration::from_secs(1) * threads / rate);
        let threads = (0..threads)
            .map(|_| {
                let (shared, address, target) = (shared.clone(), address.to_owned(), target.to_owned());
                std::thread::spawn(move || shared.run(&address, &target, connections, gap))
            })
            .collect();
        Self { shared, threads }
    }

    /// Number of answers with status 200 so far.
    pub fn good(&self) -> u64 {
        self.shared.good.load(SeqCst)
    }

    pub fn failed(&self) -> usize {
        self.shared.failures.lock().unwrap().len()
    }

    /// Stops the clients. Returns the totals.
    pub fn stop(self) -> Totals {
        self.shared.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let failures = std::mem::take(&mut *self.shared.failures.lock().unwrap());
        let slowest = Duration::from_micros(self.shared.slowest_micros.load(SeqCst));
        Totals { good: self.shared.good.load(SeqCst), failures, slowest }
    }
}

impl Shared {
    fn run(&self, address: &str, target: &str, connections: Connections, gap: Option<Duration>) {
        let mut client: Option<Client> = None;
        let mut due = Instant::now();
        while !self.stop.load(SeqCst) {
            if let Some(gap) = gap {
                // Open loop: a slow answer does not reduce the number of requests.
                due += gap;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let close = matches!(connections, Connections::New);
            let headers: &[(&str, &str)] = if close { &[("Connection", "close")] } else { &[] };
            let began = Instant::now();
            let end = self.one(&mut client, address, &request("GET", target, headers, b""));
            self.slowest_micros.fetch_max(began.elapsed().as_micros() as u64, SeqCst);
            match end {
                Ok(()) => {
                    self.good.fetch_add(1, SeqCst);
                }
                Err(why) => {
                    client = None;
                    self.failures.lock().unwrap().push(why);
                }
            }
            if close {
                client = None;
            }
        }
    }

    fn one(&self, client: &mut Option<Client>, address: &str, bytes: &[u8]) -> Result<(), String> {
        if client.is_none() {
            *client = Some(Client::try_connect(address).map_err(|error| format!("connect: {error}"))?);
        }
        let Some(connected) = client.as_mut() else { return Err("no connection".to_owned()) };
        connected.try_send(bytes).map_err(|error| format!("send: {error}"))?;
        let answer = connected.try_response(secs(15))?;
        if answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            *client = None;
        }
        match answer.status {
            200 => Ok(()),
            other => Err(format!("status {other}: {}", answer.text().chars().take(200).collect::<String>())),
        }
    }
}

impl Totals {
    /// Panics unless every answer had status 200.
    #[track_caller]
    pub fn assert_clean(&self) {
        let shown = &self.failures[..self.failures.len().min(10)];
        assert!(self.failures.is_empty(), "{} of {} failed: {shown:#?}", self.failures.len(), self.good);
    }
}
