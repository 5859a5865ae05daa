//! Loads CA certificates the way this program's TLS does: PEM is decoded by rustls-pki-types, and each certificate is
//! parsed into a trust anchor and put into a `RootCertStore` by rustls.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use super::Tally;

/// Certificates on the disk (PEM).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrustStore {
    /// All in one file.
    Bundle(PathBuf),
    /// One in each file of a directory.
    Files(PathBuf),
}

impl TrustStore {
    /// Loads them; the tally's units are certificates.
    pub fn load(&self) -> io::Result<Tally> {
        let mut store = RootCertStore::empty();
        match self {
            TrustStore::Bundle(path) => add(&mut store, path)?,
            TrustStore::Files(directory) => {
                for entry in fs::read_dir(directory)? {
                    add(&mut store, &entry?.path())?;
                }
            }
        }
        let units = store.len() as u64;
        // What others do at their end belongs to the cost here too.
        drop(store);
        Ok(Tally { units, ..Tally::default() })
    }
}

fn add(store: &mut RootCertStore, path: &Path) -> io::Result<()> {
    let text = fs::read(path)?;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        store.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::truststore::authorities::Authorities;

    #[test]
    fn every_certificate_of_both_forms_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let authorities = Authorities::make(directory.path(), &[1, 5]).unwrap();
        for count in [1, 5] {
            for store in
                [TrustStore::Bundle(authorities.bundle(count)), TrustStore::Files(authorities.files(count))]
            {
                assert_eq!(store.load().unwrap().units, count as u64, "{store:?}");
            }
        }
    }

    #[test]
    fn a_certificate_that_is_none_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bad.pem");
        fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        TrustStore::Bundle(path).load().unwrap_err();
    }
}
