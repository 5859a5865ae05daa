//! What the supervisor promises while sockets, limits and logs change, and while the process begins and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use testing::client::{End, get, request};
use testing::pki::{Time, self_signed};
use testing::server::{Setup, penstock, run_to_end};
use testing::{Client, Scripted, Server, eventually, millis, secs, tools};

/// Requests for `/wait` go to a backend that keeps them; all others are answered at once by a redirect.
struct Held {
    backend: Scripted,
    go: Arc<AtomicBool>,
}

impl Held {
    fn new() -> Self {
        let go = Arc::new(AtomicBool::new(false));
        let gate = go.clone();
        let backend = Scripted::start(move |talk| {
            while talk.request().is_some() {
                while !gate.load(SeqCst) {
                    std::thread::sleep(millis(5));
                }
                if talk.answer(200, &[], b"done").is_err() {
                    return;
                }
            }
        });
        Self { backend, go }
    }

    fn config(&self, process: &str, listeners: &[(&str, &str)]) -> String {
        let mut text = format!("[control]\nsocket = \"@DIR@/control.sock\"\n[process]\n{process}\n");
        for (name, bind) in listeners {
            text += &format!(
                "[listener.{name}]\nbind = \"{bind}\"\n\
                 [[listener.{name}.route]]\npath = \"/wait\"\npool = \"held\"\n\
                 [[listener.{name}.route]]\nredirect = \"https://elsewhere.test{{path}}\"\n"
            );
        }
        text + &format!("[pool.held]\nbackends = [\"{}\"]\nhealth = \"off\"\n", self.backend.address)
    }

    /// Clients whose requests are with the backend.
    fn hold(&self, address: &str, count: usize) -> Vec<Client> {
        let clients = (0..count)
            .map(|_| {
                let mut client = Client::connect(address);
                client.send(request("GET", "/wait", &[], b""));
                client
            })
            .collect();
        eventually("the requests are with the backend", secs(10), || {
            (self.backend.open.load(SeqCst) == count).then_some(())
        });
        clients
    }
}

fn ask(address: &str, count: usize) -> Vec<Client> {
    let ask = |_| {
        let mut client = Client::connect(address);
        client.send(request("GET", "/", &[], b""));
        client
    };
    (0..count).map(ask).collect()
}

#[track_caller]
fn reload(server: &Server, config: &str) {
    server.write_config(config);
    let output = server.ctl(&["reload"]);
    assert!(output.status.success(), "{output:?}");
}

