//! Errors in the files of a certificate directory, with advice for the operator.

use std::fmt;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use state::events::timestamp;

use super::facts::{Facts, Validity};

/// Largest certificate file in bytes; a larger file is refused.
pub(super) const FILE_LIMIT: u64 = 1024 * 1024;

/// Error in one file.
#[derive(Clone, Debug)]
pub struct CertificateFault {
    /// The file or directory with the error.
    pub path: PathBuf,
    pub kind: CertificateFaultKind,
}

#[derive(Clone, Debug)]
pub enum CertificateFaultKind {
    /// The file cannot be read; with the reason.
    Unreadable(String),
    /// The process has no free descriptor for the file. Penstock retries.
    NoDescriptors(String),
    TooLarge,
    /// Users other than the owner and the group can read the key.
    KeyReadableByOthers(u32),
    /// A certificate without its key; holds the path where the key is expected.
    NoKey(PathBuf),
    /// A key without its certificate.
    NoCertificate,
    HoldsNoCertificate,
    HoldsNoKey,
    /// The contents do not match the file's name; with details.
    Malformed(String),
    /// The key's type is not supported.
    UnknownKey,
    /// The key is encrypted and no passphrase is configured.
    NoPassphrase,
    /// The passphrase does not decrypt the key.
    WrongPassphrase,
    /// The key is encrypted with an insecure, outdated algorithm.
    OldEncryption,
    Mismatch,
    /// The certificate contains no DNS name.
    NoNames,
    /// The certificate has expired.
    Expired(String),
    /// The certificate is not valid yet.
    NotYetValid(String),
    /// The directory holds no usable certificate: no client can connect.
    Empty,
}

impl CertificateFault {
    pub(super) fn new(path: &Path, kind: CertificateFaultKind) -> Self {
        Self { path: path.to_owned(), kind }
    }

    /// Makes the error for a file that cannot be read, with the cause.
    pub(super) fn unreadable(path: &Path, error: &io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => in_the_way(path),
            _ => None,
        };
        let text = why.unwrap_or_else(|| match error.raw_os_error() {
            Some(nix::libc::ELOOP) => "its symbolic link is a loop".to_owned(),
            _ => error.to_string(),
        });
        let kind = match sys::descriptors::are_exhausted(error) {
            true => CertificateFaultKind::NoDescriptors(text),
            false => CertificateFaultKind::Unreadable(text),
        };
        Self::new(path, kind)
    }

    /// Returns true if the cause is outside the file, so that a retry may succeed although the file has not changed.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self.kind, CertificateFaultKind::NoDescriptors(_))
    }

    /// Returns the error of a certificate that is expired or not valid yet.
    pub(super) fn untimely(path: &Path, facts: &Facts, now: SystemTime) -> Option<Self> {
        let kind = match facts.validity(now) {
            Validity::Valid => return None,
            Validity::Expired => CertificateFaultKind::Expired(timestamp(facts.not_after)),
            Validity::NotYet => CertificateFaultKind::NotYetValid(timestamp(facts.not_before)),
        };
        Some(Self::new(path, kind))
    }
}

impl fmt::Display for CertificateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CertificateFaultKind as Kind;
        let path = self.path.display();
        match &self.kind {
            Kind::Unreadable(why) | Kind::NoDescriptors(why) => write!(f, "{path}: cannot be read: {why}"),
            Kind::TooLarge => {
                write!(f, "{path}: more than {} bytes for a certificate", FILE_LIMIT)
            }
            Kind::KeyReadableByOthers(mode) => write!(
                f,
                "{path}: other users can read this private key (mode {mode:04o}); it is refused until `chmod o= {path}`"
            ),
            Kind::NoKey(key) => write!(f, "{path}: its key is missing; it should be {}", key.display()),
            Kind::NoCertificate => write!(f, "{path}: its certificate is missing; put it beside it as .crt"),
            Kind::HoldsNoCertificate => write!(f, "{path}: holds no certificate in PEM (BEGIN CERTIFICATE)"),
            Kind::HoldsNoKey => write!(f, "{path}: holds no private key (BEGIN PRIVATE KEY)"),
            Kind::Malformed(why) => write!(f, "{path}: cannot be understood: {why}"),
            Kind::UnknownKey => write!(
                f,
                "{path}: unsupported key; supported: RSA of 2048 to 8192 bits, ECDSA on P-256, P-384 or P-521, Ed25519"
            ),
            Kind::NoPassphrase => write!(
                f,
                "{path}: the key is encrypted; put its passphrase beside it as .pass, or name a key-passphrase-file"
            ),
            Kind::WrongPassphrase => write!(f, "{path}: the passphrase does not open the key"),
            Kind::OldEncryption => write!(
                f,
                "{path}: the key is encrypted in an unsupported format; convert it: openssl pkcs8 -topk8 -v2 aes256"
            ),
            Kind::Mismatch => write!(f, "{path}: key and certificate do not belong together"),
            Kind::NoNames => write!(f, "{path}: the certificate names no DNS host (subjectAltName)"),
            Kind::Expired(when) => write!(f, "{path}: the certificate expired at {when}; renew it"),
            Kind::NotYetValid(when) => {
                write!(f, "{path}: the certificate is not valid before {when}; is the clock right?")
            }
            Kind::Empty => {
                write!(f, "{path}: no usable certificate: put NAME.pem, or NAME.crt and NAME.key, there")
            }
        }
    }
}

/// Returns advice on which user needs which permission on which path. `None` if that cannot be determined.
fn in_the_way(path: &Path) -> Option<String> {
    let real = std::fs::canonicalize(path).ok();
    let path = real.as_deref().unwrap_or(path);
    let uid = nix::unistd::geteuid();
    let who = match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => format!("the user {} (uid {uid}) that penstock runs as", user.name),
        _ => format!("uid {uid}, which penstock runs as,"),
    };
    let mut ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.reverse();
    for pair in ancestors.windows(2) {
        let [directory, inner] = pair else { continue };
        let Err(error) = inner.symlink_metadata() else { continue };
        let of =
            directory.symlink_metadata().ok().filter(|_| error.kind() == io::ErrorKind::PermissionDenied)?;
        return Some(format!("{who} may not enter {}: {}", directory.display(), ownership(directory, &of)));
    }
    // A symbolic link on the path may lead to a directory that this user may not read.
    let target = std::fs::read_link(path).ok();
    if let Some(target) = target {
        let target = path.parent()?.join(target);
        return Some(format!("{who} may not follow the link to {}", target.display()));
    }
    let of = path.metadata().ok()?;
    Some(format!("{who} may not read it: {}", ownership(path, &of)))
}

/// What a user may change about a path. No user gets a right to `/` by it: every user may enter `/` on a sound machine.
fn ownership(path: &Path, of: &std::fs::Metadata) -> String {
    if path.parent().is_none() {
        return format!("it has mode {:04o}", of.permissions().mode() & 0o7777);
    }
    format!(
        "it has mode {:04o} and belongs to {}:{}; give that user's group the right (chgrp, chmod g+rX), or copy the files",
        of.permissions().mode() & 0o7777,
        of.uid(),
        of.gid()
    )
}
