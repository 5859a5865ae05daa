//! The parts of the module that need no libpam.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../src/ask.rs"]
mod ask;
#[path = "../src/key.rs"]
mod key;
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

    pub(crate) fn own_user() -> u32 {
        // The test has made the program.
        std::fs::metadata("/proc/self").map_or(0, |facts| std::os::unix::fs::MetadataExt::uid(&facts))
    }

    pub(crate) fn alone_for(_: &mut std::process::Command, _: Duration) {}

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

use ask::{Answer, Question, Responded, Slot, Told, ask, asked, judge, line};
use mapping::Keys;
use options::{Auth, Echo, Factor, Mapping, Options, Prompting};
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
    for word in [
        "alwaysok",
        "socket=relative",
        "token_id_length=33",
        "id=1",
        "authfile=x",
        "mode=x",
        "chalresp_path=/var/yubico",
    ] {
        assert_eq!(options(&[word]), Err(word.to_owned()));
    }
}

#[test]
fn a_key_that_responds_to_challenges_goes_with_a_password_and_not_in_its_place() {
    let read = options(&["mode=challenge-response", "auth=both", "nullok", "try_first_pass"]).unwrap();
    assert_eq!((read.factor, read.auth), (Factor::Key, Auth::Both));
    assert_eq!(read.programs.response, Path::new("/usr/bin/ykchalresp"));
    let read = options(&["mode=challenge-response", "chalresp_program=/x/y", "serial_program=/x/z"]).unwrap();
    assert_eq!((read.auth, read.programs.response.as_path()), (Auth::Otp, Path::new("/x/y")));
    assert_eq!(read.programs.serial, Path::new("/x/z"));
    for word in [
        "authfile=/x",
        "user_authfile",
        "prompt=x",
        "verbose_otp",
        "token_id_length=12",
        "chalresp_program=y",
    ] {
        assert_eq!(options(&[word, "mode=challenge-response"]), Err(word.to_owned()));
    }
    for word in ["auth=either", "auth=password"] {
        assert!(options(&["mode=challenge-response", word]).unwrap_err().starts_with(word));
    }
}

#[test]
fn only_an_exact_challenge_is_sent_to_a_key() {
    let said = |challenge: &str, next: &str| {
        format!("{{\"slot\":2,\"challenge\":\"{challenge}\",\"next\":\"{next}\"}}\n")
    };
    let good = said("00ff", &"a0".repeat(63));
    let read = asked(good.as_bytes()).unwrap();
    assert_eq!((read.slot, read.slot.option(), &*read.challenge), (Slot::Two, "-2", "00ff"));
    assert_eq!(read.next, "a0".repeat(63));
    for cut in 0..good.len() {
        assert_eq!(asked(&good.as_bytes()[..cut]), None, "{cut}");
    }
    for (challenge, next) in [("", "00"), ("0", "00"), ("00", "zz"), ("-h", "00"), ("00", &*"a0".repeat(64))]
    {
        assert_eq!(asked(said(challenge, next).as_bytes()), None, "{challenge} {next}");
    }
    assert_eq!(asked(good.replace(":2,", ":3,").as_bytes()), None);
    assert_eq!(asked(format!("{good}{good}").as_bytes()), None);
}

