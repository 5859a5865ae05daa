//! The certificate directory while it is served: layouts, renewals, broken files, policy, sessions; checked with openssl,
//! gnutls-cli and curl, and under load with rustls as a client.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tempfile::TempDir;
use testing::pki::{Time, self_signed};
use testing::server::Setup;
use testing::tools::{self, Root, openssl};
use testing::witness::{handshake, s_client, served};
use testing::{Client, Server, eventually, millis, secs};

const EC: &[&str] = &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
const RSA: &[&str] = &["-newkey", "rsa:2048"];

/// A self-signed certificate for one name in `certificate`, its key in `key`.
fn make(certificate: &Path, key: &Path, name: &str, kind: &[&str], more: &[&str]) {
    let alternatives = format!("subjectAltName=DNS:{name}");
    let mut arguments = vec!["req", "-x509", "-subj", "/CN=test", "-addext", &alternatives];
    arguments.extend(kind);
    if !more.contains(&"-passout") {
        arguments.push("-nodes");
    }
    if !more.contains(&"-days") {
        arguments.extend(["-days", "30"]);
    }
    arguments.extend(["-keyout", key.to_str().unwrap(), "-out", certificate.to_str().unwrap()]);
    arguments.extend(more);
    openssl(&arguments);
    private(key);
}

fn private(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A directory beside the watched one, to rename from.
struct Certs {
    root: TempDir,
}

impl Certs {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("certs")).unwrap();
        fs::create_dir(root.path().join("new")).unwrap();
        Self { root }
    }

    fn dir(&self) -> PathBuf {
        self.root.path().join("certs")
    }

    fn aside(&self) -> PathBuf {
        self.root.path().join("new")
    }

    /// Renews a pair as careful programs do: made aside, then renamed.
    fn renew(&self, stem: &str, name: &str) {
        self_signed(&self.aside(), stem, &[name], Time::Now);
        for ending in ["key", "crt"] {
            let file = format!("{stem}.{ending}");
            fs::rename(self.aside().join(&file), self.dir().join(&file)).unwrap();
        }
    }

    /// Puts a file there in one step.
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let aside = self.aside().join(name);
        fs::write(&aside, bytes).unwrap();
        private(&aside);
        fs::rename(aside, self.dir().join(name)).unwrap();
    }
}

