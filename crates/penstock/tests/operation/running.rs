//! The process among others: start, privilege, descriptors, signals, systemd, logs and numbers.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use nix::sys::signal::Signal;
use testing::client::{End, Stream, get, request};
use testing::load::{Connections, Load};
use testing::server::{Setup, penstock};
use testing::tools::{self, Root};
use testing::{Client, Scripted, Server, eventually, millis, secs};

fn config(backend: &str, extra: &str) -> String {
    format!(
        "{extra}\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\n"
    )
}

/// A backend whose answers wait until they are let go.
fn gated() -> (Scripted, Arc<AtomicBool>, Arc<AtomicBool>) {
    let (arrived, go) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (seen, gate) = (arrived.clone(), go.clone());
    let backend = Scripted::start(move |talk| {
        while let Some(request) = talk.request() {
            if request.target == "/wait" {
                seen.store(true, SeqCst);
                while !gate.load(SeqCst) {
                    std::thread::sleep(millis(5));
                }
            }
            if talk.answer(200, &[], b"done").is_err() {
                return;
            }
        }
    });
    (backend, arrived, go)
}

#[test]
fn sigterm_lets_requests_end_closes_idle_connections_and_exits_0() {
    let (backend, arrived, go) = gated();
    let mut server = Server::start(&config(&backend.address, ""));
    let address = server.address("web");
    let mut idle = server.client("web");
    assert_eq!(idle.get("/", &[]).status, 200);
    let mut busy = server.client("web");
    busy.send(request("GET", "/wait", &[], b""));
    eventually("the request is with the backend", secs(5), || arrived.load(SeqCst).then_some(()));

    server.signal(Signal::SIGTERM);
    assert_eq!(idle.read_to_end(), (Vec::new(), End::Closed));
    eventually("no client is accepted any more", secs(5), || {
        Client::try_connect(&address).is_err().then_some(())
    });
    server.assert_running();
    go.store(true, SeqCst);
    let answer = busy.response();
    assert_eq!(
        (answer.status, answer.text().as_str(), answer.header("connection")),
        (200, "done", Some("close"))
    );
    let status = server.wait_end(secs(10));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_drain_limit_ends_the_rest_and_says_what_was_left() {
    let (backend, arrived, _go) = gated();
    let mut server = Server::start(&config(&backend.address, "[process]\ndrain-timeout = \"500ms\""));
    let mut busy = server.client("web");
    busy.send(request("GET", "/wait", &[], b""));
    eventually("the request is with the backend", secs(5), || arrived.load(SeqCst).then_some(()));
    let started = Instant::now();
    server.signal(Signal::SIGTERM);
    server.wait_end(secs(10));
    assert!(started.elapsed() >= millis(450), "{:?}", started.elapsed());
    let said = server.stderr.wait_for("the drain limit is reached", secs(5));
    assert!(said.contains('1'), "{said}");
    assert_ne!(busy.read_to_end().1, End::Open);
}

#[test]
fn ctl_stop_and_ctrl_c_end_as_sigterm_does() {
    let backend = Scripted::answering("x");
    let mut server = Server::start(&config(&backend.address, "[control]\nsocket = \"@DIR@/control.sock\""));
    assert!(server.ctl(&["stop"]).status.success());
    assert!(server.wait_end(secs(10)).success());
    let mut server = Server::start(&config(&backend.address, ""));
    server.signal(Signal::SIGINT);
    assert!(server.wait_end(secs(10)).success());
}

#[test]
fn a_server_has_its_memory_in_small_pages() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address, ""));
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(format!("/proc/{}/{file}", server.pid())).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(field("status", "THP_enabled:"), 0);
    // The allocator has used two before `main`.
    assert!(field("smaps_rollup", "AnonHugePages:") <= 2 * 2048);
}

