//! A certificate with its key, read from its files as a whole or not at all.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::SignatureAlgorithm;
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::facts::{self, Facts, MustStaple, Order, Responder};
use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::key;
use super::layout::Candidate;
use super::staple::Staple;
use crate::file;

/// A certificate file larger than this is not one.
pub(super) const FILE_LIMIT: u64 = 1024 * 1024;

/// A certificate that can be served.
#[derive(Debug)]
pub struct Pair {
    /// What rustls needs, with the staple.
    pub(super) certified: Arc<CertifiedKey>,
    /// What the leaf says.
    pub(super) facts: Facts,
    /// Until when the staple may be sent.
    pub(super) staple: Option<Staple>,
    /// Why there is no staple though there is a file for it.
    pub(super) staple_fault: Option<String>,
    /// What could be better.
    pub(super) notes: Vec<String>,
}

impl Pair {
    /// What the leaf says.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The OCSP response that is sent.
    pub fn staple(&self) -> Option<&Staple> {
        self.staple.as_ref()
    }

    /// Why a file with an OCSP response is not used.
    pub fn staple_fault(&self) -> Option<&str> {
        self.staple_fault.as_deref()
    }

    /// Certificates that are sent.
    pub fn chain_length(&self) -> usize {
        self.certified.cert.len()
    }

    /// What it signs with.
    pub(super) fn algorithm(&self) -> SignatureAlgorithm {
        self.certified.key.algorithm()
    }
}

/// Reads a candidate's files. A staple that is broken is replaced by the one `before` had, if it is the same certificate.
pub(super) fn load(
    candidate: &Candidate,
    passphrase_file: Option<&Path>,
    before: Option<&Pair>,
    now: SystemTime,
) -> Result<Pair, CertificateFault> {
    let (path, key_path) = (&*candidate.certificate, &*candidate.key);
    let fault = |path: &Path, kind| CertificateFault::new(path, kind);
    // A link that leads nowhere is there, and cannot be read.
    let missing =
        |path: &Path| path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    if missing(path) {
        return Err(fault(key_path, Kind::NoCertificate));
    }
    if missing(key_path) {
        return Err(fault(path, Kind::NoKey(key_path.to_owned())));
    }
    key::expect_private(key_path)?;
    let chain_text = read(path)?;
    let key_text = if key_path == path { chain_text.clone() } else { read(key_path)? };
    let mut chain = certificates(path, &chain_text)?;
    if chain.is_empty() {
        return Err(fault(path, Kind::HoldsNoCertificate));
    }
    if let Some(rest) = &candidate.chain {
        for certificate in certificates(rest, &read(rest)?)? {
            if !chain.contains(&certificate) {
                chain.push(certificate);
            }
        }
    }
    let passphrase = candidate.passphrase.as_deref().or(passphrase_file);
    let signing = key::read(key_path, &key_text, passphrase)?;
    let fits = |certificate: &CertificateDer<'static>| {
        let alone = CertifiedKey::new(vec![certificate.clone()], signing.clone());
        match alone.keys_match() {
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(true),
            Ok(()) => Ok(true),
            Err(rustls::Error::InconsistentKeys(_)) => Ok(false),
            Err(error) => Err(fault(path, Kind::Malformed(error.to_string()))),
        }
    };
    let leaf = match fits(&chain[0])? {
        true => 0,
        false => {
            let others = chain.iter().skip(1).position(|other| fits(other).unwrap_or(false));
            others.ok_or_else(|| fault(key_path, Kind::Mismatch))? + 1
        }
    };
    let (chain, order) = facts::order(chain, Some(leaf));
    let facts = Facts::of(&chain[0]).map_err(|why| fault(path, Kind::Malformed(why)))?;
    let mut notes = notes_on(order, chain.len(), &facts);
    let (staple, staple_fault) = staple(candidate, &chain[0], &facts, before, now);
    if staple.is_none() && facts.must_staple == MustStaple::Yes {
        notes.push("it asks for a staple (must-staple) and has none: some clients refuse it".to_owned());
    }
    let mut certified = CertifiedKey::new(chain, signing);
    certified.ocsp = staple.as_ref().map(|staple| staple.response.clone());
    Ok(Pair { certified: Arc::new(certified), facts, staple, staple_fault, notes })
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateFault::new(path, Kind::Malformed(error.to_string())))
}

fn notes_on(order: Order, length: usize, facts: &Facts) -> Vec<String> {
    match order {
        Order::Kept if length == 1 && facts.responder == Responder::Named => {
            vec![
                "the issuer's certificate is missing: clients that do not know it refuse the connection"
                    .to_owned(),
            ]
        }
        Order::Kept => Vec::new(),
        Order::Changed => {
            vec!["the chain was in the wrong order in its file; it is sent in the right one".to_owned()]
        }
        Order::Unconnected(count) => {
            vec![format!("{count} of the certificates in the chain issued none of the others")]
        }
    }
}

fn staple(
    candidate: &Candidate,
    leaf: &CertificateDer<'_>,
    facts: &Facts,
    before: Option<&Pair>,
    now: SystemTime,
) -> (Option<Staple>, Option<String>) {
    let Some(path) = &candidate.staple else { return (None, None) };
    let read = read(path).map_err(|fault| fault.to_string()).and_then(|bytes| {
        Staple::read(bytes, &facts.serial, now).map_err(|fault| format!("{}: {fault}", path.display()))
    });
    match read {
        Ok(staple) => (Some(staple), None),
        Err(why) => {
            let same = before.filter(|before| before.certified.cert.first() == Some(leaf));
            let kept = same.and_then(|before| before.staple.clone()).filter(|staple| !staple.is_over(now));
            (kept, Some(why))
        }
    }
}

/// A file of a certificate, whole.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CertificateFault> {
    let bytes = file::read(path, FILE_LIMIT).map_err(|error| CertificateFault::unreadable(path, &error))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(CertificateFault::new(path, Kind::TooLarge));
    }
    Ok(bytes)
}

/// How a candidate's files were when they were read: while nothing of this changes, reading them again says nothing new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Vec<FileStamp>);

/// Device, inode, size, and the times of the last change of contents and of the inode.
pub(super) type FileStamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// A file that changed so recently may change again without its times telling it.
pub(super) const TICK: Duration = Duration::from_millis(50);

impl Stamp {
    /// `None` if a file cannot be looked at, or changed just now: then it must be read.
    pub(super) fn take(
        candidate: &Candidate,
        passphrase_file: Option<&Path>,
        now: SystemTime,
    ) -> Option<Self> {
        let files = candidate.files().chain(passphrase_file);
        files.map(|path| file_stamp(path, now)).collect::<Option<_>>().map(Self)
    }
}

/// `None` if the file cannot be looked at, or changed just now: then it must be read.
pub(super) fn file_stamp(path: &Path, now: SystemTime) -> Option<FileStamp> {
    let recent = now.checked_sub(TICK)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let of = fs::metadata(path).ok()?;
    let changed = (of.ctime(), of.ctime_nsec());
    let old = changed < (recent.as_secs() as i64, i64::from(recent.subsec_nanos()));
    old.then(|| (of.dev(), of.ino(), of.size(), (of.mtime(), of.mtime_nsec()), changed))
}
