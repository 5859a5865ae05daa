//! A new certificate is used only after its record is everywhere: clients that check by TLSA, with a resolver that remembers
//! records for their TTL, see no failure; without the gate they do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use testing::pki::server_pair;
use testing::server::run_to_end;
use testing::sshd::program;
use testing::tools::{Root, root};
use testing::{Server, eventually, secs};

use crate::domain::{Domain, Home, Settings};

/// Clients that look a TLSA record up and then connect, one time after the other.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    outcomes: Arc<Mutex<Vec<Result<(), String>>>>,
}

impl Load {
    fn start(domain: &Arc<Domain>, port: u16, verify: fn(&Domain, u16) -> Result<(), String>) -> Self {
        let (stop, outcomes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let client = |_| {
            let (stop, outcomes, domain) = (stop.clone(), outcomes.clone(), domain.clone());
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    let outcome = verify(&domain, port);
                    outcomes.lock().unwrap().push(outcome);
                }
            })
        };
        let clients = (0..2).map(client).collect();
        Self { stop, clients, outcomes }
    }

    fn count(&self) -> usize {
        self.outcomes.lock().unwrap().len()
    }

    fn has_failed(&self) -> bool {
        self.outcomes.lock().unwrap().iter().any(Result::is_err)
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

/// Asks the resolver for the TLSA records and lets OpenSSL verify the service by them.
fn openssl(domain: &Domain, port: u16) -> Result<(), String> {
    let resolver = format!("@{}", domain.resolver);
    let owner = format!("_{port}._tcp.{HOST}.");
    let mut kdig = Command::new(program("kdig"));
    kdig.args([&resolver, "+short", "+time=2", "+retry=1", &owner, "TLSA"]).stdin(Stdio::null());
    let records = String::from_utf8_lossy(&kdig.output().unwrap().stdout).into_owned();
    let place = format!("127.0.0.1:{port}");
    let mut openssl = Command::new(program("openssl"));
    openssl.args(["s_client", "-connect", &place, "-servername", HOST, "-dane_tlsa_domain", HOST]);
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

/// Lets GnuTLS do all of it: danetool validates the records itself, with libunbound behind the resolver.
fn danetool(domain: &Domain, port: u16) -> Result<(), String> {
    let port = port.to_string();
    let words = ["danetool", "--check", HOST, "--port", &port, "--proto", "tcp", "--local-dns"];
    let output = run_to_end(&mut domain.validating(&words), secs(20));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() && said.contains("Verification: Certificate matches.") {
        true => Ok(()),
        false => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The host of the service. Not below `test.`, which libunbound answers itself: there is no such zone for it.
const HOST: &str = "www.dane.example";

#[test]
fn no_client_fails_when_a_certificate_goes_through_the_gate_and_some_do_without_it() {
    if root("mounts a resolv.conf") == Root::LeftOut {
        return;
    }
    let records = "www A 127.0.0.1\n";
    let settings = Settings { zone: "dane.example", servers: 2, ttl: 2, records, ..Settings::default() };
    let domain = Arc::new(Domain::with(&settings));
    let home = Home::new();
    let certificates = home.path().join("certificates");
    fs::create_dir(&certificates).unwrap();
    let served = certificates.join("www.pem");
    server_pair(&served, &[HOST]);
    let [first, second, third] = ["first.pem", "second.pem", "third.pem"].map(|name| home.file(name));
    fs::copy(&served, &first).unwrap();
    server_pair(second.as_ref(), &[HOST]);
    server_pair(third.as_ref(), &[HOST]);
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = {{ certificates = \"{}\" }}\n\
         [[listener.web.route]]\nredirect = \"https://elsewhere.example/\"\nstatus = 307\n",
        certificates.display()
    ));
    let address = server.address("web");
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    let number: u16 = port.parse().unwrap();
    let push = |file: &str, ttl: &str| {
        let words = ["dns", "push", "--next", file, "--port", &port, "--ttl", ttl];
        let words: Vec<String> =
            words.iter().map(|word| (*word).to_owned()).chain(domain.primary()).collect();
        home.said(&words)
    };
    push(&first, "2");
    let resolver = domain.resolver.to_string();
    eventually("clients accept it", secs(30), || {
        openssl(&domain, number).and_then(|()| danetool(&domain, number)).ok()
    });

    let loads = || [Load::start(&domain, number, openssl), Load::start(&domain, number, danetool)];
    let through_the_gate = loads();
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
    let counts = |loads: &[Load; 2]| loads.each_ref().map(Load::count);
    let more = |loads: &[Load; 2], before: [usize; 2], by: usize| {
        eventually("more clients come", secs(90), || {
            counts(loads).iter().zip(before).all(|(now, before)| *now > before + by).then_some(())
        });
    };
    // Through the TTL of what was there before.
    let before = counts(&through_the_gate);
    more(&through_the_gate, before, 30);
    for (load, by) in through_the_gate.into_iter().zip(["OpenSSL", "danetool"]) {
        let (count, failures) = load.end();
        println!("through the gate {} of {count} fail with {by}", failures.len());
        assert_eq!(failures, Vec::<String>::new(), "of {count} with {by}");
        assert!(count > 30, "{count}");
    }
    let owner = format!("_{port}._tcp.{HOST}.");
    assert_eq!(domain.dig(0, &owner, "TLSA").lines().count(), 1, "the old one went");

    // The same without the gate. The resolver remembers the record for longer than any client needs.
    push(&second, "600");
    eventually("the resolver remembers it for long", secs(30), || {
        let mut kdig = Command::new(program("kdig"));
        kdig.args([&format!("@{resolver}"), "+noall", "+answer", &owner, "TLSA"]).stdin(Stdio::null());
        let said = String::from_utf8_lossy(&kdig.output().unwrap().stdout).into_owned();
        let ttl: u32 = said.split_whitespace().nth(1)?.parse().ok()?;
        (ttl > 300).then_some(())
    });
    let without = loads();
    more(&without, [0; 2], 10);
    assert!(!without.iter().any(Load::has_failed), "the record is that of the certificate");
    push(&third, "600");
    fs::copy(&third, home.file("certificates/.part")).unwrap();
    fs::rename(home.file("certificates/.part"), &served).unwrap();
    eventually("clients fail: does the resolver remember nothing?", secs(60), || {
        without.iter().all(Load::has_failed).then_some(())
    });
    for (load, by) in without.into_iter().zip(["OpenSSL", "danetool"]) {
        let (count, failures) = load.end();
        println!("without the gate {} of {count} fail with {by}", failures.len());
    }
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

    // One that answers, and does not fetch the zone.
    let other = Domain::with(&settings);
    let stale = other.servers[0].to_string();
    let words = ["dns", "roll", "--next", &next, "--into", &into, "--timeout", "2"];
    let looked = ["--secondary", &servers[0].to_string(), "--secondary", &stale].map(str::to_owned);
    let words: Vec<String> =
        words.iter().map(|word| (*word).to_owned()).chain(looked).chain(domain.primary()).collect();
    let refused = home.refused(&words, 1);
    assert!(refused.contains(&format!("{stale} lacks it")), "{refused}");
    assert_eq!(fs::read(&into).unwrap(), before);
}

/// A mail server of one connection after the other, in Python: STARTTLS of SMTP, IMAP or POP3, with the certificate that is in
/// the file when the client comes.
const MAIL_SERVER: &str = r#"
import socket, ssl, sys, threading
dialect, pair = sys.argv[1:]
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(client):
    reader = client.makefile("rb", buffering=0)
    def say(text): client.sendall(text.encode())
    def line(): return reader.readline().strip().upper()
    if dialect == "smtp":
        say("220-mx.example.test\r\n220 ready\r\n")
        if not line().startswith(b"EHLO "): return
        say("250-mx.example.test\r\n250-STARTTLS\r\n250 OK\r\n")
        if line() != b"STARTTLS": return
        say("220 go ahead\r\n")
    elif dialect == "imap":
        say("* OK ready\r\n")
        while True:
            tag, _, command = line().partition(b" ")
            if command == b"STARTTLS": break
            if not command: return
            say("* CAPABILITY IMAP4rev1 STARTTLS\r\n" + tag.decode() + " OK done\r\n")
        say(tag.decode() + " OK begin\r\n")
    else:
        say("+OK ready\r\n")
        while (command := line()) != b"STLS":
            if command != b"CAPA": return
            say("+OK\r\nSTLS\r\n.\r\n")
        say("+OK begin\r\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    with context.wrap_socket(client, server_side=True) as tls:
        tls.recv(1024)
def careful(client):
    with client:
        try: serve(client)
        except OSError: pass
while True:
    client, _ = listener.accept()
    threading.Thread(target=careful, args=(client,), daemon=True).start()
"#;

#[test]
fn certificate_of_a_mail_server_is_seen_by_starttls_and_its_old_record_goes() {
    let settings = Settings { ttl: 1, records: "mx A 127.0.0.1\n", ..Settings::default() };
    let domain = Domain::with(&settings);
    let home = Home::new();
    for dialect in ["smtp", "imap", "pop3"] {
        let [served, next] = ["served.pem", "next.pem"].map(|name| home.file(&format!("{dialect}-{name}")));
        server_pair(served.as_ref(), &["mx.example.test"]);
        server_pair(next.as_ref(), &["mx.example.test"]);
        let mut python = Command::new(program("python3"));
        python.args(["-c", MAIL_SERVER, dialect, &served]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = python.spawn().unwrap();
        let mut port = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let port = port.trim().to_owned();

        // Another client speaks the same protocol with it.
        let mut openssl = Command::new(program("openssl"));
        openssl.args(["s_client", "-starttls", dialect, "-connect", &format!("127.0.0.1:{port}")]);
        let output = run_to_end(openssl.stdin(Stdio::null()), secs(20));
        assert!(String::from_utf8_lossy(&output.stdout).contains("CN = "), "{dialect}: {output:?}");

        let words = ["dns", "push", "--next", &served, "--port", &port, "--ttl", "1"].map(str::to_owned);
        home.said(&words.into_iter().chain(domain.primary()).collect::<Vec<_>>());
        let check = |more: &[&str]| {
            let words = ["dns", "check", "--next", &served, "--port", &port];
            let words = words.iter().chain(more).map(|word| (*word).to_owned());
            home.penstock(&words.chain(domain.path()).collect::<Vec<_>>())
        };
        eventually("the check sees its certificate", secs(30), || {
            let output = check(&["--starttls", dialect]);
            (output.status.success() && String::from_utf8_lossy(&output.stdout).contains(": 0 findings"))
                .then_some(())
        });
        let plain = String::from_utf8(check(&[]).stdout).unwrap();
        assert!(plain.contains("the service cannot be asked"), "TLS at once does not work there: {plain}");

        let resolver = domain.resolver.to_string();
        let roll =
            ["dns", "roll", "--next", &next, "--into", &served, "--port", &port, "--starttls", dialect];
        let place = ["--dns-server", &resolver, "--timeout", "30"];
        let roll: Vec<String> =
            roll.iter().chain(&place).map(|word| (*word).to_owned()).chain(domain.primary()).collect();
        let said = home.said(&roll);
        assert!(
            said.contains("the new certificate is in use, and the record of the old one is gone"),
            "{said}"
        );
        assert_eq!(fs::read(&served).unwrap(), fs::read(&next).unwrap());
        let owner = format!("_{port}._tcp.mx.example.test.");
        assert_eq!(domain.dig(0, &owner, "TLSA").lines().count(), 1, "{dialect}");
        let _ = server.kill();
        let _ = server.wait();
    }
}

#[test]
fn a_service_at_another_port_than_the_records_are_of_is_asked_about_before_anything_is_changed() {
    let domain = Domain::with(&Settings { ttl: 1, records: "www A 127.0.0.1\n", ..Settings::default() });
    let home = Home::new();
    let next = home.file("next.pem");
    server_pair(next.as_ref(), &["www.example.test"]);
    let roll = |more: &[&str]| {
        let words = ["dns", "roll", "--next", &next, "--run", "true"];
        home.refused(
            &words
                .iter()
                .chain(more)
                .map(|word| (*word).to_owned())
                .chain(domain.primary())
                .collect::<Vec<_>>(),
            2,
        )
    };
    let said = roll(&["--service", "127.0.0.1:443", "--service", "127.0.0.1:8443"]);
    assert!(
        said.contains("--service 127.0.0.1:8443: without --port the TLSA records are of port 443"),
        "{said}"
    );
    assert!(said.contains("--port 8443"), "{said}");
    let said = roll(&["--starttls", "smtp"]);
    assert!(said.contains("--starttls: without --port the TLSA records are of port 443"), "{said}");
    assert!(said.contains("--port 25"), "{said}");
    assert_eq!(domain.dig(0, "_443._tcp.www.example.test.", "TLSA"), "");
}

#[test]
fn old_record_stays_while_an_address_of_the_service_is_not_known_to_show_the_new_key() {
    let settings = Settings { ttl: 1, records: "www A 127.0.0.1\n", ..Settings::default() };
    let domain = Domain::with(&settings);
    let home = Home::new();
    let [served, next] = ["served.pem", "next.pem"].map(|name| home.file(name));
    server_pair(served.as_ref(), &["www.example.test"]);
    server_pair(next.as_ref(), &["www.example.test"]);
    let words = ["dns", "push", "--next", &served, "--ttl", "1"].map(str::to_owned);
    home.said(&words.into_iter().chain(domain.primary()).collect::<Vec<_>>());
    // No service listens there.
    let service = format!("127.0.0.1:{}", testing::port::free());
    let roll = |more: &[&str]| {
        let resolver = domain.resolver.to_string();
        let words = ["dns", "roll", "--next", &next, "--into", &served, "--service", &service];
        let place = ["--dns-server", &resolver, "--timeout", "2", "--port", "443"];
        words
            .iter()
            .chain(&place)
            .chain(more)
            .map(|word| (*word).to_owned())
            .chain(domain.primary())
            .collect::<Vec<_>>()
    };
    let refused = home.refused(&roll(&[]), 1);
    assert!(refused.contains(&format!("{service} cannot be asked")), "{refused}");
    assert!(refused.contains("the new certificate may be used, and both records are left"), "{refused}");
    assert_eq!(domain.dig(0, "_443._tcp.www.example.test.", "TLSA").lines().count(), 2);
    let refused = home.refused(&roll(&["--run", "exit 3"]), 1);
    assert!(refused.contains("the command of --run: it ended with exit status: 3"), "{refused}");
}
