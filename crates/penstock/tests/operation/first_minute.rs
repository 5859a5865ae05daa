//! The first minute: what a newcomer runs from the README works as printed.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Instant;

use nix::sys::signal::Signal;
use testing::client::get;
use testing::peers::{self, Process};
use testing::server::{Setup, binary, penstock, run_to_end};
use testing::tools::{self, curl_text};
use testing::{Scripted, Server, eventually, secs};

#[test]
fn flask_under_gunicorn_is_served_over_tcp_and_unix_by_twelve_lines() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (tcp, unix) = (peers::flask(one.path()), peers::flask_unix(two.path()));
    let config = format!(
        r#"[listener.web]
bind = ["127.0.0.1:0", "unix:@DIR@/web.sock"]
protocol = "http"
pool = "app"

[pool.app]
backends = ["{}", "{}"]
health = {{ http = "/" }}
"#,
        tcp.address, unix.address
    );
    assert!(config.lines().count() <= 12);
    let server = Server::start(&config);
    let addresses = server.addresses("web");
    assert_eq!(addresses.len(), 2);
    let url = format!("http://{}/", addresses[0]);
    for _ in 0..4 {
        assert_eq!(curl_text(&[&url]), "Hello there!");
    }
    let socket = addresses[1].trim_start_matches("unix:");
    for _ in 0..4 {
        assert_eq!(curl_text(&["--unix-socket", socket, "http://localhost/"]), "Hello there!");
    }
}

#[test]
fn each_kind_of_gunicorn_bind_serves_alone() {
    let dir = tempfile::tempdir().unwrap();
    let unix = peers::flask_unix(dir.path());
    let server = Server::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        unix.address
    ));
    assert_eq!(curl_text(&[&format!("http://{}/", server.address("web"))]), "Hello there!");
}

