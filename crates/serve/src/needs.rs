//! How many descriptors the process needs for itself, by its configuration.

use config::Config;
use config::types::{BackendAddress, BackendHttp, Listener, MaxConnections, Ocsp, Pool};
use logic::account::{Division, Own, TooFew};

use crate::account::{OF_LOOK_UP, OF_ORDER, OF_REQUEST, Purpose, Wanted};
use crate::tls::ocsp;
use crate::{acme, admin, control};

/// Of a worker: two instances of epoll, one of them twice, and what wakes it.
const OF_WORKER: usize = 5;

/// Of a worker to a backend that speaks HTTP/2: the first connection of each width (`http2/backend.rs`).
const OF_MULTIPLEXED: usize = 2;

/// Of a directory of certificates, or of CAs: inotify(7), and what ends the thread that watches it.
const OF_DIRECTORY: usize = 3;

/// Files that are read at once: certificates, the configuration, a log that is opened again.
const FILES: usize = 16;

/// The listener of a tunnel and its SSH connection: a socket, or the pipes and the process of a `ProxyCommand`; the agent; a
/// command for host keys.
const OF_TUNNEL: usize = 10;

/// No more descriptors than that are divided, unless `max-connections` asks for more: some container runtimes set a limit of a
/// thousand million, and half of that, for one address, is no limit.
const MOST_DIVIDED: usize = 1 << 20;

/// What the division of the descriptors follows from, beside the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// The limit of the process.
    pub limit: usize,
    /// Open before the first listener and the first worker.
    pub base: usize,
    /// Worker threads.
    pub workers: usize,
    /// For clients of admin and control, which stay what they were when the process started.
    pub services: usize,
}

/// Descriptors for clients of admin and control.
pub fn services(started_with: &Config) -> usize {
    let admin = started_with.admin.as_ref().map_or(0, |_| admin::SIZE.descriptors());
    let control = started_with.control.as_ref().map_or(0, |_| control::SIZE.descriptors());
    admin + control
}

impl Needs {
    /// Divides the descriptors between traffic and the process itself.
    pub fn divide(&self, config: &Config) -> Result<Division, TooFew> {
        let own = self.own(config);
        Division::new(self.limit.min(most_divided(config, own)), own)
    }

    fn own(&self, config: &Config) -> Own {
        let sockets: usize = config.listeners.iter().map(|listener| self.sockets(listener)).sum();
        let backends =
            || config.pools.iter().flat_map(|pool| pool.backends.iter().map(move |one| (pool, one)));
        let multiplexed = backends().filter(|(pool, _)| pool.http == BackendHttp::Http2).count();
        // Of each socket: itself, and a client that was accepted and has no place yet.
        let tls = || config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
        let directories: usize = tls()
            .map(|tls| 1 + usize::from(tls.acme.is_some()) + usize::from(tls.client_certificates.is_some()))
            .sum();
        let fixed = self.base
            + self.workers * (OF_WORKER + OF_MULTIPLEXED * multiplexed * backend_places(config))
            + 2 * sockets
            + directories * OF_DIRECTORY;
        let tunnels = backends().filter(|(_, backend)| is_ssh(&backend.address)).count();
        let mut watch = FILES + tunnels * OF_TUNNEL + wanted(config).sum();
        // A reload may open each of them anew before the old ones are closed.
        watch += sockets;
        watch += self.services;
        Own { fixed, watch }
    }

    fn sockets(&self, listener: &Listener) -> usize {
        listener.binds.len() * self.workers
    }
}

/// What is opened in turns, beside traffic.
pub fn wanted(config: &Config) -> Wanted {
    let backends = |pool: &Pool| pool.backends.len();
    let checked = config.pools.iter().filter(|pool| pool.health.is_some()).map(backends).sum();
    let is_name = |address: &BackendAddress| matches!(address, BackendAddress::Name { .. });
    let all = config.pools.iter().flat_map(|pool| &pool.backends);
    let names = all.filter(|backend| is_name(&backend.address)).count();
    let mut tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let staples = if tls.any(|tls| tls.ocsp == Ocsp::On) { ocsp::MOST } else { 0 };
    let orders = config.acme.len() * acme::ORDERS_AT_ONCE;
    Wanted::default()
        .with(Purpose::Check, checked, backend_places(config))
        .with(Purpose::LookUp, names, OF_LOOK_UP)
        .with(Purpose::Staple, staples, OF_REQUEST)
        .with(Purpose::Order, orders, OF_ORDER)
        .with(Purpose::Authority, orders, OF_REQUEST)
}

fn is_ssh(address: &BackendAddress) -> bool {
    matches!(address, BackendAddress::Ssh { .. })
}

fn most_divided(config: &Config, own: Own) -> usize {
    let clients = match config.process.max_connections {
        MaxConnections::Auto => 0,
        MaxConnections::Count(count) => count.saturating_mul(1 + backend_places(config)),
    };
    clients.saturating_add(own.fixed + own.watch).max(MOST_DIVIDED)
}

