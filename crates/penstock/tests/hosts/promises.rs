//! Each promise of docs/hosts.md about who is believed, against real servers and at every door: plain `ssh` with our
//! block in a strict and in a lax configuration, `penstock run` and `penstock tunnel` with both engines, `penstock host why`.
//! The same for 10,000 cases in one process: `crates/ssh/tests/ssh/doors.rs`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

use hosts::ssh::key::PublicKey;
use testing::server::run_to_end;
use testing::sshd::{Sshd, keygen, public_line};
use testing::user::{User, nothing_was_sent, place};
use testing::{secs, tools};

/// What is promised.
struct Promise {
    /// The row of the table "What is decided" that promises it, as it begins there.
    row: &'static str,
    name: &'static str,
    /// Files below the configuration directory.
    files: Vec<(&'static str, String)>,
    served: Served,
    /// Words that are told of a refusal; `None`: it connects.
    refused: Option<&'static str>,
}

/// What the server shows.
enum Served {
    /// This bare key.
    Key(&'static str),
    /// The key `host` with a certificate that this authority made with these options.
    Certificate(&'static str, &'static [&'static str]),
}

/// How a user reaches a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    StrictSsh,
    LaxSsh,
    Run,
    RunOpenssh,
    Tunnel,
    TunnelOpenssh,
    Why,
}

const DOORS: [Door; 7] = [
    Door::StrictSsh,
    Door::LaxSsh,
    Door::Run,
    Door::RunOpenssh,
    Door::Tunnel,
    Door::TunnelOpenssh,
    Door::Why,
];

/// The keys of all promises.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Self {
        let keys = Self(tempfile::tempdir().unwrap());
        for (name, kind) in [
            ("host", "ed25519"),
            ("other", "ed25519"),
            ("weak", "ecdsa"),
            ("ca", "ed25519"),
            ("ca2", "ed25519"),
        ] {
            keygen(&keys.0.path().join(name), &["-t", kind]);
        }
        keys
    }

    /// Key and fingerprint, as files have them.
    fn line(&self, name: &str) -> String {
        let key: PublicKey = self.bare(name).parse().unwrap();
        format!("{key} {}", key.fingerprint())
    }

    fn bare(&self, name: &str) -> String {
        public_line(&self.0.path().join(format!("{name}.pub")))
    }

    fn serve(&self, served: &Served) -> Sshd {
        let directory = tempfile::tempdir().unwrap();
        let host = directory.path().join("host");
        let name = if let Served::Key(name) = served { name } else { "host" };
        for ending in ["", ".pub"] {
            fs::copy(self.0.path().join(format!("{name}{ending}")), format!("{}{ending}", host.display()))
                .unwrap();
        }
        let Served::Certificate(authority, options) = served else {
            return Sshd::in_directory(directory, "");
        };
        let signed = Command::new(tools::program("ssh-keygen"))
            .args(["-q", "-s"])
            .arg(self.0.path().join(authority))
            .args(["-I", "made by a test"])
            .args(*options)
            .arg(host.with_extension("pub"))
            .output()
            .unwrap();
        assert!(signed.status.success(), "{signed:?}");
        let line = format!("HostCertificate {}-cert.pub", host.display());
        Sshd::in_directory(directory, &line)
    }

