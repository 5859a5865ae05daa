//! CAs, certificates of clients and revocation lists, made by the tests themselves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType,
    SerialNumber, date_time_ymd,
};

/// A CA that issues certificates of clients, and lists of those that are revoked.
pub struct Authority(pub CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// A self-signed CA.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A list of revoked serial numbers that is valid for long.
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

    /// `stem.crt` and `stem.key` for a client.
    pub fn issue(&self, dir: &Path, stem: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, stem);
        params.serial_number = Some(SerialNumber::from(0x1234u64));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let (crt, key_file) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
        fs::write(&crt, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        Identity { crt, key: key_file, der: certificate.der().to_vec() }
    }
}

/// A client's certificate and key, in files.
pub struct Identity {
    /// Its certificate, PEM.
    pub crt: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// Its certificate, DER.
    pub der: Vec<u8>,
}

impl Identity {
    /// Arguments of curl.
    pub fn for_curl(&self) -> [&str; 4] {
        ["--cert", self.crt.to_str().unwrap(), "--key", self.key.to_str().unwrap()]
    }

    /// Arguments of `openssl s_client`.
    pub fn for_openssl(&self) -> [&str; 4] {
        ["-cert", self.crt.to_str().unwrap(), "-key", self.key.to_str().unwrap()]
    }
}

/// A DNS name of subjectAltName.
pub fn dns(name: &str) -> SanType {
    SanType::DnsName(Ia5String::try_from(name).unwrap())
}

/// A self-signed certificate for a server of these names, with its key, in one file.
pub fn server_pair(path: &Path, names: &[&str]) {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    fs::write(path, certificate.pem() + &key.serialize_pem()).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}