/// What a refused reload says.
#[track_caller]
fn refused(server: &Server, config: &str) -> String {
    server.write_config(config);
    let output = server.ctl(&["reload"]);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn open_connections(server: &Server) -> u64 {
    server.ctl_json(&["status"])["connections"]["now"].as_u64().unwrap()
}

const QUEUED: usize = 300;

#[test]
fn every_client_in_the_queue_of_a_listener_that_a_reload_removes_is_answered() {
    let held = Held::new();
    let process = "workers = 1\nmax-connections = 4";
    let two = [("web", "127.0.0.1:0"), ("other", "127.0.0.1:0")];
    let server = Server::start(&held.config(process, &two));
    let _busy = held.hold(&server.address("web"), 4);
    let mut queued = ask(&server.address("web"), QUEUED);
    reload(&server, &held.config(process, &two[1..]));
    for (at, client) in queued.iter_mut().enumerate() {
        let answer = client.try_response(secs(60)).unwrap_or_else(|why| panic!("client {at}: {why}"));
        assert_eq!(answer.status, 308, "client {at}");
    }
    eventually("no socket listens any more", secs(5), || {
        Client::try_connect(&server.address("web")).is_err().then_some(())
    });
}

#[test]
fn every_client_in_the_queue_at_sigterm_is_answered() {
    let held = Held::new();
    let mut server =
        Server::start(&held.config("workers = 1\nmax-connections = 4", &[("web", "127.0.0.1:0")]));
    let _busy = held.hold(&server.address("web"), 4);
    let mut queued = ask(&server.address("web"), QUEUED);
    server.signal(Signal::SIGTERM);
    for (at, client) in queued.iter_mut().enumerate() {
        let answer = client.try_response(secs(60)).unwrap_or_else(|why| panic!("client {at}: {why}"));
        assert_eq!(answer.status, 308, "client {at}");
    }
    held.go.store(true, SeqCst);
    assert_eq!(server.wait_end(secs(10)).code(), Some(0));
}

#[test]
fn a_client_beyond_the_limit_takes_the_place_of_the_longest_idle_one_and_of_no_other() {
    let held = Held::new();
    let server = Server::start(&held.config("workers = 1\nmax-connections = 10", &[("web", "127.0.0.1:0")]));
    let mut idle: Vec<Client> = (0..10).map(|_| server.client("web")).collect();
    for client in &mut idle {
        assert_eq!(client.get("/", &[]).status, 308);
    }
    let started = Instant::now();
    assert_eq!(server.client("web").get("/", &[]).status, 308);
    // Without the place of another one it would wait for a minute, after which idle connections are closed.
    assert!(started.elapsed() < secs(20), "{:?}", started.elapsed());
    assert_eq!(idle[0].read_to_end().1, End::Closed);
    for (at, client) in idle.iter_mut().enumerate().skip(1) {
        client.send(request("GET", "/", &[], b""));
        let answer = client.try_response(secs(20)).unwrap_or_else(|why| panic!("client {at}: {why}"));
        assert_eq!(answer.status, 308);
    }
}

#[test]
fn the_limit_of_connections_holds_over_all_workers() {
    let held = Held::new();
    let listeners = [("web", "127.0.0.1:0"), ("more", "127.0.0.1:0")];
    let server = Server::start(&held.config("workers = 4\nmax-connections = 10", &listeners));
    let _busy = held.hold(&server.address("web"), 9);
    let mut waiting = Vec::new();
    for _ in 0..20 {
        for name in ["web", "more"] {
            let mut client = server.client(name);
            client.send(request("GET", "/wait", &[], b""));
            waiting.push(client);
        }
    }
    eventually("the last place is taken", secs(5), || (open_connections(&server) >= 10).then_some(()));
    let until = Instant::now() + millis(400);
    while Instant::now() < until {
        // A moment less: one that has sent nothing yet may give way.
        assert!(open_connections(&server) <= 10);
    }
    held.go.store(true, SeqCst);
    drop(waiting);
    eventually("every place is given back", secs(10), || {
        (open_connections(&server) <= 9).then_some(()) // those of `_busy`
    });
}

#[test]
fn a_reload_changes_the_limit_of_connections() {
    let held = Held::new();
    let listeners = [("web", "127.0.0.1:0")];
    let server = Server::start(&held.config("max-connections = 10", &listeners));
    reload(&server, &held.config("max-connections = 3", &listeners));
    assert_eq!(server.ctl_json(&["status"])["connections"]["max"], 3);
    let _busy = held.hold(&server.address("web"), 3);
    let mut fourth = ask(&server.address("web"), 1);
    assert!(fourth[0].try_response(millis(300)).is_err());
    reload(&server, &held.config("max-connections = 4", &listeners));
    assert_eq!(fourth[0].response().status, 308);
}

#[test]
fn a_reload_narrows_and_widens_an_address_on_the_same_port() {
    let held = Held::new();
    let server = Server::start(&held.config("", &[("web", ":0")]));
    let port = server.address("web").rsplit(':').next().unwrap().to_owned();
    let (narrow, wide) = (format!("127.0.0.1:{port}"), format!(":{port}"));
    reload(&server, &held.config("", &[("web", &narrow)]));
    assert_eq!(get(&narrow, "/").status, 308);
    assert!(Client::try_connect(&format!("127.0.0.2:{port}")).is_err());
    reload(&server, &held.config("", &[("renamed", &wide)]));
    assert_eq!(get(&format!("127.0.0.2:{port}"), "/").status, 308);
    // What another program holds stays refused.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    assert!(refused(&server, &held.config("", &[("web", &taken)])).contains("ss -ltnp"));
}

#[test]
fn a_unix_socket_changes_its_listener_and_its_mode_and_goes_with_the_last_of_them() {
    let held = Held::new();
    let server =
        Server::start(&held.config("workers = 2", &[("tcp", "127.0.0.1:0"), ("a", "unix:@DIR@/s.sock")]));
    let path = server.dir.path().join("s.sock");
    let address = format!("unix:{}", path.display());
    let mut kept = Client::connect(&address);
    assert_eq!(kept.get("/", &[]).status, 308);
    let renamed = held.config("workers = 2", &[("tcp", "127.0.0.1:0"), ("b", "unix:@DIR@/s.sock")]);
    reload(&server, &renamed);
    assert_eq!(get(&address, "/").status, 308);
    assert_eq!(kept.get("/", &[]).status, 308);
    let counted = server.ctl(&["status", "--json"]);
    assert!(String::from_utf8_lossy(&counted.stdout).contains("\"b\""), "{counted:?}");

    reload(&server, &renamed.replace("[listener.b]\n", "[listener.b]\nunix-mode = \"0600\"\n"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for _ in 0..10 {
        reload(&server, &held.config("workers = 2", &[("tcp", "127.0.0.1:0")]));
        assert!(!path.exists());
        reload(&server, &renamed);
        assert_eq!(get(&address, "/").status, 308);
    }
}

#[test]
fn a_refused_reload_or_start_leaves_no_unix_socket_behind_and_announces_nothing() {
    let held = Held::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let server = Server::start(&held.config("workers = 2", &[("web", "127.0.0.1:0")]));
    let bad = [("web", "127.0.0.1:0"), ("side", "unix:@DIR@/side.sock"), ("taken", &taken)];
    refused(&server, &held.config("workers = 3", &bad));
    assert!(!server.dir.path().join("side.sock").exists());
    assert_eq!(server.stderr.count("takes effect at the next start"), 0);
    for _ in 0..2 {
        // Compared with the start, not with the reload before.
        reload(&server, &held.config("workers = 3", &bad[..1]));
    }
    eventually("each reload says it", secs(10), || {
        (server.stderr.count("process.workers changed: takes effect at the next start") == 2).then_some(())
    });

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("side.sock");
    let bind = format!("unix:{}", path.display());
    let output = Setup::new(&held.config("", &[("side", &bind), ("taken", &taken)])).output();
    assert!(!output.status.success() && !path.exists(), "{output:?}");
}

#[test]
fn unix_sockets_of_listeners_and_admin_are_removed_at_the_end() {
    let held = Held::new();
    let text =
        held.config("", &[("web", "unix:@DIR@/web.sock")]) + "[admin]\nbind = \"unix:@DIR@/admin.sock\"\n";
    let mut server = Server::start(&text);
    let paths = ["web.sock", "admin.sock", "control.sock"].map(|name| server.dir.path().join(name));
    assert!(paths.iter().all(|path| path.exists()));
    server.signal(Signal::SIGTERM);
    server.wait_end(secs(10));
    for path in paths {
        assert!(!path.exists(), "{}", path.display());
    }
}

/// Hands over a listening socket named `front`; when a file `end` appears, the wrapper ends it under the server.
const PASS: &str = r#"
import os, socket, sys, time
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen(16)
print("port", tcp.getsockname()[1], file=sys.stderr, flush=True)
os.dup2(tcp.fileno(), 23)
if os.fork() == 0:
    parent = os.getppid()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
        if os.getppid() != parent: os._exit(0)
    tcp.shutdown(socket.SHUT_RDWR)
    os._exit(0)
os.dup2(23, 3); os.closerange(4, 30)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="front")
os.execv(sys.argv[2], sys.argv[2:])
"#;

fn start_with_passed_socket(config: &str) -> (Server, String, PathBuf) {
    let setup = Setup::new(config);
    let end = setup.dir().join("end");
    let python = tools::program("python3");
    let server = setup.through([python.to_str().unwrap(), "-c", PASS, end.to_str().unwrap()]).start();
    let port = server.stderr.wait_for("port ", secs(5)).trim_start_matches("port ").to_owned();
    (server, format!("127.0.0.1:{port}"), end)
}

#[test]
fn a_socket_of_systemd_outlives_refused_reloads_and_the_listener_that_had_it() {
    let held = Held::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let without = held.config("", &[("web", "127.0.0.1:0")]);
    let with = held.config("", &[("web", "127.0.0.1:0"), ("front", "systemd:front")]);
    let (server, address, _) = start_with_passed_socket(&without);
    refused(&server, &held.config("", &[("front", "systemd:front"), ("taken", &taken)]));
    for _ in 0..2 {
        reload(&server, &with);
        assert_eq!(get(&address, "/").status, 308);
        reload(&server, &without);
    }
}

#[test]
fn a_socket_that_fails_again_and_again_costs_no_core_and_is_said() {
    let held = Held::new();
    let (server, address, end) =
        start_with_passed_socket(&held.config("workers = 2", &[("front", "systemd:front")]));
    assert_eq!(get(&address, "/").status, 308);
    fs::write(end, "").unwrap();
    server.stderr.wait_for("cannot accept on systemd:front", secs(10));
    let (before, since) = (server.cpu_time(), Instant::now());
    std::thread::sleep(secs(1)); // the span that is measured
    let share = (server.cpu_time() - before).as_secs_f64() / since.elapsed().as_secs_f64();
    assert!(share < 0.25, "{:.0} % of a core", share * 100.0);
}

#[test]
fn a_reload_moves_the_access_log_and_switches_it_on_and_off() {
    let held = Held::new();
    let text = |target: &str| {
        held.config("", &[("web", "127.0.0.1:0")]) + &format!("[access-log]\ntarget = \"{target}\"\n")
    };
    let server = Server::start(&text("off"));
    let lines = |name: &str| fs::read_to_string(server.dir.path().join(name)).unwrap_or_default();
    let ask = |target: &str| assert_eq!(get(&server.address("web"), target).status, 308);
    ask("/not-logged");
    for name in ["one.log", "two.log"] {
        reload(&server, &text(&format!("@DIR@/{name}")));
        eventually("the new file is there", secs(5), || server.dir.path().join(name).exists().then_some(()));
        let target = format!("/{name}");
        // The file is there just before lines go to it.
        eventually("a line", secs(5), || {
            ask(&target);
            lines(name).contains(&target).then_some(())
        });
    }
    assert!(!lines("one.log").contains("two.log"));
    reload(&server, &text("off"));
    // The writer sees the change a moment later, and writes what it had by then.
    let has_open = |name: &str| {
        let files = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file.ends_with(name))
    };
    eventually("the file is closed", secs(10), || (!has_open("two.log")).then_some(()));
    ask("/off-again");
    eventually("its session has ended", secs(10), || (open_connections(&server) == 0).then_some(()));
    reload(&server, &text("@DIR@/three.log"));
    eventually("a line", secs(5), || {
        ask("/last");
        lines("three.log").contains("/last").then_some(())
    });
    for name in ["one.log", "two.log", "three.log"] {
        let lines = lines(name);
        assert!(!lines.contains("/not-logged") && !lines.contains("/off-again"), "{name}: {lines}");
    }
    assert_eq!(server.stderr.count("takes effect at the next start"), 0);
}

#[test]
fn a_session_that_is_cut_at_the_drain_limit_has_its_line_in_the_access_log() {
    let held = Held::new();
    let text = held.config("workers = 2\ndrain-timeout = \"300ms\"", &[("web", "127.0.0.1:0")])
        + "[access-log]\ntarget = \"stdout\"\nformat = \"json\"\n";
    let mut server = Server::start(&text);
    let mut busy = held.hold(&server.address("web"), 3);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_end(secs(10)).code(), Some(0));
    for client in &mut busy {
        assert_ne!(client.read_to_end().1, End::Open);
    }
    eventually("a line for each", secs(5), || (server.stdout.count("\"drain-timeout\"") == 3).then_some(()));
}

