//! TLS that goes through: the server name chooses the pool, and no byte changes. And what becomes of strange ClientHellos,
//! there and where TLS is terminated.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use testing::client::Stream;
use testing::hello::{message, records};
use testing::peers::{Process, nginx};
use testing::pki::{Authority, server_pair};
use testing::server::run_to_end;
use testing::{Client, End, Scripted, Server, eventually, secs, show, tools};

/// nginx that terminates TLS for some names on `tls.sock`, and says which it is.
fn backend(dir: &Path, names: &[&str], word: &str) -> Process {
    fs::create_dir_all(dir).unwrap();
    server_pair(&dir.join("pair.pem"), names);
    let at = dir.display();
    nginx(
        dir,
        &format!(
            "listen unix:{at}/tls.sock ssl; ssl_certificate {at}/pair.pem; ssl_certificate_key {at}/pair.pem;\n\
             location / {{ return 200 \"{word}\"; }}"
        ),
    )
}

fn fetch(server: &Server, listener: &str, name: &str, authority: &Path) -> Result<String, String> {
    let address = server.address(listener);
    let port = address.rsplit(':').next().unwrap();
    let (resolve, url) = (format!("{name}:{port}:127.0.0.1"), format!("https://{name}:{port}/"));
    let output = tools::curl(&["--resolve", &resolve, "--cacert", authority.to_str().unwrap(), &url]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn the_access_list_of_a_route_closes_its_names_only_to_whom_it_denies() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let _backends = [backend(&a, &["a.example"], "first"), backend(&b, &["b.example"], "second")];
    let server = Server::start(&format!(
        "[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [acl.closed]\nentries = [\"deny 127.0.0.1\"]\ndefault = \"deny\"\n\
         [listener.named]\nbind = \"127.0.0.1:0\"\nprotocol = \"tls-passthrough\"\n\
         [[listener.named.route]]\nhost = \"a.example\"\npool = \"a\"\nacl = \"closed\"\n\
         [[listener.named.route]]\nhost = \"b.example\"\npool = \"b\"\n\
         [pool.a]\nbackends = [\"unix:{}/tls.sock\"]\n[pool.b]\nbackends = [\"unix:{}/tls.sock\"]\n",
        a.display(),
        b.display()
    ));
    assert!(fetch(&server, "named", "a.example", &a.join("pair.pem")).is_err());
    assert_eq!(fetch(&server, "named", "b.example", &b.join("pair.pem")).as_deref(), Ok("second"));
    let log = server.dir.path().join("access.log");
    eventually("the denial is in the log", secs(10), || {
        fs::read_to_string(&log).unwrap_or_default().contains(" denied").then_some(())
    });
}

#[test]
fn the_name_chooses_the_backend_and_the_handshake_is_made_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let _backends =
        [backend(&a, &["a.example"], "first"), backend(&b, &["x.b.example", "other.example"], "second")];
    let routes = |listener: &str| {
        format!(
            "[[listener.{listener}.route]]\nhost = \"a.example\"\npool = \"a\"\n\
             [[listener.{listener}.route]]\nhost = \"*.b.example\"\npool = \"b\"\n"
        )
    };
    let server = Server::start(&format!(
        "[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [listener.named]\nbind = \"127.0.0.1:0\"\nprotocol = \"tls-passthrough\"\n{}\
         [listener.any]\nbind = \"127.0.0.1:0\"\nprotocol = \"tls-passthrough\"\npool = \"b\"\n{}\
         [pool.a]\nbackends = [\"unix:{}/tls.sock\"]\n[pool.b]\nbackends = [\"unix:{}/tls.sock\"]\n",
        routes("named"),
        routes("any"),
        a.display(),
        b.display()
    ));
    let (first, second) = (a.join("pair.pem"), b.join("pair.pem"));
    for listener in ["named", "any"] {
        assert_eq!(fetch(&server, listener, "a.example", &first).as_deref(), Ok("first"));
        assert_eq!(fetch(&server, listener, "x.b.example", &second).as_deref(), Ok("second"));
    }
    assert!(fetch(&server, "any", "a.example", &second).is_err(), "the backend's own certificate is seen");
    assert_eq!(fetch(&server, "any", "other.example", &second).as_deref(), Ok("second"));
    assert!(fetch(&server, "named", "other.example", &second).is_err());
    let log = server.dir.path().join("access.log");
    for part in ["sni=a.example pool=a", "sni=x.b.example pool=b", "no-route sni=other.example"] {
        eventually(part, secs(10), || fs::read_to_string(&log).ok()?.contains(part).then_some(()));
    }
    let address = server.address("named");
    for name in [&["-noservername"][..], &["-servername", "other.example"]] {
        for version in ["-tls1_2", "-tls1_3"] {
            let mut command = Command::new(tools::program("openssl"));
            command.args(["s_client", "-connect", &address, version]).args(name).stdin(Stdio::null());
            let output = run_to_end(&mut command, secs(20));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(text.contains("SSL alert number 112"), "{name:?} {version}: {text}");
        }
    }
    let port = address.rsplit(':').next().unwrap();
    let gnutls = ["--insecure", "--sni-hostname", "a.example", "--port", port, "127.0.0.1"];
    let output = tools::run("gnutls-cli", &gnutls, secs(20));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Handshake was completed"), "{text}");
}

