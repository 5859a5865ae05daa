//! More than two hundred broken log-ins. None is accepted; each gets an answer, and the log has a line for it.

use access::sasl::gs2::{BindingFlag, Header, TLS_EXPORTER, TokenForm};
use access::sasl::krb5::{First, application_data};
use access::sasl::scram::Client;
use base64ct::{Base64, Encoding};
use testing::eventually;
use testing::secs;

use super::kdc::{Center, Realm};
use super::kerberos;
use super::peer::Peer;
use super::site::Site;
use super::tokens::token;

/// Sends what is broken; returns the last answer.
type Exchange = Box<dyn Fn(&mut Peer) -> String>;

/// Begins with a message, and answers each challenge with the next one.
fn messages(mechanism: &'static str, messages: Vec<Vec<u8>>) -> Exchange {
    Box::new(move |peer| {
        let mut lines = messages.iter().map(|message| Base64::encode_string(message));
        let first = lines.next().unwrap();
        let first = if first.is_empty() { "=".to_owned() } else { first };
        let mut said = peer.challenge(&format!("AUTH {mechanism} {first}"));
        while said.is_ok() {
            said = peer.challenge(&lines.next().unwrap_or_default());
        }
        said.unwrap_err()
    })
}

fn raw(line: String) -> Exchange {
    Box::new(move |peer| peer.ask(&line))
}

const NONCE: &str = "fyko+d2lbbFgONRv9qkxdawL";

/// A right exchange of SCRAM but for what `break_first` and `break_last` do to the messages of the client.
fn scram(
    name: &'static str,
    password: &'static str,
    break_first: impl Fn(Vec<u8>) -> Vec<u8> + 'static,
    break_last: impl Fn(Vec<u8>) -> Vec<u8> + 'static,
) -> Exchange {
    Box::new(move |peer| {
        let client = Client::new(name, None, BindingFlag::Cannot, b"", NONCE).unwrap();
        let first = break_first(client.first.clone().into_bytes());
        let first = if first.is_empty() { "=".to_owned() } else { Base64::encode_string(&first) };
        let challenge = match peer.challenge(&format!("AUTH SCRAM-SHA-256 {first}")) {
            Ok(challenge) => challenge,
            Err(answer) => return answer,
        };
        // A nonce that was cut is not that of this client: it answers all the same.
        let own = String::from_utf8(challenge).unwrap();
        let own = match own.strip_prefix(&format!("r={NONCE}")) {
            Some(_) => own,
            None => format!("r={NONCE}{}", &own[2..]),
        };
        let last = client.respond(own.as_bytes(), password).unwrap().last.into_bytes();
        match peer.challenge(&Base64::encode_string(&break_last(last))) {
            // It is accepted if the last, empty message is: that would be the failure of this test.
            Ok(_) => peer.ask(""),
            Err(answer) => answer,
        }
    })
}

fn same(message: Vec<u8>) -> Vec<u8> {
    message
}

fn of_scram(all: &mut Vec<(String, Exchange)>) {
    let first = format!("n,,n=ann,r={NONCE}").len();
    for cut in 0..first {
        all.push((
            format!("first message cut at {cut}"),
            scram("ann", "pencil", move |it| it[..cut].to_vec(), same),
        ));
    }
    for cut in (0..125).step_by(2) {
        let short = move |it: Vec<u8>| it[..cut.min(it.len() - 1)].to_vec();
        all.push((format!("last message cut at {cut}"), scram("ann", "pencil", same, short)));
    }
    for bit in 0..8 {
        let flip = move |mut it: Vec<u8>| {
            let at = it.len() - 10 - bit;
            it[at] = if it[at] == b'A' { b'B' } else { b'A' };
            it
        };
        all.push((format!("proof changed at {bit}"), scram("ann", "pencil", same, flip)));
    }
    all.push(("another password".to_owned(), scram("ann", "pencils", same, same)));
    all.push(("a user who does not exist".to_owned(), scram("ghost", "pencil", same, same)));
    for message in [
        "F,n,,n=ann,r=x",
        "f,n,,n=ann,r=x",
        "N,,n=ann,r=x",
        "n,a=x=2c,n=ann,r=x",
        "n,a=x=3d,n=ann,r=x",
        "n,a=,b,n=ann,r=x",
        "n,,n=a=2cnn,r=x",
        "n,,n=ann=,r=x",
        "n,,m=1,n=ann,r=x",
        "n,,n=ann,r=x,m=2",
        "n,,r=x,n=ann",
        "n,,n=ann,r=",
        "n,,n=ann,r=a b",
        "n,,n=\u{0},r=x",
        "n,,n=\u{7},r=x",
        "n,,n=\u{e000},r=x",
        "n,,n=\u{1f600},r=x",
        "n,b=,n=ann,r=x",
        "x,,n=ann,r=x",
        "p=,,n=ann,r=x",
        "p,,n=ann,r=x",
        "y,,n=ann,r=x",
        "p=tls-exporter,,n=ann,r=x",
        "n,a=root,n=ann,r=x",
        "p=tls-unique,,n=ann,r=x",
        ",,n=ann,r=x",
        "n,,n=ann,r=x,",
        "n,,n=ann,r=x,y",
    ] {
        all.push((format!("{message:?}"), messages("SCRAM-SHA-256", vec![message.as_bytes().to_vec()])));
    }
    for kind in ["tls-unique", "tls-server-end-point", "tls-exporters", "x"] {
        let message = format!("p={kind},,n=ann,r=x").into_bytes();
        all.push((format!("bindings {kind}"), messages("SCRAM-SHA-256-PLUS", vec![message])));
    }
    for message in ["n,,n=ann,r=x", "y,,n=ann,r=x"] {
        all.push((format!("-PLUS with {message}"), messages("SCRAM-SHA-256-PLUS", vec![message.into()])));
    }
    all.push(("no UTF-8".to_owned(), messages("SCRAM-SHA-256", vec![b"n,,n=\xff,r=x".to_vec()])));
    all.push(("9 KiB".to_owned(), messages("SCRAM-SHA-256", vec![vec![b'n'; 9 * 1024]])));
}

