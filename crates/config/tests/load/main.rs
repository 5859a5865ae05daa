//! What a good configuration becomes, from a file, the environment, and flags.

use std::io;
use std::path::Path;
use std::time::Duration;

use config::types::{
    AllDown, BackendAddress, BindAddress, FastClose, Hsts, LogTarget, MaxConnections, Protocol,
    RedirectToHttps, Workers,
};
use config::{
    Environment, Faults, Loaded, MAX_VARIABLE_FILE, Quick, Severity, Source, control_socket, load, quick,
};
use logic::balance::{HashKey, Policy, Prefixes};
use logic::health::Check;
use logic::route::{Action, HostPattern, PoolId};
use proptest::prelude::*;

mod dsr;
mod engine;
mod environment;
mod http2;

const DESIGN: &str = r#"
[process]
workers = "auto"                       # one per core; a number fixes it
user = "penstock"

[control]
socket = "/run/penstock/control.sock"

[admin]                                # metrics, health, dashboard: loopback unless said otherwise
bind = "127.0.0.1:9900"

[listener.web]
bind = [":80", "unix:/run/penstock/web.sock"]
protocol = "http"                      # tcp | http | udp | tls-passthrough | dsr
redirect-to-https = true

[listener.secure]
bind = ":443"
protocol = "http"
tls = { certificates = "/etc/penstock/certs" }

[[listener.secure.route]]
host = "app.example.com"
path = "/api/"
pool = "app"

[pool.app]
balance = "least-connections"          # round-robin | least-connections | two-choices | hash | maglev | sticky
backends = ["10.0.0.11:8000", { address = "unix:/run/app.sock", weight = 2 }]
health = { http = "/healthz", interval = "2s", rise = 2, fall = 3 }
"#;

/// Every key that exists, with values that are no defaults.
const EVERYTHING: &str = r#"
[process]
workers = 3
user = "penstock"
group = "www-data"
drain-timeout = "1m"
max-connections = 5000
shares = { ipv4-prefix = 24, ipv6-prefix = 56 }
state-directory = "/srv/penstock"

[access-log]
target = "/var/log/penstock.log"
format = "json"

[control]
socket = "/run/control.sock"

[admin]
bind = "unix:/run/admin.sock"

[listener.web]
bind = ["[::1]:8080", "systemd:web", ":${PORT:-8081}", ":0", ":0"]
protocol = "http"
pool = "app"
tls = { certificates = "/etc/certs", handshake-timeout = "3s", ocsp = "off", ticket-keys = "/etc/ticket-keys" }
unix-mode = "0600"
proxy-protocol-from = ["10.0.0.0/8", "unix"]
max-connections = 100
hsts = "180d"
trusted-proxies = ["2001:db8::/32", "192.0.2.1"]
request-id-header = "X-Trace"
max-requests = 1000
limits = { head = "16KiB", headers = 50, target = "4KiB", body = "1MiB" }
timeouts = { head = "1s", idle = "2s", body = "3s", write = "4s" }
request-headers = { set = { "X-Literal" = "$${HOME}", "X Y".X = "" }, remove = ["X-B"] }
response-headers = { set = { "X-C" = "tab\there \\ \"quoted\"" } }

[[listener.web.route]]
host = ["a.example", "*.b.example"]
path = ["/x", "/y/"]
method = ["GET", "HEAD"]
header = { "X-Canary" = "yes", "X-There" = true }
pool = "other"
request-headers.set."X-Route" = "1"

[[listener.web.route]]
path = "/old"
redirect = "https://new.example{path}{query}"
status = 301

[listener.db]
bind = "127.0.0.1:5432"
protocol = "tcp"
pool = "other"
idle-timeout = "5m"
fast-close = "both"

[pool.app]
balance = "maglev"
hash-key = "header:X-User"
backends = [{ address = "app.internal:80", weight = 5, max-connections = 7 }, "[2001:db8::1]:80"]
max-connections = 9
health = { http = "/h?x=1", host = "h.example", expect = "204", interval = "5s", timeout = "4s", rise = 4, fall = 5 }
passive = { failures = 9, ejection = "1m" }
when-all-down = "fail-open"
queue = 0
slow-start = "10s"
send-proxy = "v2"
retries = 0
keep-alive = 8
timeouts = { connect = "1s", response = "2s", body = "3s", queue = "4s", keep-alive = "5s", tunnel = "6s" }
resolve-interval = "5s"

