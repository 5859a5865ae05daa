//! A log-in is refused or right, for every message of a client: cut messages, changed bytes, noise, 64 KiB.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::num::NonZeroU32;

use access::Mechanism;
use access::sasl::gs2::{BindingFlag, Channel, Header, TLS_EXPORTER, TokenForm};
use access::sasl::scram::{Client, ClientFirst};
use access::sasl::{Credential, Login, Offer, Refusal, Step, krb5, saslname, smtp};
use access::users::Users;
use proptest::prelude::*;

fn credential() -> Credential {
    Credential::derive("pencil", b"0123456789abcdef", NonZeroU32::new(4096).unwrap()).unwrap()
}

fn offer() -> Offer {
    let channel = Channel::default().with(TLS_EXPORTER, vec![9; 32]);
    let mechanisms = vec![
        Mechanism::External,
        Mechanism::Gs2Krb5Plus,
        Mechanism::Gs2Krb5,
        Mechanism::ScramSha256Plus,
        Mechanism::ScramSha256,
    ];
    Offer { mechanisms, channel, external: Some("ann.example".to_owned()) }
}

/// Runs a log-in by SCRAM in which `change` may change each of the client's two messages.
fn scram(credential: &Credential, mut change: impl FnMut(usize, &mut Vec<u8>)) -> Result<String, Refusal> {
    let flag = BindingFlag::Uses(TLS_EXPORTER.to_owned());
    let client = Client::new("ann", None, flag, &[9; 32], "clientnonce").unwrap();
    let mut login = Login::begin("SCRAM-SHA-256-PLUS", &offer())?;
    let mut first = client.first.clone().into_bytes();
    change(0, &mut first);
    match login.response(&first)? {
        Step::NeedsCredential(_) => {}
        other => panic!("{other:?}"),
    }
    let Step::Challenge(challenge) = login.credential(Ok(credential), "servernonce")? else { panic!() };
    // A changed first message has another nonce: the client would stop. An attacker would not.
    let Ok(awaiting) = client.respond(&challenge, "pencil") else { return Err(Refusal::Unexpected) };
    let mut last = awaiting.last.clone().into_bytes();
    change(1, &mut last);
    match login.response(&last)? {
        Step::Challenge(_) => {}
        other => panic!("{other:?}"),
    }
    match login.response(b"")? {
        Step::Done(identity) => Ok(identity.name),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_exchange_that_is_cut_or_changed_at_any_byte_is_refused() {
    let credential = credential();
    assert_eq!(scram(&credential, |_, _| {}).unwrap(), "ann");
    for which in 0..2 {
        for at in 0..200 {
            let cut = scram(&credential, |message, bytes| {
                if message == which {
                    bytes.truncate(at.min(bytes.len() - 1));
                }
            });
            assert!(cut.is_err(), "message {which} cut at {at}");
            for bit in [1, 0x20, 0x80] {
                let changed = scram(&credential, |message, bytes| {
                    if message == which {
                        let at = at % bytes.len();
                        bytes[at] ^= bit;
                    }
                });
                assert!(changed.is_err(), "message {which} byte {at} bit {bit}");
            }
        }
    }
    for which in 0..2 {
        let long = scram(&credential, |message, bytes| {
            if message == which {
                bytes.resize(64 * 1024, b'x');
            }
        });
        assert!(long.is_err());
    }
}

#[test]
fn a_message_of_another_exchange_is_refused() {
    let credential = credential();
    let mut last = Vec::new();
    scram(&credential, |message, bytes| {
        if message == 1 {
            last.clone_from(bytes);
        }
    })
    .unwrap();
    let mut login = Login::begin("SCRAM-SHA-256-PLUS", &offer()).unwrap();
    login.response(b"p=tls-exporter,,n=ann,r=clientnonce").unwrap();
    login.credential(Ok(&credential), "othernonce").unwrap();
    assert!(login.response(&last).is_err());
    let mut login = Login::begin("SCRAM-SHA-256-PLUS", &offer()).unwrap();
    assert!(login.response(&last).is_err(), "it is no first message");
    assert!(login.credential(Ok(&credential), "x").is_err(), "the log-in has ended");
}

proptest! {
    #[test]
    fn noise_is_refused_and_never_panics(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..4),
        mechanism in prop::sample::select(vec!["SCRAM-SHA-256", "SCRAM-SHA-256-PLUS", "GS2-KRB5", "GS2-KRB5-PLUS"]),
    ) {
        let credential = credential();
        let mut login = Login::begin(mechanism, &offer()).unwrap();
        for message in &messages {
            match login.response(message) {
                Ok(Step::Done(identity)) => panic!("{identity:?}"),
                Ok(Step::NeedsCredential(_)) => { login.credential(Ok(&credential), "n").unwrap(); }
                _ => {}
            }
        }
    }

    #[test]
    fn text_that_looks_like_the_grammar_is_refused_or_read_exactly(text in "[nyp=aF,rsmcv-]{0,24}") {
        if let Ok((header, length)) = Header::parse(text.as_bytes()) {
            prop_assert_eq!(header.encode(), &text[..length], "a header has one spelling");
        }
        if let Ok(first) = ClientFirst::parse(text.as_bytes()) {
            let name = format!(",n={},r=", saslname::encode(&first.name));
            prop_assert!(text.contains(&name));
        }
        let _ = krb5::First::parse(text.as_bytes());
        let _ = text.parse::<Credential>();
        let _ = smtp::command(text.as_bytes());
    }

    #[test]
    fn every_name_comes_through_a_header(name in "[^\0]{1,40}", kind in "[a-z.-]{1,20}") {
        let header = Header { form: TokenForm::Standard, flag: BindingFlag::Uses(kind), authzid: Some(name) };
        let text = header.encode();
        let (read, length) = Header::parse(format!("{text}rest").as_bytes()).unwrap();
        prop_assert_eq!(length, text.len());
        prop_assert_eq!(read, header);
        for cut in 0..length {
            prop_assert!(Header::parse(&text.as_bytes()[..cut]).is_err());
        }
    }

    #[test]
    fn any_password_of_ascii_logs_in_and_no_other_does(password in "[ -~]{1,40}", other in "[ -~]{1,40}") {
        let credential = Credential::derive(&password, b"salt", NonZeroU32::new(4096).unwrap()).unwrap();
        let credential: Credential = credential.to_string().parse().unwrap();
        for typed in [&password, &other] {
            let client = Client::new("a,b=c", None, BindingFlag::Cannot, b"", "x").unwrap();
            let first = ClientFirst::parse(client.first.as_bytes()).unwrap();
            prop_assert_eq!(&first.name, "a,b=c");
            let exchange = first.challenge(&credential, "y", None);
            let awaiting = client.respond(exchange.challenge.as_bytes(), typed).unwrap();
            let last = exchange.finish(awaiting.last.as_bytes());
            prop_assert_eq!(last.is_ok(), *typed == password);
        }
    }

    #[test]
    fn a_file_of_users_is_read_exactly_or_refused(text in "[a-z =,@{}0-9\n#:-]{0,120}") {
        if let Ok(users) = Users::parse(&text) {
            let again = Users::parse(&users.to_string()).unwrap();
            prop_assert_eq!(users, again);
        }
    }
}
