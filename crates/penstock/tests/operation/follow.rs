//! `penstock ctl events --follow`: a reader that is slower than the events, and one that is interrupted.

use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use testing::peers::Process;
use testing::server::{binary, clear_environment};
use testing::{Client, Scripted, Server, secs};

fn start(backend: &str) -> Server {
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\n"
    ))
}

fn control(server: &Server) -> Client {
    Client::connect(&format!("unix:{}", server.control_socket().display()))
}

#[test]
fn a_reader_that_stands_still_is_told_how_many_events_it_has_missed() {
    /// Many times what the socket and the queue of a follower hold.
    const EVENTS: usize = 6000;
    let backend = Scripted::answering("x");
    let server = start(&backend.address);
    let mut follower = control(&server);
    follower.send("events 0 follow json\n");
    follower.read_until(b"ok\n");
    let mut operator = control(&server);
    for number in 0..EVENTS {
        let verb = if number % 2 == 0 { "drain" } else { "ready" };
        operator.send(format!("{verb} {}\n", backend.address));
        operator.read_until(b"\n.\n");
    }
    let newest = server.ctl_json(&["events", "-n", "1"])[0]["number"].as_u64().unwrap();
    let (mut got, mut lost, mut last) = (0_u64, 0, 0);
    while last < newest {
        let line: Value = serde_json::from_slice(&follower.read_until(b"\n")).unwrap();
        match line["events_lost"].as_u64() {
            Some(count) => lost += count,
            None => {
                let number = line["number"].as_u64().unwrap();
                assert!(number > last, "{line}");
                (got, last) = (got + 1, number);
            }
        }
    }
    assert!(lost > 0 && got > 256, "{got} got, {lost} lost");
    // It goes on.
    operator.send(format!("weight {} 7\n", backend.address));
    follower.read_until(b"weight 7");
}

#[test]
fn the_command_shows_events_until_it_is_ended() {
    let backend = Scripted::answering("x");
    let server = start(&backend.address);
    let mut command = Command::new(binary());
    clear_environment(&mut command);
    let socket = server.control_socket();
    command.args(["ctl", "--socket", socket.to_str().unwrap(), "events", "--follow", "-n", "0", "--json"]);
    let mut following = Process::start(&mut command);
    // It follows as soon as the server has answered; each of these orders is an event.
    let line = testing::eventually("an event is shown", secs(20), || {
        // A second drain in a row would be none.
        assert!(server.ctl(&["ready", &backend.address]).status.success());
        assert!(server.ctl(&["drain", &backend.address]).status.success());
        following.stdout.all().into_iter().find(|line| line.contains("drained: no new sessions"))
    });
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["subject"], format!("pool.app.{}", backend.address), "{event}");
    // Not SIGINT: a shell that starts the tests in the background has them ignore it.
    following.signal(Signal::SIGTERM);
    assert!(!following.wait(secs(20)).success());
    assert!(server.ctl(&["status"]).status.success());
}
