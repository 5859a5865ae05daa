//! Promise 2: a change of configuration ends no established connection and fails no request; a bad one changes nothing.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use nix::sys::signal::Signal;
use testing::load::{Connections, Load};
use testing::peers::{self, Pattern};
use testing::server::{penstock, run_to_end};
use testing::websocket::WebSocket;
use testing::{Client, Scripted, Server, eventually, millis, secs, tools};

const GIGABYTE: u64 = 1 << 30;
const RELOADS: u32 = 100;

#[test]
fn a_hundred_reloads_under_load_fail_nothing_and_end_no_connection() {
    let dir = tempfile::tempdir().unwrap();
    // The load goes to nginx, the download to a backend of our own that makes its bytes, the WebSocket to Python.
    let nginx = peers::nginx(
        dir.path(),
        "location = /small { return 200 'small answer'; } keepalive_requests 1000000;",
    );
    let bulk = Scripted::start(|talk| {
        talk.request();
        talk.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {GIGABYTE}\r\n\r\n"));
        talk.client.stream.set_write_timeout(Some(secs(120)));
        let _ = Pattern::new().write_to(&mut talk.client.stream, GIGABYTE);
    });
    let echo = peers::websocket_echo();
    let file = |version: u32| {
        let extra =
            if version == 0 { "" } else { "[[listener.web.route]]\npath = \"/new\"\npool = \"app\"\n" };
        format!(
            "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             timeouts = {{ write = \"120s\" }}\nresponse-headers = {{ set = {{ X-Version = \"{version}\" }} }}\n{extra}\
             [[listener.web.route]]\npath = \"/bulk\"\npool = \"bulk\"\n[[listener.web.route]]\npath = \"/ws\"\npool = \"echo\"\n\
             [pool.app]\nbackends = [\"{}\"]\nbalance = \"{}\"\n\
             [pool.bulk]\nbackends = [\"{}\"]\ntimeouts = {{ body = \"120s\" }}\n[pool.echo]\nbackends = [\"{}\"]\n",
            nginx.address,
            ["round-robin", "least-connections"][version as usize],
            bulk.address,
            echo.address
        )
    };
    let server = Arc::new(Server::start(&file(0)));
    let address = server.address("web");
    let url = format!("http://{address}/small");

    let done = Arc::new(AtomicU32::new(0));
    let download = start_download(&address, done.clone());
    let mut socket = WebSocket::open(&address, "/ws");
    socket.echo("before");
    let fresh = Load::start(&address, "/small", Connections::New, 2, Some(300));
    let kept = Load::start(&address, "/small", Connections::Kept, 4, Some(400));
    let tools = start_tools(&url, done.clone());

    let mut refused = 0;
    for number in 1..=RELOADS {
        let valid = number % 5 != 0;
        server.write_config(&if valid {
            file(number % 2)
        } else {
            file(number % 2).replace("protocol =", "protokoll =")
        });
        if number % 2 == 0 {
            let output = server.ctl(&["reload"]);
            assert_eq!(output.status.success(), valid, "reload {number}: {output:?}");
            if !valid {
                refused += 1;
                let text = String::from_utf8_lossy(&output.stderr).into_owned()
                    + &String::from_utf8_lossy(&output.stdout);
                assert!(text.contains("protokoll") && text.contains("penstock.toml:"), "{text}");
            }
        } else if valid {
            server.signal(Signal::SIGHUP);
            let version = (number % 2).to_string();
            eventually(&format!("reload {number} is seen"), secs(20), || {
                let answer = Client::connect(&address).get("/small", &[]);
                (answer.header("x-version") == Some(&version)).then_some(())
            });
        } else {
            let before = server.ctl_json(&["status"])["counters"]["reloads_refused"].as_u64();
            server.signal(Signal::SIGHUP);
            refused += 1;
            eventually("the bad file is counted", secs(20), || {
                let now = server.ctl_json(&["status"])["counters"]["reloads_refused"].as_u64();
                assert!(now.is_some(), "{:#}", server.ctl_json(&["status"]));
                (now > before).then_some(())
            });
        }
        socket.echo(&format!("after reload {number}"));
        done.store(number, SeqCst);
    }
    assert_eq!(refused, RELOADS / 5);

    let tool_requests = tools.join().unwrap();
    let (fresh, kept) = (fresh.stop(), kept.stop());
    fresh.assert_clean();
    kept.assert_clean();
    let total = fresh.good + kept.good + tool_requests;
    assert!(total >= 200_000, "{total} requests");
    assert_eq!(download.join().unwrap(), GIGABYTE, "the download is whole and intact");
    socket.echo("after everything");
}

