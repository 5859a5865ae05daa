//! OCSP staples: fetched from real and from misbehaving responders, kept over restarts, never wrong and never late; seen
//! by openssl and gnutls-cli.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use der::asn1::Int;
use der::{Decode, Encode};
use logic::ocsp::message::OcspRequest;
use logic::ocsp::{Query, verify};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tempfile::TempDir;
use testing::ocsp::{Authority, OcspAnswer, Responder};
use testing::tools::openssl;
use testing::witness::handshake;
use testing::{Scripted, Server, eventually, secs, tools};

/// A certificate directory and a state directory that outlive a server.
struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("certs")).unwrap();
        Self { root }
    }

    fn certs(&self) -> PathBuf {
        self.root.path().join("certs")
    }

    fn config(&self, tls: &str) -> String {
        format!(
            "[process]\nstate-directory = \"{}\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
             [admin]\nbind = \"127.0.0.1:0\"\n[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
             tls = {{ certificates = \"{}\"{tls} }}\n[pool.app]\nbackends = [\"127.0.0.1:9\"]\n",
            self.root.path().join("state").display(),
            self.certs().display()
        )
    }

    fn start(&self) -> Server {
        Server::start(&self.config(""))
    }
}

/// What s_client says of the staple that it was sent, having verified it and the chain.
fn s_client(server: &Server, name: &str, authority: &Authority) -> String {
    let (address, ca) = (server.address("secure"), authority.path("ca.crt"));
    let arguments =
        ["s_client", "-connect", &address, "-servername", name, "-status", "-CAfile", ca.to_str().unwrap()];
    let output = tools::run("openssl", &arguments, secs(20));
    [output.stdout, output.stderr].iter().map(|bytes| String::from_utf8_lossy(bytes)).collect()
}

const GOOD: &str = "Cert Status: good";
const NONE: &str = "OCSP response: no response sent";

/// One certificate from `ctl certs`, by NAME of its files.
fn certificate(server: &Server, name: &str) -> Value {
    let all = server.ctl_json(&["certs"]);
    let certificates = all[0]["certificates"].as_array().unwrap().clone();
    certificates.into_iter().find(|it| it["name"] == name).unwrap_or_default()
}

/// What `ctl certs` says of its staple.
fn staple(server: &Server, name: &str) -> Value {
    certificate(server, name)["staple"].take()
}

#[track_caller]
fn wait_for_staple(server: &Server, name: &str) -> Value {
    eventually("a staple", secs(10), || Some(staple(server, name)).filter(|it| it["state"] == "sent"))
}

#[test]
fn a_staple_is_fetched_from_openssls_responder_and_sent_within_seconds() {
    let (place, authority) = (Place::new(), Authority::new());
    let responder = authority.openssl_responder();
    let access = format!("authorityInfoAccess=OCSP;URI:http://{}/", responder.address);
    let server = {
        authority.issue(&place.certs(), "a", "a.example", &[&access]);
        place.start()
    };
    let staple = wait_for_staple(&server, "a");
    assert_eq!(staple["origin"], "responder", "{staple:#}");
    let seen = s_client(&server, "a.example", &authority);
    assert!(seen.contains(GOOD) && seen.contains("Verify return code: 0"), "{seen}");
}

/// Waits until `ctl certs` gives a reason that holds this.
#[track_caller]
fn wait_for_reason(server: &Server, name: &str, part: &str) -> Value {
    eventually(&format!("{name}: a reason with {part:?}: {:#}", staple(server, name)), secs(20), || {
        Some(staple(server, name)).filter(|it| it["reason"].as_str().is_some_and(|why| why.contains(part)))
    })
}

/// Subject and reason of everything that is degraded.
fn degraded(server: &Server) -> String {
    server.ctl_json(&["status"])["degraded"].to_string()
}

#[test]
fn a_kept_response_is_sent_from_the_first_handshake_after_a_restart_while_the_responder_is_down() {
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let responder = Responder::of(&authority);
    authority.issue(&place.certs(), "a", "a.example", &[&responder.extension()]);
    let first = place.start();
    wait_for_staple(&first, "a");
    // It is sent before it is on the disk, where it has another name until it is whole.
    let kept = place.root.path().join("state/ocsp");
    let is_kept = |entry: fs::DirEntry| entry.path().extension().is_some_and(|end| end == "ocsp");
    eventually("it is kept", secs(10), || {
        let mut entries = fs::read_dir(&kept).ok()?.flatten();
        entries.any(is_kept).then_some(())
    });
    drop((first, responder));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&kept), mode(kept.parent().unwrap())), (0o700, 0o700));
    let files: Vec<_> = fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.iter().map(|path| mode(path)).collect::<Vec<_>>(), [0o600], "{files:?}");

    let second = place.start();
    let seen = s_client(&second, "a.example", &authority);
    assert!(seen.contains(GOOD), "{seen}");
    assert_eq!(staple(&second, "a")["origin"], "stored");
    let metrics = second.metrics();
    assert!(metrics.contains("staple_expiry_seconds{") && metrics.contains("certificate=\"a\""), "{metrics}");
    drop(second);

    // What is kept is not believed either.
    let bytes = fs::read(&files[0]).unwrap();
    for bad in [&bytes[..bytes.len() - 1], b"", &[0x30; 100_000]] {
        fs::write(&files[0], bad).unwrap();
        let third = place.start();
        let seen = s_client(&third, "a.example", &authority);
        assert!(seen.contains(NONE), "{seen}");
    }
}