/// Places of a connection to the most expensive backend. Clients from before a reload that adds the first backend behind SSH have
/// taken one place for their backend, and may use one such backend until they end: the process then has a descriptor more open
/// for each of them than the account says, and what it keeps for itself is smaller by that.
pub fn backend_places(config: &Config) -> usize {
    let any = config.pools.iter().flat_map(|pool| &pool.backends).any(|backend| is_ssh(&backend.address));
    if any { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use config::Source;

    use super::*;

    const LISTENER: &str = "[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"app\"\n";
    const POOL: &str = "[pool.app]\nbackends = [\"192.0.2.1:80\"]\nhealth = \"off\"\n";

    fn config(text: &str) -> Config {
        let source = Source { name: "test".to_owned(), text: text.to_owned() };
        config::load(&source, &BTreeMap::new()).unwrap_or_else(|faults| panic!("{faults:?}")).config
    }

    fn own(text: &str) -> Own {
        let config = config(text);
        Needs { limit: 1024, base: 10, workers: 2, services: services(&config) }.own(&config)
    }

    #[test]
    fn admin_and_control_count_as_the_process_was_started_with_them() {
        let plain = format!("{LISTENER}{POOL}");
        let admin = config(&format!("[admin]\nbind = \"127.0.0.1:90\"\n{plain}"));
        let plain = config(&plain);
        let with = |services| Needs { limit: 1024, base: 10, workers: 2, services };
        let (without, with) = (with(services(&plain)), with(services(&admin)));
        assert_eq!(without.own(&admin), without.own(&plain), "a reload opens no admin listener");
        assert_eq!(with.own(&plain).watch, without.own(&plain).watch + 64 + 8 + 1, "and closes none");
    }

    #[test]
    fn of_a_limit_without_sense_a_mebi_is_divided_or_what_max_connections_asks_for() {
        let plain = config(&format!("{LISTENER}{POOL}"));
        let traffic = |limit, config: &Config| {
            let needs = Needs { limit, base: 10, workers: 2, services: 0 };
            needs.divide(config).map(|division| division.reserve + division.traffic)
        };
        assert_eq!(traffic(1_000_000_000, &plain), Ok(1024 * 1024));
        assert_eq!(traffic(1_000_000, &plain), Ok(1_000_000));
        let many = config(&format!("[process]\nmax-connections = 3000000\n{LISTENER}{POOL}"));
        let needs = Needs { limit: 1_000_000_000, base: 10, workers: 2, services: 0 };
        assert_eq!(needs.divide(&many).map(|division| division.clients(2)), Ok(3_000_000));
        assert_eq!(traffic(4096, &many), Ok(4096));
    }

    #[test]
    fn what_a_configuration_opens_for_itself_is_kept_back() {
        let plain = own(&format!("{LISTENER}{POOL}"));
        assert_eq!(plain, Own { fixed: 10 + 2 * OF_WORKER + 4, watch: FILES + 2 });
        let admin = own(&format!("[admin]\nbind = \"127.0.0.1:90\"\n{LISTENER}{POOL}"));
        assert_eq!(admin.watch, plain.watch + 64 + 8 + 1);
        let control = own(&format!("[control]\nsocket = \"/run/c\"\n{LISTENER}{POOL}"));
        assert_eq!(control.watch, plain.watch + 64 + 8 + 1);
        let more = format!("{LISTENER}{}{POOL}", LISTENER.replace("web", "more").replace("80", "81"));
        assert_eq!(own(&more), Own { fixed: plain.fixed + 4, watch: plain.watch + 2 });
    }

    #[test]
    fn backends_count_with_what_is_opened_beside_traffic() {
        let plain = own(&format!("{LISTENER}{POOL}"));
        let with = |pool: &str| own(&format!("{LISTENER}{pool}"));
        assert_eq!(with(&POOL.replace("\"off\"", "\"tcp\"")).watch, plain.watch + 1);
        assert_eq!(with(&POOL.replace("192.0.2.1", "app.example")).watch, plain.watch + OF_LOOK_UP);
        assert_eq!(with(&format!("{POOL}http2 = \"on\"\n")).fixed, plain.fixed + 2 * OF_MULTIPLEXED);
        let tunnel = with(&POOL.replace("192.0.2.1:80", "ssh:db1/127.0.0.1:80"));
        assert_eq!(tunnel.watch, plain.watch + OF_TUNNEL);
    }

    #[test]
    fn certificates_count_with_their_directories_and_responders() {
        let plain = own(&format!("{LISTENER}{POOL}"));
        let tls = own(&format!("{LISTENER}tls = {{ certificates = \"/c\" }}\n{POOL}"));
        assert_eq!(tls.fixed, plain.fixed + OF_DIRECTORY);
        assert_eq!(tls.watch, plain.watch + ocsp::MOST * OF_REQUEST);
        let silent = own(&format!("{LISTENER}tls = {{ certificates = \"/c\", ocsp = \"off\" }}\n{POOL}"));
        assert_eq!(silent.watch, plain.watch);
    }
}
