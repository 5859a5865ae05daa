//! Ways to a host and through it: jump hosts, proxy commands, forwards, announced keys.

use std::time::Duration;

use crate::support::{Pinned, client, run, session, target};
use hosts::fleet::ending::{Ending, Phase, Reason};
use ssh::{Exec, Listener, Place, Proxy};
use testing::sshd::{Sshd, keygen, processes, public_line};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

#[tokio::test]
async fn each_hop_of_a_chain_is_judged_and_the_end_is_encrypted_to_the_end() {
    let servers = [Sshd::start(), Sshd::start(), Sshd::start()];
    let [gate, second, web] = &servers;
    let judge = Pinned::of(&[gate, second, web]);
    let mut hops = [target(gate), target(second)];
    hops[0].name = "gate".to_owned();
    hops[1].name = "second".to_owned();
    hops[1].host = second.address.to_string();
    let mut target = target(web);
    target.host = web.address.to_string();
    target.proxy = Proxy::Jump(hops.to_vec());
    let session = client(&judge).connect(&target, &|_| {}).await.unwrap();
    assert_eq!(run(&session, "exit 7").await.ending, Some(Ending::Exited(7)));
    let asked = judge.asked.lock().unwrap().clone();
    let names: Vec<_> = asked.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["gate", "second", "web1"]);
    let end = Place::Jumped { through: "second".to_owned(), host: target.host.clone(), port: web.port };
    assert_eq!(asked[2].1, end);
    // Nothing stays behind once the session is gone.
    session.close().await;
    crate::support::eventually("all three see the end", || {
        servers.iter().all(|sshd| sshd.connections() == 0)
    })
    .await;
}

#[tokio::test]
async fn a_jump_host_with_another_key_is_refused_and_named() {
    let (gate, web) = (Sshd::start(), Sshd::start());
    let mut hop = target(&gate);
    hop.name = "gate".to_owned();
    let mut target = target(&web);
    target.proxy = Proxy::Jump(vec![hop]);
    let failure = client(&Pinned::of(&[&web])).connect(&target, &|_| {}).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Connect, Reason::KeyChanged));
    assert_eq!(failure.detail, "jump host: gate answered with another key");
}

#[tokio::test]
async fn a_host_that_the_jump_host_cannot_reach_fails_with_what_that_one_says() {
    let gate = Sshd::start();
    let mut target = target(&gate);
    target.proxy = Proxy::Jump(vec![target.clone()]);
    target.host = "127.0.0.1".to_owned();
    target.port = 1;
    let failure = client(&Pinned::of(&[&gate])).connect(&target, &|_| {}).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Connect, Reason::ConnectionRefused), "{failure:?}");
    assert!(failure.detail.contains("127.0.0.1:1: Connection refused"), "{}", failure.detail);
}

#[tokio::test]
async fn a_proxy_command_carries_the_connection_and_ends_with_it() {
    let sshd = Sshd::start();
    let mut target = target(&sshd);
    target.proxy = Proxy::Command(format!("nc {} {}", sshd.address, sshd.port));
    let session = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.unwrap();
    assert_eq!(run(&session, "echo hello").await.stdout, b"hello\n");
    let word = format!("nc {} {}", sshd.address, sshd.port);
    assert!(processes().iter().any(|line| line.contains(&word)));
    drop(session);
    crate::support::eventually("the command is gone", || {
        !processes().iter().any(|line| line.contains(&word))
    })
    .await;
}

#[tokio::test]
async fn what_a_proxy_command_says_explains_its_failure() {
    let sshd = Sshd::start();
    let mut target = target(&sshd);
    target.proxy = Proxy::Command("sh -c 'echo no route to the moon >&2; sleep 0.2'".to_owned());
    let failure = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.err().unwrap();
    assert!(failure.detail.contains("no route to the moon"), "{failure:?}");
    // It did well, as far as it knows: it was the server that hung up.
    assert_eq!(failure.reason, Reason::ClosedByServer);
    for (command, reason, words) in [
        ("./no/such/program", Reason::LocalError, "ended with status 127"),
        ("/dev/null", Reason::LocalError, "ended with status 126"),
        ("sh -c 'exit 3'", Reason::Unreachable, "ended with status 3, before the server said anything"),
        ("sh -c 'kill -SEGV $$'", Reason::Unreachable, "ended by signal 11"),
    ] {
        target.proxy = Proxy::Command(command.to_owned());
        let failure = client(&Pinned::of(&[&sshd])).connect(&target, &|_| {}).await.err().unwrap();
        assert_eq!((failure.phase, failure.reason), (Phase::Connect, reason), "{failure:?}");
        assert!(failure.detail.contains(words), "{failure:?}");
        assert!(failure.advice.as_ref().is_none_or(|advice| !advice.contains("MaxStartups")), "{failure:?}");
    }
}

