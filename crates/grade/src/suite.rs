//! Cipher suites that a server may still accept, and the properties that their names state.
//!
//! Numbers and names are IANA's. Suites with a pre-shared key or a password are left out: servers do not offer them to
//! clients without the secret.

use serde::Serialize;

use crate::version::Version;

/// A cipher suite, by its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Suite(pub u16);

/// Key exchange method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Ephemeral keys on an elliptic curve, signed by the certificate's key; includes all of TLS 1.3.
    Ecdhe,
    /// Ephemeral keys in a finite field, signed by the certificate's key.
    Dhe,
    /// The client encrypts a secret with the certificate's key: an attacker who gets that key later can decrypt
    /// everything.
    Rsa,
    /// The certificate's own key on a curve: no forward secrecy.
    Ecdh,
    /// The server shows no certificate: any machine can impersonate it.
    Anonymous,
}

/// Encryption mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Encryption and authentication combined (GCM, CCM, ChaCha20-Poly1305).
    Aead,
    /// Cipher block chaining with a separate MAC.
    Cbc,
    Rc4,
    Null,
}

impl Suite {
    /// Returns the suites of TLS 1.3 or those of all older versions.
    pub fn all_of(version: Version) -> Vec<u16> {
        let tls13 = version == Version::Tls13;
        let all = NAMES.iter().map(|(number, _)| *number);
        // Modern suites first: a server that reads only the start of the list still finds one.
        let mut found: Vec<u16> = all.filter(|number| Self(*number).is_tls13() == tls13).collect();
        found.sort_by_key(|number| {
            let suite = Self(*number);
            (suite.mode() != Mode::Aead, suite.exchange() != Exchange::Ecdhe, *number)
        });
        found
    }

    /// Returns IANA's name, or the number.
    pub fn name(self) -> String {
        self.known_name().map_or_else(|| format!("0x{:04x}", self.0), str::to_owned)
    }

    /// Returns true for suites of TLS 1.3 (RFC 8446 appendix B.4).
    pub const fn is_tls13(self) -> bool {
        self.0 >> 8 == 0x13
    }

    pub fn exchange(self) -> Exchange {
        let name = self.known_name().unwrap_or_default();
        if self.is_tls13() || name.starts_with("TLS_ECDHE_") {
            Exchange::Ecdhe
        } else if name.contains("_anon_") {
            Exchange::Anonymous
        } else if name.starts_with("TLS_DHE_") {
            Exchange::Dhe
        } else if name.starts_with("TLS_ECDH_") {
            Exchange::Ecdh
        } else {
            Exchange::Rsa
        }
    }

    pub fn mode(self) -> Mode {
        let name = self.known_name().unwrap_or_default();
        if name.contains("_GCM_") || name.contains("_CCM") || name.contains("_POLY1305_") {
            Mode::Aead
        } else if name.contains("_NULL_") {
            Mode::Null
        } else if name.contains("_RC4_") {
            Mode::Rc4
        } else {
            Mode::Cbc
        }
    }

    /// Returns true for suites weakened for export: at most 40 bits, and 512-bit keys.
    pub fn is_export(self) -> bool {
        self.known_name().is_some_and(|name| name.contains("_EXPORT_"))
    }

    /// Returns true if the cipher has 64-bit blocks, which repeat after some gigabytes (CVE-2016-2183).
    pub fn has_small_blocks(self) -> bool {
        let small = ["_3DES_", "_DES_", "_DES40_", "_RC2_", "_IDEA_"];
        self.known_name().is_some_and(|name| small.iter().any(|cipher| name.contains(cipher)))
    }

    /// Strength of the cipher in bits. Triple DES counts 112: attacks reduce its 168 bits to that.
    pub fn bits(self) -> u16 {
        let name = self.known_name().unwrap_or_default();
        let has = |part| name.contains(part);
        match () {
            () if has("_NULL_") => 0,
            () if has("_EXPORT_") => 40,
            () if has("_3DES_") => 112,
            () if has("_DES_") => 56,
            () if has("_256_") || has("_CHACHA20_") => 256,
            () => 128,
        }
    }

    fn known_name(self) -> Option<&'static str> {
        let at = NAMES.binary_search_by_key(&self.0, |(number, _)| *number).ok()?;
        Some(NAMES[at].1)
    }
}

