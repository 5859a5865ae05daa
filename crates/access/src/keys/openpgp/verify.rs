//! Signatures of an OpenPGP key by itself (RFC 9580 sections 5.2.3 and 5.2.4): RSA, ECDSA on the NIST curves, and Ed25519.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512, digest};
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    RsaPublicKeyComponents, UnparsedPublicKey,
};

use super::packet::{Packet, Signature};

/// What a signature is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject<'p> {
    /// The primary key alone.
    Key,
    User(&'p Packet),
    Subkey(&'p Packet),
}

/// A key that can check signatures.
enum PublicKey<'p> {
    Rsa {
        n: &'p [u8],
        e: &'p [u8],
    },
    P256(&'p [u8]),
    P384(&'p [u8]),
    P521(&'p [u8]),
    /// With the form of its signatures.
    Ed25519(&'p [u8], Form),
}

/// Form of a signature of Ed25519.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Two numbers without leading zeros (section 5.2.3.4).
    Numbers,
    /// 64 bytes (section 5.2.3.3).
    Native,
}

/// Whether signatures of a key can be checked here.
pub(super) fn is_known(primary: &Packet) -> bool {
    public_key(primary).is_some()
}

/// Whether the signature holds.
pub(super) fn holds(primary: &Packet, subject: Subject<'_>, signature: &Signature) -> bool {
    check(primary, subject, signature).is_some()
}

fn check(primary: &Packet, subject: Subject<'_>, signature: &Signature) -> Option<()> {
    let key = public_key(primary)?;
    let mut message = signature.salt.clone();
    message.extend(hashed_key(primary)?);
    match subject {
        Subject::Key => {}
        Subject::User(user) => {
            message.push(0xb4);
            message.extend(u32::try_from(user.body.len()).ok()?.to_be_bytes());
            message.extend(&user.body);
        }
        Subject::Subkey(subkey) => message.extend(hashed_key(subkey)?),
    }
    message.extend(&signature.hashed);
    message.extend([*signature.hashed.first()?, 0xff]);
    message.extend(u32::try_from(signature.hashed.len()).ok()?.to_be_bytes());
    let numbers = &signature.data[..];
    let verified = match (key, signature.hash) {
        (PublicKey::Rsa { n, e }, hash) => {
            let parameters = match hash {
                SHA_1 => &signature::RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
                SHA_256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                SHA_384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                SHA_512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                _ => return None,
            };
            let (number, _) = number(numbers)?;
            let number = padded(number, n.len())?;
            RsaPublicKeyComponents { n, e }.verify(parameters, &message, &number)
        }
        (PublicKey::P256(point), SHA_256) => {
            UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(&message, &pair(numbers, 32)?)
        }
        (PublicKey::P384(point), SHA_384) => {
            UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(&message, &pair(numbers, 48)?)
        }
        (PublicKey::P521(point), SHA_512) => {
            UnparsedPublicKey::new(&ECDSA_P521_SHA512_FIXED, point).verify(&message, &pair(numbers, 66)?)
        }
        (PublicKey::Ed25519(point, form), hash) => {
            let hash = match hash {
                SHA_1 => &SHA1_FOR_LEGACY_USE_ONLY,
                SHA_256 => &SHA256,
                SHA_384 => &SHA384,
                SHA_512 => &SHA512,
                _ => return None,
            };
            let signature = match form {
                Form::Numbers => pair(numbers, 32)?,
                Form::Native => numbers.get(..64)?.to_vec(),
            };
            UnparsedPublicKey::new(&ED25519, point).verify(digest(hash, &message).as_ref(), &signature)
        }
        _ => return None,
    };
    verified.ok()
}

/// Hash algorithms (section 9.5).
const SHA_1: u8 = 2;
const SHA_256: u8 = 8;
const SHA_384: u8 = 9;
const SHA_512: u8 = 10;

/// Object identifiers of curves (section 9.2).
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[0x2b, 0x81, 4, 0, 0x22];
const P521: &[u8] = &[0x2b, 0x81, 4, 0, 0x23];
const ED25519_LEGACY: &[u8] = &[0x2b, 6, 1, 4, 1, 0xda, 0x47, 0x0f, 1];

/// Reads the material of a key (section 5.5.5). `None` for algorithms that are not checked here.
fn public_key(packet: &Packet) -> Option<PublicKey<'_>> {
    let [version, _, _, _, _, algorithm, rest @ ..] = &packet.body[..] else { return None };
    let material = match version {
        4 => rest,
        // The length of the material comes first.
        6 => rest.get(4..)?,
        _ => return None,
    };
    match algorithm {
        1 | 3 => {
            let (n, rest) = number(material)?;
            let (e, _) = number(rest)?;
            Some(PublicKey::Rsa { n, e })
        }
        19 | 22 => {
            let (length, rest) = material.split_first()?;
            let (curve, rest) = rest.split_at_checked(usize::from(*length))?;
            let (point, _) = number(rest)?;
            match (algorithm, curve) {
                (19, P256) => Some(PublicKey::P256(point)),
                (19, P384) => Some(PublicKey::P384(point)),
                (19, P521) => Some(PublicKey::P521(point)),
                (22, ED25519_LEGACY) => Some(PublicKey::Ed25519(point.strip_prefix(&[0x40])?, Form::Numbers)),
                _ => None,
            }
        }
        27 => Some(PublicKey::Ed25519(material.get(..32)?, Form::Native)),
        _ => None,
    }
}

/// A key as it goes into the hash (section 5.2.4).
fn hashed_key(packet: &Packet) -> Option<Vec<u8>> {
    let length = packet.body.len();
    let head = match packet.body.first()? {
        4 => [&[0x99], &u16::try_from(length).ok()?.to_be_bytes()[..]].concat(),
        6 => [&[0x9b], &u32::try_from(length).ok()?.to_be_bytes()[..]].concat(),
        _ => return None,
    };
    Some([head, packet.body.clone()].concat())
}

/// Splits off a number (section 3.2): its length in bits, and its bytes.
fn number(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (bits, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*bits)).div_ceil(8))
}

fn padded(number: &[u8], length: usize) -> Option<Vec<u8>> {
    let zeros = length.checked_sub(number.len())?;
    Some([&vec![0; zeros][..], number].concat())
}

/// Two numbers of this length.
fn pair(bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let (first, rest) = number(bytes)?;
    let (second, _) = number(rest)?;
    Some([padded(first, length)?, padded(second, length)?].concat())
}
