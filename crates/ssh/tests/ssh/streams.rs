//! What a stream has taken goes out; what is no longer used ends.

use std::time::{Duration, Instant};

use crate::support::{Pinned, client, session, target};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};
use nix::unistd::Pid;
use ssh::{Event, Exec, Proxy, Purpose, Session, Stream};
use testing::sshd::{Sshd, children_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A stream through `sshd`, and its other end.
async fn opened(sshd: &Sshd, session: &Session) -> (Stream, TcpStream) {
    let listener = TcpListener::bind((sshd.address, 0)).await.unwrap();
    accepted(listener, sshd, session).await
}

async fn accepted(listener: TcpListener, sshd: &Sshd, session: &Session) -> (Stream, TcpStream) {
    let port = listener.local_addr().unwrap().port();
    let stream = session.open_tcp(&sshd.address.to_string(), port).await.unwrap();
    (stream, listener.accept().await.unwrap().0)
}

/// Writes blocks until the stream takes no more, without a flush. Says how many bytes it took.
async fn fill(stream: &mut Stream, block: usize) -> usize {
    let (block, mut taken) = (vec![7; block], 0);
    // A writer that is held back waits; one that is not writes for ever.
    while let Ok(written) = timeout(Duration::from_millis(700), stream.write(&block)).await {
        taken += written.unwrap();
        assert!(taken < 64 << 20, "nothing holds it back");
    }
    taken
}

/// What arrives, up to `bytes` of it.
async fn arrived(far: &mut TcpStream, bytes: usize) -> usize {
    let (mut all, mut buffer) = (0, vec![0; 65_536]);
    while all < bytes {
        match timeout(Duration::from_secs(20), far.read(&mut buffer)).await {
            Ok(Ok(count @ 1..)) => all += count,
            _ => break,
        }
    }
    all
}

#[tokio::test]
async fn what_a_stream_took_arrives_without_a_flush() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    // Of 1,000 bytes the last write goes whole or not at all; of 128 KiB a part of it goes.
    for block in [1_000, 128 * 1024] {
        let (mut stream, mut far) = opened(&sshd, &session).await;
        let taken = fill(&mut stream, block).await;
        // No task polls the stream from here on.
        assert_eq!(arrived(&mut far, taken).await, taken, "blocks of {block}");
        stream.shutdown().await.unwrap();
        assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0, "nothing but what was taken comes");
    }
}

#[tokio::test]
async fn what_a_stream_took_arrives_after_it_and_its_session_are_dropped() {
    let sshd = Sshd::start();
    for block in [1_000, 128 * 1024] {
        let session = session(&sshd).await;
        let (mut stream, mut far) = opened(&sshd, &session).await;
        let taken = fill(&mut stream, block).await;
        drop((stream, session));
        assert_eq!(arrived(&mut far, usize::MAX).await, taken, "blocks of {block}");
    }
}

#[tokio::test]
async fn what_a_stream_took_arrives_although_its_reader_pauses_after_the_drop() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let listener = TcpListener::bind((sshd.address, 0)).await.unwrap();
    // The kernel holds little, so that the server must hold the rest: up to 2 MiB, its window.
    setsockopt(&listener, RcvBuf, &4096).unwrap();
    let (mut stream, mut far) = accepted(listener, &sshd, &session).await;
    let taken = fill(&mut stream, 128 * 1024).await;
    drop((stream, session));
    let begin = arrived(&mut far, taken.saturating_sub(1 << 20)).await;
    // In this time a client that does not wait for the server ends the connection.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(begin + arrived(&mut far, usize::MAX).await, taken);
}

#[tokio::test]
async fn host_that_reads_no_more_does_not_hold_its_gate_when_it_was_given_up() {
    let (gate, web) = (Sshd::start(), Sshd::with("MaxSessions 12"));
    let judge = Pinned::of(&[&gate, &web]);
    let mut target = target(&web);
    target.host = web.address.to_string();
    target.proxy = Proxy::Jump(vec![crate::support::target(&gate)]);
    // A gate of its own, which no other task holds.
    target.purpose = Purpose::Bulk;
    let session = client(&judge).connect(&target, &|_| {}).await.unwrap();
    let mut commands = Vec::new();
    // Each has a window of 2 MiB there, and all share that of the gate.
    for _ in 0..12 {
        // Runs, and is not in the middle of what its shell does at the start.
        let mut command = session.exec("echo ready; exec cat > /dev/null", &Exec::default()).await.unwrap();
        while !matches!(command.next().await.unwrap(), Event::Stdout(_)) {}
        commands.push(command);
    }
    let stopped = Pid::from_raw(children_of(web.pid())[0].cast_signed());
    kill(stopped, Signal::SIGSTOP).unwrap();
    for process in children_of(stopped.as_raw().cast_unsigned()) {
        let _ = kill(Pid::from_raw(process.cast_signed()), Signal::SIGSTOP);
    }
    let mut held_back = 0;
    for command in &mut commands {
        let writing = async { command.write(&vec![0; 3 << 20]).await.unwrap() };
        held_back += usize::from(timeout(Duration::from_millis(700), writing).await.is_err());
    }
    assert_eq!(held_back, 12);
    assert_eq!(gate.connections(), 1);
    drop((commands, session));
    let begun = Instant::now();
    while gate.connections() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the gate still has a connection");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
