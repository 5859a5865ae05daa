//! A backend that leads back to where the request came from: the circle ends, also through nginx, HTTP/2 or a
//! second process.

use std::os::unix::fs::symlink;

use testing::server::Setup;
use testing::tools::{curl_text, run};
use testing::{Client, Recorder, Server, eventually, peers, secs};

/// Most hops unless the configuration says otherwise.
const HOPS: usize = 8;

/// A front door at `here` in its own directory, with a backend that the check of the configuration cannot see through.
fn config(here: &str, backend: &str, listener: &str, pool: &str) -> String {
    format!(
        "[process]\nworkers = 1\nmax-connections = 200\n[admin]\nbind = \"127.0.0.1:0\"\n[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = [\"127.0.0.1:0\", \"unix:{here}\"]\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"unix:{backend}\"]\nhealth = \"off\"\n{pool}\n"
    )
}

/// A process whose only backend is itself, behind another name.
fn to_itself(listener: &str, pool: &str) -> Server {
    let setup = Setup::new(&config("@DIR@/web.sock", "@DIR@/alias.sock", listener, pool));
    symlink(setup.dir().join("web.sock"), setup.dir().join("alias.sock")).unwrap();
    setup.start()
}

fn sessions(server: &Server) -> usize {
    server.stdout.count("Z web ")
}

/// What curl sees: the status.
fn status(url: &str, more: &[&str]) -> String {
    let mut arguments = vec!["-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}"];
    arguments.extend(more);
    arguments.push(url);
    String::from_utf8(run("curl", &arguments, secs(30)).stdout).unwrap()
}

#[test]
fn a_process_that_leads_to_itself_ends_each_request_after_its_hops_and_says_why() {
    let server = to_itself("", "");
    let url = format!("http://{}/", server.address("web"));
    let page = curl_text(&["-m", "20", "-H", "Accept: application/json", &url]);
    assert!(page.contains("508") && page.contains("Request loop"), "{page}");
    eventually("each hop has its line", secs(10), || (sessions(&server) == HOPS + 1).then_some(()));
    assert_eq!(server.stdout.count(" 508 request-loop "), 1, "{:#?}", server.stdout.tail(20));
    for request in
        [&["-d", "a body"][..], &["-I"], &["-H", "Connection: cdn-loop"], &["-H", "CDN-Loop: \"open"]]
    {
        let before = sessions(&server);
        assert_eq!(status(&url, request), "508", "{request:?}");
        let all = before + HOPS + 1;
        eventually(&format!("{request:?} has its lines"), secs(10), || {
            (sessions(&server) == all).then_some(())
        });
    }
    assert!(
        server
            .metrics()
            .contains("penstock_listener_endings_total{listener=\"web\",reason=\"request-loop\"} 5")
    );
    let events = server.ctl(&["events"]);
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    assert_eq!(events.matches("requests go in a circle").count(), 1, "once a minute: {events}");
    assert!(events.contains("listener.web: ") && events.contains("pool app"), "{events}");
}

#[test]
fn many_requests_in_a_circle_leave_connections_for_others() {
    let server = to_itself("", "");
    let address = server.address("web");
    let out = run("h2load", &["--h1", "-n", "400", "-c", "10", &format!("http://{address}/")], secs(60));
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.contains("400 done") && out.contains("400 5xx"), "{out}");
    assert_eq!(server.stdout.count("-full"), 0, "{:#?}", server.stdout.tail(5));
}

#[test]
fn two_processes_that_lead_to_each_other_end_a_request_together() {
    let (one, two) = (Setup::new(""), Setup::new(""));
    let path = |setup: &Setup| setup.dir().join("web.sock").to_str().unwrap().to_owned();
    let (here, there) = (path(&one), path(&two));
    let started: Vec<Server> = [(one, &here, &there), (two, &there, &here)]
        .map(|(setup, here, there)| setup.configured(&config(here, there, "", "")).start())
        .into();
    let url = format!("http://{}/", started[0].address("web"));
    assert_eq!(status(&url, &[]), "508");
    eventually("both have their lines", secs(10), || {
        (sessions(&started[0]) + sessions(&started[1]) == HOPS + 1).then_some(())
    });
}

#[test]
fn a_circle_of_http2_ends_and_so_does_one_of_websockets() {
    let server = to_itself("", "http2 = \"on\"");
    let url = format!("http://{}/", server.address("web"));
    assert_eq!(status(&url, &["--http2-prior-knowledge"]), "508");
    assert_eq!(status(&url, &["--http1.1"]), "508");
    eventually("each hop has its line", secs(10), || (sessions(&server) == 2 * (HOPS + 1)).then_some(()));
    for pool in ["", "http2 = \"on\""] {
        let server = to_itself("", pool);
        let mut client = server.client("web");
        client.send(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        );
        assert_ne!(client.response().status, 101);
        eventually("the hops end", secs(10), || (sessions(&server) > 0).then_some(()));
        assert!(sessions(&server) <= HOPS + 1);
    }
}