#[test]
fn the_quick_form_needs_no_file() {
    let (a, b) = (Scripted::answering("a"), Scripted::answering("b"));
    let server = Setup::new("")
        .arguments(&["serve", "--listen", "127.0.0.1:0", "--backend", &a.address, "--backend", &b.address])
        .start();
    let line = server.stderr.wait_for("listening listener=", secs(5));
    let address = testing::server::field(&line, "address").unwrap();
    let seen: BTreeSet<String> = (0..10).map(|_| get(&address, "/").text()).collect();
    assert_eq!(seen, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}

#[test]
fn check_is_0_for_a_good_file_and_2_with_line_column_and_hint_for_a_bad_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.toml");
    let good = "[listener.web]\nbind = \":8080\"\nprotocol = \"http\"\npool = \"app\"\n\n[pool.app]\nbackends = [\"10.0.0.11:8000\"]\n";
    fs::write(&file, good).unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    fs::write(&file, good.replace("pool = \"app\"", "pool = \"ap\"").replace("protocol", "protocoll"))
        .unwrap();
    let output = penstock(&["check", file.to_str().unwrap()]);
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in ["app.toml:3:", "app.toml:4:", "did you mean", "^"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let output = penstock(&["check", "--format", "json", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(parsed.to_string().contains("did you mean"), "{parsed:#}");

    assert_eq!(penstock(&["check", "/nonexistent/file.toml"]).status.code(), Some(2));
}

#[test]
fn check_touches_nothing() {
    let backend = Scripted::answering("x");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.toml");
    let socket = dir.path().join("never.sock");
    fs::write(
        &file,
        format!(
            "[control]\nsocket = \"{}\"\n[listener.web]\nbind = \"unix:{}/web.sock\"\nprotocol = \"http\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"{}\"]\nhealth = \"tcp\"\n",
            socket.display(), dir.path().display(), backend.address
        ),
    )
    .unwrap();
    let output = penstock(&["check", "--print", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&backend.address));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the file itself");
    assert_eq!(backend.accepted.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn the_demo_prints_a_ready_line_and_curl_lines_that_give_200_from_all_four_backends() {
    let mut demo = Process::start(Command::new(binary()).args(["demo", "--seconds", "600"]));
    demo.stdout.wait_for("ready", secs(20));
    let lines: Vec<String> = demo
        .stdout
        .all()
        .iter()
        .map(|line| line.trim().to_owned())
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert!(lines.len() >= 4, "{:#?}", demo.stdout.all());
    for line in &lines {
        // As a person would: pasted into a shell. `-w` shows the status of each answer.
        let asked =
            line.replacen("curl ", "curl -w '\\nstatus %{http_code}\\n' --noproxy '*' --max-time 20 ", 1);
        let output = run_to_end(Command::new("sh").args(["-c", &asked]), secs(60));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {output:?}");
        let statuses: Vec<&str> = text.lines().filter(|line| line.contains("status ")).collect();
        assert!(
            !statuses.is_empty() && statuses.iter().all(|line| line.trim_end().ends_with("200")),
            "{line}: {text}"
        );
    }
    let url = |part: &str| {
        let line =
            lines.iter().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part} in {lines:#?}"));
        line.split_whitespace().skip(1).map(|word| word.trim_matches('\'').to_owned()).collect::<Vec<_>>()
    };
    for scheme in ["http://", "https://"] {
        let mut words = url(scheme);
        words.truncate(words.iter().position(|word| word.starts_with(scheme)).unwrap() + 1);
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        eventually(&format!("{scheme}: four backends answer"), secs(30), || {
            let names: BTreeSet<String> = (0..24).map(|_| curl_text(&arguments)).collect();
            (names.len() == 4).then_some(())
        });
    }
    demo.signal(Signal::SIGINT);
    assert!(demo.wait(secs(20)).success(), "Ctrl-C ends it well");
}

#[test]
fn the_demo_ends_by_itself_cleans_up_and_needs_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let mut command = Command::new(binary());
    command.args(["demo", "--seconds", "3", "--traffic", "50", "--kill-one"]).env("TMPDIR", dir.path());
    let output = run_to_end(&mut command, secs(60));
    assert!(output.status.success(), "{output:?}");
    assert!(started.elapsed() >= secs(3));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("ready") && !text.contains('\u{1b}'), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "it leaves nothing behind");
}

#[test]
fn ctl_shows_and_changes_a_running_server_for_people_and_programs() {
    let (a, b) = (Scripted::answering("a"), Scripted::answering("b"));
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\", \"{}\"]\nhealth = {{ tcp = true, interval = \"200ms\", timeout = \"200ms\" }}\n",
        a.address, b.address
    ));
    let address = server.address("web");
    let seen = |count: usize| (0..count).map(|_| get(&address, "/").text()).collect::<Vec<_>>();
    eventually("both are up", secs(10), || {
        (server.health(&a.address) == "up" && server.health(&b.address) == "up").then_some(())
    });

    assert!(server.ctl(&["drain", "app", &a.address]).status.success());
    assert!(seen(20).iter().all(|name| name == "b"));
    let text = String::from_utf8_lossy(&server.ctl(&["backends"]).stdout).into_owned();
    assert!(text.contains(&a.address) && text.contains("drain"), "{text}");
    assert!(server.ctl(&["ready", "app", &a.address]).status.success());
    assert!(seen(20).contains(&"a".to_owned()));

    assert!(server.ctl(&["weight", "app", &a.address, "9"]).status.success());
    let share = seen(100).iter().filter(|name| *name == "a").count();
    assert!((80..=98).contains(&share), "{share} of 100 with weight 9 to 1");
    assert!(server.ctl(&["weight", "app", &a.address, "0"]).status.success());
    assert!(seen(20).iter().all(|name| name == "b"));
    assert!(server.ctl(&["weight", "app", &a.address, "default"]).status.success());
    assert!(seen(20).contains(&"a".to_owned()));

    let status = server.ctl_json(&["status"]);
    assert_eq!(status["listeners"][0]["name"], "web", "{status:#}");
    assert!(server.ctl_json(&["backends"]).to_string().contains(&b.address));
    let events = String::from_utf8_lossy(&server.ctl(&["events"]).stdout).into_owned();
    assert!(events.contains(&a.address), "{events}");
    let wrong = server.ctl(&["drain", "app", "10.9.9.9:1"]);
    assert!(!wrong.status.success() && !wrong.stderr.is_empty());
    let output = penstock(&["ctl", "--socket", "/nonexistent.sock", "status"]);
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("/nonexistent.sock")
    );
}

#[test]
fn a_failed_check_says_why_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let nginx = peers::nginx(dir.path(), "location = /healthz { return 403; }");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\", \"127.0.0.1:1\"]\n\
         health = {{ http = \"/healthz\", interval = \"300ms\", timeout = \"300ms\", rise = 1, fall = 1 }}\n",
        nginx.address
    ));
    eventually("the causes are shown", secs(15), || {
        let text = String::from_utf8_lossy(&server.ctl(&["backends"]).stdout).into_owned();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (text.contains("HTTP 403: the check needs a URL that answers without a log-in")
            && text.contains("connect refused"))
        .then_some(())
    });
    let _ = tools::program("curl");
}
