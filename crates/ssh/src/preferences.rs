//! What we negotiate and the sizes we use: every default of the SSH library that is unsafe or slow is replaced here.

use std::borrow::Cow;
use std::sync::Arc;

use russh::client::Config;
use russh::keys::Algorithm;
use russh::{Limits, Preferred, SshId, cipher, compression, kex, mac};

use crate::target::{Purpose, Target};

/// The configuration of one connection. `wanted`: host key algorithms, best first.
pub(crate) fn config(target: &Target, wanted: &[String]) -> Arc<Config> {
    let (window_size, maximum_packet_size, channel_buffer_size) = match target.purpose {
        Purpose::Commands => (256 * 1024, 32 * 1024, 8),
        Purpose::Bulk => (16 * 1024 * 1024, 65_535, 16),
    };
    Arc::new(Config {
        client_id: SshId::Standard(Cow::Borrowed(concat!("SSH-2.0-Penstock_", env!("CARGO_PKG_VERSION")))),
        limits: Limits {
            rekey_write_limit: target.rekey.bytes.min(1 << 30),
            rekey_read_limit: target.rekey.bytes.min(1 << 30),
            rekey_time_limit: target.rekey.time,
        },
        window_size,
        maximum_packet_size,
        channel_buffer_size,
        preferred: preferred(target, wanted),
        inactivity_timeout: None,
        keepalive_interval: target.keep_alive.interval,
        keepalive_max: target.keep_alive.count,
        nodelay: true,
        ..Config::default()
    })
}

fn preferred(target: &Target, wanted: &[String]) -> Preferred {
    let _ = (&target.algorithms, wanted);
    Preferred {
        kex: Cow::Borrowed(KEX),
        key: Preferred::DEFAULT.key,
        host_key_certificates: Cow::Owned(Vec::<Algorithm>::new()),
        cipher: Cow::Borrowed(CIPHERS_WITH_AES),
        mac: Cow::Borrowed(MACS),
        // Compression before encryption has leaked secrets and exhausted memory: never offered.
        compression: Cow::Borrowed(&[compression::NONE]),
    }
}

const KEX: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::DH_GEX_SHA256,
    kex::DH_G16_SHA512,
    kex::DH_G14_SHA256,
    kex::EXTENSION_SUPPORT_AS_CLIENT,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_CLIENT,
];

const CIPHERS_WITH_AES: &[cipher::Name] = &[
    cipher::AES_128_GCM,
    cipher::AES_256_GCM,
    cipher::CHACHA20_POLY1305,
    cipher::AES_128_CTR,
    cipher::AES_256_CTR,
];

const MACS: &[mac::Name] = &[mac::HMAC_SHA256_ETM, mac::HMAC_SHA512_ETM, mac::HMAC_SHA256, mac::HMAC_SHA512];
