//! Servers that refuse, stall, lie or talk nonsense: each ends with its phase and its reason, and in time.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::{Pinned, client, target};
use hosts::fleet::ending::{Failure, Phase, Reason, Remote};
use hosts::ssh::config::Family;
use ssh::{KeyPlan, Target};
use testing::sshd::{Sshd, free_address, keygen, program};

/// What a server of the test's own does with one connection.
fn hostile(script: impl FnOnce(TcpStream) + Send + 'static) -> (Target, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut target = Target::new("web1", "somebody");
    target.addresses.known = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    target.port = listener.local_addr().unwrap().port();
    target.connect_timeout = Duration::from_secs(10);
    (target, std::thread::spawn(move || script(listener.accept().unwrap().0)))
}

async fn failure_of(target: &Target) -> Failure {
    let failure = client(&Arc::new(Pinned::default())).connect(target, &|_| {}).await.err().unwrap();
    assert_eq!(failure.remote, Remote::NotStarted);
    for word in ["Error", "Os {", "kind:", "russh", "\u{1b}"] {
        assert!(!failure.detail.contains(word), "{word} in {}", failure.detail);
    }
    failure
}

#[track_caller]
fn assert_is(failure: &Failure, phase: Phase, reason: Reason, words: &str) {
    assert_eq!((failure.phase, failure.reason), (phase, reason), "{failure:?}");
    assert!(failure.detail.contains(words), "{}", failure.detail);
}

#[tokio::test]
async fn no_server_listens() {
    let (address, port) = free_address();
    let mut target = Target::new("web1", "somebody");
    target.addresses.known = vec![IpAddr::V4(address)];
    target.port = port;
    assert_is(&failure_of(&target).await, Phase::Connect, Reason::ConnectionRefused, "connection refused");
}

/// The bytes of a packet before the keys are exchanged (RFC 4253 section 6).
fn packet(payload: &[u8]) -> Vec<u8> {
    let padding = 16 - (5 + payload.len()) % 8;
    let mut bytes = u32::try_from(1 + payload.len() + padding).unwrap().to_be_bytes().to_vec();
    bytes.push(u8::try_from(padding).unwrap());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + padding, 0);
    bytes
}