fn config(directory: &Path, tls: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         tls = {{ certificates = \"{}\"{tls} }}\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n",
        directory.display()
    )
}

fn leaf(path: &Path) -> Vec<u8> {
    CertificateDer::from_pem_slice(&fs::read(path).unwrap()).unwrap().to_vec()
}

/// One certificate from `ctl certs`, by NAME of its files.
fn standing(server: &Server, name: &str) -> Value {
    let all = server.ctl_json(&["certs"]);
    let certificates = all[0]["certificates"].as_array().unwrap().clone();
    certificates.into_iter().find(|it| it["name"] == name).unwrap_or(Value::Null)
}

#[track_caller]
fn wait_for_state(server: &Server, name: &str, state: &str) -> Value {
    eventually(&format!("{name} is {state}: {:#}", server.ctl_json(&["certs"])), secs(10), || {
        Some(standing(server, name)).filter(|it| it["state"] == state)
    })
}

#[test]
fn every_layout_that_people_have_is_served() {
    let certs = Certs::new();
    let (dir, aside) = (certs.dir(), certs.aside());
    self_signed(&dir, "plain", &["plain.example"], Time::Now);
    self_signed(&aside, "both", &["both.example"], Time::Now);
    certs.put(
        "both.pem",
        [fs::read(aside.join("both.key")).unwrap(), fs::read(aside.join("both.crt")).unwrap()].concat(),
    );
    let locked = ["-passout", "pass:correct horse"];
    make(&dir.join("own.crt"), &dir.join("own.key"), "own.example", EC, &locked);
    certs.put("own.pass", "correct horse\n");
    make(
        &dir.join("shared.crt"),
        &dir.join("shared.key"),
        "shared.example",
        RSA,
        &["-passout", "pass:the other"],
    );
    let phrase = certs.root.path().join("phrase");
    fs::write(&phrase, "the other").unwrap();
    private(&phrase);
    // A chain in a file of its own, behind a leaf that it issued.
    let at = |name: &str| aside.join(name).to_str().unwrap().to_owned();
    self_signed(&aside, "ca", &["ca.example"], Time::Now);
    openssl(&[
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=leaf",
        "-addext",
        "subjectAltName=DNS:chained.example",
        "-keyout",
        dir.join("chained.key").to_str().unwrap(),
        "-out",
        &at("csr"),
    ]);
    private(&dir.join("chained.key"));
    openssl(&[
        "x509",
        "-req",
        "-in",
        &at("csr"),
        "-CA",
        &at("ca.crt"),
        "-CAkey",
        &at("ca.key"),
        "-days",
        "9",
        "-copy_extensions",
        "copy",
        "-out",
        dir.join("chained.crt").to_str().unwrap(),
    ]);
    fs::copy(aside.join("ca.crt"), dir.join("chained.ca")).unwrap();
    let server = Server::start(&config(&dir, &format!(", key-passphrase-file = \"{}\"", phrase.display())));
    for name in ["plain", "own", "shared", "chained"] {
        assert_eq!(standing(&server, name)["state"], "ok", "{:#}", standing(&server, name));
        let expected = leaf(&dir.join(format!("{name}.crt")));
        assert_eq!(served(&server, &format!("{name}.example")), Some(expected), "{name}");
    }
    assert_eq!(served(&server, "both.example"), Some(leaf(&dir.join("both.pem"))));
    let text = s_client(&server, &["-servername", "chained.example", "-showcerts", "-CAfile", &at("ca.crt")]);
    assert_eq!(text.matches("BEGIN CERTIFICATE").count(), 2, "leaf and issuer: {text}");
    let port = server.address("secure").rsplit(':').next().unwrap().to_owned();
    let gnutls = tools::run(
        "gnutls-cli",
        &[
            "--x509cafile",
            &at("ca.crt"),
            "--sni-hostname",
            "chained.example",
            "--verify-hostname",
            "chained.example",
            "-p",
            &port,
            "127.0.0.1",
        ],
        secs(20),
    );
    assert!(String::from_utf8_lossy(&gnutls.stdout).contains("Handshake was completed"), "{gnutls:?}");
    assert_eq!(server.ctl_json(&["status"])["degraded"].as_array().unwrap().len(), 0);
}

#[test]
fn certbots_directory_is_served_as_it_is_and_a_renewal_by_new_links_is_noticed() {
    let certs = Certs::new();
    let etc = certs.dir();
    for sub in ["live/a.example", "archive/a.example", "renewal"] {
        fs::create_dir_all(etc.join(sub)).unwrap();
    }
    let issue = |number: u32| {
        let at = |file: &str| etc.join(format!("archive/a.example/{file}{number}.pem"));
        make(&at("fullchain"), &at("privkey"), "a.example", EC, &[]);
        for file in ["privkey", "fullchain"] {
            let link = etc.join(format!("live/a.example/{file}.pem"));
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("../../archive/a.example/{file}{number}.pem"), link).unwrap();
        }
        leaf(&at("fullchain"))
    };
    let first = issue(1);
    let server = Server::start(&config(&etc, ""));
    assert_eq!(served(&server, "a.example"), Some(first));
    let second = issue(2);
    eventually("the renewed one is served", secs(5), || {
        (served(&server, "a.example")? == second).then_some(())
    });
    assert_eq!(standing(&server, "a.example")["state"], "ok");
}

#[test]
fn of_twins_each_client_gets_the_one_it_can_verify_and_ecdsa_if_it_can_both() {
    let certs = Certs::new();
    let dir = certs.dir();
    make(&dir.join("a-rsa.crt"), &dir.join("a-rsa.key"), "a.example", RSA, &[]);
    make(&dir.join("a-ec.crt"), &dir.join("a-ec.key"), "a.example", EC, &[]);
    let server = Server::start(&config(&dir, ""));
    let kind = |more: &[&str]| {
        let text = s_client(&server, &[&["-servername", "a.example"], more].concat());
        match (text.contains("Peer signature type: ECDSA"), text.contains("Peer signature type: RSA")) {
            (true, false) => "ecdsa",
            (false, true) => "rsa",
            _ => panic!("{text}"),
        }
    };
    assert_eq!(kind(&[]), "ecdsa");
    assert_eq!(kind(&["-sigalgs", "RSA-PSS+SHA256"]), "rsa");
    assert_eq!(kind(&["-tls1_2"]), "ecdsa");
    assert_eq!(kind(&["-tls1_2", "-cipher", "ECDHE-RSA-AES256-GCM-SHA384"]), "rsa");
}

