//! CAs and revocation lists for client certificates, read from files. If a file becomes unreadable or malformed, its
//! last good contents stay in use. No file is read on a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use config::types::{ClientCertificates, UnknownRevocation};
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, DistinguishedName, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, Der, TrustAnchor};
use state::State;
use state::events::{Level, timestamp};
use state::lock::lock;
use sys::file;
use x509_cert::crl::CertificateList;
use x509_cert::der::Decode;

use super::super::fault::CertificateFault;
use super::super::pem_file::{FileStamp, file_stamp};
use super::super::scan::{AGAIN, Scan, listed};
use super::super::sha256::{Digest, digest};
use super::super::watch::Watched;

/// Configuration that CAs and revocation lists are read from. Listeners with the same `TrustSource` share one
/// [`Trust`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TrustSource {
    ca: PathBuf,
    crls: Vec<PathBuf>,
    unknown: UnknownRevocation,
}

impl From<&ClientCertificates> for TrustSource {
    fn from(settings: &ClientCertificates) -> Self {
        Self { ca: settings.ca.clone(), crls: settings.crls.clone(), unknown: settings.unknown_revocation }
    }
}

/// Largest file that is read: enough for 500,000 revoked certificates or 10,000 CAs.
const FILE_LIMIT: u64 = 32 * 1024 * 1024;

/// Largest list of CA names, in bytes, that is sent to clients. The names help a client with several certificates to
/// choose one. Every handshake carries the list, and RFC 8446 section 4.2.4 limits it to 65,535 bytes.
const LONGEST_HINT: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct Trust {
    source: TrustSource,
    anchors: ArcSwap<Anchors>,
    memory: Mutex<Memory>,
}

/// Verifier of client certificates. Immutable: a change replaces the whole value.
#[derive(Debug)]
pub(crate) struct Anchors {
    verifier: Result<Arc<dyn ClientCertVerifier>, Missing>,
    hints: Vec<DistinguishedName>,
    digest: Digest,
}

/// Reason why every client is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Authorities,
    Lists,
}

impl Anchors {
    /// Returns the verifier, or the reason why no certificate can be verified.
    pub(crate) fn verifier(&self) -> Result<&dyn ClientCertVerifier, rustls::Error> {
        match &self.verifier {
            Ok(verifier) => Ok(&**verifier),
            Err(Missing::Authorities) => Err(CertificateError::UnknownIssuer.into()),
            Err(Missing::Lists) => Err(CertificateError::UnknownRevocationStatus.into()),
        }
    }

    /// Returns the CA names that are sent to clients. Empty if the list would be longer than [`LONGEST_HINT`].
    pub(crate) fn authority_names(&self) -> &[DistinguishedName] {
        &self.hints
    }

    /// Returns a hash of all CAs, revocation lists, and the rules for their use.
    pub(crate) fn digest(&self) -> &Digest {
        &self.digest
    }
}

#[derive(Debug, Default)]
struct Memory {
    files: BTreeMap<PathBuf, Entry>,
    /// Errors of directories.
    faults: Vec<String>,
    blind: Option<String>,
    scanned: bool,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    /// Path in the configuration through which this file was found.
    root: PathBuf,
    stamp: Option<FileStamp>,
    held: LoadedTrust,
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Authorities,
    Lists,
}

#[derive(Clone, Debug, Default)]
struct LoadedTrust {
    anchors: Vec<TrustAnchor<'static>>,
    lists: Vec<List>,
    digest: Digest,
}

#[derive(Clone, Debug)]
struct List {
    der: CertificateRevocationListDer<'static>,
    until: Option<SystemTime>,
}

impl Trust {
    /// Makes a `Trust` that has read no file and accepts no client.
    pub(crate) fn new(source: TrustSource) -> Self {
        let none =
            Anchors { verifier: Err(Missing::Authorities), hints: Vec::new(), digest: Digest::default() };
        Self { source, anchors: ArcSwap::from_pointee(none), memory: Mutex::default() }
    }

    pub(crate) fn source(&self) -> &TrustSource {
        &self.source
    }

    pub(crate) fn anchors(&self) -> Arc<Anchors> {
        self.anchors.load_full()
    }

    /// Returns the name of this `Trust` in events and in the list of degraded things.
    pub(crate) fn subject(&self) -> String {
        format!("client-certificates:{}", self.source.ca.display())
    }

