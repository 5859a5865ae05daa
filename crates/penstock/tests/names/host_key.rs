//! A new host key goes live only after its SSHFP record is everywhere: OpenSSH, which knows the host by the DNS alone, never
//! refuses it on the way.

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use testing::server::run_to_end;
use testing::sshd::{Sshd, keygen, program};
use testing::tools::{Root, root};
use testing::{eventually, millis, secs};

use crate::domain::{Domain, Home, Settings};
use crate::push::push;

/// A host that is enrolled, with its record.
struct Host {
    sshd: Sshd,
    domain: Domain,
    home: Home,
}

const NAME: &str = "web1.example.test";

impl Host {
    fn start() -> Self {
        let sshd = Sshd::start();
        let records = format!("web1 A {}\n", sshd.address);
        let domain = Domain::with(&Settings { records: &records, servers: 2, ttl: 2, ..Settings::default() });
        let home = Home::new();
        home.said(&["host", "add", NAME, "--key", &sshd.host_key()]);
        home.said(&push(&domain, &["--host", NAME], &["--ttl", "2"]));
        fs::write(home.file("known_hosts"), "").unwrap();
        Self { sshd, domain, home }
    }

    /// Logs in with OpenSSH, which believes the DNS and nothing else.
    fn ssh(&self) -> Output {
        let known = format!("UserKnownHostsFile={}", self.home.file("known_hosts"));
        let (port, key) = (self.sshd.port.to_string(), self.sshd.client_key.display().to_string());
        let options = [
            &known,
            "VerifyHostKeyDNS=yes",
            "StrictHostKeyChecking=yes",
            "UpdateHostKeys=no",
            "GlobalKnownHostsFile=/dev/null",
            "BatchMode=yes",
        ];
        let mut words = vec!["ssh", "-F", "none", "-p", &port, "-i", &key, "-l", &self.sshd.user];
        words.extend(options.into_iter().flat_map(|option| ["-o", option]));
        words.extend([NAME, "echo in"]);
        let mut command = self.domain.resolving(&words);
        self.home.settle(&mut command);
        run_to_end(&mut command, secs(60))
    }

    /// Makes a key and rolls to it.
    fn roll(&self, kind: &str, more: &[&str]) -> Output {
        let next = self.home.file(&format!("next-{kind}"));
        let _ = fs::remove_file(&next);
        keygen(next.as_ref(), &["-t", kind]);
        let into = self.sshd.directory.path().join("host").display().to_string();
        let service = format!("{}:{}", self.sshd.address, self.sshd.port);
        let reload = format!("kill -HUP {}", self.sshd.pid());
        let resolver = self.domain.resolver.to_string();
        let words = ["dns", "roll", "--host", NAME, "--next", &next, "--into", &into, "--run", &reload];
        let place = ["--service", &service, "--dns-server", &resolver];
        let words = words
            .iter()
            .chain(&place)
            .chain(more)
            .map(|word| (*word).to_owned())
            .chain(self.domain.primary());
        self.home.penstock(&words.collect::<Vec<_>>())
    }

    fn records(&self) -> Vec<String> {
        let said = self.domain.dig(0, "web1.example.test.", "SSHFP");
        said.lines().map(str::to_owned).collect()
    }
}

/// The record of a public key, as `ssh-keygen -r` writes it.
fn record(public: &str) -> String {
    let output = Command::new(program("ssh-keygen")).args(["-r", "x", "-f", public]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.split(' ').nth(4) == Some("2")).unwrap().to_owned();
    line.split_once("SSHFP ").unwrap().1.to_owned()
}

#[test]
fn openssh_never_refuses_a_host_whose_key_goes_through_the_gate() {
    if root("mounts a resolv.conf") == Root::LeftOut {
        return;
    }
    let host = Host::start();
    eventually("the resolver has the record", secs(20), || host.ssh().status.success().then_some(()));
    let (stop, outcomes) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let is_in = |outcomes: &[Output]| outcomes.iter().filter(|output| output.status.success()).count();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            while !stop.load(Relaxed) {
                let outcome = host.ssh();
                outcomes.lock().unwrap().push(outcome);
            }
        });
        let rolled = host.roll("ecdsa", &["--timeout", "60"]);
        // Until no cache has the record of the old key, and on a slow machine until more clients have come.
        let told = Command::new(program("sleep")).arg("4").status();
        let end = Instant::now() + secs(90);
        while is_in(&outcomes.lock().unwrap()) <= 10 && Instant::now() < end {
            std::thread::sleep(millis(50));
        }
        stop.store(true, Relaxed);
        clients.join().unwrap();
        let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
        assert!(told.unwrap().success() && rolled.status.success(), "{rolled:?}");
        let said = String::from_utf8_lossy(&rolled.stderr).into_owned();
        assert!(
            said.contains("the record is everywhere; 4") && said.contains("no longer has SHA256:"),
            "{said}"
        );
        // A client that comes while sshd opens its socket again is refused by the kernel, and believes nothing wrong.
        let refused =
            |output: &&Output| String::from_utf8_lossy(&output.stderr).contains("verification failed");
        let failures: Vec<&Output> = outcomes.iter().filter(refused).collect();
        let good = is_in(&outcomes);
        println!("{} of {} log-ins through the gate fail; {good} are in", failures.len(), outcomes.len());
        assert!(failures.is_empty() && good > 10, "{failures:?}");
    });
    let public = format!("{}/host.pub", host.sshd.directory.path().display());
    assert_eq!(host.records().len(), 1, "the old one went: {:?}", host.records());
    let (shown, wanted) = (host.records().concat().replace(' ', ""), record(&public).replace(' ', ""));
    assert_eq!(shown.to_lowercase(), wanted.to_lowercase());
    assert!(host.ssh().status.success());
    let shown = host.home.said(&["host", "show", NAME]);
    assert!(shown.contains("retired") && shown.contains("ecdsa"), "{shown}");
}