#[test]
fn a_new_a_renewed_and_a_removed_pair_are_live_without_a_reload() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    certs.renew("b", "b.example");
    let server = Server::start(&config(&certs.dir(), ""));
    let generation = server.ctl_json(&["status"])["generation"].clone();
    for what in ["renewed", "renewed again"] {
        let begun = std::time::Instant::now();
        certs.renew("a", "a.example");
        let expected = leaf(&certs.dir().join("a.crt"));
        eventually(what, secs(5), || (served(&server, "a.example")? == expected).then_some(()));
        println!("{what}: served {:?} after its key was made", begun.elapsed());
    }
    certs.renew("late", "late.example");
    eventually("the new one is served", secs(5), || served(&server, "late.example"));
    for file in ["late.crt", "late.key"] {
        fs::remove_file(certs.dir().join(file)).unwrap();
    }
    eventually("the removed one is not", secs(5), || served(&server, "late.example").is_none().then_some(()));
    assert_eq!(server.ctl_json(&["status"])["generation"], generation, "nothing was reloaded");
    for said in ["renewed: a until", "new: late until", "removed: late"] {
        eventually(said, secs(5), || server.ctl_json(&["events"]).to_string().contains(said).then_some(()));
    }
}

#[test]
fn with_any_file_in_the_place_of_a_pair_the_old_one_serves_on_and_the_reason_is_shown() {
    let certs = Certs::new();
    let dir = certs.dir();
    certs.renew("a", "a.example");
    certs.renew("b", "b.example");
    let server = Server::start(&config(&dir, ""));
    let old = leaf(&dir.join("a.crt"));
    let good = ["crt", "key"].map(|ending| (ending, fs::read(dir.join(format!("a.{ending}"))).unwrap()));
    let (certificate_text, other_key) = (good[0].1.clone(), fs::read(dir.join("b.key")).unwrap());
    let aside = certs.aside();
    let replace = |name: &str| fs::rename(aside.join("x"), dir.join(name)).unwrap();
    let expired = || {
        self_signed(&aside, "x", &["a.example"], Time::Over);
        fs::rename(aside.join("x.key"), dir.join("a.key")).unwrap();
        fs::rename(aside.join("x.crt"), dir.join("a.crt")).unwrap();
    };
    let curve = || {
        let kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp256k1"];
        make(&aside.join("x.crt"), &aside.join("x.key"), "a.example", &kind, &[]);
        fs::rename(aside.join("x.key"), dir.join("a.key")).unwrap();
        fs::rename(aside.join("x.crt"), dir.join("a.crt")).unwrap();
    };
    let cases: Vec<(&str, Break<'_>)> = vec![
        ("do not belong together", Box::new(|| certs.put("a.key", &other_key))),
        (
            "cannot be understood",
            Box::new(|| fs::write(dir.join("a.crt"), &certificate_text[..200]).unwrap()),
        ),
        ("holds no certificate", Box::new(|| certs.put("a.crt", "no certificate"))),
        ("holds no private key", Box::new(|| certs.put("a.key", ""))),
        ("more than 1048576 bytes for a certificate", Box::new(|| certs.put("a.crt", vec![b'x'; 2_000_000]))),
        ("its key is missing", Box::new(|| fs::remove_file(dir.join("a.key")).unwrap())),
        ("its certificate is missing", Box::new(|| fs::remove_file(dir.join("a.crt")).unwrap())),
        (
            "other users can read",
            Box::new(|| fs::set_permissions(dir.join("a.key"), fs::Permissions::from_mode(0o644)).unwrap()),
        ),
        (
            "not a regular file",
            Box::new(|| {
                make_pipe(&aside.join("x"));
                replace("a.crt");
            }),
        ),
        (
            "its symbolic link is a loop",
            Box::new(|| {
                std::os::unix::fs::symlink(dir.join("a.crt"), aside.join("x")).unwrap();
                replace("a.crt");
            }),
        ),
        ("expired at", Box::new(expired)),
        ("unsupported key; supported", Box::new(curve)),
    ];
    for (reason, breaks) in &cases {
        breaks();
        wait_for_state(&server, "a", "old-in-use");
        // Of two files that are replaced one after the other, the server may have seen only the first.
        eventually(reason, secs(20), || {
            standing(&server, "a")["reason"].as_str()?.contains(reason).then_some(())
        });
        assert_eq!(served(&server, "a.example").as_ref(), Some(&old), "{reason}");
        assert!(served(&server, "b.example").is_some(), "{reason}");
        assert!(server.ctl_json(&["status"])["degraded"].to_string().contains(reason), "{reason}");
        for (ending, bytes) in &good {
            certs.put(&format!("a.{ending}"), bytes);
        }
        wait_for_state(&server, "a", "ok");
    }
    certs.put("c.pem", "nothing");
    wait_for_state(&server, "c", "refused");
    let metrics = server.metrics();
    assert!(
        metrics.lines().any(|line| line.starts_with("penstock_certificates{")
            && line.contains("refused")
            && line.ends_with(" 1")),
        "{metrics}"
    );
    assert!(
        metrics.lines().any(|line| line.starts_with("penstock_certificate_expiry_seconds{")
            && line.contains("certificate=\"a\""))
    );
    let table = String::from_utf8(server.ctl(&["certs"]).stdout).unwrap();
    assert!(table.contains("REFUSED") && table.contains("a.example"), "{table}");
}

