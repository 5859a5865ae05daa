//! The certificates of one directory: files read, certificates in use, and errors. If a pair becomes faulty, the
//! previous one stays in use. No file is read on a worker.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use config::types::Ocsp;
use state::State;
use state::events::{Level, timestamp};
use state::lock::lock;

use super::backend::Authorities;
use super::facts::Validity;
use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::layout::{self, Candidate, DEFAULT_NAME};
use super::lookup::Lookup;
use super::ocsp::Staples;
use super::pair::{self, Pair, Stamp, StapleFile};
use super::scan::{AGAIN, Scan, listed};
use super::standing::{Certificate, CertificateState};
use super::watch::Watched;

/// Configuration of a store. Listeners with the same `Source` share one store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    pub directory: PathBuf,
    /// Passphrase for keys without a passphrase file of their own.
    pub passphrase_file: Option<PathBuf>,
    /// Tells whether responders are asked for staples.
    pub ocsp: Ocsp,
    pub filler: Filler,
}

/// Who puts certificates into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filler {
    /// The operator. A directory without a certificate is an error.
    People,
    /// Penstock's ACME orders, which report a missing certificate themselves.
    Authority,
}

#[derive(Debug)]
pub struct Store {
    source: Source,
    staples: Arc<Staples>,
    authorities: Arc<Authorities>,
    lookup: ArcSwap<Lookup>,
    memory: Mutex<Memory>,
    /// Default certificate that each listener names.
    defaults: Mutex<BTreeMap<Arc<str>, Box<str>>>,
}

/// Result of the last scan.
#[derive(Debug, Default)]
struct Memory {
    /// Candidates by the path of the certificate.
    entries: BTreeMap<PathBuf, Entry>,
    /// Error of the directory itself.
    fault: Option<CertificateFault>,
    /// Reason why changes are not noticed immediately.
    blind: Option<String>,
    /// Errors that were reported to operators, in that order.
    told: Vec<String>,
    scanned: bool,
}

#[derive(Debug)]
struct Entry {
    candidate: Candidate,
    stamp: Option<Stamp>,
    served: Option<Arc<Pair>>,
    fault: Option<CertificateFault>,
    /// Time since when the files are missing.
    missing: Option<Instant>,
}

/// What to do with a certificate whose files are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    AtOnce,
    /// Check again a moment later: the files may be about to be replaced.
    Settled,
}

/// Time after which missing files count as deleted.
const SETTLED: Duration = Duration::from_millis(300);

