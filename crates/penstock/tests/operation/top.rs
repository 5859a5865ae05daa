//! `penstock ctl top` on a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};
use testing::client::{End, Stream};
use testing::server::binary;
use testing::{Client, Scripted, Server, eventually, secs, tools};

/// A program on a terminal of its own.
struct OnTerminal {
    child: Child,
    /// The side of a terminal emulator.
    keys: File,
    terminal: OwnedFd,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).unwrap();
        let before = tcgetattr(&pair.slave).unwrap();
        let side = || Stdio::from(pair.slave.try_clone().unwrap());
        // A session of its own, whose terminal this is.
        let mut command = Command::new(tools::program("setsid"));
        command.arg("--ctty").arg(binary()).args(arguments);
        testing::server::clear_environment(&mut command);
        command.env("TERM", "xterm").stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().unwrap();
        let (keys, shown) = (File::from(pair.master), Arc::new(Mutex::new(Vec::new())));
        let (mut output, all) = (keys.try_clone().unwrap(), shown.clone());
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut chunk) {
                all.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
        });
        Self { child, keys, terminal: pair.slave, before, shown }
    }

    fn type_in(&mut self, keys: &str) {
        // What was shown until now is old.
        self.shown.lock().unwrap().clear();
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    #[track_caller]
    fn wait_for(&self, part: &str) {
        eventually(&format!("{part:?} is shown"), secs(20), || {
            String::from_utf8_lossy(&self.shown.lock().unwrap()).contains(part).then_some(())
        });
    }

    /// Changes the size of the terminal, as a window that is dragged.
    fn resize(&self, rows: u16, columns: u16) {
        let (rows, columns) = (rows.to_string(), columns.to_string());
        let mut command = Command::new(tools::program("stty"));
        command.args(["rows", &rows, "cols", &columns]).stdin(self.terminal.try_clone().unwrap());
        assert!(command.status().unwrap().success());
    }

    #[track_caller]
    fn assert_ended_cleanly(mut self) {
        let status = eventually("it ends", secs(20), || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
        self.wait_for("\u{1b}[?1049l");
        self.wait_for("\u{1b}[?25h");
        assert_eq!(tcgetattr(&self.terminal).unwrap(), self.before, "the terminal is as it was");
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- terminal ---\n{:?}", String::from_utf8_lossy(&self.shown.lock().unwrap()));
        }
    }
}

fn silent() -> Scripted {
    Scripted::start(|talk| {
        talk.request();
        talk.rest();
    })
}

fn start(backend: &str) -> Server {
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\n"
    ))
}

fn waiting(server: &Server) -> (Client, String) {
    let mut client = server.client("web");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let Stream::Tcp(stream) = &client.stream else { panic!("the listener has a TCP address") };
    let address = stream.local_addr().unwrap().to_string();
    (client, address)
}

fn arguments(server: &Server) -> Vec<String> {
    let socket = server.control_socket().display().to_string();
    ["ctl", "--socket", &socket, "top"].map(str::to_owned).to_vec()
}

