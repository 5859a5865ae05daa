//! Commands of operators during an upgrade: each is answered, and what is answered with `ok` is in force afterwards.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use testing::server::{binary, run_to_end};
use testing::{Scripted, eventually, secs};

use crate::front::{Front, config};
use crate::sessions::script;

const HOLDS: &str = include_str!("holds.py");

/// A client of the control socket.
struct Operator(BufReader<UnixStream>);

impl Operator {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, command: &str) -> std::io::Result<()> {
        self.0.get_mut().write_all(format!("{command}\n").as_bytes())
    }

    /// A whole answer. The error is what came of it.
    fn answer(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        while !answer.ends_with("\n.\n") {
            match self.0.read_line(&mut answer) {
                Ok(1..) => {}
                ended => return Err(format!("{answer:?}, then {ended:?}")),
            }
        }
        Ok(answer)
    }
}

/// An upgrade that stands still, because the new process has not said that it is ready.
struct Held {
    upgrade: JoinHandle<Output>,
    go: PathBuf,
}

impl Held {
    fn begin(front: &Front) -> Self {
        let (held, go) = (front.dir().join("held"), front.dir().join("go"));
        let constants = format!("BINARY, MESSAGE, HELD, GO = {:?}, \"ready\", {held:?}, {go:?}", binary());
        let program = script(front, "holds", &constants, HOLDS);
        let socket = front.server.control_socket();
        let upgrade = thread::spawn(move || {
            let mut command = Command::new(binary());
            command.args(["ctl", "--socket"]).arg(socket).args(["upgrade", &program, "--json"]);
            run_to_end(&mut command, secs(60))
        });
        eventually("it stands still", secs(20), || held.exists().then_some(()));
        Self { upgrade, go }
    }

    fn go_on(self) -> Output {
        File::create(self.go).unwrap();
        self.upgrade.join().unwrap()
    }
}

#[test]
fn what_is_asked_for_during_an_upgrade_is_done_or_refused_with_the_reason() {
    let backend = Scripted::answering("x");
    let mut front = Front::start(&config("", &backend.address));
    let socket = front.server.control_socket();
    let mut idle = Operator::connect(&socket);
    let old = front.pid();
    let held = Held::begin(&front);

    front.server.said(&["weight", &backend.address, "7"]);
    let mut reloading = Operator::connect(&socket);
    reloading.send("reload").unwrap();
    // The thread that answers has read what was sent before.
    front.server.said(&["status"]);
    let output = held.go_on();
    let answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    front.follow(front.serving());
    assert_eq!(answer["upgraded"], true, "{output:?}");

    let refused = reloading.answer().unwrap();
    assert!(refused.starts_with("error reload refused"), "{refused}");
    assert!(refused.contains("another process has taken over"), "{refused}");
    // A client that has sent nothing keeps the old process no longer.
    assert_eq!(idle.answer().unwrap_err(), "\"\", then Ok(0)");
    front.wait_gone(old);
    assert_eq!(front.server.backend(&backend.address)["weight_override"], 7);
    front.server.said(&["reload"]);
}

#[test]
fn a_stop_during_an_upgrade_ends_both_processes() {
    let backend = Scripted::answering("x");
    let front = Front::start(&config("", &backend.address));
    let old = front.pid();
    let held = Held::begin(&front);
    assert!(front.server.said(&["stop"]).contains("stopping"));
    front.wait_gone(old);
    let output = held.go_on();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("this process is told to stop"), "{output:?}");
    assert!(!front.server.ctl(&["status"]).status.success(), "no process serves");
}

#[test]
fn no_change_of_many_is_lost_or_without_an_answer_over_upgrades() {
    let backend = Scripted::answering("x");
    let mut front = Front::start(&config("", &backend.address));
    let stop = Arc::new(AtomicBool::new(false));
    let changing = {
        let (socket, name, stop) = (front.server.control_socket(), backend.address.clone(), stop.clone());
        thread::spawn(move || {
            let (mut number, mut last, mut refused) = (0, None, 0);
            while !stop.load(SeqCst) {
                number = number % 100 + 1;
                let mut operator = Operator::connect(&socket);
                operator.send(&format!("weight {name} {number}")).unwrap();
                let answer = operator.answer().unwrap();
                match answer.starts_with("ok") {
                    true => last = Some(number),
                    false => {
                        assert!(answer.contains("give the command again"), "{answer}");
                        refused += 1;
                    }
                }
                assert!(!answer.contains("warning"), "{answer}");
            }
            (last, refused)
        })
    };
    for _ in 0..10 {
        front.upgrade(&[]);
        assert!(!changing.is_finished(), "{:?}", changing.join());
    }
    stop.store(true, SeqCst);
    let (last, refused) = changing.join().unwrap();
    let weight = front.server.backend(&backend.address)["weight_override"].as_u64();
    assert_eq!(weight, last, "{refused} were refused");
}
