//! Runs commands through our own client.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hosts::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use hosts::ssh::key::Fingerprint;
use ssh::identity::Identities;
use ssh::{Client, Event, Exec, Known, Process, Session};

use super::happening::{HostEvent, Stream};
use super::host::Host;
use super::writer::Writer;

pub struct Native {
    client: Client,
    identities: Arc<Identities>,
    log_ins: Arc<LogIns>,
}

/// The keys with which hosts have let this client in.
#[derive(Debug, Default)]
pub struct LogIns(Mutex<HashMap<String, Fingerprint>>);

impl LogIns {
    /// Fingerprint of the key of the last log-in to a host, or of the key in its certificate.
    #[must_use]
    pub fn key(&self, host: &str) -> Option<Fingerprint> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(host).copied()
    }

    fn note(&self, host: &str, session: &Session) {
        if let Some(key) = session.facts().log_in_key() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host.to_owned(), key);
        }
    }
}

impl Native {
    /// Creates the engine. `identities` records which host key and which algorithms each connection has negotiated.
    #[must_use]
    pub fn new(client: Client, identities: Arc<Identities>) -> Self {
        Self { client, identities, log_ins: Arc::default() }
    }

    #[must_use]
    pub fn log_ins(&self) -> Arc<LogIns> {
        Arc::clone(&self.log_ins)
    }

    pub(super) async fn connect(
        &self,
        host: &Host,
        on_phase: &(dyn Fn(Phase) + Sync),
    ) -> Result<Way, Failure> {
        match &host.target {
            Ok(target) => {
                let session = self.client.connect(target, on_phase).await?;
                self.identities.learned(&target.name, target.port, &session.facts());
                self.log_ins.note(&host.name, &session);
                Ok(Way { session })
            }
            Err(failure) => Err(failure.clone()),
        }
    }
}

pub(super) struct Way {
    session: Session,
}

impl Way {
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) async fn exec(&self, command: &str, opened: &AtomicBool) -> Result<Running, Failure> {
        let process = self.session.exec_noting(command, &Exec::default(), opened).await?;
        let input = Writer::Native(process.stdin());
        Ok(Running { process, input: Some(input) })
    }
}

pub(super) struct Running {
    process: Process,
    input: Option<Writer>,
}

impl Running {
    pub(super) async fn next(&mut self) -> HostEvent {
        match self.process.next().await {
            Some(Event::Started) => HostEvent::Phase(Phase::Run),
            Some(Event::Stdout(bytes)) => HostEvent::Output(Stream::Stdout, bytes),
            Some(Event::Stderr(bytes)) => HostEvent::Output(Stream::Stderr, bytes),
            Some(Event::Ended(ending)) => HostEvent::Ended(ending),
            None => HostEvent::Ended(Ending::Failed(Failure {
                phase: Phase::Run,
                reason: Reason::NoExitStatus,
                detail: "the command ended without output".to_owned(),
                advice: None,
                remote: Remote::MayHaveRun,
            })),
        }
    }

    pub(super) fn take_input(&mut self) -> Option<Writer> {
        self.input.take()
    }

    pub(super) fn ended_itself(&self) -> Option<&Ending> {
        self.process.ended_itself()
    }

    pub(super) async fn end(self, grace: Duration, known: Known) -> (Remote, u64) {
        self.process.end(grace, known).await
    }
}
