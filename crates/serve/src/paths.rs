//! Paths that a configuration needs while the process serves, each with the key that names it.
//!
//! `crates/serve/src/confinement.rs` gives the process these and no others, and refuses a reload that needs more.

use std::fs;
use std::path::{self, Path, PathBuf};

use config::Config;
use config::types::{AcmeChallenge, BackendAddress, BindAddress, LogTarget, Syslog, SyslogAddress, Verify};

/// A path, and the key that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub key: String,
    pub path: PathBuf,
    pub access: Access,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A directory is read, or a file, which another one may replace.
    Read,
    /// Files in this directory are made, written and removed.
    Change,
    /// A socket that the process connects to.
    Connect,
}

/// Key of the file with the number of the process. It is made before the user of the process changes.
pub const PID_FILE: &str = "process.pid-file";

/// Returns the paths of a configuration, with the file that it came from.
pub fn of(config: &Config, file: Option<&Path>) -> Vec<Need> {
    let mut needs = Vec::new();
    let mut add = |key: String, path: &Path, access| needs.push(Need { key, path: path.to_owned(), access });
    if let Some(file) = file {
        // A path that cannot be made absolute cannot be read again either: a reload says so.
        add("FILE".to_owned(), &path::absolute(file).unwrap_or_default(), Access::Read);
    }
    for path in &config.included {
        add("include".to_owned(), &path::absolute(path).unwrap_or_default(), Access::Read);
    }
    for file in &config.variable_files {
        add(format!("environment {}", file.variable), &file.path, Access::Read);
    }
    if let Some(control) = &config.control {
        add("control.socket".to_owned(), parent(&control.socket), Access::Change);
    }
    if let Some(remote) = config.remote_control() {
        remote.users.iter().for_each(|path| add("control.users".to_owned(), path, Access::Read));
        if let Some(kerberos) = &remote.kerberos {
            kerberos
                .keytab
                .iter()
                .for_each(|path| add("control.kerberos.keytab".to_owned(), path, Access::Read));
            let files = crate::control::kerberos_files();
            files.iter().for_each(|path| add("KRB5_CONFIG".to_owned(), path, Access::Read));
        }
    }
    if let Some(users) = config.admin.as_ref().and_then(|admin| admin.users.as_deref()) {
        add("admin.users".to_owned(), users, Access::Read);
    }
    if let Some(BindAddress::Unix(path)) = config.admin.as_ref().map(|admin| &admin.bind) {
        add("admin.bind".to_owned(), parent(path), Access::Change);
    }
    if let LogTarget::File(path) = &config.access_log.target {
        add("access-log.target".to_owned(), parent(path), Access::Change);
    }
    if let LogTarget::Syslog(Syslog { to: SyslogAddress::Unix(path), .. }) = &config.access_log.target {
        add("access-log.target".to_owned(), path, Access::Connect);
    }
    if let Some(Syslog { to: SyslogAddress::Unix(path), .. }) = &config.events.syslog {
        add("events.target".to_owned(), path, Access::Connect);
    }
    if let Some(path) = &config.process.pid_file {
        add(PID_FILE.to_owned(), parent(path), Access::Change);
    }
    let directory = config.process.state_directory.as_deref();
    if let Some(path) = state::state_directory::chosen(directory, file) {
        add("process.state-directory".to_owned(), &path, Access::Change);
    }
    for listener in &config.listeners {
        let name = &listener.name;
        for bind in &listener.binds {
            if let BindAddress::Unix(path) = bind {
                add(format!("listener.{name}.bind"), parent(path), Access::Change);
            }
        }
    }
    for (section, tls) in config.tls_sections() {
        let mut read = |key: &str, path: &Path| add(format!("{section}.tls.{key}"), path, Access::Read);
        read("certificates", &tls.certificates);
        tls.key_passphrase_file.iter().for_each(|path| read("key-passphrase-file", path));
        tls.ticket_keys.iter().for_each(|path| read("ticket-keys", path));
        if let Some(clients) = &tls.client_certificates {
            read("client-certificates.ca", &clients.ca);
            clients.crls.iter().for_each(|path| read("client-certificates.crls", path));
        }
    }
    for listener in &config.listeners {
        if let Some(path) = listener.dsr().and_then(|dsr| dsr.hash_key_file.as_ref()) {
            add(format!("listener.{}.hash-key-file", listener.name), path, Access::Read);
        }
    }
    for pool in &config.pools {
        let name = &pool.name;
        for backend in &pool.backends {
            if let BackendAddress::Unix(path) = &backend.address {
                add(format!("pool.{name}.backends"), path, Access::Connect);
            }
        }
        if let Some(cookie) = &pool.sticky_cookie {
            add(format!("pool.{name}.sticky.key-file"), &cookie.key_file, Access::Read);
        }
        let Some(tls) = &pool.tls else { continue };
        let mut read = |key: &str, path: &Path| add(format!("pool.{name}.tls.{key}"), path, Access::Read);
        if let Verify::File(path) = &tls.verify {
            read("verify", path);
        }
        if let Some(identity) = &tls.identity {
            read("certificate", &identity.certificate);
            read("key", &identity.key);
            identity.key_passphrase_file.iter().for_each(|path| read("key-passphrase-file", path));
        }
    }
    for acl in &config.acls {
        acl.file.iter().for_each(|path| add(format!("acl.{}.file", acl.list.name()), path, Access::Read));
    }
    if let Some(geoip) = &config.geoip {
        add("geoip.database".to_owned(), &geoip.database, Access::Read);
    }
    if let Some(otp) = &config.otp {
        add("otp.store".to_owned(), &otp.store, Access::Change);
        add("otp.key-file".to_owned(), &otp.key_file, Access::Read);
        otp.users.iter().for_each(|path| add("otp.users".to_owned(), path, Access::Read));
        otp.auth_socket.iter().for_each(|path| add("otp.socket".to_owned(), parent(path), Access::Change));
    }
    for acme in &config.acme {
        let name = &acme.name;
        add(format!("acme.{name}.state"), &acme.state, Access::Change);
        acme.ca.iter().for_each(|path| add(format!("acme.{name}.ca"), path, Access::Read));
        if let AcmeChallenge::Dns01(dns) = &acme.challenge {
            add(format!("acme.{name}.dns.key-file"), &dns.key_file, Access::Read);
        }
        if let Some(tlsa) = &acme.tlsa {
            add(format!("acme.{name}.tlsa.key-file"), &tlsa.key_file, Access::Read);
        }
        let account = acme.external_account.iter();
        account
            .for_each(|it| add(format!("acme.{name}.external-account.key-file"), &it.key_file, Access::Read));
    }
    needs
}

