//! Self-signed certificates for a run.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};
use serde::{Deserialize, Serialize};

use super::front::{Tls, TlsVersion};
use crate::context::Context;
use crate::error::{Error, ErrorContext};
use crate::load::connector::NAME;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    EcdsaP256,
    Rsa2048,
}

impl Tls {
    /// Makes a key and a self-signed certificate in the run's directory.
    pub fn generate(context: &Context, key: Key, version: TlsVersion) -> Result<Self, Error> {
        let made = match key {
            Key::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Key::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        };
        let unsupported = |error: rcgen::Error| Error::Unsupported {
            what: format!("a key ({key:?})"),
            why: error.to_string(),
        };
        let pair = made.map_err(unsupported)?;
        let params = CertificateParams::new([NAME.to_owned()]).map_err(unsupported)?;
        let certificate = params.self_signed(&pair).map_err(unsupported)?.pem();
        let directory = context.path("certificates");
        let file = |name: &str| directory.join(format!("{NAME}.{name}"));
        // Outside the directory: programs that load a whole directory would load the certificate twice.
        let combined = context.path("combined.pem");
        let tls = Tls { certificate: file("crt"), key: file("key"), combined, directory, version };
        fs::create_dir(&tls.directory).doing(format!("create {}", tls.directory.display()))?;
        write(&tls.certificate, &certificate)?;
        write(&tls.key, &pair.serialize_pem())?;
        write(&tls.combined, &format!("{}{certificate}", pair.serialize_pem()))?;
        Ok(tls)
    }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    // Some programs refuse a key file that other users can read.
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).doing(format!("write {}", path.display()))
}
