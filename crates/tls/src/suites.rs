//! Cipher suites of rustls that can send a fatal alert of our choice. rustls 0.23 ends a connection after some faults of
//! a client without an alert, and the only alert that it sends on request is close_notify, which says that all is well.
//! Encrypters of these suites put another alert in its place.

use std::cell::Cell;

use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::cipher::{
    AeadKey, Iv, KeyBlockShape, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{
    ConnectionTrafficSecrets, ContentType, Error, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
};

thread_local! {
    /// Description of the alert that takes the place of the next one that is encrypted.
    static INSTEAD: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Runs `send`, and sends the fatal alert `description` in place of the alert that `send` encrypts. Returns whether it
/// encrypted one with these suites.
pub(crate) fn replace_alert(description: u8, send: impl FnOnce()) -> bool {
    INSTEAD.set(Some(description));
    send();
    INSTEAD.take().is_none()
}

/// Returns the suite with encrypters that can send alerts of our choice. The suite is never freed, as rustls demands.
pub(crate) fn alerting(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    match suite {
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: common(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: Box::leak(Box::new(Tls12(suite.aead_alg))),
            })))
        }
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: common(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: Box::leak(Box::new(Tls13(suite.aead_alg))),
                quic: suite.quic,
            })))
        }
    }
}

fn common(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: common.confidentiality_limit,
    }
}

struct Encrypter(Box<dyn MessageEncrypter>);

impl MessageEncrypter for Encrypter {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        sequence: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        const FATAL: u8 = 2;
        if message.typ == ContentType::Alert
            && let Some(description) = INSTEAD.take()
        {
            let OutboundPlainMessage { typ, version, .. } = message;
            let payload = OutboundChunks::Single(&[FATAL, description]);
            return self.0.encrypt(OutboundPlainMessage { typ, version, payload }, sequence);
        }
        self.0.encrypt(message, sequence)
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        self.0.encrypted_payload_len(length)
    }
}

struct Tls12(&'static dyn Tls12AeadAlgorithm);

impl Tls12AeadAlgorithm for Tls12 {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Encrypter(self.0.encrypter(key, iv, extra)))
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        self.0.key_block_shape()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv, explicit)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

struct Tls13(&'static dyn Tls13AeadAlgorithm);

impl Tls13AeadAlgorithm for Tls13 {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Encrypter(self.0.encrypter(key, iv)))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.0.decrypter(key, iv)
    }

    fn key_len(&self) -> usize {
        self.0.key_len()
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        self.0.extract_keys(key, iv)
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}
