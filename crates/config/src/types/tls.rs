//! TLS of a listener: where its certificates are, and what is negotiated. TLS to backends: whom to believe.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use logic::client_name::NamePattern;

/// `tls` of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Directory of certificates and keys.
    pub certificates: PathBuf,
    /// The section `[acme.NAME]` whose certificates are served: from the same directory, or from one beside it.
    pub acme: Option<AcmeSource>,
    /// Which certificate is for clients that name no server, or one that is not known.
    pub default: Option<Box<str>>,
    /// Passphrase of encrypted keys that have none of their own.
    pub key_passphrase_file: Option<PathBuf>,
    /// Whether OCSP responders are asked.
    pub ocsp: Ocsp,
    /// File or directory with the keys of session tickets; `None`: our own.
    pub ticket_keys: Option<PathBuf>,
    /// What is negotiated.
    pub policy: TlsPolicy,
    /// Time for the whole handshake.
    pub handshake_timeout: Duration,
    /// Unfinished handshakes at once, over all workers.
    pub handshakes: usize,
    /// Certificates of clients; `None`: nobody is asked for one.
    pub client_certificates: Option<ClientCertificates>,
}

/// Which clients are let in, and what is told of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// What becomes of clients without one.
    pub mode: ClientCertificateMode,
    /// File or directory of CA certificates.
    pub ca: PathBuf,
    /// Files or directories of revocation lists; empty: nothing is asked about revocation.
    pub crls: Vec<PathBuf>,
    /// What becomes of certificates of which no list says anything.
    pub unknown_revocation: UnknownRevocation,
    /// Names of which a certificate must have one; empty: any.
    pub names: Vec<NamePattern>,
    /// What backends are told.
    pub headers: Vec<ClientHeader>,
}

/// What becomes of clients without a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientCertificateMode {
    /// They are let in.
    Request,
    /// They are refused.
    Require,
}

/// What becomes of certificates of which no revocation list says anything, and of lists that are out of date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnknownRevocation {
    /// They are refused.
    Refuse,
    /// They are taken for good; old lists still count.
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
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::Certificate, Self::Chain, Self::Subject, Self::Names, Self::Serial, Self::Fingerprint];

    /// Its word in the configuration.
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

    /// The name of the field.
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
    /// Those that a certificate names.
    On,
    /// None; responses come from files only.
    Off,
}

/// Certificates from an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSource {
    /// NAME of the section.
    pub name: Arc<str>,
    /// Where its certificates are.
    pub directory: PathBuf,
}

/// What is negotiated. At least one cipher and one group, and one of the ciphers is for a version that is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Oldest version.
    pub min_version: MinVersion,
    /// Best first.
    pub ciphers: Vec<Cipher>,
    /// Best first.
    pub groups: Vec<Group>,
    /// Whose order counts.
    pub order: CipherOrder,
}

impl TlsPolicy {
    /// Mozilla's guideline `intermediate`, all of it: TLS 1.2 and 1.3, forward secrecy and AEAD only.
    pub fn compatible() -> Self {
        Self {
            min_version: MinVersion::Tls12,
            ciphers: Cipher::ALL.to_vec(),
            groups: Group::USUAL.to_vec(),
            order: CipherOrder::Client,
        }
    }

    /// The same with keys of 256 bits only, which is what graders give full points for.
    pub fn intermediate() -> Self {
        let mut policy = Self::compatible();
        policy.ciphers.retain(|cipher| cipher.key_bits() == 256);
        policy
    }

    /// Mozilla's guideline `modern`: TLS 1.3 only; of the ciphers those with keys of 256 bits.
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

/// Whose order of ciphers counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CipherOrder {
    /// The client's.
    Client,
    /// Ours.
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
    /// All that are known, in the order of Mozilla's guideline.
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

    /// The names that it goes by: OpenSSL's first, then IANA's where that differs.
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

    /// Length of its key.
    pub const fn key_bits(self) -> u16 {
        match self {
            Self::Tls13Aes128GcmSha256 | Self::EcdheEcdsaAes128GcmSha256 | Self::EcdheRsaAes128GcmSha256 => {
                128
            }
            _ => 256,
        }
    }

    /// The version that it is for: each is for one only.
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
    /// All that are known.
    pub const ALL: [Self; 5] =
        [Self::X25519MlKem768, Self::Secp256r1MlKem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// Those of both policies.
    pub const USUAL: [Self; 4] = [Self::X25519MlKem768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// The names that it goes by: the one that people say first, then IANA's and OpenSSL's.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::X25519MlKem768 => &["X25519MLKEM768"],
            Self::Secp256r1MlKem768 => &["SecP256r1MLKEM768"],
            Self::X25519 => &["X25519"],
            Self::Secp256r1 => &["P-256", "secp256r1", "prime256v1"],
            Self::Secp384r1 => &["P-384", "secp384r1"],
        }
    }

    /// Whether only TLS 1.3 has it.
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
    /// Whose certificates are taken.
    pub verify: Verify,
    /// What shows backends who we are.
    pub identity: Option<Identity>,
    /// Oldest version.
    pub min_version: MinVersion,
}

/// Whose certificates are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Those that an authority of this machine vouches for.
    System,
    /// Those that an authority in this file vouches for, and those in it.
    File(PathBuf),
    /// Anybody's.
    Off,
}

/// Files of a certificate that we show to backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate and the rest of its chain.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Passphrase of the key.
    pub key_passphrase_file: Option<PathBuf>,
}
