//! Clients that guess passwords wait, and keep no other client out.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;

use access::sasl::gs2::BindingFlag;
use access::sasl::scram::Client;
use base64ct::{Base64, Encoding};
use testing::{Server, secs};

use super::peer::Peer;
use super::site::Site;

#[test]
fn an_address_that_guesses_must_wait_and_the_local_socket_does_not_notice() {
    let site = Site::start("");
    let mut wrong = 0;
    // Three for each connection, and a wait after the fifth.
    for _ in 0..4 {
        let Some(mut peer) = Peer::try_connect(&site) else { break };
        for _ in 0..3 {
            let answer = peer.scram("SCRAM-SHA-256", "ann", "wrong");
            match answer.get(..3) {
                Some("535") => wrong += 1,
                Some("421" | "454") | None => break,
                other => panic!("{other:?}: {answer}"),
            }
        }
    }
    // It waits for a second then: a slow machine may come later.
    assert!((6..=8).contains(&wrong), "{wrong} were tried");
    let start = Instant::now();
    for _ in 0..200 {
        // Closed at once, without a handshake.
        drop(TcpStream::connect(("127.0.0.1", site.port)).unwrap());
    }
    let server: &Server = &site.server;
    server.said(&["status"]);
    assert!(start.elapsed() < secs(20), "{:?}", start.elapsed());
    // Each wait is told once, and no connection that is refused meanwhile.
    let told = site.logged("127.0.0.1: refused until ");
    assert!(told.contains("Z (1 s), after 6 wrong log-ins; each further one doubles the time"), "{told}");
    let events = server.said(&["events"]);
    let told = events.lines().filter(|line| line.contains(": refused until ")).count();
    assert_eq!(told, wrong - 5, "{events}");
}

#[test]
fn an_account_of_ones_own_is_no_licence_to_guess_at_others() {
    let site = Site::start("");
    let mut wrong = 0;
    while wrong < 20 {
        let Some(mut peer) = Peer::try_connect(&site) else { break };
        let answer = peer.scram("SCRAM-SHA-256", "ann", "wrong");
        if answer.starts_with("535 ") {
            wrong += 1;
        }
        let own = peer.scram("SCRAM-SHA-256", "bob", "eraser");
        if !own.starts_with("235 ") {
            assert_eq!(own, "454 4.7.0 too many wrong log-ins: try again later");
            break;
        }
    }
    // It waits for a second then: a slow machine may come later.
    assert!((6..=8).contains(&wrong), "its own log-ins forgave guesses at ann: {wrong} were tried");
}

#[test]
fn wrong_log_ins_with_a_certificate_do_not_keep_the_user_of_its_name_out() {
    let site = Site::start("");
    let pair = site.certificate("ann");
    for at in 1..=11 {
        let mut peer = Peer::connect_from(&site, [127, 0, 0, 100 + at], Some(&pair));
        // It asks to act as root.
        assert!(peer.ask("AUTH EXTERNAL cm9vdA==").starts_with("535 "), "log-in {at}");
    }
    let mut peer = Peer::connect_from(&site, [127, 0, 0, 200], None);
    assert_eq!(peer.scram("SCRAM-SHA-256", "ann", "pencil"), "235 2.7.0 user:ann, role operate");
    for at in 1..=11 {
        let mut peer = Peer::connect_from(&site, [127, 0, 0, 100 + at], None);
        assert!(peer.scram("SCRAM-SHA-256", "bob", "wrong").starts_with("535 "), "guess {at}");
    }
    // The user bob waits for a second then, and twice as long after each further guess: a slow machine may come later.
    let waits = (12..=16).any(|at| {
        let mut peer = Peer::connect_from(&site, [127, 0, 0, 200 + at], None);
        let answer = peer.scram("SCRAM-SHA-256", "bob", "eraser");
        if answer == "454 4.7.0 too many wrong log-ins: try again later" {
            return true;
        }
        assert!(answer.starts_with("235 "), "{answer}");
        let mut peer = Peer::connect_from(&site, [127, 0, 0, 100 + at], None);
        assert!(peer.scram("SCRAM-SHA-256", "bob", "wrong").starts_with("535 "), "guess {at}");
        false
    });
    assert!(waits, "the user bob does not wait");
}

#[test]
fn silent_clients_of_one_address_are_bounded() {
    let site = Site::start("");
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(("127.0.0.1", site.port)).unwrap()).collect();
    site.server.said(&["status"]);
    drop(silent);
    let answer = testing::eventually("a log-in", secs(20), || {
        Peer::try_connect(&site).map(|mut peer| peer.scram("SCRAM-SHA-256", "ann", "pencil"))
    });
    assert!(answer.starts_with("235 "), "{answer}");
}

#[test]
fn an_address_that_guesses_over_many_connections_at_once_waits_all_the_same() {
    let site = Site::start("");
    // All are let begin before the first one is wrong.
    let begun: Vec<_> = (0..30)
        .map(|_| {
            let mut peer = Peer::connect(&site, None);
            let client =
                Client::new("ann", None, BindingFlag::Cannot, b"", "fyko+d2lbbFgONRv9qkxdawL").unwrap();
            let first = Base64::encode_string(client.first.as_bytes());
            let challenge = peer.challenge(&format!("AUTH SCRAM-SHA-256 {first}")).unwrap();
            (peer, client.respond(&challenge, "wrong").unwrap())
        })
        .collect();
    let mut wrong = 0;
    for (mut peer, awaiting) in begun {
        match &*peer.ask(&Base64::encode_string(awaiting.last.as_bytes())) {
            "535 5.7.8 authentication failed" => wrong += 1,
            other => assert_eq!(other, "454 4.7.0 too many wrong log-ins: try again later"),
        }
    }
    // It waits for a second then: a slow machine may come later.
    assert!((6..=12).contains(&wrong), "{wrong} were tried");
}

#[test]
fn a_file_of_users_that_cannot_be_used_is_not_held_against_those_who_log_in() {
    let site = Site::start("");
    let log_in = || Peer::connect(&site, None).scram("SCRAM-SHA-256", "ann", "pencil");
    let mode = |mode| fs::set_permissions(site.file("users"), fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(log_in(), "235 2.7.0 user:ann, role operate");
    mode(0o644);
    for _ in 0..10 {
        assert_eq!(log_in(), "535 5.7.8 authentication failed");
        let mut peer = Peer::connect(&site, None);
        assert!(peer.mechanisms().contains("OAUTHBEARER"), "who has a token learns the same");
        let token = "AUTH OAUTHBEARER biwsAWF1dGg9QmVhcmVyIHBzdF9BQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBAQE=";
        assert!(peer.challenge(token).is_ok());
        assert_eq!(peer.ask("AQ=="), "535 5.7.8 authentication failed");
    }
    site.logged("no log-in can be judged: the file of users cannot be used: ");
    assert!(site.server.stderr.count("the file of users cannot be used") <= 2, "clients fill no log");
    mode(0o600);
    assert_eq!(log_in(), "235 2.7.0 user:ann, role operate");
}