/// A backend that tells every byte of its connections, in one piece each, when they have ended.
fn listener() -> (Scripted, Receiver<Vec<u8>>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let backend = Scripted::start(move |talk| {
        let bytes = talk.client.read_to_end_within(secs(60)).0;
        tell.lock().unwrap().send(bytes).unwrap();
    });
    (backend, told)
}

fn passing(backend: &str, more: &str, pool: &str) -> Server {
    Server::start(&format!(
        "[listener.tls]\nbind = \"127.0.0.1:0\"\nprotocol = \"tls-passthrough\"\nhandshake-timeout = \"5s\"\n{more}\n\
         [[listener.tls.route]]\nhost = \"a.example\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\n{pool}\n"
    ))
}

#[test]
fn a_hello_goes_on_byte_by_byte_as_it_came_however_it_is_cut() {
    let (backend, told) = listener();
    let server = passing(&backend.address, "", "");
    let hello = message(Some(b"A.Example."), &[b"acme-tls/1"], &[]);
    for (record, piece) in [(1 << 14, 1 << 14), (1, 1 << 14), (1, 7), (300, 1)] {
        let mut bytes = records(&hello, record);
        bytes.extend_from_slice(b"and what follows");
        let mut client = server.client("tls");
        for part in bytes.chunks(piece) {
            client.send(part);
        }
        client.finish_sending();
        assert_eq!(show(&told.recv_timeout(secs(20)).unwrap()), show(&bytes), "{record} {piece}");
    }
}

#[test]
fn a_proxy_header_before_the_hello_is_believed_and_backends_hear_the_name() {
    let (backend, told) = listener();
    let server = passing(&backend.address, "proxy-protocol-from = [\"127.0.0.1\"]", "send-proxy = \"v2\"");
    let hello = records(&message(Some(b"a.example"), &[], &[]), 1 << 14);
    for split in [false, true] {
        let mut client = server.client("tls");
        let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 443\r\n";
        if split {
            header.iter().for_each(|byte| client.send([*byte]));
            client.send(&hello);
        } else {
            client.send([&header[..], &hello].concat());
        }
        client.finish_sending();
        let bytes = told.recv_timeout(secs(20)).unwrap();
        let addresses = [192, 0, 2, 7, 192, 0, 2, 1, 0x12, 0x67, 1, 0xbb];
        let authority = b"\x02\0\x09a.example";
        let header = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x18", &addresses[..], authority].concat();
        assert_eq!(show(&bytes), show(&[&header[..], &hello].concat()));
    }
}

const fn alert(description: u8) -> [u8; 7] {
    [21, 3, 3, 0, 2, 2, description]
}

/// What a client gets for these bytes, until the connection ends.
fn answer(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut client = server.client("tls");
    let _ = client.try_send(bytes);
    let (answer, end) = client.read_to_end_within(secs(10));
    assert_ne!(end, End::Open, "{}", show(bytes));
    answer
}

