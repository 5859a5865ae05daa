//! A client connection from accept to its protocol: PROXY header, TLS, then `tcp.rs`, `passthrough.rs`,
//! `http.rs` or `http2.rs`.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use config::types::Protocol;
use logic::access_log::Kind;
use logic::peers::Peer;
use logic::proxy_header::{self, Header, Parsed, Version};
use logic::route::PoolId;
use state::ending::{ClientProtocol, Ending};
use tls::plain::Plain;
use tls::{Handshake, Issuer, ProxyAdditions};

use crate::admission;
use crate::arrival::{Arrival, ClientConnection, Entry, canonical};
use crate::boxed::boxed;
use crate::http::{self, Http2Client, Served};
use crate::live::Speaks;
use crate::outcome::{Outcome, TlsDetail};
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::worker::{Current, Worker};
use crate::{http2, passthrough};
use crate::{tap, tcp};

/// Time limit of a PROXY header: its sender is a proxy nearby.
const PROXY_HEADER_LIMIT: Duration = Duration::from_secs(5);

/// Future that serves a client connection to its end.
pub type Service = Pin<Box<dyn Future<Output = ()>>>;

/// Serves one client connection. An `async fn` keeps its arguments beside the values made of them, and a task is as
/// large as its largest step. So each step gets its values when its future is made, in a box of its own, and an idle
/// connection does not hold the memory of earlier steps.
pub fn serve(entry: Entry, plain: Plain, peer: Peer) -> Service {
    let local = match &plain {
        Plain::Tcp(tcp) if tells_local(&entry.current, &entry.plan) => tcp.local_addr().ok().map(canonical),
        _ => None,
    };
    let standing = entry.standing;
    let arrival = Arrival { peer, local, tls: None, issuer: Issuer::Unknown, standing, session: None };
    if entry.plan.tls.is_none() && !entry.plan.settings.proxy_protocol_from.contains(&peer) {
        let client = ClientConnection { stream: Stream::plain(plain), early: Vec::new(), arrival };
        return speak(entry, client, ClientProtocol::Http1);
    }
    let arriving = boxed(|| arrive(entry, plain, arrival));
    boxed(|| async move {
        if let Some(service) = arriving.await {
            service.await;
        }
    })
}

/// Reads the PROXY header and performs the TLS handshake.
async fn arrive(entry: Entry, mut plain: Plain, mut arrival: Arrival) -> Option<Service> {
    let Entry { worker, plan, .. } = &entry;
    let mut early = Vec::new();
    if plan.settings.proxy_protocol_from.contains(&arrival.peer) {
        let proxy = arrival.peer;
        match Box::pin(read_proxy_header(&mut plain, &mut arrival)).await {
            Ok(rest) => {
                early = rest;
                entry.admitted.handle().live.set_client(arrival.peer);
                if let Some(acl) = &plan.settings.acl {
                    arrival.standing = acl.verdict(&arrival.peer);
                    if admission::turns_away(plan, arrival.standing) {
                        admission::hold_or_deny(worker, plan, plain, arrival.peer);
                        return None;
                    }
                }
                if arrival.peer != proxy
                    && let Err(why) = entry.admitted.comes_from(worker, plan, arrival.peer)
                {
                    admission::turn_away(worker, plan, plain, arrival.peer, why);
                    return None;
                }
                let wait = admission::flood_wait(worker, plan, entry.admitted.handle().share.floods());
                if !wait.is_zero() {
                    tokio::time::sleep(wait).await;
                }
            }
            Err(ending) => {
                record(worker, plan, &arrival, ending);
                return None;
            }
        }
    }
    let mut spoken = ClientProtocol::Http1;
    let stream = match &plan.tls {
        None => Stream::plain(plain),
        Some(terminator) => {
            match tls::accept(terminator, plain, std::mem::take(&mut early), telling(&entry)).await {
                Ok(Handshake { stream, version, spoken: agreed, issuer, session }) => {
                    arrival.tls = Some(version);
                    arrival.issuer = issuer;
                    arrival.session = session;
                    spoken = agreed;
                    Stream::tls(stream)
                }
                Err(refused) => {
                    let mut outcome = Outcome::new(worker, &plan.state, Kind::Tcp, arrival.peer, arrival.tls);
                    let subject = refused.certificate.map(TlsDetail::RefusedCertificate);
                    let name = refused.server_name.map(|name| TlsDetail::Sni(name.into_boxed_bytes()));
                    let alert = refused.alert.map(TlsDetail::Alert);
                    outcome.tls_detail = subject.or(name).or(alert).map(Box::new);
                    outcome.status = refused.status.unwrap_or(0);
                    outcome.bytes_out = refused.bytes_out;
                    outcome.end(refused.ending);
                    return None;
                }
            }
        }
    };
    Some(speak(entry, ClientConnection { stream, early, arrival }, spoken))
}

