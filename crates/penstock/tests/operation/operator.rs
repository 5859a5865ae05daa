//! What the front door tells its operator: of endings, limits, changed backends and changed configurations.

use testing::{Client, Scripted, Server, eventually, secs, tools};

fn config(listener: &str, backends: &[&str]) -> String {
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = {backends:?}\n"
    )
}

fn said(server: &Server, arguments: &[&str]) -> String {
    let output = server.ctl(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn redirect_is_no_session_that_ended_with_an_error() {
    let backend = Scripted::answering("x");
    let routes = "[[listener.web.route]]\npath = \"/old\"\nredirect = \"/new\"\n";
    let server = Server::start(&config(routes, &[&backend.address]));
    assert_eq!(server.client("web").get("/old", &[]).status, 308);
    let listener = eventually("the redirect is counted", secs(10), || {
        let status = server.ctl_json(&["status"]);
        (status["listeners"][0]["sessions"] == 1).then(|| status["listeners"][0].clone())
    });
    assert_eq!(listener["endings"], serde_json::json!({}), "{listener}");
    assert!(!said(&server, &["status"]).contains("ended with an error"));
}

#[test]
fn own_answers_have_the_date() {
    let backend = Scripted::answering("x");
    let routes = "[[listener.web.route]]\npath = \"/old\"\nredirect = \"/new\"\n[[listener.web.route]]\npath = \"/gone\"\npool = \"none\"\n";
    let text = config(routes, &[&backend.address]) + "[pool.none]\nbackends = [\"127.0.0.1:1\"]\n";
    let server = Server::start(&text);
    for (path, status) in [("/old", 308), ("/gone", 502)] {
        let answer = server.client("web").get(path, &[]);
        assert_eq!(answer.status, status);
        let lines = answer.header_lines("date");
        assert!(
            matches!(lines[..], [date] if date.len() == 29 && date.ends_with(" GMT")),
            "{path}: {lines:?}"
        );
        for options in [&["--http2-prior-knowledge"][..], &["--head"], &["--http2-prior-knowledge", "--head"]]
        {
            let url = format!("http://{}{path}", server.address("web"));
            let text = tools::curl_text(&[&["--silent", "--include"], options, &[&url]].concat());
            let dates = text.lines().filter(|line| line.to_ascii_lowercase().starts_with("date: "));
            assert!(
                matches!(dates.collect::<Vec<_>>()[..], [date] if date.ends_with(" GMT")),
                "{options:?}: {text}"
            );
        }
    }
    let mut client = server.client("web");
    client.send("no request\r\n\r\n");
    assert!(client.response().header("date").is_some());
}

#[test]
fn listener_at_its_limit_is_told_in_an_event() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config("max-connections = 1", &[&backend.address]));
    let mut first = server.client("web");
    assert_eq!(first.get("/", &[]).status, 200);
    for _ in 0..2 {
        let mut second = Client::connect(&server.address("web"));
        let (bytes, _) = second.read_to_end();
        assert!(bytes.is_empty());
    }
    let events = said(&server, &["events"]);
    let told: Vec<_> = events.lines().filter(|line| line.contains("listener-full")).collect();
    assert_eq!(told.len(), 1, "once a minute: {events}");
    assert!(told[0].contains("listener.web: ") && told[0].contains("max-connections = 1"), "{events}");
}

#[test]
fn reload_says_what_changed() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config("", &[&backend.address]));
    assert!(said(&server, &["reload"]).contains("; nothing changed"));
    let more = config("retries = 9", &[&backend.address, "127.0.0.1:1"]).replace("retries = 9", "");
    server.write_config(&(more + "retries = 1\n[pool.other]\nbackends = [\"127.0.0.1:2\"]\n"));
    let answer = said(&server, &["reload"]);
    assert!(answer.contains("pool app: +1 backend, other settings; +1 pool (other)"), "{answer}");
    let events = said(&server, &["events"]);
    assert!(events.contains("pool app: +1 backend"), "{events}");
    server.write_config(&config("max-connections = 7", &[&backend.address]));
    let answer = said(&server, &["reload"]);
    let expected = "listener web: settings; pool app: -1 backend, other settings; -1 pool (other)";
    assert!(answer.contains(expected), "{answer}");
}

#[test]
fn refused_reload_has_its_faults_on_lines_of_their_own_among_the_events() {
    let backend = Scripted::answering("x");
    let server = Server::start(&config("", &[&backend.address]));
    server.write_config("[nonsense]\n");
    assert!(!server.ctl(&["reload"]).status.success());
    let events = said(&server, &["events"]);
    assert!(!events.contains("\\n") && events.contains("\n    error: "), "{events}");
}
