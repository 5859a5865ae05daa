//! What `penstock tunnel status` and `down` say, and whom they believe.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use nix::sys::signal::Signal;
use testing::tunnel::{Place, output};
use testing::{eventually, secs};

const NOBODY: u32 = 65_534;

/// A program on the control socket of a tunnel that does not run, as this user. It tells what it hears.
struct Forger(Child, BufReader<std::process::ChildStdout>);

impl Forger {
    fn listen(socket: &Path, uid: u32, answer: &str) -> Self {
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let program = "import os, socket, sys\n\
            s = socket.socket(socket.AF_UNIX)\n\
            s.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); os.setuid(int(sys.argv[2])); s.listen(16)\n\
            print('listens', flush=True)\n\
            kept = []\n\
            while True:\n\
            \x20   c, _ = s.accept()\n\
            \x20   print('heard', c.recv(64), flush=True)\n\
            \x20   kept.append(c)\n\
            \x20   if not sys.argv[3]: continue\n\
            \x20   try: c.sendall(sys.argv[3].encode()); c.shutdown(socket.SHUT_WR)\n\
            \x20   except OSError: pass\n";
        let mut child = Command::new("python3")
            .args(["-c", program])
            .arg(socket)
            .args([&uid.to_string(), answer])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        says.read_line(&mut line).unwrap();
        assert_eq!(line, "listens\n");
        Self(child, says)
    }

    /// Waits for so many connections, and ends it; what it heard.
    fn heard(mut self, connections: usize) -> String {
        let mut first = String::new();
        for _ in 0..connections {
            self.1.read_line(&mut first).unwrap();
        }
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        let mut heard = String::new();
        self.1.read_to_string(&mut heard).unwrap();
        first + &heard
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const FORGED: &str = r#"{"tunnel":"nas","host":"forged\u001b[2J","pid":1,"step":"\u001b]0;up\u0007","connection":"connected",
    "since_seconds":1.0,"connects":1,"error":null,"mounted":"\u009b31m","forwards":[{"name":"db","kind":"local",
    "listen":"127.0.0.1:1\u001b[1A","connect":"\u202e","check":"tcp","service":"ok","since_seconds":1.0,"detail":"\u001b[2J",
    "connections":0,"accepted":0,"bytes_in":0,"bytes_out":0,"error":"\u001b[2J"}]}"#;

fn has_no_controls(text: &str) -> bool {
    !text.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}')
}

#[test]
fn the_socket_of_another_user_gets_no_word_and_is_not_believed() {
    let place = Place::new();
    let forger = Forger::listen(&place.path("run/penstock/tunnel-nas.sock"), NOBODY, FORGED);
    for arguments in [&["status"][..], &["status", "nas"], &["status", "--json"], &["down", "nas"]] {
        let ran = place.run(arguments);
        ran.code(1).says("tunnel nas was not asked").says("uid 65534").says("tunnel-nas.sock");
        assert!(!format!("{}{}", ran.out, ran.err).contains("forged"), "{}{}", ran.out, ran.err);
    }
    let heard = forger.heard(4);
    assert!(heard.lines().count() == 4 && heard.lines().all(|line| line == "heard b''"), "{heard}");
}