fn of_others(all: &mut Vec<(String, Exchange)>) {
    for message in [
        "",
        "n",
        "n,,",
        "n,,\x01",
        "n,,\x01\x01",
        "n,,\x01auth=Bearer x\x01",
        "n,,\x01auth=Bearer x\x01\x01",
        "n,,\x01auth=Basic x\x01\x01",
        "n,a=root,\x01auth=Bearer x\x01\x01",
        "p=tls-exporter,,\x01auth=Bearer x\x01\x01",
    ] {
        let broken = vec![message.as_bytes().to_vec(), vec![1]];
        all.push((format!("bearer {message:?}"), messages("OAUTHBEARER", broken)));
    }
    for line in [
        "AUTH PLAIN AGFubgBwZW5jaWw=",
        "AUTH EXTERNAL =",
        "AUTH GS2-IAKERB biws",
        "AUTH GSSAPI YIIC",
        "AUTH SCRAM-SHA-1 biws",
        "AUTH SCRAM-SHA-256-PLU biws",
        "AUTH \u{e9} biws",
    ] {
        all.push((line.to_owned(), raw(line.to_owned())));
    }
    let long = Base64::encode_string(&vec![b'n'; 64 * 1024]);
    for mechanism in ["SCRAM-SHA-256", "GS2-KRB5", "OAUTHBEARER"] {
        all.push((format!("64 KiB for {mechanism}"), raw(format!("AUTH {mechanism} {long}"))));
    }
    all.push((
        "given up".to_owned(),
        Box::new(|peer| {
            peer.challenge("AUTH SCRAM-SHA-256").unwrap();
            peer.ask("*")
        }),
    ));
    all.push((
        "no Base64".to_owned(),
        Box::new(|peer| {
            peer.challenge("AUTH SCRAM-SHA-256").unwrap();
            peer.ask("n,,")
        }),
    ));
}

fn header(flag: BindingFlag, authzid: Option<&str>) -> Header {
    Header { form: TokenForm::Standard, flag, authzid: authzid.map(str::to_owned) }
}

fn of_kerberos(realm: &Realm, all: &mut Vec<(String, Exchange)>) {
    let plain = header(BindingFlag::Cannot, None);
    let host = "host@localhost";
    let good = First::encode(&plain, &realm.token("ann", host, Some(b"n,,"))).unwrap();
    let mut push = |what: String, message: Vec<u8>| all.push((what, messages("GS2-KRB5", vec![message])));
    for cut in (0..good.len()).step_by(good.len() / 60) {
        push(format!("token cut at {cut}"), good[..cut].to_vec());
    }
    for at in (10..good.len()).step_by(good.len() / 12) {
        let mut changed = good.clone();
        changed[at] ^= 0x55;
        push(format!("token changed at {at}"), changed);
    }
    push("F,".to_owned(), [b"F,", &good[..]].concat());
    push("48 KiB".to_owned(), [&good[..], &[0; 48 * 1024]].concat());
    for header in ["n,a=root,", "n,a=ann=2c,", "n,a=eve,", "y,,", "p=tls-exporter,,", "N,,", "n,"] {
        push(format!("header {header}"), [header.as_bytes(), &good[3..]].concat());
    }
    let token = |user: &str, service: &str, bindings: Option<&[u8]>| realm.token(user, service, bindings);
    let injected = header(BindingFlag::Cannot, Some("root"));
    for (what, header, token) in [
        ("no bindings", &plain, token("ann", host, None)),
        ("no bindings, injected name", &injected, token("ann", host, None)),
        ("bindings of another header", &injected, token("ann", host, Some(b"n,,"))),
        ("another service", &plain, token("ann", "other@localhost", Some(b"n,,"))),
        ("without a role", &plain, token("eve", host, Some(b"n,,"))),
        // A token is good for five minutes, before the time that it names too: it is still ahead when it is tried.
        ("a clock half an hour ahead", &plain, realm.token_at(Some("+30m"), "ann", host, Some(b"n,,"))),
    ] {
        push(what.to_owned(), First::encode(header, &token).unwrap());
    }
    let downgrade =
        First::encode(&header(BindingFlag::NotOffered, None), &token("ann", host, Some(b"y,,"))).unwrap();
    push("a downgrade".to_owned(), downgrade);
    let plus = header(BindingFlag::Uses(TLS_EXPORTER.to_owned()), None);
    let relayed = token("ann", host, Some(&application_data(&plus, Some(&[7; 32]))));
    let relayed = First::encode(&plus, &relayed).unwrap();
    all.push(("a relay".to_owned(), messages("GS2-KRB5-PLUS", vec![relayed.clone()])));
    all.push(("bindings without -PLUS".to_owned(), messages("GS2-KRB5", vec![relayed])));
}

