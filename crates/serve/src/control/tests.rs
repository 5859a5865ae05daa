use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Instant;

use logic::control_access::Rules;
use logic::transaction::Changes;
use proxy::front::{Request, Said};
use state::Admission;
use state::kept::board::Stored;
use tempfile::TempDir;

use super::*;
use crate::report::fixture;

const POOL: &str = "backends = ['10.0.0.1:80', '10.0.0.2:80', 'unix:/run/app.sock']";

struct Server {
    front: Arc<Front>,
    requests: tokio::sync::mpsc::Receiver<Request>,
    thread: ControlThread,
    _dir: TempDir,
}

fn server() -> Server {
    let dir = tempfile::tempdir().unwrap();
    let (front, requests) = fixture::with_requests(POOL);
    let socket = dir.path().join("control.sock");
    let control = Control { socket, access: Rules::default(), remote: None };
    let logins = Arc::new(Logins::new(front.state.clone()).unwrap());
    let thread = bind(&control, None).unwrap().run(front.clone(), logins).unwrap();
    Server { front, requests, thread, _dir: dir }
}

struct Client(BufReader<StdStream>);

impl Client {
    fn connect(server: &Server) -> Self {
        let stream = StdStream::connect(server.thread.path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// Reads one answer. Returns its first line and its text.
    fn answer(&mut self) -> (String, String) {
        let first = self.line();
        let mut text = String::new();
        loop {
            let line = self.line();
            assert!(!line.is_empty(), "closed inside an answer: {first}{text}");
            if line == ".\n" {
                return (first.trim_end().to_owned(), text);
            }
            text.push_str(line.strip_prefix('.').unwrap_or(&line));
        }
    }

    fn ask(&mut self, command: &str) -> (String, String) {
        self.send(format!("{command}\n").as_bytes()).unwrap();
        self.answer()
    }
}

#[test]
fn the_socket_belongs_to_its_owner_alone_and_goes_away_with_the_thread() {
    let server = server();
    let path = server.thread.path().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(server.thread);
    assert!(!path.exists());
}

#[test]
fn a_second_process_does_not_take_the_socket_over() {
    let server = server();
    let socket = server.thread.path().to_owned();
    let control = Control { socket, access: Rules::default(), remote: None };
    assert!(matches!(bind(&control, None), Err(ControlError::Bind { .. })));
    assert_eq!(Client::connect(&server).ask("help").0, "ok");
}

#[test]
fn several_commands_are_answered_in_order_as_text_and_json() {
    let server = server();
    let mut client = Client::connect(&server);
    client.send(b"status\nhelp\nstatus json\njson backends app\n").unwrap();
    assert!(client.answer().1.starts_with("penstock "));
    let help = client.answer().1;
    assert!(help.contains("weight [POOL] BACKEND N|default"), "{help}");
    assert!(help.contains(" [client NETWORK]\n    ") && !help.contains("]packets"), "{help}");
    let status: serde_json::Value = serde_json::from_str(&client.answer().1).unwrap();
    assert_eq!(status["pools"][0]["name"], "app");
    let backends: serde_json::Value = serde_json::from_str(&client.answer().1).unwrap();
    assert_eq!(backends[0]["backends"][2]["name"], "unix:/run/app.sock");
}

#[test]
fn operators_change_a_backend_and_the_events_say_who() {
    let server = server();
    let mut client = Client::connect(&server);
    let snapshot = server.front.snapshot.load();
    let backends = &snapshot.pools[0].backends;
    assert_eq!(client.ask("drain app 10.0.0.1:80").0, "ok");
    assert_eq!(backends[0].state.admission(), Admission::Draining);
    assert_eq!(client.ask("ready 10.0.0.1:80").0, "ok");
    assert_eq!(backends[0].state.admission(), Admission::Ready);
    assert_eq!(client.ask("weight app.sock 7").0, "ok");
    assert_eq!(backends[2].state.weight_override(), Some(7));
    let (_, json) = client.ask("weight app unix:/run/app.sock default json");
    assert_eq!(json, "{\"backend\":\"unix:/run/app.sock\",\"pool\":\"app\",\"weight\":null}\n");
    assert_eq!(backends[2].state.weight_override(), None);
    let (_, events) = client.ask("events");
    let (uid, pid) = (nix::unistd::getuid(), std::process::id());
    let name = nix::unistd::User::from_uid(uid).unwrap().map(|user| user.name);
    let who = match name {
        Some(name) => format!("{name} (uid {uid}, pid {pid})"),
        None => format!("uid {uid} (pid {pid})"),
    };
    assert!(events.contains(&format!("pool.app.unix:/run/app.sock: {who}: weight 7")), "{events}");
    assert_eq!(events.lines().count(), 4);
}

#[test]
fn change_that_leaves_clients_without_a_backend_or_changes_nothing_for_them_warns() {
    let server = server();
    let mut client = Client::connect(&server);
    let snapshot = server.front.snapshot.load();
    let backends = &snapshot.pools[0].backends;
    backends[0].state.publish_health(logic::health::State::Down, Instant::now());
    let (_, text) = client.ask("ready 10.0.0.1:80");
    assert!(text.ends_with("\nwarning: it is down: it gets no sessions until it is up again\n"), "{text}");
    assert_eq!(client.ask("drain 10.0.0.2:80").1.lines().count(), 1, "one backend still takes sessions");
    let (_, text) = client.ask("drain app.sock");
    let none = "warning: no backend of pool app takes new sessions now";
    assert!(text.ends_with(&format!("\n{none}\n")), "{text}");
    let (_, json) = client.ask("weight 10.0.0.2:80 0 json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["warning"], none.trim_start_matches("warning: "));
    assert_eq!(client.ask("ready 10.0.0.2:80").1.lines().count(), 2, "its weight is 0");
    assert_eq!(client.ask("weight 10.0.0.2:80 1").1.lines().count(), 1);
    let (_, events) = client.ask("events");
    let warned = events.lines().filter(|line| line.contains(" warning pool.app.")).count();
    assert_eq!(warned, 4, "{events}");
}

#[test]
fn what_is_not_clear_is_refused_with_a_hint_and_changes_nothing() {
    let server = server();
    let mut client = Client::connect(&server);
    let cases = [
        ("stats", "error unknown command \"stats\", did you mean \"status\"?; `help` lists all"),
        ("drain ap 10.0.0.1:80", "error no pool \"ap\", did you mean \"app\"?"),
        ("drain 10.0.0.3:80", "error no backend \"10.0.0.3:80\"; the backends are:"),
        ("drain 80", "error \"80\" could be any of these:"),
        ("drain 10.0.0", "error no backend \"10.0.0\"; the backends are:"),
        ("drain 8", "error no backend \"8\"; the backends are:"),
        ("drain app", "error \"app\" is a pool: name one of its backends"),
        ("drain \"\"", "error no backend \"\"; the backends are:"),
        ("drain", "error usage: drain [POOL] BACKEND [--for TIME]"),
        ("drain a b c", "error usage: drain [POOL] BACKEND [--for TIME]"),
        ("weight app 10.0.0.1:80 -1", "error a weight is a number from 0 to 1000, or `default`"),
        ("weight app 10.0.0.1:80 1001", "error a weight is a number from 0 to 1000, or `default`"),
        ("status now", "error usage: status"),
        ("events x", "error usage: events [N] [follow]"),
        ("backends x", "error no pool \"x\""),
        ("drain \"app", "error a quote is not closed"),
        ("json", "error unknown command \"json\"; `help` lists all"),
    ];
    for (command, refusal) in cases {
        assert_eq!(client.ask(command).0, refusal, "{command}");
    }
    let hint = "  hint: `drain POOL BACKEND [--for TIME]` with the two words of a line above names one\n";
    assert_eq!(client.ask("drain 80").1, format!("app 10.0.0.1:80\napp 10.0.0.2:80\n{hint}"));
    let all = format!("app 10.0.0.1:80\napp 10.0.0.2:80\napp unix:/run/app.sock\n{hint}");
    for unknown in ["drain app 10.0.0.3:80", "drain 10.0.0"] {
        assert_eq!(client.ask(unknown).1, all);
    }
    let snapshot = server.front.snapshot.load();
    assert!(snapshot.pools[0].backends.iter().all(|backend| backend.state.admission() == Admission::Ready));
}

/// Arguments of which one is missing, one too many or one wrong, for every command. None of them reaches the supervisor.
fn wrong_arguments(command: &str) -> &'static [&'static str] {
    match command {
        "status" | "begin" | "diff" | "confirm" | "reload" | "stop" | "help" => &["now", "app", "json now"],
        "backends" => &["ap", "app app", "\"\""],
        // A name that no certificate has is an answer.
        "certs" => &["a b"],
        "clients" => {
            &["ap", "app app", "within", "within soon", "within 0s", "app within", "within 5s app", "app"]
        }
        "events" => &["x", "-1", "5 5", "follow follow", "99999999999999999999999"],
        "sessions" => &[
            "x",
            "--sort",
            "--sort x",
            "--limit x",
            "--limit -1",
            "--listener nobody",
            "--client x",
            "--nothing",
        ],
        "kill" => &[
            "",
            "--yes",
            "--client",
            "--client x",
            "--listener nobody --yes",
            "--longer-than x --yes",
            "7 --sort age",
            "--nothing",
        ],
        "why" => &[
            "",
            "x y",
            "--session",
            "--from",
            "--from x http://a/",
            "--from ::1",
            "ftp://a/",
            "--header x http://a/",
        ],
        "dsr" => &[
            "",
            "x",
            "status x",
            "explain",
            "explain a",
            "explain a b tcp",
            "explain 192.0.2.1:1 192.0.2.2:2 sctp",
            "trace x",
        ],
        "drain" => &[
            "",
            "a b c",
            "x",
            "ap 10.0.0.1:80",
            "10.0.0.1:80 for",
            "10.0.0.1:80 for x",
            "10.0.0.1:80 for 0s",
            "10.0.0.1:80 for 31d",
            "10.0.0.1:80 for 5s 5s",
            "for 5s",
            "10.0.0.1:80 until 5s",
        ],
        "ready" => &["", "a b c", "x", "ap 10.0.0.1:80", "80", "10.0.0.1:80 for 5s"],
        "weight" => {
            &["", "5", "x 5", "10.0.0.1:80", "10.0.0.1:80 x", "10.0.0.1:80 -1", "10.0.0.1:80 1001", "a b c 5"]
        }
        "show" => &["a b"],
        "set" => &["", "pool.app.retries", "pool.app.retries 1 2"],
        "add" => &["", "pool.app.backends", "pool.app.backends 10.0.0.9:80 10.0.0.8:80"],
        "remove" => &["", "pool.app.backends a b"],
        "commit" => &["now", "confirm", "confirm soon", "confirm 5s 5s"],
        "abort" => &["now", "force force"],
        "undo" => &["x", "-1", "1 2", "1 and-later x", "and-later"],
        "history" => &["x", "-1", "1 2"],
        "save" => &["x", "done done"],
        "capture" => &[
            "",
            "web",
            "web for 5s",
            "web for x size 1000",
            "web for 5s size x",
            "nobody for 5s size 100000",
            "web for 5s size 100000 client x",
            "web for 5s size 100000 x",
        ],
        "health" => &["ap", "app ap"],
        "log-level" => {
            &["loud", "debug for", "debug for x", "debug for 0s", "debug for 25h", "debug 5m", "default now"]
        }
        "upgrade" => &["a b", "check a b", "drain-for x", "drain-for 8d", "a b drain-for 5s"],
        other => panic!("{other} has no line here"),
    }
}

#[test]
fn every_command_refuses_arguments_that_are_missing_too_many_or_wrong_and_changes_nothing() {
    let mut server = server();
    let mut client = Client::connect(&server);
    let many = " one two three four five six seven eight nine ten";
    for name in command::names() {
        let wrong = wrong_arguments(name).iter().map(|arguments| format!("{name} {arguments}"));
        // Any number of sessions can be named, and there are none.
        let too_many = (name != "kill").then(|| format!("{name}{many}"));
        for line in wrong.chain(too_many) {
            for line in [line.clone(), format!("{line} json")] {
                let (first, _) = client.ask(&line);
                assert!(first.starts_with("error "), "{line}: {first}");
                assert!(first.len() < 300, "{line}: {first}");
            }
        }
    }
    assert!(server.requests.try_recv().is_err(), "no command asked the supervisor for anything");
    assert_eq!(server.front.state.events.last(100).len(), 0, "nothing happened");
    let snapshot = server.front.snapshot.load();
    for backend in &snapshot.pools[0].backends {
        assert_eq!((backend.state.admission(), backend.state.weight_override()), (Admission::Ready, None));
    }
    assert_eq!(client.ask("help").0, "ok");
}

#[test]
fn garbage_and_half_lines_are_answered_or_closed() {
    let server = server();
    let mut client = Client::connect(&server);
    client.send(b"\xff\xfe\x00\n").unwrap();
    assert_eq!(client.answer().0, "error a command is UTF-8 text");
    client.send(b"\x1b[31m\n\n \n\r\n").unwrap();
    let (refusal, _) = client.answer();
    assert!(refusal.starts_with("error unknown command") && !refusal.contains('\x1b'), "{refusal:?}");
    client.send(b"sta").unwrap();
    client.send(b"tus\r\n").unwrap();
    assert_eq!(client.answer().0, "ok");
    client.send(b"half a line").unwrap();
    client.0.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.line(), "");
    assert_eq!(Client::connect(&server).ask("help").0, "ok");
}

#[test]
fn a_line_of_10_megabytes_is_refused_at_its_limit() {
    let server = server();
    let mut client = Client::connect(&server);
    // The server closes the connection before it has read all bytes.
    let _ = client.send(&vec![b'x'; 10 * 1024 * 1024]);
    assert_eq!(client.line(), "error a command has at most 4096 bytes\n");
    assert_eq!(Client::connect(&server).ask("help").0, "ok");
    let mut client = Client::connect(&server);
    let longest = format!("{:<4096}", "help");
    assert_eq!(client.ask(&longest).0, "ok");
}

#[test]
fn a_new_client_gets_the_place_of_the_one_that_was_silent_for_longest() {
    let server = server();
    let mut clients: Vec<_> = (0..SIZE.slots).map(|_| Client::connect(&server)).collect();
    for client in &mut clients {
        assert_eq!(client.ask("help").0, "ok");
    }
    // Each asks at once: one that is silent from its beginning loses its slot before those that have asked.
    let extra = |_| {
        let mut client = Client::connect(&server);
        assert_eq!(client.ask("help").0, "ok");
        client
    };
    let mut extra: Vec<_> = (0..30).map(extra).collect();
    for client in &mut clients[..30] {
        assert_eq!(client.line(), "", "it was the oldest");
    }
    for client in clients[30..].iter_mut().chain(&mut extra) {
        assert_eq!(client.ask("help").0, "ok");
    }
    assert_eq!(server.front.state.control_evicted.load(std::sync::atomic::Ordering::Relaxed), 30);
}

#[test]
fn followers_keep_their_places_and_leave_some_for_others() {
    let server = server();
    let mut followers: Vec<_> = (0..SIZE.following).map(|_| Client::connect(&server)).collect();
    for client in &mut followers {
        client.send(b"events 0 follow\n").unwrap();
        assert_eq!(client.line(), "ok\n");
    }
    let mut idle: Vec<_> = (0..2 * SIZE.slots).map(|_| Client::connect(&server)).collect();
    let refusal = format!("error {} clients follow the events already: that is the limit", SIZE.following);
    assert_eq!(idle.last_mut().unwrap().ask("events 0 follow").0, refusal);
    assert_eq!(idle.last_mut().unwrap().ask("help").0, "ok");
    server.front.state.events.record(Level::Info, "test", "one");
    for client in &mut followers {
        assert!(client.line().ends_with("test: one\n"));
    }
}

#[test]
fn a_thousand_clients_do_not_take_the_place_of_those_that_are_there() {
    let server = server();
    let mut first = Client::connect(&server);
    assert_eq!(first.ask("help").0, "ok");
    let path = server.thread.path().to_owned();
    let (here, crowded) = std::sync::mpsc::channel();
    let crowd = std::thread::spawn(move || {
        let mut open = Vec::new();
        for _ in 0..1000 {
            // `connect` blocks while the accept queue is full.
            if let Ok(stream) = StdStream::connect(&path) {
                open.push(stream);
                // The test waits for the first message only.
                let _ = here.send(());
            }
        }
        open.len()
    });
    crowded.recv().unwrap();
    for _ in 0..20 {
        assert_eq!(first.ask("help").0, "ok");
    }
    drop(server.thread);
    assert!(crowd.join().unwrap() > 0);
}

#[test]
fn a_client_that_gives_way_has_the_answers_to_all_that_it_has_changed() {
    let server = server();
    let mut others: Vec<_> = (0..SIZE.following).map(|_| Client::connect(&server)).collect();
    for client in &mut others {
        client.send(b"events 0 follow\n").unwrap();
        assert_eq!(client.line(), "ok\n");
    }
    // The test answers none of these.
    for _ in SIZE.following + 1..SIZE.slots {
        let mut client = Client::connect(&server);
        client.send(b"reload\n").unwrap();
        others.push(client);
    }
    let asked = || {
        server.front.state.events.last(100).into_iter().filter(|it| it.message.starts_with("reload asked"))
    };
    let began = Instant::now();
    while asked().count() < SIZE.slots - SIZE.following - 1 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    let mut client = Client::connect(&server);
    let mut lines = client.0.get_ref().try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut numbers = (0..=1000).cycle();
        while lines.write_all(format!("weight 10.0.0.1:80 {}\n", numbers.next().unwrap()).as_bytes()).is_ok()
        {
        }
    });
    assert_eq!(client.answer().0, "ok");
    let _newcomer = Client::connect(&server);
    let (mut last, mut line) = (None, String::new());
    let began = Instant::now();
    while client.0.read_line(&mut line).is_ok_and(|length| length > 0) {
        let state = &server.front.state;
        assert!(began.elapsed() < Duration::from_secs(60), "it keeps its slot: {:?}", state.events.last(9));
        last = line.trim_end().rsplit_once(": weight ").map_or(last, |(_, number)| number.parse().ok());
        line.clear();
    }
    sender.join().unwrap();
    let snapshot = server.front.snapshot.load();
    assert_eq!(snapshot.pools[0].backends[0].state.weight_override(), last);
}

