//! The judge: asks the index, and remembers what is to be recorded (`identity/noticed.rs`). Our own client,
//! `penstock host why`, and OpenSSH by `identity/known_hosts.rs` all ask [`Identities::decision`] whether a
//! host is itself, with what [`shown`] made of the blob on the wire.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use logic::identity::{
    Decision, Effect, Facts, Found, HostCertificate, Index, Moment, Name, Question, Run, Signature, Sshfp,
    SshfpAnswer, decide, is_certificate,
};
use logic::ssh::key::PublicKey;
use tokio::time::timeout;

use super::IdentityError;
use super::dns::{Anchor, Dns};
use super::facts::{self, Seen};
use super::files::Lock;
use super::noticed::Noticed;
use super::pending::{self, Pending};
use super::store::Store;
use crate::judge::{BoxFuture, Judge, Offered, Place, Verdict};

/// All identities of one user, as they were when a run began, and what the run noticed. What it noticed is written by
/// [`Self::flush`], or when it is dropped.
pub struct Identities {
    pub(super) store: Store,
    pub(super) index: Index,
    pub(super) seen: BTreeMap<Name, Seen>,
    /// Made when it is first needed, if nobody gave one.
    dns: OnceLock<Result<Dns, String>>,
    noticed: Mutex<Noticed>,
    /// Whether it is told of a host how many others changed.
    in_run: bool,
}

impl Identities {
    /// Reads all identities.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn load(store: Store) -> Result<Self, IdentityError> {
        let index = store.load()?;
        let mut identities = Self::of(store, index);
        identities.seen = facts::read(identities.store.places());
        Ok(identities)
    }

    /// Asks this resolver where a host allows that the DNS vouches for it, instead of the servers of the system with the
    /// keys of the root.
    #[must_use]
    pub fn with_dns(mut self, dns: Dns) -> Self {
        self.dns = OnceLock::from(Ok(dns));
        self
    }

    /// Many hosts are asked at once: of one whose key changed it is told how many others changed theirs.
    #[must_use]
    pub fn in_run(mut self) -> Self {
        self.in_run = true;
        self
    }

    /// Of these identities, for a program that reads no others: [`Self::decision`] of what they accept is that of all, and what
    /// they refuse is to be asked of all.
    pub(super) fn of(store: Store, index: Index) -> Self {
        Self {
            store,
            index,
            seen: BTreeMap::new(),
            dns: OnceLock::new(),
            noticed: Mutex::default(),
            in_run: false,
        }
    }

    /// The index as it was read.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Where it was read from.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How many hosts showed another key than the pinned one so far.
    #[must_use]
    pub fn changed(&self) -> usize {
        self.noticed().changed.len()
    }

    /// What is worth saying of hosts that were accepted since this was last asked: the name, and the line.
    pub fn take_notes(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.noticed().notes)
    }

    /// Notes what was negotiated with a host, for the audit.
    pub fn learned(&self, name: &str, port: u16, learned: &crate::Facts) {
        let Found::Host(host) = self.index.find(name, port) else { return };
        let until = match &learned.identity {
            Some(Offered::Certificate(blob)) => certificate(blob).ok().map(|read| read.valid_before),
            _ => None,
        };
        let negotiated = learned.negotiated.as_ref();
        let strict = |strict| match strict {
            crate::Strict::Yes => logic::identity::Strict::Yes,
            crate::Strict::No => logic::identity::Strict::No,
        };
        let facts = Facts {
            kex: negotiated.map(|negotiated| negotiated.kex.clone()),
            strict: negotiated.map(|negotiated| strict(negotiated.strict)),
            // A certificate without an end never expires.
            certificate_until: until.filter(|until| *until != u64::MAX),
            sshfp: None,
        };
        self.noticed().facts.insert(host.name().clone(), facts);
    }

    /// Decides, and records nothing: the effects say what would be.
    pub async fn decision(
        &self,
        name: &str,
        address: Option<IpAddr>,
        port: u16,
        offered: &logic::identity::Offered,
    ) -> Decision {
        let sshfp = self.sshfp(name, port, offered.key()).await;
        self.decision_with(&sshfp, name, address, port, offered)
    }

    /// The same once it is known what the DNS says.
    pub(super) fn decision_with(
        &self,
        sshfp: &SshfpAnswer,
        name: &str,
        address: Option<IpAddr>,
        port: u16,
        offered: &logic::identity::Offered,
    ) -> Decision {
        let host = match self.index.find(name, port) {
            Found::Host(host) => Some(host.name()),
            _ => None,
        };
        let changed = {
            let noticed = self.noticed();
            noticed.changed.iter().filter(|changed| Some(*changed) != host).count()
        };
        let last_good = host.and_then(|host| self.seen.get(host)).map(|seen| seen.date);
        let question = Question {
            name,
            address,
            port,
            offered,
            sshfp,
            run: self.in_run.then_some(Run { changed }),
            last_good,
            now: now(),
        };
        decide(question, &self.index)
    }

    /// The DNS, where the host allows it and its key is not pinned.
    async fn sshfp(&self, name: &str, port: u16, key: &PublicKey) -> SshfpAnswer {
        let Found::Host(host) = self.index.find(name, port) else { return SshfpAnswer::NotAsked };
        if host.sshfp() == Sshfp::Off || host.pin(key).is_some() {
            return SshfpAnswer::NotAsked;
        }
        let hint = host.address().names.into_iter().next();
        let asked = hint.unwrap_or_else(|| host.name().clone());
        let dns = self.dns.get_or_init(|| Dns::new(&Anchor::Root, None).map_err(|error| error.to_string()));
        match dns {
            // The connection waits, under the limit of its key exchange: a name server that is silent is not the host's fault.
            Ok(dns) => match timeout(LOOKUP, dns.sshfp(asked.split_port().0)).await {
                Ok(answer) => answer,
                Err(_) => SshfpAnswer::Failed(format!("no answer within {} s", LOOKUP.as_secs())),
            },
            Err(why) => SshfpAnswer::Failed(why.clone()),
        }
    }

    pub(super) fn noticed(&self) -> MutexGuard<'_, Noticed> {
        self.noticed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// The enrolment queue, oldest first.
    #[must_use]
    pub fn pending(&self) -> Vec<Pending> {
        pending::read(self.places())
    }

    /// Puts a host into the queue, for a program that cannot wait: a second at most for others who write there.
    ///
    /// # Errors
    /// The queue is locked or cannot be written.
    pub fn queue(&self, one: Pending) -> Result<(), IdentityError> {
        pending::add_soon(self.places(), one)
    }

    /// Takes a host out of the queue.
    ///
    /// # Errors
    /// The queue cannot be written.
    pub fn forget_pending(&self, name: &str) -> Result<(), IdentityError> {
        pending::remove(self.places(), name)
    }

    /// The day on which the host that is called so last showed a key of its own.
    #[must_use]
    pub fn last_good(&self, index: &Index, name: &str, port: u16) -> Option<logic::identity::Date> {
        let Found::Host(host) = index.find(name, port) else { return None };
        self.seen().get(host.name()).map(|seen| seen.date)
    }

    /// What connections saw of each host.
    #[must_use]
    pub fn seen(&self) -> BTreeMap<Name, Seen> {
        facts::read(self.places())
    }
}