impl Store {
    /// Makes a store that has read no file.
    pub fn new(source: Source, staples: Arc<Staples>, authorities: Arc<Authorities>) -> Self {
        Self {
            source,
            staples,
            authorities,
            lookup: ArcSwap::default(),
            memory: Mutex::default(),
            defaults: Mutex::default(),
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub fn directory(&self) -> &Path {
        &self.source.directory
    }

    /// Returns the store's name in events and in the list of degraded things.
    pub(super) fn subject(&self) -> String {
        format!("certificates:{}", self.source.directory.display())
    }

    pub(super) fn lookup(&self) -> arc_swap::Guard<Arc<Lookup>> {
        self.lookup.load()
    }

    /// Remembers which default certificate a listener names, to report when it does not exist.
    pub(super) fn set_default(&self, listener: &Arc<str>, default: Option<&str>) {
        let mut defaults = lock(&self.defaults);
        match default {
            Some(name) => defaults.insert(listener.clone(), name.into()),
            None => defaults.remove(listener),
        };
    }

    /// Reads the files that have changed and puts them into use. Blocks while it reads from disk.
    pub(super) fn scan(&self, removal: Removal) -> Scan {
        let mut memory = lock(&self.memory);
        let now = SystemTime::now();
        let layout = match layout::find(&self.source.directory) {
            Ok(layout) => layout,
            Err((path, error)) => {
                // If the directory is unmounted or moved, its last certificates stay in use.
                let serves = memory.entries.values().any(|entry| entry.served.is_some());
                let fault = CertificateFault::unreadable(&path, &error);
                let again = fault.is_passing().then_some(AGAIN);
                let is_to_come = !serves && self.source.filler == Filler::Authority;
                memory.fault = match error.kind() {
                    io::ErrorKind::NotFound if is_to_come => None,
                    _ => Some(fault),
                };
                memory.scanned = true;
                return Scan { directories: vec![self.source.directory.clone()], again, ..Scan::default() };
            }
        };
        let mut scan = Scan { directories: layout.directories.into_iter().collect(), ..Scan::default() };
        let serves = memory.entries.values().any(|entry| entry.served.is_some());
        if layout.candidates.is_empty() && serves {
            memory.fault = Some(CertificateFault::new(&self.source.directory, Kind::Empty));
            return scan;
        }
        memory.fault = None;
        let before = std::mem::take(&mut memory.entries);
        let read = self.read_changed(&layout.candidates, &before, now);
        let first = !std::mem::replace(&mut memory.scanned, true);
        memory.entries = merge(layout.candidates, read, before, removal, now, &mut scan);
        if first {
            scan.changes.clear();
        }
        let pairs = memory
            .entries
            .values()
            .filter_map(|entry| Some((entry.candidate.name.as_str(), entry.served.as_ref()?)));
        let lookup = Lookup::new(pairs, now);
        if lookup.is_empty() && self.source.filler == Filler::People {
            memory.fault = Some(CertificateFault::new(&self.source.directory, Kind::Empty));
        }
        if first {
            let served = memory.entries.values().filter(|entry| entry.served.is_some()).count();
            scan.changes.push(format!(
                "{} for {}",
                text::units::count(served, "certificate"),
                text::units::count(lookup.names(), "name")
            ));
        }
        self.lookup.store(Arc::new(lookup));
        scan
    }

    /// Reads all candidates whose files have changed, on all cores, because parsing keys takes CPU time.
    fn read_changed(
        &self,
        candidates: &[Candidate],
        before: &BTreeMap<PathBuf, Entry>,
        now: SystemTime,
    ) -> Vec<Read> {
        let passphrase_file = self.source.passphrase_file.as_deref();
        let read = |candidate: &Candidate| {
            let stamp = Stamp::take(candidate, passphrase_file, now);
            let before = before.get(&candidate.certificate);
            if let Some(before) = before
                && stamp.is_some()
                && before.stamp == stamp
                && before.candidate == *candidate
                && !before.is_touched_by_time(now)
            {
                return Read::Same;
            }
            let staples = (&*self.staples, self.source.ocsp);
            let pair = pair::load(candidate, passphrase_file, staples, &self.authorities, now);
            let pair = pair.map(Arc::new).map_err(Box::new);
            Read::Fresh(stamp, pair)
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(candidates.len() / 16);
        if threads <= 1 {
            return candidates.iter().map(read).collect();
        }
        let next = AtomicUsize::new(0);
        let mut all: Vec<(usize, Read)> = std::thread::scope(|scope| {
            let work = || {
                let mut done = Vec::new();
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(candidate) = candidates.get(at) else { break done };
                    done.push((at, read(candidate)));
                }
            };
            // If no thread can be started, this thread reads all of them.
            let helpers =
                (1..threads).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok());
            let helpers: Vec<_> = helpers.collect();
            let mut all = work();
            for helper in helpers {
                all.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            all
        });
        all.sort_unstable_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, read)| read).collect()
    }

    /// Records the reason why changes are not noticed immediately. `None` if they are.
    pub(super) fn set_blind(&self, why: Option<String>) {
        lock(&self.memory).blind = why;
    }

    /// Returns the current errors, one sentence each.
    pub fn faults(&self) -> Vec<String> {
        let memory = lock(&self.memory);
        let now = SystemTime::now();
        let mut faults: Vec<String> = Vec::new();
        let serves = memory.entries.values().any(|entry| entry.served.is_some());
        if let Some(fault) = &memory.fault {
            let consequence = if serves { "; the earlier certificates stay in use" } else { "" };
            faults.push(format!("{fault}{consequence}"));
        }
        for entry in memory.entries.values() {
            faults.extend(entry.complaint(now));
            let Some(pair) = &entry.served else { continue };
            let path = entry.candidate.certificate.display();
            faults.extend(pair.complaint(now).map(|complaint| format!("{path}: {complaint}")));
            if let StapleFile::Refused(why) = &pair.file {
                faults.push(why.clone());
            }
        }
        faults.extend(memory.blind.clone());
        let lookup = self.lookup.load();
        for (listener, name) in lock(&self.defaults).iter() {
            if lookup.named(name).is_none() && !lookup.is_empty() {
                faults
                    .push(format!("listener.{listener}.tls.default: no certificate has the name \"{name}\""));
            }
        }
        faults
    }

    /// Reports the changes and errors of a scan to operators.
    pub(super) fn announce(&self, scan: &Scan, state: &State) {
        let subject = self.subject();
        if !scan.changes.is_empty() {
            state.events.record(Level::Info, &subject, listed(&scan.changes));
        }
        let faults = self.faults();
        let faults = newest_first(&mut lock(&self.memory).told, faults);
        if faults.is_empty() {
            state.restore(&subject);
        } else {
            let rest = if self.lookup.load().is_empty() { "no client can connect: " } else { "" };
            state.degrade(&subject, &format!("{rest}{}", listed(&faults)));
        }
    }

