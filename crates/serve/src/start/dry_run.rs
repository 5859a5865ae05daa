//! Tries a configuration out: compiles it as a reload does, and serves nothing of it.

use std::sync::Arc;

use config::{Config, Loaded};
use proxy::front::Denied;
use proxy::snapshot::Snapshot;

use super::{FrontDoor, Stopping, nothing_to_serve};
use crate::confinement;
use crate::signals::Signals;
use crate::transaction::DryRun;

impl FrontDoor {
    /// Why this process could not serve a configuration, apart from the contents of the files that it names.
    pub(super) fn may_serve(&self, config: &Config) -> Result<(), String> {
        if let Some(why) = nothing_to_serve(config) {
            return Err(format!("error: {why}"));
        }
        let confined = &self.supervisor.front.state.confinement;
        match confinement::beyond(confined, config, self.options.source.file()) {
            Some(beyond) => Err(format!("error: {beyond}")),
            None => Ok(()),
        }
    }

    /// Says what would become of a configuration.
    pub(super) async fn dry_run(&self, loaded: &Loaded) -> DryRun {
        let expanded = Arc::new(self.slow.discoverer.expand(&loaded.config));
        let refused = self.may_serve(&loaded.config).and_then(|()| {
            match self.supervisor.descriptors.divide(&expanded) {
                // Names of the DNS get fewer backends instead.
                Err(few) if !self.slow.discoverer.has_names() => Err(format!("error: {few}")),
                _ => Ok(()),
            }
        });
        let degraded = match refused {
            Ok(()) => self.supervisor.compile(expanded).await.faults(),
            Err(_) => Vec::new(),
        };
        let warnings = (!loaded.warnings.is_empty()).then(|| loaded.warnings.render());
        DryRun { refused: refused.err(), degraded, warnings }
    }

    /// Compiles the configuration of the open transaction. Names that only it has, have no backends yet: they are looked up
    /// when it is served.
    async fn compile_transaction(&self) -> Result<Arc<Snapshot>, Denied> {
        let loaded = self.live.in_transaction()?;
        let config = Arc::new(self.slow.discoverer.expand(&loaded.config));
        Ok(self.supervisor.compile(config).await)
    }

    /// A slow disk must not delay the end of the process.
    pub(super) async fn compile_unless_stopped(
        &mut self,
        signals: &mut Signals,
    ) -> Result<Arc<Snapshot>, Denied> {
        tokio::select! {
            compiled = self.compile_transaction() => compiled,
            () = signals.stop() => {
                self.stopping = Stopping::Asked;
                Err(Denied { message: "the process is ending".to_owned(), details: String::new() })
            }
        }
    }
}
