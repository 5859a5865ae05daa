//! A certificate with its key. Either all of its files are read, or the pair is refused.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use config::types::Ocsp;
use logic::ocsp::Query;
use rustls::SignatureAlgorithm;
use rustls::sign::{CertifiedKey, SigningKey};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use super::backend::Authorities;
use super::facts::{self, Facts, MustStaple, Order};
use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::issuer::Issuer;
use super::key;
use super::layout::Candidate;
use super::ocsp::Staples;
use super::pem_file::{FileStamp, file_stamp, pem_words, read};
use super::staple::{self, Origin, Staple, Stapling};

#[derive(Debug)]
pub struct Pair {
    /// Certificate with its current staple, in the form that rustls needs. Rebuilt when the staple changes.
    served: ArcSwap<Served>,
    /// Private key of `served`.
    pub(super) key: Arc<dyn SigningKey>,
    pub(super) facts: Facts,
    issuer: Issuer,
    /// Source of OCSP responses. `None` if the certificate cannot have a staple.
    pub(super) stapling: Option<Arc<Stapling>>,
    pub(super) file: StapleFile,
    /// Reason why the certificate cannot have a staple although it names a responder.
    pub(super) unstapled: Option<String>,
    /// Warnings.
    pub(super) notes: Vec<String>,
}

/// Certificate in the form that rustls needs, with the staple in it.
#[derive(Debug)]
struct Served {
    certified: Arc<CertifiedKey>,
    staple: Option<Arc<Staple>>,
}

/// File with a certificate's OCSP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StapleFile {
    Absent,
    /// The response is valid until this time.
    Good(SystemTime),
    /// The response is not used; with the path and the reason.
    Refused(String),
}

impl Pair {
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub fn issuer(&self) -> Issuer {
        self.issuer
    }

    /// Returns what is sent to a client at `now`. The staple in it belongs to this certificate and is valid at `now`.
    pub(super) fn certified(&self, now: SystemTime) -> Arc<CertifiedKey> {
        let served = self.served.load();
        let staple = self.staple(now);
        let is_same = match (&served.staple, &staple) {
            (None, None) => true,
            (Some(sent), Some(due)) => Arc::ptr_eq(sent, due),
            _ => false,
        };
        if is_same {
            return served.certified.clone();
        }
        let mut certified = CertifiedKey::new(served.certified.cert.clone(), self.key.clone());
        certified.ocsp = staple.as_ref().map(|staple| staple.response.clone());
        let certified = Arc::new(certified);
        // Two workers may do this at the same time and one may store the older staple; the next handshake compares
        // again.
        self.served.store(Arc::new(Served { certified: certified.clone(), staple }));
        certified
    }

    /// Returns the OCSP response that is sent at `now`.
    pub fn staple(&self, now: SystemTime) -> Option<Arc<Staple>> {
        self.stapling.as_ref().and_then(|stapling| stapling.current(now))
    }

    /// Returns the reason why no staple is sent, or why none will be sent after the current one expires.
    pub fn staple_fault(&self, now: SystemTime) -> Option<String> {
        let asked = self.stapling.as_ref().and_then(|stapling| stapling.reason(now));
        let refused = match &self.file {
            StapleFile::Refused(why) => Some(why.clone()),
            _ => None,
        };
        let all: Vec<String> = refused.into_iter().chain(self.unstapled.clone()).chain(asked).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Returns true if the last OCSP response says that the certificate is revoked.
    pub(super) fn is_revoked(&self) -> bool {
        self.stapling.as_ref().is_some_and(|stapling| stapling.is_revoked())
    }

    /// Returns the warning for the operator about the staple.
    pub(super) fn complaint(&self, now: SystemTime) -> Option<String> {
        if let Some(complaint) = self.stapling.as_ref().and_then(|stapling| stapling.complaint(now)) {
            return Some(complaint);
        }
        let must = self.facts.must_staple == MustStaple::Yes && self.stapling.is_none();
        let why = self.unstapled.as_deref().unwrap_or("it names no responder");
        must.then(|| staple::missing_staple(why))
    }

    /// Returns the certificate, then the intermediate certificates.
    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.served.load().certified.cert.clone()
    }

