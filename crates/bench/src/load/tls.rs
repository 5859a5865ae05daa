//! Load of TLS handshakes, and load of HTTPS requests.

use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustls::HandshakeKind;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::{self, JoinSet};
use tokio_rustls::client::TlsStream;

use super::connector::{Client, Connector, Resumption};
use super::gauge::{Gauge, Phase};
use super::http;
use crate::address::Address;

/// One unit is a TCP connection, a TLS handshake and an orderly close.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    pub server: Address,
    pub client: Client,
    pub connections: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Requests {
    pub requests: http::Load,
    pub client: Client,
}

impl Requests {
    /// Starts the connections as tasks of this thread, which run until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        self.requests.start_over(gauge, Some(self.client.connector()?)).await
    }
}

impl Load {
    /// Starts the connections as tasks of this thread, which run until the gauge's window is over.
    pub async fn start(&self, gauge: &Rc<Gauge>) -> io::Result<()> {
        let mut firsts = JoinSet::new();
        for _ in 0..self.connections {
            let worker = Worker { server: self.server.clone(), connector: self.client.connector()? };
            // The first handshake is a full one and provides a session for resumption.
            firsts.spawn_local(async move { worker.shake_hands().await.map(|_| worker) });
        }
        let expected = match self.client.resumption {
            Resumption::Never => HandshakeKind::Full,
            Resumption::Always => HandshakeKind::Resumed,
        };
        let mut workers = Vec::new();
        while let Some(first) = firsts.join_next().await {
            workers.push(first.map_err(io::Error::other)??);
        }
        for worker in workers {
            let gauge = gauge.clone();
            task::spawn_local(async move { worker.repeat(expected, &gauge).await });
        }
        Ok(())
    }
}

/// Repeats handshakes; sessions are not shared with other workers.
struct Worker {
    server: Address,
    connector: Connector,
}

impl Worker {
    async fn repeat(&self, expected: HandshakeKind, gauge: &Gauge) {
        while gauge.phase() != Phase::Over {
            let start = Instant::now();
            match self.shake_hands().await {
                Ok(kind) if kind == expected => gauge.unit(start, Instant::now()),
                Ok(kind) => gauge.error(format!("a handshake was {kind:?} and not {expected:?}")),
                Err(error) => {
                    gauge.error(error);
                    // Limit the retry rate against a server that refuses every connection.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }

    /// Performs one handshake and waits for evidence that the server has finished it too.
    async fn shake_hands(&self) -> io::Result<HandshakeKind> {
        let tickets = self.connector.tickets();
        let mut stream = self.connector.connect(&self.server).await?;
        let (_, connection) = stream.get_ref();
        let kind = connection.handshake_kind().ok_or_else(|| io::Error::other("no handshake was made"))?;
        if kind == HandshakeKind::FullWithHelloRetryRequest {
            return Err(io::Error::other("the server wants another group"));
        }
        // Only in TLS 1.2 is the server's message the last one. In TLS 1.3 the client finishes before the server has
        // processed the client's Finished message; a disconnect would exclude the server's work from the measurement.
        let last_word = connection.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_2);
        let end = close(&mut stream).await;
        let confirmed = last_word || self.connector.tickets() > tickets;
        match end {
            Err(error) if error.kind() == ErrorKind::ConnectionReset && confirmed => Ok(kind),
            Err(error) => Err(error),
            Ok(()) => Ok(kind),
        }
    }
}

/// Sends close_notify and waits until the server closes.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut TlsStream<S>) -> io::Result<()> {
    stream.shutdown().await?;
    // The server may answer with an error, because no request was sent.
    let mut rest = [0; 512];
    loop {
        match stream.read(&mut rest).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The server closed TCP without close_notify.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
