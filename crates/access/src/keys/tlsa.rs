//! TLSA records of certificates (RFC 6698, RFC 7671), and whether the chain that a server shows fits them.

use aws_lc_rs::digest::{SHA256, SHA512, digest};
use thiserror::Error;

use super::owner::Owner;
use super::record::{Kind, Record, Set};

/// What a TLSA record of ours says. Others are read, not written (RFC 7671 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Association {
    /// `3 1 1`: this key is the one of the server. Names and dates in the certificate do not matter.
    Server,
    /// `2 1 1`: this key is the one of the authority, which the server sends too.
    Authority,
}

/// Reason why there is no key in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CertificateFault {
    #[error("it is not a certificate in DER")]
    Malformed,
    #[error("the file has no certificate of the authority behind that of the server, and 2 1 1 needs one")]
    NoAuthority,
}

impl Association {
    /// The record of a chain, whose first certificate is that of the server.
    pub fn record(self, owner: Owner, chain: &[Vec<u8>]) -> Result<Record, CertificateFault> {
        let (usage, certificate) = match (self, chain) {
            (Self::Server, [server, ..]) => (3, server),
            (Self::Authority, [_, .., authority]) => (2, authority),
            (Self::Authority, _) => return Err(CertificateFault::NoAuthority),
            (Self::Server, []) => return Err(CertificateFault::Malformed),
        };
        let key = digest(&SHA256, spki(certificate)?);
        let data = [&[usage, SELECTOR_KEY, SHA_256], key.as_ref()].concat();
        Ok(Record { owner, kind: Kind::Tlsa, data })
    }
}

/// Selector of the public key (RFC 6698 section 2.1.2).
const SELECTOR_KEY: u8 = 1;
/// Matching type of SHA-256 (RFC 6698 section 2.1.3).
const SHA_256: u8 = 1;

/// Whether a chain fits one of the records, as RFC 6698 section 2.1 has it. Usages 0 and 1 also want the certificate to
/// be valid for the authorities of the system, which is not judged here: for them only the key or certificate is compared.
pub fn fits(records: &Set, chain: &[Vec<u8>]) -> bool {
    records.iter().any(|record| one_fits(record, chain))
}

fn one_fits(record: &[u8], chain: &[Vec<u8>]) -> bool {
    let [usage, selector, matching, wanted @ ..] = record else { return false };
    let candidates = match usage {
        1 | 3 => chain.get(..1),
        // RFC 7671 section 5.2: the authority is above the server's certificate.
        0 | 2 => chain.get(1..),
        _ => None,
    };
    candidates.unwrap_or_default().iter().any(|certificate| {
        let part = match selector {
            0 => Ok(&certificate[..]),
            1 => spki(certificate),
            _ => return false,
        };
        let Ok(part) = part else { return false };
        match matching {
            0 => part == wanted,
            1 => digest(&SHA256, part).as_ref() == wanted,
            2 => digest(&SHA512, part).as_ref() == wanted,
            _ => false,
        }
    })
}

/// The SubjectPublicKeyInfo of a certificate, byte for byte (RFC 5280 section 4.1).
pub fn spki(certificate: &[u8]) -> Result<&[u8], CertificateFault> {
    let (whole, rest) = element(certificate, SEQUENCE)?;
    if !rest.is_empty() {
        return Err(CertificateFault::Malformed);
    }
    let (mut fields, _) = element(whole.content, SEQUENCE)?;
    let version = element(fields.content, VERSION);
    if let Ok((_, rest)) = version {
        fields.content = rest;
    }
    let mut rest = fields.content;
    // serialNumber, signature, issuer, validity, subject
    for tag in [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE] {
        rest = element(rest, tag)?.1;
    }
    Ok(element(rest, SEQUENCE)?.0.whole)
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;

struct Element<'b> {
    whole: &'b [u8],
    content: &'b [u8],
}

/// Splits off an element of DER with this tag.
fn element(bytes: &[u8], tag: u8) -> Result<(Element<'_>, &[u8]), CertificateFault> {
    let wrong = CertificateFault::Malformed;
    let [found, first, ..] = bytes else { return Err(wrong) };
    if *found != tag {
        return Err(wrong);
    }
    let (start, length) = match usize::from(*first) {
        short @ 0..0x80 => (2, short),
        long => {
            let count = long & 0x7f;
            let digits = bytes.get(2..2 + count).filter(|_| (1..=4).contains(&count)).ok_or(wrong)?;
            (2 + count, digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)))
        }
    };
    let end = start.checked_add(length).ok_or(wrong)?;
    let content = bytes.get(start..end).ok_or(wrong)?;
    Ok((Element { whole: &bytes[..end], content }, &bytes[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure that is a certificate as far as [`spki`] reads it.
    fn certificate(key: u8) -> Vec<u8> {
        let fields = [
            &[0xa0, 3, 2, 1, 2][..],
            &[2, 1, 9],
            &[0x30, 0],
            &[0x30, 0],
            &[0x30, 0],
            &[0x30, 0],
            &[0x30, 3, 3, 1, key],
        ]
        .concat();
        let length = fields.len() as u8;
        let inner = [&[0x30, length], &fields[..]].concat();
        [&[0x30, 0x81, inner.len() as u8], &inner[..]].concat()
    }

    #[test]
    fn key_of_a_certificate_is_found_and_broken_ones_are_refused() {
        let whole = certificate(7);
        assert_eq!(spki(&whole), Ok(&[0x30, 3, 3, 1, 7][..]));
        for at in 0..whole.len() {
            assert_eq!(spki(&whole[..at]), Err(CertificateFault::Malformed), "{at}");
        }
        assert!(spki(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]).is_err());
        assert!(spki(&[0x30, 0x80, 0, 0]).is_err());
    }

    #[test]
    fn records_fit_the_chain_that_they_were_made_of_and_no_other() {
        let owner = Owner::parse("_443._tcp.a.example").unwrap();
        let (chain, other) = (vec![certificate(1), certificate(2)], vec![certificate(3), certificate(4)]);
        for kind in [Association::Server, Association::Authority] {
            let record = kind.record(owner.clone(), &chain).unwrap();
            let set = Set::from([record.data.clone()]);
            assert!(fits(&set, &chain) && !fits(&set, &other), "{record:?}");
            assert!(!fits(&Set::from([record.data[..10].to_vec()]), &chain));
        }
        assert_eq!(Association::Authority.record(owner, &chain[..1]), Err(CertificateFault::NoAuthority));
        // The certificate of the server is no authority of itself.
        let of_server = [&[2, 0, 0][..], &chain[0]].concat();
        assert!(!fits(&Set::from([of_server]), &chain));
        assert!(fits(&Set::from([[&[3, 0, 0][..], &chain[0]].concat()]), &chain));
        assert!(!fits(&Set::from([vec![3, 1], vec![9, 9, 9, 9]]), &chain));
    }
}