/// A library whose getaddrinfo takes a minute, and makes a file when it begins.
fn slow_resolver(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
    fs::write(
        &source,
        format!(
            "#include <fcntl.h>\n#include <unistd.h>\n#include <netdb.h>\n\
             int getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **r) {{\n\
             close(open(\"{}\", O_CREAT | O_WRONLY, 0600)); sleep(60); return EAI_FAIL; }}\n",
            dir.join("asked").display()
        ),
    )
    .unwrap();
    let mut command = Command::new(tools::program("cc"));
    command.args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source);
    let output = run_to_end(&mut command, secs(30));
    assert!(output.status.success(), "{output:?}");
    library
}

const NAMED: &str =
    "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"slow.test:80\"]\n";

/// A log in the directory lets the library in the server write there too.
fn writing_in(directory: &Path) -> String {
    format!("[access-log]\ntarget = \"{}/access.log\"\n{NAMED}", directory.display())
}

#[test]
fn a_look_up_that_hangs_does_not_hold_the_end_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let library = slow_resolver(dir.path());
    let mut server = Setup::new(&writing_in(dir.path())).env("LD_PRELOAD", library.to_str().unwrap()).start();
    assert!(dir.path().join("asked").exists(), "the slow look-up was used");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_end(secs(10)).code(), Some(0));
}