#[test]
fn a_program_that_hangs_fails_or_prints_another_text_gives_no_response() {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    let program = std::env::temp_dir().join(format!("penstock-pam-{}-program", std::process::id()));
    // Made anew each time: a file that another process of these tests has open for writing cannot be run.
    let make = |text: &str, mode: u32| {
        let _ = fs::remove_file(&program);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    };
    let run = |limit| loop {
        match key::run(&program, &["-2"], limit) {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => continue,
            done => return done.map(|text| text.to_string()).map_err(|error| error.to_string()),
        }
    };
    let long = Duration::from_secs(60);
    make("echo $1 $HOME; pwd", 0o755);
    assert_eq!(run(long).unwrap(), "-2\n/", "it has no environment");
    let asked = asked(b"{\"slot\":2,\"challenge\":\"00\",\"next\":\"01\"}\n").unwrap();
    for text in [
        "echo 1234",
        "printf '%041d' 1",
        "printf '%040x\\n\\n' 1",
        "echo zz34567890123456789012345678901234567890",
    ] {
        make(text, 0o755);
        assert!(key::respond(&program, &asked).is_err(), "{text}");
    }
    make("printf '%038x%s\\n' 1 \"$3\"", 0o755);
    let [first, second] = key::respond(&program, &asked).unwrap();
    assert!(first.ends_with("00") && second.ends_with("01"));
    make("echo 1234567", 0o755);
    assert_eq!(&*key::serial(&program).unwrap(), "1234567");
    for text in ["echo", "echo 12x", "echo 4294967296"] {
        make(text, 0o755);
        assert!(key::serial(&program).is_err(), "{text}");
    }
    make("printf '%040x\\n' 1; exit 1", 0o755);
    assert!(run(long).unwrap_err().contains("is the key there?"));
    make("exec head -c 1000 /dev/zero", 0o755);
    assert!(run(long).unwrap_err().contains("more than 256 bytes"));
    make("exec sleep 2", 0o755);
    assert!(run(Duration::from_millis(100)).unwrap_err().contains("does not end within"));
    for mode in [0o775, 0o757] {
        make("printf '%040x\\n' 1", mode);
        assert!(run(long).unwrap_err().contains("others may write to it"), "{mode:o}");
    }
    fs::remove_file(&program).unwrap();
    assert!(run(long).is_err());
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
        responded: None,
    };
    assert_eq!(
        &*line(&question),
        "{\"user\":\"alice\",\"service\":\"sshd\",\"from\":\"\",\"auth\":\"both\",\"otp\":\"a\\\"\\\\\\u000a\\u0001\\u007f\",\
         \"keys_of\":\"user\",\"keys\":[\"cccb\"]}\n"
    );
    let responded = Some(Responded { challenge: "00", response: "01", next: "02" });
    let question = Question { otp: None, keys: None, responded, ..question };
    assert_eq!(
        &*line(&question),
        "{\"user\":\"alice\",\"service\":\"sshd\",\"from\":\"\",\"auth\":\"both\",\
         \"challenge\":\"00\",\"response\":\"01\",\"next\":\"02\"}\n"
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
    responded: None,
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
    beside(name, daemon, |path| ask(path, Some("penstock"), &QUESTION))
}

fn beside<T>(
    name: &str,
    daemon: impl FnOnce(UnixStream) + Send + 'static,
    act: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    let path = std::env::temp_dir().join(format!("penstock-pam-{}-{name}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || daemon(listener.accept().unwrap().0));
    let answer = act(&path);
    std::fs::remove_file(&path).unwrap();
    thread.join().unwrap();
    answer
}

#[test]
fn what_a_key_is_asked_comes_from_the_daemon_which_may_want_its_serial_number() {
    let told = |name: &str, serial: Option<&'static str>, said: &'static str| {
        let daemon = move |mut stream: UnixStream| {
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            let number = serial.map_or_else(String::new, |serial| format!(",\"serial\":\"{serial}\""));
            let asked = "{\"user\":\"alice\",\"service\":\"x\",\"from\":\"\",\"want\":\"challenge\"";
            assert_eq!(line, format!("{asked}{number}}}\n"));
            stream.write_all(said.as_bytes()).unwrap();
        };
        beside(name, daemon, |path| ask::challenge(path, Some("penstock"), &QUESTION, serial))
    };
    let which = told("which", None, "{\"result\":\"which-key\"}\n").unwrap();
    assert_eq!(which, Told::Nothing(Answer::WhichKey));
    let line = "{\"slot\":1,\"challenge\":\"00\",\"next\":\"01\"}\n";
    let Told::Ask(asked) = told("asked", Some("1234567"), line).unwrap() else { panic!("it is asked") };
    assert_eq!((asked.slot, &*asked.challenge, &*asked.next), (Slot::One, "00", "01"));
    // A log-in that was not judged is none that is good.
    assert!(told("nothing", None, "{\"result\":\"good\"}\n").is_err());
    assert!(told("torn", None, "{\"slot\":1,\"challenge\":\"00\",\"next\":\"0\n").is_err());
    assert!(with("late", |mut stream| drop(stream.write_all(b"{\"result\":\"which-key\"}\n"))).is_err());
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
