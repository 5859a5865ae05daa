//! Load from inside the test: every answer is looked at, every failure kept.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::client::{Client, request};
use super::secs;

/// Requests that run until [`Load::stop`].
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    good: AtomicU64,
    failures: Mutex<Vec<String>>,
}

/// Whether a connection carries many requests.
#[derive(Clone, Copy, Debug)]
pub enum Connections {
    /// One connection per thread; reconnects only when the server said `Connection: close`.
    Kept,
    /// One per request.
    New,
}

/// What a load did.
#[derive(Debug)]
pub struct Totals {
    /// Answers with status 200.
    pub good: u64,
    /// Everything else, in words.
    pub failures: Vec<String>,
}

impl Load {
    /// `threads` clients send GET `target`; together `rate` per second, or as fast as they can if `None`.
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

    /// Good answers so far.
    pub fn good(&self) -> u64 {
        self.shared.good.load(SeqCst)
    }

    /// Failures so far.
    pub fn failed(&self) -> usize {
        self.shared.failures.lock().unwrap().len()
    }

    /// Ends and counts.
    pub fn stop(self) -> Totals {
        self.shared.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let failures = std::mem::take(&mut *self.shared.failures.lock().unwrap());
        Totals { good: self.shared.good.load(SeqCst), failures }
    }
}

impl Shared {
    fn run(&self, address: &str, target: &str, connections: Connections, gap: Option<Duration>) {
        let mut client: Option<Client> = None;
        let mut due = Instant::now();
        while !self.stop.load(SeqCst) {
            if let Some(gap) = gap {
                // Open loop: a slow answer does not lower the number of requests that are due.
                due += gap;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            let close = matches!(connections, Connections::New);
            let headers: &[(&str, &str)] = if close { &[("Connection", "close")] } else { &[] };
            match self.one(&mut client, address, &request("GET", target, headers, b"")) {
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
    /// Panics unless every answer was good.
    #[track_caller]
    pub fn assert_clean(&self) {
        let shown = &self.failures[..self.failures.len().min(10)];
        assert!(self.failures.is_empty(), "{} of {} failed: {shown:#?}", self.failures.len(), self.good);
    }
}
