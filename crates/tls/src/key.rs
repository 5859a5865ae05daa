//! Reads a private key file: checks its permissions, and decrypts the key with a passphrase if it is encrypted.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::pkcs5::Error as Pkcs5Error;
use rustls::crypto::aws_lc_rs;
use rustls::sign::SigningKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::fault::{CertificateFault, CertificateFaultKind as Kind};
use super::pem_file;

/// Refuses a file that other users can read: with the key, any of them can impersonate the server.
pub(super) fn expect_private(path: &Path) -> Result<(), CertificateFault> {
    let of = path.metadata().map_err(|error| CertificateFault::unreadable(path, &error))?;
    let mode = of.permissions().mode();
    if of.is_file() && mode & 0o007 != 0 {
        return Err(CertificateFault::new(path, Kind::KeyReadableByOthers(mode & 0o7777)));
    }
    Ok(())
}

/// Parses the private key in a PEM text.
pub(super) fn read(
    path: &Path,
    text: &[u8],
    passphrase: Option<&Path>,
) -> Result<Arc<dyn SigningKey>, CertificateFault> {
    let fault = |kind| CertificateFault::new(path, kind);
    let signing = |key: &PrivateKeyDer<'_>| {
        aws_lc_rs::sign::any_supported_type(key).map_err(|_| fault(Kind::UnknownKey))
    };
    if let Some(block) = encrypted_block(text) {
        let Some(passphrase) = passphrase else { return Err(fault(Kind::NoPassphrase)) };
        expect_private(passphrase)?;
        let phrase = pem_file::read(passphrase)?;
        let phrase = phrase.strip_suffix(b"\n").unwrap_or(&phrase);
        let phrase = phrase.strip_suffix(b"\r").unwrap_or(phrase);
        let (_, encrypted) =
            pkcs8::der::pem::decode_vec(block).map_err(|error| fault(Kind::Malformed(error.to_string())))?;
        let info = EncryptedPrivateKeyInfoRef::try_from(encrypted.as_slice())
            .map_err(|_| fault(Kind::OldEncryption))?;
        let plain = info.decrypt(phrase).map_err(|error| match error {
            pkcs8::Error::EncryptedPrivateKey(
                Pkcs5Error::NoPbes1CryptSupport | Pkcs5Error::UnsupportedAlgorithm { .. },
            ) => fault(Kind::OldEncryption),
            _ => fault(Kind::WrongPassphrase),
        })?;
        return signing(&PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(plain.as_bytes())));
    }
    if contains(text, b"DEK-Info:") {
        return Err(fault(Kind::OldEncryption));
    }
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => fault(Kind::HoldsNoKey),
        error => fault(Kind::Malformed(pem_file::pem_words(&error))),
    })?;
    signing(&key)
}

/// Returns the PEM section of an encrypted PKCS#8 key, from its first to its last line.
fn encrypted_block(text: &[u8]) -> Option<&[u8]> {
    const BEGIN: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";
    const END: &[u8] = b"-----END ENCRYPTED PRIVATE KEY-----";
    let find = |part: &[u8]| text.windows(part.len()).position(|window| window == part);
    let begin = find(BEGIN)?;
    let end = find(END).map_or(text.len(), |end| end + END.len());
    text.get(begin..end)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
