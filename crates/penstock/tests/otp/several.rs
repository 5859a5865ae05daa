//! Several validation servers with the same tokens: an OTP is good once, whichever of them is asked.

use std::thread;

use nix::sys::signal::Signal;
use testing::server::Setup;
use testing::{Server, client, eventually, secs};

use crate::token::{Tokens, YubiKey};

/// A server with its store, and what its configuration is made of.
struct Node {
    server: Option<Server>,
    tokens: Tokens,
    port: u16,
}

const NAME: &str = "cccccccccccb";

fn config(port: u16, peer: u16, level: u8) -> String {
    format!(
        "[listener.web]\nbind = \"127.0.0.1:{port}\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
         [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nlisteners = [\"web\"]\n\
         peers = [\"127.0.0.1:{peer}\"]\nsync-level = {level}\nsync-timeout = \"10s\"\n\
         [control]\nsocket = \"@DIR@/control.sock\"\n"
    )
}

/// Two servers that name each other.
fn pair(level: u8) -> [Node; 2] {
    let ports = [testing::port::free(), testing::port::free()];
    [0, 1].map(|at| {
        let setup = Setup::new(&config(ports[at], ports[1 - at], level));
        let tokens = Tokens::below(setup.dir());
        tokens.yubikey(NAME, None);
        tokens.said(&["client", "add", "--unsigned"], "");
        Node { server: Some(setup.start()), tokens, port: ports[at] }
    })
}

impl Node {
    fn ask(&self, otp: &str, nonce: &str, more: &str) -> String {
        let query = format!("/wsapi/2.0/verify?id=1&otp={otp}&nonce={nonce}{more}");
        let text = client::get(&format!("127.0.0.1:{}", self.port), &query).text();
        text.lines().find_map(|line| line.strip_prefix("status=")).unwrap().to_owned()
    }

    fn status(&self) -> String {
        self.server.as_ref().unwrap().said(&["status"])
    }

    /// Ends its process at once. Its directory lives as long as what is returned.
    fn kill(&mut self) -> tempfile::TempDir {
        let mut server = self.server.take().unwrap();
        server.signal(Signal::SIGKILL);
        server.wait_end(secs(10));
        std::mem::replace(&mut server.dir, tempfile::tempdir().unwrap())
    }
}

/// Waits until both know that they reach each other.
fn in_step(nodes: &[Node; 2]) {
    for node in nodes {
        eventually("it reaches the other", secs(20), || (!node.status().contains("otp.peers")).then_some(()));
    }
}

#[test]
fn an_otp_is_good_at_one_of_two_servers_only() {
    let nodes = pair(100);
    in_step(&nodes);
    let key = YubiKey::named(NAME);
    assert_eq!(nodes[0].ask(&key.otp(1, 1), "aaaaaaaaaaaaaaaa", ""), "OK");
    assert_eq!(nodes[1].ask(&key.otp(1, 1), "bbbbbbbbbbbbbbbb", ""), "REPLAYED_OTP");
    assert_eq!(nodes[1].ask(&key.otp(1, 2), "cccccccccccccccc", ""), "OK");
    assert_eq!(nodes[0].ask(&key.otp(1, 2), "dddddddddddddddd", ""), "REPLAYED_OTP");
    // What was accepted at the other one is on this one's disk.
    assert!(nodes[0].tokens.refused(&["verify"], &key.otp(1, 2)).contains("used before"));
}

#[test]
fn an_otp_that_reaches_both_servers_at_the_same_moment_is_good_at_one_at_most() {
    let nodes = pair(100);
    in_step(&nodes);
    let key = YubiKey::named(NAME);
    let mut good = 0;
    for press in 1..100 {
        let otp = key.otp(1, press);
        let answers = thread::scope(|scope| {
            let ask = |at: usize| {
                let (node, otp) = (&nodes[at], &otp);
                scope.spawn(move || {
                    node.ask(otp, &format!("{}{press:015}", if at == 0 { 'a' } else { 'b' }), "")
                })
            };
            [ask(0), ask(1)].map(|thread| thread.join().unwrap())
        });
        let count = answers.iter().filter(|status| *status == "OK").count();
        assert!(count <= 1, "{press}: {answers:?}");
        good += count;
        let is_refusal = |status: &String| matches!(&**status, "OK" | "REPLAYED_OTP" | "NOT_ENOUGH_ANSWERS");
        assert!(answers.iter().all(is_refusal), "{press}: {answers:?}");
    }
    println!("good at one of both: {good} of 99");
    assert_eq!(nodes[0].ask(&key.otp(2, 0), "eeeeeeeeeeeeeeee", ""), "OK");
}

#[test]
fn while_a_server_is_away_the_level_decides_and_it_catches_up() {
    let [first, mut second] = pair(100);
    let key = YubiKey::named(NAME);
    let _directory = second.kill();
    assert_eq!(first.ask(&key.otp(1, 1), "aaaaaaaaaaaaaaaa", ""), "NOT_ENOUGH_ANSWERS");
    assert_eq!(first.ask(&key.otp(1, 2), "bbbbbbbbbbbbbbbb", "&sl=secure"), "NOT_ENOUGH_ANSWERS");
    assert_eq!(first.ask(&key.otp(1, 3), "cccccccccccccccc", "&sl=0"), "OK");
    eventually("it says so", secs(20), || first.status().contains("otp.peers.127.0.0.1").then_some(()));
    let setup = Setup::new("").configured(
        &config(second.port, first.port, 100).replace("@DIR@", second.tokens.directory.to_str().unwrap()),
    );
    let again = setup.start();
    eventually("the second one knows", secs(20), || {
        second.tokens.said(&["list"], "").contains("1/3").then_some(())
    });
    let node = Node { server: Some(again), tokens: second.tokens, port: second.port };
    assert_eq!(node.ask(&key.otp(1, 3), "dddddddddddddddd", "&sl=0"), "REPLAYED_OTP");
    assert_eq!(node.ask(&key.otp(1, 4), "eeeeeeeeeeeeeeee", ""), "OK");
}

#[test]
fn nobody_else_may_tell_what_was_accepted() {
    let port = testing::port::free();
    let setup = Setup::new(
        &config(port, testing::port::free(), 0).replace("peers = [\"127.0.0.1:", "peers = [\"127.0.0.77:"),
    );
    let tokens = Tokens::below(setup.dir());
    let key = tokens.yubikey(NAME, None);
    let _server = setup.start();
    let told = format!(
        "/wsapi/2.0/sync?otp=x&modified=1&nonce=abc&yk_publicname={NAME}&yk_counter=99&yk_use=1&yk_high=1&yk_low=1"
    );
    let text = client::get(&format!("127.0.0.1:{port}"), &told).text();
    assert!(text.contains("status=OPERATION_NOT_ALLOWED"), "{text}");
    assert!(tokens.said(&["verify"], &key.otp(1, 1)).contains("good"));
}
