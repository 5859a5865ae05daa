//! The parts of the module that need no libpam.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../src/ask.rs"]
mod ask;
#[path = "../src/mapping.rs"]
mod mapping;
#[path = "../src/options.rs"]
#[allow(dead_code, reason = "the module reads all of it")]
mod options;
#[path = "../src/secret.rs"]
mod secret;
#[path = "../src/typed.rs"]
mod typed;

/// In place of the functions of libc.
mod ffi {
    use std::cell::Cell;
    use std::io::{self, Write as _};
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    thread_local! {
        /// Bytes that were overwritten.
        pub(crate) static WIPED: Cell<usize> = const { Cell::new(0) };
    }

    pub(crate) struct Account {
        pub(crate) user: u32,
        pub(crate) home: PathBuf,
    }

    pub(crate) fn as_user<T>(_: &Account, act: impl FnOnce() -> T) -> io::Result<T> {
        Ok(act())
    }

    pub(crate) fn wipe(memory: &mut [u8]) {
        memory.fill(0);
        WIPED.with(|wiped| wiped.set(wiped.get() + memory.len()));
    }

    /// A byte at a time, as a full socket might take it.
    pub(crate) fn send(mut stream: &UnixStream, bytes: &[u8]) -> io::Result<usize> {
        stream.write(&bytes[..1])
    }

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
use options::{Auth, Echo, Mapping, Options, Prompting};
use secret::Secret;
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
fn what_a_log_in_must_prove_and_who_says_whose_a_key_is_are_options() {
    let plain = options(&[]).unwrap();
    assert_eq!((plain.auth, &plain.mapping), (Auth::Otp, &Mapping::Store));
    for (word, auth, prompt) in [
        ("auth=otp", Auth::Otp, "One-time password: "),
        ("auth=password", Auth::Password, "One-time password: "),
        ("auth=either", Auth::Either, "Password or one-time password: "),
        ("auth=both", Auth::Both, "One-time password: "),
    ] {
        let read = options(&[word]).unwrap();
        assert_eq!((read.auth, &*read.prompt, word), (auth, prompt, &*format!("auth={}", auth.word())));
    }
    assert_eq!(options(&["prompt=Code:", "auth=either"]).unwrap().prompt, "Code: ");
    assert_eq!(options(&["password_prompt=Pass_word:"]).unwrap().password_prompt, "Pass word: ");
    assert_eq!(options(&["user_authfile"]).unwrap().mapping, Mapping::Home);
    for words in [
        &["auth=any"][..],
        &["auth"],
        &["user_authfile=x"],
        &["authfile=/x", "user_authfile"],
        &["user_authfile", "authfile=/x"],
    ] {
        assert_eq!(options(words), Err((*words.last().unwrap()).to_owned()), "{words:?}");
    }
}

#[test]
fn a_secret_is_overwritten_with_all_its_memory() {
    let mut text = String::with_capacity(100);
    text.push_str("secret");
    let before = ffi::WIPED.with(std::cell::Cell::get);
    drop(Secret::new(text));
    assert_eq!(ffi::WIPED.with(std::cell::Cell::get) - before, 100);
}

#[test]
fn keys_that_a_user_has_chosen_count_only_if_no_other_user_may_change_them() {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let home = std::env::temp_dir().join(format!("penstock-pam-{}-home", std::process::id()));
    let own = home.join(".yubico");
    fs::create_dir_all(&own).unwrap();
    let file = own.join("authorized_yubikeys");
    let user = fs::metadata(&home).unwrap().uid();
    let read = |user| mapping::read_own(&ffi::Account { user, home: home.clone() }, "alice");
    assert_eq!(read(user).unwrap(), Keys::None, "there is no file");
    fs::write(&file, "alice:cccb:cccd\nbob:cccf\n").unwrap();
    assert_eq!(read(user).unwrap(), Keys::These(["cccb", "cccd"].map(str::to_owned).to_vec()));
    for path in [&file, &own] {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        for wrong in [mode | 0o020, mode | 0o002] {
            fs::set_permissions(path, fs::Permissions::from_mode(wrong)).unwrap();
            assert!(read(user).unwrap_err().to_string().contains("chmod go-w"), "{path:?} {wrong:o}");
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    if user != 0 {
        assert!(read(user + 1).unwrap_err().to_string().contains("chown alice"));
    }
    fs::write(&file, "x".repeat(70_000)).unwrap();
    assert!(read(user).is_err());
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(read(user).unwrap_err().to_string().contains("no regular file"));
    fs::remove_dir_all(&home).unwrap();
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
    let question = Question {
        user: "alice",
        service: "sshd",
        from: "",
        auth: "both",
        otp: Some("a\"\\\n\u{1}\u{7f}"),
        password: None,
        keys: Some(&keys),
        keys_of: "user",
    };
    assert_eq!(
        &*line(&question),
        "{\"user\":\"alice\",\"service\":\"sshd\",\"from\":\"\",\"auth\":\"both\",\"otp\":\"a\\\"\\\\\\u000a\\u0001\\u007f\",\
         \"keys_of\":\"user\",\"keys\":[\"cccb\"]}\n"
    );
}

const QUESTION: Question<'static> = Question {
    user: "alice",
    service: "x",
    from: "",
    auth: "otp",
    otp: Some("123456"),
    password: None,
    keys: None,
    keys_of: "operator",
};

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
    let answer = ask(&path, Some("penstock"), &QUESTION);
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
    assert!(ask(Path::new("/nonexistent/auth.sock"), Some("penstock"), &QUESTION).is_err());
    let other = {
        let path = std::env::temp_dir().join(format!("penstock-pam-{}-other", std::process::id()));
        let _listener = UnixListener::bind(&path).unwrap();
        let answer = ask(&path, Some("somebody"), &QUESTION);
        std::fs::remove_file(&path).unwrap();
        answer
    };
    assert!(other.unwrap_err().to_string().contains("user 77 answers there"));
}
