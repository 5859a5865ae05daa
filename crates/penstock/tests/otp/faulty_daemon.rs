//! The module beside a daemon that lies, goes away, or is another program: no user is let in, and the program that asks lives.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use testing::tools::{Root, root};
use testing::{eventually, secs};

use crate::pam::log_in;
use crate::token::YubiKey;

/// Logs in beside a daemon that does this with each connection.
#[track_caller]
fn beside(daemon: fn(UnixStream), typed: &str) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("auth.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| daemon(stream.unwrap())));
    let began = Instant::now();
    let output = log_in(&format!("socket={}", socket.display()), "alice", typed);
    // Not by a signal: SIGPIPE would end sshd in the same way.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("retrieve authentication info") || said.contains("Authentication"), "{said}");
    // It waits for two seconds, and a busy machine may need more for the programs.
    assert!(began.elapsed() < secs(20), "{:?}", began.elapsed());
}

fn heard(stream: &UnixStream) {
    BufReader::new(stream).read_line(&mut String::new()).unwrap();
}

#[test]
fn an_answer_that_is_cut_off_is_none() {
    let otp = YubiKey::named("cccccccccccb").otp(1, 1);
    beside(
        |mut stream| {
            heard(&stream);
            let _ = stream.write_all(b"{\"result\":\"good\"}");
        },
        &otp,
    );
    beside(
        |mut stream| {
            heard(&stream);
            let _ = stream.write_all(b"{\"result\":\"go");
        },
        &otp,
    );
    beside(
        |mut stream| {
            heard(&stream);
            let _ = stream.write_all(b"");
        },
        &otp,
    );
}

#[test]
fn an_answer_that_says_anything_else_is_none() {
    let otp = YubiKey::named("cccccccccccb").otp(1, 1);
    beside(
        |mut stream| {
            heard(&stream);
            let _ = stream.write_all(b"{\"result\":\"bad\",\"result\":\"good\"}\n");
        },
        &otp,
    );
    beside(
        |mut stream| {
            heard(&stream);
            let _ = stream.write_all(b"{\"result\":\"good\"}\n{\"result\":\"good\"}\n");
        },
        &otp,
    );
    beside(
        |mut stream| {
            heard(&stream);
            let _ = stream.write_all(&[b'x'; 100_000]);
        },
        &otp,
    );
}

#[test]
fn a_daemon_that_closes_before_it_has_read_ends_no_program() {
    // More than a socket buffers, so that the module is still writing.
    let long = "x".repeat(400);
    beside(drop, &long);
    beside(
        |mut stream| {
            let _ = stream.read_exact(&mut [0; 1]);
        },
        &long,
    );
}

#[test]
fn a_daemon_that_never_answers_is_waited_for_two_seconds() {
    let otp = YubiKey::named("cccccccccccb").otp(1, 1);
    beside(
        |stream| {
            heard(&stream);
            std::mem::forget(stream);
        },
        &otp,
    );
}

#[test]
fn a_socket_of_another_user_is_refused_whatever_it_says() {
    if root("listens as another user") == Root::LeftOut {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = directory.path().join("auth.sock");
    let listen = format!("UNIX-LISTEN:{},fork,mode=666", socket.display());
    let script = directory.path().join("say");
    fs::write(&script, "read line; echo '{\"result\":\"good\"}'\n").unwrap();
    let say = format!("EXEC:sh {}", script.display());
    let user = testing::sshd::ordinary_user();
    let mut other = Command::new("setpriv");
    other.args(["--reuid", &user, "--regid", &user, "--clear-groups", "socat", &listen, &say]);
    let mut other = other.stdin(Stdio::null()).spawn().unwrap();
    eventually("it listens", secs(20), || socket.exists().then_some(()));
    let otp = YubiKey::named("cccccccccccb").otp(1, 1);
    let options = format!("socket={}", socket.display());
    let as_stranger = log_in(&options, "alice", &otp);
    // The same program would be believed, were it the daemon's user.
    let as_daemon = log_in(&format!("{options} daemon_user={user}"), "alice", &otp);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(as_stranger.status.code(), Some(1), "{as_stranger:?}");
    assert!(as_daemon.status.success(), "{as_daemon:?}");
}
