//! Routes that answer by themselves, to curl over HTTP/1.1 and HTTP/2.

use testing::client::{Complete, request};
use testing::{Scripted, Server, secs, tools};

const FORMS: [&str; 2] = ["--http1.1", "--http2-prior-knowledge"];

fn server(backend: &Scripted) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\nresponse-headers.set = {{ X-Site = \"one\" }}\n\
         [[listener.web.route]]\npath = \"/welcome\"\n\
         respond = {{ body = \"<p>It works\", content-type = \"text/html; charset=utf-8\" }}\n\
         response-headers.set = {{ Cache-Control = \"max-age=60\" }}\n\
         [[listener.web.route]]\npath = \"/gone\"\nmethod = [\"GET\", \"POST\"]\nrespond = {{ status = 410 }}\n\
         [[listener.web.route]]\npath = \"/nothing\"\nrespond = {{ status = 204 }}\n\
         [[listener.web.route]]\npath = \"/large\"\nrespond = {{ body = \"{}\" }}\n\
         [pool.app]\nbackends = [\"{}\"]\nhealth = \"off\"\n",
        "x".repeat(64 * 1024),
        backend.address
    ))
}

#[test]
fn a_route_answers_as_it_says_and_no_backend_is_asked() {
    let backend = Scripted::answering("app");
    let server = server(&backend);
    let url = |path: &str| format!("http://{}{path}", server.address("web"));
    for form in FORMS {
        let whole = tools::curl_text(&["-i", form, &url("/welcome/all?x=1")]);
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("http/") && head.lines().next().unwrap().contains(" 200"), "{whole}");
        for line in ["content-type: text/html; charset=utf-8", "content-length: 11", "x-site: one", "date: "]
        {
            assert!(head.contains(line), "no {line:?} in {whole}");
        }
        // What the route sets takes the place of our own field.
        assert_eq!(head.matches("cache-control").count(), 1, "{whole}");
        assert!(head.contains("cache-control: max-age=60") && body == "<p>It works", "{whole}");
        let head = tools::curl_text(&["-I", form, &url("/welcome")]).to_ascii_lowercase();
        assert!(head.contains("content-length: 11") && head.ends_with("\r\n\r\n"), "{head}");
        let code = |arguments: &[&str]| {
            tools::curl_text(
                &[&["-o", "/dev/null", "-w", "%{http_code} %{size_download}", form], arguments].concat(),
            )
        };
        assert_eq!(code(&[&url("/gone")]), "410 0");
        assert_eq!(code(&["-d", "some body", &url("/gone")]), "410 0");
        assert_eq!(code(&[&url("/nothing")]), "204 0");
        assert_eq!(code(&[&url("/large")]), "200 65536");
        assert_eq!(code(&["-X", "DELETE", &url("/gone")]), "200 3", "its method goes to the pool");
    }
    assert_eq!(backend.accepted.load(std::sync::atomic::Ordering::SeqCst), 1);
    let line = server.stdout.wait_for("/welcome/all", secs(20));
    assert!(line.contains(" 200 responded ") && line.contains(" attempts=0 "), "{line}");
    let status = server.ctl_json(&["status"]);
    assert_eq!(status["listeners"][0]["endings"], serde_json::json!({}), "it is no error");
}

#[test]
fn the_connection_goes_on_unless_a_body_was_left_unread() {
    let backend = Scripted::answering("app");
    let server = server(&backend);
    let mut client = server.client("web");
    for _ in 0..3 {
        assert_eq!(client.get("/welcome", &[]).text(), "<p>It works");
    }
    client.send("HEAD /welcome HTTP/1.1\r\nHost: a\r\n\r\nGET /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response_to_head().header("content-length"), Some("11"));
    let nothing = client.response();
    assert_eq!(
        (nothing.status, nothing.header("content-length"), nothing.header("content-type")),
        (204, None, None)
    );
    client.send(request("POST", "/gone", &[], b"body"));
    let gone = client.response();
    assert_eq!((gone.status, gone.header("connection"), gone.complete), (410, Some("close"), Complete::Yes));
}

#[test]
fn why_says_that_the_route_answers() {
    let backend = Scripted::answering("app");
    let server = server(&backend);
    let url = format!("http://{}/gone/x", server.address("web"));
    let said = server.said(&["why", "--from", "127.0.0.1", &url]);
    assert!(said.contains("410 of its own") && said.contains("=> penstock itself answers 410"), "{said}");
    let json = server.ctl_json(&["why", "--from", "127.0.0.1", &url]);
    assert_eq!(
        (&json["result"]["outcome"], &json["result"]["status"]),
        (&"penstock".into(), &410.into()),
        "{json:#}"
    );
}
