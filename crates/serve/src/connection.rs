//! A client connection from its accept to its protocol: PROXY header, TLS, then `tcp.rs` or `http.rs`.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use config::types::Protocol;
use logic::access_log::Kind;
use logic::peers::Peer;
use logic::proxy_header::{self, Header, Parsed, Version};

use crate::admission;
use crate::arrival::{Arrival, Entry, Guest, canonical};
use crate::ending::{Ending, Spoken};
use crate::http::{self, Http2Client};
use crate::outcome::Outcome;
use crate::plain::Plain;
use crate::snapshot::{ListenerPlan, PoolPlan};
use crate::stream::Stream;
use crate::tcp;
use crate::tls::{self, Handshake, Telling};
use crate::worker::{Current, Worker};
use crate::{http2, passthrough};

/// Time for a PROXY header: its sender is a proxy next to us, not a person.
const PROXY_HEADER_LIMIT: Duration = Duration::from_secs(5);

/// The service of a client connection, to its end.
pub type Service = Pin<Box<dyn Future<Output = ()>>>;

/// Serves one client connection. Nothing here is an `async fn` that outlives its purpose: such a function keeps its
/// arguments beside what it made of them, and a task has room for the largest of its steps. So a step gets what it needs
/// when its future is made, in a box of its own, and an idle connection does not pay for how it came about.
pub fn serve(entry: Entry, plain: Plain, peer: Peer) -> Service {
    let local = match &plain {
        Plain::Tcp(tcp) if tells_local(&entry.current, &entry.plan) => tcp.local_addr().ok().map(canonical),
        _ => None,
    };
    let arrival = Arrival { peer, local, tls: None, session: None };
    if entry.plan.tls.is_none() && !entry.plan.settings.proxy_protocol_from.contains(&peer) {
        let guest = Guest { stream: Stream::plain(plain), early: Vec::new(), arrival };
        return speak(entry, guest, Spoken::Http1);
    }
    let arriving = Box::pin(arrive(entry, plain, arrival));
    Box::pin(async move {
        if let Some(service) = arriving.await {
            service.await;
        }
    })
}

/// Takes off what stands before the protocol.
async fn arrive(entry: Entry, mut plain: Plain, mut arrival: Arrival) -> Option<Service> {
    let Entry { worker, plan, .. } = &entry;
    let mut early = Vec::new();
    if plan.settings.proxy_protocol_from.contains(&arrival.peer) {
        let proxy = arrival.peer;
        match Box::pin(read_proxy_header(&mut plain, &mut arrival)).await {
            Ok(rest) => {
                early = rest;
                if arrival.peer != proxy
                    && let Err(why) = entry.admitted.comes_from(worker, plan, arrival.peer)
                {
                    admission::turn_away(worker, plan, plain, arrival.peer, why);
                    return None;
                }
            }
            Err(ending) => {
                record(worker, plan, &arrival, ending);
                return None;
            }
        }
    }
    let mut spoken = Spoken::Http1;
    let stream = match &plan.tls {
        None => Stream::plain(plain),
        Some(terminator) => {
            match tls::accept(terminator, plain, std::mem::take(&mut early), telling(&entry)).await {
                Ok(Handshake { stream, version, spoken: agreed, session }) => {
                    arrival.tls = Some(version);
                    arrival.session = session;
                    spoken = agreed;
                    stream
                }
                Err(ending) => {
                    record(worker, plan, &arrival, ending);
                    return None;
                }
            }
        }
    };
    Some(speak(entry, Guest { stream, early, arrival }, spoken))
}

/// Lets a guest speak the protocol of its listener; `spoken` is the version of HTTP that TLS agreed on.
fn speak(entry: Entry, guest: Guest, spoken: Spoken) -> Service {
    let plan = entry.plan.clone();
    match &plan.settings.protocol {
        Protocol::Tcp(settings) => Box::pin(tcp::serve(entry, settings, guest)),
        Protocol::TlsPassthrough(settings) => Box::pin(passthrough::serve(entry, settings, guest)),
        Protocol::Http(_) if spoken == Spoken::Http2 => {
            let Entry { worker, current, plan, admitted } = entry;
            let guest = Box::new(guest);
            Box::pin(async move {
                http2::serve(&worker, current, plan, *guest, admitted.control()).await;
            })
        }
        Protocol::Http(_) => {
            let Entry { worker, current, plan, admitted } = entry;
            let guest = Box::new(guest);
            Box::pin(async move {
                let control = admitted.control();
                if let Some(client) = http::serve(&worker, current, plan, *guest, control).await {
                    let Http2Client { current, plan, guest } = *client;
                    Box::pin(http2::serve(&worker, current, plan, guest, control)).await;
                }
            })
        }
    }
}

/// Whether a backend hears at which address of ours the client arrived. Asking the kernel costs a system call, and a session
/// of HTTP/1.1 asks only when it needs to know.
fn tells_local(current: &Current, plan: &ListenerPlan) -> bool {
    match &plan.settings.protocol {
        Protocol::Tcp(settings) => current.pool(settings.pool).settings.send_proxy.is_some(),
        Protocol::Http(_) => plan.tls.is_some(),
        Protocol::TlsPassthrough(_) => true,
    }
}

/// Whether a backend of the listener may get a PROXY header of version 2.
fn telling(entry: &Entry) -> Telling {
    let tells = |pool: &PoolPlan| pool.settings.send_proxy == Some(Version::V2);
    let told = match &entry.plan.settings.protocol {
        Protocol::Tcp(settings) => tells(entry.current.pool(settings.pool)),
        Protocol::Http(_) | Protocol::TlsPassthrough(_) => entry.current.pools.iter().any(|pool| tells(pool)),
    };
    if told { Telling::Additions } else { Telling::Nothing }
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
