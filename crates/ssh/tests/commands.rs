//! Commands on real OpenSSH servers.
#![allow(clippy::unwrap_used)]

mod support;

use logic::fleet::ending::{Ending, Phase, Reason};
use support::sshd::Sshd;
use support::{Pinned, client, phases, run, session, target};

#[tokio::test]
async fn a_command_says_both_streams_and_its_status() {
    let sshd = Sshd::start();
    let session = session(&sshd).await;
    let said = run(&session, "echo hello; echo trouble >&2; exit 3").await;
    assert!(said.started);
    assert_eq!(said.stdout, b"hello\n");
    assert_eq!(said.stderr, b"trouble\n");
    assert_eq!(said.ending, Some(Ending::Exited(3)));
}

#[tokio::test]
async fn each_phase_is_told_as_it_begins() {
    let sshd = Sshd::start();
    let (seen, result) = phases(&client(&Pinned::of(&[&sshd])), &target(&sshd)).await;
    assert!(result.is_ok());
    assert_eq!(seen, [Phase::Resolve, Phase::Connect, Phase::Identity, Phase::Authenticate]);
}

#[tokio::test]
async fn a_host_that_the_judge_refuses_gets_nothing_of_ours() {
    let sshd = Sshd::start();
    let other = Sshd::start();
    let failure = client(&Pinned::of(&[&other])).connect(&target(&sshd), &|_| {}).await.err().unwrap();
    assert_eq!((failure.phase, failure.reason), (Phase::Identity, Reason::KeyChanged));
    assert_eq!(failure.detail, "web1 answered with another key");
    assert!(!sshd.log().contains("publickey"), "{}", sshd.log());
}
