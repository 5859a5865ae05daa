use config::types::{ClientCertificateMode, ClientHeader};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};

use super::*;

fn authority(name: &str, key: &KeyPair) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(key).unwrap().pem()
}

fn trust(ca: &Path, crls: &[PathBuf], unknown_revocation: UnknownRevocation) -> Trust {
    let settings = ClientCertificates {
        mode: ClientCertificateMode::Require,
        ca: ca.to_owned(),
        crls: crls.to_vec(),
        unknown_revocation,
        names: Vec::new(),
        headers: vec![ClientHeader::Subject],
    };
    let trust = Trust::new(TrustSource::from(&settings));
    trust.read();
    trust
}

fn count(trust: &Trust) -> usize {
    lock(&trust.memory).files.values().map(|entry| entry.held.anchors.len()).sum()
}

#[test]
fn five_thousand_cas_of_a_directory_are_read_once_and_their_names_are_not_sent() {
    let directory = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let pem = authority("an authority", &key);
    for at in 0..5_000 {
        fs::write(directory.path().join(format!("{at}.pem")), &pem).unwrap();
    }
    for other in ["README", ".hidden.pem", "a.key"] {
        fs::write(directory.path().join(other), "no certificate").unwrap();
    }
    let begun = std::time::Instant::now();
    let trust = trust(directory.path(), &[], UnknownRevocation::Refuse);
    println!("read {} CAs in {:?}", count(&trust), begun.elapsed());
    assert_eq!(count(&trust), 5_000);
    assert_eq!(trust.faults(), [""; 0]);
    assert!(trust.anchors().verifier.is_ok() && trust.anchors().hints.is_empty());
    let anchors = trust.anchors();
    trust.read();
    assert!(Arc::ptr_eq(&anchors, &trust.anchors()), "nothing has changed: sessions from before stay good");
}

#[test]
fn a_certificate_that_cannot_be_used_is_named_by_its_line_and_the_others_count() {
    let directory = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let ca = directory.path().join("ca.pem");
    let broken = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let text = format!("# two\n{}{broken}{}", authority("a", &key), authority("b", &key));
    fs::write(&ca, &text).unwrap();
    let trust = trust(&ca, &[], UnknownRevocation::Refuse);
    assert_eq!(count(&trust), 2);
    let line = 1 + text[..text.find("MAA=").unwrap()].matches('\n').count() - 1;
    let faults = trust.faults();
    assert!(faults.len() == 1 && faults[0].contains(&format!("ca.pem:{line}: ")), "{line} {faults:?}");
}

#[test]
fn lists_that_are_configured_and_missing_let_nobody_in_unless_that_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    fs::write(&ca, authority("a", &KeyPair::generate().unwrap())).unwrap();
    let none = directory.path().join("lists");
    fs::create_dir(&none).unwrap();
    for missing in [&none, &directory.path().join("clients.crl")] {
        let strict = trust(&ca, std::slice::from_ref(missing), UnknownRevocation::Refuse);
        assert_eq!(strict.anchors().verifier.as_ref().err(), Some(&Missing::Lists));
        assert!(!strict.faults().is_empty());
        assert!(
            trust(&ca, std::slice::from_ref(missing), UnknownRevocation::Allow).anchors().verifier.is_ok()
        );
    }
    let open = trust(&ca, &[], UnknownRevocation::Refuse);
    let strict = trust(&ca, &[none], UnknownRevocation::Refuse);
    assert_ne!(open.anchors().digest, strict.anchors().digest, "their sessions are not the same");
}

#[test]
fn a_directory_that_is_emptied_takes_no_ca_out_of_service_but_one_file_less_is_one_less() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (directory.path().join("a.pem"), directory.path().join("b.crt"));
    fs::write(&a, authority("a", &KeyPair::generate().unwrap())).unwrap();
    fs::write(&b, authority("b", &KeyPair::generate().unwrap())).unwrap();
    let trust = trust(directory.path(), &[], UnknownRevocation::Refuse);
    assert_eq!((count(&trust), trust.anchors().hints.len()), (2, 2));
    fs::remove_file(a).unwrap();
    trust.read();
    assert_eq!((count(&trust), trust.anchors().hints.len()), (1, 1));
    fs::remove_file(b).unwrap();
    trust.read();
    assert_eq!(count(&trust), 1);
    assert!(trust.faults().iter().any(|fault| fault.contains("b.crt")), "{:?}", trust.faults());
}