#[test]
fn what_is_no_hello_gets_an_alert_and_reaches_no_backend() {
    let (backend, _told) = listener();
    let server = passing(&backend.address, "", "");
    let padded = |more: usize| {
        let each =
            (0..more).map(|at| (0x5000 + u16::try_from(at).unwrap(), vec![0; 10_000])).collect::<Vec<_>>();
        message(Some(b"a.example"), &[], &each)
    };
    for (bytes, description) in [
        (b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec(), 50),
        (vec![0; 100], 50),
        (vec![0xff; 5000], 50),
        (b"\x80\x2e\x01\x03\x01".to_vec(), 50),
        (vec![22, 3, 1, 0xff, 0xff], 22),
        (vec![22, 3, 1, 0, 0], 50),
        (vec![22, 3, 1, 0, 4, 2, 0, 0, 0], 10),
        (records(&padded(10), 1 << 14), 50),
        (records(&padded(4), 5), 50),
        (records(&message(None, &[], &[]), 1 << 14), 112),
        (records(&message(Some(b"192.0.2.1"), &[], &[]), 1 << 14), 112),
        (records(&message(Some(b"/etc/passwd"), &[], &[]), 1 << 14), 112),
        (records(&message(Some(b"a.example\0.b.example"), &[], &[]), 1 << 14), 112),
        (records(&message(Some(&[b'a'; 300]), &[], &[]), 1 << 14), 112),
        (records(&message(Some("b\u{fc}cher.example".as_bytes()), &[], &[]), 1 << 14), 112),
        (records(&message(Some(b""), &[], &[]), 1 << 14), 50),
    ] {
        assert_eq!(show(&answer(&server, &bytes)), show(&alert(description)), "{}", show(&bytes));
    }
    assert_eq!(backend.accepted.load(std::sync::atomic::Ordering::SeqCst), 0);
    let mut stalled: Vec<Client> = (0..20).map(|_| server.client("tls")).collect();
    for client in &mut stalled {
        client.send(&records(&padded(0), 1 << 14)[..200]);
    }
    for client in &mut stalled {
        assert_ne!(client.read_to_end_within(secs(30)).1, End::Open, "handshake-timeout ends it");
    }
}