#[test]
fn running_out_of_descriptors_does_not_spin_and_ends_when_they_are_free_again() {
    let backend = Scripted::answering("x");
    let mut server = Setup::new(&config(
        &backend.address,
        "[process]\nworkers = 2\nmax-connections = 100000\nshares = { source = 100 }\n[access-log]\ntarget = \"off\"",
    ))
    .through(["prlimit", "--nofile=80:80", "--"])
    .start();
    let address = server.address("web");
    let open = |server: &Server| fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let idle = open(&server);
    let hold: Vec<Client> = (0..200).filter_map(|_| Client::try_connect(&address).ok()).collect();
    assert!(hold.len() > 80, "{}", hold.len());
    // A client takes one, and another is kept for its backend.
    eventually("the descriptors are used up or kept back", secs(10), || {
        (open(&server) >= idle + 10).then_some(())
    });
    let (before, since) = (server.cpu_time(), Instant::now());
    std::thread::sleep(secs(3)); // the span that is measured
    let share = (server.cpu_time() - before).as_secs_f64() / since.elapsed().as_secs_f64();
    assert!(share < 0.10, "{:.0} % of a core while out of descriptors", share * 100.0);
    drop(hold);
    eventually("it accepts and serves again", secs(10), || {
        let mut client = Client::try_connect(&address).ok()?;
        client.try_send(request("GET", "/", &[("Connection", "close")], b"")).ok()?;
        (client.try_response(secs(2)).ok()?.status == 200).then_some(())
    });
    server.assert_running();
}

#[test]
fn connections_beyond_the_limit_leave_a_request_under_way_its_answer_and_are_served_when_there_is_room() {
    let (backend, arrived, go) = gated();
    let server = Server::start(&config(&backend.address, "[process]\nmax-connections = 10"));
    let mut kept = server.client("web");
    kept.send(request("GET", "/wait", &[], b""));
    eventually("the request is with the backend", secs(5), || arrived.load(SeqCst).then_some(()));
    let others: Vec<Client> = (0..50).map(|_| server.client("web")).collect();
    go.store(true, SeqCst);
    assert_eq!(kept.response().status, 200);
    drop(others);
    eventually("there is room again", secs(10), || {
        let mut client = server.client("web");
        client.try_send(request("GET", "/", &[], b"")).ok()?;
        (client.try_response(secs(3)).ok()?.status == 200).then_some(())
    });
}

#[test]
fn limit_beyond_the_descriptors_is_told_with_what_they_are_for() {
    let backend = Scripted::answering("x");
    let text = config(&backend.address, "[process]\nworkers = 1\nmax-connections = 100000");
    let server = Setup::new(&text).through(["prlimit", "--nofile=512:512"]).start();
    let said = server.stderr.wait_for("max-connections = 100000, but there are descriptors for ", secs(10));
    assert!(said.contains(" connections: raise LimitNOFILE"), "{said}");
}

#[test]
fn privileges_are_dropped_after_the_bind() {
    if tools::root("drops privileges") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let server = Server::start(&config(
        &backend.address,
        "[process]\nuser = \"nobody\"\n[control]\nsocket = \"@DIR@/control.sock\"",
    ));
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    for task in fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        // A thread may have ended meanwhile.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let line = |key: &str| {
            let line = status
                .lines()
                .find(|line| line.starts_with(key))
                .unwrap_or_else(|| panic!("no {key} in {status}"));
            line.split_once(':').unwrap().1.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(line("Uid:").iter().all(|uid| *uid == nobody.uid.to_string()), "{status}");
        assert!(line("Gid:").iter().all(|gid| *gid == nobody.gid.to_string()), "{status}");
        assert!(line("Groups:").iter().all(|group| *group == nobody.gid.to_string()), "{status}");
        assert_eq!(line("NoNewPrivs:"), ["1"], "{status}");
        assert_eq!(line("CapEff:"), ["0000000000000000"], "{status}");
        assert_eq!(line("CapPrm:"), ["0000000000000000"], "{status}");
    }
    assert_eq!(get(&server.address("web"), "/").status, 200);
    assert!(server.ctl(&["status"]).status.success(), "root still reaches the control socket");
    let socket = fs::metadata(server.dir.path().join("control.sock")).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (nobody.uid.as_raw(), 0o600));
}

