//! Where Penstock differs from Pen on purpose. Each difference has its reason, which docs/pen.md prints, and a check that
//! it is there: a variant without one does not compile.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use testing::client::request;
use testing::{Client, Recorder, Scripted, eventually, port, secs};

use crate::doors::{Door, Which, answer, greeter};
use crate::same::echo;
use crate::settings::servers_of_a_client;

text::words! {
    /// A difference.
    enum Difference: "difference" {
        UnixAnswer = "the answer of a backend on a Unix socket that closes behind it",
        DeadServer = "a server at which nothing listens",
        HalfClose = "a client that ends its direction before the answer",
        LimitLeak = "the limit of a server, after a client was turned away",
        ForgedHeader = "X-Forwarded-For that a client sends",
        OtherMethods = "X-Forwarded-For of PUT, DELETE, PATCH and OPTIONS",
        SplitHead = "X-Forwarded-For of a request that arrives in two pieces",
        ControlFreeze = "a client of the control socket that sends nothing",
        LastServer = "the only server, after it failed once",
        WeightsOfNothing = "-W without a weight",
        NoAclAlone = "`no acl` without a number",
        ErrorPage = "-H while no server answers",
        TrackingTime = "-T, and a client that comes back after its time",
        FirstDatagrams = "-U -r, and a client that sends several datagrams at once",
    }
}

impl Difference {
    /// What Pen does, and what Penstock does.
    const fn told(self) -> [&'static str; 2] {
        match self {
            Self::UnixAnswer => ["it is thrown away, and the client gets nothing", "the client gets it"],
            Self::DeadServer => [
                "with epoll, its default, its clients are turned away, and it is not blacklisted",
                "another server takes its clients, and it is left alone for the time of -b",
            ],
            Self::HalfClose => ["it gets no answer", "it gets the answer"],
            Self::LimitLeak => ["one more client than the limit gets in", "the limit holds"],
            Self::ForgedHeader => {
                ["the backend gets it as it is: any client can claim any address", "it is replaced"]
            }
            Self::OtherMethods => ["it is missing: only GET, POST and HEAD have it", "every request has it"],
            Self::SplitHead => ["it is missing", "every request has it"],
            Self::ControlFreeze => ["it stops all traffic until it leaves", "no client notices it"],
            Self::LastServer => [
                "every client is turned away for 30 s (-b), although the server is back",
                "the last server that is left is always tried",
            ],
            Self::WeightsOfNothing => ["all weights are 0, and no client is served", "all weigh the same"],
            Self::NoAclAlone => ["Pen crashes (SIGSEGV)", "an error says what is missing"],
            Self::ErrorPage => {
                ["the connection is closed without an answer", "the client gets an answer with 502 or 503"]
            }
            Self::TrackingTime => [
                "it is remembered all the same, until a new client takes its place in the table",
                "it is a new client",
            ],
            Self::FirstDatagrams => [
                "each of the first ones is that of a new client: they are spread over the servers",
                "all are those of one client, and go to one server",
            ],
        }
    }

    /// What a client sees, or a backend gets.
    fn seen(self, which: Which) -> String {
        match self {
            Self::UnixAnswer => unix_answer(which),
            Self::DeadServer => {
                let server = Scripted::answering("b");
                let line = format!("-r @ 127.0.0.1:{} {}", port::free(), server.address);
                Door::open(which, &line).asks(4).join(" ")
            }
            Self::HalfClose => half_closed(which),
            Self::LimitLeak => limit_leak(which),
            Self::ForgedHeader => {
                forwarded(which, &request("GET", "/", &[("X-Forwarded-For", "192.0.2.1")], b""), &[])
            }
            Self::OtherMethods => forwarded(which, &request("PUT", "/", &[], b"x"), &[]),
            Self::SplitHead => {
                let whole = request("GET", "/", &[], b"");
                forwarded(which, &whole[..20], &whole[20..])
            }
            Self::ControlFreeze => control_freeze(which),
            Self::LastServer => last_server(which),
            Self::WeightsOfNothing => {
                let server = Scripted::answering("a");
                Door::open(which, &format!("-W -r @ {}", server.address)).ask()
            }
            Self::NoAclAlone => {
                let output = Door::fails(which, "-O no~acl @ 127.0.0.1:9");
                output.status.to_string().split(" (").next().unwrap().to_owned()
            }
            Self::ErrorPage => {
                let answer = Door::open(which, &format!("-H @ 127.0.0.1:{}", port::free())).ask();
                if ["502", "503"].contains(&&*answer) { "an error page".to_owned() } else { answer }
            }
            Self::TrackingTime => match servers_of_a_client(which, &[]) {
                (true, true) => "the same server".to_owned(),
                (within, after) => format!("{within} {after}"),
            },
            Self::FirstDatagrams => first_datagrams(which),
        }
    }

    /// What [`Self::seen`] gives with Pen, and with Penstock.
    const fn expected(self) -> [&'static str; 2] {
        match self {
            Self::UnixAnswer => ["closed", "a"],
            Self::DeadServer => ["b closed b closed", "b b b b"],
            Self::HalfClose => ["", "4 bytes"],
            Self::LimitLeak => ["over the limit", "at the limit"],
            Self::ForgedHeader => ["192.0.2.1", "127.0.0.1"],
            Self::OtherMethods | Self::SplitHead => ["none", "127.0.0.1"],
            Self::ControlFreeze => ["silence", "a"],
            Self::LastServer => ["closed", "a"],
            Self::WeightsOfNothing => ["closed", "a"],
            Self::NoAclAlone => ["signal: 11", "exit status: 2"],
            Self::ErrorPage => ["closed", "an error page"],
            Self::TrackingTime => ["the same server", "true false"],
            Self::FirstDatagrams => ["10 answers of 2 servers", "10 answers of 1 server"],
        }
    }
}

