//! The access log at a receiver of syslog messages: rsyslog, over UDP, TCP and a Unix socket.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use testing::client::get;
use testing::tools::program;
use testing::{Scripted, Server, eventually, secs};

/// rsyslogd with an input of each kind, and one file.
struct Rsyslog {
    child: Child,
    directory: PathBuf,
    udp: u16,
    tcp: u16,
}

impl Rsyslog {
    fn start(directory: &Path) -> Self {
        Self::at(directory, testing::port::free(), testing::port::free())
    }

    fn at(directory: &Path, udp: u16, tcp: u16) -> Self {
        let at = directory.display();
        let text = format!(
            "global(workDirectory=\"{at}\" maxMessageSize=\"64k\" parser.escapeControlCharactersOnReceive=\"off\")\n\
             module(load=\"imudp\")\nmodule(load=\"imtcp\")\nmodule(load=\"imuxsock\" SysSock.Use=\"off\")\n\
             input(type=\"imudp\" address=\"127.0.0.1\" port=\"{udp}\")\n\
             input(type=\"imtcp\" address=\"127.0.0.1\" port=\"{tcp}\")\n\
             input(type=\"imuxsock\" Socket=\"{at}/log.sock\" UseSpecialParser=\"off\" ParseHostname=\"on\" \
             RateLimit.Interval=\"0\")\n\
             template(name=\"t\" type=\"string\" string=\"%pri-text%|%timereported:::date-rfc3339%|%app-name%|\
             %procid%|%msgid%|%structured-data%|%msg%\\n\")\n\
             *.* action(type=\"omfile\" file=\"{at}/out\" template=\"t\" flushOnTXEnd=\"on\")\n"
        );
        let file = directory.join("rsyslog.conf");
        fs::write(&file, text).unwrap();
        let child = Command::new(program("rsyslogd"))
            .args(["-n", "-C", "-i"])
            .arg(directory.join("pid"))
            .arg("-f")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let rsyslog = Self { child, directory: directory.to_owned(), udp, tcp };
        eventually("rsyslog listens", secs(20), || {
            (std::net::TcpStream::connect(("127.0.0.1", tcp)).is_ok() && directory.join("log.sock").exists())
                .then_some(())
        });
        rsyslog
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("out")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_for(&self, part: &str) -> String {
        eventually(&format!("rsyslog has {part:?}: {:?}", self.lines()), secs(20), || {
            self.lines().into_iter().find(|line| line.contains(part))
        })
    }
}

impl Drop for Rsyslog {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(log: &str, backend: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\n{log}\n[listener.web]\nbind = \"127.0.0.1:0\"\n\
         protocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\nhealth = \"off\"\n"
    )
}

#[test]
fn rsyslog_reads_every_field_over_udp_tcp_and_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let rsyslog = Rsyslog::start(directory.path());
    let backend = Scripted::answering("x");
    let socket = directory.path().join("log.sock").display().to_string();
    let targets = [
        format!("syslog+udp://127.0.0.1:{}", rsyslog.udp),
        format!("syslog+tcp://localhost:{}", rsyslog.tcp),
        format!("syslog+unix:{socket}"),
    ];
    for (kind, target) in ["udp", "tcp", "unix"].into_iter().zip(targets) {
        let log = format!(
            "target = \"{target}\"\nsyslog = {{ facility = \"local3\", severity = \"notice\", app-name = \"edge\" }}"
        );
        let server = Server::start(&config(&log, &backend.address));
        for number in 0..20 {
            get(&server.address("web"), &format!("/{kind}-{number}?%22%5d=%e4"));
        }
        let last = rsyslog.wait_for(&format!("/{kind}-19?"));
        let fields: Vec<_> = last.splitn(7, '|').collect();
        assert_eq!(fields[0], "local3.notice", "{last}");
        assert_eq!(&fields[2..6], ["edge", &server.pid().to_string(), "access", "-"], "{last}");
        // The time of the header is that of the session; of a Unix socket rsyslog takes the time of its arrival.
        let own = fields[6].trim_start().split(' ').next().unwrap();
        let time = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
        assert!((0..10).contains(&(time(fields[1]) - time(own))), "{last}");
        assert!(fields[6].contains(" web 127.0.0.1:") && fields[6].contains(" 200 ok "), "{last}");
        for number in 0..20 {
            let part = format!("/{kind}-{number}?");
            rsyslog.wait_for(&part);
            assert_eq!(rsyslog.lines().iter().filter(|line| line.contains(&part)).count(), 1, "{part}");
        }
        let status = server.ctl_json(&["status"]);
        assert_eq!(status["degraded"], serde_json::json!([]), "{status}");
    }
}

