//! `sticky.cookie`: a client keeps its backend by a signed cookie, which survives restarts and is the same on every node.

use std::sync::{Arc, Mutex};

use testing::{Scripted, Server, tools};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Backends that answer with their own number, and keep the heads of their requests.
struct Backends {
    all: Vec<Scripted>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Backends {
    fn start(count: usize) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let start = |number: usize| {
            let heads = heads.clone();
            Scripted::start(move |talk| {
                while let Some(head) = talk.head() {
                    heads.lock().unwrap().push(head);
                    if talk.answer(200, &[], number.to_string().as_bytes()).is_err() {
                        return;
                    }
                }
            })
        };
        Self { all: (0..count).map(start).collect(), heads }
    }

    fn addresses(&self) -> Vec<&str> {
        self.all.iter().map(|backend| &*backend.address).collect()
    }
}

fn front(backends: &Backends, listener: &str, key: &str) -> Server {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap().keep();
    let path = directory.join("sticky.key");
    std::fs::write(&path, key).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = {:?}\nbalance = \"sticky\"\n\
         sticky = {{ cookie = \"lb\", key-file = \"{}\" }}\n",
        backends.addresses(),
        path.display(),
    ))
}

/// Backend that answered, and the `Set-Cookie` of the response.
fn ask(server: &Server, cookies: &str) -> (String, Option<String>) {
    let fields: &[(&str, &str)] = if cookies.is_empty() { &[] } else { &[("Cookie", cookies)] };
    let answer = server.client("web").request("GET", "/", fields, b"");
    assert_eq!(answer.status, 200);
    (answer.text(), answer.header("set-cookie").map(str::to_owned))
}

/// `NAME=VALUE` of a `Set-Cookie`.
fn pair(set: &str) -> String {
    set.split(';').next().unwrap().to_owned()
}

#[test]
fn a_client_with_the_cookie_keeps_its_backend_and_gets_it_once() {
    let backends = Backends::start(3);
    let server = front(&backends, "", KEY);
    let mut pairs = std::collections::BTreeMap::new();
    for _ in 0..30 {
        let (backend, set) = ask(&server, "");
        let set = set.expect("a new client gets a cookie");
        assert!(set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
        assert!(!set.contains(':') && !set.contains("127"), "the value says nothing: {set}");
        let known = pairs.entry(backend).or_insert_with(|| pair(&set));
        assert_eq!(*known, pair(&set), "one value for a backend");
    }
    assert_eq!(pairs.len(), 3, "new clients are spread");
    backends.heads.lock().unwrap().clear();
    for (backend, pair) in &pairs {
        for _ in 0..5 {
            assert_eq!(ask(&server, &format!("a=1; {pair}; b=2")), (backend.clone(), None));
        }
    }
    let heads = backends.heads.lock().unwrap();
    assert!(heads.iter().all(|head| head.contains("a=1; b=2\r\n") && !head.contains("lb=")), "{heads:?}");
}

#[test]
fn forged_and_foreign_values_are_ignored_and_replaced() {
    let backends = Backends::start(2);
    let server = front(&backends, "", KEY);
    let other = front(&backends, "", "another key, which has 32 bytes too.");
    let (_, foreign) = ask(&other, "");
    let foreign = pair(&foreign.unwrap());
    let long = format!("lb={}", "A".repeat(4000));
    for forged in ["lb=", "lb=0", "lb=AAAAAAAAAAAAAAAAAAAAAA", &foreign, &long, "LB=x; lb", "lb=\"x\""] {
        let (_, set) = ask(&server, forged);
        assert!(set.is_some(), "{forged}");
    }
    // The first good one of several counts.
    let (backend, set) = ask(&server, "");
    let both = format!("lb=forged; {}", pair(&set.unwrap()));
    assert_eq!(ask(&server, &both), (backend, None));
}

#[test]
fn another_process_with_the_same_key_knows_the_cookie_and_why_explains_it() {
    let backends = Backends::start(3);
    let (one, two) = (front(&backends, "", KEY), front(&backends, "", &format!("{KEY}\n")));
    let (backend, set) = ask(&one, "");
    let pair = pair(&set.unwrap());
    for _ in 0..5 {
        assert_eq!(ask(&two, &pair), (backend.clone(), None));
    }
    let at: usize = backend.parse().unwrap();
    let why = |cookie: &str| {
        let header = format!("Cookie: {cookie}");
        let asked = ["why", "--from", "192.0.2.1", "--header", &header, "http://app.test/"];
        String::from_utf8_lossy(&two.ctl(&asked).stdout).into_owned()
    };
    let told = why(&pair);
    assert!(told.contains(&format!("sticky    the cookie names {}", backends.addresses()[at])), "{told}");
    assert!(told.contains(&format!("=> backend {}", backends.addresses()[at])), "{told}");
    assert!(why("lb=forged").contains("names no backend"), "{}", why("lb=forged"));
    assert!(why("a=1").contains("no cookie"), "{}", why("a=1"));
}

#[test]
fn a_client_whose_backend_is_drained_gets_another_and_its_cookie() {
    let backends = Backends::start(2);
    let server = front(&backends, "", KEY);
    let (backend, set) = ask(&server, "");
    let old = pair(&set.unwrap());
    let drained = backends.addresses()[backend.parse::<usize>().unwrap()];
    assert!(server.ctl(&["drain", "app", drained]).status.success());
    let (other, set) = ask(&server, &old);
    assert_ne!(other, backend);
    let new = pair(&set.expect("the cookie of the other one"));
    assert_ne!(new, old);
    assert!(server.ctl(&["ready", "app", drained]).status.success());
    assert_eq!(ask(&server, &new), (other, None));
    assert_eq!(ask(&server, &old), (backend, None));
}

#[test]
fn over_tls_and_http2_the_cookie_is_secure_and_works() {
    let backends = Backends::start(3);
    let directory = tempfile::tempdir().unwrap();
    testing::pki::server_pair(&directory.path().join("a.pem"), &["localhost"]);
    let listener = format!("tls = {{ certificates = \"{}\" }}", directory.path().display());
    let server = front(&backends, &listener, KEY);
    let url = format!("https://localhost:{}/", server.address("web").rsplit(':').next().unwrap());
    let first = tools::curl_text(&["-k", "--http2", "-i", &url]);
    assert!(first.starts_with("HTTP/2 200"), "{first}");
    let set = first.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    assert!(set.trim_end().ends_with("; Path=/; HttpOnly; SameSite=Lax; Secure"), "{set}");
    let backend = first.trim_end().chars().last().unwrap();
    let cookie = format!("Cookie: a=1; {}", pair(set));
    for version in ["--http2", "--http1.1"] {
        for _ in 0..5 {
            let again = tools::curl_text(&["-k", version, "-i", "-H", &cookie, &url]);
            assert!(!again.to_ascii_lowercase().contains("set-cookie"), "{again}");
            assert_eq!(again.trim_end().chars().last(), Some(backend), "{again}");
        }
    }
    let heads = backends.heads.lock().unwrap();
    assert!(heads.iter().all(|head| !head.contains("lb=")), "{heads:?}");
}

#[test]
fn without_its_key_the_pool_serves_and_is_degraded() {
    let backends = Backends::start(2);
    let server = front(&backends, "", "short");
    assert_eq!(ask(&server, "lb=x").1, None);
    let status = server.ctl_json(&["status"]);
    assert!(status["degraded"].to_string().contains("pool.app.sticky"), "{status:#}");
}
