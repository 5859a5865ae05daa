//! Access lists: who may connect, whose requests a route serves and whose sessions a backend takes.

use std::fs;

use testing::client::{End, Stream, request};
use testing::server::penstock;
use testing::{Client, Scripted, Server, attack, eventually, secs};

fn client_from(source: &str, address: &str) -> Client {
    Client::over(Stream::Tcp(attack::connect_from(source, address).unwrap()))
}

/// What a client from `source` gets for a request: the body of a 200, the status of another answer, or nothing.
fn ask(source: &str, address: &str, target: &str, headers: &[(&str, &str)]) -> String {
    let mut client = client_from(source, address);
    let _ = client.try_send(request("GET", target, headers, b""));
    match client.try_response(secs(10)) {
        Ok(answer) if answer.status == 200 => answer.text(),
        Ok(answer) => answer.status.to_string(),
        Err(_) => "nothing".to_owned(),
    }
}

fn log(server: &Server) -> String {
    fs::read_to_string(server.dir.path().join("access.log")).unwrap_or_default()
}

#[track_caller]
fn logged(server: &Server, part: &str) {
    eventually(part, secs(10), || log(server).contains(part).then_some(()));
}

#[test]
fn a_denied_client_is_closed_and_counted_and_a_reload_reads_the_file_again() {
    let backend = Scripted::answering("app");
    let config = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\nacl = \"local\"\n\
         [acl.local]\nentries = [\"permit 127.0.0.1\"]\ndefault = \"deny\"\n\
         [acl.abuse]\nentries = [\"permit 127.0.0.7\"]\nfile = \"@DIR@/abuse.acl\"\ndefault = \"permit\"\n\
         [listener.web]\nbind = [\"127.0.0.1:0\", \"unix:@DIR@/web.sock\"]\nacl = \"abuse\"\npool = \"app\"\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nacl = \"abuse\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    );
    let setup = testing::server::Setup::new("");
    let list = setup.dir().join("abuse.acl");
    fs::write(&list, "# bad\ndeny 127.0.0.2\ndeny 127.0.0.4/30 # with .7\n").unwrap();
    let server = setup.configured(&config).start();
    for listener in ["web", "tcp"] {
        let address = server.address(listener);
        for (source, gets) in [
            ("127.0.0.1", "app"),
            ("127.0.0.2", "nothing"),
            ("127.0.0.3", "app"),
            ("127.0.0.5", "nothing"),
            ("127.0.0.7", "app"),
        ] {
            assert_eq!(ask(source, &address, "/", &[]), gets, "{source} at {listener}");
        }
        assert_eq!(client_from("127.0.0.2", &address).read_to_end().0, b"", "it is closed without a word");
        logged(&server, &format!(" {listener} 127.0.0.5:"));
    }
    let unix = server.addresses("web").pop().unwrap();
    assert_eq!(Client::connect(&unix).get("/", &[]).text(), "app");
    logged(&server, " denied");
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["listeners"][0]["endings"]["denied"], 3, "{status:#}");

    // An open connection goes on when a reload denies its client; a wrong line changes nothing.
    let mut open = client_from("127.0.0.3", &server.address("web"));
    open.send(request("GET", "/", &[], b""));
    assert_eq!(open.response().text(), "app");
    fs::write(&list, "deny 127.0.0.3\n\nblock 127.0.0.2\n10.0.0.0/8\n").unwrap();
    let refused = server.ctl(&["reload"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains("acl.abuse.file: line 3 of \"") && text.contains("`block` is neither"), "{text}");
    assert!(text.contains("line 4 of") && text.contains("no `permit` or `deny` before it"), "{text}");
    assert_eq!(ask("127.0.0.3", &server.address("web"), "/", &[]), "app");
    fs::write(&list, "deny 127.0.0.3\n").unwrap();
    let reloaded = server.ctl(&["reload"]);
    let text = String::from_utf8_lossy(&reloaded.stdout).into_owned();
    assert!(reloaded.status.success() && text.contains("acl abuse: entries"), "{text}");
    assert_eq!(ask("127.0.0.3", &server.address("web"), "/", &[]), "nothing");
    assert_eq!(ask("127.0.0.2", &server.address("web"), "/", &[]), "app");
    assert_eq!(open.get("/", &[]).text(), "app");

    // The admin listener.
    let admin = server.admin();
    assert_eq!(ask("127.0.0.2", &admin, "/healthz", &[]), "nothing");
    assert!(server.metrics().contains("penstock_admin_clients_denied_total 1\n"), "{}", server.metrics());
    server.write_config(&config.replace("\"permit 127.0.0.1\"", "\"permit 127.0.0.2\""));
    assert!(server.ctl(&["reload"]).status.success());
    assert_eq!(ask("127.0.0.2", &admin, "/healthz", &[]), "ok\n");
    assert_eq!(ask("127.0.0.1", &admin, "/healthz", &[]), "nothing");
}

