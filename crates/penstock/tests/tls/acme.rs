//! Certificates from a real ACME server (Pebble): ordered, served without a reload, renewed, kept; and everything that an
//! authority can do wrong.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use nix::sys::signal::Signal;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testing::pebble::{Pebble, PebbleSetup, authority};
use testing::server::penstock;
use testing::witness::{s_client, served};
use testing::{Server, eventually, secs, tools};

/// A plain listener that redirects, a TLS listener that redirects elsewhere, and an authority.
fn config(state: &Path, directory: &str, ca: &Path, section: &str) -> String {
    format!(
        "[process]\nstate-directory = \"{}\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nredirect-to-https = true\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\ntls = {{ acme = \"test\" }}\n\
         [[listener.secure.route]]\nredirect = \"https://elsewhere.example/\"\nstatus = 307\n\
         [acme.test]\ndirectory = \"{directory}\"\nca = \"{}\"\nterms-agreed = true\n\
         contact = \"admin@example.org\"\n{section}\n",
        state.display(),
        ca.display()
    )
}

/// A state directory that outlives a server.
struct Kept(tempfile::TempDir);

impl Kept {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn section(&self) -> PathBuf {
        self.state().join("acme/test")
    }

    fn bundle(&self, name: &str) -> PathBuf {
        self.section().join(format!("certificates/{name}.pem"))
    }

    fn account(&self) -> PathBuf {
        let entries = fs::read_dir(self.section()).unwrap().map(|entry| entry.unwrap().path());
        let is_account = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("account-") && name.ends_with(".json")
        };
        entries.into_iter().find(is_account).expect("an account's file")
    }

    /// Starts a server with this state, and leads the authority's challenges to it.
    #[track_caller]
    fn start(&self, pebble: &Pebble, section: &str) -> Server {
        let server = Server::start(&config(&self.state(), &pebble.directory, &pebble.ca, section));
        pebble.web.lead_to(Some(server.address("web")));
        pebble.secure.lead_to(Some(server.address("secure")));
        server
    }
}

const ONE: &str = "names = [\"one.example\"]";

#[track_caller]
fn wait_for_certificate(server: &Server, name: &str) -> Vec<u8> {
    eventually(&format!("a certificate for {name}: {:#?}", order(server, name)), secs(40), || {
        served(server, name)
    })
}

/// One order from `ctl certs`, by the name of its certificate.
fn order(server: &Server, name: &str) -> Value {
    let all = server.ctl_json(&["certs"]);
    let orders = all[0]["orders"].as_array().unwrap().clone();
    orders.into_iter().find(|it| it["certificate"] == name).unwrap_or(Value::Null)
}

#[track_caller]
fn wait_for_failure(server: &Server, name: &str, reason: &str) -> Value {
    eventually(&format!("a failure with {reason:?}: {:#}", order(server, name)), secs(30), || {
        let order = order(server, name);
        order["reason"].as_str().is_some_and(|words| words.contains(reason)).then_some(order)
    })
}

#[track_caller]
fn stop(mut server: Server) {
    server.signal(Signal::SIGTERM);
    assert!(server.wait_end(secs(15)).success());
}

/// Asks over TLS again and again, each time on a new connection.
struct Visitor {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

impl Visitor {
    fn start(server: &Server, name: &'static str) -> Self {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted, address) = (stop.clone(), asked.clone(), server.address("secure"));
        let thread = std::thread::spawn(move || {
            let port = address.rsplit(':').next().unwrap();
            let (resolve, url) = (format!("{name}:{port}:127.0.0.1"), format!("https://{name}:{port}/"));
            let mut faults = Vec::new();
            while !stopped.load(SeqCst) {
                let format = ["--insecure", "--output", "/dev/null", "--write-out", "%{http_code}"];
                let output = tools::curl(&[&format[..], &["--resolve", &resolve, &url]].concat());
                if output.stdout != b"307" {
                    faults.push(format!("{output:?}"));
                }
                counted.fetch_add(1, SeqCst);
            }
            faults
        });
        Self { stop, asked, thread }
    }

    /// Waits until it has asked so often.
    #[track_caller]
    fn wait_for(&self, count: usize) {
        eventually("the visitor asks", secs(30), || (self.asked.load(SeqCst) >= count).then_some(()));
    }