#[test]
fn a_responder_that_hangs_delays_no_handshake() {
    let (place, authority) = (Place::new(), Authority::new());
    let responder = Responder::start(|talk, _| drop(talk.rest()));
    authority.issue(&place.certs(), "a", "a.example", &[&responder.extension()]);
    let server = place.start();
    eventually("the responder is asked", secs(10), || (responder.asked.load(SeqCst) > 0).then_some(()));
    assert_eq!(responder.scripted.open.load(SeqCst), 1, "it still has the question");
    let reason = staple(&server, "a")["reason"].clone();
    assert!(reason.as_str().unwrap().contains("has not answered yet"), "{reason}");
    for _ in 0..3 {
        let seen = s_client(&server, "a.example", &authority);
        assert!(seen.contains(NONE) && seen.contains("Verify return code: 0"), "{seen}");
    }
    let events = server.ctl_json(&["events"]).to_string();
    assert!(!events.contains("degraded"), "operators need not know: {events}");
}

#[test]
fn an_answer_that_is_wrong_in_any_way_is_not_sent_and_its_reason_is_shown() {
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let impostor = Arc::new(Authority::new());
    authority.issue(&authority.path(""), "web", "web.example", &[]);
    authority.issue(&authority.path(""), "delegate", "delegate.example", &["extendedKeyUsage=OCSPSigning"]);
    let revoking = Arc::new(authority.thinking(OcspAnswer::Revoked));
    let ignorant = Arc::new(authority.thinking(OcspAnswer::Unknown));
    let (now, day) = (SystemTime::now(), secs(24 * 60 * 60));

    // What is done with the body of a request, or with the connection.
    type Answer = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;
    let with = |authority: &Arc<Authority>, more: &[&str]| -> Answer {
        let (authority, more) = (authority.clone(), more.iter().map(ToString::to_string).collect::<Vec<_>>());
        Box::new(move |request| {
            authority.answer(request, &more.iter().map(String::as_str).collect::<Vec<_>>())
        })
    };
    let signer = |name: &str| {
        let file = |ending: &str| authority.path(&format!("{name}.{ending}")).to_str().unwrap().to_owned();
        (file("crt"), file("key"))
    };
    let (web, delegate) = (signer("web"), signer("delegate"));
    let ca = (impostor.path("ca.crt"), impostor.path("ca.key"));
    let ca = (ca.0.to_str().unwrap(), ca.1.to_str().unwrap());
    let clone = authority.clone();
    let changed: Answer = Box::new(move |request| {
        let mut answer = clone.answer(request, &["-resp_no_certs"]);
        *answer.last_mut().unwrap() ^= 1;
        answer
    });
    let clone = authority.clone();
    let of_another: Answer = Box::new(move |request| {
        let mut request = OcspRequest::from_der(request).unwrap();
        request.tbs_request.request_list[0].cert_id.serial_number = Int::new(&[77]).unwrap();
        clone.answer(&request.to_der().unwrap(), &[])
    });
    let clone = authority.clone();
    let expired: Answer = Box::new(move |request| clone.answer_for(request, now - day * 2, now - day));
    let clone = authority.clone();
    let future: Answer = Box::new(move |request| clone.answer_for(request, now + day, now + day * 2));
    let cases: Vec<(&str, Answer)> = vec![
        ("has a wrong signature", changed),
        ("for another certificate", of_another),
        ("whose time is over", expired),
        ("of the future", future),
        ("revoked (keyCompromise)", with(&revoking, &[])),
        ("does not know the certificate", with(&ignorant, &[])),
        ("did not appoint", with(&authority, &["-rsigner", ca.0, "-rkey", ca.1])),
        ("not for OCSP", with(&authority, &["-rsigner", &web.0, "-rkey", &web.1])),
        ("SHA-1, which is not trusted", with(&authority, &["-rmd", "sha1"])),
        ("tryLater", Box::new(|_| vec![0x30, 3, 0x0a, 1, 3])),
        ("unauthorized", Box::new(|_| vec![0x30, 3, 0x0a, 1, 6])),
        ("is not an OCSP response", Box::new(|_| b"<html>".to_vec())),
        ("is not an OCSP response", Box::new(|_| Vec::new())),
        ("more than 64 KiB", Box::new(|_| vec![0x30; 10 << 20])),
    ];
    let mut responders = Vec::new();
    let mut reasons = Vec::new();
    let mut add = |reason: &'static str, responder: Responder| {
        let name = format!("h{}", reasons.len());
        authority.issue(&place.certs(), &name, &format!("{name}.example"), &[&responder.extension()]);
        reasons.push((name, reason));
        responders.push(responder);
    };
    for (reason, answer) in cases {
        add(reason, Responder::start(move |talk, request| drop(talk.answer(200, &[], &answer(request)))));
    }
    add("answered 404", Responder::start(|talk, _| drop(talk.answer(404, &[], b"no"))));
    let elsewhere = [("Location", "http://127.0.0.1:1/")];
    add("answered 302", Responder::start(move |talk, _| drop(talk.answer(302, &elsewhere, b""))));
    add("broke off", Responder::start(|talk, _| assert!(talk.send("nonsense\r\n\r\n"))));
    add("did not answer within 10 s", Responder::start(|talk, _| drop(talk.rest())));
    let access = |uri: &str| format!("authorityInfoAccess=OCSP;URI:{uri}");
    authority.issue(&place.certs(), "down", "down.example", &[&access("http://127.0.0.1:9/")]);
    reasons.push(("down".to_owned(), "cannot be reached"));
    authority.issue(&place.certs(), "https", "https.example", &[&access("https://127.0.0.1:9/")]);
    reasons.push(("https".to_owned(), "not an http:// address"));

    // Beside them, what is unusual and right.
    let delegated = with(&authority, &["-rsigner", &delegate.0, "-rkey", &delegate.1]);
    let delegated = Responder::start(move |talk, request| drop(talk.answer(200, &[], &delegated(request))));
    authority.issue(&place.certs(), "delegated", "delegated.example", &[&delegated.extension()]);

    let server = place.start();
    for (name, reason) in &reasons {
        let staple = wait_for_reason(&server, name, reason);
        assert_eq!(staple["state"], "none", "{staple:#}");
        let seen = s_client(&server, &format!("{name}.example"), &authority);
        assert!(seen.contains(NONE) && seen.contains("Verify return code: 0"), "{name} {reason}: {seen}");
    }
    wait_for_staple(&server, "delegated");
    let seen = s_client(&server, "delegated.example", &authority);
    assert!(seen.contains(GOOD), "{seen}");
    let loud = degraded(&server);
    assert!(loud.contains("revoked: replace it") && loud.contains("h4.crt"), "{loud}");
    assert!(!loud.contains("h5.crt"), "a responder's faults are no emergency: {loud}");
    let shown = String::from_utf8(server.ctl(&["certs"]).stdout).unwrap();
    assert!(shown.contains("h9: staple: http://127.0.0.1:") && shown.contains("tryLater"), "{shown}");
    let metrics = server.metrics();
    let failures = metrics.lines().find(|line| line.contains("ocsp_failures_total")).unwrap();
    let failures: usize = failures.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(failures >= reasons.len(), "{failures}");
}

