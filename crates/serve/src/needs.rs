//! Number of descriptors that the process needs for itself, computed from its configuration.

use std::collections::HashSet;

use config::Config;
use config::types::{BackendAddress, BackendHttp, Listener, MaxConnections, Ocsp, Pool};
use logic::account::{Division, ProcessNeeds, TooFew};
use logic::dsr::Transports;
use logic::dsr::path::DataPath;
use logic::rings::WantedRings;
use state::account::{OF_GATE, OF_LOOK_UP, OF_ORDER, OF_REQUEST, Purpose, Wanted};
use tls::ocsp;

use crate::{acme, admin, control};

/// Descriptors per worker: two epoll instances, a duplicate of one of them, and the waker.
const OF_WORKER: usize = 5;

/// Descriptors per worker and HTTP/2 backend: the first connection of each width (`http2/backend.rs`).
const OF_MULTIPLEXED: usize = 2;

/// Descriptors per watched directory of certificates or CAs: inotify(7), and the waker that ends the watching thread.
const OF_DIRECTORY: usize = 3;

/// Largest number of files read at the same time: certificates, the configuration, a reopened log.
const FILES: usize = 16;

/// Descriptors per address of a `dsr` listener beside its socket: the kernel's neighbour table, two sockets that ask
/// neighbours, one that is in a group, and one that hears of their changes; for probes a socket, a reserved port and the search
/// for our own address; of a program in the kernel its link, its directory and its table of flows; of the claim of the address two.
const OF_SERVICE: usize = 13;

/// Descriptors per tunnel: its listener, its SSH connection (a socket, or the pipes and the process of a
/// `ProxyCommand`), the agent, and a command for host keys.
const OF_TUNNEL: usize = 10;

/// Largest number of descriptors that are divided, unless `max-connections` needs more. Some container runtimes set a
/// limit of a thousand million; half of that for one address would be no limit.
const MOST_DIVIDED: usize = 1 << 20;

/// Inputs for the division of the descriptors, beside the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub limit: usize,
    /// Descriptors open before the first listener and the first worker.
    pub base: usize,
    pub workers: usize,
    /// Descriptors for admin and control clients, fixed at the start of the process.
    pub services: usize,
}

/// Number of descriptors for admin and control clients.
pub(crate) fn services(started_with: &Config) -> usize {
    let admin = started_with.admin.as_ref().map_or(0, |_| admin::SIZE.descriptors());
    let control = started_with.control.as_ref().map_or(0, |_| control::SIZE.descriptors());
    let remote =
        started_with.remote_control().map_or(0, |_| control::REMOTE_SIZE.descriptors() + control::OF_LOG_IN);
    admin + control + remote
}

impl Needs {
    /// Divides the descriptors between traffic and the process itself.
    pub fn divide(&self, config: &Config) -> Result<Division, TooFew> {
        let own = self.own(config);
        Division::new(self.limit.min(most_divided(config, own)), own)
    }

    fn own(&self, config: &Config) -> ProcessNeeds {
        let sockets: usize = config.listeners.iter().map(|listener| self.sockets(listener)).sum();
        let backends =
            || config.pools.iter().flat_map(|pool| pool.backends.iter().map(move |one| (pool, one)));
        let multiplexed = backends().filter(|(pool, _)| pool.http == BackendHttp::Http2).count();
        // `2 * sockets`: each socket, and one accepted client per socket that has no slot yet; with UDP the epoll
        // instance of its flows.
        let tls = || config.tls();
        let directories: usize = tls()
            .map(|tls| 1 + usize::from(tls.acme.is_some()) + usize::from(tls.client_certificates.is_some()))
            .sum();
        let services: usize = config.listeners.iter().map(|listener| self.of_services(listener)).sum();
        // One in each worker.
        let rings = usize::from(config.wanted_rings() != WantedRings::None);
        let fixed = self.base
            + services
            + self.workers * (OF_WORKER + rings + OF_MULTIPLEXED * multiplexed * backend_slots(config))
            + 2 * sockets
            + directories * OF_DIRECTORY;
        let tunnels = backends().filter(|(_, backend)| is_ssh(&backend.address)).count();
        let mut watch = FILES + tunnels * OF_TUNNEL + wanted(config).sum();
        // A reload may open every socket again before it closes the old ones.
        watch += sockets
            + config.listeners.iter().filter(|it| has_packets(it)).map(|it| it.binds.len()).sum::<usize>();
        watch += self.services;
        ProcessNeeds { fixed, watch }
    }

