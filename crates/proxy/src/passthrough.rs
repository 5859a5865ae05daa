//! Serves `protocol = "tls-passthrough"`: reads the ClientHello, chooses a pool by its server name, and relays all
//! bytes unchanged, the ClientHello included.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::types::PassthroughSettings;
use logic::access_log::Kind;
use logic::acl::Verdict;
use logic::client_hello::{ClientHello, HelloFault, Progress, Reader};
use logic::peers::Peer;
use logic::proxy_header::Additions;
use logic::route::{Action, Decision, Facts, HeaderLookup, PoolId, RouteTable};
use logic::tls_alert;
use state::ending::{Ending, TlsFault};
use tls::ClientFacts;

use crate::arrival::{ClientConnection, Entry};
use crate::boxed::boxed;
use crate::outcome::{Outcome, TlsDetail};
use crate::relay::Watch;
use crate::snapshot::ListenerPlan;
use crate::stream::Stream;
use crate::tcp;

/// Length to which a server name is cut for the access log. No DNS name is longer.
const LONGEST_NAME: usize = 255;

/// Serves one client connection. [`connection::serve`](crate::connection::serve) says why the function is not `async`.
pub(crate) fn serve(
    entry: Entry,
    settings: &PassthroughSettings,
    client: ClientConnection,
) -> impl Future<Output = ()> + use<> {
    let plan = entry.plan.clone();
    let mut outcome = Outcome::new(&entry.worker, &plan.state, Kind::Tcp, client.arrival.peer, None);
    outcome.belong(entry.admitted.handle());
    let (idle, fast_close) = (settings.idle_timeout, settings.fast_close);
    let arriving = boxed(|| serve_session(plan, settings.handshake_timeout, client, outcome));
    async move {
        if let Some((pool, client, outcome)) = arriving.await {
            let now = Instant::now();
            let watch = Watch::begun(idle, now).closing(fast_close);
            tcp::carry(entry, pool, watch, client, outcome, now).await;
        }
    }
}

/// Reads the ClientHello and chooses a pool. `None` if the connection was refused; the outcome has the reason.
async fn serve_session(
    plan: Arc<ListenerPlan>,
    limit: Duration,
    client: ClientConnection,
    mut outcome: Outcome,
) -> Option<(PoolId, ClientConnection, Outcome)> {
    let ClientConnection { stream, early, mut arrival } = client;
    let mut reader = Reader::default();
    let mut place = plan.hellos.begin();
    let hearing = tokio::time::timeout(limit, hear(&stream, early, &mut reader));
    let heard = tokio::select! {
        biased;
        heard = hearing => heard,
        () = place.needed() => {
            outcome.end(Ending::TlsFailed(TlsFault::TooManyHandshakes));
            return None;
        }
    };
    drop(place);
    let hello = match heard {
        Ok(Ok(hello)) => hello,
        Ok(Err(NoClientHello::Fault(fault))) => {
            outcome.end(Ending::TlsFailed(match fault {
                HelloFault::NotTls => TlsFault::NotTls,
                _ => TlsFault::Protocol,
            }));
            return send_away(&stream, fault.alert()).await;
        }
        Ok(Err(NoClientHello::Closed)) => {
            outcome.end(Ending::TlsFailed(TlsFault::Closed));
            return None;
        }
        Err(_) => {
            outcome.end(Ending::TlsTimeout);
            return None;
        }
    };
    let name = hello.server_name().map(|name| TlsDetail::Sni(name[..name.len().min(LONGEST_NAME)].into()));
    outcome.tls_detail = name.map(Box::new);
    let host = hello.host();
    let chosen = match plan.settings.denied_pool.filter(|_| arrival.standing == Verdict::Deny) {
        Some(denied) => Chosen::Pool(denied),
        None => choose(plan.routes.as_ref(), host.as_deref(), arrival.peer),
    };
    let pool = match chosen {
        Chosen::Pool(pool) => pool,
        Chosen::Denied => {
            outcome.end(Ending::Denied);
            return send_away(&stream, tls_alert::ACCESS_DENIED).await;
        }
        Chosen::NoRoute => {
            outcome.end(Ending::NoRoute);
            return send_away(&stream, tls_alert::UNRECOGNIZED_NAME).await;
        }
    };
    if let Some(host) = &host {
        let mut additions = Additions::default();
        additions.authority(host);
        arrival.session = Some(Rc::new(ClientFacts { identity: None, additions }));
    }
    Some((pool, ClientConnection { stream, early: reader.into_bytes(), arrival }, outcome))
}

enum NoClientHello {
    Fault(HelloFault),
    Closed,
}

async fn hear(stream: &Stream, early: Vec<u8>, reader: &mut Reader) -> Result<ClientHello, NoClientHello> {
    let mut bytes = early;
    loop {
        if let Progress::Complete(hello) = reader.read(&bytes).map_err(NoClientHello::Fault)? {
            return Ok(hello);
        }
        // Frees the buffer before waiting: a client may send half a ClientHello and nothing more until the timeout.
        bytes = Vec::new();
        if !matches!(stream.fill(&mut bytes).await, Ok(1..)) {
            return Err(NoClientHello::Closed);
        }
    }
}

/// Where a client goes.
pub enum Chosen {
    Pool(PoolId),
    NoRoute,
    /// The access list of the route denies the client.
    Denied,
}

/// Chooses the pool for the server name `host`, or for a client that sends none.
fn choose(routes: Option<&RouteTable>, host: Option<&str>, client: Peer) -> Chosen {
    match routes {
        Some(routes) => chosen_by(&routes.decide(&facts(host)), client),
        None => Chosen::NoRoute,
    }
}

/// Facts about a client for the routes: nothing but its server name is known.
pub fn facts(host: Option<&str>) -> Facts<'_> {
    Facts { host: host.unwrap_or_default(), path: "/", method: "", headers: &NoHeaders }
}

/// Where a decision leads.
pub fn chosen_by(decision: &Decision<'_>, client: Peer) -> Chosen {
    match decision {
        Decision::Route(route) => match (&route.acl, &route.action) {
            (Some(acl), _) if acl.verdict(&client) == Verdict::Deny => Chosen::Denied,
            (_, Action::Pool(pool)) => Chosen::Pool(*pool),
            // The configuration allows none of them here.
            (_, Action::Redirect { .. } | Action::Respond(_)) => Chosen::NoRoute,
        },
        Decision::Fallback(pool) => Chosen::Pool(*pool),
        Decision::NoRoute | Decision::Ambiguous(_) => Chosen::NoRoute,
    }
}

struct NoHeaders;

impl HeaderLookup for NoHeaders {
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// Sends a TLS alert and closes the connection so that the client receives the alert.
async fn send_away<T>(stream: &Stream, alert: u8) -> Option<T> {
    // A new connection's send buffer has space for seven bytes. The write fails only if the client is gone.
    if stream.write_all(&tls_alert::fatal(alert)).await.is_ok() {
        tls::linger::linger(stream).await;
    }
    None
}