#[test]
fn events_reach_rsyslog_with_their_severity_and_the_process_log_too() {
    let directory = tempfile::tempdir().unwrap();
    let mut rsyslog = Rsyslog::start(directory.path());
    let backend = Scripted::answering("x");
    let socket = directory.path().join("log.sock").display().to_string();
    let (udp, tcp) = (rsyslog.udp, rsyslog.tcp);
    let targets = [
        format!("syslog+udp://127.0.0.1:{udp}"),
        format!("syslog+tcp://127.0.0.1:{tcp}"),
        format!("syslog+unix:{socket}"),
    ];
    for (kind, target) in ["udp", "tcp", "unix"].into_iter().zip(&targets) {
        let events = format!(
            "target = \"off\"\n[events]\ntarget = \"{target}\"\nsyslog = {{ facility = \"local5\", app-name = \"{kind}\" }}"
        );
        let server = Server::start(&config(&events, &backend.address));
        let pid = server.pid().to_string();
        assert!(server.ctl(&["weight", &backend.address, "7"]).status.success());
        let info = rsyslog.wait_for(&format!("|{kind}|{pid}|event|-|"));
        assert!(rsyslog.wait_for(": weight 7").starts_with("local5.info|"), "{info}");
        assert!(server.ctl(&["drain", &backend.address]).status.success());
        let warning = rsyslog.wait_for(&format!("|{kind}|{pid}|event|-|"));
        assert!(!warning.contains('<'), "{warning}");
        eventually("the warning is there", secs(20), || {
            let lines = rsyslog.lines();
            let is_it = |line: &&String| {
                line.starts_with("local5.warning|")
                    && line.contains(&format!("|{kind}|{pid}|"))
                    && line.contains("takes new sessions now")
            };
            lines.iter().find(is_it).cloned()
        });
        server.stderr.wait_for(": weight 7", secs(5));
    }
    // A live change begins it, with the events so far; a receiver that is away is named once, and gets the rest later.
    let server = Server::start(&config("target = \"off\"", &backend.address));
    assert!(server.ctl(&["weight", &backend.address, "5"]).status.success());
    let output = server.ctl(&["set", "events", &format!("{{ target = \"{}\" }}", targets[1])]);
    assert!(output.status.success(), "{output:?}");
    rsyslog.wait_for(": weight 5");
    drop(rsyslog);
    eventually("the receiver is away", secs(20), || {
        assert!(server.ctl(&["weight", &backend.address, "6"]).status.success());
        let status = server.ctl_json(&["status"]);
        let reason = status["degraded"].as_array()?.iter().find(|one| one["subject"] == "events")?.clone();
        reason["reason"].as_str()?.contains("is away: ").then_some(())
    });
    assert!(server.ctl(&["weight", &backend.address, "9"]).status.success());
    rsyslog = Rsyslog::at(directory.path(), udp, tcp);
    let late = rsyslog.wait_for(": weight 9");
    assert!(late.starts_with("daemon.info|") && late.contains("|penstock|"), "{late}");
}

#[test]
fn json_and_long_lines_are_cut_at_the_limit_only() {
    let directory = tempfile::tempdir().unwrap();
    let rsyslog = Rsyslog::start(directory.path());
    let backend = Scripted::answering("x");
    let log = format!(
        "target = \"syslog+tcp://127.0.0.1:{}\"\nformat = \"json\"\nsyslog = {{ max-length = \"1KiB\" }}",
        rsyslog.tcp
    );
    let server = Server::start(&config(&log, &backend.address));
    get(&server.address("web"), "/short");
    let line = rsyslog.wait_for("/short");
    let json: serde_json::Value = serde_json::from_str(line.splitn(7, '|').nth(6).unwrap().trim()).unwrap();
    assert_eq!(json["listener"], "web");
    get(&server.address("web"), &format!("/long-{}", "x".repeat(3000)));
    get(&server.address("web"), "/after");
    let long = rsyslog.wait_for("/long-");
    rsyslog.wait_for("/after");
    let message = long.splitn(7, '|').nth(6).unwrap();
    assert!((900..1024).contains(&message.len()) && message.ends_with("xxx"), "{}", message.len());
}

