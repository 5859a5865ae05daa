//! Serves the backends that names in the DNS have, when they change.

use config::Config;

use super::discovered::NOT_SERVED;
use super::{FrontDoor, Stopping};
use crate::discovery::{Change, DISCOVERY, Served};
use crate::reload::ApplyError;
use crate::signals::Signals;

impl FrontDoor {
    pub(super) async fn follow_unless_stopped(&mut self, change: Change, signals: &mut Signals) {
        tokio::select! {
            () = self.follow(change) => {}
            () = signals.stop() => self.stopping = Stopping::Asked,
        }
    }

    /// Removes backends that the DNS does not have any more and that have no sessions.
    pub(super) async fn forget_idle(&mut self, signals: &mut Signals) {
        let snapshot = self.supervisor.front.snapshot.load_full();
        let change = self.slow.discoverer.forget_idle(&snapshot);
        self.follow_unless_stopped(change, signals).await;
    }

    async fn follow(&mut self, change: Change) {
        if change == Change::Backends {
            let config = self.slow.discoverer.expand(self.live.config());
            let applied = self.supervisor.apply(config).await;
            let state = &self.supervisor.front.state;
            let served = match applied {
                Ok(_) => {
                    state.restore(DISCOVERY);
                    Served::Is
                }
                Err(errors) => {
                    let why: Vec<_> = errors.iter().map(ToString::to_string).collect();
                    state.degrade(DISCOVERY, &format!("{NOT_SERVED}{}", why.join("; ")));
                    Served::Not
                }
            };
            self.slow.discoverer.note(served);
            self.reconcile_backends();
        }
        self.slow.discoverer.tell_failures(&self.supervisor.front.snapshot.load());
    }

    /// Serves `config` with the backends that its names stand for. If there are not enough descriptors for them, names that
    /// are served keep the backends that they have: a DNS that has grown does not decide whether a reload is refused.
    pub(super) async fn apply_with_names(&mut self, config: &Config) -> Result<String, String> {
        self.slow.discoverer.begin(config).await;
        let expanded = self.slow.discoverer.expand(config);
        let mut applied = self.supervisor.apply(expanded).await;
        let few = match applied.as_ref().map_err(Vec::as_slice) {
            Err([ApplyError::Descriptors(few)]) if self.slow.discoverer.has_names() => Some(few.to_string()),
            _ => None,
        };
        if few.is_some() {
            let served = self.supervisor.front.snapshot.load().config.clone();
            let within = self.slow.discoverer.expand_within(config, &served);
            applied = self.supervisor.apply(within).await;
        }
        let said = applied.map_err(|errors| {
            self.slow.discoverer.back_to(self.live.config());
            errors.iter().map(|error| format!("error: {error}")).collect::<Vec<_>>().join("\n")
        })?;
        self.slow.discoverer.keep_only(config);
        let state = &self.supervisor.front.state;
        match few {
            None => {
                self.slow.discoverer.note(Served::Is);
                state.restore(DISCOVERY);
            }
            Some(few) => {
                self.slow.discoverer.note(Served::Not);
                state.degrade(DISCOVERY, &format!("{NOT_SERVED}{few}"));
            }
        }
        Ok(said)
    }

    /// Adapts the tasks of backends to the snapshot that is served.
    pub(super) fn reconcile_backends(&mut self) {
        let snapshot = self.supervisor.front.snapshot.load_full();
        self.slow.resolver.reconcile(&snapshot);
        self.slow.tunnels.reconcile(&snapshot);
        self.slow.checker.reconcile(&snapshot);
    }
}
