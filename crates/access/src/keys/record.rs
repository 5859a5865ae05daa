//! Records that hold keys: SSHFP (RFC 4255), TLSA (RFC 6698), OPENPGPKEY (RFC 7929), CERT (RFC 4398).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64ct::{Base64, Encoding};
use thiserror::Error;

use super::owner::Owner;

/// Limit of the data of a record in bytes. A message over TCP has 65,535, and an update holds more than the record.
pub const MOST_DATA: usize = 60_000;

/// Type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A key, or the fingerprint of one (RFC 4398).
    Cert,
    /// Fingerprint of a host key (RFC 4255).
    Sshfp,
    /// Digest of a certificate or its key (RFC 6698).
    Tlsa,
    /// An OpenPGP key (RFC 7929).
    Openpgpkey,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Cert, Self::Sshfp, Self::Tlsa, Self::Openpgpkey];

    /// Its number in the registry of IANA.
    pub const fn number(self) -> u16 {
        match self {
            Self::Cert => 37,
            Self::Sshfp => 44,
            Self::Tlsa => 52,
            Self::Openpgpkey => 61,
        }
    }

    /// Its name in zone files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cert => "CERT",
            Self::Sshfp => "SSHFP",
            Self::Tlsa => "TLSA",
            Self::Openpgpkey => "OPENPGPKEY",
        }
    }

    /// Whether a record of this type that is found in a zone may be replaced. Of CERT records only those of OpenPGP are
    /// ours: the others hold X.509 certificates, which other programs publish.
    pub fn is_ours(self, data: &[u8]) -> bool {
        match self {
            Self::Cert => {
                data.first_chunk::<2>().is_some_and(|kind| [PGP, IPGP].contains(&u16::from_be_bytes(*kind)))
            }
            Self::Sshfp | Self::Tlsa | Self::Openpgpkey => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Type of CERT records with a whole OpenPGP key.
pub(super) const PGP: u16 = 3;
/// Type of CERT records with the fingerprint of an OpenPGP key, and an address where the key is.
pub(super) const IPGP: u16 = 6;

/// A record with its data as on the wire.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Record {
    pub owner: Owner,
    pub kind: Kind,
    pub data: Vec<u8>,
}

/// Reason why there is no record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordFault {
    /// It would not fit into a message.
    #[error(
        "the key has {0} bytes in its smallest form, and a record has at most {MOST_DATA}: publish its fingerprint and where it is (--ipgp URL)"
    )]
    TooLarge(usize),
    /// RFC 4398 section 2.1 has one byte for the length of the fingerprint.
    #[error("the URL has a character that is not allowed there")]
    Url,
}

impl Record {
    /// `fingerprint` is the digest of the blob of a host key, by `hash` (RFC 4255 section 3.1).
    pub fn sshfp(owner: Owner, algorithm: u8, hash: u8, fingerprint: &[u8]) -> Self {
        let data = [&[algorithm, hash], fingerprint].concat();
        Self { owner, kind: Kind::Sshfp, data }
    }

    /// An OPENPGPKEY record with a binary key.
    pub fn openpgpkey(owner: Owner, key: &[u8]) -> Result<Self, RecordFault> {
        if key.len() > MOST_DATA {
            return Err(RecordFault::TooLarge(key.len()));
        }
        Ok(Self { owner, kind: Kind::Openpgpkey, data: key.to_vec() })
    }

    /// A CERT record of type PGP with a binary key. Key tag and algorithm are 0 (RFC 4398 section 2).
    pub fn cert_pgp(owner: Owner, key: &[u8]) -> Result<Self, RecordFault> {
        if key.len() > MOST_DATA {
            return Err(RecordFault::TooLarge(key.len()));
        }
        Ok(Self { owner, kind: Kind::Cert, data: [&PGP.to_be_bytes(), &[0; 3][..], key].concat() })
    }

