//! Parses the parts of an OCSP response (RFC 6960 section 4.2.1) that decide whether a staple is usable.

use std::time::{Duration, SystemTime};

use logic::ocsp::message::{
    BasicResponse, CertStatus, OcspResponse, ResponseBytes, ResponseData, ResponseStatus, SingleResponse,
};
use x509_cert::der::{Decode, Encode};

use crate::observed::Staple;

/// Parses a stapled response; an empty one is no staple. The signature is not checked.
pub(crate) fn read(response: &[u8], now: SystemTime) -> Staple {
    if response.is_empty() {
        return Staple::None;
    }
    let unreadable = || Staple::Unusable("it cannot be read".to_owned());
    let Ok(response) = OcspResponse::from_der(response) else { return unreadable() };
    if response.status != ResponseStatus::Successful {
        return Staple::Unusable(format!("the responder refused, with code {}", response.status as u8));
    }
    let Some(single) = response.bytes.as_ref().and_then(first) else { return unreadable() };
    let until = single.next_update.map(|until| until.to_system_time());
    match single.status {
        CertStatus::Revoked(_) => Staple::Revoked,
        CertStatus::Good(_) if until.is_some_and(|until| until < now) => {
            Staple::Unusable("it has expired".to_owned())
        }
        CertStatus::Good(_) if single.this_update.to_system_time() > now + TOLERATED_SKEW => {
            Staple::Unusable("it is not valid yet".to_owned())
        }
        CertStatus::Good(_) => Staple::Good { until },
        CertStatus::Unknown(_) => Staple::Unusable("the responder does not know the certificate".to_owned()),
    }
}

fn first(bytes: &ResponseBytes) -> Option<SingleResponse> {
    let basic = BasicResponse::from_der(bytes.response.as_bytes()).ok()?;
    let data = ResponseData::from_der(&basic.data.to_der().ok()?).ok()?;
    data.responses.into_iter().next()
}

const TOLERATED_SKEW: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use logic::ocsp::message::{BASIC, CertId, ResponderId, RevokedInfo};
    use x509_cert::der::Any;
    use x509_cert::der::asn1::{BitString, GeneralizedTime, Int, Null, ObjectIdentifier, OctetString};
    use x509_cert::spki::AlgorithmIdentifierOwned;

    use super::*;

    const SHA1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");

    fn time(seconds: u64) -> GeneralizedTime {
        GeneralizedTime::from_unix_duration(Duration::from_secs(seconds)).unwrap()
    }

    fn response(status: CertStatus, from: u64, until: Option<u64>) -> Vec<u8> {
        let hash = || OctetString::new([7; 20]).unwrap();
        let single = SingleResponse {
            cert_id: CertId {
                hash_algorithm: AlgorithmIdentifierOwned { oid: SHA1, parameters: None },
                issuer_name_hash: hash(),
                issuer_key_hash: hash(),
                serial_number: Int::new(&[1]).unwrap(),
            },
            status,
            this_update: time(from),
            next_update: until.map(time),
            extensions: None,
        };
        let data = ResponseData {
            version: None,
            responder: ResponderId::ByKey(hash()),
            produced_at: time(from),
            responses: vec![single],
            extensions: None,
        };
        let basic = BasicResponse {
            data: Any::encode_from(&data).unwrap(),
            signature_algorithm: Any::null(),
            signature: BitString::from_bytes(&[0]).unwrap(),
            certificates: None,
        };
        let response = OctetString::new(basic.to_der().unwrap()).unwrap();
        let bytes = Some(ResponseBytes { kind: BASIC, response });
        OcspResponse { status: ResponseStatus::Successful, bytes }.to_der().unwrap()
    }

    #[test]
    fn what_a_response_says_counts_only_in_its_time() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let good = || CertStatus::Good(Null);
        let unusable = |why: &str| Staple::Unusable(why.to_owned());
        let day = response(good(), 100_000, Some(186_400));
        assert_eq!(read(&day, at(100_000)), Staple::Good { until: Some(at(186_400)) });
        assert_eq!(read(&day, at(186_401)), unusable("it has expired"));
        assert_eq!(read(&day, at(99_699)), unusable("it is not valid yet"));
        assert_eq!(read(&response(good(), 100_000, None), at(900_000)), Staple::Good { until: None });
        let revoked = CertStatus::Revoked(RevokedInfo { revoked_at: time(5), reason: None });
        assert_eq!(read(&response(revoked, 100_000, Some(186_400)), at(900_000)), Staple::Revoked);
        let unknown = response(CertStatus::Unknown(Null), 100_000, None);
        assert_eq!(read(&unknown, at(100_000)), unusable("the responder does not know the certificate"));
    }

    #[test]
    fn what_is_no_response_is_unusable_and_nothing_is_no_staple() {
        assert_eq!(read(&[], SystemTime::now()), Staple::None);
        for junk in [&b"x"[..], &[0x30, 3, 0x0a, 1, 0], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0; 100]] {
            assert!(matches!(read(junk, SystemTime::now()), Staple::Unusable(_)), "{junk:?}");
        }
        let busy = read(&[0x30, 3, 0x0a, 1, 3], SystemTime::now());
        assert_eq!(busy, Staple::Unusable("the responder refused, with code 3".to_owned()));
    }
}
