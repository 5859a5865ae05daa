//! Packets of OpenPGP (RFC 9580 section 4), of public keys and of signatures.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

use super::fault::KeyFault;

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Signature,
    SecretKey,
    PublicKey,
    UserId,
    Subkey,
    Attribute,
    Other(u8),
}

impl Tag {
    fn of(number: u8) -> Self {
        match number {
            2 => Self::Signature,
            5 | 7 => Self::SecretKey,
            6 => Self::PublicKey,
            13 => Self::UserId,
            14 => Self::Subkey,
            17 => Self::Attribute,
            other => Self::Other(other),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) tag: Tag,
    /// The packet with its header.
    pub(super) whole: Vec<u8>,
    pub(super) body: Vec<u8>,
}

/// Splits a file into its packets. An error is the last item.
pub(super) fn walk(bytes: &[u8]) -> impl Iterator<Item = Result<Packet, KeyFault>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        match split(rest) {
            Some((packet, length)) => {
                at += length;
                Some(Ok(packet))
            }
            None => {
                let fault = KeyFault::Packet(at);
                at = bytes.len();
                Some(Err(fault))
            }
        }
    })
}

/// Splits off the first packet; with its length.
fn split(bytes: &[u8]) -> Option<(Packet, usize)> {
    let (first, rest) = bytes.split_first()?;
    let number = |bytes: &[u8]| bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    let (tag, header, length): (u8, usize, usize) = match first {
        // Section 4.2.1. Lengths of parts (224 to 254) are for data only.
        0xc0.. => match (first & 0x3f, *rest.first()?) {
            (tag, length @ 0..192) => (tag, 2, usize::from(length)),
            (tag, high @ 192..224) => {
                (tag, 3, ((usize::from(high) - 192) << 8) + usize::from(*rest.get(1)?) + 192)
            }
            (tag, 255) => (tag, 6, number(rest.get(1..5)?)),
            _ => return None,
        },
        // Section 4.2.2. A length that is not said is for data only.
        0x80.. => {
            let count = match first & 3 {
                0 => 1,
                1 => 2,
                2 => 4,
                _ => return None,
            };
            (first >> 2 & 0xf, 1 + count, number(rest.get(..count)?))
        }
        _ => return None,
    };
    let end = header.checked_add(length)?;
    let whole = bytes.get(..end)?.to_vec();
    let body = whole[header..].to_vec();
    Some((Packet { tag: Tag::of(tag), whole, body }, end))
}

impl Packet {
    /// Fingerprint (section 5.5.4) and time of a key.
    pub(super) fn key(&self) -> Result<(Vec<u8>, u64), KeyFault> {
        let [version, a, b, c, d, ..] = self.body[..] else { return Err(KeyFault::NoKey) };
        let created = u64::from(u32::from_be_bytes([a, b, c, d]));
        let length = self.body.len();
        let fingerprint = match version {
            4 => {
                let length = u16::try_from(length).map_err(|_| KeyFault::NoKey)?;
                let hashed = [&[0x99], &length.to_be_bytes()[..], &self.body].concat();
                digest(&SHA1_FOR_LEGACY_USE_ONLY, &hashed)
            }
            6 => {
                let length = u32::try_from(length).map_err(|_| KeyFault::NoKey)?;
                digest(&SHA256, &[&[0x9b], &length.to_be_bytes()[..], &self.body].concat())
            }
            other => return Err(KeyFault::Version(other)),
        };
        Ok((fingerprint.as_ref().to_vec(), created))
    }

    /// Reads a signature. `None` for versions before 4, which no self-signature of a present key has.
    pub(super) fn signature(&self) -> Option<Signature> {
        let [version, kind, _, _, rest @ ..] = &self.body[..] else { return None };
        let width = match version {
            4 => 2,
            6 => 4,
            _ => return None,
        };
        let hash = *self.body.get(3)?;
        let (hashed, rest) = area(rest, width)?;
        let (unhashed, rest) = area(rest, width)?;
        // Two bytes of the hash, and in version 6 a salt.
        let rest = rest.get(2..)?;
        let (salt, data) = match version {
            6 => {
                let (length, rest) = rest.split_first()?;
                rest.split_at_checked(usize::from(*length))?
            }
            _ => (&[][..], rest),
        };
        let mut signature = Signature {
            kind: *kind,
            hash,
            hashed: self.body.get(..4 + width + hashed.len())?.to_vec(),
            salt: salt.to_vec(),
            data: data.to_vec(),
            created: 0,
            key_expires: None,
            fingerprint: None,
            key_id: None,
        };
        signature.add(hashed, Area::Hashed)?;
        signature.add(unhashed, Area::Unhashed)?;
        Some(signature)
    }
}

/// What a signature says, of what matters here.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    pub(super) kind: u8,
    /// Number of the hash algorithm.
    pub(super) hash: u8,
    /// The part of the packet that is signed.
    pub(super) hashed: Vec<u8>,
    pub(super) salt: Vec<u8>,
    /// The signature itself, by its algorithm.
    pub(super) data: Vec<u8>,
    pub(super) created: u32,
    /// Seconds from the making of the key to its end.
    pub(super) key_expires: Option<u32>,
    fingerprint: Option<Vec<u8>>,
    key_id: Option<Vec<u8>>,
}

/// Whether the signature covers subpackets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    Hashed,
    Unhashed,
}

impl Signature {
    /// Whether it names this key as its issuer (sections 5.2.3.12 and 5.2.3.35).
    pub(super) fn is_by(&self, fingerprint: &[u8]) -> bool {
        let id = match fingerprint.len() {
            20 => fingerprint.get(12..),
            _ => fingerprint.get(..8),
        };
        match (&self.fingerprint, &self.key_id) {
            (Some(own), _) => own == fingerprint,
            (None, Some(own)) => Some(&own[..]) == id,
            (None, None) => false,
        }
    }

    /// Reads subpackets (section 5.2.3.7).
    fn add(&mut self, area: &[u8], place: Area) -> Option<()> {
        let mut rest = area;
        while !rest.is_empty() {
            let (header, length): (usize, usize) = match *rest.first()? {
                length @ 0..192 => (1, usize::from(length)),
                high @ 192..255 => (2, ((usize::from(high) - 192) << 8) + usize::from(*rest.get(1)?) + 192),
                255 => {
                    let bytes = rest.get(1..5)?;
                    (5, bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
                }
            };
            let end = header.checked_add(length)?;
            let [kind, data @ ..] = rest.get(header..end)? else { return None };
            let number = || data.try_into().ok().map(u32::from_be_bytes);
            match (kind & 0x7f, place) {
                (2, Area::Hashed) => self.created = number()?,
                (9, Area::Hashed) => self.key_expires = number(),
                (16, _) => self.key_id = Some(data.to_vec()),
                (33, _) => self.fingerprint = data.get(1..).map(<[u8]>::to_vec),
                _ => {}
            }
            rest = &rest[end..];
        }
        Some(())
    }
}

/// Splits off an area of subpackets, whose length has `width` bytes.
fn area(bytes: &[u8], width: usize) -> Option<(&[u8], &[u8])> {
    let length = bytes.get(..width)?.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    bytes.get(width..)?.split_at_checked(length)
}
