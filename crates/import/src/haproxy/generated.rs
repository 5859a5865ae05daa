//! Files made at random from the lines that are understood, with odd values in them: a translation that `penstock check`
//! refuses is a fault of the translation.

use std::collections::BTreeMap;

use config::{Environment, Source};

use super::*;
use crate::dice::Dice;

const RARELY: usize = 15;

const ODD: [&str; 22] = [
    "''", "x\\\"y", "a\\ b", "0", "-1", "99999999", "/", "//", "../a", "*", "a,b", "{", "}", "!", "ssh:22",
    "dns:53", "ä", "${HOME}", "1.2.3:80", "[::1", "unix@a", "'a\\'",
];

const EXTRA: [&str; 14] = [
    "",
    "check",
    "backup",
    "weight 0",
    "weight 5",
    "maxconn 9",
    "ssl",
    "ssl verify none",
    "ssl ca-file /c/a.pem",
    "ssl ca-file a.pem",
    "send-proxy",
    "disabled",
    "check inter 0",
    "check rise 0 fall 999",
];

fn line(dice: &mut Dice) -> String {
    let mut pick = |usual: &[&'static str]| dice.mostly(usual, &ODD, RARELY);
    let host = pick(&["a.example", "b.example", "c.example:80", "10.0.0.1"]);
    let path = pick(&["/", "/api", "/static/", "/a/b", "api", ""]);
    let address =
        pick(&["10.0.0.1:80", "10.0.0.2:80", "app:8000", "APP.:8000", "unix@/run/a.sock", "[fd00::1]:80"]);
    let bind =
        pick(&[":80", "*:81", "0.0.0.0:82", "[::]:82", ":::83", "127.0.0.1:84", ":85,:86", "/run/web.sock"]);
    let time = pick(&["5s", "0", "1d", "40d", "500", "1ms", "400d"]);
    let number = pick(&["1", "0", "3", "256", "100000"]);
    let name = pick(&["a", "b", "c", "d", "e.f", "e_f", "a-backup"]);
    let other = pick(&["a", "b", "c", "e.f", "none"]);
    let extra = pick(&EXTRA);
    match dice.below(28) {
        0 | 1 => format!("bind {bind}"),
        2 => format!(
            "bind {bind} ssl crt {}",
            dice.of(&["/c", "/c/a.pem", "a.pem", "/c/a.pem crt /c/b.pem", "/"])
        ),
        3..=8 => format!("server {name}{} {address} {extra}", dice.below(50)),
        9 => format!("server {name} {address}"),
        10 | 11 => format!("default_backend {other}"),
        12 => format!("use_backend {other} if {{ path_beg {path} }}"),
        13 => format!("use_backend {other} if {{ hdr(host) -i {host} }}"),
        14 => format!("acl {name} path_beg {path}"),
        15 => format!("acl {name} {} {host}", dice.of(&["hdr(host)", "hdr_end(host)", "src"])),
        16 => format!("use_backend {other} if {name} or {other}"),
        17 => {
            let words = ["client", "server", "connect", "tunnel", "queue", "check", "http-request"];
            format!("timeout {} {time}", dice.of(&words))
        }
        18 => format!("mode {}", dice.of(&["http", "tcp", "http"])),
        19 => "http-request redirect scheme https unless { ssl_fc }".to_owned(),
        20 => format!("redirect scheme https code {number}"),
        21 => {
            let ways = ["source", "uri", "leastconn", "hdr(X-A)", "'hdr(a b)'", "hdr()", "random", "first"];
            format!("balance {}", dice.of(&ways))
        }
        22 => format!("option httpchk GET {path}"),
        23 => format!("http-check expect status {}", dice.mostly(&["200", "200-399"], &ODD, 3)),
        24 => format!("retries {number}"),
        25 => format!("maxconn {number}"),
        26 => format!("default-server {extra}"),
        _ => "option forwardfor".to_owned(),
    }
}

fn generated(dice: &mut Dice) -> String {
    let mut text = String::new();
    if dice.below(3) == 0 {
        text += &format!("global\n user {}\n maxconn 0\n", dice.mostly(&["haproxy", "www-data"], &ODD, 5));
    }
    text += "defaults\n mode http\n";
    for number in 0..2 + dice.below(5) {
        let name = dice.mostly(&["a", "b", "c", "d", "e.f", "e_f"], &ODD, RARELY);
        let kind = dice.of(&["frontend", "backend", "listen", "backend"]);
        // A second section of a name is a fault, so most have a number.
        let number = if dice.below(3) == 0 { String::new() } else { number.to_string() };
        text += &format!("{kind} {name}{number}\n");
        if kind != "backend" {
            text += &format!(" bind 127.0.0.1:{}\n", 1 + dice.below(9000));
        }
        if kind == "frontend" {
            text += &format!(" default_backend {}{}\n", dice.of(&["a", "b", "c"]), dice.below(5));
        } else {
            text += &format!(" server first {}\n", dice.of(&["10.0.0.9:80", "db:1", "10.0.0.1:80"]));
        }
        for _ in 0..dice.below(8) {
            text += &format!(" {}\n", line(dice));
        }
    }
    text
}

#[test]
fn no_file_gives_a_configuration_that_is_refused() {
    let (mut served, mut refused) = (0, BTreeMap::new());
    for seed in 0..8_000 {
        let text = generated(&mut Dice::new(seed));
        let Ok(translation) = file("haproxy.cfg", &text) else { continue };
        served += 1;
        let source = Source { name: "haproxy".into(), text: translation.toml.clone() };
        if let Err(faults) = config::load(&source, &Environment::default()) {
            let shown = faults.render();
            // One example of each message, without its line number.
            let message = shown.lines().next().unwrap_or_default().splitn(5, ':').last().unwrap_or_default();
            let case = format!("seed {seed}:\n{text}\n{}\n{}", translation.toml, shown);
            refused.insert(message.to_owned(), case);
        }
    }
    let messages: Vec<_> = refused.keys().cloned().collect();
    let shown: Vec<_> = refused.into_values().take(2).collect();
    assert!(shown.is_empty(), "{}\n{}", messages.join("\n"), shown.join("\n"));
    assert!(served > 2_000, "most files are too odd to be translated: {served}");
}

#[test]
fn what_check_would_refuse_is_told_with_its_line() {
    for (text, told) in [
        (
            "frontend f\n bind :80\n redirect scheme https\n default_backend a\nbackend a\n server x h:1\n",
            "dropped: haproxy.cfg:3: `redirect` needs `mode http`",
        ),
        (
            "frontend f\n mode http\n bind :80\n use_backend a if { path_beg api }\n default_backend a\nbackend a\n \
             server x h:1\n",
            "missing: haproxy.cfg:4: `use_backend a if { path_beg api }` is not translated: {: \"api\" does not begin",
        ),
        (
            "listen l\n bind :80\n server x h:1 weight 2\n server y H:1\n",
            "changed: haproxy.cfg:4: H:1 is the address of two servers",
        ),
        (
            "listen l\n bind :80\n server x h:1\nlisten m\n bind *:80\n server x h:1\n",
            "missing: haproxy.cfg:5: :80 is bound at haproxy.cfg:2",
        ),
        (
            "listen l\n bind :80\n timeout client 0\n server x h:1\n",
            "changed: haproxy.cfg:3: 0 is no limit at all",
        ),
    ] {
        let result = file("haproxy.cfg", text);
        let notes: Vec<_> = match &result {
            Ok(translation) => translation.notes.iter().map(ToString::to_string).collect(),
            Err(faults) => faults.0.iter().map(|fault| fault.message.clone()).collect(),
        };
        assert!(notes.iter().any(|note| note.starts_with(told)), "{told}: {notes:#?}");
    }
}

#[test]
fn names_that_are_there_twice_are_faults_with_both_lines() {
    for (text, told) in [
        (
            "listen l\n bind :80\n server x h:1\n server x h:2\n",
            "haproxy.cfg:4: a server of this section is called \"x\" already: haproxy.cfg:3",
        ),
        (
            "listen l\n bind :80\n server x h:1\nbackend b\n server x h:1\nbackend b\n server x h:1\n",
            "haproxy.cfg:6: a section like this is called \"b\" already: haproxy.cfg:4",
        ),
        (
            "frontend f\n bind :80\nlisten f\n bind :81\n server x h:1\n",
            "haproxy.cfg:3: a section like this is called \"f\"",
        ),
        (
            "listen l\n bind :80\n server x x\\\"y:1\n",
            "haproxy.cfg:3: \"x\\\"y\" is neither an address nor a host name",
        ),
    ] {
        let faults = file("haproxy.cfg", text).unwrap_err().to_string();
        assert!(faults.contains(told), "{told}: {faults}");
    }
    let both = "frontend f\n bind :80\n default_backend f\nbackend f\n server x h:1\n";
    assert!(file("haproxy.cfg", both).is_ok(), "a frontend and a backend may have one name");
}