/// Suites by number.
const NAMES: &[(u16, &str)] = &[
    (0x0001, "TLS_RSA_WITH_NULL_MD5"),
    (0x0002, "TLS_RSA_WITH_NULL_SHA"),
    (0x0003, "TLS_RSA_EXPORT_WITH_RC4_40_MD5"),
    (0x0004, "TLS_RSA_WITH_RC4_128_MD5"),
    (0x0005, "TLS_RSA_WITH_RC4_128_SHA"),
    (0x0006, "TLS_RSA_EXPORT_WITH_RC2_CBC_40_MD5"),
    (0x0007, "TLS_RSA_WITH_IDEA_CBC_SHA"),
    (0x0008, "TLS_RSA_EXPORT_WITH_DES40_CBC_SHA"),
    (0x0009, "TLS_RSA_WITH_DES_CBC_SHA"),
    (0x000a, "TLS_RSA_WITH_3DES_EDE_CBC_SHA"),
    (0x0011, "TLS_DHE_DSS_EXPORT_WITH_DES40_CBC_SHA"),
    (0x0012, "TLS_DHE_DSS_WITH_DES_CBC_SHA"),
    (0x0013, "TLS_DHE_DSS_WITH_3DES_EDE_CBC_SHA"),
    (0x0014, "TLS_DHE_RSA_EXPORT_WITH_DES40_CBC_SHA"),
    (0x0015, "TLS_DHE_RSA_WITH_DES_CBC_SHA"),
    (0x0016, "TLS_DHE_RSA_WITH_3DES_EDE_CBC_SHA"),
    (0x0017, "TLS_DH_anon_EXPORT_WITH_RC4_40_MD5"),
    (0x0018, "TLS_DH_anon_WITH_RC4_128_MD5"),
    (0x0019, "TLS_DH_anon_EXPORT_WITH_DES40_CBC_SHA"),
    (0x001a, "TLS_DH_anon_WITH_DES_CBC_SHA"),
    (0x001b, "TLS_DH_anon_WITH_3DES_EDE_CBC_SHA"),
    (0x002f, "TLS_RSA_WITH_AES_128_CBC_SHA"),
    (0x0032, "TLS_DHE_DSS_WITH_AES_128_CBC_SHA"),
    (0x0033, "TLS_DHE_RSA_WITH_AES_128_CBC_SHA"),
    (0x0034, "TLS_DH_anon_WITH_AES_128_CBC_SHA"),
    (0x0035, "TLS_RSA_WITH_AES_256_CBC_SHA"),
    (0x0038, "TLS_DHE_DSS_WITH_AES_256_CBC_SHA"),
    (0x0039, "TLS_DHE_RSA_WITH_AES_256_CBC_SHA"),
    (0x003a, "TLS_DH_anon_WITH_AES_256_CBC_SHA"),
    (0x003b, "TLS_RSA_WITH_NULL_SHA256"),
    (0x003c, "TLS_RSA_WITH_AES_128_CBC_SHA256"),
    (0x003d, "TLS_RSA_WITH_AES_256_CBC_SHA256"),
    (0x0040, "TLS_DHE_DSS_WITH_AES_128_CBC_SHA256"),
    (0x0041, "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA"),
    (0x0044, "TLS_DHE_DSS_WITH_CAMELLIA_128_CBC_SHA"),
    (0x0045, "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA"),
    (0x0046, "TLS_DH_anon_WITH_CAMELLIA_128_CBC_SHA"),
    (0x0066, "TLS_DHE_DSS_WITH_RC4_128_SHA"),
    (0x0067, "TLS_DHE_RSA_WITH_AES_128_CBC_SHA256"),
    (0x006a, "TLS_DHE_DSS_WITH_AES_256_CBC_SHA256"),
    (0x006b, "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256"),
    (0x006c, "TLS_DH_anon_WITH_AES_128_CBC_SHA256"),
    (0x006d, "TLS_DH_anon_WITH_AES_256_CBC_SHA256"),
    (0x0084, "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA"),
    (0x0087, "TLS_DHE_DSS_WITH_CAMELLIA_256_CBC_SHA"),
    (0x0088, "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA"),
    (0x0089, "TLS_DH_anon_WITH_CAMELLIA_256_CBC_SHA"),
    (0x0096, "TLS_RSA_WITH_SEED_CBC_SHA"),
    (0x0099, "TLS_DHE_DSS_WITH_SEED_CBC_SHA"),
    (0x009a, "TLS_DHE_RSA_WITH_SEED_CBC_SHA"),
    (0x009b, "TLS_DH_anon_WITH_SEED_CBC_SHA"),
    (0x009c, "TLS_RSA_WITH_AES_128_GCM_SHA256"),
    (0x009d, "TLS_RSA_WITH_AES_256_GCM_SHA384"),
    (0x009e, "TLS_DHE_RSA_WITH_AES_128_GCM_SHA256"),
    (0x009f, "TLS_DHE_RSA_WITH_AES_256_GCM_SHA384"),
    (0x00a2, "TLS_DHE_DSS_WITH_AES_128_GCM_SHA256"),
    (0x00a3, "TLS_DHE_DSS_WITH_AES_256_GCM_SHA384"),
    (0x00a6, "TLS_DH_anon_WITH_AES_128_GCM_SHA256"),
    (0x00a7, "TLS_DH_anon_WITH_AES_256_GCM_SHA384"),
    (0x00ba, "TLS_RSA_WITH_CAMELLIA_128_CBC_SHA256"),
    (0x00bd, "TLS_DHE_DSS_WITH_CAMELLIA_128_CBC_SHA256"),
    (0x00be, "TLS_DHE_RSA_WITH_CAMELLIA_128_CBC_SHA256"),
    (0x00bf, "TLS_DH_anon_WITH_CAMELLIA_128_CBC_SHA256"),
    (0x00c0, "TLS_RSA_WITH_CAMELLIA_256_CBC_SHA256"),
    (0x00c3, "TLS_DHE_DSS_WITH_CAMELLIA_256_CBC_SHA256"),
    (0x00c4, "TLS_DHE_RSA_WITH_CAMELLIA_256_CBC_SHA256"),
    (0x00c5, "TLS_DH_anon_WITH_CAMELLIA_256_CBC_SHA256"),
    (0x1301, "TLS_AES_128_GCM_SHA256"),
    (0x1302, "TLS_AES_256_GCM_SHA384"),
    (0x1303, "TLS_CHACHA20_POLY1305_SHA256"),
    (0x1304, "TLS_AES_128_CCM_SHA256"),
    (0x1305, "TLS_AES_128_CCM_8_SHA256"),
    (0xc002, "TLS_ECDH_ECDSA_WITH_RC4_128_SHA"),
    (0xc003, "TLS_ECDH_ECDSA_WITH_3DES_EDE_CBC_SHA"),
    (0xc004, "TLS_ECDH_ECDSA_WITH_AES_128_CBC_SHA"),
    (0xc005, "TLS_ECDH_ECDSA_WITH_AES_256_CBC_SHA"),
    (0xc006, "TLS_ECDHE_ECDSA_WITH_NULL_SHA"),
    (0xc007, "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA"),
    (0xc008, "TLS_ECDHE_ECDSA_WITH_3DES_EDE_CBC_SHA"),
    (0xc009, "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
    (0xc00a, "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
    (0xc00c, "TLS_ECDH_RSA_WITH_RC4_128_SHA"),
    (0xc00d, "TLS_ECDH_RSA_WITH_3DES_EDE_CBC_SHA"),
    (0xc00e, "TLS_ECDH_RSA_WITH_AES_128_CBC_SHA"),
    (0xc00f, "TLS_ECDH_RSA_WITH_AES_256_CBC_SHA"),
    (0xc010, "TLS_ECDHE_RSA_WITH_NULL_SHA"),
    (0xc011, "TLS_ECDHE_RSA_WITH_RC4_128_SHA"),
    (0xc012, "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA"),
    (0xc013, "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
    (0xc014, "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
    (0xc015, "TLS_ECDH_anon_WITH_NULL_SHA"),
    (0xc016, "TLS_ECDH_anon_WITH_RC4_128_SHA"),
    (0xc017, "TLS_ECDH_anon_WITH_3DES_EDE_CBC_SHA"),
    (0xc018, "TLS_ECDH_anon_WITH_AES_128_CBC_SHA"),
    (0xc019, "TLS_ECDH_anon_WITH_AES_256_CBC_SHA"),
    (0xc023, "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"),
    (0xc024, "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384"),
    (0xc027, "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"),
    (0xc028, "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384"),
    (0xc02b, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    (0xc02c, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    (0xc02d, "TLS_ECDH_ECDSA_WITH_AES_128_GCM_SHA256"),
    (0xc02e, "TLS_ECDH_ECDSA_WITH_AES_256_GCM_SHA384"),
    (0xc02f, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    (0xc030, "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
    (0xc031, "TLS_ECDH_RSA_WITH_AES_128_GCM_SHA256"),
    (0xc032, "TLS_ECDH_RSA_WITH_AES_256_GCM_SHA384"),
    (0xc050, "TLS_RSA_WITH_ARIA_128_GCM_SHA256"),
    (0xc051, "TLS_RSA_WITH_ARIA_256_GCM_SHA384"),
    (0xc052, "TLS_DHE_RSA_WITH_ARIA_128_GCM_SHA256"),
    (0xc053, "TLS_DHE_RSA_WITH_ARIA_256_GCM_SHA384"),
    (0xc056, "TLS_DHE_DSS_WITH_ARIA_128_GCM_SHA256"),
    (0xc057, "TLS_DHE_DSS_WITH_ARIA_256_GCM_SHA384"),
    (0xc05c, "TLS_ECDHE_ECDSA_WITH_ARIA_128_GCM_SHA256"),
    (0xc05d, "TLS_ECDHE_ECDSA_WITH_ARIA_256_GCM_SHA384"),
    (0xc060, "TLS_ECDHE_RSA_WITH_ARIA_128_GCM_SHA256"),
    (0xc061, "TLS_ECDHE_RSA_WITH_ARIA_256_GCM_SHA384"),
    (0xc072, "TLS_ECDHE_ECDSA_WITH_CAMELLIA_128_CBC_SHA256"),
    (0xc073, "TLS_ECDHE_ECDSA_WITH_CAMELLIA_256_CBC_SHA384"),
    (0xc076, "TLS_ECDHE_RSA_WITH_CAMELLIA_128_CBC_SHA256"),
    (0xc077, "TLS_ECDHE_RSA_WITH_CAMELLIA_256_CBC_SHA384"),
    (0xc07a, "TLS_RSA_WITH_CAMELLIA_128_GCM_SHA256"),
    (0xc07b, "TLS_RSA_WITH_CAMELLIA_256_GCM_SHA384"),
    (0xc07c, "TLS_DHE_RSA_WITH_CAMELLIA_128_GCM_SHA256"),
    (0xc07d, "TLS_DHE_RSA_WITH_CAMELLIA_256_GCM_SHA384"),
    (0xc086, "TLS_ECDHE_ECDSA_WITH_CAMELLIA_128_GCM_SHA256"),
    (0xc087, "TLS_ECDHE_ECDSA_WITH_CAMELLIA_256_GCM_SHA384"),
    (0xc08a, "TLS_ECDHE_RSA_WITH_CAMELLIA_128_GCM_SHA256"),
    (0xc08b, "TLS_ECDHE_RSA_WITH_CAMELLIA_256_GCM_SHA384"),
    (0xc09c, "TLS_RSA_WITH_AES_128_CCM"),
    (0xc09d, "TLS_RSA_WITH_AES_256_CCM"),
    (0xc09e, "TLS_DHE_RSA_WITH_AES_128_CCM"),
    (0xc09f, "TLS_DHE_RSA_WITH_AES_256_CCM"),
    (0xc0a0, "TLS_RSA_WITH_AES_128_CCM_8"),
    (0xc0a1, "TLS_RSA_WITH_AES_256_CCM_8"),
    (0xc0a2, "TLS_DHE_RSA_WITH_AES_128_CCM_8"),
    (0xc0a3, "TLS_DHE_RSA_WITH_AES_256_CCM_8"),
    (0xc0ac, "TLS_ECDHE_ECDSA_WITH_AES_128_CCM"),
    (0xc0ad, "TLS_ECDHE_ECDSA_WITH_AES_256_CCM"),
    (0xc0ae, "TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8"),
    (0xc0af, "TLS_ECDHE_ECDSA_WITH_AES_256_CCM_8"),
    (0xcca8, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    (0xcca9, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    (0xccaa, "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_so_that_they_are_found() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn properties_follow_from_names() {
        let of = |number| {
            let suite = Suite(number);
            (suite.exchange(), suite.mode(), suite.bits(), suite.has_small_blocks())
        };
        assert_eq!(of(0x1301), (Exchange::Ecdhe, Mode::Aead, 128, false));
        assert_eq!(of(0x1303), (Exchange::Ecdhe, Mode::Aead, 256, false));
        assert_eq!(of(0xc030), (Exchange::Ecdhe, Mode::Aead, 256, false));
        assert_eq!(of(0x002f), (Exchange::Rsa, Mode::Cbc, 128, false));
        assert_eq!(of(0x000a), (Exchange::Rsa, Mode::Cbc, 112, true));
        assert_eq!(of(0x0005), (Exchange::Rsa, Mode::Rc4, 128, false));
        assert_eq!(of(0x0014), (Exchange::Dhe, Mode::Cbc, 40, true));
        assert_eq!(of(0x0009), (Exchange::Rsa, Mode::Cbc, 56, true));
        assert_eq!(of(0x00a6), (Exchange::Anonymous, Mode::Aead, 128, false));
        assert_eq!(of(0xc0af), (Exchange::Ecdhe, Mode::Aead, 256, false));
        assert_eq!(of(0xc006), (Exchange::Ecdhe, Mode::Null, 0, false));
        assert!(Suite(0x0003).is_export() && !Suite(0x0004).is_export());
    }
}
