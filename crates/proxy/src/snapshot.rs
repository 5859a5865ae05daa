//! The compiled configuration. A snapshot is immutable: a reload builds a new one and replaces the old one at once.
//! Snapshots refer to backends, listeners and queues, which stay when a snapshot is replaced. These are defined in
//! `crates/state/src/lib.rs`.
//!
//! 1. `crates/proxy/src/snapshot/facts.rs` reads what a snapshot needs besides the configuration: the time, the state
//!    of the running process, and the TLS files.
//! 2. `crates/proxy/src/snapshot/compile.rs` builds a snapshot from configuration and facts, without side effects.
//! 3. `crates/proxy/src/snapshot/adopt.rs` prepares the state before the snapshot is served: it adds new backends,
//!    listeners and queues, gives backends their new health rules, and reads the certificates of listeners.
//!
//! `crates/proxy/src/snapshot/faults.rs` says of a snapshot that is not served yet what cannot work as configured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use config::Config;
use config::types::{Backend, HttpSettings, Listener, Pool, Protocol};
use logic::balance::{Balancer, Identities, StickyTable};
use logic::peers::Peer;
use logic::route::{PoolId, RouteTable};
use state::queue::Queue;
use state::{BackendState, ListenerState, PoolState};
use sys::socket::{Outgoing, Owner};
use tls::backend::{Endpoint, PoolTls};

use crate::http2::rules::Rules;
use crate::sticky_cookie::CookiePlan;

mod adopt;
mod compile;
mod facts;
mod faults;
mod hash_key;

pub use adopt::adopt;
pub use compile::compile;
pub use facts::Facts;
pub use hash_key::HashKey;

pub struct Snapshot {
    /// Counts the snapshots of this process from 1.
    pub generation: u64,
    pub config: Arc<Config>,
    pub listeners: HashMap<Arc<str>, Arc<ListenerPlan>>,
    /// TLS of control over the network.
    pub control_tls: Option<tls::Terminator>,
    /// TLS of the admin listener.
    pub admin_tls: Option<tls::Terminator>,
    /// Indexed by [`PoolId`].
    pub pools: Vec<Arc<PoolPlan>>,
}

pub struct ListenerPlan {
    pub settings: Listener,
    /// `None` for TCP.
    pub routes: Option<RouteTable>,
    /// Clients of a `tls-passthrough` listener whose ClientHello is not complete.
    pub(crate) hellos: Arc<tls::Handshakes>,
    /// `None` if the listener does not terminate TLS.
    pub tls: Option<tls::Terminator>,
    /// Key of the hash of a `dsr` listener with a key file.
    pub hash_key: Option<HashKey>,
    /// Whether its sessions may begin in an io_uring, if the process has one.
    pub begins: Begins,
    pub state: Arc<ListenerState>,
}

pub struct PoolPlan {
    pub id: PoolId,
    pub settings: Pool,
    pub backends: Vec<BackendPlan>,
    /// TLS settings for connections to the backends.
    pub tls: Option<PoolTls>,
    /// Input of the balancing methods hash and maglev; the same on every node with the same configuration.
    pub identities: Identities,
    /// Which backend serves which client; only for `sticky`.
    pub sticky: Option<Arc<Mutex<StickyTable>>>,
    /// Cookie by which clients keep their backends; then there is no table.
    pub cookie: Option<CookiePlan>,
    /// Sessions that wait for a busy backend.
    pub queue: Arc<Queue>,
    pub state: Arc<PoolState>,
    /// Number of backends that do not take every client.
    pub backend_acls: usize,
    /// Number of backends that take more sessions of clients that they know.
    pub soft_limits: usize,
    /// Number of different priorities.
    pub tiers: usize,
}

/// Where the sessions of a listener may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    InRing,
    InTask,
}

impl PoolPlan {
    /// A balancer before its first choice. Workers begin at different backends.
    pub fn balancer(&self, worker: usize) -> Balancer {
        let balancer = Balancer::with_phase(self.settings.balance, self.backends.len(), worker);
        balancer.bounded(self.settings.balance_bound)
    }
}

pub struct BackendPlan {
    pub settings: Backend,
    pub tls: Option<Arc<Endpoint>>,
    /// Connections that are not for a client: checks.
    pub outgoing: Outgoing,
    /// Whose address the connections of sessions come from.
    pub owner: Owner,
    /// `None` if the backend speaks HTTP/1.1 or TCP.
    pub http2: Option<Rules>,
    pub state: Arc<BackendState>,
}

impl BackendPlan {
    /// How to connect for this client. One without an address gets an address of this machine.
    pub fn outgoing_for(&self, client: Peer) -> Outgoing {
        match (self.owner, client.ip()) {
            (Owner::Client, Some(source)) => {
                Outgoing { source: Some(source.to_canonical()), owner: Owner::Client, ..self.outgoing }
            }
            _ => self.outgoing,
        }
    }
}

impl Snapshot {
    pub fn pool(&self, id: PoolId) -> &Arc<PoolPlan> {
        &self.pools[id.0]
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Returns the HTTP settings of a listener; `None` for other protocols.
pub fn http_settings(plan: &ListenerPlan) -> Option<&HttpSettings> {
    match &plan.settings.protocol {
        Protocol::Http(settings) => Some(settings),
        Protocol::Tcp(_) | Protocol::TlsPassthrough(_) | Protocol::Udp(_) | Protocol::Dsr(_) => None,
    }
}

#[cfg(test)]
mod tests;
