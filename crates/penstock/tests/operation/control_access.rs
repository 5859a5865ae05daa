//! Who may use the control socket besides root and the user of the server.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use testing::server::binary;
use testing::tools::{self, Root};
use testing::{Client, Scripted, Server, eventually, secs};

const CONFIG: &str = "[control]\nsocket = \"@DIR@/control.sock\"\noperators = [\"group:4242\"]\nreaders = [\"nobody\"]\n\
     [access-log]\ntarget = \"off\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n";

fn start(backend: &Scripted) -> Server {
    let server = Server::start(&format!("{CONFIG}[pool.app]\nbackends = [\"{}\"]\n", backend.address));
    fs::set_permissions(server.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    own_binary(&server);
    server
}

/// A copy of the binary in the directory of the server: that of the binary may be closed to other users. Another program makes it:
/// a child of another test that has not called execve(2) yet has no descriptor of it for writing, with which it could not be run.
pub(crate) fn own_binary(server: &Server) -> PathBuf {
    let own = server.dir.path().join("penstock");
    if !own.exists() {
        let output = tools::run("cp", &[binary(), own.to_str().unwrap()], secs(60));
        assert!(output.status.success(), "{output:?}");
    }
    own
}

/// Runs ctl as another user. Returns whether it was done, and what it said.
fn ctl_as(server: &Server, user: [&str; 3], arguments: &[&str]) -> (bool, String) {
    let (own, socket) = (server.dir.path().join("penstock"), server.control_socket());
    let user = ["--reuid", user[0], "--regid", user[1], user[2], own.to_str().unwrap()];
    let all = [&user[..], &["ctl", "--socket", socket.to_str().unwrap()], arguments].concat();
    let output = tools::run("setpriv", &all, secs(20));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), said)
}

const NOBODY: [&str; 3] = ["65534", "65534", "--clear-groups"];
const OPERATOR: [&str; 3] = ["12345", "12345", "--groups=7,4242"];
const STRANGER: [&str; 3] = ["12346", "12346", "--groups=7,8"];

#[test]
fn readers_read_operators_change_and_others_are_told_their_uid_and_what_to_do() {
    if tools::root("becomes other users") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("one");
    let server = start(&backend);
    for command in [
        &["status"][..],
        &["backends", "--json"],
        &["certs"],
        &["events"],
        &["history"],
        &["why", "http://x/"],
    ] {
        let (done, said) = ctl_as(&server, NOBODY, command);
        assert!(done, "{command:?}: {said}");
    }
    let address = &*backend.address;
    for command in [
        &["drain", address][..],
        &["weight", address, "3"],
        &["show"],
        &["set", "pool.app.balance", "hash"],
        &["begin"],
        &["history", "1"],
        &["save"],
        &["reload"],
        &["stop"],
    ] {
        let (done, said) = ctl_as(&server, NOBODY, command);
        assert!(!done && said.contains("(uid 65534, pid "), "{command:?}: {said}");
        assert!(
            said.contains("may only read: `") && said.contains("control.operators"),
            "{command:?}: {said}"
        );
        // Without a number they may read it.
        assert_eq!(said.contains("`history N` is for"), command[0] == "history", "{command:?}: {said}");
    }
    let (done, said) = ctl_as(&server, OPERATOR, &["set", "pool.app.balance", "hash"]);
    assert!(done, "{said}");
    assert!(ctl_as(&server, OPERATOR, &["history"]).1.contains("uid 12345"));
    for command in [&["status"][..], &["drain", address]] {
        let (done, said) = ctl_as(&server, STRANGER, command);
        assert!(!done && said.contains("uid 12346 may not control this process"), "{command:?}: {said}");
        assert!(said.contains("control.operators") && said.contains("control.readers"), "{said}");
    }
    assert_eq!(server.backend(address)["admission"], "ready");
    // One event a minute: each local user can connect.
    let refused = "refused: uid 12346 may not control this process";
    server.stderr.wait_for(refused, secs(10));
    assert_eq!(server.stderr.count(refused), 1);
}

#[test]
fn a_change_of_the_lists_holds_for_clients_that_are_connected_too() {
    if tools::root("becomes other users") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("one");
    let server = start(&backend);
    assert!(ctl_as(&server, NOBODY, &["status"]).0);
    let output = server.ctl(&["set", "control.readers", "[]"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!said.contains("next start"), "{said}");
    let (done, said) = ctl_as(&server, NOBODY, &["status"]);
    assert!(!done && said.contains("uid 65534 may not control this process"), "{said}");
    let output = server.ctl(&["set", "control.readers", "[\"12346\"]"]);
    assert!(output.status.success(), "{output:?}");
    assert!(ctl_as(&server, STRANGER, &["status"]).0);
    // One connection, before and after the change.
    let mut kept = KeptReader::start(&server);
    assert!(kept.ask("status").starts_with("ok"));
    let mut root = Client::connect(server.control_socket().to_str().unwrap());
    root.send("set control.readers \"[]\"\n");
    assert!(root.read_until(b"\n.\n").starts_with(b"ok"));
    assert!(kept.ask("status").contains("uid 12346 may not control this process"));
}

/// Keeps as many connections open as its second argument says, each of which asks once, and follows events on as many as it may.
const CROWD: &str = "
import os, select, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
path, count = sys.argv[1], int(sys.argv[2])
poll, clients = select.poll(), {}
def connect(line):
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    try:
        client.connect(path)
        client.send(line)
    except OSError:
        return
    clients[client.fileno()] = client
    poll.register(client, select.POLLRDHUP | select.POLLHUP)
for _ in range(56):
    connect(b'events follow\\n')
said = False
while True:
    while len(clients) < count:
        before = len(clients)
        connect(b'help\\n')
        if len(clients) == before:
            break
    if not said:
        print('all are there', flush=True)
        said = True
    for number, _ in poll.poll(20):
        poll.unregister(number)
        clients.pop(number).close()
";

#[test]
fn a_reader_with_hundreds_of_connections_keeps_root_out_no_more_than_a_moment() {
    if tools::root("becomes other users") == Root::LeftOut {
        return;
    }
    let backend = Scripted::answering("one");
    let server = start(&backend);
    let socket = server.control_socket();
    let crowd = std::process::Command::new(tools::program("python3"))
        .args(["-c", CROWD])
        .arg(&socket)
        .arg("600")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut crowd = Ended(crowd);
    let mut said = [0; 13];
    crowd.0.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"all are there");
    // It gives up after ten seconds.
    for _ in 0..3 {
        let output = server.ctl(&["status"]);
        assert!(output.status.success(), "{output:?}");
    }
    // Of clients of this reader some find a slot, because others give theirs up. One beyond its share is told so.
    let limit = "too many control clients of uid 65534: it has 48 already, which is the limit of a user";
    eventually("a client of the reader is refused", secs(30), || {
        let (done, said) = ctl_as(&server, NOBODY, &["status"]);
        (!done && said.contains(limit)).then_some(())
    });
}

struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection of another user, through socat.
struct KeptReader {
    child: std::process::Child,
}

impl KeptReader {
    fn start(server: &Server) -> Self {
        let socket = format!("UNIX-CONNECT:{}", server.control_socket().display());
        let child = std::process::Command::new("setpriv")
            .args(["--reuid", "12346", "--regid", "12346", "--clear-groups", "socat", "-t5", "-", &socket])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\n.\n") {
            match self.child.stdout.as_mut().unwrap().read(&mut byte).unwrap() {
                0 => break,
                _ => answer.push(byte[0]),
            }
        }
        String::from_utf8(answer).unwrap()
    }
}

impl Drop for KeptReader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
