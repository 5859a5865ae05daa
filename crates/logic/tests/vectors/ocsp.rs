//! Verification of OCSP responses, signed here with every kind of key; what openssl signs is in
//! `crates/penstock/tests/tls/staples.rs`.

use std::time::{Duration, SystemTime};

use der::asn1::{Any, BitString, GeneralizedTime, Int, Null, ObjectIdentifier, OctetString};
use der::{Decode, Encode};
use logic::ocsp::message::{
    BASIC, BasicResponse, CertId, CertStatus, OcspRequest, OcspResponse, ResponderId, ResponseBytes,
    ResponseData, ResponseStatus, RevokedInfo, SingleResponse,
};
use logic::ocsp::{Algorithms, Fault, Good, Hint, Query, QueryError, Revocation, verify};
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SignatureAlgorithm,
    SigningKey,
};
use x509_cert::ext::Extension;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// All certificates here are valid, but for the one that a test makes otherwise.
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + DAY * 20_000
}

fn algorithms() -> Algorithms<'static> {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all
}

/// An identity with a key and a certificate.
struct Party {
    key: KeyPair,
    params: CertificateParams,
    der: Vec<u8>,
}

impl Party {
    fn authority(algorithm: &'static SignatureAlgorithm, name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate_for(algorithm).unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self { key, params, der }
    }

    fn issue(&self, params: CertificateParams) -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let issuer = Issuer::from_params(&self.params, &self.key);
        let der = params.signed_by(&key, &issuer).unwrap().der().to_vec();
        Self { key, params, der }
    }

    fn certificate(&self) -> x509_cert::Certificate {
        x509_cert::Certificate::from_der(&self.der).unwrap()
    }

    fn by_name(&self) -> ResponderId {
        ResponderId::ByName(Any::encode_from(self.certificate().tbs_certificate().subject()).unwrap())
    }

    /// What its signatures are called, seen on a certificate that it signs.
    fn algorithm(&self) -> Any {
        let certificate = params("any").self_signed(&self.key).unwrap();
        let certificate = x509_cert::Certificate::from_der(certificate.der()).unwrap();
        Any::encode_from(certificate.signature_algorithm()).unwrap()
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2090, 1, 1);
    params
}

fn delegate_params() -> CertificateParams {
    let mut params = params("responder");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::OcspSigning];
    params
}

fn time(at: SystemTime) -> GeneralizedTime {
    GeneralizedTime::from_unix_duration(at.duration_since(SystemTime::UNIX_EPOCH).unwrap()).unwrap()
}

/// An authority, a certificate of it, and what a test changes about the answer for that.
struct Scene {
    authority: Party,
    query: Query,
    id: CertId,
}

impl Scene {
    fn new() -> Self {
        Self::with(&rcgen::PKCS_ECDSA_P256_SHA256)
    }

    fn with(algorithm: &'static SignatureAlgorithm) -> Self {
        let authority = Party::authority(algorithm, "authority");
        let leaf = authority.issue(params("a.example"));
        let query = Query::new(&leaf.der, &authority.der).unwrap();
        let request = OcspRequest::from_der(&query.request()).unwrap();
        let id = request.tbs_request.request_list[0].cert_id.clone();
        Self { authority, query, id }
    }

    fn single(&self, status: CertStatus) -> SingleResponse {
        SingleResponse {
            cert_id: self.id.clone(),
            status,
            this_update: time(now() - DAY),
            next_update: Some(time(now() + DAY)),
            extensions: None,
        }
    }

    fn good(&self) -> SingleResponse {
        self.single(CertStatus::Good(Null))
    }

    fn signed_by(&self, signer: &Party, responses: Vec<SingleResponse>, certificates: &[&Party]) -> Vec<u8> {
        sign(signer, signer.by_name(), responses, certificates)
    }

    fn verify(&self, response: &[u8]) -> Result<Good, Fault> {
        verify(response, &self.query, now(), algorithms())
    }

    /// What comes of one answer, signed by the authority.
    fn judge(&self, single: SingleResponse) -> Result<Good, Fault> {
        self.verify(&self.signed_by(&self.authority, vec![single], &[]))
    }
}

fn sign(
    signer: &Party,
    responder: ResponderId,
    responses: Vec<SingleResponse>,
    certificates: &[&Party],
) -> Vec<u8> {
    let produced_at = time(now());
    let data = ResponseData { version: None, responder, produced_at, responses, extensions: None };
    sign_data(signer, &data, certificates)
}

fn sign_data(signer: &Party, data: &ResponseData, certificates: &[&Party]) -> Vec<u8> {
    let data = Any::encode_from(data).unwrap();
    let signature = signer.key.sign(&data.to_der().unwrap()).unwrap();
    let certificates = certificates.iter().map(|party| Any::from_der(&party.der).unwrap()).collect();
    let basic = BasicResponse {
        data,
        signature_algorithm: signer.algorithm(),
        signature: BitString::from_bytes(&signature).unwrap(),
        certificates: Some(certificates).filter(|all: &Vec<Any>| !all.is_empty()),
    };
    let response = OctetString::new(basic.to_der().unwrap()).unwrap();
    let bytes = Some(ResponseBytes { kind: BASIC, response });
    OcspResponse { status: ResponseStatus::Successful, bytes }.to_der().unwrap()
}