    fn roots(&self) -> impl Iterator<Item = (&Path, Kind)> {
        let lists = self.source.crls.iter().map(|path| (path.as_path(), Kind::Lists));
        [(self.source.ca.as_path(), Kind::Authorities)].into_iter().chain(lists)
    }

    /// Reads the files that have changed and puts their contents into use. Blocks while it reads from disk.
    pub(crate) fn read(&self) -> Scan {
        let mut memory = lock(&self.memory);
        let now = SystemTime::now();
        let mut scan = Scan::default();
        let mut before = std::mem::take(&mut memory.files);
        let mut faults = Vec::new();
        let mut files = BTreeMap::new();
        for (root, kind) in self.roots() {
            let mut found = match find(root, kind, &mut scan.directories) {
                Ok(found) => found,
                Err(fault) => {
                    if fault.is_passing() {
                        scan.look_again(AGAIN);
                    }
                    faults.push(fault.to_string());
                    Vec::new()
                }
            };
            if found.is_empty() {
                // If a directory is unmounted or empty, its last contents stay in use.
                let kept =
                    before.iter().filter(|(_, entry)| entry.root == root).map(|(path, _)| path.clone());
                found = kept.collect();
            }
            for path in found {
                let old = before.remove(&path);
                let entry = match old {
                    Some(old) if old.stamp.is_some() && old.stamp == file_stamp(&path, now) => old,
                    old => read_file(&path, root, kind, old, now, &mut scan),
                };
                files.insert(path, entry);
            }
        }
        memory.files = files;
        memory.faults = faults;
        let first = !std::mem::replace(&mut memory.scanned, true);
        let (anchors, counts) = combine(&memory.files, &self.source);
        if anchors.digest != self.anchors.load().digest {
            if !first {
                scan.changes.push(format!("in service: {counts}"));
            }
            self.anchors.store(Arc::new(anchors));
        }
        scan
    }

    /// Returns the current errors, one sentence each.
    pub(crate) fn faults(&self) -> Vec<String> {
        let memory = lock(&self.memory);
        let now = SystemTime::now();
        let mut faults = memory.faults.clone();
        for (path, entry) in &memory.files {
            faults.extend(entry.fault.clone());
            let old =
                entry.held.lists.iter().filter_map(|list| list.until).filter(|until| *until < now).min();
            if let Some(until) = old {
                let consequence = match self.source.unknown {
                    UnknownRevocation::Refuse => {
                        "client certificates of its CA are rejected until a newer list is there"
                    }
                    UnknownRevocation::Allow => "it is used all the same",
                };
                let (path, until) = (path.display(), timestamp(until));
                faults.push(format!("{path}: this revocation list was valid until {until}; {consequence}"));
            }
        }
        match self.anchors.load().verifier {
            Ok(_) => {}
            Err(Missing::Authorities) => {
                let ca = self.source.ca.display();
                faults.push(format!("{ca}: holds no CA certificate: every client certificate is rejected"));
            }
            Err(Missing::Lists) => {
                faults.push("there is no revocation list: every client certificate is rejected".to_owned())
            }
        }
        faults.extend(memory.blind.clone());
        faults
    }
}

impl Watched for Trust {
    fn scan(&self) -> Scan {
        self.read()
    }

    fn places(&self) -> Vec<PathBuf> {
        self.roots().map(|(path, _)| path.to_owned()).collect()
    }

    fn set_blind(&self, why: Option<String>) {
        lock(&self.memory).blind = why;
    }

    fn announce(&self, scan: &Scan, state: &State) {
        let subject = self.subject();
        if !scan.changes.is_empty() {
            state.events.record(Level::Info, &subject, listed(&scan.changes));
        }
        match self.faults() {
            faults if faults.is_empty() => state.restore(&subject),
            faults => state.degrade(&subject, &listed(&faults)),
        }
    }
}

