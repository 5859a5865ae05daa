//! Authorities, certificates of servers and clients, and revocation lists for tests, made by rcgen. Only what rcgen
//! cannot make (RSA keys, unusual curves and hashes, encrypted keys) comes from openssl, in `crate::ocsp` and in single
//! tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

use crate::peers::Process;
use crate::{secs, tools};

/// A CA, which issues certificates and revocation lists.
pub struct Authority(pub CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates a self-signed CA.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A revocation list (PEM) of serial numbers, with `until` as its next update.
    pub fn list(&self, revoked: &[u64], until: (i32, u8, u8)) -> String {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(until.0, until.1, until.2),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// Issues `stem.crt` and `stem.key`, for a client unless `change` says otherwise.
    pub fn issue(&self, dir: &Path, stem: &str, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(stem);
        params.serial_number = Some(SerialNumber::from(0x1234u64));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        Pair::write(dir, stem, &params.signed_by(&key, &self.0).unwrap(), &key)
    }
}

/// An authority with its certificate in `ca.pem` of a directory, where it also writes the certificates that it issues.
pub struct Pki {
    dir: PathBuf,
    authority: Authority,
}

impl Pki {
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let authority = Authority::new(&own_name());
        fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
        Self { dir: dir.to_owned(), authority }
    }

    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Issues a certificate for servers and clients.
    pub fn issue(&self, stem: &str, names: &[&str], time: Time) -> Pair {
        self.authority.issue(&self.dir, stem, |params| *params = of_names(names, time))
    }
}

/// Validity of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Time {
    Now,
    Over,
    ToCome,
}

pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub der: Vec<u8>,
}

impl Pair {
    fn write(dir: &Path, stem: &str, certificate: &Certificate, key: &KeyPair) -> Self {
        let at = |end: &str| dir.join(format!("{stem}.{end}"));
        let pair = Self { certificate: at("crt"), key: at("key"), der: certificate.der().to_vec() };
        fs::write(&pair.certificate, certificate.pem()).unwrap();
        write_private(&pair.key, &key.serialize_pem());
        pair
    }

    pub fn for_curl(&self) -> [&str; 4] {
        ["--cert", self.certificate.to_str().unwrap(), "--key", self.key.to_str().unwrap()]
    }

    pub fn for_openssl(&self) -> [&str; 4] {
        ["-cert", self.certificate.to_str().unwrap(), "-key", self.key.to_str().unwrap()]
    }
}

/// Makes a self-signed certificate, `stem.crt` and `stem.key`, as `openssl req -x509` does.
pub fn self_signed(dir: &Path, stem: &str, names: &[&str], time: Time) -> Pair {
    let (certificate, key) = signed_by_itself(names, time);
    Pair::write(dir, stem, &certificate, &key)
}

/// [`self_signed`] with certificate and key in one file.
pub fn server_pair(path: &Path, names: &[&str]) {
    let (certificate, key) = signed_by_itself(names, Time::Now);
    write_private(path, &(certificate.pem() + &key.serialize_pem()));
}

pub fn dns(name: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(name).unwrap())
}

fn signed_by_itself(names: &[&str], time: Time) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = of_names(names, time);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.self_signed(&key).unwrap(), key)
}

fn of_names(names: &[&str], time: Time) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = named(&own_name());
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let day = Duration::from_secs(24 * 60 * 60);
    let now = SystemTime::now();
    let (from, to) = match time {
        Time::Now => (now - day, now + day * 30),
        Time::Over => (now - day * 3, now - day),
        Time::ToCome => (now + day, now + day * 3),
    };
    (params.not_before, params.not_after) = (from.into(), to.into());
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

/// A unique name, so that authorities of different tests are not confused.
fn own_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("test {}", COUNT.fetch_add(1, SeqCst))
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// `openssl s_server` on a free port, which answers every request with a page about the connection.
pub fn s_server(files: &Pair, more: &[&str]) -> Process {
    let mut command = Command::new(tools::program("openssl"));
    command.args(["s_server", "-accept", "127.0.0.1:0", "-www", "-cert"]).arg(&files.certificate);
    command.arg("-key").arg(&files.key).args(more);
    let mut process = Process::start(&mut command);
    let line = process.stdout.wait_for("ACCEPT ", secs(20));
    process.address = line.trim_start_matches("ACCEPT ").trim().to_owned();
    process
}
