//! What the SSH library calls us for while a connection lives.

use std::sync::{Arc, Mutex, PoisonError};

use logic::fleet::ending::{Failure, Phase};
use logic::ssh::key::PublicKey;
use russh::client::DisconnectReason;
use russh::keys::PublicKeyOrCertificate;
use tokio::sync::watch;

use crate::judge::{Judge, Offered, Place, Verdict};
use crate::session::Facts;
use crate::target::Target;
use crate::trouble;

/// The callbacks of one connection.
pub(crate) struct Handler {
    pub(crate) target: Arc<Target>,
    pub(crate) judge: Arc<dyn Judge>,
    pub(crate) place: Place,
    pub(crate) shared: Arc<Shared>,
}

/// What the callbacks learn and the session tells.
pub(crate) struct Shared {
    pub(crate) facts: Mutex<Facts>,
    /// Why the connection ended.
    pub(crate) ended: watch::Sender<Option<Failure>>,
}

impl Shared {
    pub(crate) fn note(&self, note: impl FnOnce(&mut Facts)) {
        note(&mut self.facts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn end(&self, failure: Failure) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(failure);
            }
            first
        });
    }
}

/// What ends a connection from inside a callback.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The library's own.
    Library(russh::Error),
    /// The judge refused the host.
    Refused(Failure),
}

impl From<russh::Error> for Fault {
    fn from(fault: russh::Error) -> Self {
        Self::Library(fault)
    }
}

impl russh::client::Handler for Handler {
    type Error = Fault;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, Fault> {
        let offered = match offered {
            PublicKeyOrCertificate::PublicKey { key, .. } => key.to_bytes().map(|blob| (false, blob)),
            PublicKeyOrCertificate::Certificate(certificate) => {
                certificate.to_bytes().map(|blob| (true, blob))
            }
        };
        let (certified, blob) = offered.map_err(|_| russh::Error::CouldNotReadKey)?;
        let key = PublicKey::from_blob(&blob).map_err(|_| russh::Error::CouldNotReadKey)?;
        let offered = if certified { Offered::Certificate(key) } else { Offered::Key(key) };
        let verdict = self.judge.judge(&self.target.name, &self.place, &offered).await;
        match verdict {
            Verdict::Accepted { note } => {
                self.shared.note(|facts| {
                    facts.identity = Some(offered);
                    facts.note = note;
                });
                Ok(true)
            }
            Verdict::Refused { reason, message, advice } => {
                let mut failure = trouble::failure(Phase::Identity, reason, message);
                failure.advice = (!advice.is_empty()).then_some(advice);
                Err(Fault::Refused(failure))
            }
        }
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Fault>) -> Result<(), Fault> {
        match reason {
            DisconnectReason::ReceivedDisconnect(said) => {
                self.shared.end(trouble::failure(
                    Phase::Run,
                    logic::fleet::ending::Reason::Lost,
                    format!("{} ended the connection: {}", self.target.name, said.message),
                ));
                Ok(())
            }
            DisconnectReason::Error(Fault::Library(fault)) => {
                self.shared.end(trouble::of(Phase::Run, &fault, &self.target));
                Err(Fault::Library(fault))
            }
            DisconnectReason::Error(Fault::Refused(failure)) => {
                self.shared.end(failure.clone());
                Err(Fault::Refused(failure))
            }
        }
    }
}
