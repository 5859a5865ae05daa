//! `penstock ctl why`: it says what then happens, and gives the reason of every backend.

use serde_json::Value;
use testing::{Client, Scripted, Server, eventually, secs};

mod pending;
mod random;
mod waits;

const START: &str = "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n";

fn named(count: usize) -> Vec<Scripted> {
    (0..count).map(|number| Scripted::answering(&number.to_string())).collect()
}

fn list(backends: &[Scripted]) -> String {
    let all: Vec<_> = backends.iter().map(|backend| format!("\"{}\"", backend.address)).collect();
    all.join(", ")
}

fn start(workers: usize, backends: &str, pool: &str) -> Server {
    Server::start(&format!(
        "{START}[process]\nworkers = {workers}\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{backends}]\n{pool}\n"
    ))
}

fn said(server: &Server, arguments: &[&str]) -> String {
    let output = server.ctl(&[&["why"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn asked(server: &Server, arguments: &[&str]) -> Value {
    server.ctl_json(&[&["why"], arguments].concat())
}

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address("web"))
}

/// The last step, which is that of the pool.
fn pool(answer: &Value) -> &Value {
    answer["steps"].as_array().and_then(|steps| steps.last()).unwrap_or_else(|| panic!("{answer:#}"))
}

/// An answer without what time alone changes.
fn untimed(answer: &Value) -> Value {
    let mut answer = answer.clone();
    for step in answer["steps"].as_array_mut().unwrap() {
        if let Some(sticky) = step.get_mut("sticky").and_then(Value::as_object_mut) {
            sticky.remove("seen_seconds");
        }
    }
    answer
}

fn reasons(answer: &Value, address: &str) -> Vec<String> {
    let backends = pool(answer)["backends"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
    let one = backends.iter().find(|one| one["name"] == address).unwrap_or_else(|| panic!("{answer:#}"));
    one["reasons"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// Waits until no session is open at a backend: the end of an answer is seen by its client first.
fn settle(server: &Server) {
    eventually("no session is open", secs(10), || {
        let pools = server.ctl_json(&["backends"]);
        let backends = pools[0]["backends"].as_array().unwrap();
        backends.iter().all(|one| one["in_flight"] == 0).then_some(())
    });
}

#[test]
fn request_goes_to_the_backend_that_why_has_named() {
    for policy in [
        "balance = \"round-robin\"",
        "balance = \"least-connections\"",
        "balance = \"hash\"\nhash-key = \"path\"",
        "balance = \"maglev\"\nhash-key = \"header:x-user\"",
        "balance = \"sticky\"",
        "balance = \"two-choices\"",
    ] {
        let backends = named(3);
        let server = start(1, &list(&backends), policy);
        for number in 0..8 {
            settle(&server);
            let (path, user) = (format!("/{number}?q"), format!("user-{number}"));
            let header = format!("X-User: {user}");
            let question = ["--from", "127.0.0.1", "--header", &header, &url(&server, &path)];
            let answer = asked(&server, &question);
            let again = asked(&server, &question);
            assert_eq!(untimed(&answer), untimed(&again), "{policy}: a question changes nothing");
            let answered: usize =
                server.client("web").get(&path, &[("X-User", &user)]).text().parse().unwrap();
            let backend = &backends[answered].address;
            assert_eq!(reasons(&answer, backend), ["chosen"], "{policy}: {answer:#}");
            if policy.contains("two-choices") {
                assert_eq!(answer["result"]["outcome"], "one-of-several", "{answer:#}");
                assert!((pool(&answer)["backends"][0]["share"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-9);
                continue;
            }
            assert_eq!(answer["result"]["outcome"], "backend", "{policy}: {answer:#}");
            assert_eq!(answer["result"]["backend"], backend.as_str(), "{policy}: {answer:#}");
            if policy.contains("sticky") {
                let slot = &pool(&answer)["sticky"];
                assert_eq!(slot["used"], number > 0, "{answer:#}");
            }
        }
    }
}

#[test]
fn workers_that_choose_differently_are_shown_each() {
    let backends = named(2);
    let server = start(2, &list(&backends), "balance = \"round-robin\"");
    let answer = asked(&server, &[&url(&server, "/")]);
    assert_eq!(answer["result"]["outcome"], "one-of-several", "{answer:#}");
    let choices = pool(&answer)["workers"].as_array().unwrap().clone();
    let all: Vec<_> = choices.iter().map(|choice| choice["backend"].as_str().unwrap().to_owned()).collect();
    assert_eq!(all, [backends[0].address.clone(), backends[1].address.clone()]);
    let text = said(&server, &[&url(&server, "/")]);
    assert!(text.contains("worker 1  would choose"), "{text}");
}

#[test]
fn every_backend_has_its_reason() {
    let (busy, gate) = Scripted::gated();
    let rest = named(3);
    let down = format!("127.0.0.1:{}", testing::port::free());
    let backends = format!(
        "{{ address = \"{}\", max-connections = 1 }}, {{ address = \"{}\", weight = 0 }}, \"{}\", \"{}\", \"{down}\"",
        busy.address, rest[0].address, rest[1].address, rest[2].address,
    );
    let health = "health = { tcp = true, interval = \"50ms\", timeout = \"1s\", rise = 1, fall = 1 }";
    let server = start(1, &backends, health);
    let waiting = hold(&server, &busy);
    eventually("the backend is down", secs(10), || (server.health(&down) == "down").then_some(()));
    let page = url(&server, "/");
    let [weightless, drained, left] = [0, 1, 2].map(|at| rest[at].address.clone());
    assert!(server.ctl(&["drain", &drained]).status.success());
    let answer = asked(&server, &[&page]);
    assert_eq!(answer["result"]["backend"], left.as_str(), "{answer:#}");
    for (address, reason) in
        [(&busy.address, "at-limit"), (&weightless, "weight-zero"), (&drained, "draining"), (&down, "down")]
    {
        assert_eq!(reasons(&answer, address), [reason], "{answer:#}");
    }
    let text = said(&server, &[&page]);
    let uid = nix::unistd::geteuid();
    for part in [
        "at its limit: 1 of 1 sessions".to_owned(),
        "weight 0".to_owned(),
        "draining: by ".to_owned(),
        format!(" (uid {uid}, pid "),
        "connect refused".to_owned(),
        format!("=> backend {left}"),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    // Without any that may take it, it waits for the one at its limit.
    assert!(server.ctl(&["drain", &left]).status.success());
    assert_eq!(asked(&server, &[&page])["result"]["outcome"], "queue");
    assert!(server.ctl(&["drain", &busy.address]).status.success());
    let answer = asked(&server, &[&page]);
    assert_eq!(answer["result"]["outcome"], "no-backend", "{answer:#}");
    assert_eq!(reasons(&answer, &busy.address), ["draining", "at-limit"], "all that keeps it away");
    assert_eq!(answer["result"]["status"], 503);
    assert!(server.ctl(&["ready", &left]).status.success());
    assert_eq!(reasons(&asked(&server, &[&page]), &left), ["chosen"]);
    gate.open();
    drop(waiting);
}

/// Opens a session at the backend, and returns when it has come.
fn hold(server: &Server, backend: &Scripted) -> Vec<Client> {
    let mut clients = Vec::new();
    eventually("a session is at the backend", secs(10), || {
        // Round robin: one of several requests in a row comes to the backend, which does not answer it.
        let mut client = server.client("web");
        client.send(testing::client::request("GET", "/", &[], b""));
        clients.push(client);
        (server.backend(&backend.address)["in_flight"] == 1).then_some(())
    });
    clients
}

#[test]
fn routes_that_nearly_matched_are_named() {
    let backends = named(2);
    let server = Server::start(&format!(
        "{START}[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\n\
         [[listener.web.route]]\nhost = \"shop.example\"\npath = \"/api\"\nmethod = \"POST\"\npool = \"api\"\n\
         [[listener.web.route]]\nhost = \"shop.example\"\npool = \"app\"\n\
         [[listener.web.route]]\npath = \"/old\"\nredirect = \"https://{{host}}/new{{query}}\"\n\
         [pool.app]\nbackends = [\"{}\"]\n[pool.api]\nbackends = [\"{}\"]\n",
        backends[0].address, backends[1].address
    ));
    let text = said(&server, &["--listener", "web", "http://shop.example/api/x"]);
    assert!(text.contains("route     2: host shop.example -> pool app"), "{text}");
    assert!(
        text.contains("nearly  1: host shop.example, path /api, method POST -> pool api: another method"),
        "{text}"
    );
    let answer = asked(&server, &["--listener", "web", "--method", "POST", "http://SHOP.example/api/x"]);
    assert_eq!(answer["result"]["backend"], backends[1].address.as_str(), "{answer:#}");
    let answer = asked(&server, &["--listener", "web", "http://other.example/old?a=b"]);
    assert_eq!(answer["result"]["location"], "https://other.example/new?a=b", "{answer:#}");
    for (path, status, step) in
        [("/", 404, "no-route"), ("/a/../b", 400, "ambiguous-path"), ("/a b", 400, "request-line")]
    {
        let page = format!("http://other.example{path}");
        let answer = asked(&server, &["--listener", "web", &page]);
        assert_eq!(answer["result"]["status"], status, "{answer:#}");
        let last = pool(&answer);
        assert!(last["decided_by"] == step || last["reason"] == step, "{answer:#}");
        let real = server.client("web").request("GET", path, &[("Host", "other.example")], b"");
        assert_eq!(real.status, status);
    }
}

#[test]
fn sessions_without_requests_are_explained_too() {
    let backends = named(3);
    let server = Server::start(&format!(
        "{START}[listener.smtp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"hashed\"\n\
         [listener.names]\nbind = \"127.0.0.1:0\"\nprotocol = \"tls-passthrough\"\n\
         [[listener.names.route]]\nhost = \"*.example\"\npool = \"named\"\n\
         [listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"datagrams\"\n\
         [pool.hashed]\nbackends = [\"{}\", \"{}\"]\nbalance = \"hash\"\n\
         [pool.named]\nbackends = [\"{}\"]\n[pool.datagrams]\nbackends = [\"127.0.0.1:9\"]\n",
        backends[0].address, backends[1].address, backends[2].address
    ));
    let answer = asked(&server, &["--from", "127.0.0.1", "tcp://smtp"]);
    let mut client = server.client("smtp");
    let number: usize = client.get("/", &[]).text().parse().unwrap();
    assert_eq!(answer["result"]["backend"], backends[number].address.as_str(), "{answer:#}");
    let others: std::collections::BTreeSet<String> = (0..40)
        .map(|n| {
            asked(&server, &["--from", &format!("203.0.113.{n}"), "tcp://smtp"])["result"]["backend"]
                .to_string()
        })
        .collect();
    assert_eq!(others.len(), 2, "the address decides");
    let answer = asked(&server, &["https://shop.example/x"]);
    assert_eq!(answer["result"]["backend"], backends[2].address.as_str(), "{answer:#}");
    assert_eq!(asked(&server, &["tls://shop.invalid"])["result"]["outcome"], "closed");
    assert_eq!(asked(&server, &["udp://dns"])["result"]["backend"], "127.0.0.1:9");
}

#[test]
fn access_lists_standby_and_fallbacks_are_told_as_they_serve() {
    let backends = named(4);
    let address = |at: usize| backends[at].address.as_str();
    let server = Server::start(&format!(
        "{START}[acl.inside]\nentries = [\"permit 127.0.0.1\", \"permit 127.0.0.9\"]\ndefault = \"deny\"\n\
         [acl.one]\nentries = [\"permit 127.0.0.1\"]\ndefault = \"deny\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\nacl = \"inside\"\ndenied-pool = \"sorry\"\n\
         [[listener.web.route]]\npath = \"/one\"\nacl = \"one\"\npool = \"app\"\n\
         [[listener.web.route]]\npath = \"/empty\"\npool = \"empty\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\nacl = \"inside\"\n\
         [pool.app]\nbackends = [{{ address = \"{}\", acl = \"one\" }}, {{ address = \"{}\" }}, \
         {{ address = \"{}\", priority = 9 }}]\n\
         [pool.sorry]\nbackends = [\"{}\"]\n\
         [pool.empty]\nbackends = [{{ address = \"{}\" }}]\nfallback = \"sorry\"\n",
        address(0),
        address(1),
        address(2),
        address(3),
        address(1)
    ));
    assert!(server.ctl(&["drain", "empty", address(1)]).status.success());
    let get = |source: &str, path: &str| {
        let stream = testing::attack::connect_from(source, &server.address("web")).unwrap();
        Client::over(testing::client::Stream::Tcp(stream)).get(path, &[])
    };
    let ask = |source: &str, path: &str| asked(&server, &["--from", source, &url(&server, path)]);
    let answer = ask("127.0.0.9", "/");
    assert_eq!(answer["result"]["backend"], address(1), "{answer:#}");
    assert_eq!(reasons(&answer, address(0)), ["denied"], "{answer:#}");
    assert_eq!(reasons(&answer, address(2)), ["standby"], "{answer:#}");
    assert_eq!(get("127.0.0.9", "/").text(), "1");
    let answer = ask("127.0.0.9", "/one");
    assert_eq!((&answer["result"]["status"], &pool(&answer)["by"]), (&403.into(), &"route".into()));
    assert_eq!(get("127.0.0.9", "/one").status, 403);
    for (source, path) in [("127.0.0.2", "/one"), ("127.0.0.1", "/empty")] {
        assert_eq!(ask(source, path)["result"]["backend"], address(3), "{source} {path}");
        assert_eq!(get(source, path).text(), "3", "{source} {path}");
    }
    assert_eq!(asked(&server, &["--from", "127.0.0.2", "tcp://raw"])["result"]["outcome"], "denied");
    let text = said(&server, &["--from", "127.0.0.2", &url(&server, "/empty")]);
    assert!(
        text.contains(
            "denied    the access list of the listener, [acl.inside], denies the client (its default): it goes to denied-pool sorry"
        ),
        "{text}"
    );
    let text = said(&server, &[&url(&server, "/empty")]);
    assert!(text.contains("empty has no available backend: its fallback serves, sorry"), "{text}");
}

#[test]
fn past_sessions_are_found_by_request_id_and_client_and_outlive_a_reload() {
    let backends = named(2);
    let config = |pool: &str| {
        format!(
            "{START}[process]\nworkers = 1\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\ntrusted-proxies = [\"127.0.0.1\"]\n\
             [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
             [pool.app]\nbackends = [{}]\nbalance = \"sticky\"\n{pool}",
            list(&backends)
        )
    };
    let server = Server::start(&config(""));
    for id in ["first-id", "second-id"] {
        assert_eq!(server.client("web").get("/page?q", &[("X-Request-Id", id)]).status, 200);
    }
    let find = |id: &str| {
        eventually("the session is told of", secs(10), || {
            let output = server.ctl(&["why", "--session", id, "--json"]);
            output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap())
        })
    };
    let (first, second) = (find("first-id"), find("second-id"));
    assert_eq!((&first["chosen"], &second["chosen"]), (&"picked".into(), &"remembered".into()), "{first:#}");
    assert_eq!(first["backend"], second["backend"], "{second:#}");
    assert_eq!(second["now"]["result"]["backend"], second["backend"], "{second:#}");
    assert_eq!(
        (&first["method"], &first["host"], &first["target"]),
        (&"GET".into(), &"test".into(), &"/page?q".into())
    );
    assert_eq!((&first["status"], &first["outcome"]), (&200.into(), &"ok".into()));
    // A session without an id is found by its client.
    let mut client = server.client("raw");
    assert_eq!(client.get("/", &[]).status, 200);
    let testing::client::Stream::Tcp(stream) = &client.stream else {
        panic!("the listener has a TCP address")
    };
    let address = stream.local_addr().unwrap().to_string();
    drop(client);
    let raw = find(&address);
    assert_eq!((&raw["kind"], &raw["backend"]), (&"tcp".into(), &first["backend"]), "{raw:#}");
    server.write_config(&config("retries = 1\n"));
    assert!(server.ctl(&["reload"]).status.success());
    let after = find("first-id");
    assert_eq!((&after["backend"], &after["backends"]), (&first["backend"], &first["backends"]), "{after:#}");
    let output = server.ctl(&["why", "--session", "first-id"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "session   first-id, ended ",
        "request   GET test/page?q",
        ": chosen by the policy",
        "could have taken it",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // As the access log writes it.
    let named = server.ctl(&["why", "--request", "id=first-id"]);
    // Without the time since it ended, which goes on.
    let session = |text: &str| text.split(", ended ").next().unwrap().to_owned();
    assert_eq!(session(&String::from_utf8(named.stdout).unwrap()), session(&text));
    // Its listener goes, and another protocol takes its name.
    let gone = config("").replace("[listener.web]", "[listener.other]");
    server.write_config(&gone);
    server.said(&["reload"]);
    let text = said(&server, &["--session", "first-id"]);
    assert!(
        text.contains("\nWhat the same would get now is not known: listener web is not served any more\n"),
        "{text}"
    );
    let json = find("first-id");
    assert!(
        json["now"].is_null() && json["now_unknown"].as_str().unwrap().contains("listener web"),
        "{json:#}"
    );
    server.write_config(
        &config("").replace("[listener.web]", "[listener.other]").replace("[listener.raw]", "[listener.web]"),
    );
    server.said(&["reload"]);
    let text = said(&server, &["--session", "first-id"]);
    assert!(text.contains("\nWhat the same would get now is not known: "), "{text}");
    let output = server.ctl(&["why", "--session", "no-such-id"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("no session \"no-such-id\" among the last ones: give its `id` of the access log"),
        "{said}"
    );
}

#[test]
fn each_failed_attempt_has_its_reason_and_a_post_says_why_it_was_not_repeated() {
    // Nothing listens at the first; the second takes connections and never answers.
    let dead = format!("127.0.0.1:{}", testing::port::free());
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let frozen = frozen.local_addr().map(|address| (frozen, address.to_string())).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access.log");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"{}\"\n[process]\nworkers = 1\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\ntrusted-proxies = [\"127.0.0.1\"]\n\
         [pool.app]\nbackends = [\"{dead}\", {{ address = \"{}\", priority = 1 }}]\nhealth = \"off\"\nretries = 1\n\
         passive = {{ failures = 9 }}\ntimeouts = {{ response = \"200ms\" }}\n",
        log.display(),
        frozen.1
    ));
    let find = |id: &str| {
        eventually("the session is told of", secs(10), || {
            let output = server.ctl(&["why", "--session", id, "--json"]);
            output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap())
        })
    };
    for (method, id) in [("GET", "got"), ("POST", "posted")] {
        let mut client = server.client("web");
        client.send(format!(
            "{method} / HTTP/1.1\r\nHost: a\r\nX-Request-Id: {id}\r\nContent-Length: 0\r\n\r\n"
        ));
        assert_eq!(client.response().status, 504, "{method}");
        let session = find(id);
        let faults: Vec<_> = session["failed"].as_array().unwrap().iter().collect();
        assert_eq!(faults.len(), 2, "{session:#}");
        assert_eq!((&faults[0]["backend"], &faults[0]["fault"]), (&dead.as_str().into(), &"refused".into()));
        assert_eq!(
            (&faults[1]["backend"], &faults[1]["fault"]),
            (&frozen.1.as_str().into(), &"timeout".into())
        );
    }
    assert!(find("got")["not_repeated"].is_null());
    let text = said(&server, &["--session", "posted"]);
    for part in ["refused the connection", "did not respond in time", "POST is not repeated: "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    eventually("the log has it", secs(10), || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        (log.matches(" failed=refused,timeout ").count() == 2).then_some(())
    });
    // The failures of traffic are among the last verdicts of their backends.
    let backends = server.ctl_json(&["backends"]);
    for at in [0, 1] {
        let verdict = &backends[0]["backends"][at]["last_verdicts"][0];
        assert_eq!(
            (&verdict["source"], &verdict["outcome"]),
            (&"traffic".into(), &"fail".into()),
            "{backends:#}"
        );
    }
}

#[test]
fn wrong_questions_are_refused_with_what_to_do() {
    let backends = named(1);
    let server = start(1, &list(&backends), "");
    for (question, part) in [
        (&["--listener", "wbe", "http://a/"][..], "no listener \"wbe\", did you mean \"web\"?"),
        (&["--listener", "web", "https://a/"], "listener web does not serve https: its protocol is http"),
        (&["https://a/"], "no listener serves https on port 443"),
        (&["tcp://db"], "no listener \"db\"; the listeners are: web"),
        (&["shop"], "\"shop\" is not a URL: write http://HOST/PATH"),
        (&["ftp://shop/"], "no scheme of a URL"),
        (&["--from", "localhost", "http://a/"], "--from localhost: not an address"),
    ] {
        let output = server.ctl(&[&["why"], question].concat());
        assert_eq!(output.status.code(), Some(1), "{question:?}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(part), "{question:?}: {said}");
    }
    let output = server.ctl(&["why"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = testing::server::penstock(&["ctl", "--socket", "/nonexistent/socket", "why", "http://a/"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn a_client_that_a_listener_has_denied_is_told_with_the_entry() {
    let backend = Scripted::answering("one");
    let config = |entries: &str| {
        format!(
            "{START}[acl.office]\nentries = [{entries}]\ndefault = \"permit\"\n\
             [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\nacl = \"office\"\n\
             [pool.app]\nbackends = [\"{}\"]\n",
            backend.address
        )
    };
    let server = Server::start(&config("\"deny 127.0.0.0/8\""));
    let mut client = server.client("web");
    let testing::client::Stream::Tcp(stream) = &client.stream else {
        panic!("the listener has a TCP address")
    };
    let address = stream.local_addr().unwrap().to_string();
    client.read_to_end();
    let text = eventually("the session is told of", secs(10), || {
        let output = server.ctl(&["why", "--session", &address]);
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    });
    assert!(text.contains("office") && text.contains("deny 127.0.0.0/8"), "{text}");
    assert!(!text.contains("not known") && !text.contains("does not serve"), "{text}");
    let json = asked(&server, &["--session", &address]);
    assert_eq!(json["now"]["result"]["outcome"], "denied", "{json:#}");
    // It could come now: where its request would go is not known, because it has sent none.
    server.write_config(&config(""));
    server.said(&["reload"]);
    let text = said(&server, &["--session", &address]);
    let unknown = "not known: listener web takes the client now, and it had sent no request";
    assert!(text.contains(unknown), "{text}");
}

#[test]
fn a_session_that_is_open_is_said_to_be_open() {
    let echo = testing::peers::websocket_echo();
    let server = start(1, &format!("\"{}\"", echo.address), "");
    let _socket = testing::websocket::WebSocket::open(&server.address("web"), "/");
    let session = server.ctl_json(&["sessions"])["sessions"][0].clone();
    let id = session["id"].to_string();
    for name in [id.trim_matches('"'), session["client"].as_str().unwrap()] {
        let said = server.refused(&["why", "--session", name]);
        let line = format!("listener web, client {}, websocket", session["client"].as_str().unwrap());
        assert!(said.contains("is still open") && said.contains(&line), "{said}");
        assert!(said.contains(&echo.address) && said.contains("penstock ctl sessions"), "{said}");
    }
    let said = server.refused(&["why", "--session", "1234567"]);
    assert!(said.contains("no session \"1234567\" among the last ones"), "{said}");
}