    /// Sockets from which clients come, in each worker. A service whose packets are forwarded has none.
    fn sockets(&self, listener: &Listener) -> usize {
        if has_packets(listener) { 0 } else { listener.binds.len() * self.of_address(listener) }
    }

    /// Sockets of an address: one in each worker, for each transport.
    fn of_address(&self, listener: &Listener) -> usize {
        let both = listener.dsr().is_some_and(|settings| settings.transports == Transports::TcpAndUdp);
        if both { 2 * self.workers } else { self.workers }
    }

    /// Descriptors of the services of a listener: one socket for packets, in one worker, and what else a service has. Where no packet
    /// may be had, sockets of clients take their place.
    fn of_services(&self, listener: &Listener) -> usize {
        let Some(settings) = listener.dsr().filter(|_| has_packets(listener)) else { return 0 };
        let packets = 1 + OF_SERVICE;
        let each = match settings.data_path {
            DataPath::Auto => packets.max(2 * self.of_address(listener)),
            _ => packets,
        };
        listener.binds.len() * each
    }
}

/// Descriptors that tasks beside traffic request from the account, by purpose.
pub(crate) fn wanted(config: &Config) -> Wanted {
    let backends = |pool: &Pool| pool.backends.len();
    let checked = config.pools.iter().filter(|pool| pool.health.is_some()).map(backends).sum();
    let names = config.pools.iter().map(names).sum();
    let staples = if config.tls().any(|tls| tls.ocsp == Ocsp::On) { ocsp::MOST } else { 0 };
    let orders = config.acme.len() * acme::ORDERS_AT_ONCE;
    let gated = config.acme.iter().filter(|section| section.tlsa.is_some());
    let gated = gated.map(|section| section.certificates.len()).sum();
    Wanted::default()
        .with(Purpose::Check, checked, backend_slots(config))
        .with(Purpose::LookUp, names, OF_LOOK_UP)
        .with(Purpose::Staple, staples, OF_REQUEST)
        .with(Purpose::Order, orders, OF_ORDER)
        .with(Purpose::Authority, orders, OF_REQUEST)
        .with(Purpose::Gate, gated, OF_GATE)
}

/// Number of names that are looked up for a pool: of one with many backends, one.
fn names(pool: &Pool) -> usize {
    let mut found = HashSet::new();
    for backend in &pool.backends {
        match &backend.address {
            BackendAddress::Name { .. } => found.insert(backend.address.to_string()),
            BackendAddress::Dns(name) => found.insert(name.to_string()),
            BackendAddress::Discovered { name, .. } => found.insert(name.to_string()),
            BackendAddress::Ip(_) | BackendAddress::Unix(_) | BackendAddress::Ssh { .. } => false,
        };
    }
    found.len()
}

fn is_ssh(address: &BackendAddress) -> bool {
    matches!(address, BackendAddress::Ssh { .. })
}

/// Whether packets of a listener may be forwarded.
fn has_packets(listener: &Listener) -> bool {
    listener.dsr().is_some_and(|settings| settings.data_path != DataPath::Proxy)
}

fn most_divided(config: &Config, own: ProcessNeeds) -> usize {
    let clients = match config.process.max_connections {
        MaxConnections::Auto => 0,
        MaxConnections::Count(count) => count.saturating_mul(1 + backend_slots(config)),
    };
    clients.saturating_add(own.fixed + own.watch).max(MOST_DIVIDED)
}

/// Number of slots of a connection to the most expensive backend: 2 if any backend is behind SSH, else 1. If a reload
/// adds the first backend behind SSH, each client from before the reload still holds one slot for its backend. Such a
/// client may open one more descriptor than the account shows; that descriptor comes from the reserve.
pub(crate) fn backend_slots(config: &Config) -> usize {
    let any = config.pools.iter().flat_map(|pool| &pool.backends).any(|backend| is_ssh(&backend.address));
    if any { 2 } else { 1 }
}

