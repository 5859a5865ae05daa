//! TCP sessions without bytes: they are parked, and neither end can tell.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use nix::sys::signal::Signal;
use serde_json::Value;
use testing::{Server, eventually, secs};

/// A server, and sessions through it with both ends in the test's hands.
struct Stage {
    server: Server,
    backend: TcpListener,
    config: String,
}

/// The two ends of a session.
struct Session {
    client: TcpStream,
    backend: TcpStream,
}

impl Stage {
    fn new(listener: &str) -> Self {
        let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let config = format!(
            "[process]\nworkers = 1\ndrain-timeout = \"300ms\"\n\
             [access-log]\ntarget = \"stdout\"\nformat = \"json\"\n\
             [control]\nsocket = \"@DIR@/control.sock\"\n\
             [listener.plain]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n{listener}\n\
             [pool.app]\nbackends = [\"{}\"]\n",
            backend.local_addr().unwrap()
        );
        Self { server: Server::start(&config), backend, config }
    }

    /// A session that sleeps, after a word each way.
    fn sleeper(&self) -> Session {
        let client = TcpStream::connect(self.server.address("plain")).unwrap();
        (&client).write_all(b"hello").unwrap();
        let backend = self.backend.accept().unwrap().0;
        let mut session = Session { client, backend };
        hear(&mut session.backend, b"hello");
        session.backend.write_all(b"welcome").unwrap();
        hear(&mut session.client, b"welcome");
        self.wait_until_asleep(1);
        session
    }

    /// Waits until so many sessions sleep.
    fn wait_until_asleep(&self, sessions: usize) {
        wait_until_parked(&self.server, 2 * sessions);
    }

    /// The record of the first session that ended.
    fn record(&self) -> Value {
        let line = self.server.stdout.wait_for("\"outcome\"", secs(20));
        serde_json::from_str(&line).unwrap()
    }
}

/// Waits until so many connections are parked. Only these are watched by level, and for input alone.
pub(crate) fn wait_until_parked(server: &Server, connections: usize) {
    eventually(&format!("{connections} connections are parked"), secs(20), || {
        let watched: usize = fs::read_dir(format!("/proc/{}/fdinfo", server.pid()))
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
            .map(|text| text.lines().filter(|line| is_sleepers(line)).count())
            .sum();
        (watched == connections).then_some(())
    });
}

/// `tfd: 12 events: 2019 data: ...` (proc(5)): EPOLLRDHUP, EPOLLHUP, EPOLLERR and EPOLLIN.
fn is_sleepers(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next() == Some("tfd:") && words.nth(2) == Some("2019")
}

fn hear(stream: &mut TcpStream, expected: &[u8]) {
    stream.set_read_timeout(Some(secs(20))).unwrap();
    let mut heard = vec![0; expected.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, expected);
}

fn hear_end(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(secs(20))).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_sleeping_session_wakes_for_a_word_of_either_side_and_sleeps_again() {
    let stage = Stage::new("");
    let mut session = stage.sleeper();
    session.client.write_all(b"are you there?").unwrap();
    hear(&mut session.backend, b"are you there?");
    stage.wait_until_asleep(1);
    session.backend.write_all(b"yes").unwrap();
    hear(&mut session.client, b"yes");
    stage.wait_until_asleep(1);
    session.client.write_all(b"bye").unwrap();
    session.client.shutdown(Shutdown::Write).unwrap();
    hear(&mut session.backend, b"bye");
    hear_end(&mut session.backend);
    session.backend.write_all(b"so long").unwrap();
    drop(session.backend);
    hear(&mut session.client, b"so long");
    hear_end(&mut session.client);
    let record = stage.record();
    assert_eq!(
        (&record["outcome"], &record["bytes_in"], &record["bytes_out"]),
        (&"ok".into(), &22.into(), &17.into())
    );
}

#[test]
fn much_that_is_said_to_a_sleeper_at_once_arrives_whole() {
    const MUCH: usize = 8 * 1024 * 1024;
    let stage = Stage::new("");
    let Session { client, mut backend } = stage.sleeper();
    let sent: Vec<u8> = (0..MUCH).map(|at| (at % 251) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&sent).unwrap());
        hear(&mut backend, &sent);
    });
    stage.wait_until_asleep(1);
    drop(client);
    hear_end(&mut backend);
    drop(backend);
    assert_eq!(stage.record()["bytes_in"], MUCH + 5);
}

#[test]
fn a_reset_at_either_end_of_a_sleeper_becomes_one_at_the_other() {
    for end in ["client", "backend"] {
        let stage = Stage::new("");
        let Session { client, backend } = stage.sleeper();
        let (breaks, mut stays) = match end {
            "client" => (client, backend),
            _ => (backend, client),
        };
        socket2::SockRef::from(&breaks).set_linger(Some(secs(0))).unwrap();
        drop(breaks);
        stays.set_read_timeout(Some(secs(20))).unwrap();
        let error = stays.read(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{end}");
        let outcome = if end == "client" { "client-closed" } else { "backend-aborted" };
        assert_eq!(stage.record()["outcome"], outcome);
    }
}

#[test]
fn the_idle_limit_ends_a_sleeper_with_its_record() {
    let stage = Stage::new("idle-timeout = \"10s\"");
    let mut session = stage.sleeper();
    hear_end(&mut session.client);
    hear_end(&mut session.backend);
    let record = stage.record();
    assert_eq!((&record["outcome"], &record["bytes_in"]), (&"idle-timeout".into(), &5.into()));
}

#[test]
fn a_sleeper_outlives_a_reload_and_is_cut_at_the_drain_limit_with_its_record() {
    let mut stage = Stage::new("");
    let mut session = stage.sleeper();
    stage.server.write_config(&format!(
        "{}[listener.more]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n",
        stage.config
    ));
    assert!(stage.server.ctl(&["reload"]).status.success());
    session.client.write_all(b"still here").unwrap();
    hear(&mut session.backend, b"still here");
    stage.wait_until_asleep(1);
    stage.server.signal(Signal::SIGTERM);
    stage.server.wait_end(secs(20));
    let record = stage.record();
    assert_eq!((&record["outcome"], &record["bytes_in"]), (&"drain-timeout".into(), &15.into()));
}

#[test]
fn hundreds_of_sleepers_that_are_called_at_once_all_wake() {
    const MANY: usize = 300;
    let stage = Stage::new("");
    let mut sessions: Vec<_> = (0..MANY)
        .map(|_| {
            let client = TcpStream::connect(stage.server.address("plain")).unwrap();
            Session { client, backend: stage.backend.accept().unwrap().0 }
        })
        .collect();
    stage.wait_until_asleep(MANY);
    for session in &mut sessions {
        session.backend.write_all(b"up!").unwrap();
        session.client.write_all(b"what?").unwrap();
    }
    for session in &mut sessions {
        hear(&mut session.client, b"up!");
        hear(&mut session.backend, b"what?");
    }
    stage.wait_until_asleep(MANY);
    drop(sessions);
    stage.wait_until_asleep(0);
    eventually("all have their record", secs(20), || {
        (stage.server.stdout.count("\"outcome\":\"ok\"") == MANY).then_some(())
    });
}
