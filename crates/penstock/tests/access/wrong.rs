//! Log-ins that are wrong: each is refused, on the wire all alike, in the log with its reason.

use access::sasl::gs2::{BindingFlag, TLS_EXPORTER};
use base64ct::{Base64, Encoding};

use super::peer::Peer;
use super::site::Site;

const FAILED: &str = "535 5.7.8 authentication failed";

fn scram(message: &str) -> String {
    let message = match message {
        "" => "=".to_owned(),
        message => Base64::encode_string(message.as_bytes()),
    };
    format!("AUTH SCRAM-SHA-256 {message}")
}

#[test]
fn a_wrong_password_and_an_unknown_user_look_alike() {
    let site = Site::start("");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "ann", "wrong"), FAILED);
    site.logged("\"ann\" refused (SCRAM-SHA-256): wrong password");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "ghost", "pencil"), FAILED);
    site.logged("\"ghost\" refused (SCRAM-SHA-256): there is no user of this name");
    let salt = |name: &str| {
        let mut peer = Peer::connect(&site, None);
        let challenge = peer.challenge(&scram(&format!("n,,n={name},r=abc"))).unwrap();
        let challenge = String::from_utf8(challenge).unwrap();
        let (_, salt) = challenge.split_once(",s=").unwrap();
        salt.to_owned()
    };
    assert_eq!(salt("ghost"), salt("ghost"), "the same each time");
    assert_ne!(salt("ghost"), salt("spirit"));
    assert_eq!(salt("ghost").len(), salt("ann").len(), "in the form of a known user's");
}

#[test]
fn a_relay_a_downgrade_and_acting_as_another_are_refused() {
    let site = Site::start("");
    let try_with = |mechanism: &str, authzid: Option<&str>, flag: BindingFlag, data: &[u8]| {
        Peer::connect(&site, None).scram_with(mechanism, "ann", "pencil", authzid, (flag, data))
    };
    let exporter = || BindingFlag::Uses(TLS_EXPORTER.to_owned());
    assert_eq!(try_with("SCRAM-SHA-256-PLUS", None, exporter(), &[7; 32]), FAILED);
    site.logged("refused (SCRAM-SHA-256-PLUS): the GS2 header or the channel bindings of the last message are not those");
    assert_eq!(try_with("SCRAM-SHA-256", None, BindingFlag::NotOffered, b""), FAILED);
    site.logged("refused (SCRAM-SHA-256): the client saw no -PLUS mechanism, but it was offered");
    assert_eq!(try_with("SCRAM-SHA-256", Some("root"), BindingFlag::Cannot, b""), FAILED);
    site.logged("\"ann\" asks to act as \"root\"");
    let unique = BindingFlag::Uses("tls-unique".to_owned());
    assert_eq!(try_with("SCRAM-SHA-256-PLUS", None, unique, &[7; 12]), FAILED);
    site.logged("channel bindings of the type \"tls-unique\" are not known");
}

#[test]
fn broken_messages_end_in_a_refusal_and_the_next_client_is_served() {
    let site = Site::start("");
    let messages = [
        "",
        "n",
        "n,,",
        "F,n,,n=ann,r=x",
        "n,a=x=2c,n=ann,r=x",
        "n,,n=ann",
        "n,,m=1,n=ann,r=x",
        "x,,n=ann,r=x",
        "p=,,n=ann,r=x",
        "n,,n=ann,r=",
        "n,,n=\u{0},r=x",
        "n,,n=ann,r=x,m=2",
        "n,b=,n=ann,r=x",
    ];
    for message in messages {
        let mut peer = Peer::connect(&site, None);
        let answer = peer.ask(&scram(message));
        assert!(answer.starts_with("535 ") || answer.is_empty(), "{message:?}: {answer}");
        // It also ends what the address would have to wait after five.
        let next = Peer::connect(&site, None).scram("SCRAM-SHA-256", "ann", "pencil");
        assert!(next.starts_with("235 "), "after {message:?}: {next}");
    }
    site.logged("n= was expected");
}

#[test]
fn the_grammar_is_kept_and_nothing_is_done_before_the_log_in() {
    let site = Site::start("");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(peer.ask("status"), "530 5.7.0 log in first: AUTH");
    assert_eq!(peer.ask("MAIL FROM:<a@b>"), "530 5.7.0 log in first: AUTH");
    assert_eq!(peer.ask("AUTH PLAIN AGFubgBwZW5jaWw="), "504 5.5.4 this mechanism is not offered");
    assert_eq!(peer.ask("AUTH GS2-KRB5 biwsYQ=="), "504 5.5.4 this mechanism is not offered");
    assert_eq!(peer.ask("AUTH SCRAM-SHA-256 not!base64"), "501 5.5.2 wrong arguments");
    assert_eq!(peer.challenge("AUTH SCRAM-SHA-256"), Ok(Vec::new()));
    assert_eq!(peer.ask("*"), "501 5.7.0 given up");
    assert_eq!(peer.challenge("AUTH SCRAM-SHA-256"), Ok(Vec::new()));
    assert_eq!(peer.ask("n,,"), "501 5.5.2 this is no Base64");
    assert!(peer.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("235 "), "faults are forgiven");
    let mut peer = Peer::connect(&site, None);
    for _ in 0..10 {
        assert!(peer.ask("hello").starts_with("530 "));
    }
    assert_eq!(peer.line(), "421 4.7.0 too many mistakes");
    assert_eq!(peer.line(), "");
    let mut peer = Peer::connect(&site, None);
    // The server closes before it has read all.
    let _ = peer.send(&vec![b'A'; 200 * 1024]);
    assert!(["500 5.5.6 this line is too long", ""].contains(&peer.line().as_str()));
}

#[test]
fn nobody_logs_in_before_tls_and_what_stands_behind_starttls_counts_for_nothing() {
    let site = Site::start("tls-start = \"starttls\"");
    let mut peer = Peer::plain(&site);
    assert!(peer.line().starts_with("220 "));
    assert_eq!(peer.mechanisms(), "", "no mechanism is offered");
    assert!(peer.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("538 "));
    assert_eq!(peer.ask("status"), "530 5.7.0 begin TLS first: STARTTLS");
    assert!(peer.ask("STARTTLS").starts_with("220 "));
    let mut peer = peer.start_tls(&site);
    assert_eq!(peer.mechanisms(), "SCRAM-SHA-256-PLUS SCRAM-SHA-256");
    assert!(peer.ask("STARTTLS").starts_with("503 "));
    assert!(peer.scram("SCRAM-SHA-256-PLUS", "ann", "pencil").starts_with("235 "));
    assert_eq!(peer.command("status").0, "ok");
    let mut peer = Peer::plain(&site);
    assert!(peer.line().starts_with("220 "));
    peer.send(b"STARTTLS\r\nEHLO injected\r\n").unwrap();
    assert_eq!(peer.line(), "554 5.5.0 bytes behind STARTTLS");
    assert_eq!(peer.line(), "");
}
