//! Captures of sessions, for an operator who looks at their bytes: [`Tap`] makes packets of what a session reads and
//! writes, [`DatagramTap`] of the datagrams of a UDP flow, and a client of the control socket takes them. Without a
//! capture, a session costs one look at a flag when its connection begins, and a flow one for each batch of datagrams.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use logic::pcapng::{Datagrams, Flow, From};
use logic::peers::{Peer, PeerSet};
use tokio::sync::mpsc::Receiver;

use crate::lock::lock;
use crate::pipe::Pipe;

/// The capture of this process: there is one at a time at most.
#[derive(Debug, Default)]
pub struct Captures(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    active: AtomicBool,
    /// How many captures there were.
    number: AtomicU64,
    current: Mutex<Option<Arc<Capture>>>,
}

/// What is captured.
#[derive(Debug)]
pub struct Wanted {
    /// NAME of `[listener.NAME]`.
    pub listener: String,
    /// Only sessions of these clients; `None` is all.
    pub clients: Option<PeerSet>,
    pub by: String,
}

#[derive(Debug)]
struct Capture {
    wanted: Wanted,
    pipe: Pipe,
    sessions: AtomicU64,
}

/// The packets of a capture, which ends when this is dropped.
#[derive(Debug)]
pub struct Capturing {
    shared: Arc<Shared>,
    capture: Arc<Capture>,
    packets: Receiver<Vec<u8>>,
}

impl Captures {
    /// Starts a capture. An error names who has one already.
    pub fn start(&self, wanted: Wanted) -> Result<Capturing, String> {
        let mut current = lock(&self.0.current);
        if let Some(other) = &*current {
            return Err(other.wanted.by.clone());
        }
        let (pipe, taken) = Pipe::new();
        let capture = Arc::new(Capture { wanted, pipe, sessions: AtomicU64::new(0) });
        *current = Some(capture.clone());
        self.0.number.fetch_add(1, Relaxed);
        self.0.active.store(true, Relaxed);
        Ok(Capturing { shared: self.0.clone(), capture, packets: taken })
    }

    /// Whether there is a capture, of any listener.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.0.active.load(Relaxed)
    }

    /// The capture of a listener, if it wants this client.
    fn wanting(&self, listener: &str, client: Peer) -> Option<Arc<Capture>> {
        let capture = lock(&self.0.current).clone()?;
        let Wanted { listener: wanted, clients, .. } = &capture.wanted;
        let wants = wanted == listener && clients.as_ref().is_none_or(|clients| clients.contains(&client));
        wants.then_some(capture)
    }

    /// Number of the capture that is active; `None` if there is none.
    #[inline]
    pub fn number(&self) -> Option<u64> {
        self.is_active().then(|| self.0.number.load(Relaxed))
    }

    /// Makes the tap of a flow of datagrams, if it is to be captured. `client` may be the one that a PROXY header names.
    pub fn tap_datagrams(
        &self,
        listener: &str,
        client: SocketAddr,
        server: SocketAddr,
    ) -> Option<DatagramTap> {
        let canonical = SocketAddr::new(client.ip().to_canonical(), client.port());
        let capture = self.wanting(listener, Peer::Ip(canonical))?;
        capture.sessions.fetch_add(1, Relaxed);
        Some(DatagramTap { capture, flow: Datagrams::new(client, server) })
    }

    /// Makes the tap of a session, if it is to be captured. `server` is our address.
    pub fn tap(
        &self,
        listener: &str,
        client: Peer,
        server: Option<SocketAddr>,
        begins: Begins,
    ) -> Option<Tap> {
        let capture = self.wanting(listener, client)?;
        let number = capture.sessions.fetch_add(1, Relaxed);
        // A Unix socket has no addresses; the number tells the sessions apart.
        let unknown = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let client = match client {
            Peer::Ip(address) => address,
            Peer::Unix => unknown(1024 + (number % 60_000) as u16),
        };
        let flow = Flow::new(client, server.unwrap_or_else(|| unknown(0)));
        let mut tap = Tap { capture, flow };
        if begins == Begins::Here {
            tap.send(|flow, out| flow.open(SystemTime::now(), out));
        }
        Some(tap)
    }
}

