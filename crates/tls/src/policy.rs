//! Translates the TLS settings of the configuration for rustls.

use std::sync::{Arc, LazyLock};

use config::types::{Cipher, CipherOrder, Group, MinVersion, TlsPolicy};
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suite, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::server::ResolvesServerCert;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

use super::suites;

/// Returns true if a listener speaks TLS 1.3.
pub(super) fn speaks_tls13(policy: &TlsPolicy) -> bool {
    policy.ciphers.iter().any(|cipher| cipher.version() == MinVersion::Tls13)
}

/// Builds a server configuration from the policy, the certificates and the verifier of client certificates.
pub(super) fn server(
    policy: &TlsPolicy,
    certificates: Arc<dyn ResolvesServerCert>,
    clients: Arc<dyn ClientCertVerifier>,
) -> ServerConfig {
    let provider = CryptoProvider {
        cipher_suites: policy.ciphers.iter().map(|cipher| suite_of(*cipher)).collect(),
        kx_groups: policy.groups.iter().map(|group| group_of(*group)).collect(),
        ..aws_lc_rs::default_provider()
    };
    let has = |version| policy.ciphers.iter().any(|cipher| cipher.version() == version);
    let versions: &[&SupportedProtocolVersion] = match policy.min_version {
        MinVersion::Tls13 => &[&TLS13],
        MinVersion::Tls12 if !has(MinVersion::Tls12) => &[&TLS13],
        MinVersion::Tls12 if !has(MinVersion::Tls13) => &[&TLS12],
        MinVersion::Tls12 => &[&TLS13, &TLS12],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .expect("a policy has a cipher and a group for a version that it allows");
    let mut config = builder.with_client_cert_verifier(clients).with_cert_resolver(certificates);
    config.ignore_client_order = policy.order == CipherOrder::Server;
    config
}

/// Returns OpenSSL's name of a cipher suite.
pub(super) fn name_of(suite: SupportedCipherSuite) -> Option<&'static str> {
    let cipher = Cipher::ALL.into_iter().find(|cipher| suite_of(*cipher).suite() == suite.suite())?;
    cipher.names().first().copied()
}

fn suite_of(cipher: Cipher) -> SupportedCipherSuite {
    static SUITES: LazyLock<Vec<(Cipher, SupportedCipherSuite)>> =
        LazyLock::new(|| Cipher::ALL.map(|cipher| (cipher, suites::wrapped(of_rustls(cipher)))).to_vec());
    let wrapped = SUITES.iter().find(|(known, _)| *known == cipher);
    wrapped.expect("`Cipher::ALL` has every cipher").1
}

fn of_rustls(cipher: Cipher) -> SupportedCipherSuite {
    match cipher {
        Cipher::Tls13Aes128GcmSha256 => suite::TLS13_AES_128_GCM_SHA256,
        Cipher::Tls13Aes256GcmSha384 => suite::TLS13_AES_256_GCM_SHA384,
        Cipher::Tls13Chacha20Poly1305Sha256 => suite::TLS13_CHACHA20_POLY1305_SHA256,
        Cipher::EcdheEcdsaAes128GcmSha256 => suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Cipher::EcdheRsaAes128GcmSha256 => suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Cipher::EcdheEcdsaAes256GcmSha384 => suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Cipher::EcdheRsaAes256GcmSha384 => suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Cipher::EcdheEcdsaChacha20Poly1305 => suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Cipher::EcdheRsaChacha20Poly1305 => suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}

fn group_of(group: Group) -> &'static dyn SupportedKxGroup {
    match group {
        Group::X25519MlKem768 => kx_group::X25519MLKEM768,
        Group::Secp256r1MlKem768 => kx_group::SECP256R1MLKEM768,
        Group::X25519 => kx_group::X25519,
        Group::Secp256r1 => kx_group::SECP256R1,
        Group::Secp384r1 => kx_group::SECP384R1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_means_the_suite_or_group_that_has_it() {
        for cipher in Cipher::ALL {
            let name = format!("{:?}", suite_of(cipher).suite());
            let iana = cipher.names().last().unwrap();
            // rustls names suites TLS13_..., the IANA registry TLS_....
            assert!(name == *iana || name.replace("TLS13_", "TLS_") == *iana, "{name} {iana}");
        }
        for group in Group::ALL {
            let name = format!("{:?}", group_of(group).name());
            assert!(group.names().iter().any(|known| known.eq_ignore_ascii_case(&name)), "{name}");
        }
    }
}