    fn promises(&self) -> Vec<Promise> {
        use Served::{Certificate, Key};
        let host = |lines: &str| ("hosts/web1.host", format!("id web1\n{lines}"));
        let db1 = |lines: &str| ("hosts/db1.host", format!("id db1\n{lines}"));
        let pin = |name: &str| format!("pin {} from=console 2026-03-01\n", self.line(name));
        let own_ca = format!("ca {} principals=web1\n", self.line("ca"));
        let both = format!("{}{own_ca}", pin("host"));
        let fleet = ("authorities/fleet.ca", format!("id fleet\nnames web*\nca {}\n", self.line("ca")));
        let listed = |name: &str| ("revoked", format!("{}\n", self.bare(name)));
        let promise = |row, name, files, served, refused| Promise { row, name, files, served, refused };
        const GOOD: &[&str] = &["-h", "-n", "web1"];
        let mut all = vec![
            promise("a pinned key", "a pinned key connects", vec![host(&pin("host"))], Key("host"), None),
            promise(
                "the key of another",
                "another host's key is refused by its name",
                vec![host(&pin("other")), db1(&pin("host"))],
                Key("host"),
                Some("it showed the key of db1, not of web1; nothing was sent"),
            ),
            promise(
                "another key",
                "another key than the pinned one is refused",
                vec![host(&pin("other"))],
                Key("host"),
                Some("is pinned (from=console 2026-03-01"),
            ),
            promise(
                "a weaker type",
                "a weaker type of key is refused",
                vec![host(&pin("host"))],
                Key("weak"),
                Some("a weaker type than the pinned ssh-ed25519"),
            ),
            promise(
                "a weaker type",
                "a retired key is refused",
                vec![host(&format!("{}retired {} 2026-11-02\n", pin("other"), self.line("host")))],
                Key("host"),
                Some("which is retired since 2026-11-02"),
            ),
            promise(
                "a weaker type",
                "a key that its own file revokes is refused, pinned or not",
                vec![host(&format!("{}revoked {} 2026-11-03\n", pin("host"), self.line("host")))],
                Key("host"),
                Some("web1 showed the revoked key ssh-ed25519"),
            ),
            promise(
                "a weaker type",
                "a key on the list is refused, pinned or not",
                vec![host(&pin("host")), listed("host")],
                Key("host"),
                Some("web1 showed the revoked key ssh-ed25519"),
            ),
            promise(
                "a weaker type",
                "a host that is out of service is refused",
                vec![host(&format!("{}retired 2026-11-02\n", pin("host")))],
                Key("host"),
                Some("web1 is retired since 2026-11-02"),
            ),
            promise(
                "a certificate",
                "a good certificate connects",
                vec![host(&own_ca)],
                Certificate("ca", GOOD),
                None,
            ),
            promise(
                "a certificate",
                "a good certificate without principals connects",
                vec![host(&own_ca)],
                Certificate("ca", &["-h"]),
                None,
            ),
            promise(
                "a certificate",
                "a good certificate of an authority for names like this connects",
                vec![fleet.clone()],
                Certificate("ca", GOOD),
                None,
            ),
            promise(
                "a bad certificate",
                "a bare key where an authority counts is refused",
                vec![host(&own_ca)],
                Key("host"),
                Some("a certificate of its authority is required"),
            ),
            promise(
                "a bad certificate",
                "a pinned key needs no certificate",
                vec![host(&both)],
                Key("host"),
                None,
            ),
            promise(
                "a bad certificate",
                "a revoked authority is refused, also with a pinned key",
                vec![host(&both), listed("ca")],
                Certificate("ca", GOOD),
                Some("a certificate of the revoked authority"),
            ),
            promise(
                "anything else",
                "a name that is not enrolled is refused",
                vec![db1(&pin("other"))],
                Key("host"),
                Some("is not enrolled; it showed ssh-ed25519"),
            ),
            promise(
                "anything else",
                "a damaged file refuses its host",
                vec![host("pin ssh-ed25519 AAAA\n")],
                Key("host"),
                Some("the identity of web1 cannot be read"),
            ),
            promise(
                "anything else",
                "an authority that is missing refuses the host that names it",
                vec![host(&format!("{}ca @fleet\n", pin("host")))],
                Key("host"),
                Some("names the authority @fleet, which is missing"),
            ),
        ];
        let bad: [(&str, &str, &[&str], &str); 6] = [
            ("ca", "expired", &["-h", "-n", "web1", "-V", "20200101:20200201"], "it expired on 2020-0"),
            (
                "ca",
                "not yet valid",
                &["-h", "-n", "web1", "-V", "20990101:20990201"],
                "it is not valid before 20",
            ),
            ("ca2", "of another authority", GOOD, "which is not an authority for it"),
            ("ca", "for users", &["-n", "web1"], "it is for users, not for hosts"),
            ("ca", "for another host", &["-h", "-n", "db1"], "it is for db1, not for web1"),
            (
                "ca",
                "with a critical option",
                &["-h", "-n", "web1", "-O", "critical:strange"],
                "the critical option strange",
            ),
        ];
        for (by, name, options, words) in bad {
            // With the key pinned, and without.
            for files in [vec![host(&own_ca)], vec![host(&both)]] {
                let row = "a bad certificate";
                all.push(Promise {
                    row,
                    name,
                    files,
                    served: Certificate(by, options),
                    refused: Some(words),
                });
            }
        }
        all
    }
}

#[test]
fn each_promise_is_kept_at_every_door_in_a_strict_and_in_a_lax_configuration() {
    let keys = Keys::new();
    let promises = keys.promises();
    let next = Mutex::new(promises.iter());
    let rows: Mutex<Vec<(String, Vec<String>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let promise = next.lock().unwrap().next();
                    let Some(promise) = promise else { return };
                    let row = (promise.name.to_owned(), keep(&keys, promise));
                    rows.lock().unwrap().push(row);
                }
            });
        }
    });
    let rows = rows.into_inner().unwrap();
    let mut table = format!("{DOORS:?}\n");
    for (name, cells) in &rows {
        let _ = writeln!(table, "{name:66} {}", cells.join(" | "));
    }
    println!("{table}");
    assert_eq!(rows.len(), promises.len(), "a promise was not tried: {table}");
    let is_kept = |cell: &String| cell == "connects" || cell == "refused";
    assert!(rows.iter().all(|(_, cells)| cells.len() == DOORS.len() && cells.iter().all(is_kept)), "{table}");
}

