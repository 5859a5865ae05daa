//! What of a snapshot cannot work as configured, before it is served.

use config::types::SourceAddress;

use super::{PoolPlan, Snapshot};

impl Snapshot {
    /// The subjects that [`adopt`](super::adopt) would report as degraded, with the reasons. The certificates of listeners
    /// are not among them: they are read when they are served.
    pub fn faults(&self) -> Vec<(String, String)> {
        let pools = self.pools.iter().flat_map(|pool| {
            let name = &pool.settings.name;
            let tls = pool.tls.as_ref().and_then(|tls| tls.fault());
            let cookie = pool.cookie.as_ref().and_then(|cookie| cookie.fault());
            let source = source_fault(pool).map(|why| (format!("pool.{name}.source-address"), why));
            let of = |key: &str, fault: Option<&str>| Some((format!("pool.{name}.{key}"), fault?.to_owned()));
            [of("tls", tls), of("sticky", cookie), source]
        });
        let listeners = self.config.listeners.iter().map(|listener| {
            let fault = self.listeners.get(&listener.name)?.hash_key.as_ref()?.fault()?;
            Some((format!("listener.{}.hash-key-file", listener.name), fault.to_owned()))
        });
        pools.chain(listeners).flatten().collect()
    }
}

/// Why connections from the source address of a pool fail; `None` if they can be made. Opens a socket and closes it.
pub(super) fn source_fault(pool: &PoolPlan) -> Option<String> {
    match pool.settings.source_address {
        SourceAddress::Any => None,
        SourceAddress::Ours(source) => sys::socket::probe_source(source)
            .err()
            .map(|error| format!("{source}: {error}; `ip address` shows the addresses of this machine")),
        SourceAddress::Client => sys::socket::probe_transparent().err().map(|error| {
            format!(
                "the addresses of clients need CAP_NET_RAW ({error}), which only a start with this setting keeps: \
                 restart as root, or with CAP_NET_RAW in AmbientCapabilities and CapabilityBoundingSet of the unit"
            )
        }),
    }
}
