//! Session resumption with real clients: over workers, reloads, several nodes and changes of keys; and no early data.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use testing::pki::{Time, self_signed};
use testing::{Scripted, Server, secs, tools};

/// Certificates for a.example and b.example, and a directory for ticket keys.
struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(files.path("certs")).unwrap();
        fs::create_dir(files.path("keys")).unwrap();
        for name in ["a.example", "b.example"] {
            self_signed(&files.path("certs"), name, &[name], Time::Now);
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn certificate(&self, name: &str) -> PathBuf {
        self.path("certs").join(format!("{name}.crt"))
    }

    /// A node with these certificates and, unless it is empty, this `ticket-keys`.
    fn node(&self, backend: &Scripted, keys: &str) -> Server {
        let keys = if keys.is_empty() { String::new() } else { format!(", ticket-keys = \"{keys}\"") };
        Server::start(&format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[process]\nworkers = 3\n\
             [listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             tls = {{ certificates = \"{}\"{keys} }}\n[pool.app]\nbackends = [\"{}\"]\n",
            self.path("certs").display(),
            backend.address
        ))
    }

    /// A new ticket key under a name in the directory of keys.
    fn new_key(&self, name: &str) {
        let file = self.path("keys").join(name);
        let output = tools::run("openssl", &["rand", "-out", file.to_str().unwrap(), "48"], secs(20));
        assert!(output.status.success(), "{output:?}");
        private(&file);
    }
}

fn private(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn port(server: &Server) -> String {
    server.address("secure").rsplit(':').next().unwrap().to_owned()
}

/// Connects again and again with the session of the connection before, to each port in turn. Every line that comes in
/// makes so many connections; what goes out is how many of them were resumed.
const PYTHON: &str = r#"
import socket, ssl, sys
version, name, authority, *ports = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, version)
session, turn = None, 0
def connect():
    global session, turn
    turn += 1
    with socket.create_connection(("127.0.0.1", int(ports[turn % len(ports)]))) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(plain, server_hostname=name, session=session) as tls:
            tls.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % name.encode())
            while tls.recv(4096):
                pass
            session = tls.session
            return tls.session_reused
connect()
print("ready", flush=True)
for line in sys.stdin:
    print("resumed", sum(connect() for _ in range(int(line))), flush=True)
"#;

/// Python's ssl module as a client that stays.
struct Python {
    child: std::process::Child,
    output: testing::server::Lines,
    rounds: usize,
}

impl Python {
    fn start(files: &Files, version: &str, servers: &[&Server]) -> Self {
        let mut command = std::process::Command::new(tools::program("python3"));
        let authority = files.certificate("a.example");
        command.args(["-u", "-c", PYTHON, version, "a.example"]).arg(authority);
        command.args(servers.iter().map(|server| port(server)));
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = testing::server::Lines::follow(child.stdout.take().unwrap());
        output.wait_for("ready", secs(20));
        Self { child, output, rounds: 0 }
    }

    /// So many connections: how many were resumed.
    #[track_caller]
    fn connect(&mut self, count: usize) -> usize {
        use std::io::Write;
        writeln!(self.child.stdin.as_ref().unwrap(), "{count}").unwrap();
        self.rounds += 1;
        let rounds = self.rounds;
        let line = testing::eventually("the client is done", secs(60), || {
            let lines = self.output.all();
            lines.into_iter().filter(|line| line.starts_with("resumed ")).nth(rounds - 1)
        });
        line.trim_start_matches("resumed ").parse().unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sessions_are_resumed_over_workers_and_reloads_without_any_configuration() {
    let files = Files::new();
    let backend = Scripted::answering("served");
    let server = files.node(&backend, "");
    for version in ["TLSv1_2", "TLSv1_3"] {
        let mut client = Python::start(&files, version, &[&server]);
        let mut resumed = client.connect(100);
        server.ctl(&["reload"]);
        resumed += client.connect(100);
        assert!(resumed >= 198, "{version}: {resumed} of 200");
    }
}

#[test]
fn nodes_that_share_keys_resume_each_others_sessions_also_while_a_key_is_replaced() {
    let files = Files::new();
    let backend = Scripted::answering("served");
    files.new_key("2026-11-19");
    let keys = files.path("keys");
    let (one, two) =
        (files.node(&backend, keys.to_str().unwrap()), files.node(&backend, keys.to_str().unwrap()));
    let reload = || [&one, &two].map(|server| server.ctl(&["reload"]));
    for version in ["TLSv1_2", "TLSv1_3"] {
        let mut client = Python::start(&files, version, &[&one, &two]);
        let mut resumed = client.connect(60);
        // First every node can open what it makes, then it makes them: the way that the reference page tells.
        files.new_key("0000-next");
        reload();
        resumed += client.connect(60);
        fs::rename(keys.join("0000-next"), keys.join(format!("2026-11-20-{version}"))).unwrap();
        reload();
        resumed += client.connect(60);
        assert!(resumed >= 179, "{version}: {resumed} of 180");
        assert_eq!(one.ctl_json(&["status"])["degraded"].to_string(), "[]");
    }
    // Without common keys nothing of the other is resumed, and every connection is served.
    let (one, two) = (files.node(&backend, ""), files.node(&backend, ""));
    let mut client = Python::start(&files, "TLSv1_3", &[&one, &two]);
    assert_eq!(client.connect(20), 0);
}

#[test]
fn a_single_file_of_keys_is_read_again_and_a_bad_one_leaves_the_key_from_before() {
    let files = Files::new();
    let backend = Scripted::answering("served");
    files.new_key("key");
    let file = files.path("keys").join("key");
    let server = files.node(&backend, file.to_str().unwrap());
    let mut client = Python::start(&files, "TLSv1_3", &[&server]);
    files.new_key("key");
    server.ctl(&["reload"]);
    assert_eq!(client.connect(20), 20, "what the key before made is opened");
    fs::write(&file, "too short").unwrap();
    // No operator reloads: the server notices by itself.
    testing::eventually("a bad key is said", secs(20), || {
        let status = server.ctl_json(&["status"])["degraded"].to_string();
        (status.contains("holds 9 bytes") && status.contains("the earlier keys stay in use")).then_some(())
    });
    assert_eq!(client.connect(20), 20);
    files.new_key("key");
    testing::eventually("a good key is read", secs(20), || {
        (server.ctl_json(&["status"])["degraded"] == serde_json::json!([])).then_some(())
    });
    assert_eq!(client.connect(20), 20);
}

#[test]
fn openssl_gnutls_and_curl_resume() {
    let files = Files::new();
    let backend = Scripted::answering("served");
    let server = files.node(&backend, "");
    let (address, port) = (server.address("secure"), port(&server));
    let reconnect = ["s_client", "-connect", &address, "-servername", "a.example", "-tls1_2", "-reconnect"];
    let text = |output: std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text(tools::run("openssl", &reconnect, secs(20)));
    assert_eq!((said.matches("New, TLS").count(), said.matches("Reused, TLS").count()), (1, 5), "{said}");

    let authority = files.certificate("a.example");
    let authority = authority.to_str().unwrap();
    for priority in ["NORMAL:-VERS-ALL:+VERS-TLS1.2", "NORMAL:-VERS-ALL:+VERS-TLS1.3"] {
        let arguments = [
            "--resume",
            "--waitresumption",
            "--priority",
            priority,
            "--sni-hostname",
            "a.example",
            "--verify-hostname",
            "a.example",
            "--x509cafile",
            authority,
            "--port",
            &port,
            "127.0.0.1",
        ];
        let said = text(tools::run("gnutls-cli", &arguments, secs(20)));
        assert!(said.contains("This is a resumed session"), "{priority}: {said}");
    }

    let resolve = format!("a.example:{port}:127.0.0.1");
    let url = format!("https://a.example:{port}/");
    let mut arguments = vec![
        "--verbose",
        "--http1.1",
        "--header",
        "Connection: close",
        "--resolve",
        &resolve,
        "--cacert",
        authority,
    ];
    arguments.extend([url.as_str(); 5]);
    let said = String::from_utf8_lossy(&tools::curl(&arguments).stderr).into_owned();
    assert_eq!(said.to_ascii_lowercase().matches("re-using session id").count(), 4, "{said}");
}

#[test]
fn early_data_is_never_taken() {
    let files = Files::new();
    let backend = Scripted::answering("served");
    let server = files.node(&backend, "");
    let address = server.address("secure");
    let (session, early) = (files.path("session"), files.path("early"));
    let (session, early) = (session.to_str().unwrap(), early.to_str().unwrap());
    fs::write(early, "GET /early HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let client = |more: &str| {
        let script = format!(
            "printf 'GET / HTTP/1.1\\r\\nHost: a.example\\r\\nConnection: close\\r\\n\\r\\n' | \
             openssl s_client -connect {address} -servername a.example -ign_eof {more}"
        );
        String::from_utf8_lossy(&tools::run("sh", &["-c", &script], secs(20)).stdout).into_owned()
    };
    let first = client(&format!("-sess_out {session}"));
    assert!(first.contains("Max Early Data: 0"), "{first}");
    let second = client(&format!("-sess_in {session} -early_data {early}"));
    assert!(second.contains("Reused, TLSv1.3"), "{second}");
    assert!(
        second.contains("Early data was not sent") || second.contains("Early data was rejected"),
        "{second}"
    );
    assert_eq!(server.stdout.count("target=/early"), 0);
}

#[test]
fn check_finds_a_bad_key_of_tickets() {
    let files = Files::new();
    let (key, config) = (files.path("keys").join("key"), files.path("penstock.toml"));
    fs::write(&key, [1; 48]).unwrap();
    private(&key);
    fs::write(
        &config,
        format!(
            "[listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             tls = {{ certificates = \"{}\", ticket-keys = \"{}\" }}\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n",
            files.path("certs").display(),
            key.display()
        ),
    )
    .unwrap();
    let output = testing::server::penstock(&["check", "--strict", config.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("all of its bytes are the same"), "{output:?}");
}
