//! The judge: decides with the index, and keeps what must be recorded (`identity/noticed.rs`). The SSH client of
//! penstock, `penstock host why`, and OpenSSH (through `identity/known_hosts.rs`) all call [`Identities::decision`],
//! with the result of [`shown`] for the host's key blob.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hosts::fleet::ending::Reason;
use hosts::identity::{
    Decision, Effect, Facts, Found, HostCertificate, Index, KnownHosts, KnownLine, Moment, Name, Question,
    Run, Signature, Sshfp, SshfpAnswer, decide, is_certificate, known_to_ssh, same_machine, swapped,
};
use hosts::ssh::key::PublicKey;
use tokio::time::timeout;

use super::IdentityError;
use super::dns::{Anchor, Dns};
use super::facts::{self, Seen};
use super::files::Lock;
use super::noticed::Noticed;
use super::pending::{self, Pending};
use super::store::Store;
use crate::judge::{BoxFuture, HostVerifier, Offered, Place, Verdict};

/// All identities of one user at the start of a run, and the changes that the run noticed. [`Self::flush`] or the drop
/// writes the changes.
pub struct Identities {
    pub(super) store: Store,
    pub(super) index: Index,
    pub(super) seen: BTreeMap<Name, Seen>,
    /// Created at its first use, unless the caller set one.
    dns: OnceLock<Result<Dns, String>>,
    noticed: Mutex<Noticed>,
    /// `~/.ssh/known_hosts`, read for the first unknown host.
    known_hosts: OnceLock<KnownHosts>,
    /// If true, the message about a changed key says how many other hosts have changed keys.
    in_run: bool,
}

impl Identities {
    /// Reads all identities.
    ///
    /// # Errors
    /// The errors of [`Store::load`].
    pub fn load(store: Store) -> Result<Self, IdentityError> {
        let index = store.load()?;
        let mut identities = Self::of(store, index);
        identities.seen = facts::read(identities.store.places());
        Ok(identities)
    }

    /// Sets the resolver for hosts that allow the DNS to vouch for them. Without it, the system's name servers and the
    /// keys of the DNS root are used.
    #[must_use]
    pub fn with_dns(mut self, dns: Dns) -> Self {
        self.dns = OnceLock::from(Ok(dns));
        self
    }

    /// Prepares for a run with many hosts: the message about a changed key says how many other hosts have changed keys.
    #[must_use]
    pub fn in_run(mut self) -> Self {
        self.in_run = true;
        self
    }

    /// Uses only the identities of `index`, a part of all. If this part accepts a host, all identities would accept it
    /// too; if it refuses a host, the caller must ask all.
    pub(super) fn of(store: Store, index: Index) -> Self {
        Self {
            store,
            index,
            seen: BTreeMap::new(),
            dns: OnceLock::new(),
            noticed: Mutex::default(),
            known_hosts: OnceLock::new(),
            in_run: false,
        }
    }

    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the number of hosts that showed another key than their pin in this run.
    #[must_use]
    pub fn changed(&self) -> usize {
        self.noticed().changed.len()
    }