/// Returns the files that a path in the configuration stands for, and fills in the directories to watch for changes.
fn find(root: &Path, kind: Kind, directories: &mut Vec<PathBuf>) -> Result<Vec<PathBuf>, CertificateFault> {
    let fault = |error| CertificateFault::unreadable(root, &error);
    if let Ok(real) = fs::canonicalize(root) {
        directories.extend(real.parent().map(Path::to_owned));
    }
    let of = fs::metadata(root).map_err(fault)?;
    if !of.is_dir() {
        directories.extend(root.parent().map(Path::to_owned));
        return Ok(vec![root.to_owned()]);
    }
    directories.push(root.to_owned());
    let endings: &[&str] = match kind {
        Kind::Authorities => &["pem", "crt", "cer"],
        Kind::Lists => &["crl", "pem", "der"],
    };
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let meant = path.extension().is_some_and(|ending| endings.iter().any(|known| ending == *known));
        if !hidden && meant {
            found.insert(path);
        }
    }
    Ok(found.into_iter().collect())
}

fn read_file(
    path: &Path,
    root: &Path,
    kind: Kind,
    old: Option<Entry>,
    now: SystemTime,
    scan: &mut Scan,
) -> Entry {
    let mut stamp = file_stamp(path, now);
    let read = read_bytes(path).map(|bytes| match kind {
        Kind::Authorities => authorities(path, &bytes),
        Kind::Lists => lists(path, &bytes),
    });
    let read = read.map_err(|unread| match unread {
        Unread::Fault(fault) => {
            if fault.is_passing() {
                stamp = None;
                scan.look_again(AGAIN);
            }
            fault.to_string()
        }
        Unread::TooLarge(why) => why,
    });
    let (held, fault) = match (read, old) {
        (Ok((held, None)), _) => (held, None),
        (Ok((_, Some(fault))) | Err(fault), Some(old)) => {
            let holds = !old.held.anchors.is_empty() || !old.held.lists.is_empty();
            let consequence = if holds { "; its earlier content stays in use" } else { "" };
            (old.held, Some(format!("{fault}{consequence}")))
        }
        (Ok((held, Some(fault))), None) => (held, Some(fault)),
        (Err(fault), None) => (LoadedTrust::default(), Some(fault)),
    };
    Entry { kind, root: root.to_owned(), stamp, held, fault }
}

enum Unread {
    Fault(CertificateFault),
    TooLarge(String),
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, Unread> {
    let bytes = file::read(path, FILE_LIMIT)
        .map_err(|error| Unread::Fault(CertificateFault::unreadable(path, &error)))?;
    if bytes.len() as u64 > FILE_LIMIT {
        let path = path.display();
        return Err(Unread::TooLarge(format!("{path}: more than {FILE_LIMIT} bytes")));
    }
    Ok(bytes)
}

/// Parses the CAs in a file. The string describes the CAs that were left out.
fn authorities(path: &Path, bytes: &[u8]) -> (LoadedTrust, Option<String>) {
    let mut store = RootCertStore::empty();
    let mut fault = None;
    let mut count = 0;
    for (at, section) in CertificateDer::pem_slice_iter(bytes).enumerate() {
        count += 1;
        // After a syntax error the start of the next PEM section is unknown.
        let broken = section.is_err();
        let added = section.map_err(|error| error.to_string());
        let added = added.and_then(|certificate| store.add(certificate).map_err(|error| error.to_string()));
        if let Err(why) = added {
            let line = line_of(bytes, b"-----BEGIN CERTIFICATE-----", at);
            fault.get_or_insert_with(|| {
                format!("{}:{line}: this certificate cannot be used: {why}", path.display())
            });
        }
        if broken {
            break;
        }
    }
    if count == 0 {
        fault = Some(format!("{}: holds no certificate (BEGIN CERTIFICATE)", path.display()));
    }
    (LoadedTrust { anchors: store.roots, lists: Vec::new(), digest: digest([bytes]) }, fault)
}

/// Parses the revocation lists in a file. The string describes the lists that were left out.
fn lists(path: &Path, bytes: &[u8]) -> (LoadedTrust, Option<String>) {
    let mut held = LoadedTrust { digest: digest([bytes]), ..LoadedTrust::default() };
    let mut add = |der: CertificateRevocationListDer<'static>| {
        is_usable(&der)?;
        // Some usable lists hold numbers that are too long for this parser, whose result is only shown to operators.
        let until =
            <CertificateList>::from_der(&der).ok().and_then(|parsed| parsed.tbs_cert_list.next_update);
        let until = until.map(|until| SystemTime::UNIX_EPOCH + until.to_unix_duration());
        held.lists.push(List { der, until });
        Ok::<(), String>(())
    };
    let name = path.display();
    let is_der = bytes.first() == Some(&0x30); // a SEQUENCE
    let fault = if is_der {
        add(CertificateRevocationListDer::from(bytes.to_vec()))
            .err()
            .map(|why| format!("{name}: this revocation list cannot be used: {why}"))
    } else {
        let mut fault = None;
        let mut count = 0;
        for section in CertificateRevocationListDer::pem_slice_iter(bytes) {
            let broken = section.is_err();
            if let Err(why) = section.map_err(|error| error.to_string()).and_then(&mut add) {
                let line = line_of(bytes, b"-----BEGIN X509 CRL-----", count);
                fault.get_or_insert_with(|| {
                    format!("{name}:{line}: this revocation list cannot be used: {why}")
                });
            }
            count += 1;
            if broken {
                break;
            }
        }
        if count == 0 {
            Some(format!("{name}: holds no revocation list (BEGIN X509 CRL, or DER)"))
        } else {
            fault
        }
    };
    (held, fault)
}

