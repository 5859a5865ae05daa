//! Servers that exchange keys anew on a connection that is up (asyncssh).

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::support::{Pinned, python};
use hosts::fleet::ending::{Ending, Failure, Reason};
use ssh::{Client, Event, Exec, HostVerifier, KeyPlan, Keys, Target};
use testing::sshd::{keygen, public_line};

/// asyncssh in one of the modes of `rekey_server.py`. Ended and reaped on drop.
struct RekeyServer {
    directory: tempfile::TempDir,
    port: u16,
    said: mpsc::Receiver<String>,
    process: Child,
}

impl RekeyServer {
    fn start(mode: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = directory.path().join("host");
        keygen(&host, &["-t", "ed25519"]);
        let mut process = Command::new(python())
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ssh/rekey_server.py"))
            .arg(mode)
            .arg(&host)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines.next().expect("the server says its port").unwrap().parse().unwrap();
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { directory, port, said, process }
    }

    /// Runs a command with a rekey: what came on standard output, and how it ended.
    async fn run(&self) -> (String, Option<Ending>) {
        let host = public_line(&self.directory.path().join("host.pub"));
        let judge = Arc::new(Pinned { keys: vec![host.parse().unwrap()], ..Pinned::default() });
        let mut target = Target::new("web1", "somebody");
        target.addresses.known = vec![[127, 0, 0, 1].into()];
        target.port = self.port;
        target.keys = KeyPlan::none();
        let client = Client::new(Arc::clone(&judge) as Arc<dyn HostVerifier>, Arc::new(Keys::new()));
        let session = client.connect(&target, &|_| {}).await.unwrap();
        let mut process = session.exec("anything", &Exec::default()).await.unwrap();
        let (mut out, mut ending) = (String::new(), None);
        process.write(b"go\n").await.unwrap();
        while let Some(event) = process.next().await {
            match event {
                Event::Stdout(data) => {
                    out.push_str(&String::from_utf8_lossy(&data));
                    if out.contains("after") {
                        process.write(b"secret\n").await.unwrap();
                        process.finish_stdin().await.unwrap();
                    }
                }
                Event::Ended(how) => ending = Some(how),
                _ => {}
            }
        }
        assert_eq!(judge.asked.lock().unwrap().len(), 1, "who the host is is asked once");
        (out, ending)
    }
}

impl Drop for RekeyServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn keys_exchanged_anew_with_the_same_host_key_go_unnoticed() {
    let server = RekeyServer::start("same");
    let (out, ending) = server.run().await;
    assert_eq!((out.as_str(), ending), ("before\nafter\n", Some(Ending::Exited(0))));
    assert_eq!(server.said.recv_timeout(Duration::from_secs(20)).as_deref(), Ok("got secret"));
}

#[tokio::test]
async fn host_key_that_changes_when_keys_are_exchanged_anew_is_refused() {
    for (mode, shown) in [("other", "ssh-ed25519 SHA256:"), ("type", "ssh-rsa SHA256:")] {
        let server = RekeyServer::start(mode);
        let (out, ending) = server.run().await;
        assert_eq!(out, "before\n", "{mode}: {ending:?}");
        let Some(Ending::Failed(Failure { reason, detail, advice, .. })) = ending else {
            panic!("{mode}: {ending:?}")
        };
        assert_eq!(reason, Reason::KeyChanged, "{mode}: {detail}");
        let words = format!("web1 showed {shown}");
        assert!(
            detail.starts_with(&words) && detail.ends_with(" before; nothing more was sent"),
            "{mode}: {detail}"
        );
        assert!(advice.is_some(), "{mode}");
        let got: Vec<String> = server.said.try_iter().collect();
        assert!(got.iter().all(|line| !line.starts_with("got")), "{mode}: {got:?}");
    }
}
