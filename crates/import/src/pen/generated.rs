//! Command lines made at random, with odd texts in them: a translation that `penstock check` refuses is a fault of the
//! translation.

use std::collections::BTreeMap;
use std::path::Path;

use config::{Environment, Source};

use super::*;
use crate::dice::Dice;

const ODD: [&str; 24] = [
    "x\"y",
    "x\\y",
    "",
    " ",
    "a b",
    "\n",
    "a\nb = 1",
    "${HOME}",
    "$${A:-b}",
    "\u{1b}[31m",
    "\u{202e}",
    "#",
    "'''",
    "\"\"\"",
    "\0",
    "/",
    "//",
    "../x",
    "/a\"b",
    "99999999999999999999",
    "0",
    "-1",
    "ä",
    "[::1",
];

const OPTIONS: [(&str, &[&str]); 21] = [
    ("-b", &["5", "0", "99999999"]),
    ("-c", &["10", "0"]),
    ("-x", &["10", "0"]),
    ("-T", &["10", "0", "99999999"]),
    ("-t", &["5", "99999999"]),
    ("-C", &["8888", "/run/pen.sock", "localhost:1", "./pen"]),
    ("-l", &["/var/log/pen", "log", "10.0.0.9:514", "a:b/c"]),
    ("-p", &["/run/pen.pid", "pen.pid"]),
    ("-u", &["pen", "root"]),
    ("-e", &["10.0.0.5", "10.0.0.5:81"]),
    ("-B", &["10.0.0.6", "/run/abuse"]),
    ("-E", &["/c/a.pem", "a.pem", "/c/a.crt"]),
    ("-K", &["/c/a.key", "a.key"]),
    ("-G", &["/c/ca.pem"]),
    ("-O", &["acl 1 deny 10.0.0.1", "client_acl 1", "source 10.0.0.7", "ssl_ciphers A:B", "weight"]),
    ("-O", &["log /l", "server 0 address 10.0.0.8 port 80", "server 0 acl 3", "idle_timeout 0", "no acl 1"]),
    (
        "-O",
        &[
            "transparent",
            "keepalive",
            "dummy",
            "tcp_fastclose up",
            "tarpit_acl 1",
            "acl 1 permit 10.9.0.0 255.255.255.0",
        ],
    ),
    ("-O", &["dsr_if eth1", "acl 1 permit 127.0.0.0 255.255.0.0", "transparent"]),
    ("-q", &["10", "0"]),
    ("-m", &["5"]),
    ("-j", &["/jail"]),
];

fn line(dice: &mut Dice) -> Vec<String> {
    let mut words = Vec::new();
    for _ in 0..dice.below(5) {
        let (option, usual) = OPTIONS[dice.below(OPTIONS.len())];
        words.push(option.to_owned());
        let value = dice.mostly(usual, &ODD, 6);
        // Odd texts also within commands.
        words.push(if dice.below(20) == 0 { format!("{value} {}", dice.of(&ODD)) } else { value.to_owned() });
    }
    for switch in ["-r", "-h", "-H", "-U", "-W", "-s", "-R", "-f"] {
        if dice.below(6) == 0 {
            words.push(switch.to_owned());
        }
    }
    words.push(
        dice.mostly(&["80", "127.0.0.1:81", "/run/listen", "192.0.2.10:80", "192.0.2.10"], &ODD, 15)
            .to_owned(),
    );
    for _ in 0..1 + dice.below(4) {
        let usual =
            ["a", "b:8000", "10.0.0.1:80:5:9:3:4", "/run/a", "A", "[::1]:9", "0.0.0.0", "10.0.0.1:80"];
        words.push(dice.mostly(&usual, &ODD, 15).to_owned());
    }
    words
}

#[test]
fn no_command_line_gives_a_configuration_that_is_refused() {
    let read = |_: &Path| Err("no such file".to_owned());
    let (services, exists) = ("http 80/tcp", |path: &Path| path.extension().is_some());
    let outside = Outside { services, directory: Path::new("/here"), read: &read, exists: &exists };
    let (mut served, mut refused) = (0, BTreeMap::new());
    for seed in 0..20_000 {
        let words = line(&mut Dice::new(seed));
        let Ok(translation) = command_line(&words, &outside) else { continue };
        served += 1;
        let source = Source { name: "pen".into(), text: translation.toml.clone() };
        if let Err(faults) = config::load(&source, &Environment::default()) {
            let shown = faults.render();
            // One example of each message, without its line number.
            let message = shown.lines().next().unwrap_or_default().splitn(5, ':').last().unwrap_or_default();
            let case = format!("seed {seed}: {words:?}\n{}\n{}", translation.toml, shown);
            refused.insert(message.to_owned(), case);
        }
    }
    let messages: Vec<_> = refused.keys().cloned().collect();
    let shown: Vec<_> = refused.into_values().take(2).collect();
    assert!(shown.is_empty(), "{}\n{}", messages.join("\n"), shown.join("\n"));
    assert!(served > 5_000, "most lines are too odd to be translated: {served}");
}
