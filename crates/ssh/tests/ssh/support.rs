//! What the tests of connections stand on: judges, targets, events gathered.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hosts::fleet::ending::{Ending, Failure, Phase, Reason};
use hosts::ssh::key::PublicKey;
use ssh::{
    BoxFuture, Client, Event, Exec, HostVerifier, Keys, Offered, Place, Process, Session, Target, Verdict,
};

use testing::sshd::Sshd;

/// Accepts the keys it was given, and remembers what it was asked.
#[derive(Default)]
pub(crate) struct Pinned {
    pub keys: Vec<PublicKey>,
    pub asked: Mutex<Vec<(String, Place)>>,
    pub announced: Mutex<Vec<PublicKey>>,
}

impl Pinned {
    pub(crate) fn of(servers: &[&Sshd]) -> Arc<Self> {
        let keys = servers.iter().map(|sshd| sshd.host_key().parse().unwrap()).collect();
        Arc::new(Self { keys, ..Self::default() })
    }
}

impl HostVerifier for Pinned {
    fn wanted(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn judge<'a>(&'a self, name: &'a str, at: &'a Place, offered: &'a Offered) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            self.asked.lock().unwrap().push((name.to_owned(), at.clone()));
            match offered {
                Offered::Key(key) if self.keys.contains(key) => Verdict::Accepted { note: None },
                _ => Verdict::Refused {
                    reason: Reason::KeyChanged,
                    message: format!("{name} answered with another key"),
                    advice: "look who it is".to_owned(),
                },
            }
        })
    }

    fn announced(&self, _: &str, keys: Vec<PublicKey>) {
        self.announced.lock().unwrap().extend(keys);
    }
}

/// The interpreter that has asyncssh.
pub(crate) fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(std::env::temp_dir);
    let found = cache.join("penstock/venv-asyncssh/bin/python3");
    assert!(found.exists(), "the Python environment asyncssh is missing: run `make setup`");
    found
}

/// How to reach `sshd` with its own client key.
pub(crate) fn target(sshd: &Sshd) -> Target {
    let mut target = Target::new("web1", &sshd.user);
    target.addresses.known = vec![IpAddr::V4(sshd.address)];
    target.port = sshd.port;
    target.keys = ssh::KeyPlan::of_file(sshd.client_key.clone());
    target
}

pub(crate) fn client(judge: &Arc<Pinned>) -> Client {
    Client::new(Arc::clone(judge) as Arc<dyn HostVerifier>, Arc::new(Keys::new()))
}

/// A session with `sshd`, or the test fails.
pub(crate) async fn session(sshd: &Sshd) -> Session {
    connect(sshd).await.unwrap_or_else(|failure| panic!("{failure:?}\n{}", sshd.log()))
}

pub(crate) async fn connect(sshd: &Sshd) -> Result<Session, Failure> {
    client(&Pinned::of(&[sshd])).connect(&target(sshd), &|_| {}).await
}

/// Everything a command said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub ending: Option<Ending>,
    pub started: bool,
}

pub(crate) async fn run(session: &Session, command: &str) -> Said {
    gather(&mut session.exec(command, &Exec::default()).await.unwrap()).await
}

pub(crate) async fn gather(process: &mut Process) -> Said {
    let mut said = Said::default();
    while let Some(event) = process.next().await {
        match event {
            Event::Started => said.started = true,
            Event::Stdout(data) => said.stdout.extend_from_slice(&data),
            Event::Stderr(data) => said.stderr.extend_from_slice(&data),
            Event::Ended(ending) => said.ending = Some(ending),
        }
    }
    said
}

/// The phases told while connecting.
pub(crate) async fn phases(client: &Client, target: &Target) -> (Vec<Phase>, Result<Session, Failure>) {
    let seen = Mutex::new(Vec::new());
    let result = client.connect(target, &|phase| seen.lock().unwrap().push(phase)).await;
    (seen.into_inner().unwrap(), result)
}

/// Waits until `condition` holds; the test fails with `what` after a minute.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !condition() {
        assert!(std::time::Instant::now() < limit, "not in time: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
