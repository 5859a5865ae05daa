//! CA certificates for one run: ECDSA P-256, each with its own name, key and signature.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::error::{Error, ErrorContext};

#[derive(Clone, Debug)]
pub struct Authorities {
    directory: PathBuf,
}

impl Authorities {
    /// Makes the certificates in `parent` at the first call: a bundle and a directory of files for each of `counts`,
    /// and a server certificate signed by the first CA. Later calls return the same files.
    pub fn make(parent: &Path, counts: &[usize]) -> Result<Self, Error> {
        let directory = parent.join("authorities");
        let authorities = Authorities { directory };
        if !authorities.directory.exists() {
            let unfinished = parent.join("authorities-unfinished");
            fill(&unfinished, counts)?;
            fs::rename(&unfinished, &authorities.directory)
                .doing("rename the directory of CA certificates")?;
        }
        Ok(authorities)
    }

    /// Path of the bundle with `count` certificates.
    pub fn bundle(&self, count: usize) -> PathBuf {
        bundle(&self.directory, count)
    }

    /// Path of the directory with `count` files.
    pub fn files(&self, count: usize) -> PathBuf {
        files(&self.directory, count)
    }

    /// Path of a server certificate, signed by the CA that is in every bundle.
    pub fn leaf(&self) -> PathBuf {
        leaf(&self.directory)
    }
}

fn fill(directory: &Path, counts: &[usize]) -> Result<(), Error> {
    create(directory)?;
    let most = counts.iter().copied().max().unwrap_or_default();
    let mut texts = Vec::new();
    for number in 0..most {
        let key = KeyPair::generate().map_err(failed)?;
        let params = authority(number);
        texts.push(params.self_signed(&key).map_err(failed)?.pem());
        if number == 0 {
            let server = KeyPair::generate().map_err(failed)?;
            let mut signed = named("penstock bench server");
            signed.use_authority_key_identifier_extension = true;
            let issuer = Issuer::from_params(&params, &key);
            write(&leaf(directory), &signed.signed_by(&server, &issuer).map_err(failed)?.pem())?;
        }
    }
    for count in counts {
        write(&bundle(directory, *count), &texts[..*count].concat())?;
        let files = files(directory, *count);
        create(&files)?;
        for (number, text) in texts[..*count].iter().enumerate() {
            write(&files.join(format!("{number:05}.pem")), text)?;
        }
    }
    Ok(())
}

fn authority(number: usize) -> CertificateParams {
    let mut params = named(&format!("penstock bench CA {number:05}: trust it nowhere"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "penstock bench");
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - DAY).into(), (now + DAY * 2).into());
    params
}

fn bundle(directory: &Path, count: usize) -> PathBuf {
    directory.join(format!("bundle-{count}.pem"))
}

fn files(directory: &Path, count: usize) -> PathBuf {
    directory.join(format!("files-{count}"))
}

fn leaf(directory: &Path) -> PathBuf {
    directory.join("leaf.pem")
}

fn create(directory: &Path) -> Result<(), Error> {
    let doing = format!("create {}", directory.display());
    DirBuilder::new().mode(0o700).recursive(true).create(directory).doing(doing)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).doing(format!("write {}", path.display()))
}

fn failed(error: rcgen::Error) -> Error {
    Error::Load { what: "making CA certificates".to_owned(), text: error.to_string() }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn certificates_differ_and_are_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let authorities = Authorities::make(directory.path(), &[1, 3]).unwrap();
        let text = fs::read_to_string(authorities.bundle(3)).unwrap();
        assert!(text.starts_with(&fs::read_to_string(authorities.bundle(1)).unwrap()));
        let mut single: Vec<_> = (fs::read_dir(authorities.files(3)).unwrap())
            .map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap())
            .collect();
        single.sort();
        single.dedup();
        assert_eq!((single.len(), single.concat().len()), (3, text.len()));
        let inode = |authorities: &Authorities| fs::metadata(authorities.leaf()).unwrap().ino();
        let again = Authorities::make(directory.path(), &[1, 3]).unwrap();
        assert_eq!(inode(&authorities), inode(&again));
    }
}
