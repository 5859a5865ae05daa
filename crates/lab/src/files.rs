//! The directory of a lab: its identities, and the files that clients need.
//!
//! `seed` (from which all host keys are derived), `client_key`, `authorized_keys`, `hosts`, `ssh_config`,
//! `known_hosts`, `config/penstock/hosts`, `config/penstock/groups`, `clustershell`, `home/.ssh/config`, `journal`, and
//! `files` with the files that were copied to the hosts. A running lab holds a lock on `lock`. Secret files have mode
//! 0600.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::{hmac, rand};
use hosts::identity::{HostFile, Moment, Name, Pin, Proof};
use nix::fcntl::OFlag;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;

use crate::error::LabError;
use crate::fault::{self, Fault, Kind, Parameter};
use crate::host::{Host, Keys};
use crate::name::{PREFIX, host_name};
use crate::place::{self, failed, replace};

pub(crate) struct Files {
    directory: PathBuf,
    seed: hmac::Key,
    /// The lock is held until this file is closed.
    lock: File,
}

impl Files {
    /// Creates the directory and its keys, or loads the keys of an earlier lab.
    pub(crate) fn prepare(directory: &Path) -> Result<Self, LabError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(failed("make", directory))?;
        // The files contain this path, and their readers have another working directory.
        let directory = directory.canonicalize().map_err(failed("find", directory))?;
        place::look(&directory)?;
        only_of_a_lab(&directory)?;
        let lock = lock(&directory)?;
        let seed = seed(&directory)?;
        let files = Self { directory, seed, lock };
        files.write_client_key(&files.derive("client"))?;
        place::make(&files.directory, "files")?;
        Ok(files)
    }

    /// Absolute path of the directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The keys of a host: its own key, and the key that it shows when its fault is a false identity.
    pub(crate) fn keys_of(&self, number: usize, hosts: usize, fault: Option<&Fault>) -> Keys {
        let other = match fault {
            Some(Fault { kind: Kind::WrongHost, parameter, .. }) => {
                let other = match parameter {
                    Parameter::Host(Some(name)) => fault::host_number(name).map(|number| number - 1),
                    _ => None,
                };
                host_name(other.unwrap_or((number + 1) % hosts), hosts)
            }
            _ => format!("other {}", host_name(number, hosts)),
        };
        Keys { own: self.derive(&host_name(number, hosts)), other: self.derive(&other) }
    }

    /// Derives a key from a name: the same seed and name give the same key.
    fn derive(&self, name: &str) -> PrivateKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hmac::sign(&self.seed, name.as_bytes()).as_ref());
        Ed25519Keypair::from_seed(&bytes).into()
    }

    /// Keys that may log in: the key of the lab, and keys that the user has added to the file.
    pub(crate) fn authorized_keys(&self) -> Result<Vec<russh::keys::PublicKey>, LabError> {
        let path = self.path("authorized_keys");
        let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| {
                russh::keys::PublicKey::from_openssh(line).map_err(|error| LabError::Keys {
                    path: path.display().to_string(),
                    why: format!("`{}` is not a public key: {error}", line.escape_default()),
                })
            })
            .collect()
    }

    /// Writes the files that contain addresses. The returned file holds the lock, which keeps other labs out of the
    /// directory.
    pub(crate) fn write(self, hosts: &[Arc<Host>]) -> Result<File, LabError> {
        let mut names = String::new();
        let mut known = String::new();
        for host in hosts {
            let (ip, port) = (host.address.ip(), host.address.port());
            // A write to a string cannot fail.
            let _ = writeln!(names, "{}", host.name);
            let _ = writeln!(known, "{},[{ip}]:{port} {}", host.name, host.public);
        }
        self.replace("hosts", &names, 0o644)?;
        self.replace("known_hosts", &known, 0o644)?;
        let config = self.ssh_config(hosts);
        self.replace("ssh_config", &config, 0o644)?;
        // A user's configuration, for programs that are started with `HOME` set to this `home`.
        self.make("home/.ssh")?;
        self.replace("home/.ssh/config", &config, 0o600)?;
        self.write_identities(hosts)?;
        let all = set(hosts);
        self.replace("config/penstock/groups", format!("{WRITTEN}{PREFIX}: {all}\n"), 0o644)?;
        self.make("clustershell/groups.d")?;
        self.replace("clustershell/groups.conf", format!("{WRITTEN}{GROUPS_CONF}"), 0o644)?;
        let groups = format!("{WRITTEN}{PREFIX}:\n  {PREFIX}: '{all}'\n  all: '{all}'\n");
        self.replace("clustershell/groups.d/lab.yaml", groups, 0o644)?;
        Ok(self.lock)
    }

    /// Writes one identity file for each host, as `penstock host` does, for clients with `XDG_CONFIG_HOME` set to
    /// `config`. An existing file stays: if the lab has been restarted at other addresses, the clients must detect the
    /// change.
    fn write_identities(&self, hosts: &[Arc<Host>]) -> Result<(), LabError> {
        let directory = self.make("config/penstock/hosts")?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let date = Moment(now).date();
        for host in hosts {
            let path = directory.join(format!("{}.host", host.name));
            if path.exists() {
                continue;
            }
            let name: Name =
                host.name.parse().map_err(|_| self.keys(format!("{} is not a name", host.name)))?;
            let mut file = HostFile::new(name);
            file.add_address(host.address.ip());
            file.set_port(host.address.port());
            file.pin_key(Pin { key: host.public.clone(), proof: Proof::Key, date, by: None, absent: None });
            replace(&path, file.to_string().as_bytes(), 0o600)?;
        }
        Ok(())
    }

    fn ssh_config(&self, hosts: &[Arc<Host>]) -> String {
        let mut text = String::from(WRITTEN);
        for Host { name, address, .. } in hosts.iter().map(Arc::as_ref) {
            let _ = writeln!(text, "Host {name}\n  HostName {}\n  HostKeyAlias {name}", address.ip());
        }
        let port = hosts.first().map_or(22, |host| host.address.port());
        let [known, key] = ["known_hosts", "client_key"].map(|name| quoted(&self.path(name)));
        let _ = write!(
            text,
            "Host lab*
  Port {port}
  User lab
  IdentityFile {key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {known}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
"
        );
        text
    }

    fn write_client_key(&self, key: &PrivateKey) -> Result<(), LabError> {
        let mut key = key.clone();
        key.set_comment("penstock-lab");
        let text = key.to_openssh(LineEnding::LF).map_err(|error| self.keys(error.to_string()))?;
        let public = key.public_key().to_openssh().map_err(|error| self.keys(error.to_string()))? + "\n";
        self.replace("client_key", text.as_bytes(), 0o600)?;
        self.replace("client_key.pub", &public, 0o644)?;
        match self.path("authorized_keys").try_exists() {
            Ok(true) => Ok(()),
            _ => self.replace("authorized_keys", &public, 0o644),
        }
    }

    fn make(&self, name: &str) -> Result<PathBuf, LabError> {
        place::make(&self.directory, name)
    }

    fn replace(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> Result<(), LabError> {
        replace(&self.path(name), content.as_ref(), mode)
    }

    fn keys(&self, why: String) -> LabError {
        no_keys(&self.directory, why)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// The set of all hosts, which is the group `lab`: `@lab` in `penstock run` and in ClusterShell.
fn set(hosts: &[Arc<Host>]) -> String {
    match hosts {
        [] => String::new(),
        [only] => only.name.clone(),
        [first, .., last] => format!("{PREFIX}[{}-{}]", digits(first), digits(last)),
    }
}

fn digits(host: &Host) -> &str {
    host.name.strip_prefix(PREFIX).unwrap_or_default()
}

/// Refuses a directory without a lab: `known_hosts`, `ssh_config` and others would be replaced, which may be those of a
/// user.
fn only_of_a_lab(directory: &Path) -> Result<(), LabError> {
    let found = || -> io::Result<Option<PathBuf>> {
        if directory.join("seed").try_exists()? {
            return Ok(None);
        }
        // Files that a lab leaves if it ends early in its start.
        let ours = |name: &std::ffi::OsStr| name == "lock" || name == "seed.new";
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if !ours(&entry.file_name()) {
                return Ok(Some(entry.path()));
            }
        }
        Ok(None)
    };
    match found().map_err(failed("look into", directory))? {
        None => Ok(()),
        Some(file) => Err(LabError::Foreign {
            path: directory.display().to_string(),
            file: file.file_name().unwrap_or_default().to_string_lossy().escape_debug().to_string(),
        }),
    }
}

/// Locks the directory: two labs in one directory would each replace the files of the other.
fn lock(directory: &Path) -> Result<File, LabError> {
    let path = directory.join("lock");
    // O_NOFOLLOW refuses a symbolic link; O_NONBLOCK keeps a FIFO from blocking.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let file = options.open(&path);
    let file = file.map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LabError::Busy { path: directory.display().to_string() }),
        Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source)),
    }
}

/// The seed of all host keys, so that 3,000 keys need one small file.
fn seed(directory: &Path) -> Result<hmac::Key, LabError> {
    let path = directory.join("seed");
    let bytes = match fs::read(&path) {
        Ok(bytes) if bytes.len() == SEED_BYTES => bytes,
        Ok(bytes) => {
            let why =
                format!("seed has {} bytes instead of {SEED_BYTES}; remove it for new keys", bytes.len());
            return Err(no_keys(directory, why));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut bytes = vec![0; SEED_BYTES];
            rand::fill(&mut bytes)
                .map_err(|_| no_keys(directory, "the system gives no random bytes".into()))?;
            replace(&path, &bytes, 0o600)?;
            bytes
        }
        Err(error) => return Err(failed("read", &path)(error)),
    };
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

fn no_keys(directory: &Path, why: String) -> LabError {
    LabError::Keys { path: directory.display().to_string(), why }
}

/// A path in the syntax of `ssh_config`: in quotes, with `%` doubled.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('%', "%%"))
}

const WRITTEN: &str = "# Written by penstock lab.\n";
const GROUPS_CONF: &str = "[Main]\ndefault: lab\nautodir: \"$CFGDIR/groups.d\"\n";
const SEED_BYTES: usize = 32;