#[tokio::test]
async fn what_a_server_sends_instead_of_a_key_exchange_is_told_as_what_it_is() {
    let mut parting = vec![1, 0, 0, 0, 11];
    parting.extend(20_000_u32.to_be_bytes());
    parting.extend([b'x'; 20_000]);
    parting.extend([0; 4]);
    for (sent, reason, words) in [
        (
            b"SSH-1.5-Old\n".to_vec(),
            Reason::ProtocolError,
            "does not speak SSH 2: it said \"SSH-1.5-Old\"".to_owned(),
        ),
        (
            [&b"SSH-2.0-x\r\n"[..], &[0; 64]].concat(),
            Reason::ProtocolError,
            "web1 sent an empty packet: damaged, or not SSH".to_owned(),
        ),
        (
            [&b"SSH-2.0-x\r\n"[..], &packet(&[])].concat(),
            Reason::ProtocolError,
            "web1 sent an empty packet: damaged, or not SSH".to_owned(),
        ),
        (
            [&b"SSH-2.0-x\r\n"[..], &packet(&parting)].concat(),
            Reason::ClosedByServer,
            format!("ended the connection during the key exchange: \"{}", "x".repeat(200)),
        ),
    ] {
        let (target, server) = hostile(move |mut stream| {
            stream.write_all(&sent).unwrap();
            // Until the client has gone: nothing ends by a connection that is closed here.
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let failure = failure_of(&target).await;
        assert_is(&failure, Phase::Identity, reason, &words);
        assert!(failure.detail.len() < 1000, "{}", failure.detail.len());
        server.join().unwrap();
    }
}

#[tokio::test]
async fn a_name_without_an_address() {
    let target = Target::new("no-such-host.invalid", "somebody");
    let failure = failure_of(&target).await;
    assert_is(&failure, Phase::Resolve, Reason::NoAddress, "look up no-such-host.invalid");
}

#[tokio::test]
async fn only_addresses_of_the_family_that_is_asked_for_are_tried() {
    let sshd = Sshd::start();
    let judge = Pinned::of(&[&sshd]);
    let mut known = target(&sshd);
    known.addresses.known.insert(0, "::1".parse().unwrap());
    let mut named = Target { host: sshd.address.to_string(), ..target(&sshd) };
    named.addresses.known.clear();
    let mut hinted = Target { host: "no-such-host.invalid".to_owned(), ..named.clone() };
    hinted.addresses.hints = vec!["::1".parse().unwrap(), sshd.address.into()];
    for mut target in [known.clone(), named, hinted] {
        target.addresses.family = Family::V4;
        let session = client(&judge).connect(&target, &|_| {}).await.unwrap();
        session.close().await;
    }
    assert!(judge.asked.lock().unwrap().iter().all(|(_, place)| place.to_string().starts_with("127.")));
    let mut other = Target { host: sshd.address.to_string(), ..target(&sshd) };
    other.addresses.family = Family::V6;
    for known in [vec![sshd.address.into()], Vec::new()] {
        other.addresses.known = known;
        let words = "it has no address for AddressFamily inet6";
        assert_is(&failure_of(&other).await, Phase::Resolve, Reason::NoAddress, words);
    }
}

#[tokio::test]
async fn rsa_key_of_a_host_that_is_too_short_is_refused_though_it_is_pinned() {
    let directory = tempfile::tempdir().unwrap();
    keygen(&directory.path().join("host"), &["-t", "rsa", "-b", "2048"]);
    let sshd = Sshd::in_directory(directory, "");
    let judge = Pinned::of(&[&sshd]);
    let mut target = target(&sshd);
    target.algorithms.rsa_bits = 2048;
    client(&judge).connect(&target, &|_| {}).await.unwrap().close().await;
    target.algorithms.rsa_bits = 3072;
    let failure = client(&judge).connect(&target, &|_| {}).await.err().unwrap();
    let words = "web1 showed an RSA key of 2048 bits, and RequiredRSASize asks for 3072; nothing was sent";
    assert_is(&failure, Phase::Identity, Reason::KeyRefused, words);
    assert_eq!(sshd.logged("Accepted publickey", 1), 1, "{}", sshd.log());
}

#[tokio::test]
async fn the_first_address_that_answers_is_taken() {
    let sshd = Sshd::start();
    let mut target = target(&sshd);
    let (closed, _) = free_address();
    target.addresses.known.insert(0, IpAddr::V4(closed));
    assert!(client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.is_ok());
}

#[tokio::test]
async fn a_server_that_hangs_up_at_once_turned_us_away() {
    let (target, server) = hostile(drop);
    let failure = failure_of(&target).await;
    assert_is(&failure, Phase::Identity, Reason::ClosedByServer, "hung up before it said anything");
    assert!(failure.advice.unwrap().contains("MaxStartups"));
    server.join().unwrap();
}

#[tokio::test]
async fn a_server_that_says_it_is_full_turned_us_away() {
    for words in ["Exceeded MaxStartups\r\n", "Not allowed at this time\r\n"] {
        let (target, _server) = hostile(move |mut stream| stream.write_all(words.as_bytes()).unwrap());
        assert_is(&failure_of(&target).await, Phase::Identity, Reason::ClosedByServer, words.trim());
    }
}

#[tokio::test]
async fn a_real_sshd_that_is_full_turned_us_away() {
    let sshd = Sshd::with("MaxStartups 1:100:1\nLoginGraceTime 60");
    let _first = TcpStream::connect((sshd.address, sshd.port)).unwrap();
    let mut target = target(&sshd);
    crate::support::eventually("the first one counts", || sshd.log().contains("Connection from")).await;
    target.connect_timeout = Duration::from_secs(20);
    let failure = failure_of(&target).await;
    assert_is(&failure, Phase::Identity, Reason::ClosedByServer, "web1");
}

#[tokio::test]
async fn something_that_is_no_ssh_is_quoted_harmlessly() {
    let (target, _server) = hostile(|mut stream| {
        stream.write_all(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\n\r\n").unwrap();
    });
    let failure = failure_of(&target).await;
    assert_is(
        &failure,
        Phase::Identity,
        Reason::ProtocolError,
        "does not speak SSH: it said \"HTTP/1.1 400 Bad \\u{1b}[31m",
    );
}

#[tokio::test]
async fn an_endless_greeting_is_cut_off() {
    for line in ["welcome\r\n", "x"] {
        let (target, server) =
            hostile(move |mut stream| while stream.write_all(line.repeat(500).as_bytes()).is_ok() {});
        assert_is(&failure_of(&target).await, Phase::Identity, Reason::ProtocolError, "does not speak SSH");
        server.join().unwrap();
    }
}

#[tokio::test]
async fn an_old_version_is_told() {
    let (target, _server) = hostile(|mut stream| {
        stream.write_all(b"SSH-1.5-Ancient\r\n").unwrap();
        let _ = stream.read(&mut [0; 100]);
    });
    assert_is(&failure_of(&target).await, Phase::Identity, Reason::ProtocolError, "does not speak SSH 2");
}

#[tokio::test]
async fn a_gigantic_packet_is_refused() {
    let (target, server) = hostile(|mut stream| {
        stream.write_all(b"SSH-2.0-Giant\r\n\x7f\xff\xff\xff\x04AAAAAAAAAAAAAAAAAAAA").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    assert_is(&failure_of(&target).await, Phase::Identity, Reason::ProtocolError, "2147483647 bytes");
    server.join().unwrap();
}

#[tokio::test]
async fn garbage_after_the_version_is_refused() {
    let (target, server) = hostile(|mut stream| {
        stream.write_all(b"SSH-2.0-Garbage\r\n\x00\x00\x00\x0c\x04\x14AAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    assert_eq!(failure_of(&target).await.reason, Reason::ProtocolError);
    server.join().unwrap();
}

#[tokio::test]
async fn a_server_that_stops_anywhere_runs_into_the_limit_and_is_let_go() {
    for (greeting, words) in
        [("", "did not say who it is"), ("SSH-2.0-Slow\r\n", "the key exchange did not finish")]
    {
        let (mut target, server) = hostile(move |mut stream| {
            stream.write_all(greeting.as_bytes()).unwrap();
            // Ends only when the client lets the connection go.
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        });
        // Time for the server to say something first, on a busy machine.
        target.connect_timeout = Duration::from_secs(5);
        assert_is(&failure_of(&target).await, Phase::Identity, Reason::TimedOut, words);
        tokio::task::spawn_blocking(move || server.join().unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn an_attempt_that_is_given_up_lets_its_connection_go() {
    let (target, server) = hostile(|mut stream| {
        stream.write_all(b"SSH-2.0-Slow\r\n").unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let client = client(&Arc::new(Pinned::default()));
    let attempt = client.connect(&target, &|_| {});
    assert!(tokio::time::timeout(Duration::from_secs(3), attempt).await.is_err());
    tokio::task::spawn_blocking(move || server.join().unwrap()).await.unwrap();
}

#[tokio::test]
async fn no_algorithm_in_common_names_what_the_server_offers() {
    let sshd = Sshd::with("KexAlgorithms diffie-hellman-group14-sha1");
    let failure = failure_of(&target(&sshd)).await;
    assert_is(&failure, Phase::Identity, Reason::NoCommonAlgorithm, "diffie-hellman-group14-sha1");
    assert!(failure.advice.unwrap().contains("KexAlgorithms"));
    let sshd = Sshd::with("Ciphers 3des-cbc");
    assert_is(&failure_of(&target(&sshd)).await, Phase::Identity, Reason::NoCommonAlgorithm, "3des-cbc");
}

#[tokio::test]
async fn a_restriction_that_leaves_nothing_is_a_fault_of_the_configuration() {
    let sshd = Sshd::start();
    let mut target = target(&sshd);
    target.algorithms.ciphers = vec!["none".to_owned(), "arcfour".to_owned()];
    assert_is(&failure_of(&target).await, Phase::Queued, Reason::BadConfiguration, "Ciphers");
}

#[tokio::test]
async fn restrictions_are_obeyed() {
    let sshd = Sshd::start();
    let mut target = target(&sshd);
    target.algorithms.ciphers = vec!["chacha20-poly1305@openssh.com".to_owned()];
    target.algorithms.kex = vec!["ecdh-sha2-nistp256".to_owned()];
    let session = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.unwrap();
    let negotiated = session.facts().negotiated.unwrap();
    assert_eq!(negotiated.cipher, "chacha20-poly1305@openssh.com");
    assert_eq!(negotiated.kex, "ecdh-sha2-nistp256");
}

#[tokio::test]
async fn a_key_that_the_server_does_not_know_is_denied() {
    let sshd = Sshd::start();
    let other = sshd.directory.path().join("other");
    keygen(&other, &["-t", "ed25519"]);
    let mut target = target(&sshd);
    target.keys = KeyPlan::of_file(other);
    let failure = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.err().unwrap();
    assert_eq!(
        (failure.phase, failure.reason),
        (Phase::Authenticate, Reason::PermissionDenied),
        "{failure:?}"
    );
}

#[tokio::test]
async fn facts_tell_what_was_learnt() {
    let sshd = Sshd::with(&format!("Banner {}", program("sshd").with_file_name("no-such-file").display()));
    let session = crate::support::session(&sshd).await;
    let facts = session.facts();
    assert!(facts.server.starts_with("SSH-2.0-OpenSSH"), "{}", facts.server);
    assert_eq!(facts.address.unwrap().to_string(), format!("{}:{}", sshd.address, sshd.port));
    let negotiated = facts.negotiated.unwrap();
    assert_eq!(negotiated.strict, ssh::Strict::Yes, "{negotiated:?}");
    assert!(facts.timings.identity > Duration::ZERO);
}

#[tokio::test]
async fn rsa_key_that_is_too_long_to_verify_is_no_sign_of_an_attack() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("host");
    let made =
        Command::new(program("python3")).args(["-c", include_str!("long_rsa_key.py")]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::write(&key, made.stdout).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let public = Command::new(program("ssh-keygen")).args(["-y", "-f"]).arg(&key).output().unwrap();
    assert!(public.status.success(), "{}", String::from_utf8_lossy(&public.stderr));
    fs::write(directory.path().join("host.pub"), public.stdout).unwrap();
    let sshd = Sshd::in_directory(directory, "");
    let failure = client(&Pinned::of(&[&sshd])).connect(&target(&sshd), &|_| {}).await.err().unwrap();
    let words = "web1 showed an RSA key that is too long to verify here: the most are 8192 bits";
    assert_is(&failure, Phase::Identity, Reason::NoCommonAlgorithm, words);
}
