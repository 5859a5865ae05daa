//! How many backends of a pool take new flows at the addresses of `dsr` listeners: one whose checks pass may lack the
//! address, or answer no question for its Ethernet address.

use config::Config;
use logic::dsr::path::Rung;
use serde::Serialize;
use state::dsr::{BackendOfService, Served, ServiceReport};
use state::listen::BoundKey;
use text::terminal::line;

/// One address of a `dsr` listener with the pool.
#[derive(Clone, Debug, Serialize)]
pub struct TakingReport {
    /// NAME of `[listener.NAME]`.
    pub listener: String,
    /// The virtual address with its port.
    pub address: String,
    /// Number of backends that take new flows there; `None`: no worker serves the address.
    pub backends: Option<usize>,
}

impl TakingReport {
    pub(super) fn read(pool: &str, config: &Config, services: &[Served]) -> Vec<Self> {
        let listeners = config.listeners.iter().filter(|listener| {
            listener.dsr().is_some_and(|settings| *config.pools[settings.pool.0].name == *pool)
        });
        let report = |key: BoundKey| {
            let (listener, address) = (key.listener.to_string(), key.bind.to_string());
            let served = services.iter().map(|(report, _)| report);
            let mut served = served.filter(|it| it.listener == listener && it.address == address);
            Self { backends: served.next().map(taking), listener, address }
        };
        listeners.flat_map(|listener| BoundKey::all(listener).map(report)).collect()
    }

    pub(crate) fn takes(&self) -> bool {
        self.backends.is_some_and(|backends| backends > 0)
    }

    /// What the header of a pool says, of whose backends so many are available; begins with a comma.
    pub(super) fn words(&self, available: usize) -> String {
        match self.backends {
            None => format!(", {} is not served", line(&self.address)),
            Some(backends) if backends < available => {
                let take = if backends == 1 { "takes" } else { "take" };
                format!(", {backends} {take} flows at {}", line(&self.address))
            }
            Some(_) => String::new(),
        }
    }
}

fn taking(service: &ServiceReport) -> usize {
    let lacks_vip = |backend: &BackendOfService| backend.vip.as_ref().is_some_and(|vip| vip.state == "down");
    let takes = |backend: &&BackendOfService| {
        backend.state == "open" && backend.ethernet.is_some() && !lacks_vip(backend)
    };
    if service.path == Rung::Proxy.as_str() {
        return service.backends.iter().filter(|backend| backend.state == "open").count();
    }
    match &service.ethernet {
        Some(_) => service.backends.iter().filter(takes).count(),
        // Its interface has gone.
        None => 0,
    }
}
