//! TLS of a listener: certificates and allowed parameters. TLS to backends: trusted certificates.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use logic::client_name::NamePattern;

/// `tls` of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Directory of certificates and keys.
    pub certificates: PathBuf,
    /// The section `[acme.NAME]` whose certificates are served, from the same directory or from another one.
    pub acme: Option<AcmeSource>,
    /// Certificate for clients that send no server name or an unknown one.
    pub default: Option<Box<str>>,
    /// File with the passphrase of encrypted keys without their own.
    pub key_passphrase_file: Option<PathBuf>,
    /// Whether OCSP responders are asked.
    pub ocsp: Ocsp,
    /// File or directory with the keys of session tickets; `None`: the process makes its own.
    pub ticket_keys: Option<PathBuf>,
    /// Allowed versions, ciphers and groups.
    pub policy: TlsPolicy,
    /// Time limit of the whole handshake.
    pub handshake_timeout: Duration,
    /// Largest number of unfinished handshakes over all workers.
    pub handshakes: usize,
    /// Settings of client certificates; `None`: clients are not asked for one.
    pub client_certificates: Option<ClientCertificates>,
}

/// Conditions for clients, and the header fields about their certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Treatment of clients without a certificate.
    pub mode: ClientCertificateMode,
    /// File or directory of CA certificates.
    pub ca: PathBuf,
    /// Files or directories of revocation lists; empty: revocation is not checked.
    pub crls: Vec<PathBuf>,
    /// Treatment of certificates that no list covers.
    pub unknown_revocation: UnknownRevocation,
    /// Names of which a certificate must contain one; empty: every certificate is accepted.
    pub names: Vec<NamePattern>,
    /// Header fields for backends.
    pub headers: Vec<ClientHeader>,
}

/// Treatment of clients without a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientCertificateMode {
    /// The client is accepted.
    Request,
    /// The client is refused.
    Require,
}

/// Treatment of certificates that no revocation list covers, and of expired lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnknownRevocation {
    /// The client is refused.
    Refuse,
    /// The certificate counts as valid; expired lists are still used.
    Allow,
}

/// A header field about the certificate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientHeader {
    /// The certificate itself (RFC 9440).
    Certificate,
    /// The other certificates that the client sent (RFC 9440).
    Chain,
    /// Distinguished name of the subject (RFC 4514).
    Subject,
    /// subjectAltName, as a list of strings (RFC 9651 section 3.1).
    Names,
    /// Serial number, in hexadecimal digits.
    Serial,
    /// SHA-256 of the certificate, in hexadecimal digits.
    Fingerprint,
}

impl ClientHeader {
    /// All fields.
    pub const ALL: [Self; 6] =
        [Self::Certificate, Self::Chain, Self::Subject, Self::Names, Self::Serial, Self::Fingerprint];

    /// Word in the configuration.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Chain => "chain",
            Self::Subject => "subject",
            Self::Names => "names",
            Self::Serial => "serial",
            Self::Fingerprint => "fingerprint",
        }
    }

    /// Name of the header field.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Certificate => "Client-Cert",
            Self::Chain => "Client-Cert-Chain",
            Self::Subject => "X-Client-Cert-Subject",
            Self::Names => "X-Client-Cert-Names",
            Self::Serial => "X-Client-Cert-Serial",
            Self::Fingerprint => "X-Client-Cert-Fingerprint",
        }
    }
}

/// Whether OCSP responders are asked for responses to staple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ocsp {
    /// Ask the responders that a certificate names.
    On,
    /// Ask no responder; responses come from files only.
    Off,
}

/// Certificates from an ACME authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSource {
    /// NAME of the section.
    pub name: Arc<str>,
    /// Directory of the section's certificates.
    pub directory: PathBuf,
}

/// Allowed parameters. At least one cipher and one group, and at least one cipher for an allowed version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Oldest version.
    pub min_version: MinVersion,
    /// In order of preference.
    pub ciphers: Vec<Cipher>,
    /// In order of preference.
    pub groups: Vec<Group>,
    /// Whose preference of ciphers is used.
    pub order: CipherOrder,
}

impl TlsPolicy {
    /// The whole of Mozilla's guideline `intermediate`: TLS 1.2 and 1.3, forward secrecy and AEAD only.
    pub fn compatible() -> Self {
        Self {
            min_version: MinVersion::Tls12,
            ciphers: Cipher::ALL.to_vec(),
            groups: Group::USUAL.to_vec(),
            order: CipherOrder::Client,
        }
    }

    /// The policy `compatible` with keys of 256 bits only, for which graders give full points.
    pub fn intermediate() -> Self {
        let mut policy = Self::compatible();
        policy.ciphers.retain(|cipher| cipher.key_bits() == 256);
        policy
    }

