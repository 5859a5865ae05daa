use super::*;

/// Made by `ssh-keygen -s CA -h -I "web1 of the test" -n web1,*.example.com -V 20260101000000Z:20270101000000Z -z 7
/// KEY.pub`.
const CERTIFICATE: &str = "ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29tAAAAIFIQ/fxUQNfEwwHbmbEARLbt7ngjzAj3RtBmFcwtzz65AAAAIDhTESnD1jIsywXjeqS25+3tAmFAgTnzOy1qW1QP+ay6AAAAAAAAAAcAAAACAAAAEHdlYjEgb2YgdGhlIHRlc3QAAAAZAAAABHdlYjEAAAANKi5leGFtcGxlLmNvbQAAAABpVbkAAAAAAGs27IAAAAAAAAAAAAAAAAAAAAAzAAAAC3NzaC1lZDI1NTE5AAAAIAEBXpya4kxwwKP5MWqJBuzZtIAnFgIov2uifFhGRYfVAAAAUwAAAAtzc2gtZWQyNTUxOQAAAECAMjGeEQnwgXMqxgcR7zXM8CD9rGp4QXoDrtBMbBfHUa8TP2HfOT3ypYHbCZ7oKxPM2/hsgZZvgzo+QktAQyEL";
const AUTHORITY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAEBXpya4kxwwKP5MWqJBuzZtIAnFgIov2uifFhGRYfV";
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDhTESnD1jIsywXjeqS25+3tAmFAgTnzOy1qW1QP+ay6";

fn blob() -> Vec<u8> {
    CERTIFICATE.parse::<PublicKey>().unwrap().blob().to_vec()
}

fn read() -> HostCertificate {
    HostCertificate::from_blob(&blob(), Signature::Holds).unwrap()
}

/// 2026-06-01
const NOW: Moment = Moment(1_780_272_000);

#[test]
fn certificate_of_ssh_keygen_says_what_was_put_in() {
    let read = read();
    assert_eq!(read.key, KEY.parse().unwrap());
    assert_eq!(read.authority, AUTHORITY.parse().unwrap());
    assert_eq!((read.serial, read.usage, read.id.as_str()), (7, Use::Host, "web1 of the test"));
    assert_eq!(read.principals, ["web1", "*.example.com"]);
    assert_eq!((read.valid_after, read.valid_before), (1_767_225_600, 1_798_761_600));
    assert_eq!(read.critical, Vec::<String>::new());
    assert_eq!(read.signed_with, "ssh-ed25519");
}

#[test]
fn every_cut_of_a_certificate_is_refused_and_none_panics() {
    let blob = blob();
    for cut in 0..blob.len() {
        assert!(HostCertificate::from_blob(&blob[..cut], Signature::Holds).is_err(), "{cut}");
    }
    for at in 0..blob.len() {
        let mut bent = blob.clone();
        bent[at] ^= 0xff;
        let _ = HostCertificate::from_blob(&bent, Signature::Holds);
    }
    let bare: PublicKey = KEY.parse().unwrap();
    assert!(
        HostCertificate::from_blob(bare.blob(), Signature::Holds).is_err(),
        "a bare key is not a certificate"
    );
}

#[test]
fn it_speaks_for_its_principals_as_openssh_takes_them_within_its_time() {
    let read = read();
    let with = |principals: &[&str]| {
        let principals = principals.iter().map(|name| (*name).to_owned()).collect();
        HostCertificate { principals, ..read.clone() }
    };
    assert_eq!(read.speaks_for(&["web1"], NOW), Ok(()));
    assert_eq!(read.speaks_for(&["WEB1"], NOW), Ok(()));
    assert_eq!(with(&[]).speaks_for(&["web1"], NOW), Ok(()));
    for (principal, name) in
        [("*.example.com", "db.example.com"), ("*", "web1"), ("WEB1", "web1"), ("Web1", "Web1")]
    {
        let refused = with(&[principal]).speaks_for(&[name], NOW);
        assert!(matches!(refused, Err(CertificateError::OtherPrincipal { .. })), "{principal} {name}");
    }
    assert!(matches!(read.speaks_for(&["example.com"], NOW), Err(CertificateError::OtherPrincipal { .. })));
    assert!(matches!(
        read.speaks_for(&["web1"], Moment(read.valid_before)),
        Err(CertificateError::Expired(_))
    ));
    assert!(matches!(
        read.speaks_for(&["web1"], Moment(read.valid_after - 1)),
        Err(CertificateError::NotYet(_))
    ));
    assert_eq!(read.speaks_for(&["web1"], Moment(read.valid_after)), Ok(()));
}