/// Puts something bad in the place of a good file.
type Break<'a> = Box<dyn Fn() + 'a>;

fn make_pipe(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR).unwrap();
}

#[test]
fn a_directory_that_is_replaced_or_comes_back_is_watched_again() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    let server = Server::start(&config(&certs.dir(), ""));
    let old = leaf(&certs.dir().join("a.crt"));
    let away = certs.root.path().join("away");
    fs::rename(certs.dir(), &away).unwrap();
    eventually("it is missed", secs(5), || {
        server.ctl_json(&["status"])["degraded"].to_string().contains("cannot be read").then_some(())
    });
    assert_eq!(served(&server, "a.example"), Some(old));
    fs::create_dir(certs.dir()).unwrap();
    certs.renew("a", "a.example");
    let new = leaf(&certs.dir().join("a.crt"));
    eventually("the new directory is served", secs(5), || {
        (served(&server, "a.example")? == new).then_some(())
    });
    certs.renew("a", "a.example");
    let newer = leaf(&certs.dir().join("a.crt"));
    eventually("and watched", secs(5), || (served(&server, "a.example")? == newer).then_some(()));
    eventually("all is well", secs(5), || {
        server.ctl_json(&["status"])["degraded"].as_array()?.is_empty().then_some(())
    });
}

#[test]
fn without_inotify_the_directory_is_looked_at_every_second_and_that_is_said() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    // A user namespace of its own has limits of its own.
    let none_left = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let server = Setup::new(&config(&certs.dir(), ""))
        .through(["unshare", "--user", "--map-root-user", "sh", "-c", none_left, "sh"])
        .start();
    eventually("it is said", secs(10), || {
        let degraded = server.ctl_json(&["status"])["degraded"].to_string();
        degraded.contains("found by looking every second: inotify: EMFILE").then_some(())
    });
    certs.renew("a", "a.example");
    let new = leaf(&certs.dir().join("a.crt"));
    eventually("the new one is served", secs(10), || (served(&server, "a.example")? == new).then_some(()));
}

