//! Compiles a configuration and facts into a snapshot. Reads no clock and changes no shared state.

use std::collections::HashSet;
use std::sync::Arc;

use config::Config;
use config::types::{BackendHttp, Listener, Pool, Protocol, SourceAddress, TlsSettings};
use logic::balance::{ChoosesBy, Identities};
use logic::health::Health;
use logic::route::{PoolId, RouteTable};
use sys::socket::{Outgoing, Owner};
use tls::{Handshakes, Terminator};

use super::{BackendPlan, Begins, Facts, ListenerPlan, PoolPlan, Snapshot};
use crate::http2::rules::Rules;
use crate::sticky_cookie::CookiePlan;

/// Limit of incomplete ClientHellos on one `tls-passthrough` listener. Each may take 64 KiB.
const HELLOS: usize = 8192;

/// Compiles `config`. Never fails: `adopt` reports what cannot work as configured, and everything else is served.
pub fn compile(config: Arc<Config>, facts: &Facts) -> Snapshot {
    let pools = config.pools.iter().enumerate();
    let pools = pools.map(|(at, pool)| Arc::new(compile_pool(PoolId(at), pool, facts))).collect();
    let mut known = facts.tls.clone();
    let mut plan = |listener: &Listener| {
        let begins = match config.why_not_in_ring(listener) {
            None => Begins::InRing,
            Some(_) => Begins::InTask,
        };
        Arc::new(compile_listener(listener, begins, facts, &mut known))
    };
    let listeners = config.listeners.iter().map(|listener| (listener.name.clone(), plan(listener))).collect();
    let mut operators = |settings: &TlsSettings, before: Option<&Terminator>| {
        Terminator::with_alpn(Vec::new(), settings, &mut known, facts.state.challenges.clone(), before)
    };
    let control_tls =
        config.remote_control().map(|remote| operators(&remote.tls, facts.control_tls.as_ref()));
    let admin_tls = config.admin.as_ref().and_then(|admin| admin.tls.as_ref());
    let admin_tls = admin_tls.map(|settings| operators(settings, facts.admin_tls.as_ref()));
    Snapshot { generation: facts.state.generation + 1, config, listeners, control_tls, admin_tls, pools }
}

fn compile_pool(id: PoolId, pool: &Pool, facts: &Facts) -> PoolPlan {
    let tls = pool.tls.as_ref().and_then(|_| facts.pools.get(&pool.name));
    let http2 = (pool.http == BackendHttp::Http2).then(|| Rules::of(pool));
    let outgoing =
        Outgoing { source: pool.source_address.ours(), keepalive: pool.tcp_keepalive, ..Outgoing::default() };
    let owner = match pool.source_address {
        SourceAddress::Client => Owner::Client,
        SourceAddress::Any | SourceAddress::Ours(_) => Owner::Machine,
    };
    let backends = pool.backends.iter().map(|backend| {
        // `adopt` sets the health rules.
        let health = || Health::new(None, pool.passive, facts.now, 0.0);
        let state = facts.state.backend(&pool.name, &backend.address, health);
        let endpoint = tls.zip(backend.server_name.as_ref()).map(|(tls, name)| {
            let before = facts.endpoints.get(&(pool.name.clone(), state.name.clone()));
            tls.endpoint(name, pool.http, before)
        });
        BackendPlan { settings: backend.clone(), tls: endpoint, outgoing, owner, http2, state }
    });
    let names: Vec<(String, u32)> =
        pool.backends.iter().map(|backend| (backend.address.to_string(), backend.weight)).collect();
    let names: Vec<(&str, u32)> = names.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    let cookie = pool.sticky_cookie.as_ref().filter(|_| pool.balance.chooses_by() == ChoosesBy::Client);
    let cookie = cookie.zip(facts.cookies.get(&pool.name));
    PoolPlan {
        id,
        settings: pool.clone(),
        backends: backends.collect(),
        tls: tls.cloned(),
        identities: Identities::new(pool.balance, &names),
        cookie: cookie.map(|(cookie, key)| CookiePlan::new(cookie, key, names.iter().map(|(name, _)| *name))),
        sticky: (pool.balance.chooses_by() == ChoosesBy::Client && pool.sticky_cookie.is_none())
            .then(|| facts.state.sticky(&pool.name, pool.sticky)),
        queue: facts.state.queue(&pool.name),
        state: facts.state.pool(&pool.name),
        soft_limits: pool.backends.iter().filter(|backend| backend.soft_max_connections.is_some()).count(),
        tiers: pool.backends.iter().map(|backend| backend.priority).collect::<HashSet<_>>().len(),
        backend_acls: pool.backends.iter().filter(|backend| backend.acl.is_some()).count(),
    }
}

fn compile_listener(
    listener: &Listener,
    begins: Begins,
    facts: &Facts,
    known: &mut tls::Known,
) -> ListenerPlan {
    let routes = match &listener.protocol {
        Protocol::Http(http) => Some(RouteTable::new(http.routes.clone(), http.pool)),
        Protocol::TlsPassthrough(passthrough) => {
            Some(RouteTable::new(passthrough.routes.clone(), passthrough.pool))
        }
        Protocol::Tcp(_) | Protocol::Udp(_) | Protocol::Dsr(_) => None,
    };
    let before = facts.listeners.get(&listener.name);
    let challenges = || facts.state.challenges.clone();
    let tls = listener.tls.as_ref();
    let tls = tls.map(|settings| Terminator::new(listener, settings, known, challenges(), before));
    ListenerPlan {
        settings: listener.clone(),
        routes,
        hellos: Handshakes::after(facts.hellos.get(&listener.name), HELLOS),
        tls,
        hash_key: facts.hash_keys.get(&listener.name).cloned(),
        begins,
        state: facts.state.listener(&listener.name),
    }
}
