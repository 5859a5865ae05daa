//! What the process needs of its descriptors for itself, by its configuration.

use config::Config;
use config::types::{BackendAddress, BackendHttp, Listener};
use logic::account::{Division, Own, TooFew};

use crate::{admin, control};

/// Of a worker: two instances of epoll, one of them twice, and what wakes it.
const OF_WORKER: usize = 5;

/// Look-ups of names, and connections of authorities and responders, that may be under way at once.
const LOOK_UPS: usize = 16;
const ORDERS: usize = 16;

/// Files that are read at once: certificates, the configuration, a log that is opened again.
const FILES: usize = 16;

/// An SSH connection with its listener.
const OF_TUNNEL: usize = 4;

/// What the descriptors are divided by.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The limit of the process.
    pub limit: usize,
    /// Open before the first listener and the first worker.
    pub base: usize,
    /// Worker threads.
    pub workers: usize,
}

impl Needs {
    /// What is for traffic, and what is not.
    pub fn divide(&self, config: &Config) -> Result<Division, TooFew> {
        Division::new(self.limit, self.own(config))
    }

    fn own(&self, config: &Config) -> Own {
        let sockets: usize = config.listeners.iter().map(|listener| self.sockets(listener)).sum();
        let backends =
            || config.pools.iter().flat_map(|pool| pool.backends.iter().map(move |one| (pool, one)));
        let count = |wanted: &dyn Fn(&BackendAddress) -> bool| {
            backends().filter(|(_, backend)| wanted(&backend.address)).count()
        };
        let multiplexed = backends().filter(|(pool, _)| pool.http == BackendHttp::Http2).count();
        // Of each socket: itself, and a client that was accepted and has no place yet.
        let fixed = self.base + self.workers * (OF_WORKER + multiplexed) + 2 * sockets;
        let checked = backends().filter(|(pool, _)| pool.health.is_some()).count();
        let tunnels = count(&|address| matches!(address, BackendAddress::Ssh { .. }));
        let names = count(&|address| matches!(address, BackendAddress::Name { .. }));
        let mut watch = FILES + checked + tunnels * OF_TUNNEL + names.min(LOOK_UPS);
        // A reload may open each of them anew before the old ones are closed.
        watch += sockets;
        watch += config.admin.as_ref().map_or(0, |_| admin::MAX_CONNECTIONS + 2);
        watch += config.control.as_ref().map_or(0, |_| control::MAX_CLIENTS + 2);
        let has_tls = config.listeners.iter().any(|listener| listener.tls.is_some());
        watch += if has_tls || !config.acme.is_empty() { ORDERS } else { 0 };
        Own { fixed, watch }
    }

    fn sockets(&self, listener: &Listener) -> usize {
        listener.binds.len() * self.workers
    }
}

/// Places of a connection to the most expensive backend.
pub fn backend_places(config: &Config) -> usize {
    let is_ssh = |address: &BackendAddress| matches!(address, BackendAddress::Ssh { .. });
    let any = config.pools.iter().flat_map(|pool| &pool.backends).any(|backend| is_ssh(&backend.address));
    if any { 2 } else { 1 }
}