    /// Returns the number of certificates that are sent.
    pub fn chain_length(&self) -> usize {
        self.served.load().certified.cert.len()
    }

    pub(super) fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

/// Reads and checks the files of a candidate.
pub(super) fn load(
    candidate: &Candidate,
    passphrase_file: Option<&Path>,
    (staples, ocsp): (&Staples, Ocsp),
    authorities: &Authorities,
    now: SystemTime,
) -> Result<Pair, CertificateFault> {
    let (path, key_path) = (&*candidate.certificate, &*candidate.key);
    let fault = |path: &Path, kind| CertificateFault::new(path, kind);
    // A dangling symbolic link exists, but its target cannot be read.
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
    let notes = notes_on(order, chain.len(), &facts);
    let responders = match ocsp {
        Ocsp::On => facts.responders.clone(),
        Ocsp::Off => Vec::new(),
    };
    let (mut stapling, mut unstapled) = (None, None);
    if candidate.staple.is_some() || !responders.is_empty() {
        let issuers = chain.iter().skip(1).chain(chain.first());
        match issuers.filter_map(|issuer| Query::new(&chain[0], issuer).ok()).next() {
            Some(query) => stapling = Some(staples.of(query, &facts, responders, now)),
            None => unstapled = Some(NO_ISSUER.to_owned()),
        }
    } else if !facts.responders.is_empty() {
        unstapled = Some("not asked for: tls.ocsp = \"off\"".to_owned());
    }
    let file = match (&candidate.staple, &stapling) {
        (None, _) => StapleFile::Absent,
        (Some(path), Some(stapling)) => staple_file(path, stapling, now),
        (Some(path), None) => StapleFile::Refused(format!("{}: {NO_ISSUER}", path.display())),
    };
    let issuer = Issuer::of(&chain, &facts, authorities, now);
    let certified = Arc::new(CertifiedKey::new(chain, signing.clone()));
    let served = ArcSwap::from_pointee(Served { certified, staple: None });
    Ok(Pair { served, key: signing, facts, issuer, stapling, file, unstapled, notes })
}

const NO_ISSUER: &str = "a staple cannot be checked without the issuer's certificate: add it to the chain";

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateFault::new(path, Kind::Malformed(pem_words(&error))))
}

fn notes_on(order: Order, length: usize, facts: &Facts) -> Vec<String> {
    match order {
        Order::Kept if length == 1 && !facts.responders.is_empty() => {
            vec![
                "the issuer's certificate is missing: clients that do not know it refuse the connection"
                    .to_owned(),
            ]
        }
        Order::Kept => Vec::new(),
        Order::Changed => {
            vec!["the chain was in the wrong order in its file; it is sent in the right order".to_owned()]
        }
        Order::Unconnected(count) => {
            vec![format!("{count} of the certificates in the chain do not belong to it")]
        }
    }
}

fn staple_file(path: &Path, stapling: &Stapling, now: SystemTime) -> StapleFile {
    let response = match read(path) {
        Ok(response) => response,
        Err(fault) => return StapleFile::Refused(fault.to_string()),
    };
    match stapling.offer(response, Origin::File, now) {
        Ok(good) => StapleFile::Good(good.until),
        Err(fault) => StapleFile::Refused(format!("{}: {fault}", path.display())),
    }
}

/// State of a candidate's files when they were read. If it has not changed, the files need not be read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp(Vec<FileStamp>);

impl Stamp {
    /// Takes the state of all files. `None` if one cannot be examined or was changed just now: then the files must be
    /// read.
    pub(super) fn take(
        candidate: &Candidate,
        passphrase_file: Option<&Path>,
        now: SystemTime,
    ) -> Option<Self> {
        let files = candidate.files().chain(passphrase_file);
        files.map(|path| file_stamp(path, now)).collect::<Option<_>>().map(Self)
    }
}
