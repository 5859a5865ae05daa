use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// A server that reads one line, sends `answer` in pieces of `piece` bytes, and then does what `end` says.
struct Scripted {
    _directory: tempfile::TempDir,
    path: PathBuf,
    heard: JoinHandle<String>,
}

enum End {
    Close,
    /// Keeps the connection open until the client closes it.
    Hold,
}

fn scripted(answer: &'static [u8], piece: usize, end: End) -> Scripted {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let heard = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        for piece in answer.chunks(piece) {
            if (&stream).write_all(piece).is_err() {
                break;
            }
        }
        if let End::Hold = end {
            let _ = reader.read_line(&mut String::new());
        }
        line
    });
    Scripted { _directory: directory, path, heard }
}

fn ask(server: &Scripted, command: &str) -> Result<Answer, ClientError> {
    Client::connect(&server.path, LONG)?.ask(command)
}

#[test]
fn command_is_sent_as_one_line_and_text_lines_come_back() {
    let server = scripted(b"ok\nfirst\n\nsecond\n.\n", 4096, End::Hold);
    let answer = ask(&server, "drain app unix:/run/app.sock").unwrap();
    assert_eq!(answer.lines, ["first", "", "second"]);
    assert_eq!(server.heard.join().unwrap(), "drain app unix:/run/app.sock\n");
}

#[test]
fn answer_is_the_same_in_single_bytes() {
    let server = scripted(b"ok 3 lines\r\na\r\nb\r\n.\r\n", 1, End::Close);
    let answer = ask(&server, "status").unwrap();
    assert_eq!(answer, Answer { note: "3 lines".into(), lines: vec!["a".into(), "b".into()] });
}

#[test]
fn stuffed_dots_are_taken_away_and_do_not_end_the_answer() {
    let server = scripted(b"ok\n..\n...x\n.\n", 4096, End::Hold);
    assert_eq!(ask(&server, "status").unwrap().lines, [".", "..x"]);
}

#[test]
fn refusal_keeps_the_servers_words_and_the_lines_below() {
    let server = scripted(b"error configuration refused\nfile.toml:1:1: bad\n.\n", 7, End::Hold);
    let error = ask(&server, "reload").unwrap_err();
    assert!(
        matches!(&error, ClientError::Refused(text) if text == "configuration refused\nfile.toml:1:1: bad")
    );
}

#[test]
fn refusal_without_an_end_is_still_a_refusal() {
    let server = scripted(b"error only root\n", 4096, End::Close);
    assert_eq!(ask(&server, "stop").unwrap_err().to_string(), "only root");
}

#[test]
fn answer_that_is_cut_off_is_an_error() {
    let server = scripted(b"ok\nfirst\nsecond\n", 4096, End::Close);
    assert!(matches!(ask(&server, "status"), Err(ClientError::ClosedEarly(_))));
}

#[test]
fn foreign_protocol_is_named_as_such() {
    let server = scripted(b"HTTP/1.1 400 Bad Request\r\n\r\n", 4096, End::Close);
    let error = ask(&server, "status").unwrap_err();
    assert!(
        error.to_string().contains("not a penstock control socket: it said \"HTTP/1.1 400 Bad Request\""),
        "{error}"
    );
}

#[test]
fn silent_server_ends_in_a_timeout_and_not_in_a_hang() {
    let server = scripted(b"ok\nhalf", 4096, End::Hold);
    let error = Client::connect(&server.path, Duration::from_millis(50)).unwrap().ask("status").unwrap_err();
    assert!(matches!(error, ClientError::Timeout(..)), "{error}");
}

#[test]
fn timeout_is_for_the_whole_answer_and_not_for_each_byte() {
    // Each byte arrives within the timeout, but all of them together do not.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let _ = (&stream).write_all(b"ok\n");
        while (&stream).write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    let error = Client::connect(&path, Duration::from_millis(100)).unwrap().ask("status").unwrap_err();
    assert!(matches!(error, ClientError::Timeout(..)), "{error}");
}

#[test]
fn endless_line_is_refused_before_memory_runs_out() {
    static FLOOD: [u8; 1 << 20] = [b'x'; 1 << 20];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        while (&stream).write_all(&FLOOD).is_ok() {}
    });
    let error = Client::connect(&path, LONG).unwrap().ask("status").unwrap_err();
    assert!(matches!(error, ClientError::TooLong(_)), "{error}");
}

#[test]
fn full_queue_of_a_server_that_does_not_accept_ends_in_a_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    socket::bind(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    socket::listen(&fd, socket::Backlog::new(1).unwrap()).unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match Client::connect(&path, Duration::from_millis(50)) {
            Ok(client) => waiting.push(client),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100, "the queue never filled");
    };
    assert!(matches!(error, ClientError::Timeout(..)), "{error}");
}

#[test]
fn command_with_a_line_break_is_never_sent() {
    let server = scripted(b"ok\n.\n", 4096, End::Hold);
    let mut client = Client::connect(&server.path, LONG).unwrap();
    assert!(matches!(client.ask("weight app x\nstop"), Err(ClientError::BadCommand(_))));
    drop(client);
    assert_eq!(server.heard.join().unwrap(), "");
}

#[test]
fn missing_dead_and_impossible_sockets_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("none.sock");
    assert!(matches!(Client::connect(&missing, LONG), Err(ClientError::NoSocket(_))));
    let dead = directory.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    assert!(matches!(Client::connect(&dead, LONG), Err(ClientError::NobodyListens(_))));
    let long = directory.path().join("x".repeat(200));
    assert!(matches!(Client::connect(&long, LONG), Err(ClientError::BadPath(_))));
}

#[test]
fn follow_hands_over_lines_until_the_server_ends() {
    let server = scripted(b"ok\none\n..two\n", 3, End::Close);
    let mut lines = Vec::new();
    let mut client = Client::connect(&server.path, LONG).unwrap();
    client
        .follow("events follow", |line| {
            lines.push(line.to_owned());
            Ok::<_, ClientError>(())
        })
        .unwrap();
    assert_eq!(lines, ["one", ".two"]);
}
