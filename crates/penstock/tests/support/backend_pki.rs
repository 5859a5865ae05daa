//! A certificate authority of one test, and certificates of every kind of wrong.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::peers::Process;
use super::{secs, tools};

/// When a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Time {
    Now,
    Over,
    ToCome,
}

/// An authority, with its certificate in `ca.pem`.
pub struct Pki {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Files of a certificate.
pub struct Files {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Pki {
    /// A new authority.
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = params(&[], Time::Now);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir: dir.to_owned(), issuer: Issuer::new(params, key) }
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for servers and clients, signed by the authority.
    pub fn issue(&self, stem: &str, names: &[&str], time: Time) -> Files {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names, time).signed_by(&key, &self.issuer).unwrap();
        write(&self.dir, stem, &certificate.pem(), &key)
    }

    /// One that only its own key has signed, as `openssl req -x509` makes them.
    pub fn self_signed(&self, stem: &str, names: &[&str], time: Time) -> Files {
        let key = KeyPair::generate().unwrap();
        let mut params = params(names, time);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        write(&self.dir, stem, &certificate.pem(), &key)
    }
}

fn params(names: &[&str], time: Time) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("test {}", own_number()));
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let day = Duration::from_secs(24 * 60 * 60);
    let now = SystemTime::now();
    let (from, to) = match time {
        Time::Now => (now - day, now + day),
        Time::Over => (now - day * 3, now - day),
        Time::ToCome => (now + day, now + day * 3),
    };
    (params.not_before, params.not_after) = (from.into(), to.into());
    params
}

/// Authorities of two tests, or two of one, must not look alike.
fn own_number() -> String {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    format!("{}", COUNT.fetch_add(1, std::sync::atomic::Ordering::SeqCst))
}

fn write(dir: &Path, stem: &str, certificate: &str, key: &KeyPair) -> Files {
    let files = Files { certificate: dir.join(format!("{stem}.crt")), key: dir.join(format!("{stem}.key")) };
    fs::write(&files.certificate, certificate).unwrap();
    fs::write(&files.key, key.serialize_pem()).unwrap();
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    files
}

/// `openssl s_server` on a free port, answering every request with a page about the connection.
pub fn s_server(files: &Files, more: &[&str]) -> Process {
    let mut command = Command::new(tools::program("openssl"));
    command.args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cert"]).arg(&files.certificate);
    command.arg("-key").arg(&files.key).args(more);
    let mut process = Process::start(&mut command);
    let line = process.stdout.wait_for("ACCEPT ", secs(20));
    process.address = line.trim_start_matches("ACCEPT ").trim().to_owned();
    process
}