#[test]
fn unknown_names_get_the_alert_that_says_so_unless_a_default_is_named() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    certs.renew("b", "b.example");
    let server = Server::start(&config(&certs.dir(), ""));
    let unknown = s_client(&server, &["-servername", "unknown.example"]);
    assert!(unknown.contains("unrecognized name") && unknown.contains("alert number 112"), "{unknown}");
    let nameless = s_client(&server, &["-noservername"]);
    assert!(nameless.contains("alert number 109"), "{nameless}");
    assert!(served(&server, "b.example").is_some());
    for default in ["b", "b.example"] {
        let server = Server::start(&config(&certs.dir(), &format!(", default = \"{default}\"")));
        let expected = leaf(&certs.dir().join("b.crt"));
        assert_eq!(served(&server, "unknown.example"), Some(expected.clone()));
        let nameless = s_client(&server, &["-noservername"]);
        assert_eq!(CertificateDer::from_pem_slice(nameless.as_bytes()).unwrap().to_vec(), expected);
    }
    let missing = Server::start(&config(&certs.dir(), ", default = \"c\""));
    assert!(missing.ctl_json(&["status"])["degraded"].to_string().contains("no certificate has the name"));
}

#[test]
fn a_client_that_accepts_no_signature_of_the_key_gets_an_alert() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    let server = Server::start(&config(&certs.dir(), ""));
    for version in ["-tls1_2", "-tls1_3"] {
        // The key is on P-256, for which TLS 1.3 has SHA-256 only, and so has rustls for TLS 1.2.
        let refused =
            s_client(&server, &["-servername", "a.example", version, "-sigalgs", "ECDSA+SHA384:RSA+SHA256"]);
        assert!(refused.contains("alert number 40"), "{version}: {refused}");
    }
}

#[test]
fn the_policy_decides_versions_ciphers_order_and_groups() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    let start = |tls: &str| Server::start(&config(&certs.dir(), tls));
    let cipher = |server: &Server, more: &[&str]| {
        let text = s_client(server, &[&["-servername", "a.example"], more].concat());
        let line = text.lines().find(|line| line.contains("Cipher is ")).unwrap_or_default();
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    };
    let old_way = ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-AES128-GCM-SHA256"];
    let all = ", policy = \"compatible\"";
    let usual = start("");
    assert_eq!(cipher(&start(all), &old_way), "ECDHE-ECDSA-AES256-GCM-SHA384", "the client's order");
    let ours = start(&format!("{all}, cipher-order = \"server\""));
    assert_eq!(cipher(&ours, &old_way), "ECDHE-ECDSA-AES128-GCM-SHA256");
    assert_eq!(cipher(&usual, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"]), "(NONE)");
    assert_eq!(cipher(&start(", policy = \"modern\""), &old_way), "(NONE)");
    assert_eq!(cipher(&start(", min-version = \"1.3\""), &["-tls1_2"]), "(NONE)");
    let narrow = start(", ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\"], groups = [\"secp384r1\"]");
    assert_eq!(cipher(&narrow, &[]), "TLS_CHACHA20_POLY1305_SHA256");
    assert!(
        s_client(&narrow, &["-servername", "a.example"]).contains("ECDH, secp384r1, 384 bits")
            || s_client(&narrow, &["-servername", "a.example"]).contains("ECDH, P-384, 384 bits")
    );
    assert_eq!(cipher(&narrow, &["-groups", "X25519"]), "(NONE)");
    assert_eq!(handshake(&usual.address("secure"), "a.example").unwrap().group, "X25519MLKEM768");
}

#[test]
fn a_session_goes_on_under_its_own_name_and_is_refused_under_another() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    certs.renew("b", "b.example");
    let server = Server::start(&config(&certs.dir(), ""));
    let file = certs.root.path().join("session");
    let file = file.to_str().unwrap();
    for version in ["-tls1_2", "-tls1_3"] {
        // The request makes s_client wait for an answer, and so for the tickets of TLS 1.3.
        let address = server.address("secure");
        let first = format!(
            "printf 'GET / HTTP/1.1\\r\\nHost: a.example\\r\\nConnection: close\\r\\n\\r\\n' | openssl s_client -connect {address} {version} -servername a.example -sess_out {file} -ign_eof"
        );
        let output = tools::run("sh", &["-c", &first], secs(20));
        assert!(String::from_utf8_lossy(&output.stdout).contains("New, TLS"), "{output:?}");
        let again = |name: &str| s_client(&server, &[version, "-servername", name, "-sess_in", file]);
        let (own, other) = (again("a.example"), again("b.example"));
        assert!(own.contains("Reused, TLS"), "{version}: {own}");
        assert!(!other.contains("Reused"), "{version}: {other}");
    }
}