    /// What went wrong.
    fn end(self) -> Vec<String> {
        self.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

#[test]
fn a_certificate_is_ordered_by_http_01_and_served_without_a_reload() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    let server = kept.start(&pebble, r#"names = [["one.example", "two.example"], "three.example"]"#);
    let leaf = wait_for_certificate(&server, "one.example");
    assert_eq!(served(&server, "two.example"), Some(leaf));
    wait_for_certificate(&server, "three.example");
    assert_eq!(served(&server, "four.example"), None);
    // The whole chain, as a client of this authority checks it.
    let root = kept.0.path().join("root.pem");
    fs::write(&root, pebble.root()).unwrap();
    let port = server.address("secure").rsplit(':').next().unwrap().to_owned();
    let resolve = format!("two.example:{port}:127.0.0.1");
    let url = format!("https://two.example:{port}/");
    let status = tools::curl_text(&[
        "--cacert",
        root.to_str().unwrap(),
        "--resolve",
        &resolve,
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
        &url,
    ]);
    assert_eq!(status, "307");
    // Once the order is over, its path is a path like any other.
    let answer = server.client("web").get("/.well-known/acme-challenge/x", &[("Host", "one.example")]);
    assert_eq!(answer.status, 308);
    for file in [kept.account(), kept.bundle("one.example"), kept.bundle("three.example")] {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    // The authority is asked once more, for the time of the next order.
    eventually("both orders are over", secs(20), || {
        let is_over = |name| {
            let order = order(&server, name);
            order["state"] == "waiting" && order["failures"] == 0 && order["next_order_reason"] == "suggested"
        };
        (is_over("one.example") && is_over("three.example")).then_some(())
    });
    assert!(server.metrics().contains("penstock_acme_issued_total 2"));
    eventually("nothing is degraded", secs(10), || {
        (server.ctl_json(&["status"])["degraded"] == json!([])).then_some(())
    });
}

#[test]
fn tls_alpn_01_is_answered_for_the_authority_alone_also_when_it_refuses_nonces() {
    let setup = PebbleSetup { refused_nonces: 15, ..PebbleSetup::default() };
    let (pebble, kept) = (Pebble::start(setup), Kept::new());
    let section = "challenge = \"tls-alpn-01\"\nnames = [[\"one.example\", \"two.example\"]]";
    let server = kept.start(&pebble, section);
    let before = s_client(&server, &["-servername", "one.example"]);
    assert!(before.contains("unrecognized name") || before.contains("BEGIN CERTIFICATE"), "{before}");
    wait_for_certificate(&server, "two.example");
    assert!(pebble.secure.connections.load(SeqCst) >= 2);
    assert_eq!(pebble.web.connections.load(SeqCst), 0);
    // A client that offers that protocol once the order is over gets no handshake at all.
    let after = s_client(&server, &["-servername", "one.example", "-alpn", "acme-tls/1"]);
    assert!(after.contains("no application protocol"), "{after}");
    // And no other client is harmed by its name among others.
    let among = s_client(&server, &["-servername", "one.example", "-alpn", "acme-tls/1,http/1.1"]);
    assert!(among.contains("ALPN protocol: http/1.1"), "{among}");
}

#[test]
fn a_certificate_is_renewed_in_time_without_a_reload_or_a_failed_request() {
    let (pebble, kept) = (Pebble::start(PebbleSetup { validity: 10, ..PebbleSetup::default() }), Kept::new());
    let server = kept.start(&pebble, ONE);
    let first = wait_for_certificate(&server, "one.example");
    let visitor = Visitor::start(&server, "one.example");
    visitor.wait_for(3);
    eventually("another certificate", secs(30), || {
        served(&server, "one.example").filter(|leaf| *leaf != first)
    });
    visitor.wait_for(visitor.asked.load(SeqCst) + 3);
    let faults = visitor.end();
    assert!(faults.is_empty(), "{faults:#?}");
    // One that fails is tried again later, so these need not be as many as have begun.
    assert!(server.stderr.count("renewed: one.example") > 0);
}

#[test]
fn after_a_restart_what_is_kept_is_used_until_the_authority_suggests_otherwise() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    let server = kept.start(&pebble, ONE);
    let first = wait_for_certificate(&server, "one.example");
    eventually("a suggestion", secs(10), || {
        (order(&server, "one.example")["next_order_reason"] == "suggested").then_some(())
    });
    let (accounts, orders) = (pebble.asked("/sign-me-up"), pebble.orders());
    assert!(accounts == 1 && orders == 1, "{accounts} {orders}: {:#?}", pebble.log().tail(50));
    stop(server);

    let server = kept.start(&pebble, ONE);
    assert_eq!(served(&server, "one.example"), Some(first.clone()));
    eventually("a suggestion", secs(10), || {
        (order(&server, "one.example")["next_order_reason"] == "suggested").then_some(())
    });
    stop(server);

    // A window that is over: the authority is about to revoke.
    let window = json!({ "start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z" });
    let pem = fs::read_to_string(kept.bundle("one.example")).unwrap();
    let certificate = &pem[pem.find("-----BEGIN CERTIFICATE").unwrap()..];
    pebble.suggest(certificate, &json!({ "suggestedWindow": window }).to_string());
    let server = kept.start(&pebble, ONE);
    eventually("another certificate", secs(20), || {
        served(&server, "one.example").filter(|leaf| *leaf != first)
    });
    let (accounts, orders) = (pebble.asked("/sign-me-up"), pebble.orders());
    assert!(accounts == 1 && orders == 2, "{accounts} {orders}: {:#?}", pebble.log().tail(50));
}

#[test]
fn an_authority_that_is_away_at_the_start_delays_only_the_certificate() {
    let (mut pebble, kept) = (Pebble::prepare(PebbleSetup::default()), Kept::new());
    let server = kept.start(&pebble, ONE);
    let failed = wait_for_failure(&server, "one.example", "cannot be reached");
    assert_eq!(failed["state"], "failed");
    assert!(s_client(&server, &["-servername", "one.example"]).contains("unrecognized name"));
    assert_eq!(server.client("web").get("/", &[("Host", "one.example")]).status, 308);
    let degraded = server.ctl_json(&["status"])["degraded"].to_string();
    assert!(
        degraded.contains("acme.test.one.example")
            && degraded.contains("there is no certificate for these names yet"),
        "{degraded}"
    );
    assert!(
        server
            .metrics()
            .contains("penstock_acme_failures_in_a_row{acme=\"test\",certificate=\"one.example\"}")
    );
    pebble.run();
    wait_for_certificate(&server, "one.example");
    eventually("all is well", secs(10), || {
        (server.ctl_json(&["status"])["degraded"] == json!([])).then_some(())
    });
}

#[test]
fn a_name_that_the_authority_cannot_reach_is_said_and_not_tried_again_at_once() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    let config = config(&kept.state(), &pebble.directory, &pebble.ca, ONE);
    let server = Server::start(&config);
    let failed = wait_for_failure(&server, "one.example", "does not see that one.example is ours by http-01");
    assert_eq!(failed["failures"], 1);
    let text = String::from_utf8(server.ctl(&["certs"]).stdout).unwrap();
    assert!(text.contains("! one.example: failed: 1 failure, next try at "), "{text}");
    stop(server);
    // The wait outlives the process: who restarts in a circle must not use up what the authority allows.
    let orders = pebble.asked("/order-plz");
    let server = Server::start(&config);
    let kept_reason =
        wait_for_failure(&server, "one.example", "does not see that one.example is ours by http-01");
    assert_eq!(kept_reason["failures"], 1);
    assert_eq!(pebble.asked("/order-plz"), orders);
}

#[test]
fn a_damaged_account_is_said_left_alone_and_never_replaced() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    let server = kept.start(&pebble, ONE);
    let leaf = wait_for_certificate(&server, "one.example");
    stop(server);
    let account = kept.account();
    let whole = fs::read_to_string(&account).unwrap();
    let broken_key = whole.replace("\"key_pkcs8\": \"", "\"key_pkcs8\": \"AAAA");
    assert_ne!(broken_key, whole);
    for text in ["", "{\"contacts\": [", &whole[..whole.len() / 2], &broken_key] {
        fs::write(&account, text).unwrap();
        let server = kept.start(&pebble, "names = [\"one.example\", \"two.example\"]");
        let failed = wait_for_failure(&server, "two.example", "is damaged");
        assert!(failed["reason"].as_str().unwrap().contains(account.to_str().unwrap()), "{failed:#}");
        assert_eq!(fs::read_to_string(&account).unwrap(), text);
        // What is there is served all the same.
        assert_eq!(served(&server, "one.example"), Some(leaf.clone()));
        stop(server);
        fs::remove_file(kept.section().join("two.example.json")).unwrap();
    }
    assert_eq!(pebble.asked("/sign-me-up"), 1);
}

#[test]
fn without_a_place_to_keep_it_nothing_is_ordered() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    fs::create_dir_all(kept.state()).unwrap();
    fs::write(kept.state().join("acme"), "a file where a directory should be").unwrap();
    let server = kept.start(&pebble, ONE);
    wait_for_failure(&server, "one.example", "cannot be written");
    assert_eq!((pebble.asked("/sign-me-up"), pebble.asked("/order-plz")), (0, 0));
}