/// Downloads the gigabyte, a hundredth of it per reload, so that it lives as long as the test.
fn start_download(address: &str, done: Arc<AtomicU32>) -> std::thread::JoinHandle<u64> {
    let mut client = Client::connect(address);
    client.send("GET /bulk HTTP/1.1\r\nHost: test\r\n\r\n");
    std::thread::spawn(move || {
        let pattern = Pattern::new();
        client.read_until(b"\r\n\r\n");
        let mut at = 0;
        loop {
            assert!(pattern.is_at(at, client.unused()), "the download differs after {at}");
            at += client.unused().len() as u64;
            client.forget();
            if at >= GIGABYTE {
                return at;
            }
            let allowed = || GIGABYTE / u64::from(RELOADS) * u64::from(done.load(SeqCst) + 1);
            if at >= allowed() && done.load(SeqCst) < RELOADS {
                eventually("the next reload", secs(120), || {
                    (at < allowed() || done.load(SeqCst) >= RELOADS).then_some(())
                });
            }
            assert!(client.fill(Instant::now() + secs(60)).unwrap() > 0, "the download ends after {at}");
        }
    })
}

/// Runs h2load and wrk in turn until the reloads are done and enough requests were made; gives their number.
fn start_tools(url: &str, done: Arc<AtomicU32>) -> std::thread::JoinHandle<u64> {
    let url = url.to_owned();
    std::thread::spawn(move || {
        let mut requests = 0;
        while done.load(SeqCst) < RELOADS || requests < 200_000 {
            let output = tools::run("h2load", &["--h1", "-n", "20000", "-c", "20", &url], secs(120));
            let counted = tools::parse_h2load(&String::from_utf8_lossy(&output.stdout));
            assert_eq!(
                (counted.succeeded, counted.failed),
                (20_000, 0),
                "{}",
                String::from_utf8_lossy(&output.stdout)
            );
            requests += counted.succeeded;
            let mut command = Command::new(tools::program("wrk"));
            let output = run_to_end(
                command
                    .args(["-t", "1", "-c", "10", "-d", "2s", "--timeout", "30s", &url])
                    .stdin(Stdio::null()),
                secs(60),
            );
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!text.contains("Non-2xx") && !text.contains("Socket errors"), "{text}");
            let line = text
                .lines()
                .find(|line| line.contains(" requests in "))
                .unwrap_or_else(|| panic!("wrk: {text}"));
            requests += line.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        }
        requests
    })
}

fn two_listeners(second: &str, backend: &str) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n{second}\n\
         [pool.app]\nbackends = [\"{backend}\"]\n"
    )
}

#[test]
fn a_listener_is_added_and_removed_by_reload_and_its_sessions_end_in_peace() {
    let backend = Scripted::answering("here");
    let server = Server::start(&two_listeners("", &backend.address));
    let second = "[listener.more]\nbind = \"unix:@DIR@/more.sock\"\nprotocol = \"http\"\npool = \"app\"";
    server.write_config(&two_listeners(second, &backend.address));
    assert!(server.ctl(&["reload"]).status.success());
    let more = format!("unix:{}", server.dir.path().join("more.sock").display());
    let mut kept = Client::connect(&more);
    assert_eq!(kept.get("/", &[]).text(), "here");

    server.write_config(&two_listeners("", &backend.address));
    assert!(server.ctl(&["reload"]).status.success());
    eventually("no socket listens any more", secs(5), || Client::try_connect(&more).is_err().then_some(()));
    let answer = kept.get("/", &[]);
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "here"),
        "an established connection is not ended"
    );
    assert_eq!(server.client("web").get("/", &[]).text(), "here");
}