#[test]
fn too_few_threads_are_a_clear_error() {
    if tools::root("becomes a user whom the limit of processes holds for") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("x");
    let setup = Setup::new(&config(&backend.address, "[process]\nworkers = 2\nuser = \"nobody\""));
    // Two workers, and the nine threads that serve beside them.
    let output = setup.through(["prlimit", "--nproc=3:3"]).output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("error: cannot start 11 threads: ") && said.contains("TasksMax"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn an_unknown_user_is_a_clear_error() {
    let backend = Scripted::answering("x");
    let output = Setup::new(&config(&backend.address, "[process]\nuser = \"nobody-of-this-name\"")).output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("nobody-of-this-name"), "{said}");
}

#[test]
fn sockets_of_systemd_are_taken_by_name() {
    const PASS: &str = r#"
import os, socket, sys
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen(16)
unix = socket.socket(socket.AF_UNIX); unix.bind(sys.argv[1]); unix.listen(16)
# Below, 3 and 4 may be the numbers of these two.
print("port", tcp.getsockname()[1], file=sys.stderr, flush=True)
os.dup2(tcp.fileno(), 23); os.dup2(unix.fileno(), 24)
os.dup2(23, 3); os.dup2(24, 4)
os.closerange(5, 30)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="front:side")
os.execv(sys.argv[2], sys.argv[2:])
"#;
    let backend = Scripted::answering("passed");
    let text = format!(
        "[listener.web]\nbind = \"systemd:front\"\nprotocol = \"http\"\npool = \"app\"\n\
         [listener.side]\nbind = \"systemd:side\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    );
    let setup = Setup::new(&text);
    let socket = setup.dir().join("side.sock");
    let python = tools::program("python3");
    let server = setup.through([python.to_str().unwrap(), "-c", PASS, socket.to_str().unwrap()]).start();
    let port = server.stderr.wait_for("port ", secs(5)).trim_start_matches("port ").to_owned();
    assert_eq!(get(&format!("127.0.0.1:{port}"), "/").text(), "passed");
    assert_eq!(get(&format!("unix:{}", socket.display()), "/").text(), "passed");
}

#[test]
fn a_socket_that_systemd_did_not_pass_is_a_clear_error() {
    let output =
        Setup::new("[listener.web]\nbind = \"systemd:front\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n")
            .output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("front") && said.contains("systemd"), "{said}");
}

#[test]
fn systemd_is_told_when_everything_listens_and_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(secs(20))).unwrap();
    let backend = Scripted::answering("x");
    let mut server =
        Setup::new(&config(&backend.address, "")).env("NOTIFY_SOCKET", path.to_str().unwrap()).start();
    wait_for_word(&socket, "READY=1");
    assert_eq!(get(&server.address("web"), "/").status, 200);
    server.signal(Signal::SIGHUP);
    wait_for_word(&socket, "RELOADING=1");
    wait_for_word(&socket, "READY=1");
    server.signal(Signal::SIGTERM);
    wait_for_word(&socket, "STOPPING=1");
    server.wait_end(secs(10));
}

#[track_caller]
fn wait_for_word(socket: &UnixDatagram, word: &str) {
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{word}: {error}"));
        if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == word) {
            return;
        }
    }
}

