//! Algorithms and sizes of a connection: replaces every default of the SSH library that is unsafe or slow.

use std::borrow::Cow;
use std::sync::Arc;

use hosts::fleet::ending::{Failure, Phase, Reason};
use russh::client::Config;
use russh::keys::Algorithm;
use russh::{Limits, Preferred, SshId, cipher, compression, kex, mac};

use crate::target::{Purpose, Target};
use crate::trouble;

/// Makes the configuration of one connection. `wanted` has host key algorithms, best first.
///
/// # Errors
/// The target allows only algorithms that the library does not support.
pub(crate) fn config(target: &Target, wanted: &[String]) -> Result<Arc<Config>, Failure> {
    let (window_size, maximum_packet_size, channel_buffer_size, receive_buffer) = match target.purpose {
        Purpose::Commands => (256 * 1024, 32 * 1024, 8, 8 * 1024),
        Purpose::Bulk => (16 * 1024 * 1024, 65_535, 16, 256 * 1024),
    };
    // The library asserts a maximum of 1 GiB per key (RFC 4253 section 9).
    let bytes = target.rekey.bytes.clamp(64 * 1024, 1 << 30);
    Ok(Arc::new(Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-Penstock_", env!("CARGO_PKG_VERSION")))),
        limits: Limits::new(bytes, bytes, target.rekey.time),
        window_size,
        maximum_packet_size,
        channel_buffer_size,
        receive_buffer,
        preferred: preferred(target, wanted)?,
        inactivity_timeout: None,
        keepalive_interval: target.keep_alive.interval,
        keepalive_max: target.keep_alive.count,
        nodelay: true,
        ..Config::default()
    }))
}

fn preferred(target: &Target, wanted: &[String]) -> Result<Preferred, Failure> {
    let allowed = &target.algorithms;
    let mut kex = chosen(&allowed.kex, KEX, |name| kex::Name::try_from(name).ok())
        .ok_or_else(|| nothing_left(target, "KexAlgorithms", &allowed.kex))?;
    kex.extend([kex::EXTENSION_SUPPORT_AS_CLIENT, kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT]);
    let cipher = chosen(&allowed.ciphers, ciphers(), |name| cipher::Name::try_from(name).ok())
        .ok_or_else(|| nothing_left(target, "Ciphers", &allowed.ciphers))?;
    let mac = chosen(&allowed.macs, MACS, |name| mac::Name::try_from(name).ok())
        .ok_or_else(|| nothing_left(target, "MACs", &allowed.macs))?;
    let (key, host_key_certificates) = host_keys(&allowed.host_keys, wanted);
    if key.is_empty() && host_key_certificates.is_empty() {
        return Err(nothing_left(target, "HostKeyAlgorithms", &allowed.host_keys));
    }
    Ok(Preferred {
        kex: Cow::Owned(kex),
        key: Cow::Owned(key),
        host_key_certificates: Cow::Owned(host_key_certificates),
        cipher: Cow::Owned(cipher),
        mac: Cow::Owned(mac),
        // Compression before encryption has leaked secrets and exhausted memory: it is never offered.
        compression: Cow::Borrowed(&[compression::NONE]),
    })
}

/// Returns the supported names of `allowed`, in its order; `ours` if `allowed` is empty; `None` if no name is
/// supported.
fn chosen<T: Clone>(allowed: &[String], ours: &[T], known: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    if allowed.is_empty() {
        return Some(ours.to_vec());
    }
    let left: Vec<T> = allowed
        .iter()
        .filter(|name| !REFUSED.contains(&name.as_str()))
        .filter_map(|name| known(name.as_str()))
        .collect();
    (!left.is_empty()).then_some(left)
}

/// Returns the algorithms for plain host keys and for certificates. The `wanted` ones come first, the others follow: so
/// a host without a key of a wanted type still answers and can be judged. Certificates only if they are wanted: without
/// a known authority the client could only refuse them.
fn host_keys(allowed: &[String], wanted: &[String]) -> (Vec<Algorithm>, Vec<Algorithm>) {
    let may = |name: &str| allowed.is_empty() || allowed.iter().any(|allowed| allowed == name);
    let mut bare: Vec<Algorithm> = Vec::new();
    let mut certified: Vec<Algorithm> = Vec::new();
    let rest = allowed.iter().map(String::as_str).filter(|name| !name.ends_with(CERTIFICATE));
    for name in wanted.iter().map(String::as_str).chain(rest).chain(HOST_KEYS.iter().copied()) {
        let (list, plain, suffix) = match name.strip_suffix(CERTIFICATE) {
            Some(plain) => (&mut certified, plain, CERTIFICATE),
            None => (&mut bare, name, ""),
        };
        // `ssh-rsa` is a key type; the algorithm of the same name signs with SHA-1, so the user must allow it by name.
        let names: &[&str] = match plain {
            "ssh-rsa" if allowed.iter().any(|allowed| allowed == name) => {
                &["rsa-sha2-512", "rsa-sha2-256", "ssh-rsa"]
            }
            "ssh-rsa" => &["rsa-sha2-512", "rsa-sha2-256"],
            _ => &[plain],
        };
        for name in names.iter().filter(|name| may(&format!("{name}{suffix}"))) {
            if let Ok(algorithm) = Algorithm::new(name)
                && !matches!(algorithm, Algorithm::Other(_) | Algorithm::Dsa)
                && !list.contains(&algorithm)
            {
                list.push(algorithm);
            }
        }
    }
    (bare, certified)
}

fn nothing_left(target: &Target, option: &str, allowed: &[String]) -> Failure {
    trouble::failure(
        Phase::Queued,
        Reason::BadConfiguration,
        format!(
            "{}: {option} allows only what we do not have: {}",
            target.name,
            trouble::quoted(&allowed.join(","))
        ),
    )
}

/// Returns the ciphers in order. AES-GCM is by far the fastest if the CPU has AES instructions; without them it is
/// slow, and not constant in time.
fn ciphers() -> &'static [cipher::Name] {
    #[cfg(target_arch = "x86_64")]
    let aes = std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let aes = false;
    if aes { CIPHERS_WITH_AES } else { CIPHERS_WITHOUT_AES }
}

const KEX: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::DH_GEX_SHA256,
    kex::DH_G16_SHA512,
    kex::DH_G14_SHA256,
];

const CIPHERS_WITH_AES: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_CTR,
    cipher::AES_256_CTR,
];

const CIPHERS_WITHOUT_AES: &[cipher::Name] = &[
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::AES_128_CTR,
    cipher::AES_256_CTR,
];

const MACS: &[mac::Name] = &[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM, mac::HMAC_SHA256, mac::HMAC_SHA512];

const HOST_KEYS: &[&str] = &[
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
];

const CERTIFICATE: &str = "-cert-v01@openssh.com";

/// Names that the library knows and penstock never uses: no encryption, no authentication, and markers of the
/// negotiation.
const REFUSED: &[&str] = &[
    "none",
    "clear",
    "ext-info-c",
    "ext-info-s",
    "kex-strict-c-v00@openssh.com",
    "kex-strict-s-v00@openssh.com",
];