    /// Returns and removes the messages about accepted hosts: by host name, one line each.
    pub fn take_notes(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.noticed().notes)
    }

    /// Returns notes about several hosts of the run: those that were swapped, and those that are one machine. Each begins
    /// with the name of one of them.
    #[must_use]
    pub fn notes_of_several(&self) -> Vec<(String, String)> {
        let noticed = self.noticed();
        let pairs = noticed.showed_other.iter().filter(|(host, other)| host < other);
        let pairs = pairs.filter(|(host, other)| noticed.showed_other.get(*other) == Some(*host));
        let mut notes: Vec<_> = pairs.map(|(host, other)| (host.to_string(), swapped(host, other))).collect();
        let mut names: HashMap<&PublicKey, Vec<&str>> = HashMap::new();
        for (name, (_, key)) in &noticed.shown {
            names.entry(key).or_default().push(name);
        }
        let mut same: Vec<_> = names.into_iter().filter(|(_, names)| names.len() > 1).collect();
        same.iter_mut().for_each(|(_, names)| names.sort_unstable());
        same.sort_unstable_by(|(_, one), (_, other)| one.cmp(other));
        notes.extend(same.into_iter().map(|(key, names)| (names[0].to_owned(), same_machine(&names, key))));
        notes
    }

    /// Notes the algorithms that were negotiated with a host, for the audit.
    pub fn learned(&self, name: &str, port: u16, learned: &crate::Facts) {
        let Found::Host(host) = self.index.find(name, port) else { return };
        let until = match &learned.identity {
            Some(Offered::Certificate(blob)) => certificate(blob).ok().map(|read| read.valid_before),
            _ => None,
        };
        let negotiated = learned.negotiated.as_ref();
        let strict = |strict| match strict {
            crate::Strict::Yes => hosts::identity::Strict::Yes,
            crate::Strict::No => hosts::identity::Strict::No,
        };
        let facts = Facts {
            kex: negotiated.map(|negotiated| negotiated.kex.clone()),
            strict: negotiated.map(|negotiated| strict(negotiated.strict)),
            // The maximum value means that the certificate never expires.
            certificate_until: until.filter(|until| *until != u64::MAX),
            sshfp: None,
            refused: None,
        };
        self.noticed().facts.insert(host.name().clone(), facts);
    }

    /// Decides about a host without recording anything: the caller gets the effects.
    pub async fn decision(
        &self,
        name: &str,
        address: Option<IpAddr>,
        port: u16,
        offered: &hosts::identity::Offered,
    ) -> Decision {
        let sshfp = self.sshfp(name, port, offered.key()).await;
        self.decision_with(&sshfp, name, address, port, offered)
    }

    /// Decides with a known answer of the DNS.
    pub(super) fn decision_with(
        &self,
        sshfp: &SshfpAnswer,
        name: &str,
        address: Option<IpAddr>,
        port: u16,
        offered: &hosts::identity::Offered,
    ) -> Decision {
        let host = match self.index.find(name, port) {
            Found::Host(host) => Some(host.name()),
            _ => None,
        };
        let changed = {
            let noticed = self.noticed();
            noticed.changed.iter().filter(|changed| Some(*changed) != host).count()
        };
        let last_good = host.and_then(|host| self.seen.get(host)).and_then(|seen| seen.date);
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
        let mut decision = decide(question, &self.index);
        if let Verdict::Refused { reason: Reason::UnknownHost, advice, .. } = &mut decision.verdict
            && let Some((line, name)) = self.known_to_ssh(name, address, port, offered.key())
        {
            *advice = known_to_ssh(advice, line, &name);
        }
        decision
    }

    /// Finds the line of `~/.ssh/known_hosts` with the key of an unknown host, and the name in it.
    fn known_to_ssh(
        &self,
        name: &str,
        address: Option<IpAddr>,
        port: u16,
        key: &PublicKey,
    ) -> Option<(&KnownLine, Name)> {
        let known = self.known_hosts.get_or_init(|| {
            let file = sys::directories::home().ok().map(|home| home.join(".ssh/known_hosts"));
            // Without the file, or with one that cannot be read, the advice is only shorter.
            let is_file = |path: &PathBuf| fs::metadata(path).is_ok_and(|about| about.is_file());
            let text = file.filter(is_file).and_then(|path| fs::read_to_string(path).ok());
            KnownHosts::parse(&text.unwrap_or_default())
        });
        let names = [Some(name.to_owned()), address.map(|address| address.to_string())];
        let names = names.iter().flatten().filter_map(|name| Name::with_port(name, port).ok());
        names.filter_map(|name| Some((known.with_key(name.as_str(), key)?, name))).next()
    }

    /// Asks the DNS for SSHFP records if the host allows it and the key is not pinned.
    async fn sshfp(&self, name: &str, port: u16, key: &PublicKey) -> SshfpAnswer {
        let Found::Host(host) = self.index.find(name, port) else { return SshfpAnswer::NotAsked };
        if host.sshfp() == Sshfp::Off || host.pin(key).is_some() {
            return SshfpAnswer::NotAsked;
        }
        let hint = host.address().names.into_iter().next();
        let asked = hint.unwrap_or_else(|| host.name().clone());
        let dns = self.dns.get_or_init(|| Dns::new(&Anchor::Root, None).map_err(|error| error.to_string()));
        match dns {
            // The connection waits for the answer within the timeout of its key exchange: a silent name server must not
            // fail the host.
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
    /// Returns the enrolment queue, oldest host first.
    #[must_use]
    pub fn pending(&self) -> Vec<Pending> {
        pending::read(self.places())
    }

    /// Adds a host to the queue. Waits at most one second for other writers, because OpenSSH waits for this program.
    ///
    /// # Errors
    /// The queue is locked or cannot be written.
    pub fn queue(&self, one: Pending) -> Result<(), IdentityError> {
        pending::add_soon(self.places(), one)
    }

    /// Removes a host from the queue.
    ///
    /// # Errors
    /// The queue cannot be written.
    pub fn forget_pending(&self, name: &str) -> Result<(), IdentityError> {
        pending::remove(self.places(), name)
    }

    /// Returns the day on which the host with this name last showed its own key.
    #[must_use]
    pub fn last_good(&self, index: &Index, name: &str, port: u16) -> Option<hosts::identity::Date> {
        let Found::Host(host) = index.find(name, port) else { return None };
        self.seen().get(host.name()).and_then(|seen| seen.date)
    }

    #[must_use]
    pub fn seen(&self) -> BTreeMap<Name, Seen> {
        facts::read(self.places())
    }
}

impl HostVerifier for Identities {
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
                if let Effect::Changed { host, .. } = effect {
                    noticed.changed.insert(host.clone());
                }
                if let Effect::ShowedKeyOf { host, other } = effect {
                    noticed.showed_other.insert(host.clone(), other.clone());
                }
            }
            if let (Verdict::Accepted { .. }, hosts::identity::Offered::Key(key), Some(host)) =
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

/// The drop writes the changes of programs that end at once. Longer programs call `flush` earlier, at a time when it
/// delays no connection.
impl Drop for Identities {
    fn drop(&mut self) {
        if self.noticed().is_empty() {
            return;
        }
        let places = self.store.places();
        if !Lock::is_free(&places.hosts()) || !Lock::is_free(&places.identity_state()) {
            // The drop may run on any thread, so it must not wait for a lock.
            tracing::warn!(
                "what was learnt of the identities of hosts is lost: another process is writing there"
            );
            return;
        }
        for error in self.flush().failed {
            tracing::warn!("what was learnt of the identities of hosts is lost: {error}");
        }
    }
}

/// Converts a host's key blob for the table of decisions: to a key, or to a certificate whose signature was verified
/// here. A blob with a certificate type never becomes a plain key.
#[must_use]
pub fn shown(blob: &PublicKey) -> hosts::identity::Offered {
    use hosts::identity::Offered;
    if !is_certificate(blob.algorithm()) {
        return Offered::Key(blob.clone());
    }
    match certificate(blob) {
        Ok(certificate) => Offered::Certificate(Box::new(certificate)),
        Err(why) => Offered::Unreadable(blob.clone(), why),
    }
}

/// Parses a certificate and verifies its signature.
///
/// # Errors
/// The blob is not a certificate.
pub fn certificate(blob: &PublicKey) -> Result<HostCertificate, hosts::identity::CertificateError> {
    let checked = russh::keys::Certificate::from_bytes(blob.blob()).and_then(|read| {
        // Only the signature is verified here: `hosts` decides about time, names and authority.
        let authority = read.signature_key().fingerprint(russh::keys::HashAlg::Sha256);
        read.validate_at(read.valid_after(), &[authority])?;
        // The library verifies the signature over its own encoding; the comparison below makes sure that it equals the
        // received blob.
        read.to_bytes()
    });
    let checked = checked.ok().filter(|written| written == blob.blob());
    let signature = if checked.is_some() { Signature::Holds } else { Signature::Wrong };
    HostCertificate::from_blob(blob.blob(), signature)
}

#[must_use]
pub fn now() -> Moment {
    Moment(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

impl From<Identities> for Arc<dyn HostVerifier> {
    fn from(identities: Identities) -> Self {
        Arc::new(identities)
    }
}

/// Timeout of the DNS lookup for one host. It is part of the timeout of the key exchange, 10 s by default.
const LOOKUP: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests;
