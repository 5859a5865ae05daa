//! The OCSP response beside a certificate (RFC 6960 section 4.2): parsed far enough that one for another certificate, an
//! old one or none at all is never sent. Its signature is not verified here.

use std::time::{Duration, SystemTime};

use x509_cert::der::Decode;
use x509_cert::der::asn1::GeneralizedTime;

use super::der::{self, Element};

/// A response that may be sent.
#[derive(Clone, Debug)]
pub struct Staple {
    /// As DER.
    pub response: Vec<u8>,
    /// When there is a newer one; `None`: the responder does not say.
    pub until: Option<SystemTime>,
}

/// Why a response is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StapleFault {
    /// It is no OCSPResponse.
    Malformed,
    /// The responder had no answer (tryLater, unauthorized, ...).
    NoAnswer(u8),
    /// It is about other certificates.
    OtherCertificate,
    /// It says that the certificate is revoked.
    Revoked,
    /// The responder does not know the certificate.
    Unknown,
    /// Its time is over.
    Expired,
}

impl std::fmt::Display for StapleFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed => f.write_str("is no OCSP response (DER)"),
            Self::NoAnswer(status) => write!(f, "is an answer without a verdict (OCSP status {status})"),
            Self::OtherCertificate => f.write_str("is the OCSP response for another certificate"),
            Self::Revoked => f.write_str("says that the certificate is revoked"),
            Self::Unknown => f.write_str("says that the responder does not know the certificate"),
            Self::Expired => f.write_str("is an OCSP response whose time is over"),
        }
    }
}

impl Staple {
    /// Reads a response for the certificate with this serial number.
    pub(super) fn read(response: Vec<u8>, serial: &[u8], now: SystemTime) -> Result<Self, StapleFault> {
        let single = find(&response, serial)?;
        let status = single.status;
        let until = match single.next_update {
            None => None,
            Some(time) => Some(SystemTime::UNIX_EPOCH + read_time(time).ok_or(StapleFault::Malformed)?),
        };
        match status {
            0x80 => {}
            0xa1 => return Err(StapleFault::Revoked),
            0x82 => return Err(StapleFault::Unknown),
            _ => return Err(StapleFault::Malformed),
        }
        let staple = Self { response, until };
        if staple.is_over(now) { Err(StapleFault::Expired) } else { Ok(staple) }
    }

    /// Whether it must not be sent any more. A little early: who looks does so once a minute.
    pub(super) fn is_over(&self, now: SystemTime) -> bool {
        self.until.is_some_and(|until| until < now + MARGIN)
    }
}

/// Longer than the time between two looks at the directory.
const MARGIN: Duration = Duration::from_secs(90);

/// What a SingleResponse says.
struct Single<'a> {
    /// Tag of the CertStatus.
    status: u8,
    next_update: Option<&'a [u8]>,
}

fn find<'a>(response: &'a [u8], serial: &[u8]) -> Result<Single<'a>, StapleFault> {
    const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
    let malformed = StapleFault::Malformed;
    let sequence = |input| der::expect(input, der::SEQUENCE).ok_or(malformed);
    let whole = sequence(response)?;
    if !whole.rest.is_empty() {
        return Err(malformed);
    }
    let status = der::expect(whole.content, der::ENUMERATED).ok_or(malformed)?;
    match status.content {
        [0] => {}
        [other] => return Err(StapleFault::NoAnswer(*other)),
        _ => return Err(malformed),
    }
    let bytes = der::expect(status.rest, der::context(0)).ok_or(malformed)?;
    let kind = der::expect(sequence(bytes.content)?.content, der::OID).ok_or(malformed)?;
    let basic = der::expect(kind.rest, der::OCTET_STRING).ok_or(malformed)?;
    if kind.content != BASIC {
        return Err(malformed);
    }
    let data = sequence(sequence(basic.content)?.content)?.content;
    // version [0] and responderID [1] or [2]
    let mut rest = data;
    while let Some(Element { tag: 0xa0..=0xa2, rest: behind, .. }) = der::read(rest) {
        rest = behind;
    }
    let produced = der::expect(rest, der::GENERALIZED_TIME).ok_or(malformed)?;
    let mut singles = sequence(produced.rest)?.content;
    while !singles.is_empty() {
        let single = sequence(singles)?;
        singles = single.rest;
        let id = sequence(single.content)?;
        if !is_about(id.content, serial).ok_or(malformed)? {
            continue;
        }
        let status = der::read(id.rest).ok_or(malformed)?;
        let this_update = der::expect(status.rest, der::GENERALIZED_TIME).ok_or(malformed)?;
        let next = der::expect(this_update.rest, der::context(0)).map(|next| next.content);
        return Ok(Single { status: status.tag, next_update: next });
    }
    Err(StapleFault::OtherCertificate)
}

/// Whether a CertID has this serial number.
fn is_about(id: &[u8], serial: &[u8]) -> Option<bool> {
    let algorithm = der::expect(id, der::SEQUENCE)?;
    let name = der::expect(algorithm.rest, der::OCTET_STRING)?;
    let key = der::expect(name.rest, der::OCTET_STRING)?;
    let number = der::expect(key.rest, der::INTEGER)?;
    let plain = |bytes: &[u8]| bytes.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
    Some(plain(number.content) == plain(serial))
}

fn read_time(der: &[u8]) -> Option<Duration> {
    GeneralizedTime::from_der(der).ok().map(|time| time.to_unix_duration())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_response_is_never_one() {
        let now = SystemTime::now();
        let try_later = vec![0x30, 3, 0x0a, 1, 3];
        assert_eq!(Staple::read(try_later, &[1], now).unwrap_err(), StapleFault::NoAnswer(3));
        for bad in [&b""[..], b"-----BEGIN", &[0x30, 0], &[0x30, 3, 0x0a, 1, 0], &[0x30; 4096]] {
            assert_eq!(Staple::read(bad.to_vec(), &[1], now).unwrap_err(), StapleFault::Malformed, "{bad:?}");
        }
    }
}
