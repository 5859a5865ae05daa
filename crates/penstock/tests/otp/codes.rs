//! Codes of apps at several servers: each is good once over all of them, also in the same moment.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

use testing::server::Setup;
use testing::tools::run;
use testing::{Server, eventually, secs};

use crate::token::Tokens;

const BASE32: &str = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";

struct Node {
    server: Server,
    tokens: Tokens,
    socket: PathBuf,
}

/// Two servers that name each other, with the tokens of alice.
fn pair(level: u8) -> [Node; 2] {
    let ports = [testing::port::free(), testing::port::free()];
    let nodes = [0, 1].map(|at| {
        let setup = Setup::new(&format!(
            "[listener.web]\nbind = \"127.0.0.1:{}\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n\
             [otp]\nstore = \"@DIR@/otp\"\nkey-file = \"@DIR@/otp.key\"\nlisteners = [\"web\"]\nsocket = \"@DIR@/auth.sock\"\n\
             peers = [\"127.0.0.1:{}\"]\nsync-level = {level}\n[control]\nsocket = \"@DIR@/control.sock\"\n",
            ports[at],
            ports[1 - at]
        ));
        let tokens = Tokens::below(setup.dir());
        for kind in ["hotp", "totp"] {
            let user = format!("of-{kind}");
            tokens.said(&["enrol", kind, "--user", &user, "--secret-file", "-"], BASE32);
        }
        tokens.yubikey("cccccccccccb", Some("alice"));
        let socket = setup.dir().join("auth.sock");
        Node { server: setup.start(), tokens, socket }
    });
    for node in &nodes {
        eventually("it reaches the other", secs(20), || {
            (!node.server.said(&["status"]).contains("otp.peers")).then_some(())
        });
    }
    nodes
}

impl Node {
    /// What a PAM module would be told.
    fn ask(&self, user: &str, otp: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        writeln!(stream, "{{\"user\":\"{user}\",\"otp\":\"{otp}\"}}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

fn oathtool(arguments: &[&str]) -> String {
    let output = run("oathtool", &[arguments, &["--base32", BASE32]].concat(), secs(10));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

const GOOD: &str = "{\"result\":\"good\"}";
const BAD: &str = "{\"result\":\"bad\"}";

#[test]
fn a_code_that_one_server_accepted_is_used_at_the_other_one() {
    let nodes = pair(100);
    let code = oathtool(&["--totp"]);
    assert_eq!(nodes[0].ask("of-totp", &code), GOOD);
    assert_eq!(nodes[1].ask("of-totp", &code), BAD);
    let hotp = |counter: u32| oathtool(&["--counter", &counter.to_string()]);
    assert_eq!(nodes[1].ask("of-hotp", &hotp(3)), GOOD);
    assert_eq!(nodes[0].ask("of-hotp", &hotp(3)), BAD);
    assert_eq!(nodes[0].ask("of-hotp", &hotp(2)), BAD);
    assert_eq!(nodes[0].ask("of-hotp", &hotp(4)), GOOD);
    // The command uses the store alone; the server beside it tells the other one.
    assert!(nodes[0].tokens.said(&["verify", "--user", "of-hotp"], &hotp(5)).contains("good"));
    eventually("the other one knows", secs(20), || {
        let list = nodes[1].tokens.said(&["list", "--json"], "");
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let tokens = list["tokens"].as_array().unwrap();
        tokens.iter().any(|token| token["kind"] == "hotp" && token["next"] == 6).then_some(())
    });
    assert_eq!(nodes[1].ask("of-hotp", &hotp(5)), BAD);
    nodes[1].server.stderr.wait_for("refused: REPLAYED_OTP: token of-totp-totp", secs(10));
}

#[test]
fn an_otp_or_a_code_at_both_servers_in_the_same_moment_is_good_at_one_at_most() {
    let nodes = pair(100);
    let key = crate::token::YubiKey::named("cccccccccccb");
    let mut good = 0;
    for number in 0..40 {
        let asked = match number % 2 {
            0 => ("of-hotp", oathtool(&["--counter", &number.to_string()])),
            _ => ("alice", key.otp(1, number)),
        };
        let answers = thread::scope(|scope| {
            let ask = |node: &'_ Node| node.ask(asked.0, &asked.1);
            let threads = [0, 1].map(|at: usize| {
                let node = &nodes[at];
                scope.spawn(move || ask(node))
            });
            threads.map(|thread| thread.join().unwrap())
        });
        let count = answers.iter().filter(|answer| *answer == GOOD).count();
        assert!(count <= 1, "{number}: {answers:?}");
        good += count;
    }
    println!("good at one of both: {good} of 40");
    assert_eq!(nodes[0].ask("alice", &key.otp(2, 0)), GOOD, "both are in step");
}

#[test]
fn while_a_server_is_away_the_level_decides_about_log_ins_too() {
    let [first, second] = pair(100);
    drop(second);
    let key = crate::token::YubiKey::named("cccccccccccb");
    assert_eq!(first.ask("alice", &key.otp(1, 1)), "{\"result\":\"unable\"}");
    first.server.stderr.wait_for("refused: NOT_ENOUGH_ANSWERS: token cccccccccccb: 0 %", secs(10));
    let [first, second] = pair(0);
    drop(second);
    assert_eq!(first.ask("alice", &key.otp(1, 1)), GOOD);
    assert_eq!(first.ask("alice", &key.otp(1, 1)), BAD);
}