    /// Returns every certificate with its state: faulty ones first, then by the time to expiry.
    pub fn report(&self) -> Vec<Certificate> {
        let memory = lock(&self.memory);
        let (now, lookup) = (SystemTime::now(), self.lookup.load());
        let mut all: Vec<_> = memory.entries.values().map(|entry| entry.report(&lookup, now)).collect();
        all.sort_by_key(|certificate| {
            let until = certificate.pair.as_ref().map(|pair| pair.facts.not_after);
            (certificate.standing == CertificateState::Ok, until)
        });
        all
    }

    /// Returns the NAME of the files of each certificate in use, and its expiry in seconds of Unix time.
    pub fn expiries(&self) -> Vec<(String, u64)> {
        let memory = lock(&self.memory);
        let expiry = |entry: &Entry| {
            let until = entry.served.as_ref()?.facts.not_after.duration_since(SystemTime::UNIX_EPOCH);
            Some((entry.candidate.name.clone(), until.map_or(0, |until| until.as_secs())))
        };
        memory.entries.values().filter_map(expiry).collect()
    }

    /// Returns for each certificate with a staple the NAME of its files, and the start and end of the staple's validity
    /// in seconds of Unix time.
    pub fn staple_times(&self) -> Vec<(String, u64, u64)> {
        let memory = lock(&self.memory);
        let now = SystemTime::now();
        let seconds =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let times = |entry: &Entry| {
            let good = entry.served.as_ref()?.staple(now)?.good;
            Some((entry.candidate.name.clone(), seconds(good.this_update), seconds(good.until)))
        };
        memory.entries.values().filter_map(times).collect()
    }

    /// Returns the OCSP responses of all directories.
    pub fn staples(&self) -> &Arc<Staples> {
        &self.staples
    }

    /// Returns the number of certificates in each state.
    pub fn count(&self) -> [(CertificateState, usize); CertificateState::ALL.len()] {
        let memory = lock(&self.memory);
        let now = SystemTime::now();
        CertificateState::ALL.map(|standing| {
            (standing, memory.entries.values().filter(|entry| entry.standing(now) == standing).count())
        })
    }
}

impl Watched for Store {
    fn scan(&self) -> Scan {
        Self::scan(self, Removal::Settled)
    }

    fn places(&self) -> Vec<PathBuf> {
        vec![self.directory().to_owned()]
    }

    fn set_blind(&self, why: Option<String>) {
        Self::set_blind(self, why);
    }

    fn announce(&self, scan: &Scan, state: &State) {
        Self::announce(self, scan, state);
    }
}

/// Result of reading a candidate.
enum Read {
    Same,
    /// State of the files, and their contents.
    Fresh(Option<Stamp>, Result<Arc<Pair>, Box<CertificateFault>>),
}

fn merge(
    candidates: Vec<Candidate>,
    read: Vec<Read>,
    mut before: BTreeMap<PathBuf, Entry>,
    removal: Removal,
    now: SystemTime,
    scan: &mut Scan,
) -> BTreeMap<PathBuf, Entry> {
    let mut entries = BTreeMap::new();
    for (candidate, read) in candidates.into_iter().zip(read) {
        let id = candidate.certificate.clone();
        let old = before.remove(&id);
        let entry = match (read, old) {
            (Read::Same, Some(mut old)) => {
                old.missing = None;
                old
            }
            // `Same` is returned only for candidates that were there before.
            (Read::Same, None) => continue,
            (Read::Fresh(stamp, result), old) => {
                let result = result.map_err(|fault| *fault);
                let served = old.and_then(|old| old.served);
                let (served, fault) = choose(&candidate, served, result, now, &mut scan.changes);
                let is_passing = fault.as_ref().is_some_and(CertificateFault::is_passing);
                if is_passing {
                    scan.look_again(AGAIN);
                }
                // A file that could not be read is read again even if it has not changed.
                let stamp = stamp.filter(|_| !is_passing);
                Entry { candidate, stamp, served, fault, missing: None }
            }
        };
        entries.insert(id, entry);
    }
    for (id, mut gone) in before {
        let since = *gone.missing.get_or_insert_with(Instant::now);
        let left = SETTLED.saturating_sub(since.elapsed());
        if removal == Removal::Settled && !left.is_zero() {
            scan.look_again(left);
            gone.stamp = None;
            entries.insert(id, gone);
        } else if gone.served.is_some() {
            scan.changes.push(format!("removed: {}", gone.candidate.name));
        }
    }
    entries
}