#[test]
fn a_file_that_cannot_be_read_stops_the_start_and_check_names_its_lines() {
    let directory = tempfile::tempdir().unwrap();
    let (file, list) = (directory.path().join("penstock.toml"), directory.path().join("list"));
    let config = format!(
        "[acl.a]\nfile = \"{}\"\ndefault = \"deny\"\n[listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"a\"\npool = \"app\"\n\
         [pool.app]\nbackends = [\"127.0.0.1:1\"]\n",
        list.display()
    );
    fs::write(&file, config).unwrap();
    let check = || {
        let output = penstock(&["check", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, text) = check();
    assert!(code == Some(2) && text.contains("cannot be read: No such file"), "{code:?} {text}");
    let many: String = (0..40).map(|n| format!("permit 10.0.0.{n}\nwrong {n}\n")).collect();
    fs::write(&list, many).unwrap();
    let (code, text) = check();
    assert!(code == Some(2) && text.contains("line 2 of") && text.contains("20 more lines"), "{text}");
    fs::write(&list, b"permit \xff\n").unwrap();
    assert!(check().1.contains("is not UTF-8"));
    let blocks: String =
        (0..100_000_u32).map(|n| format!("deny {}\n", std::net::Ipv4Addr::from(n * 7))).collect();
    fs::write(&list, blocks).unwrap();
    let (code, text) = check();
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn behind_a_proxy_header_the_address_in_it_counts_and_denied_clients_may_have_a_pool() {
    let (app, abuse) = (Scripted::answering("app"), Scripted::answering("abuse"));
    let server = Server::start(&format!(
        "[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [acl.some]\nentries = [\"deny 192.0.2.0/24\", \"permit 0.0.0.0/0\"]\ndefault = \"deny\"\n\
         [listener.closed]\nbind = \"127.0.0.1:0\"\nacl = \"some\"\npool = \"app\"\nproxy-protocol-from = [\"127.0.0.1\"]\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"some\"\ndenied-pool = \"abuse\"\npool = \"app\"\n\
         proxy-protocol-from = [\"127.0.0.1\"]\n[[listener.web.route]]\npath = \"/there\"\nredirect = \"https://x.example/\"\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\nacl = \"some\"\ndenied-pool = \"abuse\"\npool = \"app\"\n\
         proxy-protocol-from = [\"127.0.0.1\"]\n\
         [pool.app]\nbackends = [\"{}\"]\n[pool.abuse]\nbackends = [\"{}\"]\n",
        app.address, abuse.address
    ));
    let ask = |listener: &str, header: &str, target: &str| {
        let mut client = server.client(listener);
        let _ = client.try_send([header.as_bytes(), &request("GET", target, &[], b"")].concat());
        client.try_response(secs(10)).map_or_else(|_| "nothing".to_owned(), |answer| answer.text())
    };
    let (bad, good) =
        ("PROXY TCP4 192.0.2.7 127.0.0.1 4711 80\r\n", "PROXY TCP4 198.51.100.7 127.0.0.1 4711 80\r\n");
    assert_eq!(ask("closed", bad, "/"), "nothing");
    assert_eq!(ask("closed", good, "/"), "app");
    assert_eq!(ask("closed", "PROXY UNKNOWN\r\n", "/"), "app", "without an address that of the proxy counts");
    assert_eq!(ask("closed", "PROXY TCP6 2001:db8::7 ::1 4711 80\r\n", "/"), "nothing", "no entry matches");
    logged(&server, " closed 192.0.2.7:4711 tcp");
    for target in ["/", "/there"] {
        assert_eq!(ask("web", bad, target), "abuse", "no route applies");
    }
    assert_eq!(ask("web", good, "/"), "app");
    assert_eq!(ask("tcp", bad, "/"), "abuse");
    assert_eq!(ask("tcp", good, "/"), "app");
}

#[test]
fn a_route_and_a_backend_see_the_client_behind_trusted_proxies() {
    let (one, other) = (Scripted::answering("one"), Scripted::answering("other"));
    let server = Server::start(&format!(
        "[process]\nworkers = 1\n[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [acl.office]\nentries = [\"permit 10.0.0.0/8\", \"permit 127.0.0.2\"]\ndefault = \"deny\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"mixed\"\ntrusted-proxies = [\"127.0.0.1\", \"172.16.0.0/12\"]\n\
         [[listener.web.route]]\npath = \"/internal\"\nacl = \"office\"\npool = \"open\"\n\
         [[listener.web.route]]\npath = \"/closed\"\npool = \"closed\"\n\
         [pool.open]\nbackends = [\"{0}\"]\n\
         [pool.closed]\nbackends = [{{ address = \"{0}\", acl = \"office\" }}]\n\
         [pool.mixed]\nbackends = [{{ address = \"{0}\", acl = \"office\" }}, \"{1}\"]\n",
        one.address, other.address
    ));
    let address = server.address("web");
    let behind = |told: &[(&str, &str)], target: &str| ask("127.0.0.1", &address, target, told);
    let from = |told: &str, target: &str| behind(&[("X-Forwarded-For", told)], target);
    for target in ["/internal", "/closed"] {
        assert_eq!(from("10.0.0.7", target), "one");
        assert_eq!(from("192.0.2.1", target), "403");
        assert_eq!(from("10.0.0.7, 192.0.2.1", target), "403", "what a client says of itself does not count");
        assert_eq!(from("192.0.2.1, 10.0.0.7", target), "one");
        assert_eq!(from("10.0.0.7, 172.16.0.1", target), "one", "behind two proxies");
        assert_eq!(from("10.0.0.7:4711", target), "one");
        assert_eq!(from("[2001:db8::7]:4711", target), "403");
        assert_eq!(from("unknown", target), "403");
        let lines = [("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-For", "10.0.0.7")];
        assert_eq!(behind(&lines, target), "one");
        assert_eq!(behind(&[("Forwarded", "for=10.0.0.7")], target), "403");
        assert_eq!(behind(&[], target), "403", "the proxy itself");
        // A client that is no trusted proxy may say what it wants.
        assert_eq!(ask("127.0.0.2", &address, target, &[("X-Forwarded-For", "192.0.2.1")]), "one");
        assert_eq!(ask("127.0.0.3", &address, target, &[("X-Forwarded-For", "10.0.0.7")]), "403");
    }
    logged(&server, " http 403 denied ");
    let mut seen: Vec<_> = (0..4).map(|_| from("10.0.0.7", "/")).collect();
    seen.sort();
    assert_eq!(seen, ["one", "one", "other", "other"]);
    assert_eq!((0..4).map(|_| from("192.0.2.1", "/")).collect::<Vec<_>>(), ["other"; 4]);
}

#[test]
fn a_flood_of_denied_clients_is_counted_and_leaves_few_lines() {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"@DIR@/access.log\"\n\
         [acl.none]\nentries = [\"deny 127.0.0.2\"]\ndefault = \"permit\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nacl = \"none\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ));
    let address = server.address("web");
    let began = std::time::Instant::now();
    for _ in 0..3000 {
        drop(attack::connect_from("127.0.0.2", &address).unwrap());
    }
    eventually("all are counted", secs(20), || {
        (server.ctl_json(&["status"])["listeners"][0]["endings"]["denied"] == 3000).then_some(())
    });
    let seconds = began.elapsed().as_secs() as usize + 2;
    assert_eq!(ask("127.0.0.1", &address, "/last", &[]), "app");
    logged(&server, "target=/last");
    let lines = log(&server).lines().filter(|line| line.contains(" denied")).count();
    assert!(lines >= 100 && lines <= seconds * 100, "{lines} lines in {seconds} s");
}

#[test]
fn without_http_a_client_that_no_backend_takes_is_closed() {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[acl.a]\nentries = [\"permit 127.0.0.1\"]\ndefault = \"deny\"\n\
         [listener.tcp]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{{ address = \"{}\", acl = \"a\" }}]\n",
        backend.address
    ));
    let address = server.address("tcp");
    assert_eq!(ask("127.0.0.1", &address, "/", &[]), "app");
    let (bytes, end) = client_from("127.0.0.2", &address).read_to_end();
    assert!(bytes.is_empty() && end != End::Open, "{end:?}");
    eventually("it is counted", secs(10), || {
        (server.ctl_json(&["status"])["listeners"][0]["endings"]["denied"] == 1).then_some(())
    });
}