#[cfg(test)]
mod tests {

    use config::Source;

    use super::*;

    const LISTENER: &str = "[listener.web]\nbind = \"127.0.0.1:80\"\npool = \"app\"\n";
    const POOL: &str = "[pool.app]\nbackends = [\"192.0.2.1:80\"]\nhealth = \"off\"\n";

    fn config(text: &str) -> Config {
        let source = Source { name: "test".to_owned(), text: text.to_owned() };
        config::load(&source, &config::Environment::default())
            .unwrap_or_else(|faults| panic!("{faults:?}"))
            .config
    }

    fn own(text: &str) -> ProcessNeeds {
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
        assert_eq!(plain, ProcessNeeds { fixed: 10 + 2 * OF_WORKER + 4, watch: FILES + 2 });
        let admin = own(&format!("[admin]\nbind = \"127.0.0.1:90\"\n{LISTENER}{POOL}"));
        assert_eq!(admin.watch, plain.watch + 64 + 8 + 1);
        let control = own(&format!("[control]\nsocket = \"/run/c\"\n{LISTENER}{POOL}"));
        assert_eq!(control.watch, plain.watch + 64 + 8 + 1);
        let more = format!("{LISTENER}{}{POOL}", LISTENER.replace("web", "more").replace("80", "81"));
        assert_eq!(own(&more), ProcessNeeds { fixed: plain.fixed + 4, watch: plain.watch + 2 });
    }

    #[test]
    fn backends_count_with_what_is_opened_beside_traffic() {
        let plain = own(&format!("{LISTENER}{POOL}"));
        let with = |pool: &str| own(&format!("{LISTENER}{pool}"));
        assert_eq!(with(&POOL.replace("\"off\"", "\"tcp\"")).watch, plain.watch + 1);
        assert_eq!(with(&POOL.replace("192.0.2.1", "app.example")).watch, plain.watch + OF_LOOK_UP);
        assert_eq!(with(&POOL.replace("192.0.2.1", "dns:app.example")).watch, plain.watch + OF_LOOK_UP);
        assert_eq!(with(&format!("{POOL}http2 = \"on\"\n")).fixed, plain.fixed + 2 * OF_MULTIPLEXED);
        let tunnel = with(&POOL.replace("192.0.2.1:80", "ssh:db1/127.0.0.1:80"));
        assert_eq!(tunnel.watch, plain.watch + OF_TUNNEL);
    }

    #[test]
    fn a_service_counts_with_its_packet_socket_or_with_the_sockets_of_its_clients() {
        let none = own(&format!("[admin]\nbind = \"127.0.0.1:90\"\n{LISTENER}{POOL}"));
        let of = |path: &str, transport: &str| {
            own(&format!(
                "[admin]\nbind = \"127.0.0.1:90\"\n{LISTENER}{POOL}balance = \"maglev\"\n[listener.video]\nbind = \"192.0.2.10:80\"\nprotocol = \"dsr\"\n\
                 interface = \"eth0\"\npool = \"video\"\ndata-path = \"{path}\"\ntransport = \"{transport}\"\n\
                 [pool.video]\nbackends = [\"192.0.2.2:80\"]\nbalance = \"maglev\"\nhealth = \"off\"\n"
            ))
        };
        for path in ["af_packet", "tc", "auto"] {
            let packets = of(path, "tcp");
            assert_eq!(
                packets,
                ProcessNeeds { fixed: none.fixed + 1 + OF_SERVICE, watch: none.watch + 1 },
                "{path}"
            );
        }
        // Two workers, each with a socket and a client that has no slot yet.
        assert_eq!(of("proxy", "tcp"), ProcessNeeds { fixed: none.fixed + 4, watch: none.watch + 2 });
        assert_eq!(of("proxy", "tcp-and-udp"), ProcessNeeds { fixed: none.fixed + 8, watch: none.watch + 4 });
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