#[test]
fn each_difference_is_there() {
    let mut wrong = Vec::new();
    for difference in Difference::ALL {
        let ([pen, penstock], [of_pen, ours]) = (Which::BOTH, difference.expected());
        // What Pen does may depend on which of two events it sees first.
        let mut seen = (0..20).map(|_| difference.seen(pen));
        if !seen.any(|seen| seen == of_pen) {
            wrong.push(format!("{difference}: Pen never shows {of_pen:?}"));
        }
        let seen = difference.seen(penstock);
        if seen != ours {
            wrong.push(format!("{difference}: {seen:?}, not {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn page_has_every_difference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pen.md");
    let page = fs::read_to_string(&path).unwrap();
    let rows = Difference::ALL.iter().map(|difference| {
        let [pen, penstock] = difference.told();
        format!("| {difference} | {pen} | {penstock} |\n")
    });
    let table = format!("| what | Pen | Penstock |\n|---|---|---|\n{}", rows.collect::<String>());
    let (begin, end) = ("<!-- differences -->\n", "<!-- end of differences -->");
    let (before, rest) = page.split_once(begin).unwrap();
    let (written, after) = rest.split_once(end).unwrap();
    if written != table {
        assert!(std::env::var_os("UPDATE_GOLDEN").is_some(), "UPDATE_GOLDEN=1 writes the table anew");
        fs::write(path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    }
}

fn unix_answer(which: Which) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.sock");
    let _server = Scripted::start_unix(&path, |talk| {
        if talk.request().is_some() {
            let _ = talk.answer(200, &[("Connection", "close")], b"a");
        }
    });
    allow_all(&path);
    // Pen loses it only where the answer and the end arrive together.
    let door = Door::open(which, &format!("-r @ {}", path.display()));
    (0..30).map(|_| door.ask()).find(|answer| answer != "a").unwrap_or_else(|| "a".to_owned())
}

/// Both may run as another user than the test.
fn allow_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    for path in [path, path.parent().unwrap()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
}

/// The X-Forwarded-For that a backend gets for a request, which may arrive in two pieces.
fn forwarded(which: Which, first: &[u8], second: &[u8]) -> String {
    let server = Recorder::start();
    let door = Door::open(which, &format!("-H @ {}", server.address()));
    let mut client = Client::connect(&door.address);
    client.send(first);
    if !second.is_empty() {
        // Pen sends the first piece on; Penstock waits for the whole head.
        if which == Which::Pen {
            let arrived = || server.records().iter().any(|record| !record.bytes.is_empty()).then_some(());
            eventually("the first piece is at the backend", secs(5), arrived);
        }
        client.send(second);
    }
    let response = client.response();
    if response.status != 200 {
        return response.status.to_string();
    }
    let request = eventually("the backend has the request", secs(5), || server.requests().pop());
    request.header("X-Forwarded-For").unwrap_or_else(|| "none".to_owned())
}

fn control_freeze(which: Which) -> String {
    let server = Scripted::answering("a");
    // Pen opens no control socket for root without -u.
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    let door = Door::open(which, &format!("-r -u {user} -C @DIR/ctl @ {}", server.address));
    assert_eq!(door.ask(), "a");
    let _idle = Client::connect(door.dir.path().join("ctl").to_str().unwrap());
    // Pen stops when it has noticed that client, at the latest after this one.
    let first = door.ask();
    let second = answer(Client::try_connect(&door.address));
    if first == "a" { second } else { first }
}

fn last_server(which: Which) -> String {
    let port = port::free();
    let door = Door::open(which, &format!("-r -O poll @ 127.0.0.1:{port}"));
    assert_eq!(door.ask(), "closed");
    let _back = Scripted::answering_at(port, "a");
    door.ask()
}

fn limit_leak(which: Which) -> String {
    let servers = ["a", "b"].map(greeter);
    let door = Door::open(which, &format!("-r @ {}:1 {}:1", servers[0].address, servers[1].address));
    let _held: Vec<_> = (0..2).map(|_| door.hold(secs(8)).unwrap()).collect();
    let over = (0..4).any(|_| door.hold(secs(8)).is_some());
    if over { "over the limit".to_owned() } else { "at the limit".to_owned() }
}

/// What a client gets that sends four bytes, and ends its direction.
fn half_closed(which: Which) -> String {
    let server = Scripted::start(|talk| {
        let all = talk.rest();
        talk.send(format!("{} bytes", all.len()));
    });
    let door = Door::open(which, &format!("-r @ {}", server.address));
    let answer = || {
        let mut client = Client::connect(&door.address);
        client.send("1234");
        client.finish_sending();
        String::from_utf8(client.read_to_end().0).unwrap()
    };
    // As with a Unix socket, Pen loses what arrives together with the end.
    (0..30).map(|_| answer()).find(|answer| answer != "4 bytes").unwrap_or_else(|| "4 bytes".to_owned())
}

/// Which servers answer a client that sends ten datagrams at once.
fn first_datagrams(which: Which) -> String {
    let door = Door::open(which, &format!("-U -r @ {} {}", echo("a"), echo("b")));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(&door.address).unwrap();
    client.set_read_timeout(Some(secs(8))).unwrap();
    for _ in 0..10 {
        client.send(b"x").unwrap();
    }
    let answers: Vec<_> = std::iter::from_fn(|| {
        let mut room = [0; 100];
        let length = client.recv(&mut room).ok()?;
        Some(room[..length].to_vec())
    })
    .take(10)
    .collect();
    let servers: BTreeSet<_> = answers.iter().collect();
    let noun = if servers.len() == 1 { "server" } else { "servers" };
    format!("{} answers of {} {noun}", answers.len(), servers.len())
}
