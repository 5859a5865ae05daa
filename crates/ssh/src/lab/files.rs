//! The directory of a lab: its identities, and what clients need to reach it.
//!
//! `seed` (all host keys are made of it), `client_key`, `authorized_keys`, `hosts`, `ssh_config`, `known_hosts`,
//! `config/penstock/hosts`, `config/penstock/groups`, `clustershell`, `home/.ssh/config`, `journal`, and `files` with what was copied to the
//! hosts. `lock` is held while a lab runs there. What is secret has mode 0600.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::{hmac, rand};
use logic::identity::{HostFile, Moment, Name, Pin, Proof};
use nix::fcntl::OFlag;
use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::Ed25519Keypair;

use super::fault::{self, Fault, Kind, Parameter};
use super::host::{Host, Keys};
use super::place::{self, failed, replace};
use super::{LabError, PREFIX, host_name};

/// The directory of a lab.
pub(super) struct Files {
    directory: PathBuf,
    seed: hmac::Key,
    /// Held as long as this is open.
    lock: File,
}

impl Files {
    /// Makes the directory and its keys, or finds those of the last time.
    pub(super) fn prepare(directory: &Path) -> Result<Self, LabError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(failed("make", directory))?;
        // Everything written below names this path, and other programs do not know where we started.
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

    /// Where they are, from the root.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The keys of a host: its own, and the one it shows when it lies.
    pub(super) fn keys_of(&self, number: usize, hosts: usize, fault: Option<&Fault>) -> Keys {
        let other = match fault {
            Some(Fault { kind: Kind::Impostor, parameter, .. }) => {
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

    /// The key of a name: always the same for the same seed.
    fn derive(&self, name: &str) -> PrivateKey {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hmac::sign(&self.seed, name.as_bytes()).as_ref());
        Ed25519Keypair::from_seed(&bytes).into()
    }

    /// The keys that may log in: that of the lab, and whatever somebody added to the file.
    pub(super) fn authorized_keys(&self) -> Result<Vec<russh::keys::PublicKey>, LabError> {
        let path = self.path("authorized_keys");
        let text = fs::read_to_string(&path).map_err(failed("read", &path))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| {
                russh::keys::PublicKey::from_openssh(line).map_err(|error| LabError::Keys {
                    path: path.display().to_string(),
                    why: format!("`{}` is no public key: {error}", line.escape_default()),
                })
            })
            .collect()
    }

    /// Writes what depends on the addresses. What comes back keeps other labs out of the directory as long as it is held.
    pub(super) fn write(self, hosts: &[Arc<Host>]) -> Result<File, LabError> {
        let mut names = String::new();
        let mut known = String::new();
        for host in hosts {
            let (ip, port) = (host.address.ip(), host.address.port());
            // Writing to a string does not fail.
            let _ = writeln!(names, "{}", host.name);
            let _ = writeln!(known, "{},[{ip}]:{port} {}", host.name, host.public);
        }
        self.replace("hosts", &names, 0o644)?;
        self.replace("known_hosts", &known, 0o644)?;
        let config = self.ssh_config(hosts);
        self.replace("ssh_config", &config, 0o644)?;
        // The same as that of a user, for programs that are given a home.
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

    /// A file for each host, as `penstock host` keeps them, for who sets `XDG_CONFIG_HOME` to `config`. One that is
    /// there stays: a lab that is started again at other addresses has moved, and that is for clients to notice.
    fn write_identities(&self, hosts: &[Arc<Host>]) -> Result<(), LabError> {
        let directory = self.make("config/penstock/hosts")?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let date = Moment(now).date();
        for host in hosts {
            let path = directory.join(format!("{}.host", host.name));
            if path.exists() {
                continue;
            }
            let name: Name = host.name.parse().map_err(|_| self.keys(format!("{} is no name", host.name)))?;
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

/// All hosts, which are the group `lab`: `@lab` of `penstock run` and of ClusterShell.
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

/// `known_hosts`, `ssh_config` and others are replaced: not those of somebody who names the wrong directory.
fn only_of_a_lab(directory: &Path) -> Result<(), LabError> {
    let found = || -> io::Result<Option<PathBuf>> {
        if directory.join("seed").try_exists()? {
            return Ok(None);
        }
        // What a lab that did not get far leaves there.
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

/// Two labs in one directory would each replace what the clients of the other read.
fn lock(directory: &Path) -> Result<File, LabError> {
    let path = directory.join("lock");
    // Neither a link nor a pipe, which would have to be waited for.
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

/// What all host keys are made of, so that three thousand of them need one small file.
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

/// A path as `ssh_config` takes it: in quotes, with the percent sign doubled.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('%', "%%"))
}

const WRITTEN: &str = "# Written by penstock lab.\n";
const GROUPS_CONF: &str = "[Main]\ndefault: lab\nautodir: \"$CFGDIR/groups.d\"\n";
const SEED_BYTES: usize = 32;