#[test]
fn an_invalid_file_changes_nothing_and_the_answer_names_line_and_column() {
    let backend = Scripted::answering("old");
    let server = Server::start(&two_listeners("", &backend.address));
    for bad in [
        "[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"nothing\"\n",
        "not toml at all [",
        "",
    ] {
        server.write_config(bad);
        let output = server.ctl(&["reload"]);
        let text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && text.contains("penstock.toml"), "{bad:?}: {text}");
        assert_eq!(server.client("web").get("/", &[]).text(), "old");
    }
    std::fs::remove_file(server.dir.path().join("penstock.toml")).unwrap();
    assert!(!server.ctl(&["reload"]).status.success());
    assert_eq!(server.client("web").get("/", &[]).text(), "old");
}

#[test]
fn requests_in_flight_end_on_the_old_snapshot_and_new_ones_see_the_new() {
    let (release, waiting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (gate, count) = (release.clone(), waiting.clone());
    let old = Scripted::start(move |talk| {
        while talk.request().is_some() {
            count.fetch_add(1, SeqCst);
            while !gate.load(SeqCst) {
                std::thread::sleep(millis(5));
            }
            let _ = talk.answer(200, &[], b"old");
        }
    });
    let new = Scripted::answering("new");
    let server = Server::start(&two_listeners("", &old.address));
    let mut client = server.client("web");
    client.send(testing::client::request("GET", "/", &[], b""));
    eventually("the request is with the backend", secs(5), || (waiting.load(SeqCst) == 1).then_some(()));
    server.write_config(&two_listeners("", &new.address));
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(server.client("web").get("/", &[]).text(), "new");
    release.store(true, SeqCst);
    assert_eq!(client.response().text(), "old");
    assert_eq!(client.get("/", &[]).text(), "new", "the same connection goes on with the new configuration");
}

#[test]
fn health_weights_and_drains_survive_a_reload() {
    let (a, b) = (Scripted::answering("a"), Scripted::answering("b"));
    let config = |comment: &str| {
        format!(
            "# {comment}\n[control]\nsocket = \"@DIR@/control.sock\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\", \"{}\"]\nhealth = {{ tcp = true, interval = \"200ms\", timeout = \"200ms\" }}\n",
            a.address, b.address
        )
    };
    let server = Server::start(&config("one"));
    eventually("both are up", secs(10), || {
        (server.health(&a.address) == "up" && server.health(&b.address) == "up").then_some(())
    });
    assert!(server.ctl(&["drain", "app", &a.address]).status.success());
    assert!(server.ctl(&["weight", "app", &b.address, "7"]).status.success());
    server.write_config(&config("two"));
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(server.health(&b.address), "up", "no unchecked state after a reload");
    assert_eq!(server.backend(&b.address)["weight_override"], 7);
    for _ in 0..20 {
        assert_eq!(server.client("web").get("/", &[]).text(), "b", "the drain holds");
    }
}

#[test]
fn ctl_finds_the_server_of_a_broken_file_and_a_refused_reload_says_that_the_server_goes_on() {
    let backend = Scripted::answering("x");
    let server = Server::start(&two_listeners("", &backend.address));
    let good = fs::read_to_string(server.dir.path().join("penstock.toml")).unwrap();
    let file = server.dir.path().join("penstock.toml").display().to_string();
    for fault in ["[nonsense]\n", "[pool.app2]\nbackends = 7\n", "[listener.web2]\nbind = \":80\n"] {
        fs::write(&file, format!("{good}{fault}")).unwrap();
        let status = penstock(&["ctl", "--config", &file, "status"]);
        assert!(status.status.success(), "{fault}: {status:?}");
        let reload = penstock(&["ctl", "--config", &file, "reload"]);
        let said = String::from_utf8_lossy(&reload.stderr).into_owned();
        let first = "refused, nothing changed: the server keeps its configuration\n";
        assert_eq!(reload.status.code(), Some(1), "{said}");
        assert!(said.lines().next().is_some_and(|line| format!("{line}\n").ends_with(first)), "{said}");
        assert!(said.contains("penstock.toml:") && said.matches("error").count() >= 2, "{said}");
        assert_eq!(server.client("web").get("/", &[]).text(), "x");
    }
    fs::write(&file, good.replace("socket = ", "socket = 7 # ")).unwrap();
    let status = penstock(&["ctl", "--config", &file, "status"]);
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert_eq!(status.status.code(), Some(2), "{said}");
    assert!(said.starts_with(&format!("error: cannot learn the control socket from {file}: ")), "{said}");
    assert!(said.contains("--socket PATH") && said.contains("control.socket: a path is expected"), "{said}");
}
