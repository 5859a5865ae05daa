//! Versions of SSL and TLS.

use serde::{Serialize, Serializer};

/// A version, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// SSL 2.0; has a different handshake.
    Ssl2,
    /// SSL 3.0 (RFC 6101).
    Ssl3,
    /// RFC 2246.
    Tls10,
    /// RFC 4346.
    Tls11,
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

impl Version {
    /// All versions whose ClientHello has the TLS format, newest first.
    pub const RECORDS: [Self; 5] = [Self::Tls13, Self::Tls12, Self::Tls11, Self::Tls10, Self::Ssl3];

    /// Usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ssl2 => "SSL 2.0",
            Self::Ssl3 => "SSL 3.0",
            Self::Tls10 => "TLS 1.0",
            Self::Tls11 => "TLS 1.1",
            Self::Tls12 => "TLS 1.2",
            Self::Tls13 => "TLS 1.3",
        }
    }

    /// Number of the version in messages.
    pub const fn number(self) -> u16 {
        match self {
            Self::Ssl2 => 0x0002,
            Self::Ssl3 => 0x0300,
            Self::Tls10 => 0x0301,
            Self::Tls11 => 0x0302,
            Self::Tls12 => 0x0303,
            Self::Tls13 => 0x0304,
        }
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
