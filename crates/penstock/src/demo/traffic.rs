//! A trickle of requests through the demo's front door, so that the table moves and a lost request would show.
//! Latency counts from the moment a request was due, not from when it could be sent: a stall is not hidden.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

/// Requests being made, until the process ends.
#[derive(Clone, Debug)]
pub struct Traffic(Arc<Mutex<Window>>);

/// What came of the requests since the last look.
#[derive(Clone, Debug)]
pub struct Window {
    /// Requests answered with a status below 500.
    pub answered: u64,
    /// Requests that were not.
    pub failed: u64,
    /// Microseconds from when a request was due to the end of its answer.
    pub latency: Histogram<u64>,
}

impl Traffic {
    /// Makes `rate` requests a second to `address`, on a thread of their own.
    pub fn start(address: SocketAddr, rate: u32) -> io::Result<Self> {
        let traffic = Traffic(Arc::new(Mutex::new(Window::new())));
        let shared = traffic.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("demo-traffic".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let connections = rate.clamp(1, CONNECTIONS);
                let between = Duration::from_secs(1) * connections / rate.max(1);
                let mut running = JoinSet::new();
                for at in 0..connections {
                    let first = Instant::now() + between * at / connections;
                    running.spawn(send(shared.clone(), address, first, between));
                }
                while running.join_next().await.is_some() {}
            });
        })?;
        Ok(traffic)
    }

    /// The results since the last call.
    pub fn take(&self) -> Window {
        std::mem::replace(&mut *self.lock(), Window::new())
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        // Each holder does one step that leaves the window whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LONGEST.as_micros() as u64, 3)
            .expect("1 is below the upper bound and 3 digits are allowed");
        Window { answered: 0, failed: 0, latency }
    }
}

/// One connection: a request at each tick, a new connection whenever the old one is closed.
async fn send(traffic: Traffic, address: SocketAddr, first: Instant, between: Duration) {
    let mut ticks = time::interval_at(first, between);
    let mut open = None;
    loop {
        let due = ticks.tick().await;
        let answered = matches!(time::timeout(LONGEST, request(&mut open, address)).await, Ok(Ok(())));
        let took = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut window = traffic.lock();
        if answered {
            window.answered += 1;
            window.latency.saturating_record(took.max(1));
        } else {
            open = None;
            window.failed += 1;
        }
    }
}

async fn request(open: &mut Option<SendRequest<Empty<Bytes>>>, address: SocketAddr) -> anyhow::Result<()> {
    let mut sender = match open.take().filter(|sender| !sender.is_closed()) {
        Some(sender) => sender,
        None => connect(address).await?,
    };
    sender.ready().await?;
    let request = Request::get("/")
        .header("host", address.to_string())
        .header("user-agent", "penstock-demo")
        .body(Empty::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    anyhow::ensure!(!status.is_server_error(), "{status}");
    *open = Some(sender);
    Ok(())
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// Connections at most.
const CONNECTIONS: u32 = 4;

/// A request that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::backend;

    #[test]
    fn requests_are_counted_and_a_dead_server_counts_as_failures() {
        let directory = tempfile::tempdir().unwrap();
        let backends = backend::start(directory.path()).unwrap();
        let traffic = Traffic::start(backends[0].address.parse().unwrap(), 500).unwrap();
        wait_for(&traffic, |window| window.answered >= 10 && window.latency.len() == window.answered);
        backends[0].switch(backend::Power::Off);
        wait_for(&traffic, |window| window.failed >= 10);
        backends[0].switch(backend::Power::On);
        wait_for(&traffic, |window| window.answered >= 10);
    }

    fn wait_for(traffic: &Traffic, holds: impl Fn(&Window) -> bool) {
        let mut window = Window::new();
        let end = Instant::now() + Duration::from_secs(20);
        while !holds(&window) {
            assert!(Instant::now() < end, "it never came true");
            let more = traffic.take();
            window.answered += more.answered;
            window.failed += more.failed;
            window.latency += more.latency;
            thread::yield_now();
        }
    }
}
