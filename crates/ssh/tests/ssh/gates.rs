//! Many hosts behind one jump host, a real OpenSSH server.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Pinned, client, run};
use hosts::fleet::ending::{Ending, Failure, Reason};
use lab::{Lab, Plan};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ssh::{Client, KeyPlan, Proxy, Session, Target};
use testing::sshd::{Sshd, children_of};

/// Hosts of a lab, to be reached through `gate`.
struct Behind {
    gate: Sshd,
    lab: Lab,
    targets: Vec<Target>,
    client: Client,
    _directory: tempfile::TempDir,
}

impl Behind {
    async fn new(gate: Sshd, hosts: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let random = fastrand::u8(2..250);
        let plan = Plan { first: [127, 100, random, 1].into(), ..Plan::new(hosts, directory.path()) };
        let lab = Lab::start(plan).await.unwrap();
        let mut judge = Pinned { keys: vec![gate.host_key().parse().unwrap()], ..Pinned::default() };
        judge.keys.extend(lab.names().map(|name| lab.key(name).unwrap().clone()));
        let mut hop = crate::support::target(&gate);
        hop.name = "gate".to_owned();
        // Two hundred key exchanges at once end together.
        hop.connect_timeout = Duration::from_secs(120);
        let targets = lab.names().map(|name| {
            let mut target = Target::new(name, "root");
            let address = lab.address(name).unwrap();
            target.host = address.ip().to_string();
            target.port = address.port();
            target.keys = KeyPlan::of_file(directory.path().join("client_key"));
            target.connect_timeout = hop.connect_timeout;
            target.proxy = Proxy::Jump(vec![hop.clone()]);
            target
        });
        let targets = targets.collect();
        Self { gate, lab, targets, client: client(&Arc::new(judge)), _directory: directory }
    }

    /// Connects to all at once.
    async fn all(&self) -> Vec<Result<Session, Failure>> {
        let connect = |target: &Target| {
            let (client, target) = (self.client.clone(), target.clone());
            tokio::spawn(async move { client.connect(&target, &|_| {}).await })
        };
        let tasks: Vec<_> = self.targets.iter().map(connect).collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.unwrap());
        }
        results
    }

    /// Number of log-ins at the gate; waits until its log has `expected`.
    fn log_ins(&self, expected: usize) -> usize {
        self.gate.logged("Accepted publickey", expected)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_behind_one_gate_share_one_log_in_there() {
    let behind = Behind::new(Sshd::with("MaxStartups 10:30:100"), 200).await;
    let sessions: Vec<_> = behind.all().await.into_iter().map(Result::unwrap).collect();
    for session in &sessions {
        assert_eq!(run(session, "exit 3").await.ending, Some(Ending::Exited(3)), "{}", session.name());
    }
    assert_eq!((sessions.len(), behind.lab.names().count()), (200, 200));
    assert_eq!(behind.log_ins(1), 1, "{}", behind.gate.log());
    // More than one session has room for.
    let more = behind.all().await;
    assert!(more.iter().all(Result::is_ok));
    assert_eq!(behind.log_ins(2), 2, "{}", behind.gate.log());
}

#[tokio::test]
async fn connection_to_a_gate_that_was_lost_is_opened_anew_for_the_next() {
    let behind = Behind::new(Sshd::start(), 3).await;
    let first = behind.client.connect(&behind.targets[0], &|_| {}).await.unwrap();
    for child in children_of(behind.gate.pid()) {
        kill(Pid::from_raw(child.cast_signed()), Signal::SIGKILL).unwrap();
    }
    // Perhaps before we have noticed.
    let second = behind.client.connect(&behind.targets[1], &|_| {}).await.unwrap();
    assert_eq!(first.closed().await.reason, Reason::ConnectionLost);
    assert!(second.is_open());
    behind.client.connect(&behind.targets[2], &|_| {}).await.unwrap();
    assert_eq!(behind.log_ins(2), 2, "{}", behind.gate.log());
}

#[tokio::test]
async fn those_who_wait_for_a_log_in_that_fails_do_not_try_it_again() {
    let gate = Sshd::start();
    std::fs::write(gate.directory.path().join("authorized_keys"), "").unwrap();
    let behind = Behind::new(gate, 30).await;
    let reasons: Vec<_> = behind.all().await.into_iter().map(|result| result.err().unwrap().reason).collect();
    assert_eq!(reasons, [Reason::PermissionDenied; 30]);
    assert_eq!(behind.gate.logged("Connection from", 1), 1, "{}", behind.gate.log());
}

#[tokio::test]
async fn host_that_the_gate_cannot_reach_leaves_the_others_their_connection() {
    let mut behind = Behind::new(Sshd::start(), 2).await;
    behind.targets[0].port = 1;
    let session = behind.client.connect(&behind.targets[1], &|_| {}).await.unwrap();
    let failure = behind.client.connect(&behind.targets[0], &|_| {}).await.err().unwrap();
    // In the words of the gate.
    assert_eq!(failure.reason, Reason::ConnectionRefused);
    assert_eq!(run(&session, "true").await.ending, Some(Ending::Exited(0)));
    assert_eq!(behind.log_ins(1), 1);
}
