//! A certificate authority for one run of the demo. Its key is only in memory, and is dropped after it has signed the
//! one certificate. The disk gets the authority's certificate and the server's key, mode 0600.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

#[derive(Debug)]
pub(crate) struct Files {
    pub authority: PathBuf,
    pub certificates: PathBuf,
}

/// Creates an authority and a certificate for `localhost` and the loopback addresses, valid for two days.
pub(crate) fn create(directory: &Path) -> anyhow::Result<Files> {
    let authority_key = KeyPair::generate()?;
    let mut authority = params(Vec::new(), "Penstock demo: trust this nowhere");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let authority_certificate = authority.clone().self_signed(&authority_key)?;

    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let server_key = KeyPair::generate()?;
    let mut server = params(Vec::new(), "localhost");
    server.subject_alt_names = CertificateParams::new(names)?.subject_alt_names;
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    let server_certificate =
        server.signed_by(&server_key, &Issuer::from_params(&authority, &authority_key))?;

    let files = Files { authority: directory.join("ca.pem"), certificates: directory.join("certificates") };
    DirBuilder::new().mode(0o700).create(&files.certificates)?;
    write_private(&files.authority, &authority_certificate.pem())?;
    let combined = format!("{}{}", server_certificate.pem(), server_key.serialize_pem());
    write_private(&files.certificates.join("localhost.pem"), &combined)?;
    Ok(files)
}

fn params(names: Vec<rcgen::SanType>, common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // The validity begins in the past, so that a client whose clock is a little slow accepts the certificate.
    let now = std::time::SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + 2 * DAY).into();
    params
}

/// Creates a file with mode 0600 from the start.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn key_is_private_and_the_authoritys_key_is_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let files = create(directory.path()).unwrap();
        let server = files.certificates.join("localhost.pem");
        assert_eq!(server.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(files.certificates.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let server = std::fs::read_to_string(server).unwrap();
        assert_eq!(server.matches("BEGIN CERTIFICATE").count(), 1);
        assert_eq!(server.matches("BEGIN PRIVATE KEY").count(), 1);
        assert!(!std::fs::read_to_string(&files.authority).unwrap().contains("PRIVATE KEY"));
    }

    #[test]
    fn two_runs_share_no_authority() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = std::fs::read(create(one.path()).unwrap().authority).unwrap();
        let two = std::fs::read(create(two.path()).unwrap().authority).unwrap();
        assert_ne!(one, two);
    }
}
