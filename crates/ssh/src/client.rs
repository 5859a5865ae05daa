//! Opens connections. Shared by all connections of a process.

use std::sync::{Arc, Mutex};

use logic::fleet::ending::{Failure, Phase, Reason};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::authenticate::{Listener, authenticate};
use crate::connect;
use crate::handler::{Fault, Handler, Shared};
use crate::judge::{Judge, Place};
use crate::keys::Keys;
use crate::preferences;
use crate::session::{Facts, Session};
use crate::target::Target;
use crate::trouble;

/// Opens connections to hosts, with one judge of their identities and one set of keys.
#[derive(Clone)]
pub struct Client {
    judge: Arc<dyn Judge>,
    keys: Arc<Keys>,
    listener: Option<Arc<Listener>>,
}

impl Client {
    /// A client that connects only to hosts which `judge` accepts, and logs in with `keys`.
    #[must_use]
    pub fn new(judge: Arc<dyn Judge>, keys: Arc<Keys>) -> Self {
        Self { judge, keys, listener: None }
    }

    /// The same client, telling each step of a log-in; it also asks each server first what it accepts.
    #[must_use]
    pub fn narrating(self, listener: Arc<Listener>) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// Connects and logs in. `on_phase` is told each phase as it begins.
    ///
    /// # Errors
    /// Says in which phase it stopped and why. No command was started.
    pub async fn connect(
        &self,
        target: &Target,
        on_phase: &(dyn Fn(Phase) + Sync),
    ) -> Result<Session, Failure> {
        let limit = target.connect_timeout;
        let late = |phase: Phase| {
            trouble::failure(
                phase,
                Reason::TimedOut,
                format!("{}: {phase} took longer than {} s", target.name, limit.as_secs_f32()),
            )
        };
        on_phase(Phase::Resolve);
        let addresses =
            timeout(limit, connect::resolve(target)).await.map_err(|_| late(Phase::Resolve))??;
        on_phase(Phase::Connect);
        let (stream, address) =
            timeout(limit, connect::tcp(&addresses)).await.map_err(|_| late(Phase::Connect))??;
        on_phase(Phase::Identity);
        let shared =
            Arc::new(Shared { facts: Mutex::new(Facts::default()), ended: watch::Sender::new(None) });
        let target = Arc::new(target.clone());
        let handler = Handler {
            target: Arc::clone(&target),
            judge: Arc::clone(&self.judge),
            place: Place::Address(address),
            shared: Arc::clone(&shared),
        };
        let config = preferences::config(&target, &self.judge.wanted(&target.name));
        let mut handle = timeout(limit, russh::client::connect_stream(config, stream, handler))
            .await
            .map_err(|_| late(Phase::Identity))?
            .map_err(|fault| match fault {
                Fault::Library(fault) => trouble::of(Phase::Identity, &fault, &target),
                Fault::Refused(failure) => failure,
            })?;
        on_phase(Phase::Authenticate);
        let listener = self.listener.as_deref();
        let login = authenticate(&mut handle, &target, &self.keys, &shared, listener).await?;
        shared.note(|facts| {
            facts.address = Some(Place::Address(address));
            facts.key = login.key;
            facts.attempts = login.attempts;
        });
        Ok(Session::new(handle, target, shared))
    }
}