#[test]
fn a_circle_through_nginx_ends() {
    let setup = Setup::new("");
    let own = tempfile::tempdir().unwrap();
    let back = format!("location / {{ proxy_pass http://unix:{}/web.sock; }}", setup.dir().display());
    let nginx = peers::nginx(own.path(), &back);
    let there = nginx.address.trim_start_matches("unix:").to_owned();
    let server = setup.configured(&config("@DIR@/web.sock", &there, "", "")).start();
    let url = format!("http://{}/", server.address("web"));
    assert_eq!(status(&url, &[]), "508");
    eventually("each hop has its line", secs(10), || (sessions(&server) == HOPS + 1).then_some(()));
}

#[test]
fn a_chain_of_several_is_no_circle_and_a_limit_can_be_set() {
    let backend = Recorder::start();
    let chain = |hops: usize| {
        let mut text = "[access-log]\ntarget = \"off\"\n".to_owned();
        for at in 1..=4 {
            text += &format!(
                "[listener.l{at}]\nbind = [\"127.0.0.1:0\", \"unix:@DIR@/{at}.sock\"]\npool = \"p{at}\"\nlimits = {{ hops = {hops} }}\n"
            );
            let next = match at {
                4 => backend.address().to_owned(),
                _ => format!("unix:@DIR@/{}.sock", at + 1),
            };
            text += &format!("[pool.p{at}]\nbackends = [\"{next}\"]\n");
        }
        Server::start(&text)
    };
    assert_eq!(chain(4).client("l1").get("/", &[("CDN-Loop", "cdn.example; a=1")]).status, 200);
    let seen = backend.last().lines("cdn-loop");
    assert_eq!(seen, ["cdn.example; a=1, penstock, penstock, penstock, penstock"]);
    assert_eq!(chain(3).client("l1").get("/", &[]).status, 508);
    assert_eq!(backend.requests().len(), 1);
}

#[test]
fn a_forged_count_ends_only_the_request_that_carries_it() {
    let backend = Recorder::start();
    let server = Server::start(&format!(
        "[access-log]\ntarget = \"off\"\n[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address()
    ));
    let mut client = server.client("web");
    let hundred = vec!["penstock"; 100].join(",");
    for (forged, expected) in [
        (hundred.as_str(), 508),
        ("penstock;hops=99999999999999999999", 200),
        ("\"\\", 200),
        (&"x,".repeat(4000), 200),
        ("penstock,penstock,penstock,penstock,penstock,penstock,penstock,penstock", 508),
        ("penstock,penstock,penstock,penstock,penstock,penstock,penstock", 200),
    ] {
        let answer = client.get("/", &[("CDN-Loop", forged)]);
        assert_eq!(answer.status, expected, "{forged:.100}");
        if expected == 508 {
            assert_eq!(answer.header("cache-control"), Some("no-store"), "it is of this request alone");
        }
        assert_eq!(client.get("/", &[]).status, 200, "the same connection goes on");
    }
    assert_eq!(Client::connect(&server.address("web")).get("/", &[]).status, 200);
}

#[test]
fn a_backend_that_is_a_redirecting_listener_answers_once() {
    let text = "[listener.web]\nbind = [\"127.0.0.1:0\", \"unix:@DIR@/web.sock\"]\npool = \"app\"\n\
         [listener.plain]\nbind = \"unix:@DIR@/plain.sock\"\nredirect-to-https = true\n\
         [pool.app]\nbackends = [\"unix:@DIR@/plain.sock\"]\n";
    let server = Server::start(text);
    assert_eq!(server.client("web").get("/", &[]).status, 308);
    eventually("two sessions", secs(10), || (server.stdout.count(" 308 ") == 2).then_some(()));
}

#[test]
fn bytes_that_would_go_in_a_circle_are_refused_with_the_configuration() {
    let setup = Setup::new(
        "[listener.a]\nbind = \"127.0.0.1:9\"\nprotocol = \"tcp\"\npool = \"a\"\n[pool.a]\nbackends = [\"unix:@DIR@/b.sock\"]\n\
         [listener.b]\nbind = \"unix:@DIR@/b.sock\"\nprotocol = \"tcp\"\npool = \"b\"\n[pool.b]\nbackends = [\"localhost:9\"]\n",
    );
    let output = setup.output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("pool.a.backends[1]") && said.contains("pool.b.backends[1]"), "{said}");
    assert!(said.contains("to this pool: a loop"), "{said}");
}
