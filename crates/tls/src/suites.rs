//! Cipher suites of rustls with encrypters that do two more things.
//!
//! They can send a fatal alert of our choice. rustls 0.23 ends a connection after some faults of a client without an
//! alert, and the only alert that it sends on request is close_notify, which says that all is well. The encrypters put
//! another alert in its place.
//!
//! And they let rustls copy a record in several parts before it is encrypted: see [`LONGEST_COPY`].

use std::cell::Cell;

use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::cipher::{
    AeadKey, Iv, KeyBlockShape, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundOpaqueMessage,
    OutboundPlainMessage, Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError,
};
use rustls::{
    ConnectionTrafficSecrets, ContentType, Error, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
};

/// Most bytes that rustls copies at once. From 2,048 bytes on (the least of its defaults), memcpy of glibc uses the
/// instruction `rep movsb`, which on AMD EPYC of family 25 takes several times as long as a loop if source and
/// destination are not aligned to each other. Seen on model 17, downloads of 1.4 GB from a `tcp` listener with TLS: 0.82 to
/// 0.98 s of user time with one copy per record, 0.34 to 0.51 s with these parts (6 runs each).
const LONGEST_COPY: usize = 2016;

/// Parts of a full record (2^14 bytes, RFC 8446 section 5.1), and as many again where a write had several slices.
const MOST_PARTS: usize = 2 * (1_usize << 14).div_ceil(LONGEST_COPY);

thread_local! {
    /// Description of the alert that takes the place of the next one that is encrypted.
    static INSTEAD: Cell<Option<u8>> = const { Cell::new(None) };
}

/// Runs `send`, and sends the fatal alert `description` in place of the alert that `send` encrypts. Returns whether it
/// encrypted one with these suites.
pub(crate) fn replace_alert(description: u8, send: impl FnOnce()) -> bool {
    INSTEAD.set(Some(description));
    let _clear = Clear;
    send();
    INSTEAD.take().is_none()
}

/// Keeps the alert of one connection from another one, should `send` panic.
struct Clear;

impl Drop for Clear {
    fn drop(&mut self) {
        INSTEAD.set(None);
    }
}

/// Returns the suite with the encrypters of this module. It is never freed, as rustls demands.
pub(crate) fn wrapped(suite: SupportedCipherSuite) -> SupportedCipherSuite {
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
        if message.payload.len() <= LONGEST_COPY {
            return self.0.encrypt(message, sequence);
        }
        let OutboundPlainMessage { typ, version, payload } = message;
        let mut parts = [&[][..]; MOST_PARTS];
        let payload = match in_parts(&payload, &mut parts) {
            Some(count) => OutboundChunks::new(&parts[..count]),
            None => payload,
        };
        self.0.encrypt(OutboundPlainMessage { typ, version, payload }, sequence)
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        self.0.encrypted_payload_len(length)
    }
}

/// Puts the payload into `parts` of at most [`LONGEST_COPY`] bytes and returns their number; `None` if there are more.
fn in_parts<'a>(payload: &OutboundChunks<'a>, parts: &mut [&'a [u8]; MOST_PARTS]) -> Option<usize> {
    let (chunks, start, end) = match payload {
        OutboundChunks::Single(chunk) => (std::slice::from_ref(chunk), 0, chunk.len()),
        OutboundChunks::Multiple { chunks, start, end } => (*chunks, *start, *end),
    };
    let mut count = 0;
    let mut at = 0;
    for chunk in chunks {
        let [from, to] = [start, end].map(|bound| bound.saturating_sub(at).min(chunk.len()));
        for part in chunk[from..to].chunks(LONGEST_COPY) {
            *parts.get_mut(count)? = part;
            count += 1;
        }
        at += chunk.len();
    }
    Some(count)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_copied_in_parts_and_stays_the_same() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1 << 14).collect();
        let [head, body] = [&bytes[..500], &bytes[500..]];
        let several = [head, &[], body];
        let many: Vec<&[u8]> = bytes.chunks(100).collect();
        for (payload, count) in [
            (OutboundChunks::new(&[&bytes]), Some(9)),
            (OutboundChunks::new(&several), Some(9)),
            (OutboundChunks::Multiple { chunks: &several, start: 600, end: 9000 }, Some(5)),
            (OutboundChunks::Multiple { chunks: &several, start: 0, end: 500 }, Some(1)),
            (OutboundChunks::new(&many), None),
        ] {
            let mut parts = [&[][..]; MOST_PARTS];
            let done = in_parts(&payload, &mut parts);
            assert_eq!(done, count);
            if let Some(count) = done {
                assert_eq!(parts[..count].concat(), payload.to_vec());
            }
            assert!(parts.iter().all(|part| part.len() <= LONGEST_COPY));
        }
    }
}