#[test]
fn strange_names_get_an_alert_where_tls_is_terminated_and_no_other_client_notices() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        server_pair(&dir.path().join(format!("{name}.pem")), &[&format!("{name}.example")]);
    }
    let backend = Scripted::answering("served");
    let mut server = Server::start(&format!(
        "[listener.tls]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         tls = {{ certificates = \"{}\", handshake-timeout = \"5s\" }}\n[pool.app]\nbackends = [\"{}\"]\n",
        dir.path().display(),
        backend.address
    ));
    let named = |name: &[u8]| message(Some(name), &[], &[]);
    let large: Vec<_> = (0..10).map(|at| (0x5000 + at, vec![0; 10_000])).collect();
    // missing_extension: an address is no name (RFC 6066 section 3). illegal_parameter: what DNS cannot hold.
    let mut wrong = Vec::new();
    for (what, message, record, wanted) in [
        ("no name", message(None, &[], &[]), 1 << 14, Some(109)),
        ("an address", named(b"192.0.2.1"), 1 << 14, Some(109)),
        ("an IPv6 address", named(b"2001:db8::1"), 1 << 14, Some(109)),
        ("a path", named(b"../../etc/passwd"), 1 << 14, Some(47)),
        ("a NUL", named(b"a.example\0.b.example"), 1 << 14, Some(47)),
        ("too long", named(&[b'a'; 300]), 1 << 14, Some(47)),
        ("not ASCII", named("b\u{fc}cher.example".as_bytes()), 1 << 14, Some(47)),
        ("empty", named(b""), 1 << 14, Some(50)),
        ("unknown", named(b"xn--bcher-kva.example"), 1 << 14, Some(112)),
        ("100 kB of extensions", message(Some(b"a.example"), &[], &large), 1 << 14, Some(50)),
        ("capitals", named(b"A.EXAMPLE"), 1 << 14, None),
        ("a dot at the end", named(b"a.example."), 1 << 14, None),
        ("records of one byte", named(b"a.example"), 1, None),
    ] {
        let mut client = server.client("tls");
        let _ = client.try_send(records(&message, record));
        let got = match wanted {
            Some(_) => client.read_to_end_within(secs(10)).0,
            None => client.read_exactly(7),
        };
        let fits = match wanted {
            Some(description) => got == alert(description),
            // A ServerHello.
            None => got[..3] == [22, 3, 3] && got[5] == 2,
        };
        if !fits {
            wrong.push(format!("{what}: {wanted:?}, but it was {}", show(&got)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.assert_running();
    assert_eq!(server.stderr.count("SNI"), 0, "what strangers send does not fill our log");
}

/// haproxy that takes PROXY headers on a Unix socket and answers with what they told.
fn haproxy(dir: &Path) -> Process {
    let socket = dir.join("haproxy.sock");
    fs::write(
        dir.join("haproxy.cfg"),
        format!(
            "defaults\n  mode http\n  timeout client 20s\n  timeout server 20s\n  timeout connect 5s\n\
             frontend f\n  bind unix@{} accept-proxy\n\
             \x20 http-request return status 200 content-type text/plain lf-string \"%[fc_pp_authority] %[src]:%[src_port]\"\n",
            socket.display()
        ),
    )
    .unwrap();
    let mut command = Command::new(tools::program("haproxy"));
    let mut process = Process::start(command.args(["-db", "-f"]).arg(dir.join("haproxy.cfg")));
    process.address = format!("unix:{}", socket.display());
    let address = process.address.clone();
    eventually("haproxy listens", secs(15), || Stream::connect(&address).ok());
    process
}

#[test]
fn haproxy_reads_what_proxy_headers_tell_of_the_clients_tls() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    fs::create_dir(&certs).unwrap();
    server_pair(&certs.join("a.pem"), &["a.example"]);
    let authority = Authority::new("clients");
    fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
    let alice = authority.issue(dir.path(), "alice", |_| {});
    let haproxy = haproxy(dir.path());
    let server = Server::start(&format!(
        "[listener.http]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         tls = {{ certificates = \"{certs}\", client-certificates = {{ ca = \"{at}/ca.pem\" }} }}\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         tls = {{ certificates = \"{certs}\", client-certificates = {{ ca = \"{at}/ca.pem\", mode = \"request\" }} }}\n\
         [pool.app]\nbackends = [\"{}\"]\nsend-proxy = \"v2\"\n",
        haproxy.address,
        certs = certs.display(),
        at = dir.path().display()
    ));
    let identity = alice.for_curl();
    for (listener, version, shown) in [
        ("http", "--http1.1", &identity[..]),
        ("http", "--http2", &identity),
        ("tcp", "--http1.1", &identity),
        ("tcp", "--http1.1", &[]),
    ] {
        let address = server.address(listener);
        let port = address.rsplit(':').next().unwrap();
        let (resolve, url) = (format!("a.example:{port}:127.0.0.1"), format!("https://a.example:{port}/"));
        let arguments = ["--insecure", version, "--resolve", &resolve, "-w", "|%{local_port}", &url];
        let text = tools::curl_text(&[&arguments[..], shown].concat());
        let (told, local) = text.split_once('|').unwrap();
        assert_eq!(told.trim(), format!("a.example 127.0.0.1:{local}"), "{listener} {version}");
    }
}

#[test]
fn backends_hear_of_version_cipher_and_the_clients_name() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    fs::create_dir(&certs).unwrap();
    server_pair(&certs.join("a.pem"), &["a.example"]);
    let authority = Authority::new("clients");
    fs::write(dir.path().join("ca.pem"), authority.pem()).unwrap();
    let alice = authority.issue(dir.path(), "alice", |_| {});
    let (backend, told) = listener();
    let server = Server::start(&format!(
        "[listener.tls]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         tls = {{ certificates = \"{}\", client-certificates = {{ ca = \"{}/ca.pem\", mode = \"request\" }} }}\n\
         [pool.app]\nbackends = [\"{}\"]\nsend-proxy = \"v2\"\n",
        certs.display(),
        dir.path().display(),
        backend.address
    ));
    let address = server.address("tls");
    let identity = alice.for_openssl();
    let ciphers =
        ["-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"];
    for (version, shown, wanted) in [
        (
            "-tls1_2",
            &identity[..],
            "a.example TLSv1.2 ECDHE-ECDSA-AES256-GCM-SHA384 alice verified connection session",
        ),
        (
            "-tls1_3",
            &identity,
            "a.example TLSv1.3 TLS_CHACHA20_POLY1305_SHA256 alice verified connection session",
        ),
        ("-tls1_3", &[], "a.example TLSv1.3 TLS_CHACHA20_POLY1305_SHA256"),
    ] {
        let mut command = Command::new(tools::program("openssl"));
        command
            .args(["s_client", "-connect", &address, "-servername", "a.example", version])
            .args(ciphers)
            .args(shown);
        run_to_end(command.stdin(Stdio::null()), secs(20));
        let bytes = told.recv_timeout(secs(20)).unwrap();
        let mut command = Command::new(tools::python("proxy-protocol"));
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let output = run_to_end(command.args(["-c", READ_HEADER, &hex]).stdin(Stdio::null()), secs(20));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), wanted, "{version}: {output:?}");
    }
}

/// Says what a PROXY header names TLS.
const READ_HEADER: &str = r#"
import sys
from proxyprotocol.v2 import ProxyProtocolV2
tlv = ProxyProtocolV2().unpack(bytes.fromhex(sys.argv[1])).tlv
ssl = tlv.ssl
assert ssl.has_ssl
facts = [(ssl.verified, "verified"), (ssl.has_cert_conn, "connection"), (ssl.has_cert_sess, "session")]
words = [tlv.authority, ssl.version, ssl.cipher, ssl.cn] + [word for holds, word in facts if holds]
print(" ".join(word for word in words if word))
"#;