#[test]
fn a_good_staple_is_kept_through_failures_until_its_time_is_over_or_it_is_revoked() {
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let responder = Responder::start(|_, _| {});
    let short = |life: Duration| {
        let authority = authority.clone();
        responder.set(move |talk, request| {
            if !request.is_empty() {
                let now = SystemTime::now();
                let answer = authority.answer_for(request, now - secs(60), now + life);
                let _ = talk.answer(200, &[], &answer);
            }
        });
    };
    // Asked again after 5 s.
    short(secs(70));
    authority.issue(&place.certs(), "a", "a.example", &[&responder.extension()]);
    let server = place.start();
    wait_for_staple(&server, "a");
    responder.set(|talk, _| drop(talk.answer(200, &[], &[0x30, 3, 0x0a, 1, 3])));
    let kept = wait_for_reason(&server, "a", "tryLater");
    assert_eq!(kept["state"], "sent", "{kept:#}");
    assert!(s_client(&server, "a.example", &authority).contains(GOOD));

    let revoking = authority.thinking(OcspAnswer::Revoked);
    responder.set(move |talk, request| drop(talk.answer(200, &[], &revoking.answer(request, &[]))));
    let revoked = wait_for_reason(&server, "a", "revoked");
    assert_eq!(revoked["state"], "none", "{revoked:#}");
    assert!(s_client(&server, "a.example", &authority).contains(NONE));
    let shown = certificate(&server, "a");
    assert_eq!(shown["state"], "revoked", "{shown:#}");
    assert!(shown["reason"].as_str().unwrap().starts_with("revoked: replace it"), "{shown:#}");
    assert_eq!(shown["notes"].as_array().unwrap().len(), 0, "said once: {shown:#}");
    let kept = fs::read_dir(place.root.path().join("state/ocsp")).unwrap().count();
    assert_eq!(kept, 0, "what was kept would be sent after a restart");
    eventually("it is said aloud", secs(5), || degraded(&server).contains("revoked").then_some(()));

    // And one that ends while its responder is down is not sent a moment longer.
    short(secs(9));
    wait_for_staple(&server, "a");
    eventually("nothing is complained of", secs(5), || {
        (!degraded(&server).contains("revoked")).then_some(())
    });
    assert_eq!(certificate(&server, "a")["state"], "ok");
    responder.set(|talk, _| drop(talk.answer(503, &[], b"")));
    let until = SystemTime::now() + secs(9);
    let mut sent = 0;
    eventually("its time is over", secs(15), || {
        let asked = SystemTime::now();
        let seen = s_client(&server, "a.example", &authority);
        assert!(seen.contains(NONE) || asked < until, "{seen}");
        sent += usize::from(seen.contains(GOOD));
        seen.contains(NONE).then_some(())
    });
    println!("sent {sent} times before");
}

