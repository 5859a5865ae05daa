//! Reads PEM files whole, up to a size limit.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use sys::file;

use super::fault::{CertificateFault, CertificateFaultKind as Kind, FILE_LIMIT};

/// Describes the error in a PEM file. The parser's own messages contain lines of the file as numbers.
pub(super) fn pem_words(error: &rustls_pki_types::pem::Error) -> String {
    use rustls_pki_types::pem::Error;
    match error {
        Error::MissingSectionEnd { .. } => "it ends before an -----END line: is the file whole?".to_owned(),
        Error::IllegalSectionStart { .. } => "it has a broken -----BEGIN line".to_owned(),
        Error::Base64Decode(_) => "the text between -----BEGIN and -----END is not base64".to_owned(),
        other => other.to_string(),
    }
}

/// Reads a certificate file whole.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CertificateFault> {
    let bytes = file::read(path, FILE_LIMIT).map_err(|error| CertificateFault::unreadable(path, &error))?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(CertificateFault::new(path, Kind::TooLarge));
    }
    Ok(bytes)
}

/// Device, inode, size, mtime and ctime of a file.
pub(super) type FileStamp = (u64, u64, u64, (i64, i64), (i64, i64));

/// Returns the state of a file. `None` if it cannot be examined or was changed just now: then it must be read.
pub(super) fn file_stamp(path: &Path, now: SystemTime) -> Option<FileStamp> {
    let recent = now.checked_sub(TICK)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let of = fs::metadata(path).ok()?;
    let changed = (of.ctime(), of.ctime_nsec());
    let old = changed < (recent.as_secs() as i64, i64::from(recent.subsec_nanos()));
    old.then(|| (of.dev(), of.ino(), of.size(), (of.mtime(), of.mtime_nsec()), changed))
}

/// Time after a change within which a file can change again without a change of its times.
const TICK: Duration = Duration::from_millis(50);