/// Chooses the pair that is used from now on, and returns the error of the pair that was read.
fn choose(
    candidate: &Candidate,
    served: Option<Arc<Pair>>,
    result: Result<Arc<Pair>, CertificateFault>,
    now: SystemTime,
    changes: &mut Vec<String>,
) -> (Option<Arc<Pair>>, Option<CertificateFault>) {
    let fresh = match result {
        Ok(fresh) if fresh.facts.names.is_empty() && candidate.name != DEFAULT_NAME => {
            return (served, Some(CertificateFault::new(&candidate.certificate, Kind::NoNames)));
        }
        Ok(fresh) => fresh,
        Err(fault) => return (served, Some(fault)),
    };
    let is_better = |old: &Pair| old.facts.validity(now) == Validity::Valid;
    let untimely = CertificateFault::untimely(&candidate.certificate, &fresh.facts, now);
    if let (Some(old), Some(fault)) = (&served, untimely)
        && is_better(old)
        && old.chain() != fresh.chain()
    {
        return (served, Some(fault));
    }
    let until = timestamp(fresh.facts.not_after);
    match &served {
        None => changes.push(format!("new: {} until {until}", candidate.name)),
        Some(old) if old.chain() != fresh.chain() => {
            changes.push(format!("renewed: {} until {until}", candidate.name));
        }
        Some(old) if old.file != fresh.file && matches!(fresh.file, StapleFile::Good(_)) => {
            changes.push(format!("new staple: {}", candidate.name));
        }
        Some(_) => {}
    }
    (Some(fresh), None)
}

impl Entry {
    /// Returns true if the passing of time alone may have changed which certificate is used.
    fn is_touched_by_time(&self, now: SystemTime) -> bool {
        let kind = self.fault.as_ref().map(|fault| &fault.kind);
        let over = |pair: &Arc<Pair>| matches!(pair.file, StapleFile::Good(until) if until <= now);
        matches!(kind, Some(Kind::Expired(_) | Kind::NotYetValid(_)))
            || self.served.as_ref().is_some_and(over)
    }

    fn standing(&self, now: SystemTime) -> CertificateState {
        match (&self.served, &self.fault) {
            (None, _) => CertificateState::Refused,
            (Some(_), Some(_)) => CertificateState::OldInUse,
            (Some(pair), None) => match pair.facts.validity(now) {
                Validity::Expired => CertificateState::Expired,
                Validity::NotYet => CertificateState::NotYetValid,
                Validity::Valid if pair.is_revoked() => CertificateState::Revoked,
                Validity::Valid => CertificateState::Ok,
            },
        }
    }

    fn complaint(&self, now: SystemTime) -> Option<String> {
        match self.standing(now) {
            // The pair itself reports its revocation, even if its files are faulty.
            CertificateState::Ok | CertificateState::Revoked => None,
            CertificateState::OldInUse => {
                Some(format!("{}; the earlier certificate stays in use", self.fault.as_ref()?))
            }
            CertificateState::Refused => Some(self.fault.as_ref()?.to_string()),
            CertificateState::Expired | CertificateState::NotYetValid => {
                let facts = &self.served.as_ref()?.facts;
                let fault = CertificateFault::untimely(&self.candidate.certificate, facts, now)?;
                Some(format!("{fault}; it is served for lack of another; clients reject it"))
            }
        }
    }

    fn report(&self, lookup: &Lookup, now: SystemTime) -> Certificate {
        let standing = self.standing(now);
        let mut notes = self.served.as_ref().map(|pair| pair.notes.clone()).unwrap_or_default();
        let of_staple = self.served.as_ref().and_then(|pair| pair.complaint(now));
        let reason = if standing == CertificateState::Revoked {
            of_staple
        } else {
            notes.extend(of_staple);
            self.complaint(now)
        };
        if self.served.as_ref().is_some_and(|pair| !lookup.serves(pair)) {
            notes.push("not served: newer certificates cover all its names".to_owned());
        }
        Certificate {
            name: self.candidate.name.clone(),
            files: self.candidate.files().map(Path::to_owned).collect(),
            pair: self.served.clone(),
            standing,
            reason,
            notes,
        }
    }
}

/// Orders errors for the report: new errors first, so that known ones do not hide them.
fn newest_first(told: &mut Vec<String>, faults: Vec<String>) -> Vec<String> {
    let (old, mut all): (Vec<_>, Vec<_>) = faults.into_iter().partition(|fault| told.contains(fault));
    all.extend(told.drain(..).filter(|fault| old.contains(fault)));
    told.clone_from(&all);
    all
}

#[cfg(test)]
mod tests;
