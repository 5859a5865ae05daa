//! A low rate of requests through the demo's front door, so that the table changes and a lost request is seen. Latency
//! is measured from the time at which a request was due, not from its sending, so that a stall is included.

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

/// A generator of requests, which runs until the process ends.
#[derive(Clone, Debug)]
pub struct Traffic(Arc<Mutex<Window>>);

/// Results of the requests since the last call of `take`.
#[derive(Clone, Debug)]
pub struct Window {
    pub answered: u64,
    /// Requests without an answer, or with a status of 500 or more.
    pub failed: u64,
    /// Microseconds from the time at which a request was due to the end of its answer.
    pub latency: Histogram<u64>,
}

impl Traffic {
    /// Sends `rate` requests per second to `address`, on a separate thread.
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

    pub fn take(&self) -> Window {
        std::mem::replace(&mut *self.lock(), Window::new())
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        // A panic of another holder cannot leave the window inconsistent: each holder changes it in one step.
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

/// Sends a request at each tick over one connection, and reconnects when it is closed.
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

/// Limit of the connections.
const CONNECTIONS: u32 = 4;

/// Timeout of a request.
const LONGEST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend;

    #[test]
    fn requests_are_counted_and_a_dead_server_counts_as_failures() {
        let directory = tempfile::tempdir().unwrap();
        let backends = backend::start(directory.path()).unwrap();
        let traffic = Traffic::start(backends[0].address.parse().unwrap(), 500).unwrap();
        wait_for(&traffic, |window| window.answered >= 10 && window.latency.len() == window.answered);
        backends[0].switch(backend::Availability::Off);
        wait_for(&traffic, |window| window.failed >= 10);
        backends[0].switch(backend::Availability::On);
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