#[test]
fn a_client_that_does_not_read_is_closed_and_holds_up_nobody() {
    let server = server();
    let mut deaf = Client::connect(&server);
    deaf.0.get_ref().set_write_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut other = Client::connect(&server);
    let start = Instant::now();
    // The answers exceed the socket buffer, and so do the commands: the last of them fail when the server closes.
    let commands = b"help\n".repeat(200_000);
    let writer = std::thread::spawn(move || deaf.send(&commands).expect_err("it is closed").kind());
    while other.ask("help").0 == "ok" && start.elapsed() < Duration::from_secs(1) {}
    let end = writer.join().unwrap();
    assert!(matches!(end, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset), "{end}");
    assert_eq!(other.ask("help").0, "ok");
}

#[test]
fn events_are_followed_without_gap_until_the_client_speaks() {
    let server = server();
    let events = &server.front.state.events;
    events.record(Level::Info, "test", "one");
    let mut client = Client::connect(&server);
    client.send(b"events follow\n").unwrap();
    assert_eq!(client.line(), "ok\n");
    assert!(client.line().ends_with("test: one\n"));
    events.record(Level::Error, "test", ".\n.two");
    let line = client.line();
    assert!(line.contains(" error ") && line.ends_with("test: .\n"), "{line}");
    assert_eq!(client.line(), "    .two\n", "a further line of the same event");
    client.send(b"help\n").unwrap();
    assert_eq!(client.line(), ".\n");
    assert_eq!(client.answer().0, "ok");
    client.send(b"events 1 follow json\n").unwrap();
    assert_eq!(client.line(), "ok\n");
    let event: serde_json::Value = serde_json::from_str(&client.line()).unwrap();
    assert_eq!((&event["number"], &event["message"]), (&2.into(), &".\n.two".into()));
}