    /// A CERT record of type IPGP: the fingerprint, and where the key is (RFC 4398 section 2.1).
    pub fn cert_ipgp(owner: Owner, fingerprint: &[u8], url: &str) -> Result<Self, RecordFault> {
        let length = u8::try_from(fingerprint.len()).map_err(|_| RecordFault::Url)?;
        if url.len() > 2048 || !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(RecordFault::Url);
        }
        let data = [&IPGP.to_be_bytes(), &[0, 0, 0, length][..], fingerprint, url.as_bytes()].concat();
        Ok(Self { owner, kind: Kind::Cert, data })
    }

    /// The data as in zone files: `4 2 0123...`.
    pub fn data_text(&self) -> String {
        data_text(self.kind, &self.data)
    }

    /// A line of a zone file. `ssh-keygen -r` writes SSHFP records in the same way.
    pub fn line(&self, ttl: Option<u32>) -> String {
        let ttl = ttl.map_or(String::new(), |ttl| format!("{ttl} "));
        format!("{} {ttl}IN {} {}", self.owner.in_zone_file(), self.kind, self.data_text())
    }

    /// The same for programs that do not know the type (RFC 3597 section 5).
    pub fn generic_line(&self, ttl: Option<u32>) -> String {
        let ttl = ttl.map_or(String::new(), |ttl| format!("{ttl} "));
        let (owner, number, length) = (self.owner.in_zone_file(), self.kind.number(), self.data.len());
        format!("{owner} {ttl}IN TYPE{number} \\# {length} {}", hex(&self.data))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line(None))
    }
}

/// The data of all records of a name and type.
pub type Set = BTreeSet<Vec<u8>>;

/// Records by name and type.
pub fn sets<'r>(records: impl IntoIterator<Item = &'r Record>) -> BTreeMap<(Owner, Kind), Set> {
    let mut sets: BTreeMap<_, Set> = BTreeMap::new();
    for record in records {
        sets.entry((record.owner.clone(), record.kind)).or_default().insert(record.data.clone());
    }
    sets
}

/// The data as in zone files. Data that is too short for its type is written as RFC 3597 has it.
pub(super) fn data_text(kind: Kind, data: &[u8]) -> String {
    let text = match (kind, data) {
        (Kind::Sshfp, [algorithm, hash, rest @ ..]) if !rest.is_empty() => {
            Some(format!("{algorithm} {hash} {}", hex(rest)))
        }
        (Kind::Tlsa, [usage, selector, matching, rest @ ..]) if !rest.is_empty() => {
            Some(format!("{usage} {selector} {matching} {}", hex(rest)))
        }
        (Kind::Openpgpkey, [_, ..]) => Some(Base64::encode_string(data)),
        (Kind::Cert, [a, b, c, d, algorithm, rest @ ..]) if !rest.is_empty() => {
            let kind = match u16::from_be_bytes([*a, *b]) {
                PGP => "PGP".to_owned(),
                IPGP => "IPGP".to_owned(),
                other => other.to_string(),
            };
            let tag = u16::from_be_bytes([*c, *d]);
            Some(format!("{kind} {tag} {algorithm} {}", Base64::encode_string(rest)))
        }
        _ => None,
    };
    text.unwrap_or_else(|| format!("\\# {} {}", data.len(), hex(data)))
}

/// Lower case, as `ssh-keygen -r` writes it.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::parse("a.example").unwrap()
    }

    #[test]
    fn lines_are_those_of_zone_files() {
        let sshfp = Record::sshfp(owner(), 4, 2, &[1, 0xab]);
        assert_eq!(sshfp.line(None), "a.example. IN SSHFP 4 2 01ab");
        assert_eq!(sshfp.line(Some(60)), "a.example. 60 IN SSHFP 4 2 01ab");
        assert_eq!(sshfp.generic_line(None), "a.example. IN TYPE44 \\# 4 040201ab");
        let key = Record::openpgpkey(owner(), &[1, 2, 3]).unwrap();
        assert_eq!(key.line(None), "a.example. IN OPENPGPKEY AQID");
        assert_eq!(Record::cert_pgp(owner(), &[1]).unwrap().line(None), "a.example. IN CERT PGP 0 0 AQ==");
        let ipgp = Record::cert_ipgp(owner(), &[7; 20], "https://a.example/k").unwrap();
        assert_eq!(ipgp.data[..6], [0, 6, 0, 0, 0, 20]);
        assert!(
            Kind::Cert.is_ours(&ipgp.data)
                && !Kind::Cert.is_ours(&[0, 1, 0, 0, 0, 1])
                && !Kind::Cert.is_ours(&[0])
        );
        for short in [&[][..], &[1], &[1, 2]] {
            assert!(data_text(Kind::Sshfp, short).starts_with("\\# "), "{short:?}");
            assert!(data_text(Kind::Tlsa, short).starts_with("\\# "));
        }
    }

    #[test]
    fn what_does_not_fit_into_a_message_is_refused() {
        assert_eq!(
            Record::openpgpkey(owner(), &vec![0; MOST_DATA + 1]),
            Err(RecordFault::TooLarge(MOST_DATA + 1))
        );
        assert!(Record::cert_pgp(owner(), &vec![0; MOST_DATA]).is_ok());
        assert_eq!(Record::cert_ipgp(owner(), &[0; 20], "a b"), Err(RecordFault::Url));
    }
}