/// Starts the protocol of the listener; `spoken` is the HTTP version that TLS agreed on.
fn speak(entry: Entry, client: ClientConnection, spoken: ClientProtocol) -> Service {
    let plan = entry.plan.clone();
    let client = tap::attach(&entry.worker, &plan, client);
    entry.admitted.handle().live.speaks.set(match &plan.settings.protocol {
        Protocol::Tcp(_) | Protocol::Udp(_) | Protocol::Dsr(_) => Speaks::Tcp,
        Protocol::TlsPassthrough(_) => Speaks::TlsPassthrough,
        Protocol::Http(_) => Speaks::Http1,
    });
    match &plan.settings.protocol {
        Protocol::Tcp(settings) => boxed(|| tcp::serve(entry, settings, client)),
        // Of a service without packets.
        Protocol::Dsr(settings) => boxed(|| tcp::serve(entry, &settings.proxied_tcp, client)),
        Protocol::TlsPassthrough(settings) => boxed(|| passthrough::serve(entry, settings, client)),
        // The accept loop takes no plan of another transport.
        Protocol::Udp(_) => Box::pin(std::future::ready(())),
        Protocol::Http(_) if spoken == ClientProtocol::Http2 => {
            let Entry { worker, current, plan, admitted, .. } = entry;
            let client = Box::new(client);
            Box::pin(async move {
                http2::serve(&worker, current, plan, *client, admitted.handle()).await;
            })
        }
        Protocol::Http(_) => {
            let Entry { worker, current, plan, admitted, .. } = entry;
            let client = Box::new(client);
            Box::pin(async move {
                let handle = admitted.handle();
                match http::serve(&worker, current, plan, *client, handle).await {
                    Served::Ended => {}
                    Served::Http2(client) => {
                        let Http2Client { current, plan, client } = *client;
                        Box::pin(http2::serve(&worker, current, plan, client, handle)).await;
                    }
                    Served::Parked(parked) => http::park(worker, admitted, *parked),
                    Served::Upgraded(upgraded) => boxed(|| tcp::go_on(admitted, *upgraded)).await,
                }
            })
        }
    }
}

/// Returns true if a backend is told the local address of the client connection. Asking the kernel costs a system call,
/// and an HTTP/1.1 session asks only when needed.
fn tells_local(current: &Current, plan: &ListenerPlan) -> bool {
    match &plan.settings.protocol {
        Protocol::Tcp(settings) => {
            let pools = [Some(settings.pool), plan.settings.denied_pool];
            pools.into_iter().flatten().any(|pool| any_tells(current, pool, |version| version.is_some()))
        }
        Protocol::Dsr(settings) => any_tells(current, settings.pool, |version| version.is_some()),
        Protocol::Http(_) => plan.tls.is_some(),
        Protocol::Udp(_) => false,
        Protocol::TlsPassthrough(_) => true,
    }
}

/// Tells whether a backend of the listener may get a PROXY header of version 2.
fn telling(entry: &Entry) -> ProxyAdditions {
    let tells = |version: Option<Version>| version == Some(Version::V2);
    let told = match &entry.plan.settings.protocol {
        Protocol::Tcp(settings) => {
            let pools = [Some(settings.pool), entry.plan.settings.denied_pool];
            pools.into_iter().flatten().any(|pool| any_tells(&entry.current, pool, tells))
        }
        Protocol::Dsr(settings) => any_tells(&entry.current, settings.pool, tells),
        Protocol::Udp(_) => false,
        Protocol::Http(_) | Protocol::TlsPassthrough(_) => {
            entry.current.pools.iter().any(|pool| tells(pool.settings.send_proxy))
        }
    };
    if told { ProxyAdditions::Additions } else { ProxyAdditions::Nothing }
}

/// Whether a pool, or one that it falls back to, writes PROXY headers of these versions.
fn any_tells(current: &Current, pool: PoolId, tells: impl Fn(Option<Version>) -> bool) -> bool {
    let mut next = Some(pool);
    while let Some(pool) = next.map(|pool| current.pool(pool)) {
        if tells(pool.settings.send_proxy) {
            return true;
        }
        next = pool.settings.fallback;
    }
    false
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
    if let Header::Client { source, destination } = header {
        arrival.peer = Peer::Ip(source);
        arrival.local = Some(destination);
    }
    bytes.drain(..len);
    Ok(bytes)
}
