//! The CAs that penstock trusts when it connects to backends and to ACME authorities: those of the operating system, or
//! those in a file. Reading them takes time in proportion to their number. They are therefore read when a configuration
//! is loaded or an ACME order begins, never on a worker.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use state::lock::lock;
use sys::file;

use super::super::fault::{CertificateFault, CertificateFaultKind as Kind};

/// Largest CA file that is read: ten times the size of the largest ones in use.
const FILE_LIMIT: u64 = 64 * 1024 * 1024;

/// Sets of trusted CAs. Each set is read once, however many pools use it.
#[derive(Debug, Default)]
pub struct Authorities {
    system: OnceLock<Result<Arc<Trusted>, String>>,
    files: Mutex<HashMap<PathBuf, Result<Arc<Trusted>, String>>>,
}

#[derive(Debug)]
pub struct Trusted {
    pub roots: Arc<RootCertStore>,
    /// Certificates that are trusted without a CA's signature, because the operator put them into the file.
    pub(crate) own: HashSet<CertificateDer<'static>>,
    /// Number of certificates that could not be parsed.
    pub unusable: usize,
}

impl Authorities {
    /// Returns the CAs of the operating system.
    pub fn system(&self) -> Result<Arc<Trusted>, String> {
        self.system.get_or_init(read_system).clone()
    }

    pub fn file(&self, path: &Path) -> Result<Arc<Trusted>, String> {
        let read = || read_file(path).map(Arc::new).map_err(|fault| fault.to_string());
        lock(&self.files).entry(path.to_owned()).or_insert_with(read).clone()
    }
}

impl PartialEq for Trusted {
    fn eq(&self, other: &Self) -> bool {
        self.roots.roots == other.roots.roots && self.own == other.own
    }
}

impl Eq for Trusted {}

fn read_system() -> Result<Arc<Trusted>, String> {
    let found = rustls_native_certs::load_native_certs();
    let trusted = collect(found.certs, Keep::Nothing);
    if !trusted.roots.is_empty() {
        return Ok(Arc::new(trusted));
    }
    let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    Err(format!(
        "this machine trusts no certificate authority{why}: install its ca-certificates, or name a file as ca"
    ))
}

fn read_file(path: &Path) -> Result<Trusted, CertificateFault> {
    let fault = |kind| CertificateFault::new(path, kind);
    let bytes = file::read(path, FILE_LIMIT).map_err(|error| CertificateFault::unreadable(path, &error))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(fault(Kind::Malformed("too large for a file of certificates".to_owned())));
    }
    let certificates = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| fault(Kind::Malformed(error.to_string())))?;
    let trusted = collect(certificates, Keep::Own);
    if trusted.roots.is_empty() {
        return Err(fault(Kind::HoldsNoCertificate));
    }
    Ok(trusted)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Own,
    Nothing,
}

fn collect(certificates: Vec<CertificateDer<'static>>, keep: Keep) -> Trusted {
    let mut roots = RootCertStore::empty();
    let (mut own, mut seen, mut unusable) = (HashSet::new(), HashSet::new(), 0);
    for certificate in certificates {
        if !seen.insert(certificate.clone()) {
            continue;
        }
        match roots.add(certificate.clone()) {
            Ok(()) if keep == Keep::Own => drop(own.insert(certificate)),
            Ok(()) => {}
            Err(_) => unusable += 1,
        }
    }
    Trusted { roots: Arc::new(roots), own, unusable }
}