/// Tests that certificates can be looked up in a revocation list.
fn is_usable(list: &CertificateRevocationListDer<'static>) -> Result<(), String> {
    let anchors = RootCertStore { roots: vec![trusts_none()] };
    let builder =
        WebPkiClientVerifier::builder_with_provider(anchors.into(), aws_lc_rs::default_provider().into());
    builder.with_crls([list.clone()]).build().map(drop).map_err(|error| error.to_string())
}

/// Returns a CA that issued no certificate.
fn trusts_none() -> TrustAnchor<'static> {
    TrustAnchor {
        subject: Der::from_slice(&[]),
        subject_public_key_info: Der::from_slice(&[]),
        name_constraints: None,
    }
}

/// Returns the line number, from 1, of the occurrence number `at` (from 0) of `marker`.
fn line_of(bytes: &[u8], marker: &[u8], at: usize) -> usize {
    let found = memchr::memmem::find_iter(bytes, marker).nth(at).unwrap_or(bytes.len());
    1 + memchr::memchr_iter(b'\n', &bytes[..found]).count()
}

/// Combines the contents of all files; the string is a summary for operators.
fn combine(files: &BTreeMap<PathBuf, Entry>, source: &TrustSource) -> (Anchors, String) {
    let of = |kind| files.values().filter(move |entry| entry.kind == kind).map(|entry| &entry.held);
    let roots: Vec<_> = of(Kind::Authorities).flat_map(|held| held.anchors.iter().cloned()).collect();
    let lists: Vec<_> =
        of(Kind::Lists).flat_map(|held| held.lists.iter().map(|list| list.der.clone())).collect();
    let counts = format!("{} CAs, {} revocation lists", roots.len(), lists.len());
    let how: &[u8] = match (source.unknown, source.crls.is_empty()) {
        (_, true) => b"revocation: not asked",
        (UnknownRevocation::Refuse, false) => b"revocation: refuse",
        (UnknownRevocation::Allow, false) => b"revocation: allow",
    };
    let digests = files.values().flat_map(|entry| {
        let kind: &[u8] = if entry.kind == Kind::Authorities { b"a" } else { b"l" };
        [kind, entry.held.digest.as_slice()]
    });
    let digest = digest([how].into_iter().chain(digests));
    let hints: Vec<DistinguishedName> =
        roots.iter().map(|root| DistinguishedName::in_sequence(&root.subject)).collect();
    let length: usize = hints.iter().map(|name| name.as_ref().len() + 2).sum();
    let hints = if length <= LONGEST_HINT { hints } else { Vec::new() };
    if roots.is_empty() {
        return (Anchors { verifier: Err(Missing::Authorities), hints, digest }, counts);
    }
    if lists.is_empty() && how == b"revocation: refuse" {
        return (Anchors { verifier: Err(Missing::Lists), hints, digest }, counts);
    }
    let store = RootCertStore { roots };
    let builder =
        WebPkiClientVerifier::builder_with_provider(store.into(), aws_lc_rs::default_provider().into());
    let builder = builder.with_crls(lists).clear_root_hint_subjects();
    let builder = match source.unknown {
        UnknownRevocation::Refuse => builder.enforce_revocation_expiration(),
        UnknownRevocation::Allow => builder.allow_unknown_revocation_status(),
    };
    // Every list was tested when it was read.
    let verifier = builder.build().map_err(|_| Missing::Lists);
    (Anchors { verifier, hints, digest }, counts)
}

#[cfg(test)]
mod tests;