#[test]
fn a_runtime_directory_that_others_made_or_can_write_to_is_named_and_not_used() {
    let place = Place::new();
    place.configure(
        "[tunnel.nas]\nhost = \"far\"\n[tunnel.nas.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let directory = place.path("run/penstock");
    let forger = Forger::listen(&place.path("run/penstock/tunnel-nas.sock"), 0, FORGED);
    let every = [
        &["status"][..],
        &["down", "nas"],
        &["up", "nas"],
        &["up", "nas", "--detach"],
        &["check", "nas"],
        &["unwind"],
    ];
    let refused = |how: &str| {
        for arguments in every {
            place.run(arguments).code(1).says(&place.shown("run/penstock")).says(how);
        }
        place.run(&["with", "nas", "--", "true"]).code(125).says(how);
    };
    std::os::unix::fs::chown(&directory, Some(NOBODY), None).unwrap();
    refused("(uid 65534), but penstock runs as root (uid 0)");
    std::os::unix::fs::chown(&directory, Some(0), None).unwrap();
    fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    refused("can be written to by others (mode 0777)");
    fs::rename(&directory, place.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(place.path("elsewhere"), &directory).unwrap();
    refused("is not a directory");
    assert_eq!(forger.heard(0), "");
}

#[test]
fn what_a_tunnel_says_is_harmless_and_one_that_says_nothing_delays_no_other() {
    let place = Place::new();
    let forged = Forger::listen(&place.path("run/penstock/tunnel-nas.sock"), 0, FORGED);
    fs::set_permissions(place.path("run/penstock"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    for arguments in [&["status"][..], &["status", "--json"], &["check", "nas"]] {
        place.configure(
            "[tunnel.nas]\nhost = \"far\"\n[tunnel.nas.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
        );
        let ran = place.run(arguments);
        ran.code(0).says("127.0.0.1:1");
        assert!(has_no_controls(&ran.out) && has_no_controls(&ran.err), "{:?}{:?}", ran.out, ran.err);
    }
    drop(forged);
    fs::remove_file(place.path("run/penstock/tunnel-nas.sock")).unwrap();
    let endless = Forger::listen(&place.path("run/penstock/tunnel-nas.sock"), 0, &"[".repeat(100_000));
    place.run(&["status"]).code(1).says("is not understood");
    drop(endless);
    fs::remove_file(place.path("run/penstock/tunnel-nas.sock")).unwrap();
    let silent = Forger::listen(&place.path("run/penstock/tunnel-nas.sock"), 0, "");
    for arguments in [&["status"][..], &["down", "nas"]] {
        let begun = Instant::now();
        place
            .run(arguments)
            .code(1)
            .says("does not answer within 5 s")
            .says(&format!("process {}", silent.0.id()));
        assert!(begun.elapsed() < secs(30), "{arguments:?}");
    }
}

/// Fields of the only tunnel that runs.
fn status(place: &Place) -> serde_json::Value {
    let ran = place.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    status[0].clone()
}

#[test]
fn what_went_wrong_is_dated_and_marked_once_it_is_mended() {
    let place = Place::new();
    let address = SocketAddr::from(([127, 0, 0, 1], testing::port::free()));
    let config = format!(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nlisten = \"unix:$D/db.sock\"\nconnect = \"{address}\"\ncheck = \"none\"\n"
    );
    place.configure(&config);
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    let fresh = place.run(&["status"]);
    assert!(!fresh.out.contains("last"), "{}", fresh.out);
    let connect = || UnixStream::connect(place.path("db.sock")).unwrap();
    assert_eq!(connect().read(&mut [0]).unwrap(), 0);
    eventually("the error", secs(10), || place.run(&["status"]).out.contains("last error").then_some(()));
    place.run(&["status"]).says("last error ").says(": far could not connect to");
    assert_eq!(status(&place)["forwards"][0]["recovered"], false);
    // The service comes back, and then the connection breaks, and is made anew.
    let service = TcpListener::bind(address).unwrap();
    let _open = connect();
    service.accept().unwrap();
    eventually("mended", secs(10), || (status(&place)["forwards"][0]["recovered"] == true).then_some(()));
    place.run(&["status"]).says(", ok ").says(": far could not connect to");
    place.break_connections();
    up.wait_for("connected to far again");
    place.run(&["status"]).says("last loss ").says(", ok ");
    let told = status(&place);
    assert!(told["recovered"] == true && told["error_age_seconds"].as_f64().unwrap() < 60.0, "{told}");
    place.run(&["down", "t"]).code(0);
    place.is_clean();
}

#[test]
fn a_tunnel_that_goes_to_the_background_tells_each_step_until_it_is_up() {
    let place = Place::new();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    place.configure(&format!("[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"{address}\"\n"));
    let up = place.run(&["up", "t", "--detach"]);
    up.code(0).says("-> far").says("answers: accepts connections").says("runs in the background: process ");
    place.run(&["up", "t", "--detach"]).code(1).says("is up already");
    place.run(&["down", "t"]).code(0);
    place.is_clean();
    // A host that cannot be reached: each attempt is told, and Ctrl-C leaves nothing behind.
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    place.write("ssh_config", &format!("Host far\n HostName 127.0.0.1\n Port 1\n{text}"));
    let up = place.start(&["up", "t", "--detach"]);
    up.wait_for("next attempt in");
    up.signal(nix::sys::signal::Signal::SIGINT);
    up.finish().code(130).says("connection refused").says("it is not up yet");
    place.is_clean();
    assert!(!place.path("state/penstock/undo/t.log").exists());
    place.run(&["status"]).code(0).says("no tunnel runs");
    place.run(&["up", "t", "--detach", "--once"]).code(1).says("connection refused");
    place.is_clean();
    assert!(!place.path("state/penstock/undo/t.log").exists());
}

#[test]
fn a_tunnel_is_not_called_up_before_its_services_answer_nor_without_a_connection() {
    let place = Place::new();
    let address = SocketAddr::from(([127, 0, 0, 1], testing::port::free()));
    place.configure(&format!("[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"{address}\"\n"));
    let up = place.start(&["up", "t"]);
    up.wait_for("does not answer");
    up.wait_for("not up until every service answers: checked again in");
    place.run(&["status"]).code(1).says("t: connected to far ").says("failed: db, step check");
    place.run(&["status", "t", "--json"]).code(1);
    let _service = TcpListener::bind(address).unwrap();
    up.wait_for("tunnel t: up");
    place.run(&["status", "t"]).code(0).says("t: connected to far ");
    // The host goes away: no service can be checked.
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    place.write("ssh_config", &format!("Host far\n HostName 127.0.0.1\n Port 1\n{text}"));
    place.break_connections();
    up.wait_for("connection refused");
    let lost = place.run(&["status", "t"]);
    lost.code(1).says("t: not connected to far ").says("; it was ok before: accepts connections");
    assert!(!lost.out.contains("tcp ok for"), "{}", lost.out);
    place.run(&["down", "t"]).code(0);
    place.is_clean();
}

#[test]
fn what_is_no_name_of_a_tunnel_is_never_a_path() {
    let place = Place::new();
    place.configure("[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\n");
    let victim = place.path("victim");
    fs::write(&victim, "not a list\n").unwrap();
    for name in ["../victim", "../../../victim", &place.shown("victim"), "", "..", "t.lock"] {
        for verb in ["unwind", "status", "down"] {
            place.run(&[verb, name]).code(2).says("invalid tunnel name");
        }
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "not a list\n");
}

#[test]
fn the_log_of_a_tunnel_in_the_background_is_bounded() {
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    place.run(&["up", "t", "--detach"]).code(0);
    let log = place.path("state/penstock/undo/t.log");
    let old = log.with_extension("log.1");
    for turn in ["first", "second"] {
        // As weeks in which the host is away, in which others look on.
        let much = format!("{turn}\n").repeat((1 << 20) / (turn.len() + 1) + 1);
        fs::OpenOptions::new().append(true).open(&log).unwrap().write_all(much.as_bytes()).unwrap();
        place.break_connections();
        let said = || fs::read_to_string(&log).is_ok_and(|said| said.contains("connected to far again"));
        // In this order: the old log says so of an earlier loss, and for a moment there is none.
        eventually("a new log", secs(20), || (!big(&log) && said()).then_some(()));
        assert!(big(&old) && fs::read_to_string(&old).unwrap().contains(&format!("{turn}\n")));
    }
    assert!(!fs::read_to_string(&old).unwrap().contains("first\n"));
    place.run(&["down", "t"]).code(0);
    place.is_clean();
}

fn big(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.len() >= 1 << 20)
}

#[test]
fn a_tunnel_that_cron_started_is_found_from_a_login_shell() {
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    fs::create_dir(place.path("cron")).unwrap();
    let mut up = place.command(&["up", "t", "--detach"]);
    up.env("XDG_RUNTIME_DIR", place.path("cron"));
    assert!(output(&mut up).status.success());
    assert!(place.path("cron/penstock/tunnel-t.sock").exists());
    place.run(&["status"]).code(0).says("t: connected to far");
    place.run(&["check", "t"]).code(0).says("t: connected to far");
    place.run(&["down", "t"]).code(0).says("tunnel t is down");
    // One that was killed has its directories there.
    let mut up = place.command(&["up", "t", "--engine", "openssh"]);
    let mut up = up.env("XDG_RUNTIME_DIR", place.path("cron")).spawn().unwrap();
    let far = "t: connected to far";
    eventually("up", secs(20), || place.run(&["status"]).out.contains(far).then_some(()));
    up.kill().unwrap();
    up.wait().unwrap();
    place.run(&["unwind"]).code(0).says("the leftovers of an earlier run are undone");
    let left: Vec<_> = fs::read_dir(place.path("cron/penstock")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    place.is_clean();
}

#[test]
fn a_tunnel_whose_socket_was_removed_is_told_with_the_process_that_ends_it() {
    let place = Place::new();
    place.configure(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n",
    );
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    // As at the last log-out of a user.
    fs::remove_dir_all(place.path("run")).unwrap();
    fs::create_dir(place.path("run")).unwrap();
    let process = up.child.id();
    for asked in [&["status"][..], &["status", "t"], &["down", "t"]] {
        let ran = place.run(asked);
        ran.code(1).says(&format!("process {process} works on tunnel t, but its socket "));
        ran.says(&format!("`kill {process}` ends it"));
    }
    up.signal(Signal::SIGTERM);
    up.finish().code(0);
    place.run(&["status"]).code(0).says("no tunnel runs");
    place.run(&["check", "t"]).code(0);
    place.is_clean();
}

#[test]
fn a_service_is_asked_when_a_connection_to_it_fails_not_only_when_its_turn_comes() {
    let place = Place::new();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\ncheck-interval = \"1h\"\n\
         [tunnel.t.forward.db]\nlisten = \"unix:$D/db.sock\"\nconnect = \"{address}\"\n"
    ));
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    place.run(&["status"]).code(0);
    drop(service);
    // Between fork and exec a child of another test holds that socket, too: until then connections succeed.
    eventually("a connection that fails, and what it brings to light", secs(20), || {
        let mut here = UnixStream::connect(place.path("db.sock")).unwrap();
        assert_eq!(here.read(&mut [0]).unwrap_or(0), 0);
        place.run(&["status"]).out.contains("failed: db").then_some(())
    });
    up.wait_for("does not answer");
    place.run(&["status"]).code(1);
    place.run(&["down", "t"]).code(0);
    place.is_clean();
}

const UNCHECKED: &str = "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nlisten = \"unix:$D/db.sock\"\nconnect = \"127.0.0.1:1\"\ncheck = \"none\"\n";

#[test]
fn a_tunnel_that_has_ended_says_when_and_why_until_it_runs_again() {
    let place = Place::new();
    place.configure(UNCHECKED);
    let hint = "no tunnel has that name";
    place.run(&["up", "t", "--detach"]).code(0);
    // Another host answers: it gives up, without a reader for the reason.
    place.pin(&fs::read_to_string(place.sshd.directory.path().join("client.pub")).unwrap());
    place.break_connections();
    let ended = || place.run(&["status", "t"]).err.contains("does not run").then_some(());
    eventually("its end", secs(20), ended);
    place.configure(&UNCHECKED.replace("tunnel.t", "tunnel.u"));
    for verb in ["status", "down"] {
        let ran = place.run(&[verb, "t"]);
        ran.code(1).says("error: tunnel t does not run: its last run ended ").says(": connecting: ");
        ran.says("nothing was sent");
        assert!(!ran.err.contains(hint), "{}", ran.err);
        place.run(&[verb, "nope"]).code(1).says("error: tunnel nope does not run\n").says(hint);
    }
    place.run(&["status"]).code(0).says("no tunnel runs");
    // What is there in place of what we write is harmless.
    let record = place.path("state/penstock/undo/t.ended");
    assert!(fs::metadata(&record).unwrap().len() < 4096);
    for text in
        ["1 ended \u{1b}[2J\u{202e}".to_owned(), format!("1 ended {}", "x".repeat(1 << 20)), "?".to_owned()]
    {
        fs::write(&record, text).unwrap();
        let ran = place.run(&["status", "t"]);
        ran.code(1).says("tunnel t does not run");
        assert!(has_no_controls(&ran.err) && ran.err.len() < 8192, "{:?}", ran.err);
    }
    fs::remove_file(&record).unwrap();
    assert!(Command::new("mkfifo").arg(&record).status().unwrap().success());
    place.run(&["status", "t"]).code(1).says("tunnel t does not run\n");
    // The next run is another one, and ends otherwise.
    place.configure(UNCHECKED);
    place.pin(&place.sshd.host_key());
    place.run(&["up", "t", "--detach"]).code(0);
    assert!(!record.exists());
    place.run(&["down", "t"]).code(0);
    place.run(&["status", "t"]).code(1).says(": stopped on request");
    place.run(&["with", "t", "--", "sh", "-c", "exit 3"]).code(3);
    place.run(&["status", "t"]).code(1).says(": its command ended with status 3");
    place.is_clean();
}

#[test]
fn a_command_gets_addresses_by_name_and_other_braces_stay() {
    let place = Place::new();
    let words = "[\"sh\", \"-c\", 'printf \"%s,\" \"$@\" >$0', \"$D/said\", \"{db}\", \"at {db}:{x}\", \"$${db}\", \"{{db}}\", \"{}\", \"{\"]";
    let forward = UNCHECKED.replacen("host", &format!("job = {words}\nhost"), 1);
    place.configure(&forward);
    let at = place.shown("db.sock");
    let wanted = format!("{at},at {at}:{{x}},${{db}},{{db}},{{}},{{,");
    place.run(&["with", "t"]).code(0);
    assert_eq!(fs::read_to_string(place.path("said")).unwrap(), wanted);
    let said = place.shown("given");
    let given = ["{db}", "at {db}:{x}", "${db}", "{{db}}", "{}", "{"];
    let command = ["with", "t", "--", "sh", "-c", "printf \"%s,\" \"$@\" >$0", &said];
    place.run(&[&command[..], &given[..]].concat()).code(0);
    assert_eq!(fs::read_to_string(&said).unwrap(), wanted);
    place.is_clean();
}

#[test]
fn after_a_loss_a_service_answers_since_it_was_asked_again() {
    let place = Place::new();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\ncheck-interval = \"1h\"\n[tunnel.t.forward.db]\nconnect = \"{address}\"\n"
    ));
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    let age = |of: &serde_json::Value| of["since_seconds"].as_f64().unwrap();
    eventually("an answer of before", secs(10), || (age(&status(&place)["forwards"][0]) > 1.0).then_some(()));
    place.break_connections();
    up.wait_for("connected to far again");
    let told = eventually("an answer", secs(10), || {
        let told = status(&place);
        (told["forwards"][0]["service"] == "ok").then_some(told)
    });
    assert!(age(&told["forwards"][0]) <= age(&told), "{told}");
    let well = told["recovered_seconds"].as_f64().unwrap();
    assert!((well - age(&told)).abs() < 0.1 && well < told["error_age_seconds"].as_f64().unwrap(), "{told}");
    place.run(&["status"]).code(0).says("t: connected to far ").says(", ok ");
    place.run(&["down", "t"]).code(0);
    place.is_clean();
}

