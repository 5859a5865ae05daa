//! Orders of a load process (`penstock bench-load`).
//!
//! Each kind of load has a file in `load/`. It calls [`gauge::Gauge`] for each unit of work; the gauge handles warm-up,
//! clocks and CPU meters: it opens and closes the window in which units are counted, and reads the meters at both ends.

use serde::{Deserialize, Serialize};

pub mod aead;
pub mod connector;
pub mod gauge;
pub mod http;
pub mod idle;
pub mod message;
pub mod packets;
pub mod pipe;
pub mod tcp;
pub mod tls;
pub mod truststore;
pub mod udp;

/// Work of a load process. Servers report their addresses and run until their standard input is closed; loads run
/// through their window and return a [`gauge::Tally`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Answers every message: see `load/message.rs`.
    MessageServer(message::Server),
    MessageClient(message::Client),
    /// A small HTTP/1.1 server: see `target/backend.rs`.
    HttpBackend(crate::target::backend::HttpBackend),
    /// HTTP/1.1 requests: see `load/http.rs`.
    Http(http::Load),
    /// HTTP/1.1 requests over TLS: see `load/tls.rs`.
    Https(tls::Requests),
    /// TLS handshakes: see `load/tls.rs`.
    Handshakes(tls::Load),
    /// Server side behind a TCP relay: see `load/tcp.rs`.
    TcpServer(tcp::Server),
    /// Client side of a TCP relay: see `load/tcp.rs`.
    Tcp(tcp::Load),
    /// Server side behind a relay of datagrams: see `load/udp.rs`.
    UdpServer(udp::Server),
    /// Client side of a relay of datagrams: see `load/udp.rs`.
    Udp(udp::Load),
    /// Packets at a constant rate: see `load/packets.rs`.
    Packets(packets::Load),
    /// Idle connections: see `load/idle.rs`.
    Idle(idle::Load),
    /// Loads CA certificates once, without a window: see `load/truststore.rs`.
    TrustStore(truststore::TrustStore),
    /// One end of a program's pipe: see `load/pipe.rs`.
    Pipe(pipe::Pipe),
    /// Encryption without a transport: see `load/aead.rs`.
    Aead(aead::Aead),
    /// Uses all idle time of its core. On the target's core it gives the target a constant backlog, as under full load:
    /// a proxy that wakes up for every single request costs more per request.
    Spin,
}

/// The tally of the first window in which anything happened: on a busy machine a short one may count nothing.
#[cfg(test)]
pub(crate) fn until_counted(mut run: impl FnMut(std::time::Duration) -> gauge::Tally) -> gauge::Tally {
    let windows = [20, 200, 2_000, 20_000].map(std::time::Duration::from_millis);
    let mut tallies = windows.into_iter().map(&mut run);
    tallies.find(|tally| tally.units > 0 || tally.errors > 0).expect("a unit within 20 s")
}
