//! A client connection from its accept to its protocol: PROXY header, TLS, then `tcp.rs` or `http.rs`.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use config::types::Protocol;
use logic::access_log::Kind;
use logic::peers::Peer;
use logic::proxy_header::{self, Header, Parsed};

use crate::accept::{Admitted, canonical};
use crate::outcome::{Ending, Outcome, Spoken};
use crate::snapshot::ListenerPlan;
use crate::stream::{Plain, Stream};
use crate::tcp;
use crate::tls::{self, Handshake};
use crate::worker::{Current, Worker};
use crate::{http, http2};

/// Time for a PROXY header: its sender is a proxy next to us, not a person.
const PROXY_HEADER_LIMIT: Duration = Duration::from_secs(5);

/// What is known of a client connection once it may speak.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The client: from the PROXY header, or the other end of the connection.
    pub peer: Peer,
    /// Where it wanted to go: from the PROXY header, or our end. `None` for Unix sockets, and where no backend is told.
    pub local: Option<SocketAddr>,
    /// TLS version, if any.
    pub tls: Option<&'static str>,
}

/// A client that may speak now.
pub struct Guest {
    /// Its connection, TLS taken off.
    pub stream: Stream,
    /// Bytes that were read behind a PROXY header.
    pub early: Vec<u8>,
    /// What is known of it.
    pub arrival: Arrival,
}

/// Serves one client connection to its end. All steps are boxed: otherwise the task would have room for the largest of them,
/// and an idle connection would pay for what it does not do.
pub async fn serve(
    worker: Rc<Worker>,
    current: Current,
    plan: Arc<ListenerPlan>,
    plain: Plain,
    peer: Peer,
    admitted: Admitted,
) {
    let local = match &plain {
        Plain::Tcp(tcp) if tells_local(&current, &plan) => tcp.local_addr().ok().map(canonical),
        _ => None,
    };
    let mut arrival = Arrival { peer, local, tls: None };
    let mut plain = plain;
    let mut early = Vec::new();
    if plan.settings.proxy_protocol_from.contains(&peer) {
        match Box::pin(read_proxy_header(&mut plain, &mut arrival)).await {
            Ok(rest) => early = rest,
            Err(ending) => return record(&worker, &plan, &arrival, ending),
        }
    }
    let mut spoken = Spoken::Http1;
    let stream = match &plan.tls {
        None => Stream::plain(plain),
        Some(terminator) => {
            match Box::pin(tls::accept(terminator, plain, std::mem::take(&mut early))).await {
                Ok(Handshake { stream, version, spoken: agreed }) => {
                    arrival.tls = Some(version);
                    spoken = agreed;
                    stream
                }
                Err(ending) => return record(&worker, &plan, &arrival, ending),
            }
        }
    };
    let guest = Guest { stream, early, arrival };
    match &plan.settings.protocol {
        Protocol::Tcp(settings) => {
            Box::pin(tcp::serve(&worker, &current, &plan, settings, guest)).await;
        }
        Protocol::Http(_) if spoken == Spoken::Http2 => {
            Box::pin(http2::serve(&worker, current, plan, guest, admitted.control())).await;
        }
        Protocol::Http(_) => {
            Box::pin(http::serve(&worker, current, plan, guest, admitted.control())).await;
        }
    }
    drop(admitted);
}

/// Whether a backend hears at which address of ours the client arrived. Asking the kernel costs a system call.
fn tells_local(current: &Current, plan: &ListenerPlan) -> bool {
    match &plan.settings.protocol {
        Protocol::Tcp(settings) => current.pool(settings.pool).settings.send_proxy.is_some(),
        Protocol::Http(_) => true,
    }
}

fn record(worker: &Rc<Worker>, plan: &ListenerPlan, arrival: &Arrival, ending: Ending) {
    Outcome::new(worker, &plan.state, Kind::Tcp, arrival.peer, arrival.tls).end(ending);
}

async fn read_proxy_header(plain: &mut Plain, arrival: &mut Arrival) -> Result<Vec<u8>, Ending> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PROXY_HEADER_LIMIT, async {
        loop {
            match proxy_header::parse(&bytes) {
                Ok(Parsed::Complete { header, len }) => break Ok((header, len)),
                Ok(Parsed::Incomplete) => {}
                Err(error) => break Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            let mut chunk = [0; 4096];
            let count = tokio::io::AsyncReadExt::read(plain, &mut chunk).await?;
            if count == 0 {
                break Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.extend_from_slice(&chunk[..count]);
        }
    })
    .await;
    let (header, len) = read.map_err(|_| Ending::ProxyHeader)?.map_err(|_| Ending::ProxyHeader)?;
    if let Header::Tcp { source, destination } = header {
        arrival.peer = Peer::Ip(source);
        arrival.local = Some(destination);
    }
    bytes.drain(..len);
    Ok(bytes)
}