#[test]
fn who_comes_to_a_tunnel_that_is_up_is_told_that_it_is() {
    let place = Place::new();
    place.configure(UNCHECKED);
    let refused = |how: &str, process: u32| {
        let how = format!("tunnel t is up already{how}: process {process}");
        place.run(&["up", "t"]).code(1).says(&how);
        place.run(&["up", "t", "--detach"]).code(1).says(&how);
        place.run(&["with", "t", "--", "true"]).code(125).says(&how);
        place.run(&["unwind", "t"]).code(1).says(&how);
    };
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    refused("", up.child.id());
    place.run(&["down", "t"]).code(0);
    let with = place.start(&["with", "t", "--", "sh", "-c", "echo works >&2; exec sleep 300"]);
    with.wait_for("works");
    refused(": `tunnel with` runs a command through it", with.child.id());
    with.signal(Signal::SIGTERM);
    with.finish().code(143);
    place.is_clean();
}

#[test]
fn what_a_run_that_was_killed_has_left_is_named_and_how_it_was_undone() {
    let place = Place::new();
    place.configure(UNCHECKED);
    let with = place.start(&["with", "t", "--", "sh", "-c", "echo works >&2; exec sleep 300"]);
    with.wait_for("works");
    eventually("the job is in the list", secs(20), || place.list("t").contains("+ job").then_some(()));
    eventually("the run knows its job", secs(20), || place.noted().contains("job ").then_some(()));
    with.kill();
    let steps = format!("has leftovers: its command, its forwards (socket {})", place.shown("db.sock"));
    place.run(&["status"]).code(0).says(&format!("t: does not run, and {steps}: `penstock tunnel unwind t`"));
    place.run(&["down", "t"]).code(1).says(&steps);
    let undone = place.run(&["unwind"]);
    undone.code(0).says(
        "the leftovers of an earlier run are undone: its command was running, and has ended; its forwards (socket ",
    );
    assert!(!place.path("db.sock").exists());
    place.run(&["status", "t"]).code(1).says("its last run was killed; its leftovers were undone ");
    place.is_clean();
}

