//! What a snapshot depends on besides its configuration.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use config::Config;
use state::State;
use tls::backend::{Authorities, Endpoint, PoolTls};
use tls::{Handshakes, Terminator};

use super::{HashKey, Snapshot};
use crate::sticky_cookie::CookieKey;

/// State of the running process and content of the pools' TLS files. Reading them changes nothing.
pub struct Facts {
    pub(super) now: Instant,
    pub(super) state: state::Known,
    pub(super) tls: tls::Known,
    /// TLS of each pool that has it, by the name of the pool.
    pub(super) pools: HashMap<Arc<str>, PoolTls>,
    /// TLS of the backends that are served now, by the names of pool and backend.
    pub(super) endpoints: HashMap<(Arc<str>, Arc<str>), Arc<Endpoint>>,
    /// Keys of sticky cookies, by the name of the pool.
    pub(super) cookies: HashMap<Arc<str>, CookieKey>,
    /// Keys of the hashes of `dsr` listeners with a key file, by the name of the listener.
    pub(super) hash_keys: HashMap<Arc<str>, HashKey>,
    /// TLS of each listener that is served now, by the name of the listener.
    pub(super) listeners: HashMap<Arc<str>, Terminator>,
    /// TLS of control over the network that is served now.
    pub(super) control_tls: Option<Terminator>,
    /// TLS of the admin listener that is served now.
    pub(super) admin_tls: Option<Terminator>,
    /// Incomplete ClientHellos of each listener that is served now, by the name of the listener.
    pub(super) hellos: HashMap<Arc<str>, Arc<Handshakes>>,
}

impl Facts {
    /// Reads the facts for `config`. `before` is the snapshot that is served now: a pool or listener whose certificates
    /// have become unusable keeps those of `before`. Reads files, so it may block on the disk.
    pub fn read(config: &Config, state: &State, tls: &tls::Shared, before: Option<&Snapshot>) -> Self {
        let authorities = Authorities::default();
        let pools = config.pools.iter().filter_map(|pool| {
            let served = || before?.pools.iter().find(|plan| plan.settings.name == pool.name)?.tls.as_ref();
            let tls = PoolTls::read(pool.tls.as_ref()?, &authorities, served());
            Some((pool.name.clone(), tls))
        });
        let cookies = config.pools.iter().filter_map(|pool| {
            let served =
                before.and_then(|before| before.pools.iter().find(|plan| plan.settings.name == pool.name));
            let key =
                CookieKey::read(pool.sticky_cookie.as_ref()?, served.and_then(|plan| plan.cookie.as_ref()));
            Some((pool.name.clone(), key))
        });
        let hash_keys = config.listeners.iter().filter_map(|listener| {
            let served = before.and_then(|before| before.listeners.get(&listener.name));
            Some((listener.name.clone(), HashKey::read(listener.dsr()?, served.map(|plan| &**plan))?))
        });
        let plans = before.into_iter().flat_map(|before| &before.pools).flat_map(|pool| &pool.backends);
        let endpoints = plans.filter_map(|plan| {
            let state = &plan.state;
            Some(((state.pool.clone(), state.name.clone()), plan.tls.clone()?))
        });
        let plans = || before.into_iter().flat_map(|before| &before.listeners);
        let listeners = plans().filter_map(|(name, plan)| Some((name.clone(), plan.tls.clone()?)));
        let hellos = plans().map(|(name, plan)| (name.clone(), plan.hellos.clone()));
        Self {
            now: Instant::now(),
            state: state.known(),
            tls: tls.known(),
            pools: pools.collect(),
            endpoints: endpoints.collect(),
            cookies: cookies.collect(),
            hash_keys: hash_keys.collect(),
            listeners: listeners.collect(),
            control_tls: before.and_then(|before| before.control_tls.clone()),
            admin_tls: before.and_then(|before| before.admin_tls.clone()),
            hellos: hellos.collect(),
        }
    }
}