impl Capturing {
    /// The next packets.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        let packets = self.packets.recv().await?;
        self.capture.pipe.took(packets.len());
        Some(packets)
    }

    /// Takes no more packets; [`Self::next`] returns those that wait, and then `None`.
    pub fn close(&mut self) {
        self.packets.close();
    }

    /// Number of sessions, and of bytes that were left out because the client was too slow.
    pub fn counts(&self) -> (u64, u64) {
        (self.capture.sessions.load(Relaxed), self.capture.pipe.left_out())
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        self.shared.active.store(false, Relaxed);
        *lock(&self.shared.current) = None;
    }
}

/// Whether a connection began under the capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    Here,
    Earlier,
}

/// Makes packets of one session.
#[derive(Debug)]
pub struct Tap {
    capture: Arc<Capture>,
    flow: Flow,
}

impl Tap {
    /// Records bytes that the client sent.
    pub fn read(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.data(From::Client, bytes);
        }
    }

    /// Records that the server sent the first `count` bytes of `parts` to the client.
    pub fn wrote(&mut self, parts: &[IoSlice<'_>], mut count: usize) {
        for part in parts {
            let taken = count.min(part.len());
            if taken > 0 {
                self.data(From::Server, &part[..taken]);
            }
            count -= taken;
        }
    }

    fn data(&mut self, from: From, bytes: &[u8]) {
        self.send(|flow, out| flow.data(from, bytes, SystemTime::now(), out));
    }

    fn send(&mut self, make: impl FnOnce(&mut Flow, &mut Vec<u8>)) {
        let Self { capture, flow } = self;
        capture.send(|out| make(flow, out));
    }
}

/// Makes packets of the datagrams of one flow.
#[derive(Debug)]
pub struct DatagramTap {
    capture: Arc<Capture>,
    flow: Datagrams,
}

impl DatagramTap {
    /// Records a datagram.
    pub fn record(&self, from: From, bytes: &[u8]) {
        self.capture.send(|out| self.flow.datagram(from, bytes, SystemTime::now(), out));
    }
}

impl Capture {
    fn send(&self, make: impl FnOnce(&mut Vec<u8>)) {
        // A session outlives its capture.
        let _ = self.pipe.send(make);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.send(|flow, out| flow.close(SystemTime::now(), out));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::WAITING;

    fn wanted(clients: Option<&str>) -> Wanted {
        let clients = clients.map(|clients| [clients.parse().unwrap()].into_iter().collect());
        Wanted { listener: "web".to_owned(), clients, by: "me".to_owned() }
    }

    #[tokio::test]
    async fn only_what_is_wanted_is_captured_and_by_one_operator() {
        let captures = Captures::default();
        assert!(!captures.is_active());
        let mut capturing = captures.start(wanted(Some("192.0.2.0/24"))).unwrap();
        assert!(captures.is_active());
        assert_eq!(captures.start(wanted(None)).unwrap_err(), "me");
        let tap = |listener, client: &str| {
            captures.tap(listener, Peer::Ip(client.parse().unwrap()), None, Begins::Here)
        };
        assert!(tap("other", "192.0.2.1:5").is_none());
        assert!(tap("web", "198.51.100.1:5").is_none());
        let mut session = tap("web", "192.0.2.1:5").unwrap();
        session.read(b"question");
        session.wrote(&[IoSlice::new(b"ans"), IoSlice::new(b"wer")], 4);
        drop(session);
        let mut all = Vec::new();
        for _ in 0..5 {
            all.extend(capturing.next().await.unwrap());
        }
        let has = |part: &[u8]| all.windows(part.len()).any(|bytes| bytes == part);
        assert!(has(b"question") && has(b"ans") && has(b"w") && !has(b"we"));
        assert_eq!(capturing.counts(), (1, 0));
        assert_eq!(capturing.capture.pipe.waiting.load(Relaxed), 0);
        drop(capturing);
        assert!(!captures.is_active() && captures.start(wanted(None)).is_ok());
    }

    #[test]
    fn what_the_client_does_not_take_is_bounded_and_counted() {
        let captures = Captures::default();
        let capturing = captures.start(wanted(None)).unwrap();
        let mut session = captures.tap("web", Peer::Unix, None, Begins::Here).unwrap();
        for _ in 0..1000 {
            session.read(&[b'x'; 65536]);
        }
        assert!(capturing.capture.pipe.waiting.load(Relaxed) <= WAITING);
        assert!(capturing.counts().1 > 60_000_000);
    }
}