#[test]
fn a_good_answer_is_good_with_every_kind_of_key() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
        &rcgen::PKCS_RSA_SHA384,
        &rcgen::PKCS_RSA_SHA512,
    ] {
        let scene = Scene::with(algorithm);
        let good = scene.judge(scene.good());
        assert_eq!(good, Ok(Good { this_update: now() - DAY, until: now() + DAY }), "{algorithm:?}");
        assert_eq!(verify(&[0x30], &scene.query, now(), algorithms()), Err(Fault::Malformed));
    }
}

#[test]
fn an_answer_is_about_the_certificate_only_if_issuer_and_serial_number_are_its_own() {
    let scene = Scene::new();
    let other = Scene::new();
    let mut wrong = scene.good();
    wrong.cert_id.serial_number = Int::new(&[7]).unwrap();
    assert_eq!(scene.judge(wrong.clone()), Err(Fault::OtherCertificate));
    let mut of_other_key = scene.good();
    of_other_key.cert_id.issuer_key_hash = other.id.issuer_key_hash.clone();
    assert_eq!(scene.judge(of_other_key), Err(Fault::OtherCertificate));
    let several = scene.signed_by(&scene.authority, vec![wrong, scene.good()], &[]);
    assert!(scene.verify(&several).is_ok(), "the right one of several is found");
    let leaf = scene.authority.issue(params("b.example"));
    let stranger = Party::authority(&rcgen::PKCS_ED25519, "stranger");
    assert_eq!(Query::new(&leaf.der, &stranger.der).unwrap_err(), QueryError::OtherIssuer);
    assert_eq!(Query::new(b"x", &stranger.der).unwrap_err(), QueryError::Malformed);
}

#[test]
fn of_two_answers_the_newer_counts() {
    let scene = Scene::new();
    let revoked = RevokedInfo { revoked_at: time(now() - DAY), reason: None };
    let mut newer = scene.single(CertStatus::Revoked(revoked));
    newer.this_update = time(now());
    let both = scene.signed_by(&scene.authority, vec![newer, scene.good()], &[]);
    assert!(matches!(scene.verify(&both), Err(Fault::Revoked(_))));
}

#[test]
fn a_delegate_signs_if_the_issuer_appointed_it_for_that_and_it_is_valid() {
    let scene = Scene::new();
    let answer = |delegate: &Party| scene.verify(&scene.signed_by(delegate, vec![scene.good()], &[delegate]));
    let delegate = scene.authority.issue(delegate_params());
    assert!(answer(&delegate).is_ok());
    let key = delegate.certificate().tbs_certificate().subject_public_key_info().subject_public_key.clone();
    let hash = <sha1::Sha1 as sha1::Digest>::digest(key.raw_bytes());
    let by_key = ResponderId::ByKey(OctetString::new(hash.as_slice()).unwrap());
    assert!(scene.verify(&sign(&delegate, by_key, vec![scene.good()], &[&delegate])).is_ok());
    let without = scene.signed_by(&delegate, vec![scene.good()], &[]);
    assert_eq!(scene.verify(&without), Err(Fault::UnknownSigner));

    assert_eq!(answer(&scene.authority.issue(params("web"))), Err(Fault::SignerNotAllowed));
    let mut old = delegate_params();
    old.not_after = rcgen::date_time_ymd(2001, 1, 1);
    assert_eq!(answer(&scene.authority.issue(old)), Err(Fault::SignerUntimely));
    let impostor = Party::authority(&rcgen::PKCS_ECDSA_P256_SHA256, "authority");
    assert_eq!(answer(&impostor.issue(delegate_params())), Err(Fault::SignerOfOtherIssuer));
    assert_eq!(answer(&impostor), Err(Fault::SignerOfOtherIssuer));
    let stranger = Party::authority(&rcgen::PKCS_ECDSA_P256_SHA256, "stranger");
    assert_eq!(answer(&stranger.issue(delegate_params())), Err(Fault::SignerOfOtherIssuer));
    // Appointed by a responder that the issuer appointed: one step too many (RFC 6960 section 4.2.2.2).
    let between = scene.authority.issue(delegate_params());
    assert_eq!(answer(&between.issue(delegate_params())), Err(Fault::SignerOfOtherIssuer));
}

#[test]
fn a_signature_by_another_key_or_in_an_old_way_is_refused() {
    let scene = Scene::new();
    let impostor = Party::authority(&rcgen::PKCS_ECDSA_P256_SHA256, "authority");
    let forged = scene.signed_by(&impostor, vec![scene.good()], &[]);
    assert_eq!(scene.verify(&forged), Err(Fault::WrongSignature));
    let real = scene.signed_by(&scene.authority, vec![scene.good()], &[]);
    let mut whole = OcspResponse::from_der(&real).unwrap();
    let bytes = whole.bytes.as_mut().unwrap();
    let mut basic = BasicResponse::from_der(bytes.response.as_bytes()).unwrap();
    // ecdsa-with-SHA1
    let oid = ObjectIdentifier::new_unwrap("1.2.840.10045.4.1");
    basic.signature_algorithm = Any::new(der::Tag::Sequence, oid.to_der().unwrap()).unwrap();
    bytes.response = OctetString::new(basic.to_der().unwrap()).unwrap();
    assert_eq!(scene.verify(&whole.to_der().unwrap()), Err(Fault::Algorithm("SHA-1".to_owned())));
}