/// Waits until most of the oldest clients were cut off.
#[track_caller]
fn wait_for_cut(oldest: &mut [Client]) {
    eventually("the oldest are cut off", secs(10), || {
        let is_cut = |client: &mut Client| client.read_to_end_within(millis(1)).1 != testing::End::Open;
        (oldest.iter_mut().map(is_cut).filter(|cut| *cut).count() >= 15).then_some(())
    });
}

#[test]
fn stalled_handshakes_make_room_for_others_when_there_are_too_many() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    let server = Server::start(&config(&certs.dir(), ", handshakes = 5, handshake-timeout = \"50s\""));
    let mut stalled: Vec<Client> = (0..30).map(|_| server.client("secure")).collect();
    for client in &mut stalled {
        client.send([0x16, 3, 1]);
    }
    wait_for_cut(&mut stalled[..20]);
    assert!(served(&server, "a.example").is_some());
    let endings = server.ctl_json(&["status"])["listeners"].to_string();
    assert!(endings.contains("tls-too-many-handshakes"), "{endings}");
}

#[test]
fn stalled_handshakes_count_on_over_reloads() {
    let certs = Certs::new();
    certs.renew("a", "a.example");
    let server = Server::start(&config(&certs.dir(), ", handshakes = 5, handshake-timeout = \"50s\""));
    let mut stalled: Vec<Client> = Vec::new();
    for _ in 0..6 {
        for _ in 0..5 {
            let mut client = server.client("secure");
            client.send([0x16, 3, 1]);
            stalled.push(client);
        }
        let reload = server.ctl(&["reload"]);
        assert!(reload.status.success(), "{reload:?}");
    }
    wait_for_cut(&mut stalled[..20]);
}

#[test]
fn a_staple_is_sent_with_its_own_certificate_only() {
    let certs = Certs::new();
    let (dir, aside) = (certs.dir(), certs.aside());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    certs.renew("a", "a.example");
    certs.renew("b", "b.example");
    staple(&certs, "a");
    let server = Server::start(&config(&dir, ""));
    let stapled = |name: &str| {
        s_client(&server, &["-servername", name, "-status"]).contains("OCSP Response Status: successful")
    };
    assert!(stapled("a.example") && !stapled("b.example"));
    assert_eq!(standing(&server, "a")["staple"]["state"], "sent");
    assert_eq!(standing(&server, "b")["staple"]["state"], "not-needed");
    fs::copy(dir.join("a.ocsp"), aside.join("b.ocsp")).unwrap();
    fs::rename(aside.join("b.ocsp"), dir.join("b.ocsp")).unwrap();
    eventually("another's staple is refused", secs(5), || {
        standing(&server, "b")["staple"]["reason"].as_str()?.contains("another certificate").then_some(())
    });
    assert!(!stapled("b.example"));
    certs.put("a.ocsp", "half");
    eventually("a broken staple is said", secs(5), || {
        standing(&server, "a")["staple"]["reason"].as_str()?.contains("not an OCSP response").then_some(())
    });
    assert!(stapled("a.example"), "the one from before is still good: {}", text(&dir));
}

/// Signs an OCSP response for a self-signed certificate, as its own responder.
fn staple(certs: &Certs, stem: &str) {
    let at = |directory: PathBuf, ending: &str| {
        directory.join(format!("{stem}.{ending}")).to_str().unwrap().to_owned()
    };
    let (crt, key) = (at(certs.dir(), "crt"), at(certs.dir(), "key"));
    let (request, response, index) =
        (at(certs.aside(), "req"), at(certs.aside(), "ocsp"), at(certs.aside(), "index"));
    let serial = openssl(&["x509", "-in", &crt, "-noout", "-serial"]);
    let serial = serial.trim().trim_start_matches("serial=");
    fs::write(&index, format!("V\t400101000000Z\t\t{serial}\tunknown\t/CN=test\n")).unwrap();
    openssl(&["ocsp", "-issuer", &crt, "-cert", &crt, "-no_nonce", "-reqout", &request]);
    openssl(&[
        "ocsp", "-index", &index, "-CA", &crt, "-rsigner", &crt, "-rkey", &key, "-reqin", &request,
        "-respout", &response, "-ndays", "3",
    ]);
    fs::rename(&response, certs.dir().join(format!("{stem}.ocsp"))).unwrap();
}

