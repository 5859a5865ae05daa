//! Where sessions of the process before an upgrade belong in this one. A listener or backend that is not configured any more
//! gets a state for its last sessions, as after a reload that removes it.

use std::collections::HashMap;
use std::sync::Arc;

use config::types::Pool;
use config::{Environment, Source};
use logic::balance::Identities;
use logic::health::Health;
use logic::route::PoolId;
use state::{ListenerState, State};
use sys::socket::{Outgoing, Owner};

use super::Carried;
use crate::snapshot::{BackendPlan, ListenerPlan, PoolPlan, Snapshot};

/// Where one session belongs.
pub struct Place {
    pub(crate) listener: Arc<ListenerState>,
    /// `None` if it is not configured.
    pub(crate) plan: Option<Arc<ListenerPlan>>,
    pub(crate) backend: Option<(Arc<PoolPlan>, usize)>,
    /// The snapshot that has the backend; `None` if it is not configured.
    pub(crate) served: Option<Arc<Snapshot>>,
}

/// Finds the places of sessions.
#[derive(Default)]
pub struct Finder {
    listeners: HashMap<String, Arc<ListenerState>>,
    pools: HashMap<(String, String), Option<Arc<PoolPlan>>>,
}

impl Finder {
    /// `snapshot` is the one that is served.
    pub fn find(&mut self, session: &Carried, snapshot: Arc<Snapshot>, state: &State) -> Place {
        let plan = snapshot.listeners.get(session.listener.as_str()).cloned();
        let listener = match &plan {
            Some(plan) => plan.state.clone(),
            None => self.removed_listener(&session.listener, state),
        };
        let pool = snapshot.pools.iter().find(|pool| *pool.settings.name == *session.pool);
        let served = pool.and_then(|pool| {
            let at = pool.backends.iter().position(|backend| *backend.state.name == *session.backend)?;
            Some((pool.clone(), at))
        });
        match served {
            Some(backend) => Place { listener, plan, backend: Some(backend), served: Some(snapshot) },
            None => {
                let backend = self.removed_backend(session, state).map(|pool| (pool, 0));
                Place { listener, plan, backend, served: None }
            }
        }
    }

    fn removed_listener(&mut self, name: &str, state: &State) -> Arc<ListenerState> {
        let new = || {
            let listener = state.known().listener(&name.into());
            state.keep_listener(&listener);
            listener
        };
        self.listeners.entry(name.to_owned()).or_insert_with(new).clone()
    }

    fn removed_backend(&mut self, session: &Carried, state: &State) -> Option<Arc<PoolPlan>> {
        let key = (session.pool.clone(), session.backend.clone());
        self.pools.entry(key).or_insert_with(|| removed(state, &session.pool, &session.backend)).clone()
    }
}

/// A pool of one backend that no new session gets. `None` if this version cannot read its address.
fn removed(state: &State, pool: &str, backend: &str) -> Option<Arc<PoolPlan>> {
    let settings = settings_of(pool, backend)?;
    let known = state.known();
    let backends = settings.backends.iter().map(|backend| {
        let of = known.backend(&settings.name, &backend.address, || {
            Health::new(None, settings.passive, state.started, 0.0)
        });
        state.keep_removed(&of);
        BackendPlan {
            settings: backend.clone(),
            tls: None,
            outgoing: Outgoing::default(),
            owner: Owner::Machine,
            http2: None,
            state: of,
        }
    });
    Some(Arc::new(PoolPlan {
        // It is not asked for: the session has its backend.
        id: PoolId(usize::MAX),
        backends: backends.collect(),
        tls: None,
        identities: Identities::new(settings.balance, &[]),
        sticky: None,
        cookie: None,
        queue: known.queue(&settings.name),
        state: known.pool(&settings.name),
        backend_acls: 0,
        soft_limits: 0,
        tiers: 1,
        settings,
    }))
}

/// What a file says of a pool with this backend alone.
fn settings_of(pool: &str, backend: &str) -> Option<Pool> {
    // A backend that a name has (`NAME@ADDRESS`) is one at its address.
    let backend = backend.rsplit_once('@').map_or(backend, |(_, address)| address);
    let is_plain = |text: &str| !text.contains(['\'', '"', '$', '[', '\n', '\\']);
    if !is_plain(pool) || backend.contains(['\'', '$', '\n']) {
        return None;
    }
    let text = format!(
        "[listener.removed]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"{pool}\"\n\
         [pool.{pool}]\nhealth = \"off\"\nbackends = ['{backend}']\n"
    );
    let source = Source { name: "removed.toml".to_owned(), text };
    let loaded = config::load(&source, &Environment::default()).ok()?;
    loaded.config.pools.first().cloned()
}
