//! Verifies the signatures of an agent, to tell a wrong signature of the agent from a refusal of the server.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey,
    VerificationAlgorithm,
};
use hosts::ssh::key::PublicKey;

use super::wire::take;

/// Returns true if `signature` is not a signature of `key` over `data`. False for a signature that this module cannot
/// verify (certificates, security keys, RSA keys of unusual length): the server decides about these.
pub(super) fn is_wrong(key: &PublicKey, data: &[u8], signature: &[u8]) -> bool {
    holds(key, data, signature) == Some(false)
}

/// Verifies a signature. `None` if this module cannot verify signatures of this key.
fn holds(key: &PublicKey, data: &[u8], signature: &[u8]) -> Option<bool> {
    let (_, key_rest) = take(key.blob())?;
    match key.algorithm() {
        "ssh-ed25519" => {
            let (point, _) = take(key_rest)?;
            Some(verifies(&ED25519, point, data, of(signature).map(|(_, bytes)| bytes.to_vec())))
        }
        "ecdsa-sha2-nistp256" => ecdsa(&ECDSA_P256_SHA256_FIXED, 32, key_rest, data, signature),
        "ecdsa-sha2-nistp384" => ecdsa(&ECDSA_P384_SHA384_FIXED, 48, key_rest, data, signature),
        "ecdsa-sha2-nistp521" => ecdsa(&ECDSA_P521_SHA512_FIXED, 66, key_rest, data, signature),
        "ssh-rsa" => rsa(key, key_rest, data, signature),
        _ => None,
    }
}

/// Splits a signature into its algorithm and its bytes (RFC 4253 section 6.6).
fn of(signature: &[u8]) -> Option<(&[u8], &[u8])> {
    let (algorithm, rest) = take(signature)?;
    let (bytes, end) = take(rest)?;
    end.is_empty().then_some((algorithm, bytes))
}

fn verifies(
    algorithm: &'static dyn VerificationAlgorithm,
    point: &[u8],
    data: &[u8],
    signature: Option<Vec<u8>>,
) -> bool {
    signature.is_some_and(|bytes| UnparsedPublicKey::new(algorithm, point).verify(data, &bytes).is_ok())
}

/// Verifies an ECDSA signature: `key_rest` is curve and point, the signature two numbers of `width` bytes (RFC 5656
/// section 3.1).
fn ecdsa(
    algorithm: &'static dyn VerificationAlgorithm,
    width: usize,
    key_rest: &[u8],
    data: &[u8],
    signature: &[u8],
) -> Option<bool> {
    let (_curve, rest) = take(key_rest)?;
    let (point, _) = take(rest)?;
    let numbers = || {
        let (_, bytes) = of(signature)?;
        let (r, rest) = take(bytes)?;
        let (s, end) = take(rest)?;
        end.is_empty().then(|| Some([padded(r, width)?, padded(s, width)?].concat()))?
    };
    Some(verifies(algorithm, point, data, numbers()))
}

/// Verifies an RSA signature: `key_rest` is exponent and modulus (RFC 4253 section 6.6; the hashes: RFC 8332).
fn rsa(key: &PublicKey, key_rest: &[u8], data: &[u8], signature: &[u8]) -> Option<bool> {
    let bits = key.rsa_bits().filter(|bits| (2048..=8192).contains(bits))?;
    let (e, rest) = take(key_rest)?;
    let (n, _) = take(rest)?;
    let (n, e) = (without_zeros(n), without_zeros(e));
    let Some((algorithm, bytes)) = of(signature) else { return Some(false) };
    let parameters = match algorithm {
        b"rsa-sha2-256" => &RSA_PKCS1_2048_8192_SHA256,
        b"rsa-sha2-512" => &RSA_PKCS1_2048_8192_SHA512,
        _ => return None,
    };
    // Some agents omit leading zeros, and servers add them again.
    let bytes = padded(bytes, bits.div_ceil(8));
    Some(bytes.is_some_and(|bytes| RsaPublicKeyComponents { n, e }.verify(parameters, data, &bytes).is_ok()))
}

/// Pads a number to `width` bytes. `None` if it is longer.
fn padded(number: &[u8], width: usize) -> Option<Vec<u8>> {
    let digits = without_zeros(number);
    let mut bytes = vec![0; width.checked_sub(digits.len())?];
    bytes.extend_from_slice(digits);
    Some(bytes)
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
