//! The compiled configuration: immutable once it is built, swapped in one store. What it refers to in `state.rs` lives on
//! from one to the next; building one makes new entries there and gives old ones their new rules.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use config::Config;
use config::types::{Backend, BackendHttp, HttpSettings, Listener, Pool, Protocol};
use logic::balance::{Identities, Policy, StickyTable};
use logic::health::Health;
use logic::route::{PoolId, RouteTable};

use crate::events::Level;
use crate::http2::rules::Rules;
use crate::queue::Queue;
use crate::state::{BackendState, ListenerState, State};
use crate::tls;
use crate::tls::backend::{Authorities, Endpoint, PoolTls};

/// What a worker needs to serve, under one pointer.
pub struct Snapshot {
    /// Counts snapshots of this process from 1.
    pub generation: u64,
    /// What it was built from.
    pub config: Arc<Config>,
    /// By listener name.
    pub listeners: HashMap<Arc<str>, Arc<ListenerPlan>>,
    /// By [`PoolId`].
    pub pools: Vec<Arc<PoolPlan>>,
}

/// ClientHellos at once that are not whole, on one `tls-passthrough` listener: each may take 64 KiB.
const HELLOS: usize = 8192;

/// A listener, compiled.
pub struct ListenerPlan {
    /// As configured.
    pub settings: Listener,
    /// Routes; `None` for TCP.
    pub routes: Option<RouteTable>,
    /// Clients of a `tls-passthrough` listener that have not said yet what they want.
    pub(crate) hellos: Arc<tls::Handshakes>,
    /// TLS, if it terminates it.
    pub tls: Option<tls::Terminator>,
    /// What survives reloads.
    pub state: Arc<ListenerState>,
}

/// A pool, compiled.
pub struct PoolPlan {
    /// Its place in the snapshot.
    pub id: PoolId,
    /// As configured.
    pub settings: Pool,
    /// In configuration order.
    pub backends: Vec<BackendPlan>,
    /// TLS to its backends.
    pub tls: Option<PoolTls>,
    /// What hash and maglev need; equal on every node with an equal configuration.
    pub identities: Identities,
    /// Who went where; only for `sticky`.
    pub sticky: Option<Arc<Mutex<StickyTable>>>,
    /// Who waits for a busy backend.
    pub queue: Arc<Queue>,
}

/// A backend in a pool.
pub struct BackendPlan {
    /// As configured.
    pub settings: Backend,
    /// TLS to it.
    pub tls: Option<Arc<Endpoint>>,
    /// How HTTP/2 is spoken to it, if so.
    pub http2: Option<Rules>,
    /// What survives reloads.
    pub state: Arc<BackendState>,
}

impl Snapshot {
    /// Compiles `config`, which is served next: nothing that could still refuse it comes after this. Backends' health adopts
    /// the new rules here, listeners' certificates are read, and both is said. Never fails: what cannot work as configured is said through [`State::degrade`] and the rest serves.
    /// `before` is what was served until now: a listener whose certificates have become unusable keeps those.
    pub fn build(config: Arc<Config>, state: &State, tls: &tls::Shared, before: Option<&Snapshot>) -> Self {
        let generation = state.generation.load(std::sync::atomic::Ordering::Relaxed) + 1;
        let authorities = Authorities::default();
        let pools: Vec<_> = config
            .pools
            .iter()
            .enumerate()
            .map(|(at, pool)| {
                let before = before
                    .and_then(|before| before.pools.iter().find(|plan| plan.settings.name == pool.name));
                let tls = build_tls(pool, &authorities, state, before.and_then(|before| before.tls.as_ref()));
                Arc::new(build_pool(PoolId(at), pool, tls, state))
            })
            .collect();
        let listeners = config
            .listeners
            .iter()
            .map(|listener| {
                let before =
                    before.and_then(|before| before.listeners.get(&listener.name)).map(|plan| &**plan);
                (listener.name.clone(), Arc::new(build_listener(listener, state, tls, before)))
            })
            .collect();
        Self { generation, config, listeners, pools }
    }

    /// A pool by its id.
    pub fn pool(&self, id: PoolId) -> &Arc<PoolPlan> {
        &self.pools[id.0]
    }
}

fn build_tls(
    pool: &Pool,
    authorities: &Authorities,
    state: &State,
    before: Option<&PoolTls>,
) -> Option<PoolTls> {
    let Some(settings) = &pool.tls else {
        let subject = format!("pool.{}.tls", pool.name);
        state.forget_degraded(|degraded| degraded == subject);
        return None;
    };
    Some(PoolTls::new(&pool.name, settings, authorities, state, before))
}

fn build_pool(id: PoolId, pool: &Pool, tls: Option<PoolTls>, state: &State) -> PoolPlan {
    let now = Instant::now();
    let http2 = (pool.http == BackendHttp::Http2).then(|| Rules::of(pool));
    let rule = pool.health.as_ref().map(|check| check.rule);
    let backends: Vec<_> = pool
        .backends
        .iter()
        .map(|backend| {
            let entry = state.backend(&pool.name, &backend.address, || {
                Health::new(rule, pool.passive, now, fastrand::f64())
            });
            let event = entry.lock_health().adopt(rule, pool.passive, now, fastrand::f64());
            if let Some(event) = event {
                let message = format!("{event}: it is not checked any more");
                state.events.record(Level::Info, entry.subject(), message);
            }
            let endpoint = tls
                .as_ref()
                .zip(backend.server_name.as_ref())
                .map(|(tls, name)| tls.endpoint(name, pool.http));
            BackendPlan { settings: backend.clone(), tls: endpoint, http2, state: entry }
        })
        .collect();
    let names: Vec<(String, u32)> =
        pool.backends.iter().map(|backend| (backend.address.to_string(), backend.weight)).collect();
    let names: Vec<(&str, u32)> = names.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    PoolPlan {
        id,
        settings: pool.clone(),
        backends,
        tls,
        identities: Identities::new(pool.balance, &names),
        sticky: (pool.balance == Policy::Sticky).then(|| state.sticky(&pool.name, pool.sticky)),
        queue: state.queue(&pool.name),
    }
}

fn build_listener(
    listener: &Listener,
    state: &State,
    shared: &tls::Shared,
    before: Option<&ListenerPlan>,
) -> ListenerPlan {
    let routes = match &listener.protocol {
        Protocol::Http(http) => Some(RouteTable::new(http.routes.clone(), http.pool)),
        Protocol::TlsPassthrough(passthrough) => {
            Some(RouteTable::new(passthrough.routes.clone(), passthrough.pool))
        }
        Protocol::Tcp(_) => None,
    };
    let before = before.and_then(|before| before.tls.as_ref());
    let tls =
        listener.tls.as_ref().map(|settings| tls::Terminator::new(listener, settings, shared, state, before));
    let hellos = tls::Handshakes::new(HELLOS);
    ListenerPlan { settings: listener.clone(), routes, hellos, tls, state: state.listener(&listener.name) }
}

/// What a listener is configured with, if it speaks HTTP.
pub(crate) fn http_settings(plan: &ListenerPlan) -> Option<&HttpSettings> {
    match &plan.settings.protocol {
        Protocol::Http(settings) => Some(settings),
        Protocol::Tcp(_) | Protocol::TlsPassthrough(_) => None,
    }
}