#[test]
fn a_unix_socket_left_by_a_dead_server_is_replaced_and_a_live_one_is_not() {
    let backend = Scripted::answering("x");
    let text = |path: &str| {
        format!(
            "[listener.web]\nbind = \"unix:{path}\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
            backend.address
        )
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("front.sock");
    // Dropping a listener leaves its file, as a killed server does.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = Server::start(&text(path.to_str().unwrap()));
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let output = Setup::new(&text(path.to_str().unwrap())).output();
    assert!(!output.status.success(), "a live socket was taken away");
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let file = dir.path().join("precious");
    fs::write(&file, "data").unwrap();
    let output = Setup::new(&text(file.to_str().unwrap())).output();
    assert!(!output.status.success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "data", "a file that is no socket is never removed");
}

#[test]
fn a_port_in_use_is_a_clear_error_that_names_listener_and_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Setup::new(&format!(
        "[listener.web]\nbind = \"{address}\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"127.0.0.1:1\"]\n"
    ))
    .output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("in use"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_bad_configuration_ends_with_2_and_all_its_faults() {
    let output =
        Setup::new("[listener.web]\nbind = \"x\"\nprotocol = \"htp\"\npool = \"none\"\nunknown = 1\n")
            .output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in ["penstock.toml:2:", "penstock.toml:3:", "penstock.toml:4:", "penstock.toml:5:", "hint"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
}

#[test]
fn a_name_that_does_not_resolve_degrades_its_backend_and_nothing_else() {
    let backend = Scripted::answering("alive");
    let text = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"no-such-host.invalid:80\", \"{}\"]\n",
        backend.address
    );
    let server = Server::start(&text);
    for _ in 0..10 {
        assert_eq!(get(&server.address("web"), "/").text(), "alive");
    }
    let status = eventually("status says what is degraded", secs(20), || {
        let status = server.ctl_json(&["status"]);
        (!status["degraded"].as_array()?.is_empty()).then_some(status)
    });
    assert!(status["degraded"].to_string().contains("no-such-host.invalid"), "{status:#}");
    let text = String::from_utf8_lossy(&server.ctl(&["status"]).stdout).into_owned();
    let degraded = text.to_lowercase().find("degraded").unwrap_or_else(|| panic!("{text}"));
    assert!(degraded < text.find("web").unwrap(), "degraded things come first: {text}");
}

#[test]
fn every_request_leaves_one_text_line_that_no_client_can_forge() {
    let backend = Scripted::answering("x");
    let server =
        Server::start(&config(&backend.address, "[access-log]\ntarget = \"stdout\"\nformat = \"text\""));
    let hostile = ("User-Agent", "evil\" status=200\x1b[31m \\ \t\u{85}\u{2028}ü");
    // ESC in a value is refused; the refusal itself is logged and must not carry the byte.
    let _ = Client::connect(&server.address("web")).get("/a?b=\"c\"", &[hostile]);
    let tame = ("User-Agent", "evil\" status=200 \\ \t\u{85}\u{2028}ü");
    assert_eq!(
        Client::connect(&server.address("web"))
            .get("/page%0aforged", &[tame, ("Referer", "http://x/\"y")])
            .status,
        200
    );
    let mut garbage = server.client("web");
    garbage.send("nonsense\r\n\r\n");
    garbage.read_to_end();
    eventually("three lines", secs(5), || (server.stdout.all().len() >= 3).then_some(()));
    let lines = server.stdout.all();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for line in &lines {
        assert!(line.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{line:?}");
    }
    let good = lines.iter().find(|line| line.contains("/page%0aforged")).unwrap();
    for part in [" web ", " 200 ", "method=GET", "pool=app", &format!("backend={}", backend.address)] {
        assert!(good.contains(part), "{part:?} is not in {good}");
    }
}

#[test]
fn json_lines_parse_for_any_bytes_of_clients() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(
        &backend.address,
        "[access-log]\ntarget = \"@DIR@/access.log\"\nformat = \"json\"",
    ));
    let mut client = server.client("web");
    client.send(b"GET /\"quoted\\\"?\xc3 HTTP/1.1\r\nHost: test\r\n\r\n");
    client.read_to_end();
    let mut client = server.client("web");
    client.send(b"GET /\"quoted\" HTTP/1.1\r\nHost: test\r\nUser-Agent: a\"b\\c\xff\xfe\xe2\x80\xa8 \t d\r\nConnection: close\r\n\r\n");
    let (bytes, _) = client.read_to_end();
    assert!(bytes.starts_with(b"HTTP/1.1 200 "), "{}", testing::show(&bytes));
    let file = server.dir.path().join("access.log");
    let lines = eventually("two lines", secs(10), || {
        let text = fs::read(&file).ok()?;
        let text = String::from_utf8(text).expect("the log is UTF-8");
        (text.lines().count() >= 2).then(|| text.lines().map(str::to_owned).collect::<Vec<_>>())
    });
    let parsed: Vec<serde_json::Value> =
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let good = parsed.iter().find(|line| line["status"] == 200).unwrap();
    assert_eq!(
        (good["listener"].as_str(), good["target"].as_str(), good["outcome"].as_str()),
        (Some("web"), Some("/\"quoted\""), Some("ok"))
    );
    assert!(good["user_agent"].as_str().unwrap().starts_with("a\"b\\c"), "{good}");
    assert!(parsed.iter().any(|line| line["status"] == 400), "{parsed:#?}");
}

#[test]
fn a_log_file_is_reopened_on_sigusr1_and_no_line_is_lost() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address, "[access-log]\ntarget = \"@DIR@/access.log\""));
    let (file, old) = (server.dir.path().join("access.log"), server.dir.path().join("access.log.1"));
    let count = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    for _ in 0..10 {
        assert_eq!(get(&server.address("web"), "/").status, 200);
    }
    eventually("ten lines", secs(10), || (count(&file) == 10).then_some(()));
    fs::rename(&file, &old).unwrap();
    server.signal(Signal::SIGUSR1);
    eventually("the file is made again", secs(10), || file.exists().then_some(()));
    for _ in 0..10 {
        assert_eq!(get(&server.address("web"), "/").status, 200);
    }
    eventually("ten lines in the new one", secs(10), || {
        (count(&file) + count(&old) == 20 && count(&file) == 10).then_some(())
    });
}

