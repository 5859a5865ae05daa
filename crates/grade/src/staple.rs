//! The parts of an OCSP response (RFC 6960 section 4.2.1) that say whether a staple is of use.

use std::time::{Duration, SystemTime};

use x509_cert::der::Decode;
use x509_cert::der::asn1::GeneralizedTime;

use crate::observed::Staple;

/// Reads what was stapled; nothing at all is no staple. The signature is not checked.
pub(crate) fn read(response: &[u8], now: SystemTime) -> Staple {
    if response.is_empty() {
        return Staple::None;
    }
    match status(response) {
        None => Staple::Useless("it cannot be read".to_owned()),
        Some(Status::Unsuccessful(code)) => {
            Staple::Useless(format!("the responder refused, with code {code}"))
        }
        Some(Status::Certificate { state: REVOKED, .. }) => Staple::Revoked,
        Some(Status::Certificate { state: GOOD, from, until }) => match until {
            Some(until) if until < now => Staple::Useless("its time is over".to_owned()),
            _ if from > now + TOLERATED_SKEW => Staple::Useless("its time has not come".to_owned()),
            _ => Staple::Good { until },
        },
        Some(Status::Certificate { .. }) => {
            Staple::Useless("the responder does not know the certificate".to_owned())
        }
    }
}

/// An element of DER and what follows it.
pub(crate) struct Element<'a> {
    pub(crate) content: &'a [u8],
    pub(crate) rest: &'a [u8],
}

/// The first element, if it has this tag.
pub(crate) fn element(input: &[u8], tag: u8) -> Option<Element<'_>> {
    let (found, element) = any(input)?;
    (found == tag).then_some(element)
}

enum Status {
    Unsuccessful(u8),
    Certificate { state: u8, from: SystemTime, until: Option<SystemTime> },
}

fn status(response: &[u8]) -> Option<Status> {
    let response = element(response, SEQUENCE)?.content;
    let outcome = element(response, ENUMERATED)?;
    match outcome.content {
        [0] => {}
        [code] => return Some(Status::Unsuccessful(*code)),
        _ => return None,
    }
    // responseBytes [0] { SEQUENCE { OID, OCTET STRING { BasicOCSPResponse { tbsResponseData ...
    let bytes = element(element(outcome.rest, context(0))?.content, SEQUENCE)?.content;
    let basic = element(element(bytes, OID)?.rest, OCTET_STRING)?.content;
    let mut data = element(element(basic, SEQUENCE)?.content, SEQUENCE)?.content;
    if let Some(version) = element(data, context(0)) {
        data = version.rest;
    }
    let responder = any(data)?.1;
    let produced = element(responder.rest, GENERALIZED_TIME)?;
    let single = element(element(produced.rest, SEQUENCE)?.content, SEQUENCE)?.content;
    let (tag, state) = any(element(single, SEQUENCE)?.rest)?;
    let (from, rest) = time(state.rest)?;
    let until = element(rest, context(0)).and_then(|next| time(next.content)).map(|(until, _)| until);
    Some(Status::Certificate { state: tag & 0x1f, from, until })
}

fn time(input: &[u8]) -> Option<(SystemTime, &[u8])> {
    let found = element(input, GENERALIZED_TIME)?;
    let time = GeneralizedTime::from_der(&input[..input.len() - found.rest.len()]).ok()?;
    Some((SystemTime::UNIX_EPOCH + time.to_unix_duration(), found.rest))
}

fn any(input: &[u8]) -> Option<(u8, Element<'_>)> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, Element { content, rest }))
}

const fn context(number: u8) -> u8 {
    0xa0 | number
}

const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const ENUMERATED: u8 = 0x0a;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;

/// Tags of CertStatus; 2 is "unknown".
const GOOD: u8 = 0;
const REVOKED: u8 = 1;

/// Clocks differ.
const TOLERATED_SKEW: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_response_is_useless_and_nothing_is_no_staple() {
        assert_eq!(read(&[], SystemTime::now()), Staple::None);
        for junk in [&b"x"[..], &[0x30, 3, 0x0a, 1, 0], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0; 100]] {
            assert!(matches!(read(junk, SystemTime::now()), Staple::Useless(_)), "{junk:?}");
        }
        let busy = read(&[0x30, 3, 0x0a, 1, 3], SystemTime::now());
        assert_eq!(busy, Staple::Useless("the responder refused, with code 3".to_owned()));
    }
}
