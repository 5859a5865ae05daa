//! A real ACME server: Pebble, with a name server that leads every name to this machine.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::peers::Process;
use super::server::Lines;
use super::{eventually, secs, tools};

/// How Pebble is started.
pub struct PebbleSetup {
    /// Seconds that its certificates are valid.
    pub validity: u64,
    /// Percent of good nonces that it refuses.
    pub refused_nonces: u8,
    /// Key ID and HMAC key of accounts that it insists on.
    pub external_account: Option<(String, String)>,
}

impl Default for PebbleSetup {
    fn default() -> Self {
        Self { validity: 7_776_000, refused_nonces: 0, external_account: None }
    }
}

/// A running Pebble. What it asks of port 80 and 443 arrives where `web` and `secure` lead.
pub struct Pebble {
    /// URL of its directory.
    pub directory: String,
    /// File with who signed its HTTPS certificate.
    pub ca: PathBuf,
    /// What it asks of port 80.
    pub web: Relay,
    /// What it asks of port 443.
    pub secure: Relay,
    management: String,
    port: u16,
    server: Option<Process>,
    names: Process,
    names_port: u16,
    setup: PebbleSetup,
    dir: TempDir,
}

impl Pebble {
    /// Starts it, and waits until it answers.
    #[track_caller]
    pub fn start(setup: PebbleSetup) -> Self {
        let mut pebble = Self::prepare(setup);
        pebble.run();
        pebble
    }

    /// Chooses its addresses without starting it.
    #[track_caller]
    pub fn prepare(setup: PebbleSetup) -> Self {
        let dir = tempfile::Builder::new().prefix("pebble").tempdir().unwrap();
        let ca = authority(dir.path());
        let (names, names_port) = name_server();
        let (port, management) = (free_port(), free_port());
        Self {
            directory: format!("https://localhost:{port}/dir"),
            ca,
            web: Relay::start(),
            secure: Relay::start(),
            management: format!("https://localhost:{management}"),
            port,
            server: None,
            names,
            names_port,
            setup,
            dir,
        }
    }

    /// Starts what was prepared. Everything that an earlier run knew is forgotten.
    #[track_caller]
    pub fn run(&mut self) {
        let management = self.management.rsplit(':').next().unwrap().parse::<u16>().unwrap();
        let at = |name: &str| self.dir.path().join(name);
        let keys = self.setup.external_account.iter().map(|(id, key)| (id.clone(), json!(key)));
        let keys: serde_json::Map<String, Value> = keys.collect();
        let config = json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{}", self.port),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": at("server.pem"),
            "privateKey": at("server.key"),
            "httpPort": self.web.address.port(),
            "tlsPort": self.secure.address.port(),
            "externalAccountBindingRequired": self.setup.external_account.is_some(),
            "externalAccountMACKeys": keys,
            "retryAfter": { "authz": 1, "order": 1 },
            "keyAlgorithm": "ecdsa",
            "profiles": { "default": { "description": "usual", "validityPeriod": self.setup.validity } },
        }});
        fs::write(at("config.json"), config.to_string()).unwrap();
        let mut command = Command::new(tools::built("pebble"));
        command
            .arg("-config")
            .arg(at("config.json"))
            .args(["-dnsserver", &format!("127.0.0.1:{}", self.names_port)])
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0")
            .env("PEBBLE_WFE_NONCEREJECT", self.setup.refused_nonces.to_string());
        let process = Process::start(&mut command);
        let output = process.stdout.clone();
        self.server = Some(process);
        eventually("Pebble answers", secs(15), || {
            self.get("/dir").or_else(|| {
                let taken = output.count("address already in use") > 0;
                assert!(!taken, "another program took Pebble's port: {:#?}", output.tail(5));
                None
            })
        });
    }

    /// Ends it; nothing listens there any more.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// What it wrote.
    pub fn log(&self) -> Lines {
        self.server.as_ref().expect("Pebble runs").stdout.clone()
    }

    /// Sets what it suggests for a certificate (RFC 9773), literally.
    #[track_caller]
    pub fn suggest(&self, certificate: &str, answer: &str) {
        let body = json!({ "Certificate": certificate, "ARIResponse": answer }).to_string();
        let url = format!("{}/set-renewal-info/", self.management);
        let ca = self.ca.to_str().unwrap();
        tools::curl_text(&["--fail", "--cacert", ca, "--data-binary", &body, &url]);
    }

    /// The root that its certificates lead to, as PEM. It is a new one with each run.
    #[track_caller]
    pub fn root(&self) -> String {
        let url = format!("{}/roots/0", self.management);
        tools::curl_text(&["--fail", "--cacert", self.ca.to_str().unwrap(), &url])
    }

    /// How often something was asked for, by a part of its path.
    pub fn asked(&self, path: &str) -> usize {
        self.log().count(&format!(" {path}"))
    }

    fn get(&self, path: &str) -> Option<String> {
        let url = format!("https://localhost:{}{path}", self.port);
        let output = tools::curl(&["--fail", "--cacert", self.ca.to_str().unwrap(), &url]);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A port that was free just now. Programs that cannot say where they listen need one.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Leads every name to 127.0.0.1.
fn name_server() -> (Process, u16) {
    for _ in 0..5 {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        drop(udp);
        let mut command = Command::new(tools::built("pebble-challtestsrv"));
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
        command.args(["-dnsserver", &format!("127.0.0.1:{port}"), "-management", "127.0.0.1:0"]);
        let process = Process::start(&mut command);
        let mut answered = false;
        for _ in 0..400 {
            if process.stdout.count("in use") + process.stderr.count("in use") > 0 {
                break;
            }
            answered = answers_names(port);
            if answered {
                break;
            }
        }
        if answered {
            return (process, port);
        }
    }
    panic!("pebble-challtestsrv does not answer");
}

/// Asks for an address of `a.example`.
fn answers_names(port: u16) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";
    let sent = socket.send_to(query, ("127.0.0.1", port)).is_ok();
    sent && socket.recv(&mut [0; 512]).is_ok()
}

/// A certificate for `localhost` in `server.pem` and `server.key`, and who signed it in the file that is returned.
pub fn authority(dir: &Path) -> PathBuf {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority of a test");
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let server_key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let server = server.signed_by(&server_key, &issuer).unwrap();
    fs::write(dir.join("server.pem"), server.pem()).unwrap();
    fs::write(dir.join("server.key"), server_key.serialize_pem()).unwrap();
    let ca = dir.join("ca.pem");
    fs::write(&ca, root.pem()).unwrap();
    ca
}

/// A port that leads elsewhere, or nowhere: then connections are closed at once.
pub struct Relay {
    /// Where it listens.
    pub address: SocketAddr,
    target: Arc<Mutex<Option<String>>>,
    /// Connections so far.
    pub connections: Arc<AtomicUsize>,
}

impl Relay {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            target: Arc::default(),
            connections: Arc::default(),
        };
        let (target, connections) = (relay.target.clone(), relay.connections.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                connections.fetch_add(1, SeqCst);
                let target = target.lock().unwrap().clone();
                if let (Ok(client), Some(target)) = (client, target)
                    && let Ok(server) = TcpStream::connect(target)
                {
                    copy(client.try_clone().unwrap(), server.try_clone().unwrap());
                    copy(server, client);
                }
            }
        });
        relay
    }

    /// Where connections go from now on.
    pub fn lead_to(&self, address: Option<String>) {
        *self.target.lock().unwrap() = address;
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.flush();
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.read(&mut [0; 1]);
    });
}