#[tokio::test]
async fn a_stream_closes_each_direction_by_itself() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let listener = TcpListener::bind((sshd.address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let far = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        // Only after the end of what came does it answer.
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).await.unwrap();
    });
    let mut stream = session.open_tcp(&sshd.address.to_string(), port).await.unwrap();
    for _ in 0..100 {
        stream.write_all(&[7; 30_000]).await.unwrap();
    }
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "3000000 bytes");
    far.await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_there_is_reached() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let path = sshd.directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut stream = session.open_unix(path.to_str().unwrap()).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    far.write_all(b"hello").await.unwrap();
    drop(far);
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "hello");
}

#[tokio::test]
async fn why_the_host_cannot_connect_is_known_by_its_words_and_what_it_forbids_is_refused() {
    let sshd = Sshd::start();
    let open = std::sync::Arc::new(session(&sshd).await);
    // Many at once on one connection: each is told of its own.
    let mut opening = tokio::task::JoinSet::new();
    for turn in 0..40 {
        let open = std::sync::Arc::clone(&open);
        let (host, reason, words) = match turn % 2 {
            0 => ("127.0.0.1", Reason::ConnectionRefused, "Connection refused"),
            _ => ("a..b", Reason::NoAddress, "ame"),
        };
        opening.spawn(async move { (host, reason, words, open.open_tcp(host, 1).await.err().unwrap()) });
    }
    while let Some(failed) = opening.join_next().await {
        let (host, reason, words, failure) = failed.unwrap();
        assert_eq!(failure.reason, reason, "{host}: {failure:?}");
        let told = failure.detail.split_once(&format!("could not connect to {host}:1: "));
        assert!(told.is_some_and(|(_, told)| told.contains(words)), "{failure:?}");
    }
    drop(open);
    let sshd = Sshd::with("AllowTcpForwarding no");
    let failure = session(&sshd).await.open_tcp("127.0.0.1", 1).await.err().unwrap();
    assert_eq!(failure.reason, Reason::ChannelRefused, "{failure:?}");
    assert!(failure.advice.unwrap().contains("AllowTcpForwarding"));
}

#[tokio::test]
async fn a_writer_to_a_peer_that_is_gone_is_told() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let listener = TcpListener::bind((sshd.address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream = session.open_tcp(&sshd.address.to_string(), port).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    drop(far);
    let (mut reading, mut writing) = tokio::io::split(stream);
    let reader = tokio::spawn(async move {
        let mut rest = Vec::new();
        let _ = reading.read_to_end(&mut rest).await;
        reading
    });
    let told = async { while writing.write_all(&[0; 65_536]).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(20), told).await.unwrap();
    drop(reader);
}

#[tokio::test]
async fn a_stalled_forward_holds_its_sender_back() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let listener = TcpListener::bind((sshd.address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stream = session.open_tcp(&sshd.address.to_string(), port).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    let mut sent = 0_usize;
    let block = vec![0; 65_536];
    // A writer that is held back waits; one that is not writes for ever.
    while tokio::time::timeout(Duration::from_millis(700), far.write_all(&block)).await.is_ok() {
        sent += block.len();
        assert!(sent < 64 << 20, "nothing holds it back");
    }
    drop(stream);
}

#[tokio::test]
async fn the_host_listens_for_us_on_tcp() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let mut incoming = session.listen_tcp("127.0.0.1", 0).await.unwrap();
    let Listener::Tcp(_, port) = incoming.at().clone() else { panic!() };
    let client = tokio::spawn(async move {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    });
    let (mut stream, from) = incoming.accept().await.unwrap();
    assert!(from.starts_with("127.0.0.1:"), "{from}");
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    stream.write_all(said.to_uppercase().as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(client.await.unwrap(), "HELLO");
    drop(incoming);
    // The port is free again.
    crate::support::eventually("the listener is gone", || {
        std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
    })
    .await;
}

#[tokio::test]
async fn the_host_listens_for_us_on_a_unix_socket() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let path = sshd.directory.path().join("ours");
    let mut incoming = session.listen_unix(path.to_str().unwrap()).await.unwrap();
    let mut client = UnixStream::connect(&path).await.unwrap();
    let (mut stream, _) = incoming.accept().await.unwrap();
    client.write_all(b"hello").await.unwrap();
    client.shutdown().await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "hello");
    let again = session.listen_unix(path.to_str().unwrap()).await.err().unwrap();
    assert_eq!(again.reason, Reason::ChannelRefused);
}

#[tokio::test]
async fn keys_that_the_server_announces_and_proves_are_passed_on() {
    let directory = tempfile::tempdir().unwrap();
    let second = directory.path().join("second");
    keygen(&second, &["-t", "ecdsa"]);
    let lines = format!("HostKey {}", second.display());
    let sshd = Sshd::in_directory(directory, &lines);
    let judge = Pinned::of(&[&sshd]);
    let session = client(&judge).connect(&target(&sshd), &|_| {}).await.unwrap();
    let _ = session.exec("true", &Exec::default()).await.unwrap();
    session.close().await;
    let announced = judge.announced.lock().unwrap().clone();
    let expected = public_line(&second.with_extension("pub"));
    assert!(announced.iter().any(|key| key.to_string() == expected), "{announced:?}");
}
