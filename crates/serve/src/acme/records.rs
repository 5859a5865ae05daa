//! The DNS records of one order (dns-01): noted before they are added, and removed when the order ends, even by an abort.
//!
//! A reload that changes a section aborts its orders at any await. So a task of its own adds each record, and another one
//! removes them all: no answer is missed, and the removal waits for an addition that has not ended yet. The end of the
//! process waits for these tasks too, but not for long (`Removals::ended`).

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::dns::{NameServer, Update};
use super::fault::Fault;
use super::hooks::{HookCommand, Hooked};

/// How the records of a section get into the zone.
pub(super) enum Zone {
    Updates(NameServer),
    Command(HookCommand),
}

/// One record in the terms of its zone.
#[derive(Clone)]
enum Record {
    Update(Box<Update>),
    Hooked(Hooked),
}

impl Zone {
    /// Finds out where the record belongs that proves control of `name`. Adds nothing.
    async fn place(&self, name: &str, value: String) -> Result<Record, Fault> {
        match self {
            Self::Updates(server) => {
                server.place(name, value).await.map(|update| Record::Update(Box::new(update)))
            }
            Self::Command(_) => Ok(Record::Hooked(Hooked::new(name, value))),
        }
    }

    async fn add(&self, record: &Record) -> Result<(), Fault> {
        match (self, record) {
            (Self::Updates(server), Record::Update(update)) => server.add(update).await,
            (Self::Command(command), Record::Hooked(hooked)) => command.add(hooked).await,
            // A record is used with the zone that placed it.
            _ => Ok(()),
        }
    }

    async fn remove(&self, record: &Record) -> Result<(), Fault> {
        match (self, record) {
            (Self::Updates(server), Record::Update(update)) => server.remove(update).await,
            (Self::Command(command), Record::Hooked(hooked)) => command.remove(hooked).await,
            _ => Ok(()),
        }
    }
}

/// The records that one order has added. Dropping them removes them.
pub(super) struct Records {
    zone: Arc<Zone>,
    /// Name of the certificate, for the log.
    certificate: Arc<str>,
    added: Vec<Added>,
    removals: Removals,
}

struct Added {
    record: Record,
    adding: JoinHandle<Result<(), Fault>>,
}

impl Records {
    pub(super) fn new(zone: Zone, certificate: &str, removals: Removals) -> Self {
        Self { zone: Arc::new(zone), certificate: certificate.into(), added: Vec::new(), removals }
    }

    /// Adds the record that proves control of a name.
    pub(super) async fn add(&mut self, name: &str, value: String) -> Result<(), Fault> {
        let record = self.zone.place(name, value).await?;
        let (zone, one) = (self.zone.clone(), record.clone());
        let adding = tokio::spawn(async move { zone.add(&one).await });
        // It is removed even if it could not be added: the answer may be lost.
        self.added.push(Added { record, adding });
        let Some(Added { adding, .. }) = self.added.last_mut() else { return Ok(()) };
        adding.await.unwrap_or_else(|error| Err(Fault::Records(error.to_string())))
    }

    /// Removes all records that were added. A record that cannot be removed does not stop the removal of the others.
    pub(super) async fn remove(mut self) {
        if let Some(removing) = self.start_removal() {
            // It logs its own faults.
            let _ = removing.await;
        }
    }

    /// `None` if there is nothing to remove, or if the process is at its end.
    fn start_removal(&mut self) -> Option<JoinHandle<()>> {
        let added = std::mem::take(&mut self.added);
        if added.is_empty() {
            return None;
        }
        let runtime = Handle::try_current().ok()?;
        let (zone, certificate, going_on) =
            (self.zone.clone(), self.certificate.clone(), self.removals.begin());
        Some(runtime.spawn(async move {
            for Added { record, adding } in added {
                if !adding.is_finished() {
                    let _ = adding.await;
                }
                if let Err(fault) = zone.remove(&record).await {
                    tracing::warn!(certificate = &*certificate, "{fault}; the record stays in the zone");
                }
            }
            drop(going_on);
        }))
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.start_removal();
    }
}

/// Counts the removals that go on.
#[derive(Clone, Default)]
pub(super) struct Removals(Arc<watch::Sender<usize>>);

/// One removal that goes on, until it is dropped.
struct GoingOn(Removals);

impl Removals {
    fn begin(&self) -> GoingOn {
        self.0.send_modify(|count| *count += 1);
        GoingOn(self.clone())
    }

    /// Waits until no removal goes on, up to a limit.
    pub(super) async fn ended(&self) {
        let mut count = self.0.subscribe();
        if tokio::time::timeout(LAST, count.wait_for(|count| *count == 0)).await.is_err() {
            tracing::warn!(
                "records of aborted orders stay in their zones: they are not removed within {} s",
                LAST.as_secs()
            );
        }
    }
}

impl Drop for GoingOn {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// Time that the end of the process waits for removals.
const LAST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
