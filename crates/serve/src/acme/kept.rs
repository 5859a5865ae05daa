//! Files of one certificate: the certificate with its key, and the record of its orders. The functions block on the
//! disk.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use config::types::{Acme, AcmeCertificate};
use logic::acme::Progress;
use serde::{Deserialize, Serialize};
use state::state_directory;
use sys::file;
use tls::Bundle;

use super::fault::Fault;

const LARGEST: u64 = 1024 * 1024;

/// A certificate that ends sooner is not worth a wait.
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Debug)]
pub(super) struct Files {
    directory: PathBuf,
    /// File with key and chain that listeners serve.
    bundle: PathBuf,
    progress: PathBuf,
    /// Certificate that was issued and waits for its TLSA record.
    staged: PathBuf,
    lock: PathBuf,
    /// First line of the certificate file, which names the authority.
    origin: String,
    /// Hash of the ordered settings. A record with another hash is ignored.
    wish: u64,
}

/// Record of the orders, as stored in its file. Times are seconds of Unix time.
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
        let wish =
            format!("{:?}", (&settings.directory, &settings.challenge, &settings.profile, certificate));
        let profile = settings.profile.as_deref().map_or(String::new(), |profile| format!(" {profile}"));
        Self {
            origin: format!("# issued by {}{profile}\n", settings.directory),
            directory: settings.state.clone(),
            bundle: settings.certificates_directory().join(format!("{name}.pem")),
            progress: settings.state.join(format!("{name}.json")),
            staged: settings.state.join(format!("{name}.next")),
            lock: settings.state.join(format!("{name}.lock")),
            wish: logic::balance::hash_bytes(0, wish.as_bytes()),
        }
    }

    /// Makes the directories, accessible to the user of this process only.
    fn prepare(&self) -> Result<(), Fault> {
        let certificates = self.bundle.parent().unwrap_or(&self.directory);
        DirBuilder::new().recursive(true).mode(0o700).create(certificates).map_err(|source| Fault::File {
            path: certificates.to_owned(),
            what: "written",
            source,
        })
    }

    /// Reads the certificate. `None` if it is missing, unusable or from another authority.
    pub(super) fn bundle(&self) -> Option<Bundle> {
        let text = file::read(&self.bundle, LARGEST).ok()?;
        let is_foreign = text.starts_with(b"# issued by ") && !text.starts_with(self.origin.as_bytes());
        if is_foreign { None } else { Bundle::read(&text).ok() }
    }

    /// Replaces the certificate file atomically: a watcher sees either the old or the new one.
    pub(super) fn install(&self, text: &str) -> Result<(), Fault> {
        write(&self.bundle, format!("{}{text}", self.origin).as_bytes())
    }

    /// Begins an order: makes the directories, takes the lock that lets one process at a time order this certificate, and
    /// tests the directory. `None` if another process holds the lock: it may be testing as well.
    pub(super) fn begin(&self) -> Result<Option<File>, Fault> {
        self.prepare()?;
        let locked = self.lock()?;
        if locked.is_some() {
            self.probe()?;
        }
        Ok(locked)
    }

    /// Keeps a certificate that may not be used yet: a restart must not order it again.
    pub(super) fn stage(&self, text: &str) -> Result<(), Fault> {
        write(&self.staged, format!("{}{text}", self.origin).as_bytes())
    }

    /// Reads the certificate that waits, if it is for these names and valid for a day or more.
    pub(super) fn staged(&self, names: &[String], now: SystemTime) -> Option<String> {
        let text = String::from_utf8(file::read(&self.staged, LARGEST).ok()?).ok()?;
        let text = text.strip_prefix(&self.origin)?;
        let facts = Bundle::read(text.as_bytes()).ok()?.facts;
        let is_fresh = facts.not_after > now + DAY;
        (is_fresh && names.iter().all(|name| facts.names.contains(name))).then(|| text.to_owned())
    }

    /// Removes the certificate that waited.
    pub(super) fn unstage(&self) {
        // If it stays, it is the same as the one in use, and the next renewal replaces it.
        let _ = fs::remove_file(&self.staged);
    }

    /// Checks that the directory has space for a certificate before the order: an order whose certificate cannot be
    /// saved still counts against the rate limits of the authority.
    fn probe(&self) -> Result<(), Fault> {
        let probe = self.bundle.with_extension("probe");
        write(&probe, &[b'x'; 16 * 1024])?;
        fs::remove_file(&probe).map_err(|source| Fault::File { path: probe, what: "written", source })
    }

    /// Reads the record of the orders and the reason of the last failure.
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

    /// Writes the record of the orders.
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

    /// Takes the lock that lets one process at a time order this certificate. `None` if another process holds it.
    fn lock(&self) -> Result<Option<File>, Fault> {
        lock_file(&self.lock)
    }
}

