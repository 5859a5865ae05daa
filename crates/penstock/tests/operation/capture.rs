//! `ctl capture`: sessions as packets, as tshark and tcpdump read them.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use testing::server::binary;
use testing::tools::{self, Root, run};
use testing::{Client, Scripted, Server, eventually, pki, secs};

fn server(backend: &str) -> Server {
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\n"
    ))
}

/// Starts a capture, and waits until it is one.
fn capture(server: &Server, file: &Path, more: &[&str]) -> Child {
    capture_through(&[], server, file, more)
}

/// The same by a program that runs its arguments.
fn capture_through(program: &[&str], server: &Server, file: &Path, more: &[&str]) -> Child {
    let events = || {
        String::from_utf8(server.ctl(&["events"]).stdout).unwrap().matches(" captures the bytes of ").count()
    };
    let before = events();
    let words = [program, &[binary()]].concat();
    let child = Command::new(words[0])
        .args(&words[1..])
        .args(["ctl", "--socket"])
        .arg(server.control_socket())
        .args(["capture", "--to"])
        .arg(file)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the capture begins", secs(20), || (events() > before).then_some(()));
    child
}

#[track_caller]
fn ended(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Time of a capture in which some requests are made.
const LONG_ENOUGH: &str = "8s";

fn port_of(client: &Client) -> u16 {
    match &client.stream {
        testing::client::Stream::Tcp(tcp) => tcp.local_addr().unwrap().port(),
        testing::client::Stream::Unix(_) => panic!("it is over TCP"),
    }
}

/// What tshark prints of a file.
#[track_caller]
fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = tshark_of(file, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Arguments of tshark, and whether what it then prints is what has to be in the file.
type Wanted<'a> = (&'a [&'a str], &'a dyn Fn(&str) -> bool);

/// Waits until tshark finds all that is wanted in the file of a running capture, then ends the capture.
#[track_caller]
fn wait_for_packets(mut child: Child, file: &Path, wanted: &[Wanted<'_>]) {
    for (arguments, is_it) in wanted {
        eventually(&format!("tshark finds it: {arguments:?}"), secs(60), || {
            // The end of the file may be a part of a packet.
            let output = tshark_of(file, arguments);
            is_it(&String::from_utf8_lossy(&output.stdout)).then_some(())
        });
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[track_caller]
fn tshark_of(file: &Path, arguments: &[&str]) -> Output {
    let all: Vec<_> =
        ["-r", file.to_str().unwrap(), "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
    run("tshark", &all, secs(60))
}

#[test]
fn a_session_is_read_by_tshark_as_the_requests_and_responses_that_it_had() {
    let backend = Scripted::answering("the answer");
    let server = server(&backend.address);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web.pcapng");
    // This one began before the capture, and is idle.
    let mut earlier = Client::connect(&server.address("web"));
    assert_eq!(earlier.get("/before", &[]).text(), "the answer");

    let child = capture(&server, &file, &["--listener", "web", "--for", LONG_ENOUGH]);
    let mut client = Client::connect(&server.address("web"));
    for path in ["/one", "/two"] {
        assert_eq!(client.get(path, &[]).text(), "the answer");
    }
    let from = port_of(&client);
    drop(client);
    Client::connect(&server.address("raw")).send("GET /other HTTP/1.0\r\n\r\n");
    let said = ended(child);
    assert!(said.contains("web.pcapng: "), "{said}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let requests =
        tshark(&file, &["-Y", "http.request", "-T", "fields", "-e", "tcp.srcport", "-e", "http.request.uri"]);
    assert_eq!(requests, format!("{from}\t/one\n{from}\t/two\n"));
    let responses = tshark(
        &file,
        &["-Y", "http.response", "-T", "fields", "-e", "http.response.code", "-e", "http.file_data"],
    );
    assert_eq!(responses.lines().count(), 2, "{responses}");
    assert!(responses.contains("200"), "{responses}");
    let wrong = "tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\" || tcp.analysis.flags || _ws.malformed";
    assert_eq!(tshark(&file, &["-Y", wrong]), "");
    let port = server.address("web").rsplit(':').next().unwrap().to_owned();
    let opened = tshark(
        &file,
        &["-Y", "tcp.flags.syn == 1 && tcp.flags.ack == 0", "-T", "fields", "-e", "tcp.dstport"],
    );
    assert_eq!(opened, format!("{port}\n"));
    let read = run("tcpdump", &["-nnA", "-r", file.to_str().unwrap()], secs(30));
    assert!(String::from_utf8_lossy(&read.stdout).contains("GET /one"), "{read:?}");

    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert!(events.contains(" captures the bytes of all clients of listener web for 8 s"), "{events}");
    assert!(events.contains("capture of listener web by ") && events.contains(" of 1 session, "), "{events}");
    // The idle one is served on.
    assert_eq!(earlier.get("/after", &[]).text(), "the answer");
}

#[test]
fn http2_is_read_by_tshark_over_tls_and_in_the_clear() {
    let backend = Scripted::answering("the answer");
    let directory = tempfile::tempdir().unwrap();
    let certificates = directory.path().join("certificates");
    fs::create_dir(&certificates).unwrap();
    pki::self_signed(&certificates, "web", &["localhost"], pki::Time::Now);
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [listener.secure]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         tls = {{ certificates = \"{}\" }}\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
        certificates.display(),
        backend.address
    ));
    for (listener, url, how) in [
        ("web", format!("http://{}/one", server.address("web")), "--http2-prior-knowledge"),
        ("secure", server.address("secure").replace("127.0.0.1", "https://localhost") + "/one", "--http2"),
    ] {
        let file = directory.path().join(listener);
        let child = capture(&server, &file, &["--listener", listener, "--for", "1h"]);
        for path in ["/one", "/two"] {
            assert_eq!(tools::curl_text(&["-k", how, &url.replace("/one", path)]), "the answer");
        }
        let port = server.address(listener).rsplit(':').next().unwrap().to_owned();
        let as_http2 = format!("tcp.port=={port},http2");
        let paths = ["-d", &as_http2, "-Y", "http2.headers.path", "-T", "fields", "-e", "http2.headers.path"];
        let statuses =
            ["-d", &as_http2, "-Y", "http2.headers.status", "-T", "fields", "-e", "http2.headers.status"];
        let wanted: [Wanted<'_>; 2] =
            [(&paths, &|said| said == "/one\n/two\n"), (&statuses, &|said| said == "200\n200\n")];
        wait_for_packets(child, &file, &wanted);
    }
}

/// A flow has no beginning that a capture could miss.
#[test]
fn flows_of_datagrams_are_read_by_tshark_as_questions_and_answers_also_those_that_were_there_before() {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(secs(20))).unwrap();
        socket
    };
    let backend = socket();
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"app\"\n\
         [listener.other]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
        backend.local_addr().unwrap()
    ));
    // A question for the address of a name of that many letters, and its answer without one.
    let question = |letters: u8, flags: u8| {
        let mut bytes = vec![0, 7, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0, letters];
        bytes.extend(vec![b'x'; letters.into()]);
        bytes.extend([0, 0, 1, 0, 1]);
        bytes
    };
    let ask = |client: &UdpSocket, listener: &str, letters: u8| {
        client.send_to(&question(letters, 1), server.address(listener)).unwrap();
        let mut room = [0; 100];
        let (length, from) = backend.recv_from(&mut room).unwrap();
        assert_eq!(room[..length], question(letters, 1));
        backend.send_to(&question(letters, 0x81), from).unwrap();
        assert_eq!(client.recv_from(&mut room).unwrap().0, length);
    };
    let (earlier, later, other) = (socket(), socket(), socket());
    ask(&earlier, "dns", 1);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dns");
    let mut child = capture(&server, &file, &["--listener", "dns", "--for", "1h"]);
    ask(&earlier, "dns", 2);
    ask(&later, "dns", 3);
    ask(&later, "dns", 4);
    ask(&other, "other", 5);
    let last = question(4, 0x81);
    eventually("the last answer is in the file", secs(20), || {
        fs::read(&file).unwrap().windows(last.len()).any(|part| part == last).then_some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let port = server.address("dns").rsplit(':').next().unwrap().to_owned();
    let as_dns = format!("udp.port=={port},dns");
    let fields = ["udp.srcport", "udp.dstport", "dns.qry.name"].iter().flat_map(|field| ["-e", *field]);
    let words: Vec<_> =
        ["-d", &as_dns, "-o", "udp.check_checksum:TRUE", "-T", "fields"].into_iter().chain(fields).collect();
    let port_of = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let expected: String = [(&earlier, "xx"), (&later, "xxx"), (&later, "xxxx")]
        .iter()
        .map(|(client, name)| {
            let client = port_of(client);
            format!("{client}\t{port}\t{name}\n{port}\t{client}\t{name}\n")
        })
        .collect();
    assert_eq!(tshark(&file, &words), expected);
    let wrong = "udp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\" || _ws.malformed";
    assert_eq!(tshark(&file, &["-o", "udp.check_checksum:TRUE", "-d", &as_dns, "-Y", wrong]), "");
    eventually("the end is told", secs(20), || {
        let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
        let ended = events.lines().find(|line| line.contains("capture of listener dns by "))?;
        assert!(ended.contains(" ended: 6 packets of 2 sessions, "), "{events}");
        Some(())
    });
    let none = directory.path().join("none");
    let said = ended(capture(&server, &none, &["--listener", "dns", "--for", "300ms"]));
    assert!(said.contains("nothing that matches came meanwhile"), "{said}");
}

#[test]
fn a_capture_is_bounded_exclusive_and_of_the_clients_that_are_named() {
    let backend = Scripted::answering("x");
    let server = server(&backend.address);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let small = at("small");
    let child = capture(&server, &small, &["--listener", "web", "--max-size", "16KiB", "--for", "1h"]);
    let second = server.ctl(&["capture", "--listener", "web", "--to", at("second").to_str().unwrap()]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("one capture at a time"), "{error}");
    assert!(!at("second").exists());
    let mut client = Client::connect(&server.address("web"));
    for _ in 0..200 {
        assert_eq!(client.get(&format!("/{}", "x".repeat(500)), &[]).status, 200);
    }
    ended(child);
    let size = fs::metadata(&small).unwrap().len();
    assert!((8_000..=16_384).contains(&size), "{size}");
    tshark(&small, &[]);

    let none = at("none");
    let child = capture(&server, &none, &["--listener", "web", "--for", "1s", "--client", "203.0.113.0/24"]);
    assert_eq!(Client::connect(&server.address("web")).get("/", &[]).status, 200);
    ended(child);
    assert_eq!(tshark(&none, &[]), "");

    // A client that leaves ends its capture.
    let mut child = capture(&server, &at("left"), &["--listener", "raw", "--for", "1h"]);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("it has ended", secs(20), || {
        let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
        events.contains("capture of listener raw by ").then_some(())
    });
    for (arguments, said) in [
        (&["--listener", "wbe", "--to", "/tmp/never"][..], "no listener \"wbe\", did you mean \"web\"?"),
        (&["--listener", "web", "--to", "/tmp/never", "--client", "x"], "client: "),
        (&["--listener", "web", "--to", small.to_str().unwrap()], "exists already"),
        (&["--listener", "web", "--to", "/tmp/never", "--max-size", "1B"], "it is a size from 1KiB"),
        (&["--listener", "web", "--to", "/nowhere/x"], "cannot be written"),
    ] {
        let output = server.ctl(&[&["capture"], arguments].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(said), "{arguments:?}: {error}");
        assert!(!Path::new("/tmp/never").exists());
    }
}

#[test]
fn a_full_disk_ends_a_capture_after_a_whole_packet_and_harms_no_traffic() {
    let backend = Scripted::answering(&"x".repeat(3000));
    let server = server(&backend.address);
    let directory = tempfile::tempdir().unwrap();
    let (file, copy) = (directory.path().join("disk/full"), directory.path().join("copy"));
    fs::create_dir(directory.path().join("disk")).unwrap();
    let (disk, kept) = (file.parent().unwrap().display(), copy.display());
    let full = format!(
        "mount -t tmpfs -o size=64k none {disk} || exit 9\n\"$@\"\ncode=$?\n\
         [ -e {disk}/full ] && cp {disk}/full {kept}\nexit $code"
    );
    let full_from_the_start = full.replace("\n\"$@\"", &format!("\ncat /dev/zero > {disk}/fill\n\"$@\""));
    let too_large = "ulimit -f 64; exec \"$@\"";
    let mut ways = vec![(vec!["sh", "-c", too_large, "sh"], "File too large")];
    if tools::root("mounts a small file system of its own") == Root::Here {
        let unshare = |script| vec!["unshare", "--mount", "sh", "-c", script, "sh"];
        ways.push((unshare(&full), "No space left on device"));
        ways.push((unshare(&full_from_the_start), "No space left on device"));
    }
    for (at, (way, why)) in ways.iter().enumerate() {
        let child = capture_through(way, &server, &file, &["--listener", "web", "--for", "1h"]);
        let mut client = Client::connect(&server.address("web"));
        // More than any of these disks has room for.
        for _ in 0..100 {
            let answer = client.get("/", &[]);
            assert_eq!((answer.status, answer.body.len()), (200, 3000));
        }
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("full cannot be written: {why}")), "{error}");
        eventually("the next capture may begin", secs(20), || {
            let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
            (events.matches("capture of listener web by ").count() == at + 1).then_some(())
        });
        let found = if at == 0 { &file } else { &copy };
        if at == 2 {
            assert!(!found.exists(), "an empty file is of no use");
            continue;
        }
        assert!(error.contains("of whole packets from before; --max-size ends"), "{error}");
        assert!(tshark(found, &[]).lines().count() > 5, "{error}");
        fs::remove_file(found).unwrap();
    }
    assert_eq!(Client::connect(&server.address("web")).get("/", &[]).status, 200);
}

#[test]
fn bulk_over_tcp_is_captured_whole() {
    // Sends back what comes, as long as it comes.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
    });
    let server = server(&address);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("raw");
    let child = capture(&server, &file, &["--listener", "raw", "--for", "1h"]);
    let mut client = Client::connect(&server.address("raw"));
    for _ in 0..20 {
        client.send(vec![b'y'; 50_000]);
        client.read_exactly(50_000);
    }
    drop(client);
    let sum = |said: &str| said.lines().filter_map(|line| line.parse::<u64>().ok()).sum::<u64>();
    let is_whole = |said: &str| sum(said) == 2 * 20 * 50_000;
    wait_for_packets(child, &file, &[(&["-T", "fields", "-e", "tcp.len"], &is_whole)]);
}

#[test]
fn the_end_says_how_many_packets_and_why_it_came_early() {
    let backend = Scripted::answering(&"x".repeat(3000));
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
        backend.address
    ));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("none");
    let said = ended(capture(&server, &file, &["--listener", "web", "--for", "300ms"]));
    assert!(
        said.contains("none: 0 packets of 0 sessions") && said.contains("nothing that matches came"),
        "{said}"
    );
    let file = directory.path().join("short");
    let child = capture(&server, &file, &["--listener", "web", "--for", "1h", "--max-size", "1KiB"]);
    let mut client = Client::connect(&server.address("web"));
    assert_eq!(client.get("/", &[]).status, 200);
    let said = ended(child);
    assert!(said.contains("it ended early: more would not fit into 1.0 KiB"), "{said}");
    let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
    assert!(events.contains("0 packets of 0 sessions") && events.contains("it ended early"), "{events}");
}
