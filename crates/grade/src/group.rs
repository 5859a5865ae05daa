//! Groups of the key exchange (IANA's "TLS Supported Groups").

/// A group, by its IANA number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group(pub u16);

impl Group {
    /// Returns the group's usual name, or its number.
    pub fn name(self) -> String {
        self.known().map_or_else(|| format!("0x{:04x}", self.0), |(_, name, _)| (*name).to_owned())
    }

    /// Length in bits of an RSA key of the same strength (NIST SP 800-57 part 1, table 2). A hybrid group counts as its
    /// classical half: the group is at least as strong, and the rating guide has no row for the other half.
    pub fn rsa_bits(self) -> u32 {
        self.known().map_or(0, |(_, _, bits)| *bits)
    }

    /// Returns true if a quantum computer cannot decrypt recordings of the connection.
    pub const fn is_post_quantum(self) -> bool {
        matches!(self.0, 0x0200..=0x0202 | 0x11eb..=0x11ed)
    }

    /// Returns true for groups that only TLS 1.3 has.
    pub const fn is_tls13_only(self) -> bool {
        self.is_post_quantum()
    }

    /// Numbers of all groups that are offered, the most wanted first.
    pub fn all() -> impl Iterator<Item = u16> {
        KNOWN.iter().map(|(number, _, _)| *number)
    }

    fn known(self) -> Option<&'static (u16, &'static str, u32)> {
        KNOWN.iter().find(|(number, _, _)| *number == self.0)
    }
}

/// Number, name, and length in bits of an equally strong RSA key.
const KNOWN: &[(u16, &str, u32)] = &[
    (0x11ec, "X25519MLKEM768", 3072),
    (0x11eb, "SecP256r1MLKEM768", 3072),
    (0x11ed, "SecP384r1MLKEM1024", 7680),
    (0x0201, "MLKEM768", 7680),
    (0x0202, "MLKEM1024", 15360),
    (0x0200, "MLKEM512", 3072),
    (0x001d, "X25519", 3072),
    (0x0017, "P-256", 3072),
    (0x0018, "P-384", 7680),
    (0x0019, "P-521", 15360),
    (0x001e, "X448", 7680),
    (0x001f, "brainpoolP256r1tls13", 3072),
    (0x0020, "brainpoolP384r1tls13", 7680),
    (0x0021, "brainpoolP512r1tls13", 15360),
    (0x001a, "brainpoolP256r1", 3072),
    (0x001b, "brainpoolP384r1", 7680),
    (0x001c, "brainpoolP512r1", 15360),
    (0x0100, "ffdhe2048", 2048),
    (0x0101, "ffdhe3072", 3072),
    (0x0102, "ffdhe4096", 4096),
    (0x0103, "ffdhe6144", 6144),
    (0x0104, "ffdhe8192", 8192),
    (0x0016, "secp256k1", 3072),
    (0x0015, "P-224", 2048),
    (0x0014, "secp224k1", 2048),
    (0x0013, "P-192", 1024),
    (0x0012, "secp192k1", 1024),
    (0x0011, "secp160r2", 1024),
    (0x0010, "secp160r1", 1024),
    (0x000f, "secp160k1", 1024),
    (0x000e, "sect571r1", 15360),
    (0x000d, "sect571k1", 15360),
    (0x000c, "sect409r1", 7680),
    (0x000b, "sect409k1", 7680),
    (0x000a, "sect283r1", 3072),
    (0x0009, "sect283k1", 3072),
    (0x0007, "sect233r1", 2048),
    (0x0006, "sect233k1", 2048),
    (0x0003, "sect163r2", 1024),
    (0x0001, "sect163k1", 1024),
];
