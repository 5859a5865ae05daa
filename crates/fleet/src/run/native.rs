//! Commands through our own client.

use std::sync::Arc;
use std::time::Duration;

use logic::fleet::ending::{Ending, Failure, Phase, Reason, Remote};
use ssh::identity::Identities;
use ssh::{Client, Event, Exec, Known, Process, Session};

use super::Host;
use super::engine::{Happening, Stream, Writer};

/// Our own client.
pub struct Native {
    client: Client,
    identities: Arc<Identities>,
}

impl Native {
    /// Connects with `client`, and tells `identities` what was negotiated.
    #[must_use]
    pub fn new(client: Client, identities: Arc<Identities>) -> Self {
        Self { client, identities }
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
                Ok(Way { session })
            }
            Err(failure) => Err(failure.clone()),
        }
    }
}

/// A connection, logged in.
pub(super) struct Way {
    session: Session,
}

impl Way {
    /// For files.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) async fn exec(&self, command: &str) -> Result<Running, Failure> {
        let process = self.session.exec(command, &Exec::default()).await?;
        let input = Writer::Native(process.stdin());
        Ok(Running { process, input: Some(input) })
    }
}

/// A command under way.
pub(super) struct Running {
    process: Process,
    input: Option<Writer>,
}

impl Running {
    pub(super) async fn next(&mut self) -> Happening {
        match self.process.next().await {
            Some(Event::Started) => Happening::Phase(Phase::Run),
            Some(Event::Stdout(bytes)) => Happening::Output(Stream::Stdout, bytes),
            Some(Event::Stderr(bytes)) => Happening::Output(Stream::Stderr, bytes),
            Some(Event::Ended(ending)) => Happening::Ended(ending),
            None => Happening::Ended(Ending::Failed(Failure {
                phase: Phase::Run,
                reason: Reason::NoStatus,
                detail: "the command ended without a word".to_owned(),
                advice: None,
                remote: Remote::Unknown,
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