[pool.other]
balance = "sticky"
sticky = { entries = 10, ttl = "2h", ipv6-prefix = 48 }
backends = ["unix:/run/other.sock"]
health = "tcp"
passive = "off"
"#;

fn source(text: &str) -> Source {
    Source { name: "penstock.toml".into(), text: text.to_owned() }
}

/// The files that variables name.
fn file(path: &Path, _: usize) -> io::Result<Vec<u8>> {
    match path.to_str() {
        Some("/bind") => Ok(b":8080\n".to_vec()),
        Some("/backend") => Ok(b"10.0.0.11:8000\r\n".to_vec()),
        Some("/binary") => Ok(b"\xff".to_vec()),
        Some("/long") => Ok(vec![b'x'; MAX_VARIABLE_FILE + 1]),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn env(pairs: &[(&str, &str)]) -> Environment {
    let variables = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Environment { variables, read: file, ..Environment::default() }
}

fn good(text: &str, pairs: &[(&str, &str)]) -> Loaded {
    load(&source(text), &env(pairs)).unwrap_or_else(|faults| panic!("{faults}"))
}

fn bad(text: &str, pairs: &[(&str, &str)]) -> Faults {
    match load(&source(text), &env(pairs)) {
        Ok(_) => panic!("this should not load:\n{text}"),
        Err(faults) => faults,
    }
}

fn everything() -> String {
    EVERYTHING.replace(", \"X Y\".X = \"\"", "")
}

#[test]
fn the_example_of_the_design_loads_without_a_warning() {
    let loaded = good(DESIGN, &[]);
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    let config = loaded.config;
    assert_eq!(config.process.workers, Workers::Auto);
    assert_eq!(config.process.user.as_deref(), Some("penstock"));
    assert_eq!(config.process.max_connections, MaxConnections::Auto);
    assert_eq!(config.access_log.target, LogTarget::Stdout);
    assert_eq!(config.admin.unwrap().bind, BindAddress::Ip(([127, 0, 0, 1], 9900).into()));
    let [web, secure] = config.listeners.as_slice() else { panic!("two listeners") };
    assert_eq!(&*web.name, "web");
    assert_eq!(web.binds, [BindAddress::AnyIp(80), BindAddress::Unix("/run/penstock/web.sock".into())]);
    assert_eq!(web.unix_mode, 0o660);
    let Protocol::Http(http) = &web.protocol else { panic!("http") };
    assert_eq!(http.redirect_to_https, RedirectToHttps::Port(443));
    assert_eq!(http.hsts, Hsts::Off);
    let Protocol::Http(http) = &secure.protocol else { panic!("http") };
    assert_eq!(http.hsts, Hsts::IfIssuerTrusted);
    assert_eq!(http.routes[0].host, HostPattern::Exact("app.example.com".into()));
    assert_eq!(http.routes[0].action, Action::Pool(PoolId(0)));
    let pool = &config.pools[0];
    assert_eq!(pool.balance, Policy::LeastConnections);
    assert_eq!(pool.backends[1].address, BackendAddress::Unix("/run/app.sock".into()));
    assert_eq!((pool.backends[0].weight, pool.backends[1].weight), (1, 2));
    let health = pool.health.as_ref().unwrap();
    assert!(matches!(&health.check, Check::Http { path, host: None, .. } if &**path == "/healthz"));
    assert_eq!(health.rule.timeout, Duration::from_secs(1));
}

#[test]
fn the_state_directory_is_the_files_then_the_service_managers_then_none() {
    let text = "[listener.web]\nbind = \":80\"\nredirect-to-https = true\n";
    let directory = |text: &str, env: &[(&str, &str)]| good(text, env).config.process.state_directory;
    let of_systemd = ("STATE_DIRECTORY", "/var/lib/penstock:/var/lib/other");
    assert_eq!(directory(text, &[]), None);
    assert_eq!(directory(text, &[of_systemd]).as_deref(), Some(Path::new("/var/lib/penstock")));
    let own = format!("[process]\nstate-directory = \"/srv/own\"\n{text}");
    assert_eq!(directory(&own, &[of_systemd]).as_deref(), Some(Path::new("/srv/own")));
    assert_eq!(directory(text, &[("STATE_DIRECTORY", "")]), None);
}

#[test]
fn every_key_reaches_the_configuration() {
    let loaded = good(&everything(), &[]);
    let config = &loaded.config;
    assert_eq!(config.process.drain_timeout, Duration::from_secs(60));
    assert_eq!(config.process.state_directory.as_deref(), Some(Path::new("/srv/penstock")));
    assert_eq!(config.process.source_prefixes, Prefixes { ipv4: 24, ipv6: 56 });
    let web = &config.listeners[0];
    assert_eq!(web.binds[2], BindAddress::AnyIp(8081));
    assert_eq!(web.max_connections, Some(100));
    let tls = web.tls.as_ref().unwrap();
    assert_eq!(tls.ticket_keys.as_deref(), Some(std::path::Path::new("/etc/ticket-keys")));
    let Protocol::Http(http) = &web.protocol else { panic!("http") };
    assert_eq!(http.routes.len(), 5, "two hosts times two paths, and one");
    assert_eq!(http.hsts, Hsts::Always("max-age=15552000".into()));
    assert_eq!(http.limits.body, Some(1 << 20));
    assert_eq!(http.timeouts.write, Duration::from_secs(4));
    assert_eq!(http.max_requests, Some(1000));
    assert_eq!(http.edits.request.len(), 2);
    let Protocol::Tcp(tcp) = &config.listeners[1].protocol else { panic!("tcp") };
    assert_eq!(tcp.fast_close, FastClose::Both);
    let app = &config.pools[0];
    assert_eq!(app.hash_key, HashKey::Header("x-user".into()));
    assert_eq!(app.all_down, AllDown::FailOpen);
    assert_eq!(app.backends[0].max_connections, Some(7));
    assert_eq!(app.backends[1].max_connections, Some(9), "the pool's own number is the default");
    assert_eq!(app.timeouts.tunnel, Duration::from_secs(6));
    let other = &config.pools[1];
    assert_eq!(other.passive.failures, 0);
    assert_eq!(other.sticky.ipv6_prefix, 48);
    assert_eq!(other.health.as_ref().unwrap().check, Check::Tcp);
}

#[test]
fn what_is_printed_loads_again_to_an_equal_configuration() {
    for text in [DESIGN.to_owned(), everything()] {
        let first = good(&text, &[("PENSTOCK_PROCESS_WORKERS", "7"), ("PORT", "8099")]);
        let printed = first.print();
        let second = good(&printed, &[]);
        assert_eq!(format!("{:#?}", first.config), format!("{:#?}", second.config), "{printed}");
        assert_eq!(first.warnings.len(), second.warnings.len(), "{}\n{printed}", second.warnings);
    }
}

#[test]
fn each_printed_line_says_where_its_value_came_from() {
    let text = "[listener.web]\nbind = \":${PORT}\"\npool = \"app\"\n[pool.app]\nbackends = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n";
    let loaded = good(text, &[("PORT", "81"), ("PENSTOCK_POOL_APP_RETRIES", "5")]);
    let printed = loaded.print();
    for line in [
        "bind = \":81\"  # line 2, :${PORT}",
        "pool = \"app\"  # line 3",
        "protocol = \"http\"  # default",
        "retries = 5  # environment PENSTOCK_POOL_APP_RETRIES",
        "timeouts.connect = \"2s\"  # default",
        "  \"10.0.0.2:80\",  # line 5",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
    }
    assert!(!printed.contains("idle-timeout"), "keys of tcp do nothing here:\n{printed}");
}

#[test]
fn the_control_socket_is_read_from_a_file_with_faults_elsewhere() {
    let socket = |text: &str, pairs: &[(&str, &str)]| {
        let found = control_socket(&source(text), &env(pairs));
        found.map(|socket| socket.map(|socket| socket.display().to_string()))
    };
    let control = "[control]\nsocket = \"/run/c.sock\"\n";
    let named = Some("/run/c.sock".to_owned());
    for faulty in [
        "",
        "[listener.web]\nbind = 80\n",
        "[nonsense]\n",
        "[listener.web]\npool = \"none\n",
        "[x]\na = = b\n",
        "[listener.web\nbind = \":80\"\n",
        "[pool.app]\nbackends = [\n  \"10.0.0.1:80\"\n",
        "[pool.app]\nbackends = [\"10.0.0.1:80\n",
    ] {
        for text in [format!("{faulty}{control}"), format!("{control}{faulty}")] {
            let found = socket(&text, &[("PENSTOCK_NO_KEY", "x")]);
            assert_eq!(found.unwrap_or_else(|faults| panic!("{text}: {faults}")), named, "{text}");
        }
    }
    assert_eq!(socket("[listener.web]\nbind = 80\n", &[]).unwrap(), None);
    let ours = [("PENSTOCK_CONTROL_SOCKET", "/run/mine.sock"), ("NAME", "c")];
    assert_eq!(socket(control, &ours).unwrap().as_deref(), Some("/run/mine.sock"));
    assert_eq!(socket("[control]\nsocket = \"/run/${NAME}.sock\"\n", &ours[1..]).unwrap(), named);
    for unsound in [
        "[control]\nsocket = \"/run/c.sock\n",
        "[control]\nsocket = 7\n[listener.web]\nbind = 80\n",
        "[control]\nsocket = \"c.sock\"\n",
        "[control]\n",
        "[control]\nsocket = \"/run/a\"\n[control]\nsocket = \"/run/b\"\n",
        "[control\nsocket = \"/run/c.sock\"\n",
        "control {\n  socket /run/c.sock\n}\n",
    ] {
        assert!(socket(unsound, &[]).is_err(), "{unsound}");
    }
}

#[test]
fn the_form_without_a_file_is_the_same_configuration() {
    let flags = Quick {
        listen: vec![":8080".into(), "unix:/run/q.sock".into()],
        backends: vec!["10.0.0.1:80".into(), "unix:/run/app.sock,weight=2,max-connections=10".into()],
        balance: Some("two-choices".into()),
        health: Some("/healthz".into()),
        control: Some("/run/c.sock".into()),
        workers: Some("2".into()),
        ..Quick::default()
    };
    let loaded = quick(&flags, &Environment::default()).unwrap_or_else(|faults| panic!("{faults}"));
    let config = &loaded.config;
    assert_eq!(&*config.listeners[0].name, "main");
    assert_eq!(&*config.pools[0].name, "main");
    assert_eq!(
        (config.pools[0].backends[1].weight, config.pools[0].backends[1].max_connections),
        (2, Some(10))
    );
    assert!(loaded.print().contains("balance = \"two-choices\"  # --balance"), "{}", loaded.print());
    let again = good(&loaded.print(), &[]);
    assert_eq!(format!("{:?}", config), format!("{:?}", again.config));
}

#[test]
fn faults_of_flags_name_the_flag() {
    let flags = Quick {
        listen: vec!["80".into()],
        backends: vec!["app".into(), "10.0.0.1:80,wieght=2".into(), "10.0.0.2:80,weight=many".into()],
        protocol: Some("dsr".into()),
        ..Quick::default()
    };
    let faults = quick(&flags, &Environment::default()).unwrap_err();
    assert_eq!(
        faults.render(),
        "\
error: --backend: pool.main.backends[2]: \"wieght\" is not an option of a backend
  hint: ADDRESS,weight=2,max-connections=10
error: --backend: pool.main.backends[3].weight: a whole number is expected here, not a text
error: --listen: listener.main.bind[1]: \"80\" is not an address
  hint: to listen on every address write \":80\"
error: --listen: listener.main: interface is missing: the one where packets of clients come in
  hint: interface = \"eth0\"
error: --backend: pool.main.backends[1]: \"app\" has no port
  hint: write \"app:80\"
5 errors
"
    );
    let faults = quick(&Quick::default(), &Environment::default()).unwrap_err();
    assert_eq!(faults.iter().filter(|fault| fault.severity == Severity::Error).count(), 2, "{faults}");
}

#[test]
fn flags_in_the_words_of_other_programs_get_a_hint_in_flags() {
    let flags = Quick {
        listen: vec![":8080".into(), "unix:/run/q.sock;".into()],
        backends: vec!["127.0.0.1:8000 weight=5".into()],
        balance: Some("leastconn".into()),
        health: Some("healthz".into()),
        ..Quick::default()
    };
    let rendered = quick(&flags, &Environment::default()).unwrap_err().render();
    for hint in [
        "hint: write \"unix:/run/q.sock\"\n",
        "hint: write --backend 127.0.0.1:8000,weight=5\n",
        "hint: write \"least-connections\"\n",
        "hint: a path begins with /: --health /healthz\n",
    ] {
        assert!(rendered.contains(hint), "{hint}\n{rendered}");
    }
}

#[test]
fn faults_for_programs_carry_the_same_facts() {
    let faults =
        bad("[listener.web]\nbind = \":80\"\npool = \"ap\"\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n", &[]);
    let json = faults.to_json();
    assert_eq!(json["ok"], false);
    assert_eq!(json["errors"], 1);
    assert_eq!(json["file"], "penstock.toml");
    let fault = &json["faults"][0];
    assert_eq!((fault["line"].as_u64(), fault["column"].as_u64()), (Some(3), Some(8)));
    assert_eq!((fault["start"].as_u64(), fault["end"].as_u64()), (Some(35), Some(39)));
    assert_eq!(fault["path"], "listener.web.pool");
    assert_eq!(fault["message"], "no pool named \"ap\"");
    assert_eq!(fault["hint"], "did you mean \"app\"? (line 4)");
}

#[test]
fn a_file_that_is_no_text_says_where_and_a_byte_order_mark_is_no_fault() {
    let faults = Source::from_bytes("x.toml", b"[process]\n# \xff\n".to_vec()).unwrap_err();
    assert!(faults.render().contains("byte 0xff at offset 12 (line 2)"), "{faults}");
    let faults = Source::from_bytes("x.toml", vec![b'#'; config::MAX_TEXT + 1]).unwrap_err();
    assert!(faults.render().contains("at most 4 MiB"), "{faults}");
    let with_mark = format!("\u{feff}{DESIGN}");
    let source = Source::from_bytes("x.toml", with_mark.into_bytes()).unwrap();
    assert!(load(&source, &Environment::default()).is_ok());
    let crlf = DESIGN.replace('\n', "\r\n");
    good(&crlf, &[]);
}

#[test]
fn a_listener_in_front_of_another_one_is_no_circle() {
    let text = "
[listener.outer]
bind = \":443\"
tls = { certificates = \"/c\" }
pool = \"inner\"
[listener.inner]
bind = \"unix:/run/inner.sock\"
pool = \"app\"
[pool.inner]
backends = [\"unix:/run/inner.sock\"]
[pool.app]
backends = [\"10.0.0.1:80\"]
";
    assert!(good(text, &[]).warnings.is_empty());
}

#[test]
fn a_file_with_very_many_faults_is_answered_at_once_and_briefly() {
    let mut text = String::from("[listener.web]\nbind = [");
    for _ in 0..100_000 {
        text.push_str("\"nonsense\",");
    }
    text.push_str("]\n[pool.app]\n");
    for number in 0..50_000 {
        text.push_str(&format!("key{number} = 1\n"));
    }
    let faults = bad(&text, &[]);
    let rendered = faults.render();
    assert!(rendered.lines().count() < 1000, "{} lines", rendered.lines().count());
    assert!(rendered.contains("more"));
    assert!(faults.to_json()["errors"].as_u64().unwrap() > 100_000);
}

#[test]
fn large_odd_texts_are_answered() {
    let deep = "[".repeat(1 << 20);
    let long_key = "a.".repeat(1 << 19);
    let texts = [
        format!("x = {deep}"),
        format!("[{long_key}a]"),
        format!("{long_key}a = 1"),
        format!("[listener.\"{}\"]", "n".repeat(1 << 20)),
        "a = = ".repeat(1 << 17),
        "a = =\n".repeat(1 << 17),
        "a = 1\n".repeat(1 << 17),
        "[[listener.web.route]]\n".repeat(1 << 14),
        (0..1 << 15).map(|n| format!("[listener.l{n}]\n")).collect(),
        (0..1 << 14).map(|n| format!("[pool.p{n}]\nbackends = [\"p:{n}\"]\n")).collect(),
        format!(
            "[listener.web]\nbind = [{}]",
            (0..1 << 16).map(|n| format!("\":{n}\",")).collect::<String>()
        ),
        format!("[listener.web]\nbind = [{}]", "\":80\",".repeat(1 << 17)),
        format!("[process]\nuser = \"{}\"", "${A:-b}".repeat(1 << 16)),
        format!(
            "[listener.w]\nbind = \":1\"\n[[listener.w.route]]\nhost = [{}]\npath = [{}]\npool = \"p\"",
            "\"a\",".repeat(1 << 15),
            "\"/a\",".repeat(1 << 15)
        ),
    ];
    for text in texts {
        let faults = bad(&text, &[("PENSTOCK_LISTENER_WEB_BNID", "x")]);
        assert!(faults.render().len() < 1 << 20, "{}", faults.render().len());
    }
}

/// Pieces of configuration files, so that random texts get past the parser.
fn piece() -> impl Strategy<Value = String> {
    let words: Vec<&str> = vec![
        "[listener.web]\n",
        "[pool.app]\n",
        "[[listener.web.route]]\n",
        "[process]\n",
        "[admin]\n",
        "[control]\n",
        "[access-log]\n",
        "bind = \":80\"\n",
        "bind = [\"unix:/run/x\", \"*:80\"]\n",
        "pool = \"app\"\n",
        "protocol = \"tcp\"\n",
        "backends = [\"10.0.0.1:80\"]\n",
        "backends = [{ address = \"a:1\", weight = 0 }]\n",
        "health = { http = \"/\" }\n",
        "health = \"tcp\"\n",
        "tls = { certificates = \"/c\" }\n",
        "redirect-to-https = true\n",
        "host = [\"a\", \"*.b\"]\n",
        "path = \"/x\"\n",
        "redirect = \"https://{host}{path}\"\n",
        "hsts = \"1d\"\n",
        "timeouts.head = \"1s\"\n",
        "timeouts = { connect = \"0s\" }\n",
        "request-headers.set.\"X-A\" = \"${A:-b}\"\n",
        "workers = 1\n",
        "limits = { head = \"1KiB\", target = \"2KiB\" }\n",
        "hash-key = \"header:x\"\n",
        "balance = \"sticky\"\n",
        "x = 1979-05-27T07:32:00Z\n",
        "socket = \"/run/x\"\n",
        "trusted-proxies = [\"unix\", \"::/0\"]\n",
        "weight = 1e400\n",
        "a.b.c = { d = [[1], {}] }\n",
        "\"\" = nan\n",
    ];
    prop_oneof![
        6 => proptest::sample::select(words).prop_map(str::to_owned),
        1 => "[ -~\\n\\t\\r]{0,12}",
        1 => "\\PC{0,6}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_a_configuration_or_faults_that_can_be_shown(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(source) = Source::from_bytes("x", bytes) {
            match load(&source, &Environment::default()) {
                Ok(loaded) => drop(loaded.print()),
                Err(faults) => {
                    drop(faults.to_json());
                    prop_assert!(!faults.render().is_empty());
                }
            }
        }
    }

    #[test]
    fn any_mixture_of_keys_gives_faults_or_a_configuration_that_prints_and_loads_again(
        pieces in proptest::collection::vec(piece(), 0..24),
        value in "[ -~]{0,12}",
    ) {
        let text = pieces.concat();
        let env = env(&[("A", &value), ("PENSTOCK_LISTENER_WEB_UNIX_MODE", "0600")]);
        match load(&source(&text), &env) {
            Ok(loaded) => {
                let again = load(&source(&loaded.print()), &Environment::default());
                let again = again.map_err(|faults| TestCaseError::fail(format!("{faults}\n{}", loaded.print())))?;
                prop_assert_eq!(format!("{:?}", loaded.config), format!("{:?}", again.config));
            }
            Err(faults) => {
                prop_assert!(faults.has_errors());
                prop_assert!(!faults.render().chars().any(|c| c.is_control() && c != '\n'));
            }
        }
    }

    #[test]
    fn a_value_of_the_environment_is_in_no_fault(
        secret in "[a-z0-9]{10,20}[!-~]{0,4}",
        place in 0usize..14,
    ) {
        let lines = [
            "bind = \"${S}\"\npool = \"app\"", "bind = \":${S}\"\npool = \"app\"", "bind = \"unix:${S}\"\npool = \"app\"",
            "bind = \":80\"\npool = \"${S}\"", "bind = \":80\"\npool = \"app\"\nprotocol = \"${S}\"",
            "bind = \":80\"\npool = \"app\"\ntimeouts.head = \"${S}\"", "bind = \":80\"\npool = \"app\"\nlimits.head = \"${S}\"",
            "bind = \":80\"\npool = \"app\"\ntrusted-proxies = [\"${S}\"]", "bind = \":80\"\npool = \"app\"\nmax-connections = \"${S}\"",
            "bind = \":80\"\npool = \"app\"\nhsts = \"${S}\"", "bind = \":80\"\nroute = [{ host = \"/${S}\", path = \"${S}\", redirect = \"${S}\" }]",
            "bind = \":80\"\nroute = [{ method = \"/${S}\", pool = \"${S}\" }]", "bind = \":80\"\npool = \"app\"\nrequest-id-header = \"/${S}\"",
            "bind = \":80\"\npool = \"app\"\nrequest-headers = { set = { \"X-A\" = \"\\n${S}\" }, remove = [\" ${S}\"] }",
        ];
        let text = format!("[listener.web]\n{}\n[pool.app]\nbackends = [\"/${{S}}\"]\nhash-key = \"${{S}}\"\nbalance = \"hash\"\n", lines[place]);
        let faults = bad(&text, &[("S", &secret)]);
        let rendered = faults.render();
        prop_assert!(!rendered.contains(&secret[..10]), "{rendered}");
        prop_assert!(!faults.to_json().to_string().contains(&secret[..10]));
        // The same values laid over the file.
        let good = "[listener.web]\nbind = \":80\"\npool = \"app\"\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n";
        let over = format!("/{secret}");
        for name in ["PENSTOCK_LISTENER_WEB_BIND", "PENSTOCK_LISTENER_WEB_POOL", "PENSTOCK_POOL_APP_BACKENDS", "PENSTOCK_POOL_APP_BALANCE", "PENSTOCK_POOL_APP_QUEUE"] {
            let rendered = bad(good, &[(name, &over)]).render();
            prop_assert!(!rendered.contains(&secret[..10]), "{rendered}");
        }
    }
}

#[test]
fn preloading_is_one_word_and_asks_for_nothing_where_http_is_redirected() {
    let text = |hsts: &str, redirect: &str| {
        format!(
            "[listener.web]\nbind = \":80\"\n{redirect}\n[listener.secure]\nbind = \":443\"\npool = \"app\"\n\
             hsts = \"{hsts}\"\ntls = {{ certificates = \"/etc/certs\" }}\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n"
        )
    };
    let redirects = [
        "redirect-to-https = true",
        "pool = \"app\"\nroute = [{ path = \"/\", redirect = \"https://{host}{path}{query}\" }]",
    ];
    for redirect in redirects {
        let loaded = good(&text("preload", redirect), &[]);
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings.render());
        let Protocol::Http(http) = &loaded.config.listeners[1].protocol else { panic!("http") };
        assert_eq!(http.hsts.value(), Some("max-age=63072000; includeSubDomains; preload"));
    }
    assert!(!good(&text("preload", "pool = \"app\""), &[]).warnings.is_empty());
    assert!(good(&text("max-age=1; includeSubDomains", "pool = \"app\""), &[]).warnings.is_empty());
}

#[test]
fn backend_written_as_a_url_is_the_address_that_it_means() {
    let file = |backends: &str, more: &str| {
        format!("[listener.a]\nbind = \":80\"\npool = \"p\"\n[pool.p]\nbackends = [{backends}]\n{more}")
    };
    let pool = |text: &str| good(text, &[]).config.pools[0].clone();
    let plain =
        pool(&file("\"http://10.0.0.11:8000\", { address = \"http://app.internal/\", weight = 2 }", ""));
    let addresses: Vec<_> = plain.backends.iter().map(|backend| backend.address.to_string()).collect();
    assert_eq!(addresses, ["10.0.0.11:8000", "app.internal:80"]);
    assert!(plain.tls.is_none() && plain.backends[1].weight == 2);
    let text = file("\"https://app.internal\", \"https://10.0.0.11:8443/\"", "");
    let secure = pool(&text);
    assert_eq!(secure.backends[0].address.to_string(), "app.internal:443");
    assert!(secure.tls.is_some() && secure.backends[0].server_name.is_some());
    let printed = good(&text, &[]).print();
    assert!(printed.contains("tls = \"on\"  # line 5"), "{printed}");
    assert!(pool(&printed).tls.is_some(), "{printed}");
    let flags = Quick {
        listen: vec![":80".into()],
        backends: vec!["https://10.0.0.11,weight=2".into()],
        ..Quick::default()
    };
    let quick = quick(&flags, &env(&[])).unwrap().config;
    assert!(quick.pools[0].tls.is_some() && quick.pools[0].backends[0].weight == 2);
}