#[test]
fn a_full_disk_under_the_log_fails_no_request_is_said_and_lost_lines_are_counted() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(
        &backend.address,
        "[access-log]\ntarget = \"/dev/full\"\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"",
    ));
    for _ in 0..50 {
        assert_eq!(get(&server.address("web"), "/").status, 200);
    }
    eventually("status says it first", secs(10), || {
        server.ctl_json(&["status"])["degraded"].to_string().contains("No space left").then_some(())
    });
    // What cannot be written waits in a bounded place; beyond it lines are lost, and counted.
    let load =
        Load::start(&server.address("web"), &format!("/{}", "x".repeat(4_000)), Connections::Kept, 4, None);
    eventually("the loss is counted", secs(60), || {
        let counters = server.ctl_json(&["status"])["counters"].clone();
        let count = |key: &str| counters[key].as_u64().unwrap();
        (count("log_lines_failed") + count("log_lines_dropped") > 0).then_some(())
    });
    load.stop().assert_clean();
}

#[test]
fn metrics_are_what_prometheus_reads_and_count_what_happened() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address, "[admin]\nbind = \"127.0.0.1:0\""));
    for _ in 0..7 {
        assert_eq!(get(&server.address("web"), "/").status, 200);
    }
    let mut bad = server.client("web");
    bad.send("nonsense\r\n\r\n");
    bad.read_to_end();
    let text = eventually("the requests and the refusal are counted", secs(10), || {
        let text = server.metrics();
        let sum: f64 = samples(&text)
            .iter()
            .filter(|(name, _)| {
                name.contains("listener")
                    && name.contains("\"web\"")
                    && (name.contains("2xx") || name.contains("sessions"))
            })
            .map(|(_, value)| value)
            .fold(0.0, |most, value| most.max(*value));
        let is_refusal = |(name, value): &(String, f64)| name.contains("4xx") && *value >= 1.0;
        (sum >= 7.0 && samples(&text).iter().any(is_refusal)).then_some(text)
    });
    let all = samples(&text);
    assert!(all.len() > 20, "{text}");
    assert!(all.iter().all(|(name, _)| name.starts_with("penstock_")), "{text}");
    for word in ["listener=\"web\"", "pool=\"app\"", &format!("backend=\"{}\"", backend.address)] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    assert!(text.contains("# TYPE ") && text.contains("# HELP "));
    assert_eq!(get(&server.admin(), "/healthz").status, 200);
    let status: serde_json::Value = serde_json::from_str(&get(&server.admin(), "/status").text()).unwrap();
    assert!(status["pools"].is_array(), "{status:#}");
    assert_eq!(get(&server.admin(), "/nothing").status, 404);
}

/// Lines of the text format: name with labels, value.
fn samples(text: &str) -> Vec<(String, f64)> {
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            // A label's value may hold blanks; the sample's value is behind the last one.
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("line {line:?}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("value in {line:?}")))
        })
        .collect()
}

#[test]
fn environment_variables_override_the_file() {
    let backend = Scripted::answering("x");
    let text = config("127.0.0.1:1", "").replace("\"127.0.0.1:1\"", "\"${TARGET}\"");
    let server = Setup::new(&text)
        .env("TARGET", &backend.address)
        .env("PENSTOCK_LISTENER_WEB_BIND", "unix:/nonexistent/never.sock")
        .output();
    assert!(!server.status.success(), "the override counts");
    let server = Setup::new(&text).env("TARGET", &backend.address).start();
    assert_eq!(get(&server.address("web"), "/").status, 200);
}