/// Reports whether the configuration has backends behind SSH, whose client may start programs of ssh_config(5).
pub fn starts_programs(config: &Config) -> bool {
    let mut backends = config.pools.iter().flat_map(|pool| &pool.backends);
    backends.any(|backend| matches!(backend.address, BackendAddress::Ssh { .. }))
}

impl Need {
    /// Directories and files that must be reachable for this. The directory above is among them, because a renewal
    /// replaces what is in it, and the targets of links, because the kernel asks where a file is, not what it is called.
    pub fn reachable(&self) -> Vec<PathBuf> {
        if self.access == Access::Connect {
            return Vec::new();
        }
        let mut found = Vec::new();
        // Directories are replaced too.
        let above = parent(&self.path).canonicalize().ok().filter(|above| above.components().count() > 2);
        found.extend(above.filter(|_| self.access == Access::Read));
        // Other users may put links into directories that are written to.
        let depth = match self.access {
            Access::Read => 2,
            Access::Change | Access::Connect => 0,
        };
        follow(&self.path, &mut found, depth);
        found
    }
}

fn follow(path: &Path, found: &mut Vec<PathBuf>, depth: usize) {
    let (Some(real), Some(above)) = (existing(path), path.parent().and_then(existing)) else { return };
    if real.is_dir() {
        if !found.contains(&real) {
            found.push(real.clone());
        }
        let Some(depth) = depth.checked_sub(1) else { return };
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            let kind = entry.file_type();
            if kind.is_ok_and(|kind| kind.is_dir() || kind.is_symlink()) {
                follow(&entry.path(), found, depth);
            }
        }
        return;
    }
    // certbot keeps live/NAME/cert.pem as a link to archive/NAME/cert3.pem, and replaces both.
    let target = parent(&real);
    let both =
        above.ancestors().find(|ancestor| target.starts_with(ancestor) && ancestor.components().count() > 2);
    for directory in [both.unwrap_or(target), &*above] {
        let directory = if directory == Path::new("/") { &real } else { directory };
        if !found.iter().any(|known| directory.starts_with(known)) {
            found.push(directory.to_owned());
        }
    }
}

/// The path without links, or the nearest directory above it that exists: a directory may be made later. None if that
/// would be the root directory or one in it.
fn existing(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().or_else(|| {
        let above = path.ancestors().skip(1).find_map(|above| above.canonicalize().ok())?;
        (above.components().count() > 2).then_some(above)
    })
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}
