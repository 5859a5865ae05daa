//! `engine` of the process, and which listeners io_uring serves.

use logic::rings::WantedRings;

use super::{BackendAddress, BindAddress, Config, Listener, Pool, Protocol, SourceAddress};

text::words! {
    /// How workers move the bytes of TCP sessions.
    #[derive(Default)]
    pub enum Engine: "engine" {
        /// io_uring where the kernel allows it and a listener can use it, else epoll.
        #[default]
        Auto = "auto",
        /// A system call for each step, when epoll(7) says that it can be done.
        Epoll = "epoll",
        /// io_uring(7) for the beginning of each session.
        IoUring = "io-uring",
    }
}

impl Config {
    #[must_use]
    pub fn wanted_rings(&self) -> WantedRings {
        match self.process.engine {
            Engine::Epoll => WantedRings::None,
            Engine::IoUring => WantedRings::Asked,
            Engine::Auto if self.listeners.iter().any(|one| self.why_not_in_ring(one).is_none()) => {
                WantedRings::IfAllowed
            }
            Engine::Auto => WantedRings::None,
        }
    }

    /// Why sessions of a listener do not begin in an io_uring of a process that has some; `None` if they do.
    #[must_use]
    pub fn why_not_in_ring(&self, listener: &Listener) -> Option<&'static str> {
        let Protocol::Tcp(settings) = &listener.protocol else { return Some("its protocol is not tcp") };
        let of_listener = [
            (listener.tls.is_some(), "tls"),
            (!listener.proxy_protocol_from.is_empty(), "proxy-protocol-from"),
            (listener.bandwidth.is_some(), "bandwidth"),
            (listener.binds.iter().all(|bind| matches!(bind, BindAddress::Unix(_))), "Unix sockets"),
        ];
        if let Some((_, why)) = of_listener.into_iter().find(|(applies, _)| *applies) {
            return Some(why);
        }
        let mut next = self.pools.get(settings.pool.0);
        while let Some(pool) = next {
            if let Some(why) = why_not_to(pool) {
                return Some(why);
            }
            next = pool.fallback.and_then(|next| self.pools.get(next.0));
        }
        None
    }
}

fn why_not_to(pool: &Pool) -> Option<&'static str> {
    let is_behind_ssh = |address: &BackendAddress| matches!(address, BackendAddress::Ssh { .. });
    let of_pool = [
        (pool.tls.is_some(), "tls of its pool"),
        (pool.send_proxy.is_some(), "send-proxy of its pool"),
        (pool.source_address == SourceAddress::Client, "source-address of its pool"),
        (pool.backends.iter().any(|backend| is_behind_ssh(&backend.address)), "backends behind SSH"),
    ];
    of_pool.into_iter().find(|(applies, _)| *applies).map(|(_, why)| why)
}
