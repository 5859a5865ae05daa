//! A connection to a host that is who it should be, logged in.

use std::sync::{Arc, PoisonError};

use logic::fleet::ending::{Failure, Phase, Reason};
use russh::client::Handle;

use crate::handler::{Handler, Shared};
use crate::judge::{Offered, Place};
use crate::process::{Exec, Process};
use crate::target::Target;
use crate::trouble;

/// A connection, logged in. Dropping it and all that was opened on it closes it.
pub struct Session {
    handle: Handle<Handler>,
    target: Arc<Target>,
    shared: Arc<Shared>,
}

/// What was learnt while connecting.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Where the host answered.
    pub address: Option<Place>,
    /// The key or certificate that it proved.
    pub identity: Option<Offered>,
    /// What the judge wants the user to know.
    pub note: Option<String>,
    /// Our key that it accepted.
    pub key: String,
    /// Every step of the log-in.
    pub attempts: Vec<crate::Attempt>,
}

impl Session {
    pub(crate) fn new(handle: Handle<Handler>, target: Arc<Target>, shared: Arc<Shared>) -> Self {
        Self { handle, target, shared }
    }

    /// Sends a command. Its events, [`crate::Event::Started`] first, come from [`Process::next`].
    ///
    /// # Errors
    /// The server refused a channel, or the connection broke; the command was not started.
    pub async fn exec(&self, command: &str, _options: &Exec) -> Result<Process, Failure> {
        let channel = self.handle.channel_open_session().await.map_err(|fault| self.never_started(&fault))?;
        channel.exec(true, command).await.map_err(|fault| self.never_started(&fault))?;
        Ok(Process::new(channel, Arc::clone(&self.target), Arc::clone(&self.shared)))
    }

    /// What was learnt while connecting.
    #[must_use]
    pub fn facts(&self) -> Facts {
        self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> Failure {
        let mut ended = self.shared.ended.subscribe();
        match ended.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(failure)) => failure,
            _ => trouble::failure(
                Phase::Run,
                Reason::Lost,
                format!("the connection to {} ended", self.target.name),
            ),
        }
    }

    /// Says goodbye.
    pub async fn close(self) {
        let _ = self.handle.disconnect(russh::Disconnect::ByApplication, "", "").await;
    }

    fn never_started(&self, fault: &russh::Error) -> Failure {
        let mut failure = trouble::of(Phase::Start, fault, &self.target);
        failure.remote = logic::fleet::ending::Remote::NeverStarted;
        failure
    }
}
