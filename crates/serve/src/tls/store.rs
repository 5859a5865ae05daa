//! A certificate directory in service: what was read, what is served, and what is wrong with the rest.
//! A pair that is broken leaves the one from before in service. Reading happens where it holds up no worker.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use config::types::Ocsp;

use super::facts::Validity;
use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::layout::{self, Candidate, DEFAULT_NAME};
use super::lookup::Lookup;
use super::ocsp::Staples;
use super::pair::{self, Pair, Stamp, StapleFile};
use super::scan::{AGAIN, Scan, listed};
use super::standing::{Certificate, Standing};
use super::watch::Watched;
use crate::events::{Level, timestamp};
use crate::lock::lock;
use crate::plural::plural;
use crate::state::State;

/// What a store is made of: listeners that name the same share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Directory of certificates.
    pub directory: PathBuf,
    /// Passphrase of keys that have none of their own.
    pub passphrase_file: Option<PathBuf>,
    /// Whether responders are asked for staples.
    pub ocsp: Ocsp,
    /// Who puts certificates there.
    pub filler: Filler,
}

/// Who puts certificates into a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filler {
    /// Somebody else: without one it is a fault.
    People,
    /// Our own orders from an authority, which say themselves what is missing.
    Authority,
}

/// The certificates of one directory.
#[derive(Debug)]
pub struct Store {
    source: Source,
    staples: Arc<Staples>,
    lookup: ArcSwap<Lookup>,
    memory: Mutex<Memory>,
    /// Listeners with the certificate that they name as default.
    defaults: Mutex<BTreeMap<Arc<str>, Box<str>>>,
}

/// What is known of the directory.
#[derive(Debug, Default)]
struct Memory {
    /// By the path of the certificate.
    entries: BTreeMap<PathBuf, Entry>,
    /// The directory itself cannot be used as it is.
    fault: Option<CertificateFault>,
    /// Why changes are not noticed at once.
    blind: Option<String>,
    /// The faults that people were told of, in that order.
    told: Vec<String>,
    scanned: bool,
}

#[derive(Debug)]
struct Entry {
    candidate: Candidate,
    stamp: Option<Stamp>,
    served: Option<Arc<Pair>>,
    fault: Option<CertificateFault>,
    /// Since when its files are gone.
    missing: Option<Instant>,
}

/// What to do with a certificate whose files are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// Stop serving it.
    AtOnce,
    /// Look again a moment later: it may be about to be replaced.
    Settled,
}

/// Files that are gone for so long are gone.
const SETTLED: Duration = Duration::from_millis(300);

impl Store {
    /// Nothing is read yet.
    pub fn new(source: Source, staples: Arc<Staples>) -> Self {
        Self {
            source,
            staples,
            lookup: ArcSwap::default(),
            memory: Mutex::default(),
            defaults: Mutex::default(),
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.source.directory
    }

    /// What events and degraded things name it by.
    pub(super) fn subject(&self) -> String {
        format!("certificates:{}", self.source.directory.display())
    }

    pub(super) fn lookup(&self) -> arc_swap::Guard<Arc<Lookup>> {
        self.lookup.load()
    }

    /// Remembers which certificate a listener wants for clients that name none, to say so when there is none.
    pub(super) fn set_default(&self, listener: &Arc<str>, default: Option<&str>) {
        let mut defaults = lock(&self.defaults);
        match default {
            Some(name) => defaults.insert(listener.clone(), name.into()),
            None => defaults.remove(listener),
        };
    }

    /// Reads what has changed and serves it. Takes as long as the disk does.
    pub(super) fn scan(&self, removal: Removal) -> Scan {
        let mut memory = lock(&self.memory);
        let now = SystemTime::now();
        let layout = match layout::find(&self.source.directory) {
            Ok(layout) => layout,
            Err((path, error)) => {
                // An unmounted or moved directory takes nothing out of service.
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
                plural(served, "certificate"),
                plural(lookup.names(), "name")
            ));
        }
        self.lookup.store(Arc::new(lookup));
        scan
    }

    /// Reads all candidates that are not as they were, on all cores: keys cost time.
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
            let pair = pair::load(candidate, passphrase_file, (&self.staples, self.source.ocsp), now);
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
            // Without threads this one does it all.
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

    /// Says that changes are not noticed at once, and why; or that they are.
    pub(super) fn set_blind(&self, why: Option<String>) {
        lock(&self.memory).blind = why;
    }

