//! `penstock ctl why` while sessions wait for a backend: what it says of the next one is what happens with it.

use testing::client::{Stream, request};
use testing::{Client, Scripted, Server, attack, eventually, secs};

use super::{START, asked, reasons, said, url};

fn client_from(source: &str, server: &Server) -> Client {
    Client::over(Stream::Tcp(attack::connect_from(source, &server.address("web")).unwrap()))
}

fn wait_until_queued(server: &Server, count: u64) {
    eventually("it waits", secs(10), || {
        (server.ctl_json(&["status"])["pools"][0]["queued"] == count).then_some(())
    });
}

#[test]
fn behind_a_full_queue_also_a_client_that_all_backends_deny_gets_503() {
    let (backend, gate) = Scripted::gated();
    let server = Server::start(&format!(
        "{START}[process]\nworkers = 1\n[acl.one]\nentries = [\"deny 127.0.0.9\"]\ndefault = \"permit\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nhealth = \"off\"\nqueue = 2\ntimeouts = {{ queue = \"10m\" }}\nbackends = [{{ address = \"{}\", max-connections = 1, acl = \"one\" }}]\n",
        backend.address
    ));
    let ask = |source: &str| asked(&server, &["--from", source, &url(&server, "/")]);
    let answer = ask("127.0.0.9");
    assert_eq!(
        (&answer["result"]["status"], reasons(&answer, &backend.address)),
        (&403.into(), vec!["denied".to_owned()])
    );
    assert_eq!(client_from("127.0.0.9", &server).get("/", &[]).status, 403);
    let send = || {
        let mut client = client_from("127.0.0.1", &server);
        client.send(request("GET", "/", &[], b""));
        client
    };
    let mut open = vec![send()];
    eventually("a session is at the backend", secs(10), || {
        (server.backend(&backend.address)["in_flight"] == 1).then_some(())
    });
    open.push(send());
    wait_until_queued(&server, 1);
    for source in ["127.0.0.1", "127.0.0.9"] {
        assert_eq!(ask(source)["result"]["outcome"], "queue", "{source}");
    }
    open.push(send());
    wait_until_queued(&server, 2);
    for source in ["127.0.0.1", "127.0.0.9"] {
        let answer = ask(source);
        assert_eq!(
            (&answer["result"]["outcome"], &answer["result"]["status"]),
            (&"queue-full".into(), &503.into()),
            "{answer:#}"
        );
        assert_eq!(client_from(source, &server).get("/", &[]).status, 503, "{source}");
    }
    gate.open();
    for mut client in open {
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn client_that_its_backend_knows_passes_those_that_wait_and_why_says_so() {
    let backend = Scripted::answering("app");
    let server = Server::start(&format!(
        "{START}[process]\nworkers = 1\n[listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [listener.dns]\nbind = \"127.0.0.1:0\"\nprotocol = \"udp\"\npool = \"app\"\n\
         [pool.app]\nhealth = \"off\"\nbalance = \"sticky\"\ntimeouts = {{ queue = \"10m\" }}\n\
         backends = [{{ address = \"{}\", soft-max-connections = 1, max-connections = 2 }}]\n",
        backend.address
    ));
    let mut first = client_from("127.0.0.2", &server);
    assert_eq!(first.get("/", &[]).text(), "app");
    let mut stranger = client_from("127.0.0.3", &server);
    stranger.send(request("GET", "/", &[], b""));
    wait_until_queued(&server, 1);
    let ask = |source: &str, url: &str| asked(&server, &["--from", source, url])["result"].clone();
    assert_eq!(ask("127.0.0.2", "tcp://web")["backend"], backend.address.as_str());
    assert_eq!(ask("127.0.0.4", "tcp://web")["outcome"], "queue");
    assert_eq!(ask("127.0.0.4", "udp://dns")["outcome"], "queue-full", "a datagram does not wait");
    let mut second = client_from("127.0.0.2", &server);
    assert_eq!(second.get("/", &[]).text(), "app");
    assert_eq!(ask("127.0.0.2", "tcp://web")["outcome"], "queue", "at the hard limit it waits as well");
    drop((first, second));
    assert_eq!(stranger.response().text(), "app");
}

#[test]
fn client_that_all_backends_deny_goes_to_the_fallback_and_why_follows_it() {
    let (backend, other) = (Scripted::answering("app"), Scripted::answering("other"));
    let server = Server::start(&format!(
        "{START}[process]\nworkers = 1\n[acl.one]\nentries = [\"deny 127.0.0.9\"]\ndefault = \"permit\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"app\"\n\
         [pool.app]\nfallback = \"other\"\nbackends = [{{ address = \"{}\", acl = \"one\" }}]\n\
         [pool.other]\nbackends = [\"{}\"]\n",
        backend.address, other.address
    ));
    for (source, serves, body) in [("127.0.0.1", &backend, "app"), ("127.0.0.9", &other, "other")] {
        for url in [&*url(&server, "/"), "tcp://raw"] {
            let answer = asked(&server, &["--from", source, url]);
            assert_eq!(answer["result"]["backend"], serves.address.as_str(), "{source} {url}: {answer:#}");
            assert_eq!(reasons(&answer, &serves.address), ["chosen"]);
        }
        for listener in ["web", "raw"] {
            let stream = attack::connect_from(source, &server.address(listener)).unwrap();
            let mut client = Client::over(Stream::Tcp(stream));
            assert_eq!(client.get("/", &[]).text(), body, "{source} at {listener}");
        }
    }
    let answer = asked(&server, &["--from", "127.0.0.9", "tcp://raw"]);
    let steps: Vec<_> = answer["steps"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(steps, ["listener", "pool", "fallback", "pool"]);
    assert_eq!(answer["steps"][2]["reason"], "denied");
    let text = said(&server, &["--from", "127.0.0.9", "tcp://raw"]);
    assert!(text.contains("app has no backend for this client: its fallback serves, other"), "{text}");
}
