//! A `protocol = "tls-passthrough"` session: the ClientHello is read, its server name chooses a pool, and from its first byte
//! on everything goes to a backend as it came.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use config::types::PassthroughSettings;
use logic::access_log::Kind;
use logic::client_hello::{ClientHello, HelloFault, Progress, Reader, UNRECOGNIZED_NAME, fatal_alert};
use logic::proxy_header::Additions;
use logic::route::{Action, Decision, Facts, HeaderLookup, PoolId, RouteTable};

use crate::arrival::{Entry, Guest};
use crate::ending::{Ending, TlsFault};
use crate::outcome::Outcome;
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::tcp;
use crate::tls::Session;

/// Bytes of a server name that are remembered for the access log: no name in DNS is longer.
const LONGEST_NAME: usize = 255;

/// Serves one client connection. See [`connection::serve`](crate::connection::serve) for why this makes a future instead of
/// being one.
pub fn serve(entry: Entry, settings: &PassthroughSettings, guest: Guest) -> impl Future<Output = ()> + use<> {
    let plan = entry.plan.clone();
    let outcome = Outcome::new(&entry.worker, &plan.state, Kind::Tcp, guest.arrival.peer, None);
    let idle = settings.idle_timeout;
    let arriving = Box::pin(arrive(plan, settings.handshake_timeout, guest, outcome));
    async move {
        if let Some((pool, guest, outcome)) = arriving.await {
            tcp::carry(entry, pool, idle, guest, outcome).await;
        }
    }
}

/// Reads what the client wants. `None`: it was sent away, and the outcome knows why.
async fn arrive(
    plan: Arc<ListenerPlan>,
    limit: Duration,
    guest: Guest,
    mut outcome: Outcome,
) -> Option<(PoolId, Guest, Outcome)> {
    let Guest { stream, early, mut arrival } = guest;
    let mut reader = Reader::default();
    let mut place = plan.hellos.begin();
    let hearing = tokio::time::timeout(limit, hear(&stream, early, &mut reader));
    let heard = tokio::select! {
        biased;
        heard = hearing => heard,
        () = place.needed() => {
            outcome.end(Ending::TlsFailed(TlsFault::Crowded));
            return None;
        }
    };
    drop(place);
    let hello = match heard {
        Ok(Ok(hello)) => hello,
        Ok(Err(Unheard::Fault(fault))) => {
            outcome.end(Ending::TlsFailed(match fault {
                HelloFault::NotTls => TlsFault::NotTls,
                _ => TlsFault::Protocol,
            }));
            return send_away(&stream, fault.alert()).await;
        }
        Ok(Err(Unheard::Closed)) => {
            outcome.end(Ending::TlsFailed(TlsFault::Closed));
            return None;
        }
        Err(_) => {
            outcome.end(Ending::TlsTimeout);
            return None;
        }
    };
    outcome.sni = hello.server_name().map(|name| name[..name.len().min(LONGEST_NAME)].into());
    let host = hello.host();
    let Some(pool) = plan.routes.as_ref().and_then(|routes| choose(routes, host.as_deref())) else {
        outcome.end(Ending::NoRoute);
        return send_away(&stream, UNRECOGNIZED_NAME).await;
    };
    if let Some(host) = &host {
        let mut additions = Additions::default();
        additions.authority(host);
        arrival.session = Some(Rc::new(Session { identity: None, additions }));
    }
    Some((pool, Guest { stream, early: reader.into_bytes(), arrival }, outcome))
}

/// Why there is no ClientHello.
enum Unheard {
    Fault(HelloFault),
    Closed,
}

async fn hear(stream: &Stream, early: Vec<u8>, reader: &mut Reader) -> Result<ClientHello, Unheard> {
    let mut bytes = early;
    loop {
        if let Progress::Complete(hello) = reader.read(&bytes).map_err(Unheard::Fault)? {
            return Ok(hello);
        }
        // No buffer is held while nothing comes: a client may wait until the limit with half a hello.
        bytes = Vec::new();
        if !matches!(stream.fill(&mut bytes).await, Ok(1..)) {
            return Err(Unheard::Closed);
        }
    }
}

/// The pool for a server name, or for clients that name none.
fn choose(routes: &RouteTable, host: Option<&str>) -> Option<PoolId> {
    let facts = Facts { host: host.unwrap_or_default(), path: "/", method: "", headers: &NoHeaders };
    match routes.decide(&facts) {
        Decision::Route(route) => match route.action {
            Action::Pool(pool) => Some(pool),
            // The configuration has none here.
            Action::Redirect { .. } => None,
        },
        Decision::Fallback(pool) => Some(pool),
        Decision::NoRoute | Decision::Ambiguous(_) => None,
    }
}

struct NoHeaders;

impl HeaderLookup for NoHeaders {
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// Ends a connection with an alert that its client sees.
async fn send_away<T>(stream: &Stream, alert: u8) -> Option<T> {
    // Seven bytes always find room in a new connection. The client may be gone; there is nobody else to tell.
    if stream.write_all(&fatal_alert(alert)).await.is_ok() {
        crate::linger::linger(stream).await;
    }
    None
}