#[test]
fn a_receiver_that_goes_away_and_comes_back_loses_little_and_is_told_once() {
    let directory = tempfile::tempdir().unwrap();
    for kind in ["udp", "tcp"] {
        let place = directory.path().join(kind);
        fs::create_dir(&place).unwrap();
        let mut rsyslog = Rsyslog::start(&place);
        let (udp, tcp) = (rsyslog.udp, rsyslog.tcp);
        let backend = Scripted::answering("x");
        let port = if kind == "udp" { udp } else { tcp };
        let server = Server::start(&config(
            &format!("target = \"syslog+{kind}://127.0.0.1:{port}\""),
            &backend.address,
        ));
        get(&server.address("web"), "/before");
        rsyslog.wait_for("/before");
        drop(rsyslog);
        let away = eventually("the server says that the receiver is away", secs(20), || {
            // Each request is answered at once, also while no receiver reads the log.
            assert_eq!(get(&server.address("web"), "/lost").status, 200);
            let status = server.ctl_json(&["status"]);
            status["degraded"][0]["reason"].as_str().map(str::to_owned)
        });
        assert!(away.contains(&format!("the receiver syslog+{kind}://127.0.0.1:{port} is away: ")), "{away}");
        for number in 0..50 {
            get(&server.address("web"), &format!("/while-{number}"));
        }
        rsyslog = Rsyslog::at(&place, udp, tcp);
        eventually("the server says that it is back", secs(40), || {
            (server.ctl_json(&["status"])["degraded"] == serde_json::json!([])).then_some(())
        });
        for number in 0..50 {
            rsyslog.wait_for(&format!("/while-{number} "));
        }
        let events = String::from_utf8(server.ctl(&["events"]).stdout).unwrap();
        assert_eq!(events.matches("is away: ").count(), 1, "{events}");
        assert_eq!(events.matches("access-log: works again").count(), 1, "{events}");
    }
}

#[test]
fn a_socket_of_datagrams_and_one_of_streams_are_told_apart() {
    let backend = Scripted::answering("x");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dgram");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(secs(20))).unwrap();
    let server =
        Server::start(&config(&format!("target = \"syslog+unix:{}\"", path.display()), &backend.address));
    get(&server.address("web"), "/datagram");
    let mut bytes = [0; 4096];
    let read = socket.recv(&mut bytes).unwrap();
    let text = std::str::from_utf8(&bytes[..read]).unwrap();
    assert!(text.starts_with("<134>1 20") && text.contains("/datagram") && !text.ends_with('\n'), "{text}");

    // A reload sends to another receiver.
    let path = directory.path().join("stream");
    let listener = UnixListener::bind(&path).unwrap();
    let target = format!("syslog+unix:{}", path.display());
    let output = server.ctl(&["set", "access-log.target", &target]);
    assert!(output.status.success(), "{output:?}");
    get(&server.address("web"), "/stream");
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(secs(20))).unwrap();
    let mut all = String::new();
    while !all.ends_with('\n') {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{all}");
        all.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    assert!(all.starts_with("<134>1 20") && all.contains("/stream"), "{all}");
}

#[test]
fn a_receiver_that_reads_nothing_delays_no_request() {
    let backend = Scripted::answering("x");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server =
        Server::start(&config(&format!("target = \"syslog+tcp://127.0.0.1:{port}\""), &backend.address));
    let long = "x".repeat(7000);
    let address = server.address("web");
    let mut client = testing::Client::connect(&address);
    let dropped = || {
        let counters = server.ctl_json(&["status"])["counters"].clone();
        counters["log_lines_dropped"].as_u64().unwrap() + counters["log_lines_failed"].as_u64().unwrap()
    };
    let mut sent = 0;
    while dropped() == 0 {
        for _ in 0..200 {
            client.send(format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
            assert_eq!(client.response().status, 200);
            sent += 1;
        }
        assert!(sent < 40_000, "no line was given up");
    }
}

#[test]
fn wrong_receivers_are_refused_with_a_way_out() {
    for (log, said) in [
        ("target = \"syslog+udp://10.0.0.9\"", "has no valid host and port"),
        ("target = \"syslog://10.0.0.9:514\"", "names no receiver of syslog messages"),
        ("target = \"syslog+unix:dev/log\"", "is not an absolute path"),
        ("target = \"syslog+tcp://10.0.0.9:514/x\"", "has no valid host and port"),
        (
            "target = \"syslog+udp://10.0.0.9:514\"\nsyslog = { app-name = \"a b\" }",
            "is not a name of a program",
        ),
        (
            "target = \"syslog+udp://10.0.0.9:514\"\nsyslog = { facility = \"local9\" }",
            "did you mean \"local",
        ),
        ("target = \"syslog+udp://10.0.0.9:514\"\nsyslog = { max-length = \"100B\" }", "from 1KiB to 64KiB"),
    ] {
        let output = testing::server::Setup::new(&config(log, "127.0.0.1:1")).output();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(said), "{log}\n{error}");
    }
    let wrong = "target = \"off\"\n[events]\ntarget = \"stdout\"";
    let output = testing::server::Setup::new(&config(wrong, "127.0.0.1:1")).output();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2), "{error}");
    assert!(
        error.contains(".toml:6:10: events.target: \"stdout\" is not \"stderr\" or \"syslog+...\""),
        "{error}"
    );
    let server =
        Server::start(&config("target = \"off\"\nsyslog = { facility = \"local1\" }", "127.0.0.1:1"));
    server.stderr.wait_for("does nothing unless target is \"syslog+...\"", secs(5));
}
