//! A new certificate is used only after its record is everywhere: clients that check by TLSA, with a resolver that remembers
//! records for their TTL, see no failure; without the gate they do.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use testing::pki::server_pair;
use testing::server::run_to_end;
use testing::sshd::program;
use testing::{Server, eventually, secs};

use crate::domain::{Domain, Home, Settings};

/// Clients that look a TLSA record up and then connect, one time after the other.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    outcomes: Arc<Mutex<Vec<Result<(), String>>>>,
}

impl Load {
    fn start(domain: &Domain, port: u16) -> Self {
        let (stop, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let resolver = domain.resolver;
        let client = |_| {
            let (stop, outcomes) = (stop.clone(), outcomes.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    let outcome = verify(&format!("@{resolver}"), port);
                    outcomes.lock().unwrap().push(outcome);
                }
            })
        };
        let clients = (0..3).map(client).collect();
        Self { stop, clients, outcomes }
    }

    fn count(&self) -> usize {
        self.outcomes.lock().unwrap().len()
    }

    /// Ends the clients; the number of their connections, and the failures.
    fn end(self) -> (usize, Vec<String>) {
        self.stop.store(true, Relaxed);
        for client in self.clients {
            client.join().unwrap();
        }
        let outcomes = std::mem::take(&mut *self.outcomes.lock().unwrap());
        (outcomes.len(), outcomes.into_iter().filter_map(Result::err).collect())
    }
}

/// Asks a resolver for the TLSA records and lets OpenSSL verify the service by them.
fn verify(resolver: &str, port: u16) -> Result<(), String> {
    let owner = format!("_{port}._tcp.www.example.test.");
    let mut kdig = Command::new(program("kdig"));
    kdig.args([resolver, "+short", "+time=2", "+retry=1", &owner, "TLSA"]).stdin(Stdio::null());
    let records = String::from_utf8_lossy(&kdig.output().unwrap().stdout).into_owned();
    let place = format!("127.0.0.1:{port}");
    let mut openssl = Command::new(program("openssl"));
    let name = "www.example.test";
    openssl.args(["s_client", "-connect", &place, "-servername", name, "-dane_tlsa_domain", name]);
    for record in records.lines() {
        let words: Vec<&str> = record.split_whitespace().collect();
        openssl.args(["-dane_tlsa_rrdata", &format!("{} {}", words[..3].join(" "), words[3..].concat())]);
    }
    openssl.stdin(Stdio::null());
    let output = run_to_end(&mut openssl, secs(20));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said.contains("Verify return code: 0 (ok)") && !records.is_empty() {
        return Ok(());
    }
    let why = said.lines().find(|line| line.contains("Verify return code")).unwrap_or("no handshake");
    Err(format!("{} with {records:?}", why.trim()))
}

#[test]
fn no_client_fails_when_a_certificate_goes_through_the_gate_and_some_do_without_it() {
    let settings = Settings { servers: 2, ttl: 2, records: "www A 127.0.0.1\n", ..Settings::default() };
    let domain = Domain::with(&settings);
    let home = Home::new();
    let certificates = home.path().join("certificates");
    fs::create_dir(&certificates).unwrap();
    let served = certificates.join("www.pem");
    server_pair(&served, &["www.example.test"]);
    let [first, second, third] = ["first.pem", "second.pem", "third.pem"].map(|name| home.file(name));
    fs::copy(&served, &first).unwrap();
    server_pair(second.as_ref(), &["www.example.test"]);
    server_pair(third.as_ref(), &["www.example.test"]);
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = {{ certificates = \"{}\" }}\n\
         [[listener.web.route]]\nredirect = \"https://elsewhere.example/\"\nstatus = 307\n",
        certificates.display()
    ));
    let address = server.address("web");
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    let number: u16 = port.parse().unwrap();
    let push = |file: &str, more: &[&str]| {
        let words = ["dns", "push", "--next", file, "--port", &port, "--ttl", "2"];
        let words = words.iter().chain(more);
        let words: Vec<String> = words.map(|word| (*word).to_owned()).chain(domain.primary()).collect();
        home.said(&words)
    };
    push(&first, &[]);
    let resolver = domain.resolver.to_string();
    let place = format!("@{resolver}");
    eventually("clients accept it", secs(30), || verify(&place, number).ok());

    let load = Load::start(&domain, number);
    let roll = |file: &str, more: &[&str]| {
        let into = served.display().to_string();
        let words =
            ["dns", "roll", "--next", file, "--into", &into, "--port", &port, "--dns-server", &resolver];
        let words = words.iter().chain(more).map(|word| (*word).to_owned());
        home.penstock(&words.chain(domain.primary()).collect::<Vec<_>>())
    };
    let done = roll(&second, &["--timeout", "60"]);
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("the record is everywhere; 4") && said.contains("is installed"), "{said}");
    let before = load.count();
    // Through the TTL of what was there before.
    eventually("more clients come", secs(60), || (load.count() > before + 60).then_some(()));
    let (count, failures) = load.end();
    assert_eq!(failures, Vec::<String>::new(), "of {count}");
    assert!(count > 100, "{count}");
    assert_eq!(
        domain.dig(0, &format!("_{port}._tcp.www.example.test."), "TLSA").lines().count(),
        1,
        "the old one went"
    );

    // The same without the gate.
    let load = Load::start(&domain, number);
    eventually("clients come", secs(60), || (load.count() > 20).then_some(()));
    push(&third, &[]);
    fs::copy(&third, home.file("certificates/.part")).unwrap();
    fs::rename(home.file("certificates/.part"), &served).unwrap();
    let before = load.count();
    eventually("more clients come", secs(60), || (load.count() > before + 60).then_some(()));
    let (count, failures) = load.end();
    println!("without the gate {} of {count} fail", failures.len());
    assert!(!failures.is_empty(), "of {count}: does the resolver remember nothing?");
}

#[test]
fn certificate_waits_while_a_server_lacks_its_record() {
    let settings = Settings { servers: 2, ttl: 1, records: "www A 127.0.0.1\n", ..Settings::default() };
    let mut domain = Domain::with(&settings);
    let home = Home::new();
    let (next, into) = (home.file("next.pem"), home.file("www.pem"));
    server_pair(next.as_ref(), &["www.example.test"]);
    server_pair(into.as_ref(), &["www.example.test"]);
    let before = fs::read(&into).unwrap();
    let servers = domain.servers.clone();
    domain.stop_server(1);
    let secondary = servers[1].to_string();
    let words = ["dns", "roll", "--next", &next, "--into", &into, "--timeout", "2"];
    let looked = ["--secondary", &servers[0].to_string(), "--secondary", &secondary].map(str::to_owned);
    let words: Vec<String> =
        words.iter().map(|word| (*word).to_owned()).chain(looked).chain(domain.primary()).collect();
    let refused = home.refused(&words, 1);
    assert!(refused.contains(&format!("{secondary} is silent")), "{refused}");
    assert!(refused.contains("the old certificate stays in use, and both records are left"), "{refused}");
    assert_eq!(fs::read(&into).unwrap(), before);
}