impl Judge for Identities {
    fn wanted(&self, name: &str) -> Vec<String> {
        self.index.wanted(name, None).into_iter().map(str::to_owned).collect()
    }

    fn judge<'a>(&'a self, name: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let (address, port) = match at {
                Place::Address(address) => (Some(address.ip().to_canonical()), address.port()),
                Place::Jumped { port, .. } => (None, *port),
                Place::Command { port } => (None, *port),
            };
            let (Offered::Key(blob) | Offered::Certificate(blob)) = offered;
            let offered = shown(blob);
            let decision = self.decision(name, address, port, &offered).await;
            let mut noticed = self.noticed();
            for effect in &decision.effects {
                if let Effect::Changed(host) = effect {
                    noticed.changed.insert(host.clone());
                }
            }
            if let (Verdict::Accepted { .. }, logic::identity::Offered::Key(key), Some(host)) =
                (&decision.verdict, &offered, &decision.host)
            {
                noticed.shown.insert(name.to_owned(), (host.clone(), key.clone()));
            }
            if let Verdict::Accepted { note: Some(note) } = &decision.verdict {
                noticed.notes.insert(name.to_owned(), note.clone());
            }
            noticed.effects.extend(decision.effects);
            decision.verdict
        })
    }

    fn announced(&self, name: &str, keys: Vec<PublicKey>) {
        let mut noticed = self.noticed();
        if let Some((host, shown)) = noticed.shown.get(name).cloned() {
            noticed.announced.insert(host, (shown, keys));
        }
    }
}

/// For programs that end at once. Whoever goes on flushes before, where it delays nobody.
impl Drop for Identities {
    fn drop(&mut self) {
        if self.noticed().is_empty() {
            return;
        }
        let places = self.store.places();
        if !Lock::is_free(&places.hosts()) || !Lock::is_free(&places.identity_state()) {
            // This may be any thread: it cannot wait.
            tracing::warn!("what was noticed of the identities of hosts is lost: somebody else writes there");
            return;
        }
        for error in self.flush().failed {
            tracing::warn!("what was noticed of the identities of hosts is lost: {error}");
        }
    }
}

/// What the blob of a host is to the table of decisions: a key, or a certificate whose signature was checked
/// here. A blob with the type of a certificate is never a plain key.
#[must_use]
pub fn shown(blob: &PublicKey) -> logic::identity::Offered {
    use logic::identity::Offered;
    if !is_certificate(blob.algorithm()) {
        return Offered::Key(blob.clone());
    }
    match certificate(blob) {
        Ok(certificate) => Offered::Certificate(Box::new(certificate)),
        Err(why) => Offered::Unreadable(blob.clone(), why),
    }
}

/// Reads a certificate and checks its signature.
///
/// # Errors
/// It is no certificate.
pub fn certificate(blob: &PublicKey) -> Result<HostCertificate, logic::identity::CertificateError> {
    let checked = russh::keys::Certificate::from_bytes(blob.blob()).and_then(|read| {
        // The signature only: time, names and authority are decided elsewhere.
        let authority = read.signature_key().fingerprint(russh::keys::HashAlg::Sha256);
        read.validate_at(read.valid_after(), &[authority])?;
        // The library checks the signature of what it would write itself; what is decided about is what came.
        read.to_bytes()
    });
    let checked = checked.ok().filter(|written| written == blob.blob());
    let signature = if checked.is_some() { Signature::Holds } else { Signature::Wrong };
    HostCertificate::from_blob(blob.blob(), signature)
}

/// Now.
#[must_use]
pub fn now() -> Moment {
    Moment(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// A judge that several connections share.
impl From<Identities> for Arc<dyn Judge> {
    fn from(identities: Identities) -> Self {
        Arc::new(identities)
    }
}

/// How long the DNS is asked about one host: a part of what a connection gives the key exchange, 10 s unless told otherwise.
const LOOKUP: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
