//! Loads CA certificates as this program's TLS does: rustls-pki-types decodes PEM, and rustls parses each certificate
//! into a trust anchor of a `RootCertStore`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use super::gauge::Tally;

/// Location of the certificates (PEM).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrustStore {
    Bundle(PathBuf),
    /// A directory with one certificate per file.
    Files(PathBuf),
}

impl TrustStore {
    /// Loads the certificates. The units of the tally are certificates.
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
        // Other contestants free their memory before exit: include the cost here too.
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