fn top(server: &Server) -> OnTerminal {
    let words = arguments(server);
    OnTerminal::start(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn a_session_is_shown_and_killed_and_a_backend_drained_from_there() {
    let backend = silent();
    let server = start(&backend.address);
    let (mut client, address) = waiting(&server);
    let mut top = top(&server);
    top.wait_for(&address);
    top.wait_for(&backend.address);
    top.type_in("k");
    top.wait_for(&format!("of client {address}? y/n"));
    top.type_in("n");
    top.wait_for("not done");
    top.type_in("k");
    top.wait_for("y/n");
    top.type_in("y");
    top.wait_for("ended session ");
    assert_eq!(client.read_to_end().1, End::Reset);
    top.type_in("\td");
    let asks = format!("drain {}, the LAST of pool app (clients get errors)? y/n", backend.address);
    top.wait_for(&asks);
    top.type_in("y");
    top.wait_for("draining");
    eventually("the backend is drained", secs(10), || {
        (server.backend(&backend.address)["admission"] == "draining").then_some(())
    });
    top.resize(30, 130);
    top.wait_for("IDLE");
    top.type_in("q");
    top.assert_ended_cleanly();
}

#[test]
fn sessions_are_filtered_and_the_filter_is_judged_by_the_server() {
    let backend = silent();
    let server = start(&backend.address);
    let (_client, address) = waiting(&server);
    let mut top = top(&server);
    top.wait_for(&address);
    top.type_in("/192.0.2.0/24\r");
    top.wait_for("0 sessions with 192.0.2.0/24 by age");
    top.type_in("\u{1b}");
    top.wait_for(&address);
    top.type_in("/nowhere\r");
    top.wait_for("error: no backend \"nowhere\"");
    top.type_in("s");
    top.wait_for(&address);
    // Ctrl-C is a key here.
    top.type_in("\u{3}");
    top.assert_ended_cleanly();
}

#[test]
fn without_a_terminal_there_is_one_picture_or_an_error() {
    let backend = silent();
    let server = start(&backend.address);
    let (_client, address) = waiting(&server);
    let output = server.ctl(&["top"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: top needs a terminal\n  hint: --once"), "{said}");
    let picture = eventually("the session is on the picture", secs(10), || {
        let output = server.ctl(&["top", "--once"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.contains(&address).then_some(text)
    });
    for part in ["penstock ", "LISTENER", "BACKEND", &backend.address, "RTT MS", "http/1.1"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    assert!(!picture.contains('\u{1b}'), "{picture:?}");
    let output = server.ctl(&["top", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("error: top --json needs --once"));
    let parts = server.ctl_json(&["top", "--once"]);
    assert_eq!(parts["status"]["listeners"][0]["name"], "web", "{parts:#}");
    assert_eq!(parts["sessions"]["sessions"][0]["client"], address.as_str(), "{parts:#}");
    let output = testing::server::penstock(&["ctl", "--socket", "/nonexistent/socket", "top", "--once"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

/// Whether the first address is above the second one in the last picture that is sorted so.
fn is_above(top: &OnTerminal, sort: &str, first: &str, second: &str) -> bool {
    let shown = String::from_utf8_lossy(&top.shown.lock().unwrap()).into_owned();
    let Some(end) = shown.rfind(&format!(" by {sort}")) else { return false };
    let picture = &shown[..end];
    picture.rfind(first).zip(picture.rfind(second)).is_some_and(|(first, second)| first < second)
}

#[test]
fn the_key_s_sorts_the_sessions_by_the_next_order() {
    let backend = Scripted::start(|talk| {
        talk.rest();
    });
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let open = |length: usize| {
        let mut client = server.client("web");
        client.send(vec![b'x'; length]);
        let Stream::Tcp(stream) = &client.stream else { panic!("the listener has a TCP address") };
        let address = stream.local_addr().unwrap().to_string();
        eventually("its bytes are counted", secs(10), || {
            let all = server.ctl_json(&["sessions"]);
            let all = all["sessions"].as_array().unwrap();
            let mine = all.iter().find(|session| session["client"] == address.as_str())?;
            (mine["bytes_in"] == length).then_some(())
        });
        (client, address)
    };
    let (_old, old) = open(10);
    let (_heavy, heavy) = open(50_000);
    let mut top = top(&server);
    eventually("the oldest is first", secs(20), || is_above(&top, "age", &old, &heavy).then_some(()));
    top.type_in("s");
    eventually("the heaviest is first", secs(20), || is_above(&top, "bytes", &heavy, &old).then_some(()));
    top.type_in("sss");
    eventually("the newest is first", secs(20), || is_above(&top, "newest", &heavy, &old).then_some(()));
    top.type_in("s");
    eventually("the oldest is first again", secs(20), || is_above(&top, "age", &old, &heavy).then_some(()));
    top.type_in("q");
    top.assert_ended_cleanly();
}