#[test]
fn a_certificate_that_must_have_a_staple_and_has_none_is_reported_and_gnutls_agrees() {
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let responder = Responder::start(|talk, _| drop(talk.answer(503, &[], b"")));
    authority.issue(&place.certs(), "a", "a.example", &[&responder.extension(), "tlsfeature=status_request"]);
    let server = place.start();
    let why = eventually("it is said", secs(10), || Some(degraded(&server)).filter(|it| it.contains("must")));
    assert!(why.contains("must-staple") && why.contains("answered 503"), "{why}");
    let gnutls = || {
        let (address, ca) = (server.address("secure"), authority.path("ca.crt"));
        let port = address.rsplit(':').next().unwrap();
        let arguments = [
            "--x509cafile",
            ca.to_str().unwrap(),
            "--sni-hostname",
            "a.example",
            "--verify-hostname",
            "a.example",
            "--port",
            port,
            "127.0.0.1",
        ];
        let output = tools::run("gnutls-cli", &arguments, secs(20));
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let refused = gnutls();
    assert!(refused.contains("requires the server to include an OCSP status"), "{refused}");
    responder.be_good(&authority);
    wait_for_staple(&server, "a");
    let accepted = gnutls();
    assert!(accepted.contains("The certificate is trusted"), "{accepted}");
    eventually("all is well", secs(5), || (degraded(&server) == "[]").then_some(()));
}

#[test]
fn certificates_without_a_responder_are_not_stapled_and_no_event_is_made() {
    let (place, authority) = (Place::new(), Authority::new());
    authority.issue(&place.certs(), "a", "a.example", &[]);
    let server = place.start();
    let shown = staple(&server, "a");
    assert_eq!((&shown["state"], &shown["reason"]), (&"not-needed".into(), &Value::Null));
    assert_eq!(degraded(&server), "[]");
    assert!(s_client(&server, "a.example", &authority).contains(NONE));
}

#[test]
fn no_responder_is_asked_when_ocsp_is_off() {
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let responder = Responder::of(&authority);
    authority.issue(&place.certs(), "a", "a.example", &[&responder.extension()]);
    authority.issue(&place.certs(), "b", "b.example", &[]);
    let server = Server::start(&place.config(", ocsp = \"off\""));
    let shown = staple(&server, "a");
    assert!(shown["reason"].as_str().unwrap().contains("tls.ocsp"), "{shown:#}");
    server.write_config(&place.config(""));
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(wait_for_staple(&server, "a")["origin"], "responder");
    assert_eq!(responder.asked.load(SeqCst), 1, "once, and only after the reload");
}

#[test]
fn a_responder_that_knows_get_only_is_asked_that_way() {
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let clone = authority.clone();
    let responder = Scripted::start(move |talk| {
        while let Some(request) = talk.request() {
            let answered = match request.target.strip_prefix("/ocsp/").filter(|_| request.method == "GET") {
                None => talk.answer(405, &[], b""),
                Some(path) => {
                    let text = path.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
                    let file = clone.path("get");
                    fs::write(&file, text).unwrap();
                    let decoded = clone.path("got");
                    let (from, to) = (file.to_str().unwrap(), decoded.to_str().unwrap());
                    openssl(&["base64", "-d", "-A", "-in", from, "-out", to]);
                    talk.answer(200, &[], &clone.answer(&fs::read(decoded).unwrap(), &[]))
                }
            };
            if answered.is_err() {
                break;
            }
        }
    });
    let access = format!("authorityInfoAccess=OCSP;URI:http://{}/ocsp/", responder.address);
    authority.issue(&place.certs(), "a", "a.example", &[&access]);
    let server = place.start();
    wait_for_staple(&server, "a");
    assert!(s_client(&server, "a.example", &authority).contains(GOOD));
}

#[test]
fn rsa_and_pss_signatures_are_taken() {
    let (place, authority) = (Place::new(), Arc::new(Authority::rsa()));
    let plain = Responder::of(&authority);
    let clone = authority.clone();
    let pss = Responder::start(move |talk, request| {
        let options = ["-rsigopt", "rsa_padding_mode:pss", "-rsigopt", "rsa_pss_saltlen:32"];
        let _ = talk.answer(200, &[], &clone.answer(request, &options));
    });
    authority.issue(&place.certs(), "a", "a.example", &[&plain.extension()]);
    authority.issue(&place.certs(), "b", "b.example", &[&pss.extension()]);
    let server = place.start();
    for name in ["a", "b"] {
        wait_for_staple(&server, name);
        assert!(s_client(&server, &format!("{name}.example"), &authority).contains(GOOD));
    }
}

#[test]
fn every_staple_is_its_certificates_own_while_pairs_are_replaced_and_handshakes_go_on() {
    const PAIRS: usize = 20;
    let (place, authority) = (Place::new(), Arc::new(Authority::new()));
    let responder = Responder::of(&authority);
    let name = |at: usize| format!("h{at}.example");
    let issue = |at: usize| {
        authority.issue(&place.certs(), &format!("h{at}"), &name(at), &[&responder.extension()]);
    };
    (0..PAIRS).for_each(issue);
    let server = place.start();
    let address = server.address("secure");
    let all_stapled = || {
        let is_stapled = |at| handshake(&address, &name(at)).is_ok_and(|it| !it.staple.is_empty());
        (0..PAIRS).all(is_stapled).then_some(())
    };
    eventually("every certificate has its staple", secs(20), all_stapled);
    let issuer = CertificateDer::from_pem_file(authority.path("ca.crt")).unwrap();
    let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
    let (stop, count, stapled) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    let one = |at: usize| -> Result<(), String> {
        let seen = handshake(&address, &name(at))?;
        let query = Query::new(&seen.leaf, &issuer).map_err(|error| error.to_string())?;
        if !seen.staple.is_empty() {
            verify(&seen.staple, &query, SystemTime::now(), algorithms).map_err(|fault| fault.to_string())?;
            stapled.fetch_add(1, SeqCst);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (one, stop, count, failures) = (&one, &stop, &count, &failures);
            scope.spawn(move || {
                let mut at = thread * 7;
                while !stop.load(SeqCst) {
                    at = (at + 3) % PAIRS;
                    failures.lock().unwrap().extend(one(at).err().map(|error| format!("h{at}: {error}")));
                    count.fetch_add(1, SeqCst);
                }
            });
        }
        (0..PAIRS).rev().for_each(issue);
        eventually("every new certificate has its staple", secs(20), || {
            // While a change is not noticed, the old ones have theirs.
            let asked_for_all = responder.asked.load(SeqCst) >= 2 * PAIRS;
            all_stapled().filter(|()| asked_for_all && count.load(SeqCst) >= 1000)
        });
        stop.store(true, SeqCst);
    });
    println!("{} handshakes, {} with a staple", count.load(SeqCst), stapled.load(SeqCst));
    assert_eq!(failures.into_inner().unwrap(), Vec::<String>::new());
}