/// Removes expired certificates that no section orders any more. Returns their names.
pub(super) fn remove_unwanted(settings: &Acme) -> Vec<String> {
    let Ok(entries) = fs::read_dir(settings.certificates_directory()) else { return Vec::new() };
    let is_over = |path: &Path| {
        let text = file::read(path, LARGEST).ok();
        let bundle = text.and_then(|text| Bundle::read(&text).ok());
        bundle.is_some_and(|bundle| bundle.facts.not_after < SystemTime::now())
    };
    let mut removed = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".pem")) else {
            continue;
        };
        let is_wanted = settings.certificates.iter().any(|certificate| *certificate.name == *name);
        if !is_wanted && is_over(&path) && fs::remove_file(&path).is_ok() {
            removed.push(name.to_owned());
        }
    }
    removed
}

/// Removes certificates, with their keys, that were issued and wait for a TLSA record that no section asks for any more.
/// Returns their names.
pub(super) fn remove_unwanted_next(settings: &Acme) -> Vec<String> {
    let Ok(entries) = fs::read_dir(&settings.state) else { return Vec::new() };
    let mut removed = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".next")) else {
            continue;
        };
        let is_ordered = settings.certificates.iter().any(|certificate| *certificate.name == *name);
        let is_wanted = settings.tlsa.is_some() && is_ordered;
        if !is_wanted && fs::remove_file(&path).is_ok() {
            removed.push(name.to_owned());
        }
    }
    removed
}

/// Creates and locks the file at `path`. Closing the file releases the lock. `None` if another process holds it.
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

