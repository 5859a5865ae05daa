//! What is kept on disk for one certificate: the certificate with its key, and what was tried for it. Calls here take as
//! long as the disk does.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use config::types::{Acme, AcmeCertificate};
use logic::acme::Progress;
use serde::{Deserialize, Serialize};

use super::fault::Fault;
use crate::tls::Bundle;
use crate::{file, state_directory};

/// Largest file of ours.
const LARGEST: u64 = 1024 * 1024;

/// Files of one certificate.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// Where everything of the section is.
    directory: PathBuf,
    /// Key and chain: what listeners serve.
    bundle: PathBuf,
    progress: PathBuf,
    lock: PathBuf,
    /// What was asked for: of another wish, nothing that was tried counts.
    wish: u64,
}

/// What was tried, as its file has it. Times are seconds of Unix time.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Noted {
    wish: u64,
    failures: u32,
    failed_at: Option<u64>,
    not_before: Option<u64>,
    asked_until: Option<u64>,
    issued: [Option<u64>; 2],
    reason: Option<String>,
}

impl Files {
    pub(super) fn new(settings: &Acme, certificate: &AcmeCertificate) -> Self {
        let name = &certificate.name;
        let wish = format!("{:?}", (&settings.directory, settings.challenge, &settings.profile, certificate));
        Self {
            directory: settings.state.clone(),
            bundle: settings.certificates_directory().join(format!("{name}.pem")),
            progress: settings.state.join(format!("{name}.json")),
            lock: settings.state.join(format!("{name}.lock")),
            wish: logic::balance::hash_bytes(0, wish.as_bytes()),
        }
    }

    /// Makes the directories, for this process's user only.
    pub(super) fn prepare(&self) -> Result<(), Fault> {
        let certificates = self.bundle.parent().unwrap_or(&self.directory);
        DirBuilder::new().recursive(true).mode(0o700).create(certificates).map_err(|source| Fault::File {
            path: certificates.to_owned(),
            what: "written",
            source,
        })
    }

    /// The certificate that is there; `None` without one, or with one that cannot be used.
    pub(super) fn bundle(&self) -> Option<Bundle> {
        let text = file::read(&self.bundle, LARGEST).ok()?;
        Bundle::read(&text).ok()
    }

    /// Puts a new one in its place, in one step: whoever watches sees the old one or the new one.
    pub(super) fn install(&self, text: &str) -> Result<(), Fault> {
        write(&self.bundle, text.as_bytes())
    }

    /// Whether there is room for what an order will bring. Asked before: an order that cannot be kept is spent.
    pub(super) fn probe(&self) -> Result<(), Fault> {
        let probe = self.bundle.with_extension("probe");
        write(&probe, &[b'x'; 16 * 1024])?;
        fs::remove_file(&probe).map_err(|source| Fault::File { path: probe, what: "written", source })
    }

    /// What was tried, and why the last try failed.
    pub(super) fn progress(&self) -> (Progress, Option<String>) {
        let noted = file::read(&self.progress, LARGEST).ok();
        let noted = noted.and_then(|text| serde_json::from_slice::<Noted>(&text).ok()).unwrap_or_default();
        let at = |seconds: Option<u64>| {
            seconds.and_then(|it| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(it)))
        };
        let issued = noted.issued.map(at);
        if noted.wish != self.wish {
            return (Progress { issued, ..Progress::default() }, None);
        }
        let progress = Progress {
            failures: noted.failures,
            failed_at: at(noted.failed_at),
            not_before: at(noted.not_before),
            asked_until: at(noted.asked_until),
            issued,
        };
        (progress.resumed(), noted.reason)
    }

    /// Keeps what was tried.
    pub(super) fn note(&self, progress: &Progress, reason: Option<&str>) -> Result<(), Fault> {
        let seconds = |at: Option<SystemTime>| {
            at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|since| since.as_secs())
        };
        let noted = Noted {
            wish: self.wish,
            failures: progress.failures,
            failed_at: seconds(progress.failed_at),
            not_before: seconds(progress.not_before),
            asked_until: seconds(progress.asked_until),
            issued: progress.issued.map(seconds),
            reason: reason.map(ToOwned::to_owned),
        };
        let text = serde_json::to_vec(&noted).map_err(|error| Fault::Crypto(error.to_string()))?;
        write(&self.progress, &text)
    }

    /// Takes the lock that lets one process at a time order this certificate. `None`: another one has it.
    pub(super) fn lock(&self) -> Result<Option<File>, Fault> {
        lock_file(&self.lock)
    }
}

/// Takes a lock, made if it is not there; it ends with the file. `None`: another process has it.
pub(super) fn lock_file(path: &Path) -> Result<Option<File>, Fault> {
    let fault = |source| Fault::File { path: path.to_owned(), what: "written", source };
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(fault)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(fault(error)),
    }
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Fault> {
    state_directory::write(path, bytes).map_err(|source| Fault::File {
        path: path.to_owned(),
        what: "written",
        source,
    })
}

/// Runs what waits for the disk where it holds up nobody.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Fault::File { path: PathBuf::new(), what: "read", source: io::Error::other(error) })
    })
}
