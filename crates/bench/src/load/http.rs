//! HTTP/1.1 requests over TCP and Unix sockets.
//!
//! A closed loop sends the next request after the response: it measures the cost of the work. An open loop sends at its
//! own rate, independent of the server, and measures latency from the *intended* start of a request, so that the delays
//! of a stalled server are counted for all waiting requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::task;
use tokio::time::timeout;

use self::response::{After, is_unused, receive};
use super::connector::Connector;
use super::gauge::{Gauge, Phase};
use crate::address::Address;

mod response;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub server: Address,
    pub path: String,
    pub connections: usize,
    pub reuse: Reuse,
    pub pace: Pace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Connections are used until the server closes them.
    Keep,
    /// Each request has its own connection, with `Connection: close`.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Send a request after the previous response.
    Closed,
    /// Requests per second.
    Open(f64),
}

impl Load {
    /// Starts the connections as tasks of this thread, which run until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        self.start_over(gauge, None).await
    }

    /// Like [`Load::start`], over TLS if there is a connector.
    pub(super) async fn start_over(&self, gauge: &Rc<Gauge>, tls: Option<Connector>) -> io::Result<()> {
        let connection = match self.reuse {
            Reuse::Keep => "",
            Reuse::Never => "Connection: close\r\n",
        };
        let path = &self.path;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: penstock-bench\r\n{connection}\r\n"
        );
        let shared = Rc::new(Shared {
            load: self.clone(),
            tls,
            request: request.into_bytes(),
            gauge: gauge.clone(),
            intended: RefCell::default(),
            due: Semaphore::new(0),
            ready: Semaphore::new(0),
        });
        // The first request reports a missing server before the measurement.
        match timeout(FIRST_RESPONSE, Client::new(&shared).exchange()).await {
            Ok(response) => response?,
            Err(_) => return Err(io::Error::new(ErrorKind::TimedOut, "the first request has no response")),
        };
        for _ in 0..self.connections {
            let shared = shared.clone();
            task::spawn_local(async move { shared.work().await });
        }
        // The opening of kept connections, above all TLS handshakes, is not measured.
        for _ in 0..self.connections {
            shared.ready.acquire().await.map_err(io::Error::other)?.forget();
        }
        if let Pace::Open(rate) = self.pace {
            let timer = Timer::new()?;
            let shared = shared.clone();
            task::spawn_local(async move {
                if let Err(error) = shared.pace(rate, timer).await {
                    shared.gauge.error(format!("the timer failed: {error}"));
                }
            });
        }
        Ok(())
    }
}

/// State shared by all connections of a load.
struct Shared {
    load: Load,
    tls: Option<Connector>,
    request: Vec<u8>,
    gauge: Rc<Gauge>,
    /// Open loop: intended start times of requests that are due.
    intended: RefCell<VecDeque<Instant>>,
    due: Semaphore,
    /// Connections that have completed their first request.
    ready: Semaphore,
}

impl Shared {
    /// Runs one connection until the window is over.
    async fn work(self: Rc<Self>) {
        let mut client = Client::new(&self);
        if self.load.reuse == Reuse::Keep
            && let Err(error) = client.exchange().await
        {
            self.gauge.error(error);
        }
        self.ready.add_permits(1);
        while self.gauge.phase() != Phase::Over {
            let start = match self.load.pace {
                Pace::Closed => Instant::now(),
                Pace::Open(_) => self.next_due().await,
            };
            match client.exchange().await {
                Ok(bytes) => {
                    self.gauge.unit(start, Instant::now());
                    self.gauge.bytes(bytes);
                }
                Err(error) => {
                    self.gauge.forgive(start);
                    self.gauge.error(error);
                    client.stream = None;
                    // Limit the retry rate against a server that refuses every connection.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    async fn next_due(&self) -> Instant {
        loop {
            if let Ok(permit) = self.due.acquire().await {
                permit.forget();
            }
            if let Some(intended) = self.intended.borrow_mut().pop_front() {
                return intended;
            }
        }
    }

    /// Open loop: makes requests due at a constant rate. After a late wake-up, all overdue requests become due at once.
    async fn pace(&self, rate: f64, timer: Timer) -> io::Result<()> {
        let start = Instant::now();
        let mut number = 0_u64;
        while self.gauge.phase() != Phase::Over {
            let intended = start + Duration::from_secs_f64(number as f64 / rate);
            let left = intended.saturating_duration_since(Instant::now());
            if left > Duration::ZERO {
                timer.sleep(left).await?;
                continue;
            }
            self.gauge.owe(intended);
            self.intended.borrow_mut().push_back(intended);
            self.due.add_permits(1);
            number += 1;
            if number.is_multiple_of(16) {
                // Yield, so that a late sender does not starve the connections.
                task::yield_now().await;
            }
        }
        Ok(())
    }
}

/// A connection that is opened on demand.
struct Client<'a> {
    shared: &'a Shared,
    stream: Option<Stream>,
    buffer: Vec<u8>,
}

/// Stream of bytes in both directions.
pub trait Bytes: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Bytes for T {}

/// A client connection of any kind.
pub type Stream = Box<dyn Bytes>;

impl<'a> Client<'a> {
    fn new(shared: &'a Shared) -> Self {
        Client { shared, stream: None, buffer: vec![0; 64 * 1024] }
    }

    /// Sends one request and reads its response. Returns the length of the response on the wire.
    async fn exchange(&mut self) -> io::Result<usize> {
        let kept = self.stream.is_some();
        match self.attempt().await {
            // A server may close an idle connection at any time, which is not a failure of the request.
            Err(error) if kept && is_unused(&error) => {
                self.stream = None;
                self.attempt().await
            }
            result => result,
        }
    }

    async fn attempt(&mut self) -> io::Result<usize> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(&self.shared.load.server, self.shared.tls.as_ref()).await?,
        };
        stream.write_all(&self.shared.request).await?;
        stream.flush().await?;
        let (length, after) = receive(&mut stream, &mut self.buffer).await?;
        if after == After::Open && self.shared.load.reuse == Reuse::Keep {
            self.stream = Some(stream);
        }
        Ok(length)
    }
}

/// Connects over TCP or a Unix socket, or over TCP with TLS.
pub(super) async fn connect(address: &Address, tls: Option<&Connector>) -> io::Result<Stream> {
    if let Some(tls) = tls {
        return Ok(Box::new(tls.connect(address).await?));
    }
    match address {
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        other => Err(io::Error::other(format!("no HTTP over {other}"))),
    }
}

/// Sends one request on a connection that must stay open.
pub(super) async fn get_once(stream: &mut Stream) -> io::Result<()> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: penstock-bench\r\n\r\n").await?;
    stream.flush().await?;
    match receive(stream, &mut vec![0; 16 * 1024]).await? {
        (_, After::Open) => Ok(()),
        (_, After::Closed) => Err(io::Error::other(
            "the server closes the connection after each response, and this load needs keep-alive",
        )),
    }
}

/// A timer with a precision of some microseconds: the runtime's own has one of a millisecond.
struct Timer(AsyncFd<Descriptor>);

struct Descriptor(TimerFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a `Descriptor` keeps the one descriptor it owns"
        )]
        let registered = AsyncFd::with_interest(Descriptor(timer), Interest::READABLE);
        registered.map(Timer)
    }

    async fn sleep(&self, time: Duration) -> io::Result<()> {
        let once = Expiration::OneShot(TimeSpec::from_duration(time));
        self.0.get_ref().0.set(once, TimerSetTimeFlags::empty())?;
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}

/// Time limit of the first response: an application may have to be loaded.
const FIRST_RESPONSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