    /// What is wrong, each in a sentence.
    pub fn faults(&self) -> Vec<String> {
        let memory = lock(&self.memory);
        let now = SystemTime::now();
        let mut faults: Vec<String> = Vec::new();
        let serves = memory.entries.values().any(|entry| entry.served.is_some());
        if let Some(fault) = &memory.fault {
            let consequence = if serves { "; the certificates from before serve on" } else { "" };
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

    /// Tells people what a look has changed, and what is wrong.
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

    /// Every certificate with what is known of it: broken ones first, then by the time that is left.
    pub fn report(&self) -> Vec<Certificate> {
        let memory = lock(&self.memory);
        let (now, lookup) = (SystemTime::now(), self.lookup.load());
        let mut all: Vec<_> = memory.entries.values().map(|entry| entry.report(&lookup, now)).collect();
        all.sort_by_key(|certificate| {
            let until = certificate.pair.as_ref().map(|pair| pair.facts.not_after);
            (certificate.standing == Standing::Ok, until)
        });
        all
    }

    /// NAME of the files of each certificate that is served, and when that ends, in seconds of Unix time.
    pub fn expiries(&self) -> Vec<(String, u64)> {
        let memory = lock(&self.memory);
        let expiry = |entry: &Entry| {
            let until = entry.served.as_ref()?.facts.not_after.duration_since(SystemTime::UNIX_EPOCH);
            Some((entry.candidate.name.clone(), until.map_or(0, |until| until.as_secs())))
        };
        memory.entries.values().filter_map(expiry).collect()
    }

    /// NAME of the files of each certificate that has a staple, and when what that says was known and when it ends, in
    /// seconds of Unix time.
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

    /// The staples of this and all other directories.
    pub fn staples(&self) -> &Arc<Staples> {
        &self.staples
    }

    /// How many certificates there are in each state.
    pub fn count(&self) -> [(Standing, usize); 5] {
        let memory = lock(&self.memory);
        let now = SystemTime::now();
        Standing::ALL.map(|standing| {
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

/// What reading a candidate gave.
enum Read {
    /// Nothing has changed.
    Same,
    /// How the files were, and what was in them.
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
            // Same is only said of what was there before.
            (Read::Same, None) => continue,
            (Read::Fresh(stamp, result), old) => {
                let result = result.map_err(|fault| *fault);
                let served = old.and_then(|old| old.served);
                let (served, fault) = choose(&candidate, served, result, now, &mut scan.changes);
                let is_passing = fault.as_ref().is_some_and(CertificateFault::is_passing);
                if is_passing {
                    scan.look_again(AGAIN);
                }
                // What could not be read is read again although it has not changed.
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

/// The pair that serves from now on, and what is wrong with the one that was read.
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
    /// Whether time alone may have changed what should be served.
    fn is_touched_by_time(&self, now: SystemTime) -> bool {
        let kind = self.fault.as_ref().map(|fault| &fault.kind);
        let over = |pair: &Arc<Pair>| matches!(pair.file, StapleFile::Good(until) if until <= now);
        matches!(kind, Some(Kind::Expired(_) | Kind::NotYetValid(_)))
            || self.served.as_ref().is_some_and(over)
    }

    fn standing(&self, now: SystemTime) -> Standing {
        match (&self.served, &self.fault) {
            (None, _) => Standing::Refused,
            (Some(_), Some(_)) => Standing::KeptOld,
            (Some(pair), None) if pair.facts.validity(now) != Validity::Valid => Standing::Untimely,
            (Some(pair), None) if pair.is_revoked() => Standing::Revoked,
            (Some(_), None) => Standing::Ok,
        }
    }

    fn complaint(&self, now: SystemTime) -> Option<String> {
        match self.standing(now) {
            // Of one that is revoked its pair complains, whatever else there is to say of its files.
            Standing::Ok | Standing::Revoked => None,
            Standing::KeptOld => {
                Some(format!("{}; the certificate from before serves on", self.fault.as_ref()?))
            }
            Standing::Refused => Some(self.fault.as_ref()?.to_string()),
            Standing::Untimely => {
                let facts = &self.served.as_ref()?.facts;
                let fault = CertificateFault::untimely(&self.candidate.certificate, facts, now)?;
                Some(format!("{fault}; it is served, as there is no other: clients refuse it"))
            }
        }
    }

    fn report(&self, lookup: &Lookup, now: SystemTime) -> Certificate {
        let standing = self.standing(now);
        let mut notes = self.served.as_ref().map(|pair| pair.notes.clone()).unwrap_or_default();
        let of_staple = self.served.as_ref().and_then(|pair| pair.complaint(now));
        let reason = if standing == Standing::Revoked {
            of_staple
        } else {
            notes.extend(of_staple);
            self.complaint(now)
        };
        if self.served.as_ref().is_some_and(|pair| !lookup.serves(pair)) {
            notes.push("others that were issued later are served for all its names".to_owned());
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

/// Faults in the order in which people should hear of them: what is new must not hide behind what they know.
fn newest_first(told: &mut Vec<String>, faults: Vec<String>) -> Vec<String> {
    let (old, mut all): (Vec<_>, Vec<_>) = faults.into_iter().partition(|fault| told.contains(fault));
    all.extend(told.drain(..).filter(|fault| old.contains(fault)));
    told.clone_from(&all);
    all
}

#[cfg(test)]
mod tests;