/// Runs `work` on a thread for blocking calls, so that no worker waits for the disk.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Fault::File { path: PathBuf::new(), what: "read", source: io::Error::other(error) })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use config::types::AcmeChallenge;

    use super::*;

    fn settings(state: &Path, directory: &str) -> Acme {
        Acme {
            name: "test".into(),
            directory: directory.into(),
            contacts: Vec::new(),
            challenge: AcmeChallenge::Http01,
            tlsa: None,
            ca: None,
            profile: None,
            external_account: None,
            certificates: vec![AcmeCertificate {
                name: "a.example".into(),
                names: vec!["a.example".to_owned()],
            }],
            state: state.to_owned(),
        }
    }

    fn files(settings: &Acme) -> Files {
        Files::new(settings, &settings.certificates[0])
    }

    fn issued(until: Duration) -> String {
        let mut parameters = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        parameters.not_after = (SystemTime::UNIX_EPOCH + until).into();
        let key = rcgen::KeyPair::generate().unwrap();
        format!("{}{}", key.serialize_pem(), parameters.self_signed(&key).unwrap().pem())
    }

    const LONG: Duration = Duration::from_secs(4_000_000_000);
    const PAST: Duration = Duration::from_secs(1_000_000_000);

    #[test]
    fn a_certificate_of_another_authority_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let staging = files(&settings(directory.path(), "https://staging.test/dir"));
        staging.prepare().unwrap();
        assert!(staging.bundle().is_none());
        staging.install(&issued(LONG)).unwrap();
        assert!(staging.bundle().is_some());
        let real = files(&settings(directory.path(), "https://real.test/dir"));
        assert!(real.bundle().is_none());
        // A certificate that the operator put there is valid for every authority.
        fs::write(&real.bundle, issued(LONG)).unwrap();
        assert!(real.bundle().is_some() && staging.bundle().is_some());
    }

    #[test]
    fn what_was_tried_counts_for_the_same_wish_and_is_readable_whatever_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let files_of = |directory_url| files(&settings(directory.path(), directory_url));
        let (one, other) = (files_of("https://one.test/dir"), files_of("https://other.test/dir"));
        let mut progress = Progress::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        progress.issued(now);
        progress.failed(now, logic::acme::OrderFailure::Refused, Some(Duration::from_secs(7200)), 0.0);
        one.note(&progress, Some("why")).unwrap();
        assert_eq!(one.progress(), (progress, Some("why".to_owned())));
        let (elsewhere, reason) = other.progress();
        assert_eq!((elsewhere.failures, reason, elsewhere.issued), (0, None, progress.issued));
        for damaged in ["", "{", "[]", "{\"failures\": -1}"] {
            fs::write(&one.progress, damaged).unwrap();
            assert_eq!(one.progress(), (Progress::default(), None), "{damaged}");
        }
    }

    /// Tries again while the lock is taken: a child that another test has forked holds it until its execve(2).
    fn once_free<T>(attempt: impl Fn() -> Result<Option<T>, Fault>) -> Result<Option<T>, Fault> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match attempt() {
                Ok(None) if Instant::now() < until => std::thread::yield_now(),
                done => return done,
            }
        }
    }

    #[test]
    fn a_lock_is_one_processs_until_it_ends() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(&settings(directory.path(), "https://one.test/dir"));
        let held = files.lock().unwrap();
        assert!(held.is_some() && files.lock().unwrap().is_none());
        drop(held);
        assert!(once_free(|| files.lock()).unwrap().is_some());
    }

    #[test]
    fn a_process_without_the_lock_does_not_disturb_the_test_of_the_one_that_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(&settings(directory.path(), "https://one.test/dir"));
        let held = files.begin().unwrap();
        assert!(held.is_some());
        // The other process is about to remove what it has written.
        let probe = files.bundle.with_extension("probe");
        fs::create_dir(&probe).unwrap();
        assert!(files.begin().unwrap().is_none());
        drop(held);
        assert!(once_free(|| files.begin()).is_err(), "the disk is tested under the lock");
        fs::remove_dir(&probe).unwrap();
        assert!(once_free(|| files.begin()).unwrap().is_some());
    }

    #[test]
    fn what_nobody_orders_is_removed_once_its_time_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), "https://one.test/dir");
        files(&settings).prepare().unwrap();
        let certificates = settings.certificates_directory();
        let texts = [("a.example", PAST), ("old.example", PAST), ("young.example", LONG)];
        for (name, until) in texts {
            fs::write(certificates.join(format!("{name}.pem")), issued(until)).unwrap();
        }
        fs::write(certificates.join("broken.pem"), "nothing").unwrap();
        assert_eq!(remove_unwanted(&settings), ["old.example"]);
        assert_eq!(fs::read_dir(certificates).unwrap().count(), 3);
    }

    #[test]
    fn certificate_that_waits_for_a_name_that_left_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(directory.path(), "https://one.test/dir");
        settings.tlsa = Some(config::types::AcmeTlsa {
            server: ([127, 0, 0, 1], 53).into(),
            key_file: "/none".into(),
            services: Vec::new(),
            servers: Vec::new(),
            limit: DAY,
        });
        files(&settings).stage(&issued(LONG)).unwrap();
        let left = settings.state.join("left.example.next");
        fs::write(&left, issued(LONG)).unwrap();
        assert_eq!(remove_unwanted_next(&settings), ["left.example"]);
        assert!(!left.exists() && files(&settings).staged.exists());
        settings.tlsa = None;
        assert_eq!(remove_unwanted_next(&settings), ["a.example"]);
    }
}
