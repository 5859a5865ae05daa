//! Files with PEM: read whole, and not too large.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::fault::{CertificateFault, CertificateFaultKind as Kind, FILE_LIMIT};
use crate::file;

/// What is wrong with a PEM file. The parser's own words hold lines of the file, as numbers.
pub(super) fn pem_words(error: &rustls_pki_types::pem::Error) -> String {
    use rustls_pki_types::pem::Error;
    match error {
        Error::MissingSectionEnd { .. } => "it ends before an -----END line: is the file whole?".to_owned(),
        Error::IllegalSectionStart { .. } => "it has a broken -----BEGIN line".to_owned(),
        Error::Base64Decode(_) => "what stands between -----BEGIN and -----END is not base64".to_owned(),
        other => other.to_string(),
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

/// Device, inode, size, and the times of the last change of contents and of the inode.
pub(super) type FileStamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// `None` if the file cannot be looked at, or changed just now: then it must be read.
pub(super) fn file_stamp(path: &Path, now: SystemTime) -> Option<FileStamp> {
    let recent = now.checked_sub(TICK)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let of = fs::metadata(path).ok()?;
    let changed = (of.ctime(), of.ctime_nsec());
    let old = changed < (recent.as_secs() as i64, i64::from(recent.subsec_nanos()));
    old.then(|| (of.dev(), of.ino(), of.size(), (of.mtime(), of.mtime_nsec()), changed))
}

/// A file that changed so recently may change again without its times telling it.
const TICK: Duration = Duration::from_millis(50);