#[test]
fn of_those_who_came_while_the_connection_was_lost_only_who_is_still_there_is_served() {
    let place = Place::new();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    let (heard, hears) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in service.incoming().flatten() {
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            let _ = stream.write_all(b"heard");
            heard.send(text).unwrap();
        }
    });
    let forward = |name: &str, listen: &str| {
        format!(
            "[tunnel.t.forward.{name}]\nlisten = \"{listen}\"\nconnect = \"{address}\"\ncheck = \"none\"\n"
        )
    };
    let forwards = forward("tcp", "127.0.0.1:0") + &forward("unix", "unix:$D/db.sock");
    place.configure(&format!("[tunnel.t]\nhost = \"far\"\n{forwards}"));
    let up = place.start(&["up", "t"]);
    up.wait_for(": up");
    let tcp = status(&place)["forwards"][0]["listen"].as_str().unwrap().to_owned();
    let text = fs::read_to_string(place.path("ssh_config")).unwrap();
    place.write("ssh_config", &format!("Host far\n HostName 127.0.0.1\n Port 1\n{text}"));
    place.break_connections();
    up.wait_for("connection refused");
    let mut gone = UnixStream::connect(place.path("db.sock")).unwrap();
    gone.write_all(b"of one that closed").unwrap();
    drop(gone);
    let mut gone = TcpStream::connect(&tcp).unwrap();
    gone.write_all(b"of one that broke off").unwrap();
    sys::socket::set_linger_zero(gone.as_fd()).unwrap();
    drop(gone);
    // The end of one direction may be all that there is to say.
    let mut there = TcpStream::connect(&tcp).unwrap();
    there.write_all(b"of one that waits").unwrap();
    there.shutdown(Shutdown::Write).unwrap();
    place.write("ssh_config", &text);
    up.wait_for("connected to far again");
    let mut answer = String::new();
    there.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "heard");
    eventually("the end of all", secs(20), || {
        let told = status(&place);
        told["forwards"].as_array().unwrap().iter().all(|it| it["connections"] == 0).then_some(())
    });
    // Connections are accepted in the order in which they were made.
    let mut last = TcpStream::connect(address).unwrap();
    last.write_all(b"last").unwrap();
    last.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    while all.last().is_none_or(|text| text != "last") {
        all.push(hears.recv_timeout(secs(20)).unwrap());
    }
    assert_eq!(all, ["of one that waits", "last"]);
    place.run(&["down", "t"]).code(0);
    place.is_clean();
}

#[test]
fn a_tunnel_that_does_not_run_ends_the_status_with_1_in_json_too() {
    let place = Place::new();
    for format in [&[][..], &["--json"]] {
        let ran = place.run(&[&["status", "nas"], format].concat());
        ran.code(1).says("tunnel nas does not run");
        assert_eq!(ran.out, if format.is_empty() { "" } else { "[]\n" });
    }
}