#[test]
fn an_unknown_variable_is_warned_of_and_stops_only_a_strict_start() {
    let backend = Scripted::answering("x");
    let setup = || {
        Setup::new(&config(&backend.address, ""))
            .env("PENSTOCK_CI_JOB", "7")
            .env("PENSTOCK_LISTENER_WEB_BNID", ":1")
            .env("PENSTOCK_SEED", "7")
    };
    let server = setup().start();
    assert_eq!(get(&server.address("web"), "/").status, 200);
    let said = server.stderr.all().join("\n");
    for part in ["PENSTOCK_CI_JOB: this variable names no key", "did you mean PENSTOCK_LISTENER_WEB_BIND?"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("PENSTOCK_SEED"), "{said}");
    let strict = setup();
    let file = strict.dir().join("penstock.toml");
    let refused = strict.arguments(&["serve", "--strict", file.to_str().unwrap()]).output();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--strict refuses them: PENSTOCK_CI_JOB, PENSTOCK_LISTENER_WEB_BNID"), "{said}");
}

#[test]
fn the_variables_of_the_flags_are_enough_to_serve() {
    let (a, b) = (Scripted::answering("a"), Scripted::answering("b"));
    let backends = format!("{} {}", a.address, b.address);
    let start = |backends: &str| {
        let setup = Setup::new("").arguments(&["serve"]).env("PENSTOCK_LISTEN", "127.0.0.1:0");
        setup.env("PENSTOCK_BACKEND", backends).env("PENSTOCK_BALANCE", "round-robin")
    };
    let server = start(&backends).start();
    // Each worker has its own turn: one of them has several of so many clients.
    let seen: BTreeSet<String> = (0..40).map(|_| get(&server.address("main"), "/").text()).collect();
    assert_eq!(seen, ["a", "b"].map(str::to_owned).into());
    let refused = start("").output();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--listen needs --backend, or the variable PENSTOCK_BACKEND"), "{said}");
}

#[test]
fn credentials_of_systemd_are_values_and_a_reload_reads_them_again() {
    let (first, second) = (Scripted::answering("first"), Scripted::answering("second"));
    let credentials = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(credentials.path().join(name), text).unwrap();
    write("PENSTOCK_POOL_APP_BACKENDS", &first.address);
    write("ADMIN", "127.0.0.1:0\n");
    write("another-name", "is for another program");
    let config =
        config("127.0.0.1:9", "[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"${ADMIN}\"");
    let setup = Setup::new(&config).env("CREDENTIALS_DIRECTORY", credentials.path().to_str().unwrap());
    let server = setup.start();
    assert_eq!(get(&server.address("web"), "/").text(), "first");
    assert_eq!(get(&server.admin(), "/healthz").status, 200);
    write("PENSTOCK_POOL_APP_BACKENDS", &second.address);
    let reloaded = server.ctl(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    assert_eq!(get(&server.address("web"), "/").text(), "second");
    // What cannot be read any more leaves the configuration as it is.
    fs::remove_file(credentials.path().join("PENSTOCK_POOL_APP_BACKENDS")).unwrap();
    let refused = server.ctl(&["reload"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("PENSTOCK_POOL_APP_BACKENDS_FILE: names "),
        "{refused:?}"
    );
    assert_eq!(get(&server.address("web"), "/").text(), "second");
}

#[test]
fn version_and_help_are_there() {
    for arguments in [&["--version"][..], &["--help"], &["serve", "--help"], &["ctl", "--help"]] {
        let output = penstock(arguments);
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments:?}: {output:?}");
    }
    assert_eq!(penstock(&["nonsense"]).status.code(), Some(2));
}

#[test]
fn nine_hundred_idle_connections_do_not_keep_others_waiting() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config(&backend.address, "[access-log]\ntarget = \"off\""));
    let address = server.address("web");
    let idle: Vec<Stream> = (0..900).map(|_| Stream::connect(&address).unwrap()).collect();
    let started = Instant::now();
    for _ in 0..100 {
        assert_eq!(get(&address, "/").status, 200);
    }
    // On an idle machine it takes less than a second.
    assert!(started.elapsed() < secs(60), "{:?}", started.elapsed());
    drop(idle);
}
