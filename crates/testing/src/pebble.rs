//! A real ACME server: Pebble, with a name server that resolves every name to this machine.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::peers::Process;
use crate::pki::{Pki, Time};
use crate::server::Lines;
use crate::{eventually, port, secs, tools};

pub struct PebbleSetup {
    /// Validity of its certificates, in seconds.
    pub validity: u64,
    /// Percentage of valid nonces that it refuses.
    pub refused_nonces: u8,
    /// Key ID and HMAC key that it requires of new accounts.
    pub external_account: Option<(String, String)>,
    /// Name server that it asks, instead of one that resolves every name to this machine.
    pub name_server: Option<SocketAddr>,
}

impl Default for PebbleSetup {
    fn default() -> Self {
        Self { validity: 7_776_000, refused_nonces: 0, external_account: None, name_server: None }
    }
}

/// A running Pebble. Its validation requests to ports 80 and 443 go to `web` and `secure`.
pub struct Pebble {
    pub directory: String,
    /// File with the CA of its HTTPS certificate.
    pub ca: PathBuf,
    /// Relay of its requests to port 80.
    pub web: Relay,
    /// Relay of its requests to port 443.
    pub secure: Relay,
    management: String,
    port: u16,
    server: Option<Process>,
    _names: Process,
    names_port: u16,
    setup: PebbleSetup,
    dir: TempDir,
}

impl Pebble {
    /// Starts Pebble, and waits until it answers.
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
        let (port, management) = (port::free(), port::free());
        Self {
            directory: format!("https://localhost:{port}/dir"),
            ca,
            web: Relay::start(),
            secure: Relay::start(),
            management: format!("https://localhost:{management}"),
            port,
            server: None,
            _names: names,
            names_port,
            setup,
            dir,
        }
    }

    /// Starts a prepared Pebble, without the state of an earlier run.
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
        let own = SocketAddr::from(([127, 0, 0, 1], self.names_port));
        let names = self.setup.name_server.unwrap_or(own);
        let mut command = Command::new(tools::built("pebble"));
        command
            .arg("-config")
            .arg(at("config.json"))
            .args(["-dnsserver", &names.to_string()])
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

    /// Ends Pebble and closes its listeners.
    pub fn stop(&mut self) {
        self.server = None;
    }

    pub fn log(&self) -> Lines {
        self.server.as_ref().expect("Pebble runs").stdout.clone()
    }

    /// Sets the renewal information of a certificate (RFC 9773); `answer` is sent literally.
    #[track_caller]
    pub fn suggest(&self, certificate: &str, answer: &str) {
        let body = json!({ "Certificate": certificate, "ARIResponse": answer }).to_string();
        let url = format!("{}/set-renewal-info/", self.management);
        let ca = self.ca.to_str().unwrap();
        tools::curl_text(&["--fail", "--cacert", ca, "--data-binary", &body, &url]);
    }

    /// Root of its certificates, as PEM. Each run has a new root.
    #[track_caller]
    pub fn root(&self) -> String {
        let url = format!("{}/roots/0", self.management);
        tools::curl_text(&["--fail", "--cacert", self.ca.to_str().unwrap(), &url])
    }

    /// Number of requests whose path contains `path`.
    pub fn asked(&self, path: &str) -> usize {
        self.log().count(&format!(" {path}"))
    }

    /// Number of orders that it accepted. It may refuse one that names the certificate it replaces, and the client then
    /// asks again without that name: Pebble 2.10 does not find a certificate whose serial number needs a leading zero
    /// byte, one in 256.
    pub fn orders(&self) -> usize {
        self.log().count("Added order ")
    }

    fn get(&self, path: &str) -> Option<String> {
        let url = format!("https://localhost:{}{path}", self.port);
        let output = tools::curl(&["--fail", "--cacert", self.ca.to_str().unwrap(), &url]);
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Starts a name server that resolves every name to 127.0.0.1.
fn name_server() -> (Process, u16) {
    let port = port::free();
    let mut command = Command::new(tools::built("pebble-challtestsrv"));
    command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
    command.args(["-dnsserver", &format!("127.0.0.1:{port}"), "-management", "127.0.0.1:0"]);
    let process = Process::start(&mut command);
    eventually("pebble-challtestsrv answers", secs(20), || answers_names(port).then_some(()));
    (process, port)
}

/// Whether the name server answers for `a.example`.
fn answers_names(port: u16) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_millis(50))).unwrap();
    let query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";
    let sent = socket.send_to(query, ("127.0.0.1", port)).is_ok();
    sent && socket.recv(&mut [0; 512]).is_ok()
}

/// Makes a certificate for `localhost` in `server.pem` and `server.key`. Returns the file with its CA.
pub fn authority(dir: &Path) -> PathBuf {
    let pki = Pki::new(dir);
    let pair = pki.issue("server", &["localhost", "127.0.0.1"], Time::Now);
    fs::rename(pair.certificate, dir.join("server.pem")).unwrap();
    pki.authority()
}

/// A port that forwards connections to an address. Without an address it closes them at once.
pub struct Relay {
    pub address: SocketAddr,
    target: Arc<Mutex<Option<String>>>,
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

    /// Sets the address for new connections.
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