#[test]
fn only_an_answer_whose_time_is_now_counts() {
    let scene = Scene::new();
    let life = |from: SystemTime, until: Option<SystemTime>| {
        let mut single = scene.good();
        (single.this_update, single.next_update) = (time(from), until.map(time));
        scene.judge(single)
    };
    let second = Duration::from_secs(1);
    assert_eq!(life(now() - DAY, Some(now())), Err(Fault::Expired(now())));
    assert!(life(now() - DAY, Some(now() + second)).is_ok());
    assert!(life(now() + Duration::from_secs(300), Some(now() + DAY)).is_ok(), "clocks differ");
    let future = now() + Duration::from_secs(301);
    assert_eq!(life(future, Some(now() + DAY)), Err(Fault::NotYet(future)));
    assert_eq!(life(now() - DAY / 2, None).unwrap().until, now() + DAY / 2);
    assert!(matches!(life(now() - DAY, None), Err(Fault::Expired(_))));
    let long = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
    assert_eq!(life(now(), Some(long)).unwrap().until, long);
}

#[test]
fn revoked_unknown_and_no_answer_are_told_apart_and_only_revoked_ends_what_was_good() {
    let scene = Scene::new();
    let reason = Any::new(der::Tag::Enumerated, [1]).unwrap();
    let info = RevokedInfo { revoked_at: time(now() - DAY), reason: Some(reason) };
    let revoked = scene.judge(scene.single(CertStatus::Revoked(info))).unwrap_err();
    assert_eq!(revoked, Fault::Revoked(Revocation { since: now() - DAY, reason: Some(1) }));
    assert_eq!(revoked.hint(), Hint::DropFormer);
    assert_eq!(revoked.to_string(), "says that the certificate is revoked (keyCompromise)");
    let unknown = scene.judge(scene.single(CertStatus::Unknown(Null))).unwrap_err();
    assert_eq!((unknown.clone(), unknown.hint()), (Fault::Unknown, Hint::KeepFormer));
    let try_later = scene.verify(&[0x30, 3, 0x0a, 1, 3]);
    assert_eq!(try_later, Err(Fault::NoAnswer(ResponseStatus::TryLater)));
    assert_eq!(scene.verify(&[0x30, 3, 0x0a, 1, 4]), Err(Fault::Malformed), "4 is not used");
    let empty = scene.signed_by(&scene.authority, vec![], &[]);
    assert_eq!(scene.verify(&empty), Err(Fault::OtherCertificate));
}

#[test]
fn what_must_be_understood_and_is_not_is_refused() {
    let scene = Scene::new();
    let oid = ObjectIdentifier::new_unwrap("1.2.3.4");
    let extension = |critical| {
        Some(vec![Extension { extn_id: oid, critical, extn_value: OctetString::new([5, 0]).unwrap() }])
    };
    let mut single = scene.good();
    single.extensions = extension(true);
    assert_eq!(scene.judge(single.clone()), Err(Fault::CriticalExtension(oid)));
    single.extensions = extension(false);
    assert!(scene.judge(single.clone()).is_ok());
    let data = ResponseData {
        version: None,
        responder: scene.authority.by_name(),
        produced_at: time(now()),
        responses: vec![single],
        extensions: extension(true),
    };
    let whole = scene.verify(&sign_data(&scene.authority, &data, &[]));
    assert_eq!(whole, Err(Fault::CriticalExtension(oid)));
}

#[test]
fn a_get_carries_the_same_request() {
    let scene = Scene::new();
    let path = scene.query.request_path();
    assert!(!path.contains(['+', '/', '=']), "{path}");
    let text = path.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
    assert_eq!(<base64ct::Base64 as base64ct::Encoding>::decode_vec(&text).unwrap(), scene.query.request());
}

#[test]
fn no_changed_byte_and_no_cut_leaves_an_answer_good() {
    let scene = Scene::new();
    let good = scene.signed_by(&scene.authority, vec![scene.good()], &[]);
    assert!(scene.verify(&good).is_ok());
    for at in 0..good.len() {
        assert!(scene.verify(&good[..at]).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut changed = good.clone();
            changed[at] ^= 1 << bit;
            assert!(scene.verify(&changed).is_err(), "bit {bit} of byte {at}");
        }
    }
    assert!(scene.verify(&[&good[..], &[0]].concat()).is_err());
    assert!(scene.verify(&vec![0x30; logic::ocsp::LARGEST + 1]).is_err());
}

proptest! {
    #[test]
    fn nothing_that_a_responder_sends_is_good_by_chance_or_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        thread_local! { static SCENE: Scene = Scene::new(); }
        prop_assert!(SCENE.with(|scene| scene.verify(&bytes)).is_err());
    }
}