#[test]
fn second_key_of_one_type_is_refused_because_openssh_would_refuse_the_host() {
    if root("mounts a resolv.conf") == Root::LeftOut {
        return;
    }
    let host = Host::start();
    eventually("the resolver has the record", secs(20), || host.ssh().status.success().then_some(()));
    let rolled = host.roll("ed25519", &["--timeout", "10"]);
    let said = String::from_utf8_lossy(&rolled.stderr).into_owned();
    assert_eq!(rolled.status.code(), Some(1), "{said}");
    assert!(said.contains("web1.example.test has an SSHFP record of another ed25519 key"), "{said}");
    assert!(said.contains("roll to a key of another type first (ssh-keygen -t ecdsa), then back"), "{said}");
    assert_eq!(host.records().len(), 1, "nothing is changed");

    // What OpenSSH does when both records are there, though one of them is that of the key it is shown.
    let public = host.home.file("next-ed25519.pub");
    let other = Home::new();
    other.said(&["host", "add", NAME, "--key", &public]);
    other.said(&push(&host.domain, &["--host", NAME], &["--keep-others"]));
    assert_eq!(host.records().len(), 2);
    eventually("ssh refuses it", secs(20), || {
        let output = host.ssh();
        String::from_utf8_lossy(&output.stderr).contains("Host key verification failed").then_some(())
    });
}

#[test]
fn host_key_waits_while_a_server_lacks_its_record_and_the_one_that_leaves_is_named() {
    let mut host = Host::start();
    let before = fs::read(host.sshd.directory.path().join("host")).unwrap();
    let servers = host.domain.servers.clone();
    host.domain.stop_server(1);
    let [primary, secondary] = [servers[0].to_string(), servers[1].to_string()];
    let rolled = host.roll("ecdsa", &["--timeout", "2", "--secondary", &primary, "--secondary", &secondary]);
    let said = String::from_utf8_lossy(&rolled.stderr).into_owned();
    assert_eq!(rolled.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("{secondary} is silent")), "{said}");
    assert!(said.contains("the old host key stays in use, and both records are left"), "{said}");
    assert_eq!(fs::read(host.sshd.directory.path().join("host")).unwrap(), before);

    // Now two types have records: which leaves is not known.
    let rolled = host.roll("rsa", &["--timeout", "2", "--secondary", &primary]);
    let said = String::from_utf8_lossy(&rolled.stderr).into_owned();
    assert_eq!(rolled.status.code(), Some(2), "{said}");
    assert!(said.contains("records of several other keys (ecdsa, ed25519): which leaves?"), "{said}");
    // What is not there cannot leave.
    let rolled = host.roll("ecdsa", &["--replaces", "rsa", "--secondary", &primary]);
    assert!(!rolled.status.success());
    assert_eq!(host.records().len(), 2, "nothing is changed");
}

/// Leads the first connection to port 22 of the host to its sshd, and closes every other one.
fn first_connection_only(sshd: &Sshd) {
    let listener = TcpListener::bind((sshd.address, 22)).unwrap();
    let to = (sshd.address, sshd.port);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        for (mut from, mut into) in [
            (client.try_clone().unwrap(), server.try_clone().unwrap()),
            (server.try_clone().unwrap(), client.try_clone().unwrap()),
        ] {
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut into);
                let _ = into.shutdown(Shutdown::Both);
            });
        }
        for other in listener.incoming() {
            drop(other);
        }
    });
}

#[test]
fn host_whose_keys_cannot_all_be_seen_is_told() {
    let host = Host::start();
    first_connection_only(&host.sshd);
    let words = ["dns", "check", "--json", "--host", NAME].map(str::to_owned);
    let words: Vec<String> = words.into_iter().chain(host.domain.path()).collect();
    let text = String::from_utf8(host.home.penstock(&words).stdout).unwrap();
    let place = format!("{}:22", host.sshd.address);
    assert!(text.contains(&place) && text.contains("the service cannot be asked"), "{text}");
}

#[test]
fn host_is_asked_at_the_port_that_its_identity_has() {
    let host = Host::start();
    let place = format!("{}:{}", host.sshd.address, host.sshd.port);
    let check = || {
        let words = ["dns", "check", "--json", "--host", NAME].map(str::to_owned);
        let words: Vec<String> = words.into_iter().chain(host.domain.path()).collect();
        String::from_utf8(host.home.penstock(&words).stdout).unwrap()
    };
    assert!(!check().contains(&place), "nothing has told the port yet");
    host.home.said(&["host", "move", NAME, &place]);
    eventually("the host shows the key of its record", secs(20), || {
        let text = check();
        (!text.contains("\"problem\"")).then_some(())
    });
    // Another key there is a finding: nothing was asked elsewhere.
    let other = host.sshd.directory.path().join("host");
    fs::remove_file(&other).unwrap();
    keygen(&other, &["-t", "ed25519"]);
    let reload = Command::new(program("kill")).args(["-HUP", &host.sshd.pid().to_string()]).status();
    assert!(reload.unwrap().success());
    eventually("the other key is told", secs(20), || {
        let text = check();
        (text.contains("\"service\"") && text.contains(&place)).then_some(())
    });
}
