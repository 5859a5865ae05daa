//! Programs and signals of Pen: each row of the table in docs/pen.md does here what it says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use testing::client::get;
use testing::server::{binary, clear_environment, run_to_end};
use testing::{Client, Scripted, Server, eventually, secs};

use crate::doors::{Door, Which, greeter};

text::words! {
    /// What stands in the first column.
    enum Row: "program or signal of Pen" {
        Penctl = "`penctl`",
        Pages = "`penctl.cgi`, `penstats`",
        Logs = "`penlog`, `penlogd`, `mergelogs`",
        Responses = "pen-ocsp.sh",
        Hangup = "SIGHUP",
        User1 = "SIGUSR1",
        User2 = "SIGUSR2",
        Terminate = "SIGTERM",
    }
}

impl Row {
    /// Does what the row says with the program that is called `pen`.
    fn check(self) {
        match self {
            Self::Penctl => a_control_socket_answers(),
            Self::Pages => the_admin_listener_has_pages(),
            Self::Logs => the_log_has_every_session(),
            // Nothing is to be started: crates/penstock/tests/tls has the responses.
            Self::Responses => {}
            Self::Hangup => the_log_is_reopened(Signal::SIGHUP),
            Self::User1 => the_log_is_reopened(Signal::SIGUSR1),
            Self::User2 => it_ends_without_a_core_file(),
            Self::Terminate => open_sessions_end_first(),
        }
    }
}

#[test]
fn each_program_and_signal_has_what_the_table_says() {
    Row::ALL.iter().for_each(|row| row.check());
}

#[test]
fn page_has_every_program_and_signal() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pen.md")).unwrap();
    let (_, section) = page.split_once("## Programs and signals\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let first: Vec<_> = rows.map(|(first, _)| first).skip(1).collect();
    assert_eq!(first, Row::WORDS);
}

/// The user of this process: called by root, the program would become another one.
fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name
}

fn a_control_socket_answers() {
    let server = Scripted::answering("a");
    let line = format!("-r -u {} -C @DIR/ctl @ {}", user(), server.address);
    let door = Door::open(Which::Penstock, &line);
    let mut command = Command::new(binary());
    command.arg("ctl").arg("--socket").arg(door.dir.path().join("ctl")).arg("backends");
    clear_environment(&mut command);
    let output = run_to_end(&mut command, secs(20));
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains(&server.address));
}

fn the_admin_listener_has_pages() {
    let server = Scripted::answering("a");
    let front = Server::start(&format!(
        "[admin]\nbind = \"127.0.0.1:0\"\n[listener.main]\nbind = \"127.0.0.1:0\"\npool = \"main\"\n\
         [pool.main]\nbackends = [\"{}\"]\n",
        server.address
    ));
    for page in ["/status.html", "/status", "/metrics"] {
        assert_eq!(get(&front.admin(), page).status, 200, "{page}");
    }
}

/// A `pen` with a log, in a directory where its user may make files.
fn with_log(server: &Scripted) -> Door {
    let door = Door::open(Which::Penstock, &format!("-r -u {} -l @DIR/log @ {}", user(), server.address));
    fs::set_permissions(door.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    door
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn the_log_has_every_session() {
    let server = Scripted::answering("a");
    let door = with_log(&server);
    assert_eq!(door.asks(3), ["a"; 3]);
    let log = door.dir.path().join("log");
    eventually("the log has the sessions", secs(10), || (lines(&log) == 3).then_some(()));
}

fn the_log_is_reopened(signal: Signal) {
    let server = Scripted::answering("a");
    let door = with_log(&server);
    assert_eq!(door.ask(), "a");
    let (log, old) = (door.dir.path().join("log"), door.dir.path().join("old"));
    eventually("the log has the session", secs(10), || (lines(&log) == 1).then_some(()));
    fs::rename(&log, &old).unwrap();
    door.process.signal(signal);
    eventually(&format!("{signal} reopens the log"), secs(10), || log.exists().then_some(()));
    assert_eq!(door.ask(), "a");
    eventually("the new log has the session", secs(10), || (lines(&log) == 1).then_some(()));
    assert_eq!(lines(&old), 1);
}

fn it_ends_without_a_core_file() {
    let server = Scripted::answering("a");
    let mut door = Door::open(Which::Penstock, &format!("-r @ {}", server.address));
    door.process.signal(Signal::SIGUSR2);
    let status = door.process.wait(secs(20));
    assert_eq!((status.signal(), status.core_dumped()), (Some(Signal::SIGUSR2 as i32), false));
}

fn open_sessions_end_first() {
    let server = greeter("a");
    let mut door = Door::open(Which::Penstock, &format!("-r @ {}", server.address));
    let (mut client, _) = door.hold(secs(8)).unwrap();
    door.process.signal(Signal::SIGTERM);
    eventually("no client comes in any more", secs(10), || {
        Client::try_connect(&door.address).is_err().then_some(())
    });
    client.send("still here");
    drop(client);
    assert!(door.process.wait(secs(20)).success());
}