    /// Mozilla's guideline `modern`: TLS 1.3 only; of its ciphers those with keys of 256 bits.
    pub fn modern() -> Self {
        let mut policy = Self::intermediate();
        policy.min_version = MinVersion::Tls13;
        policy.ciphers.retain(|cipher| cipher.version() == MinVersion::Tls13);
        policy
    }
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MinVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Whose preference of ciphers is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CipherOrder {
    /// The client's preference.
    Client,
    /// The server's preference.
    Server,
}

/// A cipher suite, by its name in IANA's registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Cipher {
    Tls13Aes128GcmSha256,
    Tls13Aes256GcmSha384,
    Tls13Chacha20Poly1305Sha256,
    EcdheEcdsaAes128GcmSha256,
    EcdheRsaAes128GcmSha256,
    EcdheEcdsaAes256GcmSha384,
    EcdheRsaAes256GcmSha384,
    EcdheEcdsaChacha20Poly1305,
    EcdheRsaChacha20Poly1305,
}

impl Cipher {
    /// All supported ciphers, in the order of Mozilla's guideline.
    pub const ALL: [Self; 9] = [
        Self::Tls13Aes128GcmSha256,
        Self::Tls13Aes256GcmSha384,
        Self::Tls13Chacha20Poly1305Sha256,
        Self::EcdheEcdsaAes128GcmSha256,
        Self::EcdheRsaAes128GcmSha256,
        Self::EcdheEcdsaAes256GcmSha384,
        Self::EcdheRsaAes256GcmSha384,
        Self::EcdheEcdsaChacha20Poly1305,
        Self::EcdheRsaChacha20Poly1305,
    ];

    /// Accepted names: OpenSSL's first, then IANA's if it differs.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Tls13Aes128GcmSha256 => &["TLS_AES_128_GCM_SHA256"],
            Self::Tls13Aes256GcmSha384 => &["TLS_AES_256_GCM_SHA384"],
            Self::Tls13Chacha20Poly1305Sha256 => &["TLS_CHACHA20_POLY1305_SHA256"],
            Self::EcdheEcdsaAes128GcmSha256 => {
                &["ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]
            }
            Self::EcdheRsaAes128GcmSha256 => {
                &["ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]
            }
            Self::EcdheEcdsaAes256GcmSha384 => {
                &["ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]
            }
            Self::EcdheRsaAes256GcmSha384 => {
                &["ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]
            }
            Self::EcdheEcdsaChacha20Poly1305 => {
                &["ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]
            }
            Self::EcdheRsaChacha20Poly1305 => {
                &["ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]
            }
        }
    }

    /// Length of the key in bits.
    pub const fn key_bits(self) -> u16 {
        match self {
            Self::Tls13Aes128GcmSha256 | Self::EcdheEcdsaAes128GcmSha256 | Self::EcdheRsaAes128GcmSha256 => {
                128
            }
            _ => 256,
        }
    }

    /// The only version that has this cipher.
    pub const fn version(self) -> MinVersion {
        match self {
            Self::Tls13Aes128GcmSha256 | Self::Tls13Aes256GcmSha384 | Self::Tls13Chacha20Poly1305Sha256 => {
                MinVersion::Tls13
            }
            _ => MinVersion::Tls12,
        }
    }
}

/// A group of the key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Group {
    X25519MlKem768,
    Secp256r1MlKem768,
    X25519,
    Secp256r1,
    Secp384r1,
}

impl Group {
    /// All supported groups.
    pub const ALL: [Self; 5] =
        [Self::X25519MlKem768, Self::Secp256r1MlKem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// Groups of both policies.
    pub const USUAL: [Self; 4] = [Self::X25519MlKem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// Accepted names: the common one first, then those of IANA and OpenSSL.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::X25519MlKem768 => &["X25519MLKEM768"],
            Self::Secp256r1MlKem768 => &["SecP256r1MLKEM768"],
            Self::X25519 => &["X25519"],
            Self::Secp256r1 => &["P-256", "secp256r1", "prime256v1"],
            Self::Secp384r1 => &["P-384", "secp384r1"],
        }
    }

    /// Oldest version that has this group.
    pub const fn version(self) -> MinVersion {
        match self {
            Self::X25519MlKem768 | Self::Secp256r1MlKem768 => MinVersion::Tls13,
            Self::X25519 | Self::Secp256r1 | Self::Secp384r1 => MinVersion::Tls12,
        }
    }
}

/// `tls` of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// Accepted certificates.
    pub verify: Verify,
    /// Certificate that Penstock shows to backends.
    pub identity: Option<Identity>,
    /// Oldest version.
    pub min_version: MinVersion,
}

/// Accepted certificates of backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Certificates from an authority of this machine.
    System,
    /// Certificates from an authority in this file, and the certificates in the file themselves.
    File(PathBuf),
    /// Every certificate, without verification.
    Off,
}

/// Files of the certificate that Penstock shows to backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate and the rest of its chain.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// File with the passphrase of the key.
    pub key_passphrase_file: Option<PathBuf>,
}
