//! `penstock tls-grade` against real servers, good and bad ones, and what other programs say of our listener.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use testing::peers::{self, Process};
use testing::server::{Setup, penstock};
use testing::{Scripted, Server, secs, tools};

/// An authority with an intermediate, and what it issues. All files are PEM.
struct Authority {
    dir: TempDir,
}

const EC: &str = "ec:prime256v1";
const RSA: &str = "rsa:2048";

impl Authority {
    fn new() -> Self {
        let authority = Self { dir: tempfile::tempdir().unwrap() };
        let sign = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign";
        authority.key("root", EC);
        authority.openssl(&[
            "req",
            "-x509",
            "-key",
            "root.key",
            "-subj",
            "/CN=root",
            "-days",
            "3650",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
            "-out",
            "root.crt",
        ]);
        authority.key("middle", EC);
        authority.sign("middle", "root", "365", sign, "sha256");
        authority
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// `stem.key` and `stem.crt` for a name.
    fn issue(&self, stem: &str, name: &str, kind: &str) -> &Self {
        self.issue_with(stem, name, kind, "90", "sha256")
    }

    fn issue_with(&self, stem: &str, name: &str, kind: &str, days: &str, hash: &str) -> &Self {
        self.key(stem, kind);
        let extensions = format!(
            "subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n\
             keyUsage=critical,digitalSignature,keyEncipherment\nauthorityKeyIdentifier=keyid"
        );
        self.sign(stem, "middle", days, &extensions, hash);
        self
    }

    fn key(&self, stem: &str, kind: &str) {
        let (algorithm, size) = kind.split_once(':').unwrap();
        let (algorithm, option) = match algorithm {
            "ec" => ("EC", format!("ec_paramgen_curve:{size}")),
            _ => ("RSA", format!("rsa_keygen_bits:{size}")),
        };
        let key = format!("{stem}.key");
        self.openssl(&["genpkey", "-algorithm", algorithm, "-pkeyopt", &option, "-out", &key]);
        fs::set_permissions(self.path(&key), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn sign(&self, stem: &str, issuer: &str, days: &str, extensions: &str, hash: &str) {
        let file = |ending: &str| format!("{stem}.{ending}");
        fs::write(self.path(&file("ext")), format!("{extensions}\nsubjectKeyIdentifier=hash\n")).unwrap();
        let subject = format!("/CN={stem}");
        self.openssl(&["req", "-new", "-key", &file("key"), "-subj", &subject, "-out", &file("csr")]);
        let (certificate, key) = (format!("{issuer}.crt"), format!("{issuer}.key"));
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &file("csr"),
            "-CA",
            &certificate,
            "-CAkey",
            &key,
            "-CAcreateserial",
            "-days",
            days,
            &format!("-{hash}"),
            "-extfile",
            &file("ext"),
            "-out",
            &file("crt"),
        ]);
    }

    /// One file of several certificates.
    fn join(&self, name: &str, stems: &[&str]) {
        let parts = stems.iter().map(|stem| fs::read(self.path(&format!("{stem}.crt"))).unwrap());
        fs::write(self.path(name), parts.collect::<Vec<_>>().concat()).unwrap();
    }

    fn openssl(&self, arguments: &[&str]) {
        let mut command = Command::new(tools::program("openssl"));
        let output =
            testing::server::run_to_end(command.args(arguments).current_dir(self.dir.path()), secs(60));
        assert!(
            output.status.success(),
            "openssl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// A directory with a pair of each kind for a.example, as people lay it out.
    fn directory(&self) -> PathBuf {
        let certs = self.path("certs");
        fs::create_dir(&certs).unwrap();
        for (stem, kind) in [("ecdsa", EC), ("rsa", RSA)] {
            self.issue(stem, "a.example", kind);
            self.join(&format!("certs/{stem}.crt"), &[stem, "middle"]);
            fs::copy(self.path(&format!("{stem}.key")), certs.join(format!("{stem}.key"))).unwrap();
        }
        certs
    }

    /// A running listener with this directory, and more lines for it and its `tls`.
    fn serve(&self, certs: &Path, listener: &str, tls: &str) -> (Server, Scripted) {
        let backend = Scripted::answering("served");
        let config = format!(
            "[listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n{listener}\n\
             tls = {{ certificates = \"{}\"{tls} }}\n[pool.app]\nbackends = [\"{}\"]\n",
            certs.display(),
            backend.address
        );
        // As on a machine that trusts this authority: only then HSTS is sent without being asked for.
        (Setup::new(&config).env("SSL_CERT_FILE", &self.text("root.crt")).start(), backend)
    }

    /// Grades with this authority trusted.
    fn grade(&self, address: &str, name: &str, more: &[&str]) -> Graded {
        let root = self.text("root.crt");
        let mut arguments = vec!["tls-grade", address, "--name", name, "--ca", &root, "--json"];
        arguments.extend(more);
        Graded::of(penstock(&arguments))
    }
}

/// What a run said.
struct Graded {
    code: Option<i32>,
    report: Value,
    output: Output,
}

impl Graded {
    #[track_caller]
    fn of(output: Output) -> Self {
        let json: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        Self { code: output.status.code(), report: json["reports"][0].clone(), output }
    }

    fn grade(&self) -> &str {
        self.report["grade"].as_str().unwrap_or("none")
    }

    fn codes(&self) -> Vec<&str> {
        let findings = self.report["findings"].as_array().unwrap();
        findings.iter().map(|finding| finding["code"].as_str().unwrap()).collect()
    }

    #[track_caller]
    fn assert_has(&self, grade: &str, code: &str) {
        assert_eq!(self.grade(), grade, "{:#}", self.report);
        assert!(self.codes().contains(&code), "{code} is not in {:?}", self.codes());
    }
}

/// `openssl s_server` that answers requests.
fn s_server(authority: &Authority, arguments: &[&str]) -> Process {
    let mut command = Command::new(tools::program("openssl"));
    command
        .args(["s_server", "-accept", "127.0.0.1:0", "-www"])
        .args(arguments)
        .current_dir(authority.dir.path());
    let mut process = Process::start(&mut command);
    let line = process.stdout.wait_for("ACCEPT ", secs(20));
    process.address = line.trim_start_matches("ACCEPT ").trim().to_owned();
    process
}

/// A TCP port of ours that leads to a Unix socket: for servers that cannot choose a free port.
fn port_for(socket: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, Ok(server)) = (client.unwrap(), UnixStream::connect(&socket)) else { continue };
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            let (mut from, mut to) = (server, client);
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn an_untouched_listener_with_a_directory_of_pairs_gets_an_a_plus() {
    let authority = Authority::new();
    let certs = authority.directory();
    let (server, _backend) = authority.serve(&certs, "", "");
    let graded = authority.grade(&server.address("secure"), "a.example", &["--fail-below", "A+"]);
    assert_eq!((graded.grade(), graded.code), ("A+", Some(0)), "{:#}", graded.report);
    // 100 x 30 % + 90 x 30 % + 100 x 40 %: the guide takes off for keys below RSA 4096.
    assert_eq!(graded.report["score"]["total"], 97.0);
    assert_eq!(graded.codes(), ["key-points"]);
    let seen = &graded.report["observed"];
    let versions: Vec<_> = seen["versions"].as_array().unwrap().iter().map(|seen| &seen["version"]).collect();
    assert_eq!(versions, ["TLS 1.3", "TLS 1.2"]);
    assert_eq!(seen["groups"][0], "X25519MLKEM768");
    assert_eq!(seen["chains"].as_array().unwrap().len(), 2, "an ECDSA and an RSA certificate");
    for feature in
        ["post_quantum", "resumption_tls13", "resumption_tls12", "secure_renegotiation", "fallback_scsv"]
    {
        assert_eq!(seen[feature], "yes", "{feature}");
    }
    assert_eq!(seen["alpn"], serde_json::json!(["h2", "http/1.1"]));
}

#[test]
fn the_listeners_of_a_configuration_are_asked_without_naming_them() {
    let authority = Authority::new();
    let certs = authority.directory();
    let (server, backend) = authority.serve(&certs, "", "");
    let file = authority.path("here.toml");
    let config = |extra: &str| {
        format!(
            "[listener.secure]\nbind = \"{}\"\nprotocol = \"http\"\npool = \"app\"\n{extra}\n\
             tls = {{ certificates = \"{}\" }}\n[pool.app]\nbackends = [\"{}\"]\n",
            server.address("secure"),
            certs.display(),
            backend.address
        )
    };
    fs::write(&file, config("")).unwrap();
    let (file_text, root) = (file.to_str().unwrap(), authority.text("root.crt"));
    let output = penstock(&["tls-grade", "--config", file_text, "--ca", &root]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    // One name for each certificate: the twins have the same.
    assert_eq!(text.matches("a.example at 127.0.0.1:").count(), 1, "{text}");
    assert!(text.contains(": A+\n") && text.contains("Score 97 of 100"), "{text}");
    // What cannot be asked is said, and is no success.
    fs::write(&file, config("proxy-protocol-from = [\"127.0.0.0/8\"]")).unwrap();
    let output = penstock(&["tls-grade", "--config", file_text, "--ca", &root]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("PROXY header"), "{output:?}");
}

#[test]
fn aes_128_costs_four_points_and_hsts_the_plus() {
    let authority = Authority::new();
    let certs = authority.directory();
    let (server, _backend) = authority.serve(&certs, "", ", policy = \"compatible\"");
    let graded = authority.grade(&server.address("secure"), "a.example", &[]);
    assert_eq!((graded.grade(), &graded.report["score"]["total"]), ("A+", &Value::from(93.0)));
    assert_eq!(graded.codes(), ["key-points", "cipher-points"]);
    let (server, _backend) = authority.serve(&certs, "hsts = \"off\"", "");
    let graded = authority.grade(&server.address("secure"), "a.example", &["--fail-below", "A+"]);
    graded.assert_has("A", "no-hsts");
    assert_eq!(graded.code, Some(1));
    let (server, _backend) = authority.serve(&certs, "", ", policy = \"modern\"");
    assert_eq!(authority.grade(&server.address("secure"), "a.example", &[]).grade(), "A+");
}

#[test]
fn sslyze_and_sslscan_agree() {
    let authority = Authority::new();
    let certs = authority.directory();
    let (server, _backend) = authority.serve(&certs, "", "");
    let address = server.address("secure");
    let root = authority.text("root.crt");
    let sslyze = tools::python_script("sslyze", "sslyze");
    let arguments =
        ["--mozilla_config", "intermediate", "--certinfo_ca_file", &root, "--sni", "a.example", &address];
    let output = tools::run_to_end_of(&sslyze, &arguments, secs(120));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("OK - Compliant."), "{text}");

    // What is asked of it; the rest takes ten seconds.
    let only_versions_and_ciphers = [
        "--no-heartbleed",
        "--no-renegotiation",
        "--no-compression",
        "--no-groups",
        "--no-check-certificate",
    ];
    let mut arguments = vec!["--no-colour", "--sni-name=a.example"];
    arguments.extend(only_versions_and_ciphers);
    arguments.push(&address);
    let output = tools::run("sslscan", &arguments, secs(60));
    let text = String::from_utf8_lossy(&output.stdout);
    let enabled: Vec<&str> =
        text.lines().filter_map(|line| line.strip_suffix("enabled").map(str::trim)).collect();
    assert_eq!(enabled, ["TLSv1.2", "TLSv1.3"], "{text}");
    assert!(text.contains("Server supports TLS Fallback SCSV"), "{text}");
}

#[test]
fn faults_of_certificates_are_found_in_a_real_server() {
    let authority = Authority::new();
    authority.issue("good", "b.example", RSA);
    authority.join("right.pem", &["middle"]);
    authority.join("wrong.pem", &["root", "middle"]);
    authority.issue_with("old", "b.example", EC, "-1", "sha256");
    authority.issue("short", "b.example", "rsa:1024");
    authority.issue_with("sha1", "b.example", EC, "90", "sha1");
    let grade = |stem: &str, chain: &str, name: &str, more: &[&str]| {
        let (certificate, key) = (format!("{stem}.crt"), format!("{stem}.key"));
        let mut arguments = vec!["-cert", &certificate, "-key", &key];
        if !chain.is_empty() {
            arguments.extend(["-cert_chain", chain]);
        }
        arguments.extend(more);
        let server = s_server(&authority, &arguments);
        authority.grade(&server.address, name, &[])
    };
    grade("good", "right.pem", "b.example", &[]).assert_has("A", "no-hsts");
    grade("good", "wrong.pem", "b.example", &[]).assert_has("A", "chain-order");
    grade("good", "right.pem", "c.example", &[]).assert_has("M", "name-mismatch");
    grade("good", "", "b.example", &[]).assert_has("T", "unknown-issuer");
    grade("old", "right.pem", "b.example", &[]).assert_has("T", "expired");
    grade("short", "right.pem", "b.example", &["-cipher", "DEFAULT@SECLEVEL=0"]).assert_has("B", "weak-key");
    grade("sha1", "right.pem", "b.example", &["-cipher", "DEFAULT@SECLEVEL=0"]).assert_has("T", "sha1");
    let graded = grade("good", "right.pem", "b.example", &["-no_tls1_3"]);
    graded.assert_has("A-", "no-tls13");
    assert_eq!(graded.report["grade_if_trusted"], "A-");
}

#[test]
fn weak_versions_and_ciphers_are_found_in_nginx_and_gnutls() {
    let authority = Authority::new();
    authority.issue("good", "b.example", RSA);
    authority.join("chain.pem", &["good", "middle"]);
    let dir = tempfile::tempdir().unwrap();
    let nginx = |protocols: &str, ciphers: &str| {
        let socket = dir.path().join("tls.sock");
        let tls = format!(
            "listen unix:{} ssl; ssl_certificate {}; ssl_certificate_key {}; ssl_protocols {protocols};\n\
             ssl_ciphers \"{ciphers}\"; ssl_prefer_server_ciphers on;\n\
             add_header Strict-Transport-Security max-age=31536000 always;",
            socket.display(),
            authority.text("chain.pem"),
            authority.text("good.key")
        );
        (peers::nginx(dir.path(), &tls), port_for(socket))
    };
    let (server, address) = nginx("TLSv1.2 TLSv1.3", "ECDHE+AESGCM:ECDHE+CHACHA20");
    let graded = authority.grade(&address, "b.example", &[]);
    assert_eq!(
        (graded.grade(), &graded.report["score"]["total"]),
        ("A+", &Value::from(93.0)),
        "{:?}",
        graded.output
    );
    drop(server);
    let (server, address) = nginx("TLSv1 TLSv1.1 TLSv1.2", "ALL:eNULL:@SECLEVEL=0");
    let graded = authority.grade(&address, "b.example", &["--fail-below", "B"]);
    for code in ["no-encryption", "anonymous", "old-version", "no-tls13", "static-keys", "cbc"] {
        graded.assert_has("F", code);
    }
    let versions = graded.report["observed"]["versions"].as_array().unwrap();
    assert_eq!((versions.len(), &versions[0]["order"]), (3, &Value::from("server")));
    assert_eq!(graded.code, Some(1));
    drop(server);
    let (_server, address) = nginx("TLSv1.2", "AES256-SHA256:@SECLEVEL=0");
    let graded = authority.grade(&address, "b.example", &[]);
    graded.assert_has("B", "no-forward-secrecy");
    graded.assert_has("B", "no-aead");

    // OpenSSL is built without RC4 and triple DES; GnuTLS still has them.
    let port = testing::port::free().to_string();
    let mut command = Command::new(tools::program("gnutls-serv"));
    command.args(["--quiet", "--http", "--port", &port, "--x509certfile", &authority.text("chain.pem")]);
    command.args(["--x509keyfile", &authority.text("good.key"), "--priority"]);
    command.arg("NORMAL:+VERS-TLS1.2:+ARCFOUR-128:+3DES-CBC:+RSA:+SHA1:+MD5");
    let server = Process::start(&mut command);
    server.stderr.wait_for("done", secs(20));
    let graded = authority.grade(&format!("127.0.0.1:{port}"), "b.example", &[]);
    graded.assert_has("C", "rc4-modern");
    graded.assert_has("C", "small-blocks");
}

#[test]
fn any_answer_ends_in_time_and_says_why_there_is_no_grade() {
    let hello = |talk: &mut testing::BackendConnection| {
        let _ = talk.client.fill(Instant::now() + secs(5));
    };
    let endless = |talk: &mut testing::BackendConnection| {
        while talk.send([0x55; 4096]) {}
    };
    let records = |talk: &mut testing::BackendConnection| {
        let empty = [22, 3, 3, 0, 0].repeat(800);
        while talk.send(&empty) {}
    };
    // A record of 16 kB, a byte at a time: its end is far beyond any time limit.
    let drip = |talk: &mut testing::BackendConnection| {
        let mut sent = talk.send([22, 3, 3, 0x40, 0]);
        while sent {
            thread::sleep(testing::millis(20));
            sent = talk.send([2]);
        }
    };
    let cases: [(&str, Scripted, &str); 7] = [
        ("drips", Scripted::start(drip), "does not answer"),
        ("closes", Scripted::start(|_| ()), "refuses every handshake"),
        ("knows only HTTP", Scripted::answering("x"), "refuses every handshake"),
        (
            "says what it likes",
            Scripted::start(move |talk| {
                hello(talk);
                talk.send(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            }),
            "does not speak TLS",
        ),
        ("never ends", Scripted::start(endless), "does not speak TLS"),
        ("sends nothing in records for ever", Scripted::start(records), "does not speak TLS"),
        (
            "hangs",
            Scripted::start(|talk| {
                talk.rest();
            }),
            "does not answer",
        ),
    ];
    for (what, server, said) in &cases {
        // The limit is for the whole run: only those that say nothing have to reach it.
        let limit = if *said == "does not answer" { "2" } else { "20" };
        let output = penstock(&["tls-grade", &server.address, "--timeout", limit]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{what}: {output:?}");
        assert!(text.contains(said) && !text.contains("panicked"), "{what}: {text}");
    }
    let closed = format!("127.0.0.1:{}", testing::port::free());
    let output = penstock(&["tls-grade", &closed]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("nothing answers"), "{output:?}");
}

#[test]
fn a_server_that_falls_silent_half_way_is_not_graded() {
    let authority = Authority::new();
    authority.issue("good", "b.example", RSA);
    let real = s_server(&authority, &["-cert", "good.crt", "-key", "good.key"]);
    let address = real.address.clone();
    let server = Scripted::start(move |talk| {
        if talk.number >= 6 {
            talk.rest();
            return;
        }
        let Ok(mut server) = std::net::TcpStream::connect(&address) else { return };
        if talk.client.fill(Instant::now() + secs(5)).is_ok() {
            let _ = io::Write::write_all(&mut server, talk.client.unused());
            let mut answer = [0; 8192];
            let length = io::Read::read(&mut server, &mut answer).unwrap_or(0);
            talk.send(&answer[..length]);
        }
    });
    let graded = authority.grade(&server.address, "b.example", &["--timeout", "15"]);
    assert_eq!((graded.grade(), graded.code), ("none", Some(2)), "{:?}", graded.output);
    assert!(!graded.report["observed"]["incomplete"].as_array().unwrap().is_empty());
}

#[test]
fn names_that_are_not_served_and_wrong_arguments_are_told_apart() {
    let authority = Authority::new();
    let certs = authority.directory();
    let (server, _backend) = authority.serve(&certs, "", "");
    let address = server.address("secure");
    let output = penstock(&["tls-grade", &address, "--name", "other.example"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && text.contains("no certificate for other.example"),
        "{output:?}"
    );
    for wrong in [&["a b"][..], &["x:0"], &["x", "--fail-below", "Q"], &["x", "--ca", "/nowhere"], &[]] {
        let output = penstock(&[&["tls-grade"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}