/// A token that is good, and then was seen.
fn replay(realm: &Realm) -> Exchange {
    let plain = header(BindingFlag::Cannot, None);
    let good = First::encode(&plain, &realm.token("ann", "host@localhost", Some(b"n,,"))).unwrap();
    Box::new(move |peer| {
        let first = format!("AUTH GS2-KRB5 {}", Base64::encode_string(&good));
        if peer.challenge(&first).is_ok() {
            assert!(peer.ask("").starts_with("235 "), "it was good once");
            return String::new();
        }
        peer.ask("NOOP")
    })
}

/// An address for each.
fn address(at: usize) -> [u8; 4] {
    [127, 1, u8::try_from(at / 200).unwrap(), u8::try_from(at % 200 + 1).unwrap()]
}

/// Logs in from an address, at which `ann` then is not kept out by the guesses at her from others.
fn is_known_at(site: &Site, at: usize) {
    let mut peer = Peer::connect_from(site, address(at), None);
    assert!(peer.scram("SCRAM-SHA-256", "ann", "pencil").starts_with("235 "), "before {at}");
}

/// Tries one from an address of its own; returns the answer when the log has a line for it.
fn attempt(site: &Site, at: usize, exchange: &Exchange) -> String {
    let from = address(at);
    let answer = exchange(&mut Peer::connect_from(site, from, None));
    let address = from.map(|byte| byte.to_string()).join(".");
    let is_told = || {
        let lines = site.server.stderr.all();
        lines
            .iter()
            .any(|line| line.contains(&format!("{address}: ")) && line.contains("refused"))
            .then_some(())
    };
    eventually(&format!("a line for {at}, {answer:?}"), secs(10), is_told);
    answer
}

#[test]
fn of_two_hundred_broken_log_ins_none_is_accepted_and_each_has_an_answer_and_a_line_in_the_log() {
    let realm = Realm::start();
    let site = kerberos::site(&realm, "");
    token(&site, "ci", &["--role", "view"]);
    let mut all = Vec::new();
    of_scram(&mut all);
    of_others(&mut all);
    of_kerberos(&realm, &mut all);
    assert!(all.len() >= 200, "{}", all.len());
    (0..all.len()).for_each(|at| is_known_at(&site, at));
    for (at, (what, exchange)) in all.iter().enumerate() {
        let answer = attempt(&site, at, exchange);
        let is_answer = ["500 ", "501 ", "504 ", "535 "].iter().any(|code| answer.starts_with(code));
        assert!(is_answer, "{what}: {answer:?}");
    }
    let replay = replay(&realm);
    assert_eq!(replay(&mut Peer::connect(&site, None)), "");
    let mut peer = Peer::connect(&site, None);
    assert_eq!(replay(&mut peer), "250 2.0.0 fine", "refused, and the connection goes on");
    site.logged("replay");
    println!("{} broken log-ins were refused", all.len() + 1);
}

#[test]
fn a_ticket_that_has_ended_is_refused() {
    let realm = Realm::of(Center::Mit, Some("-2h"));
    let site = kerberos::site(&realm, "");
    let plain = header(BindingFlag::Cannot, None);
    // It is good by the clock of its realm.
    let ended = realm.token("ann", "host@localhost", Some(b"n,,"));
    let answer = attempt(&site, 0, &messages("GS2-KRB5", vec![First::encode(&plain, &ended).unwrap()]));
    assert_eq!(answer, "535 5.7.8 authentication failed");
}