#[test]
fn an_account_is_bound_to_one_that_the_authority_knows() {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let setup = PebbleSetup {
        external_account: Some(("kid-1".to_owned(), key.to_owned())),
        ..PebbleSetup::default()
    };
    let (pebble, kept) = (Pebble::start(setup), Kept::new());
    let file = kept.0.path().join("key");
    fs::write(&file, format!("{key}\n")).unwrap();
    let external =
        format!("{ONE}\nexternal-account = {{ id = \"kid-1\", key-file = \"{}\" }}", file.display());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
    let exposed = Kept::new();
    let server = exposed.start(&pebble, &external);
    wait_for_failure(&server, "one.example", "other users can use the secret in it (mode 0604)");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let server = kept.start(&pebble, &external);
    wait_for_certificate(&server, "one.example");
    let without = Kept::new();
    let server = without.start(&pebble, ONE);
    wait_for_failure(&server, "one.example", "it wants external-account");
}

#[test]
fn a_directory_of_certificates_and_an_authority_stand_side_by_side() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    let certs = kept.0.path().join("certs");
    fs::create_dir(&certs).unwrap();
    authority(&certs);
    fs::rename(certs.join("server.pem"), certs.join("server.crt")).unwrap();
    fs::set_permissions(certs.join("server.key"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(certs.join("ca.pem")).unwrap();
    let config = config(&kept.state(), &pebble.directory, &pebble.ca, ONE);
    let both = format!("tls = {{ acme = \"test\", certificates = \"{}\" }}", certs.display());
    let server = Server::start(&config.replace("tls = { acme = \"test\" }", &both));
    pebble.web.lead_to(Some(server.address("web")));
    wait_for_certificate(&server, "one.example");
    assert!(served(&server, "localhost").is_some());
    let all = server.ctl_json(&["certs"]);
    let directories: Vec<&str> =
        all.as_array().unwrap().iter().map(|it| it["directory"].as_str().unwrap()).collect();
    assert_eq!(directories.len(), 2, "{all:#}");
    assert_eq!(directories[0], certs.to_str().unwrap());
}

#[test]
fn an_authority_that_speaks_nonsense_or_not_at_all_stops_no_other() {
    let (pebble, kept) = (Pebble::start(PebbleSetup::default()), Kept::new());
    let dir = kept.0.path().join("tls");
    fs::create_dir(&dir).unwrap();
    let ca = authority(&dir);
    let page = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: 20\r\n\r\n<h1>Maintenance</h1>";
    let garbage = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"new\": 1";
    let endless = format!("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n{}", "x".repeat(3_000_000));
    let answers =
        [("page", Some(page)), ("garbage", Some(garbage)), ("endless", Some(&endless)), ("mute", None)];
    let mut text = config(&kept.state(), &pebble.directory, &pebble.ca, ONE);
    for (name, answer) in answers {
        let address = scripted(&dir, answer.map(ToOwned::to_owned));
        text.push_str(&format!(
            "[listener.{name}]\nbind = \"127.0.0.1:0\"\npool = \"app\"\ntls = {{ acme = \"{name}\" }}\n\
             [acme.{name}]\ndirectory = \"https://localhost:{address}/dir\"\nca = \"{}\"\nterms-agreed = true\n\
             names = [\"{name}.example\"]\n",
            ca.display()
        ));
    }
    text.push_str("[pool.app]\nbackends = [\"127.0.0.1:9\"]\n");
    let server = Server::start(&text);
    pebble.web.lead_to(Some(server.address("web")));
    wait_for_certificate(&server, "one.example");
    let reasons = [
        ("page", "answered 503 with text/html (\"<h1>Maintenance</h1>\")"),
        ("garbage", "its answer is not what ACME (RFC 8555) says"),
        ("endless", "length limit exceeded"),
    ];
    for (name, words) in reasons {
        let certificate = format!("{name}.example");
        eventually(&format!("{words:?}: {:#}", server.ctl_json(&["certs"])), secs(20), || {
            let all = server.ctl_json(&["certs"]);
            let orders = all.as_array()?.iter().flat_map(|it| it["orders"].as_array().unwrap());
            let order = orders.into_iter().find(|it| it["certificate"] == certificate.as_str())?;
            order["reason"].as_str()?.contains(words).then_some(())
        });
    }
    // The mute one is still waited for, and holds up no end.
    stop(server);
}

/// An HTTPS server on `localhost` that says the same to every client, or nothing. Gives its port.
fn scripted(dir: &Path, answer: Option<String>) -> u16 {
    let chain = vec![CertificateDer::from_pem_file(dir.join("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut waiting = Vec::new();
        for client in listener.incoming().flatten() {
            let Some(answer) = &answer else {
                waiting.push(client);
                continue;
            };
            let (config, answer) = (config.clone(), answer.clone());
            std::thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, client);
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
                let _ = stream.flush();
                let _ = stream.read(&mut [0; 4096]);
            });
        }
    });
    port
}

#[test]
fn a_check_of_the_configuration_orders_nothing_and_needs_no_certificate() {
    let (pebble, kept) = (Pebble::prepare(PebbleSetup::default()), Kept::new());
    let file = kept.0.path().join("penstock.toml");
    let text = config(&kept.state(), &pebble.directory, &pebble.ca, ONE).replace("@DIR@", "/tmp");
    fs::write(&file, text).unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(!kept.state().exists());
}