/// What each door did: `connects` or `refused` where that is what is promised, otherwise what was said.
fn keep(keys: &Keys, promise: &Promise) -> Vec<String> {
    let user = User::new();
    let configuration = user.store().places().configuration.clone();
    for (file, text) in &promise.files {
        let path = configuration.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let sshd = keys.serve(&promise.served);
    let cell = |door: Door| {
        let (code, said) = pass(&user, &sshd, door);
        match promise.refused {
            None if code == Some(0)
                && (said.contains("came-through") || said.contains("verdict   accepted")) =>
            {
                "connects".to_owned()
            }
            Some(words) if code != Some(0) && said.contains(words) && !said.contains("came-through\n") => {
                "refused".to_owned()
            }
            _ => format!("{code:?}: {said}"),
        }
    };
    let cells = DOORS.map(cell).to_vec();
    if promise.refused.is_some() {
        nothing_was_sent(&sshd);
    }
    cells
}

/// Goes through a door; what it said, and its exit code.
fn pass(user: &User, sshd: &Sshd, door: Door) -> (Option<i32>, String) {
    let strict = match door {
        Door::StrictSsh => "Host *\n    StrictHostKeyChecking yes\n",
        _ => {
            "Host *\n    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    GlobalKnownHostsFile /dev/null\n"
        }
    };
    let config = user.home.path().join(".ssh/config");
    user.configure(&format!("{strict}{}{}", place("web1", sshd), user.said(&["known-hosts", "--stanza"])));
    // ssh takes the home directory from elsewhere.
    let bin = user.home.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let ssh = format!("#!/bin/sh\nexec {} -F {} \"$@\"\n", tools::program("ssh").display(), config.display());
    tools::executable(&bin.join("ssh"), &ssh);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let run = |program: &Path, arguments: &[&str]| -> Output {
        run_to_end(
            user.command(program).env("PATH", &path).env("XDG_RUNTIME_DIR", &bin).args(arguments),
            secs(120),
        )
    };
    let ours = Path::new(testing::binary());
    let tunnel = |engine: &str| {
        let file = user.home.path().join("penstock.toml");
        let socket = user.home.path().join("s").display().to_string();
        let text = format!(
            "[tunnel.t]\nhost = \"web1\"\n[tunnel.t.forward.f]\nlisten = \"unix:{socket}\"\nconnect = \"127.0.0.1:9\"\n\
             check = \"none\"\n"
        );
        fs::write(&file, text).unwrap();
        let file = file.display().to_string();
        run(
            ours,
            &["tunnel", "with", "t", "--config", &file, "--engine", engine, "--", "echo", "came-through"],
        )
    };
    let output = match door {
        Door::StrictSsh => run(&bin.join("ssh"), &["web1", "echo", "came-through"]),
        Door::LaxSsh => {
            run(&bin.join("ssh"), &["-o", "StrictHostKeyChecking=no", "web1", "echo", "came-through"])
        }
        Door::Run => run(ours, &["run", "-w", "web1", "echo", "came-through"]),
        Door::RunOpenssh => run(ours, &["run", "--engine", "openssh", "-w", "web1", "echo", "came-through"]),
        Door::Tunnel => tunnel("native"),
        Door::TunnelOpenssh => tunnel("openssh"),
        Door::Why => run(ours, &["host", "why", "web1"]),
    };
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), said)
}

#[test]
fn every_row_of_the_table_of_decisions_has_a_promise_that_is_tried() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hosts.md")).unwrap();
    let table = text.split_once("## What is decided").unwrap().1;
    let rows = table.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with("| ")).map(|line| &line[2..]).collect();
    assert!(rows.len() >= 8, "{rows:?}");
    let tried: Vec<&str> = Keys::new().promises().iter().map(|promise| promise.row).collect();
    for row in &rows {
        // `crates/penstock/tests/hosts/sshfp.rs` and `crates/ssh/tests/ssh/rekey.rs` have the servers that these two take.
        let elsewhere = row.contains("sshfp require-secure") || row.starts_with("another key at a rekey");
        assert!(elsewhere || tried.iter().any(|begins| row.starts_with(begins)), "{row}");
    }
    assert!(tried.iter().all(|begins| rows.iter().any(|row| row.starts_with(begins))), "{tried:?}");
}
