//! The parts of the module that need no libpam.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../src/ask.rs"]
mod ask;
#[path = "../src/mapping.rs"]
mod mapping;
#[path = "../src/options.rs"]
#[allow(dead_code, reason = "the module reads all of it")]
mod options;
#[path = "../src/typed.rs"]
mod typed;

/// In place of the functions of libc.
mod ffi {
    use std::io;
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::time::Duration;

    pub(crate) fn connect_within(path: &Path, _: Duration) -> io::Result<UnixStream> {
        UnixStream::connect(path)
    }

    pub(crate) fn peer_of(_: &UnixStream) -> io::Result<u32> {
        Ok(77)
    }

    pub(crate) fn user_id(name: &str) -> Option<u32> {
        (name == "penstock").then_some(77)
    }
}

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use ask::{Answer, Question, ask, judge, line};
use mapping::Keys;
use options::{Echo, Options, Prompting};
use typed::{Typed, split};

fn options(words: &[&str]) -> Result<Options, String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    Options::read(&words)
}

#[test]
fn options_are_those_of_pam_yubico_where_they_make_sense_and_others_are_refused() {
    let read = options(&[
        "socket=/run/x.sock",
        "try_first_pass",
        "verbose_otp",
        "nullok",
        "token_id_length=16",
        "prompt=Press_it:",
        "debug",
        "mode=client",
    ])
    .unwrap();
    assert_eq!(
        (read.socket.as_path(), read.prompting, read.echo, read.nullok, read.name_length),
        (Path::new("/run/x.sock"), Prompting::IfNeeded, Echo::On, true, 16)
    );
    assert_eq!(read.prompt, "Press it: ");
    for word in
        ["alwaysok", "socket=relative", "token_id_length=33", "id=1", "authfile=x", "mode=challenge-response"]
    {
        assert_eq!(options(&[word]), Err(word.to_owned()));
    }
}

#[test]
fn a_password_before_the_otp_is_told_from_it() {
    let otp = format!("cccccccccccb{}", "d".repeat(32));
    assert_eq!(split(&otp, 12), Typed { password: None, otp: &otp });
    let both = format!("secret{otp}");
    assert_eq!(split(&both, 12), Typed { password: Some("secret"), otp: &otp });
    for text in ["", "123456", "secret", &"z".repeat(50), &format!("ü{}", "a".repeat(43))] {
        assert_eq!(split(text, 12), Typed { password: None, otp: text }, "{text}");
    }
}

#[test]
fn keys_of_a_user_are_found_in_a_mapping() {
    let directory = std::env::temp_dir().join(format!("penstock-pam-{}", std::process::id()));
    std::fs::write(&directory, "# comment\nalice:cccb:cccd\nbob:\nalice2:xxxx\nalice: cccf \n").unwrap();
    let keys = |user: &str| mapping::read(&directory, user).unwrap();
    assert_eq!(keys("alice"), Keys::These(["cccb", "cccd", "cccf"].map(str::to_owned).to_vec()));
    assert_eq!((keys("bob"), keys("carol"), keys("# comment")), (Keys::None, Keys::None, Keys::None));
    std::fs::remove_file(&directory).unwrap();
    assert!(mapping::read(&directory, "alice").is_err());
}

#[test]
fn a_question_is_one_line_of_json_whatever_was_typed() {
    let keys = ["cccb".to_owned()];
    let question =
        Question { user: "alice", service: "sshd", from: "", otp: "a\"\\\n\u{1}", keys: Some(&keys) };
    assert_eq!(
        line(&question),
        "{\"user\":\"alice\",\"service\":\"sshd\",\"from\":\"\",\"otp\":\"a\\\"\\\\\\u000a\\u0001\",\"keys\":[\"cccb\"]}\n"
    );
}

#[test]
fn only_the_exact_words_let_somebody_in() {
    assert_eq!(judge(b"{\"result\":\"good\"}\n").unwrap(), Answer::Good);
    assert_eq!(judge(b"{\"result\":\"bad\"}\n").unwrap(), Answer::Bad);
    for answer in [
        &b"{\"result\":\"good\"}"[..],
        b"good\n",
        b"{\"result\":\"good\"}\n{\"result\":\"bad\"}\n",
        b"\n",
        b"{ \"result\": \"good\" }\n",
    ] {
        assert!(judge(answer).is_err(), "{answer:?}");
    }
}

/// A daemon that does something else.
fn with(name: &str, daemon: impl FnOnce(UnixStream) + Send + 'static) -> std::io::Result<Answer> {
    let path = std::env::temp_dir().join(format!("penstock-pam-{}-{name}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || daemon(listener.accept().unwrap().0));
    let question = Question { user: "alice", service: "x", from: "", otp: "123456", keys: None };
    let answer = ask(&path, Some("penstock"), &question);
    std::fs::remove_file(&path).unwrap();
    thread.join().unwrap();
    answer
}

#[test]
fn a_daemon_that_is_slow_lies_or_goes_away_lets_nobody_in() {
    let hear = |stream: &UnixStream| {
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut String::new()).unwrap()
    };
    let good = with("good", move |mut stream| {
        hear(&stream);
        stream.write_all(b"{\"result\":\"good\"}\n").unwrap();
    });
    assert_eq!(good.unwrap(), Answer::Good);
    assert!(with("gone", drop).is_err());
    let long = with("long", move |mut stream| {
        hear(&stream);
        let _ = stream.write_all(&[b'x'; 4096]);
    });
    assert!(long.is_err());
    let began = Instant::now();
    let drip = with("drip", move |mut stream| {
        for byte in b"{\"result\":\"goo" {
            if stream.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    assert!(drip.unwrap_err().to_string().contains("2 s"));
    assert!(began.elapsed() < Duration::from_secs(10));
    let question = Question { user: "alice", service: "x", from: "", otp: "123456", keys: None };
    assert!(ask(Path::new("/nonexistent/auth.sock"), Some("penstock"), &question).is_err());
    let other = {
        let path = std::env::temp_dir().join(format!("penstock-pam-{}-other", std::process::id()));
        let _listener = UnixListener::bind(&path).unwrap();
        let answer = ask(&path, Some("somebody"), &question);
        std::fs::remove_file(&path).unwrap();
        answer
    };
    assert!(other.unwrap_err().to_string().contains("user 77 answers there"));
}