#[test]
fn handshakes_go_on_without_a_failure_while_a_hundred_pairs_are_replaced() {
    const PAIRS: usize = 100;
    let certs = Certs::new();
    let name = |at: usize| format!("host{at}.example");
    for at in 0..PAIRS {
        self_signed(&certs.dir(), &format!("h{at}"), &[&name(at)], Time::Now);
        if at % 10 == 0 {
            staple(&certs, &format!("h{at}"));
        }
        self_signed(&certs.aside(), &format!("h{at}"), &[&name(at)], Time::Now);
    }
    let mut known: HashMap<(String, Vec<u8>), Vec<u8>> = HashMap::new();
    for at in 0..PAIRS {
        let old = fs::read(certs.dir().join(format!("h{at}.ocsp"))).unwrap_or_default();
        known.insert((name(at), leaf(&certs.dir().join(format!("h{at}.crt")))), old);
        known.insert((name(at), leaf(&certs.aside().join(format!("h{at}.crt")))), Vec::new());
    }
    let server = Server::start(&config(&certs.dir(), ""));
    let (stop, count, failures) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (server, stop, count, failures, known, name) =
                (&server, &stop, &count, &failures, &known, &name);
            scope.spawn(move || {
                let mut at = thread * 37;
                while !stop.load(SeqCst) {
                    at = (at + 7) % PAIRS;
                    let fault = match handshake(&server.address("secure"), &name(at)) {
                        Err(error) => Some(error),
                        Ok(seen) => match known.get(&(name(at), seen.leaf)) {
                            None => Some("a certificate of another name".to_owned()),
                            Some(staple) if *staple != seen.staple => {
                                Some("the staple of another one".to_owned())
                            }
                            Some(_) => None,
                        },
                    };
                    count.fetch_add(1, SeqCst);
                    failures.lock().unwrap().extend(fault.map(|fault| format!("{}: {fault}", name(at))));
                }
            });
        }
        let wait = |more: usize| {
            let from = count.load(SeqCst);
            eventually("handshakes", secs(20), || (count.load(SeqCst) >= from + more).then_some(()));
        };
        wait(50);
        for at in 0..PAIRS {
            for ending in ["key", "crt"] {
                let file = format!("h{at}.{ending}");
                fs::rename(certs.aside().join(&file), certs.dir().join(&file)).unwrap();
            }
            wait(3);
        }
        let last = leaf(&certs.dir().join(format!("h{}.crt", PAIRS - 1)));
        eventually("the last one is served", secs(5), || {
            (handshake(&server.address("secure"), &name(PAIRS - 1)).ok()?.leaf == last).then_some(())
        });
        wait(50);
        stop.store(true, SeqCst);
    });
    println!("{} handshakes while {PAIRS} pairs were replaced", count.load(SeqCst));
    assert_eq!(failures.into_inner().unwrap(), Vec::<String>::new());
}

#[test]
fn a_renewal_that_the_service_user_cannot_read_is_said_with_who_and_what() {
    if tools::root("drops privileges") == Root::LeftOut {
        return;
    }
    let certs = Certs::new();
    fs::set_permissions(certs.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
    certs.renew("a", "a.example");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let own = |file: &str| {
        nix::unistd::chown(&certs.dir().join(file), Some(nobody.uid), Some(nobody.gid)).unwrap();
    };
    own("a.key");
    let text = config(&certs.dir(), "").replace("[control]", "[process]\nuser = \"nobody\"\n[control]");
    let server = Server::start(&text);
    let old = leaf(&certs.dir().join("a.crt"));
    assert_eq!(served(&server, "a.example"), Some(old.clone()));
    certs.renew("a", "a.example");
    let shown = wait_for_state(&server, "a", "old-in-use");
    let reason = shown["reason"].as_str().unwrap();
    for part in ["user nobody", "a.key", "mode 0600", "belongs to 0:0"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert_eq!(served(&server, "a.example"), Some(old));
    own("a.key");
    wait_for_state(&server, "a", "ok");
    assert_eq!(served(&server, "a.example"), Some(leaf(&certs.dir().join("a.crt"))));
}