#[test]
fn a_signal_before_everything_is_ready_is_not_lost_and_kills_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let library = slow_resolver(dir.path());
    let script = |signal: &str| {
        format!(
            "(while [ ! -e {0}/asked ]; do sleep 0.01; done; kill -{signal} $$) & export LD_PRELOAD={1}; exec \"$0\" \"$@\"",
            dir.path().display(),
            library.display()
        )
    };
    let server = Setup::new(&writing_in(dir.path())).through(["sh", "-c", &script("HUP")]).start();
    server.stderr.wait_for("reloaded", secs(10));
    fs::remove_file(dir.path().join("asked")).unwrap();
    let output = Setup::new(&writing_in(dir.path())).through(["sh", "-c", &script("TERM")]).output();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_pipe_in_place_of_a_configuration_or_certificate_blocks_nothing() {
    let held = Held::new();
    let pipe = |path: &Path| nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let plain = held.config("", &[("web", "127.0.0.1:0")]);
    let setup = Setup::new(&plain);
    fs::create_dir(setup.dir().join("certs")).unwrap();
    pipe(&setup.dir().join("certs/x.pem"));
    let mut server = setup.start();
    let file = server.dir.path().join("penstock.toml");
    let secure = plain.clone()
        + "[listener.secure]\nbind = \"127.0.0.1:0\"\npool = \"held\"\ntls = { certificates = \"@DIR@/certs\" }\n";
    reload(&server, &secure);
    server.stderr.wait_for("not a regular file", secs(5));

    fs::remove_file(&file).unwrap();
    pipe(&file);
    let output = server.ctl(&["reload"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a regular file"), "{output:?}");
    let output = penstock(&["serve", "--config", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("not a regular file"), "{output:?}");
    server.signal(Signal::SIGHUP);
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait_end(secs(10)).code(), Some(0));
}

const LATE_HANDSHAKE: &str = r#"
import socket, ssl, sys
plain = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
sys.stdin.readline()
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(coming, going, server_hostname="a.test")
def until(step):
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            if going.pending: plain.sendall(going.read())
            coming.write(plain.recv(65536))
until(tls.do_handshake)
# In one segment with the end of the handshake: after that the server waits for a second.
tls.write(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
plain.sendall(going.read())
print(until(lambda: tls.read(100)).decode().split("\r\n")[0], flush=True)
"#;

#[test]
fn a_client_in_its_tls_handshake_at_sigterm_gets_its_first_answer() {
    let dir = tempfile::tempdir().unwrap();
    self_signed(dir.path(), "a", &["a.test"], Time::Now);
    let mut server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\n\
         tls = {{ certificates = \"{}\" }}\n[[listener.web.route]]\nredirect = \"https://b.test\"\n",
        dir.path().display()
    ));
    let port = server.address("web").rsplit(':').next().unwrap().to_owned();
    let mut client = Command::new(tools::program("python3"))
        .args(["-c", LATE_HANDSHAKE, &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    eventually("it is accepted", secs(5), || (open_connections(&server) == 1).then_some(()));
    server.signal(Signal::SIGTERM);
    server.stderr.wait_for("stopping", secs(5));
    client.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut answer = String::new();
    said.read_to_string(&mut answer).unwrap();
    client.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 308"), "{answer:?}");
    assert_eq!(server.wait_end(secs(10)).code(), Some(0));
}

#[test]
fn two_certificates_for_one_name_are_no_fault_of_a_directory_while_one_is_being_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    fs::create_dir(&certs).unwrap();
    self_signed(&certs, "new", &["a.test"], Time::Now);
    self_signed(&certs, "old", &["a.test"], Time::Now);
    // The same certificate again is none.
    for end in ["crt", "key"] {
        std::os::unix::fs::symlink(certs.join(format!("new.{end}")), certs.join(format!("default.{end}")))
            .unwrap();
    }
    let file = dir.path().join("penstock.toml");
    let text = format!(
        "[listener.web]\nbind = \":443\"\ntls = {{ certificates = \"{}\" }}\n\
         [[listener.web.route]]\nredirect = \"https://b.test\"\n",
        certs.display()
    );
    fs::write(&file, text).unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("a.test"), "{said}");
    // A key that belongs to another certificate stays one.
    fs::copy(certs.join("new.key"), certs.join("old.key")).unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("old.key: key and certificate do not belong together"), "{said}");
}