#[test]
fn a_line_that_comes_in_one_piece_with_follow_ends_it() {
    let server = server();
    let mut client = Client::connect(&server);
    client.send(b"events follow\nhelp\n").unwrap();
    assert_eq!(client.answer().0, "ok");
    let (first, text) = client.answer();
    assert!(first == "ok" && text.contains("events"), "{first}: {text}");
}

#[test]
fn a_line_that_comes_in_one_piece_with_capture_ends_it() {
    let server = server();
    let mut client = Client::connect(&server);
    client.send(b"capture web for 10s size 100000\nhelp\n").unwrap();
    let (first, text) = client.answer();
    assert_eq!(first, "ok");
    assert_eq!(text.lines().count(), 2, "the start of the file, and the total: {text}");
    assert!(text.lines().last().unwrap().contains("\"end\":\"client\""), "{text}");
    let (first, text) = client.answer();
    assert!(first == "ok" && text.contains("events"), "{first}: {text}");
}

#[test]
fn a_refused_reload_shows_its_faults_and_a_good_one_its_answer() {
    let mut server = server();
    let path = server.thread.path().to_owned();
    let asker = std::thread::spawn(move || {
        let mut client = Client(BufReader::new(StdStream::connect(path).unwrap()));
        [client.ask("reload"), client.ask("reload"), client.ask("stop json")]
    });
    for answer in [Err("x.toml:1:2: bad\n  hint: good".to_owned()), Ok("generation 2".to_owned())] {
        match server.requests.blocking_recv() {
            Some(Request::Reload { answer: reply, .. }) => reply.send(answer).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(server.requests.blocking_recv(), Some(Request::Stop)));
    let [refused, good, stop] = asker.join().unwrap();
    assert_eq!(refused.0, "error reload refused, nothing changed: the server keeps its configuration");
    assert_eq!(refused.1, "x.toml:1:2: bad\n  hint: good\n");
    assert_eq!(good, ("ok".to_owned(), "generation 2\n".to_owned()));
    assert!(stop.1.starts_with("{\"stop\":"), "{stop:?}");
}

#[test]
fn an_answer_that_says_a_change_waits_until_it_is_stored_and_no_other_does() {
    let mut server = server();
    let path = server.thread.path().to_owned();
    // No task stores the state.
    server.front.state.kept.set(Stored { directory: "/nowhere".into(), at: None, bytes: 0, restored: None });
    let asker = std::thread::spawn(move || {
        let mut client = Client(BufReader::new(StdStream::connect(path).unwrap()));
        ["reload", "set pool.app.retries 2", "set pool.app.retries 3"].map(|line| client.ask(line).1)
    });
    for changes in [Changes::Yes, Changes::No] {
        if changes == Changes::Yes {
            match server.requests.blocking_recv() {
                Some(Request::Reload { answer, .. }) => answer.send(Ok("reloaded".to_owned())).unwrap(),
                other => panic!("{other:?}"),
            }
        }
        let said = Said { text: "changed".to_owned(), json: "{}".to_owned() };
        match server.requests.blocking_recv() {
            Some(Request::Change { answer, .. }) => answer.send((Ok(said), changes)).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let slow = "warning: not stored yet: a restart now would not have it (no store has ended within 1 s; the \
                next one that succeeds has it)\n";
    let expected = [format!("reloaded\n{slow}"), format!("changed\n{slow}"), "changed\n".to_owned()];
    assert_eq!(asker.join().unwrap(), expected);
    server.front.state.degrade("stored-state", "No space left on device");
    let drained = Client::connect(&server).ask("drain 10.0.0.1:80").1;
    assert!(drained.contains("(penstock ctl status says why)"), "{drained}");
}

#[test]
fn a_reload_that_nobody_answers_is_said() {
    let server = server();
    drop(server.requests);
    let mut client = Client(BufReader::new(StdStream::connect(server.thread.path()).unwrap()));
    assert_eq!(client.ask("reload").0, "error the process is ending");
}
