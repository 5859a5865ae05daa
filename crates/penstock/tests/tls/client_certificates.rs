//! Certificates of clients: who is let in, the alert for all others, what backends are told, and that no session of
//! before goes around it. Checked with curl, openssl and gnutls-cli.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
    SerialNumber, date_time_ymd,
};
use testing::pki::{Authority, Pair, dns, server_pair};
use testing::server::run_to_end;
use testing::{Recorder, Server, eventually, peers, secs, tools};

/// A front door for `a.example` with its certificate, and a directory for the rest.
struct Bench {
    dir: tempfile::TempDir,
    recorder: Recorder,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let certs = dir.path().join("certs");
        fs::create_dir(&certs).unwrap();
        server_pair(&certs.join("a.pem"), &["a.example"]);
        Self { dir, recorder: Recorder::start() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let (path, new) = (self.path(name), self.path("new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, &path).unwrap();
        path
    }

    fn listener(&self, name: &str, clients: &str) -> String {
        let certs = self.path("certs");
        let clients = if clients.is_empty() {
            String::new()
        } else {
            format!(", client-certificates = {{ {clients} }}")
        };
        format!(
            "[listener.{name}]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             tls = {{ certificates = \"{}\", default = \"a\"{clients} }}\n",
            certs.display()
        )
    }

    fn start(&self, listeners: &str) -> Server {
        Server::start(&format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
             [access-log]\ntarget = \"@DIR@/access.log\"\n{listeners}\n[pool.app]\nbackends = [\"{}\"]\n",
            self.recorder.address()
        ))
    }

    /// A listener that requires certificates of `ca.pem`.
    fn requiring(&self, more: &str) -> String {
        self.listener("secure", &format!("ca = \"{}\"{more}", self.path("ca.pem").display()))
    }
}

/// What curl gets from a listener: the status, or its complaint.
fn fetch(server: &Server, listener: &str, more: &[&str]) -> Result<String, String> {
    let address = server.address(listener);
    let port = address.rsplit(':').next().unwrap();
    let resolve = format!("a.example:{port}:127.0.0.1");
    let url = format!("https://a.example:{port}/");
    let mut arguments = vec!["--resolve", &resolve, "--insecure", "-o", "/dev/null", "-w", "%{http_code}"];
    arguments.extend(more);
    arguments.push(&url);
    let output = tools::curl(&arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// One request with `openssl s_client`.
fn s_client(server: &Server, listener: &str, more: &[&str]) -> Output {
    let address = server.address(listener);
    let request = server.dir.path().join("request");
    fs::write(&request, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
    let mut command = Command::new(tools::program("openssl"));
    command.args(["s_client", "-connect", &address, "-servername", "a.example", "-ign_eof"]).args(more);
    run_to_end(command.stdin(Stdio::from(File::open(&request).unwrap())), secs(30))
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const VERSIONS: [&str; 2] = ["-tls1_2", "-tls1_3"];

#[test]
fn backends_are_told_who_was_verified_and_never_what_a_client_says_of_itself() {
    let bench = Bench::new();
    let authority = Authority::new("clients");
    bench.write("ca.pem", &authority.pem());
    let alice = authority.issue(bench.dir.path(), "alice", |params| {
        params.distinguished_name.push(DnType::OrganizationName, "J\u{fc}rgen, \"Sons\"");
        params.subject_alt_names = vec![
            dns("alice.example"),
            SanType::URI(Ia5String::try_from("spiffe://example.com/alice").unwrap()),
            SanType::IpAddress("192.0.2.7".parse().unwrap()),
        ];
    });
    let all = r#", headers = ["certificate", "chain", "subject", "names", "serial", "fingerprint"]"#;
    let ca = bench.path("ca.pem");
    let request = format!("mode = \"request\", ca = \"{}\"", ca.display());
    let plain = "[listener.plain]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n";
    let server = bench.start(&(bench.requiring(all) + &bench.listener("asking", &request) + plain));
    let spoofed = [
        "-H",
        "Client-Cert: :AAAA:",
        "-H",
        "client_cert: :AAAA:",
        "-H",
        "Client-Cert-Chain: :AAAA:",
        "-H",
        "X-Client-Cert-Subject: CN=root",
        "-H",
        "x_client_cert_subject: CN=root",
        "-H",
        "X-Client-Cert-More: 1",
    ];
    for version in [["--http1.1", "--tlsv1.2"], ["--http2", "--tlsv1.3"]] {
        for (listener, certificate) in [("secure", true), ("asking", true), ("asking", false)] {
            let shown = alice.for_curl();
            let more = [&version[..], &spoofed, if certificate { &shown } else { &[] }].concat();
            assert_eq!(fetch(&server, listener, &more).as_deref(), Ok("200"), "{listener} {version:?}");
            let seen = bench.recorder.last();
            let names = seen.headers.iter().map(|(name, _)| name.to_ascii_lowercase());
            let told: Vec<_> = names.filter(|name| name.replace('_', "-").contains("client-cert")).collect();
            if !certificate {
                assert_eq!(told, [""; 0], "{version:?}");
                continue;
            }
            let base64 = openssl(&["base64", "-A"], &alice.der);
            assert_eq!(seen.lines("client-cert"), [format!(":{base64}:")]);
            assert_eq!(seen.lines("x-client-cert-subject"), [r#"O=J\C3\BCrgen\, \"Sons\",CN=alice"#]);
            assert_eq!(
                seen.lines("x-client-cert-names"),
                [r#""dns:alice.example", "uri:spiffe://example.com/alice", "ip:192.0.2.7""#]
            );
            assert_eq!(seen.lines("x-client-cert-serial"), ["1234"]);
            let fingerprint = openssl(&["dgst", "-sha256", "-r"], &alice.der).to_ascii_uppercase();
            assert!(fingerprint.starts_with(&seen.lines("x-client-cert-fingerprint")[0]), "{fingerprint}");
            assert_eq!(told.len(), 5, "{told:?}");
        }
    }
    let mut client = server.client("plain");
    let answer = client.get("/", &[("Client-Cert", ":AAAA:"), ("X_Client.Cert-Subject", "CN=root")]);
    assert_eq!(answer.status, 200);
    let seen = bench.recorder.last();
    assert!(!format!("{:?}", seen.headers).to_ascii_lowercase().contains("cert"), "{:?}", seen.headers);
}

fn openssl(arguments: &[&str], input: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), input).unwrap();
    let mut command = Command::new(tools::program("openssl"));
    let output =
        run_to_end(command.args(arguments).stdin(Stdio::from(File::open(file.path()).unwrap())), secs(20));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_backend_that_speaks_http2_is_told_as_well() {
    let bench = Bench::new();
    let authority = Authority::new("clients");
    bench.write("ca.pem", &authority.pem());
    let alice = authority.issue(bench.dir.path(), "alice", |_| ());
    let port = testing::port::free();
    let mut command = Command::new(tools::program("nghttpd"));
    command.args(["--no-tls", "--verbose", "-a", "127.0.0.1", "-d"]).arg(bench.dir.path());
    let nghttpd = peers::Process::start(command.arg(port.to_string()));
    eventually("nghttpd listens", secs(10), || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
    let server = Server::start(&format!(
        "{}\n[pool.app]\nbackends = [\"127.0.0.1:{port}\"]\nhttp2 = \"on\"\n",
        bench.requiring("")
    ));
    for version in ["--http1.1", "--http2"] {
        let lie = ["-H", "X-Client-Cert-Subject: CN=mallory", version];
        assert_eq!(fetch(&server, "secure", &[&alice.for_curl()[..], &lie].concat()), Ok("404".to_owned()));
    }
    nghttpd.stdout.wait_for("client-cert: :", secs(5));
    eventually("both requests came", secs(5), || {
        (nghttpd.stdout.count("x-client-cert-subject: CN=alice") == 2).then_some(())
    });
    assert_eq!(nghttpd.stdout.count("mallory"), 0);
}

#[test]
fn who_is_not_let_in_gets_the_alert_that_says_why_and_the_log_and_a_counter_say_it_too() {
    let bench = Bench::new();
    let (authority, stranger) = (Authority::new("clients"), Authority::new("strangers"));
    bench.write("ca.pem", &authority.pem());
    bench.write("clients.crl", &authority.list(&[66], (2099, 1, 1)));
    let dir = bench.dir.path();
    let named =
        |name: &'static str| move |params: &mut CertificateParams| params.subject_alt_names = vec![dns(name)];
    let good = authority.issue(dir, "good", named("x.partner.example"));
    let foreign = stranger.issue(dir, "foreign", named("x.partner.example"));
    let other = authority.issue(dir, "other", named("x.example"));
    let expired = authority.issue(dir, "expired", |params| {
        named("x.partner.example")(params);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let early = authority.issue(dir, "early", |params| {
        named("x.partner.example")(params);
        params.not_before = date_time_ymd(2098, 1, 1);
        params.not_after = date_time_ymd(2099, 1, 1);
    });
    let revoked = authority.issue(dir, "revoked", |params| {
        named("x.partner.example")(params);
        params.serial_number = Some(SerialNumber::from(66u64));
    });
    let server_only = authority.issue(dir, "server", |params| {
        named("x.partner.example")(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let own_authority = authority.issue(dir, "ca", |params| {
        named("x.partner.example")(params);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    });
    let crl = bench.path("clients.crl");
    let more = format!(", crl = \"{}\", names = [\"dns:*.partner.example\"]", crl.display());
    let server = bench.start(&bench.requiring(&more));
    for version in VERSIONS {
        let shown = good.for_openssl();
        let text = said(&s_client(&server, "secure", &[&[version], &shown[..]].concat()));
        assert!(text.contains("HTTP/1.1 200"), "{version}: {text}");
    }
    // RFC 8446 section 6: the numbers of the alerts.
    let refused = [
        (None, 116, "client-certificate-missing"),
        (Some(&foreign), 48, "client-certificate-unknown-ca"),
        (Some(&expired), 45, "client-certificate-expired"),
        (Some(&early), 45, "client-certificate-not-yet-valid"),
        (Some(&revoked), 44, "client-certificate-revoked"),
        (Some(&other), 49, "client-certificate-name"),
        (Some(&server_only), 43, "client-certificate-purpose"),
        (Some(&own_authority), 46, "client-certificate-purpose"),
    ];
    for (at, (identity, alert, word)) in refused.into_iter().enumerate() {
        for version in VERSIONS {
            let shown = identity.map(Pair::for_openssl);
            let more = [&[version][..], shown.as_ref().map_or(&[][..], |shown| &shown[..])].concat();
            let text = said(&s_client(&server, "secure", &more));
            assert!(text.contains(&format!("SSL alert number {alert}")), "{word} {version}: {text}");
            assert!(!text.contains("HTTP/1.1"), "{word} {version}: {text}");
        }
        let log = server.dir.path().join("access.log");
        eventually(word, secs(10), || fs::read_to_string(&log).ok()?.contains(word).then_some(()));
        let lines = fs::read_to_string(&log).unwrap();
        let line = lines.lines().rfind(|line| line.contains(word)).unwrap();
        assert_eq!(line.contains(" refused_certificate=\"CN="), identity.is_some(), "{line}");
        let times = VERSIONS.len() * refused[..=at].iter().filter(|(_, _, other)| *other == word).count();
        // The session ends only after the server has waited for the client to close.
        eventually(&format!("{word}: {times} are counted"), secs(10), || {
            let metrics = server.metrics();
            metrics.lines().find(|line| line.contains(word))?.ends_with(&format!(" {times}")).then_some(())
        });
    }
    assert_eq!(bench.recorder.requests().len(), 2, "no other client came through");
}

#[test]
fn a_session_of_a_listener_that_asks_for_nothing_opens_no_other_and_a_change_of_trust_ends_sessions() {
    let bench = Bench::new();
    let (authority, other) = (Authority::new("clients"), Authority::new("others"));
    bench.write("ca.pem", &authority.pem());
    bench.write("other.pem", &other.pem());
    bench.write("clients.crl", &authority.list(&[], (2099, 1, 1)));
    let crl = format!(", crl = \"{}\"", bench.path("clients.crl").display());
    let elsewhere = format!("ca = \"{}\"", bench.path("other.pem").display());
    let named = format!("ca = \"{}\", names = [\"cn:bob\"]", bench.path("ca.pem").display());
    let asking = format!("mode = \"request\", ca = \"{}\"{crl}", bench.path("ca.pem").display());
    let server = bench.start(
        &(bench.requiring(&crl)
            + &bench.listener("open", "")
            + &bench.listener("elsewhere", &elsewhere)
            + &bench.listener("named", &named)
            + &bench.listener("asking", &asking)),
    );
    let alice = authority.issue(bench.dir.path(), "alice", |_| {});
    let shown = alice.for_openssl();
    let session = bench.path("session");
    let keep = ["-sess_out", session.to_str().unwrap()];
    let resume = ["-sess_in", session.to_str().unwrap()];
    for version in VERSIONS {
        for from in ["open", "asking"] {
            let text = said(&s_client(&server, from, &[&[version], &keep[..]].concat()));
            assert!(text.contains("HTTP/1.1 200"), "{text}");
            let text = said(&s_client(&server, from, &[&[version], &resume[..]].concat()));
            assert!(text.contains("Reused, TLSv1.") && text.contains("HTTP/1.1 200"), "{version}: {text}");
            for to in ["secure", "elsewhere", "named"] {
                let text = said(&s_client(&server, to, &[&[version], &resume[..]].concat()));
                assert!(
                    !text.contains("Reused, TLSv1.") && !text.contains("HTTP/1.1 "),
                    "{from} {to}: {text}"
                );
                assert!(text.contains("SSL alert number 116"), "{from} {to}: {text}");
            }
        }
        let text = said(&s_client(&server, "secure", &[&[version], &keep[..], &shown].concat()));
        assert!(text.contains("HTTP/1.1 200"), "{text}");
        for from in ["elsewhere", "named"] {
            let text = said(&s_client(&server, from, &[&[version], &resume[..]].concat()));
            assert!(text.contains("SSL alert number 116"), "{from}: {text}");
        }
        let text = said(&s_client(&server, "secure", &[&[version], &resume[..]].concat()));
        assert!(text.contains("Reused, TLSv1.") && text.contains("HTTP/1.1 200"), "{version}: {text}");
        assert_eq!(
            bench.recorder.last().lines("x-client-cert-subject"),
            ["CN=alice"],
            "who it is stays known"
        );
    }
    // A session of a client that is revoked meanwhile is not resumed.
    let text = said(&s_client(&server, "secure", &[&keep[..], &shown].concat()));
    assert!(text.contains("HTTP/1.1 200"), "{text}");
    bench.write("clients.crl", &authority.list(&[0x1234], (2099, 1, 1)));
    eventually("the list is in service", secs(10), || {
        said(&s_client(&server, "secure", &shown)).contains("SSL alert number 44").then_some(())
    });
    let text = said(&s_client(&server, "secure", &resume));
    assert!(!text.contains("Reused, TLSv1.") && text.contains("SSL alert number 116"), "{text}");
    let text = said(&s_client(&server, "secure", &[&resume[..], &shown].concat()));
    assert!(!text.contains("Reused, TLSv1.") && text.contains("SSL alert number 44"), "{text}");
}

#[test]
fn files_are_read_again_when_they_change_and_a_broken_one_leaves_what_it_held() {
    let bench = Bench::new();
    let (authority, next) = (Authority::new("clients"), Authority::new("next"));
    bench.write("ca.pem", &authority.pem());
    let server = bench.start(&bench.requiring(""));
    let old = authority.issue(bench.dir.path(), "old", |_| {});
    let new = next.issue(bench.dir.path(), "new", |_| {});
    assert_eq!(fetch(&server, "secure", &old.for_curl()).as_deref(), Ok("200"));
    assert!(fetch(&server, "secure", &new.for_curl()).is_err());
    bench.write("ca.pem", &next.pem());
    eventually("the new CA is in service", secs(10), || fetch(&server, "secure", &new.for_curl()).ok());
    assert!(fetch(&server, "secure", &old.for_curl()).is_err(), "the old one is not");
    for broken in
        ["", "no certificate", &next.pem()[..200], &(next.pem() + "-----BEGIN CERTIFICATE-----\nAAAA\n")]
    {
        bench.write("ca.pem", broken);
        eventually("it is said", secs(10), || {
            let degraded = server.ctl_json(&["status"])["degraded"].to_string();
            (degraded.contains("ca.pem") && degraded.contains("earlier content stays in use")).then_some(())
        });
        assert_eq!(fetch(&server, "secure", &new.for_curl()).as_deref(), Ok("200"));
    }
    fs::remove_file(bench.path("ca.pem")).unwrap();
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(fetch(&server, "secure", &new.for_curl()).as_deref(), Ok("200"));
    bench.write("ca.pem", &(next.pem() + &authority.pem()));
    eventually("both are in service", secs(10), || fetch(&server, "secure", &old.for_curl()).ok());
    eventually("nothing is degraded", secs(10), || {
        (server.ctl_json(&["status"])["degraded"].as_array()?.is_empty()).then_some(())
    });
}

#[test]
fn without_a_usable_ca_or_with_an_old_list_no_client_is_let_in_and_the_reason_is_said() {
    let bench = Bench::new();
    let authority = Authority::new("clients");
    let alice = authority.issue(bench.dir.path(), "alice", |_| {});
    let list = bench.path("clients.crl");
    let server = bench.start(&bench.requiring(&format!(", crl = \"{}\"", list.display())));
    let log = server.dir.path().join("access.log");
    let refused = |word: &str| {
        eventually(word, secs(10), || {
            assert!(fetch(&server, "secure", &alice.for_curl()).is_err());
            fs::read_to_string(&log).ok()?.contains(word).then_some(())
        });
    };
    refused("client-certificate-unknown-ca");
    let degraded = server.ctl_json(&["status"])["degraded"].to_string();
    assert!(degraded.contains("ca.pem") && degraded.contains("clients.crl"), "{degraded}");
    bench.write("ca.pem", &authority.pem());
    refused("client-certificate-crl-missing");
    bench.write("clients.crl", &authority.list(&[], (2025, 1, 1)));
    refused("client-certificate-crl-expired");
    bench.write("clients.crl", &Authority::new("strangers").list(&[], (2099, 1, 1)));
    bench.write("clients.crl", &authority.list(&[], (2099, 1, 1)));
    eventually("a good list lets clients in", secs(10), || fetch(&server, "secure", &alice.for_curl()).ok());
}

/// Many CAs whose certificates were made with one key, and one more at the end that issues for clients.
fn many_authorities(count: usize, last: &Authority) -> String {
    let key = KeyPair::generate().unwrap();
    let mut bundle = String::new();
    for at in 0..count - 1 {
        let mut params = CertificateParams::default();
        let name = format!("An authority with a name as long as those of real ones have, number {at}");
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "Example Trust Services Limited");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        bundle.push_str(&params.self_signed(&key).unwrap().pem());
    }
    bundle + &last.pem()
}

#[test]
fn clients_of_openssl_and_gnutls_finish_their_handshakes_however_many_cas_there_are() {
    let authority = Authority::new("the last of many");
    for count in [3, 650, 5_000] {
        let bench = Bench::new();
        bench.write("ca.pem", &many_authorities(count, &authority));
        let server = bench.start(&bench.requiring(""));
        let alice = authority.issue(bench.dir.path(), "alice", |_| {});
        for (openssl, gnutls) in [("-tls1_2", "VERS-TLS1.2"), ("-tls1_3", "VERS-TLS1.3")] {
            let shown = alice.for_openssl();
            let text = said(&s_client(&server, "secure", &[&[openssl], &shown[..]].concat()));
            assert!(text.contains("HTTP/1.1 200"), "{count} {openssl}: {text}");
            let named = text.contains("Acceptable client certificate CA names");
            assert_eq!(named, count == 3, "a list that is too long is left out: {text}");
            let text = gnutls_cli(&server, &alice, gnutls);
            assert!(text.contains("HTTP/1.1 200"), "{count} {gnutls}: {text}");
        }
        for seen in bench.recorder.requests() {
            assert_eq!(seen.lines("x-client-cert-subject"), ["CN=alice"]);
        }
    }
}

fn gnutls_cli(server: &Server, identity: &Pair, version: &str) -> String {
    let address = server.address("secure");
    let request = server.dir.path().join("request");
    fs::write(&request, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").unwrap();
    let mut command = Command::new(tools::program("gnutls-cli"));
    command.args([
        "--insecure",
        "--sni-hostname",
        "a.example",
        "--port",
        address.rsplit(':').next().unwrap(),
    ]);
    command.arg("--priority").arg(format!("NORMAL:-VERS-ALL:+{version}"));
    command
        .arg("--x509certfile")
        .arg(&identity.certificate)
        .arg("--x509keyfile")
        .arg(&identity.key)
        .arg("127.0.0.1");
    said(&run_to_end(command.stdin(Stdio::from(File::open(&request).unwrap())), secs(30)))
}
