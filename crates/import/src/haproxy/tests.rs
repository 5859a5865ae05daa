use config::types::Protocol;
use config::{Environment, Source};

use super::*;
use crate::Effect;

fn all_here(_: NewKey) -> State {
    State::Here
}

fn good(text: &str) -> Translation {
    file("haproxy.cfg", text).unwrap_or_else(|faults| panic!("{faults}"))
}

fn parse(toml: &str) -> config::Config {
    let source = Source { name: "haproxy".into(), text: toml.to_owned() };
    match config::load(&source, &Environment::default()) {
        Ok(loaded) => loaded.config,
        Err(faults) => panic!("{toml}\n{}", faults.render()),
    }
}

fn notes(translation: &Translation, effect: Effect) -> Vec<String> {
    translation.notes.iter().filter(|note| note.effect == effect).map(ToString::to_string).collect()
}

const USUAL: &str = "\
global
    log /dev/log local0
    maxconn 4096
    user haproxy
    daemon

defaults
    mode http
    option httplog
    timeout connect 5s
    timeout client 50000
    timeout server 1m

frontend web
    bind *:80
    bind :443 ssl crt /etc/haproxy/certs/ alpn h2,http/1.1
    option forwardfor
    http-request redirect scheme https code 301 unless { ssl_fc }
    acl is_api hdr(host) -i api.example.com api.example.org
    acl v1 path_beg /v1/
    use_backend api if is_api v1
    use_backend static if { path_beg /static } or { hdr_end(host) .cdn.example.com }
    default_backend app

backend app
    balance leastconn
    option httpchk GET /healthz
    http-check expect status 200
    server a 10.0.0.1:8000 check inter 3s fall 2 weight 10 maxconn 50
    server b unix@/run/b.sock check

backend api
    balance source
    server a 10.0.0.3:8000

backend static
    server a 10.0.0.4:8000
";

#[test]
fn a_usual_file_is_translated_as_a_whole() {
    let translation = good(USUAL);
    assert_eq!(notes(&translation, Effect::Missing), [""; 0]);
    let config = parse(&translation.toml);
    let names: Vec<_> = config.listeners.iter().map(|listener| &*listener.name).collect();
    assert_eq!(names, ["web", "web-tls"]);
    let Protocol::Http(http) = &config.listeners[1].protocol else { panic!("{:?}", config.listeners[1]) };
    // One with two hosts counts twice.
    assert_eq!(http.routes.len(), 4, "{}", translation.toml);
    for part in [
        "redirect-to-https = true",
        "tls.certificates = \"/etc/haproxy/certs\"",
        "host = [\"api.example.com\", \"api.example.org\"]\npath = \"/v1/\"\npool = \"api\"",
        "host = \"*.cdn.example.com\"",
        "{ address = \"10.0.0.1:8000\", weight = 10, max-connections = 50 }",
        "health = { http = \"/healthz\", expect = \"200\", interval = \"3s\", timeout = \"3s\", fall = 2 }",
        "timeouts = { connect = \"5s\", response = \"60s\", body = \"60s\" }",
    ] {
        assert!(translation.toml.contains(part), "{part}\n{}", translation.toml);
    }
    let dropped = notes(&translation, Effect::Dropped);
    assert!(
        dropped.iter().any(|note| note.starts_with("dropped: haproxy.cfg:5: `daemon`: penstock stays")),
        "{dropped:#?}"
    );
}

#[test]
fn two_conditions_that_can_both_match_are_missing_where_the_second_is_more_specific() {
    let text = |rules: &str| {
        format!(
            "frontend f\n mode http\n bind :80\n acl is_api path_beg /api/\n acl is_blog hdr(host) blog.example\n \
             {rules}default_backend app\nbackend app\n server a 10.0.0.1:80\nbackend api\n server a 10.0.0.2:80\n\
             backend blog\n server a 10.0.0.3:80\n"
        )
    };
    let first = good(&text("use_backend api if is_api\n use_backend blog if is_blog\n "));
    assert_eq!(
        notes(&first, Effect::Missing),
        [
            "missing: haproxy.cfg:7: `use_backend blog if is_blog`: what haproxy.cfg:6 matches too goes there in HAProxy, \
          which takes the first match, and here to this one, which is more specific: add conditions until only one of \
          both matches"
        ]
    );
    parse(&first.toml);
    let last = good(&text("use_backend blog if is_blog\n use_backend api if is_api\n "));
    assert_eq!(notes(&last, Effect::Missing), [""; 0]);
}

#[test]
fn what_has_no_translation_is_named_with_its_line() {
    let text = "frontend f\n mode http\n bind :80\n stick-table type ip size 1m\n http-request set-header X-A b\n \
                acl bad src 10.0.0.0/8\n use_backend app if bad\n use_backend app if !x\n default_backend app\n \
                http-request redirect location / if bad\nbackend app\n server a 10.0.0.1:80 cookie a\n option nolinger\n\
                cache c\n total-max-size 4\n";
    let translation = good(text);
    let missing = notes(&translation, Effect::Missing);
    for (line, part) in [
        (4, "`stick-table type ip size 1m`"),
        (5, "`http-request set-header X-A b`"),
        (7, "src is neither a host nor the start of a path"),
        (8, "a route has no \"not\""),
        (10, "`http-request redirect location / if bad`"),
        (12, "`cookie a`"),
        (13, "`option nolinger`"),
        (14, "`cache c`"),
    ] {
        let begins = format!("missing: haproxy.cfg:{line}: ");
        assert!(
            missing.iter().any(|note| note.starts_with(&begins) && note.contains(part)),
            "{line}: {missing:#?}"
        );
    }
    assert_eq!(missing.len(), 8, "{missing:#?}");
    parse(&translation.toml);
}

#[test]
fn a_backend_that_is_not_there_is_named_with_its_line() {
    let text = "frontend f\n bind :80\n default_backend nope\nbackend a\n server s 10.0.0.1:80\n";
    let faults = translate("haproxy.cfg", text, all_here).unwrap_err();
    let told: Vec<_> = faults.0.iter().map(|fault| (fault.place.as_str(), fault.message.as_str())).collect();
    assert_eq!(told[0], ("haproxy.cfg:3", "there is no backend nope with servers"));
    assert_eq!(told.last().unwrap().0, "haproxy.cfg");
}

#[test]
fn tcp_has_one_idle_timeout_and_no_routes() {
    let text = "defaults\n mode tcp\n timeout client 1h\n timeout server 2h\nlisten db\n bind 127.0.0.1:5432\n \
                server a 10.0.0.1:5432 check\n server b 10.0.0.2:5432 check backup send-proxy\n";
    let translation = translate("haproxy.cfg", text, all_here).unwrap();
    for part in [
        "protocol = \"tcp\"",
        "idle-timeout = \"7200s\"",
        "health = { tcp = true, interval = \"2s\", timeout = \"2s\" }",
        "fallback = \"db-backup\"",
        "[pool.db-backup]",
        "send-proxy = \"v1\"",
    ] {
        assert!(translation.toml.contains(part), "{part}\n{}", translation.toml);
    }
    parse(&good(text).toml);
}

#[test]
fn every_fault_of_a_file_is_told_with_its_line() {
    let text = "bind :80\nfrontend\nfrontend f\n bind nowhere\n mode ftp\n timeout client soon\nbackend b\n server a\n \
                server b host\n retries many\n acl 'x\n";
    let faults = file("haproxy.cfg", text).unwrap_err().to_string();
    for line in [1, 2, 4, 5, 6, 8, 9, 10, 11] {
        assert!(faults.contains(&format!("error: haproxy.cfg:{line}: ")), "{line}: {faults}");
    }
    let faults = file("haproxy.cfg", "global\n maxconn 5\n").unwrap_err().to_string();
    assert!(faults.contains("there is no frontend"), "{faults}");
}

#[test]
fn names_and_certificates_take_a_form_that_we_have() {
    let text = "frontend a.b\n mode http\n bind :443 ssl crt /c/site.pem\n default_backend x.y\nfrontend o\n mode http\n \
                bind :444 ssl crt /c/a.pem crt /c/b.pem\n default_backend x:y\nbackend x.y\n server a h:1\nbackend x:y\n \
                server a h:2\n";
    let translation = good(text);
    for part in [
        "[listener.a_b]",
        "pool = \"x_y\"",
        "pool = \"x_y-2\"",
        "tls.default = \"site\"",
        "/c/a.pem, /c/b.pem",
    ] {
        assert!(translation.toml.contains(part), "{part}\n{}", translation.toml);
    }
    parse(&translation.toml);
}

#[test]
fn a_page_of_statistics_alone_is_dropped_and_each_note_is_told_once() {
    let text = format!("{USUAL}listen stats\n bind :8404\n stats enable\n stats uri /\n")
        .replace(" option forwardfor\n", "");
    let translation = good(&text);
    assert_eq!(notes(&translation, Effect::Missing), [""; 0]);
    let dropped = notes(&translation, Effect::Dropped);
    assert!(dropped.iter().any(|note| note.contains("nothing but a page of statistics")), "{dropped:#?}");
    let changed = notes(&translation, Effect::Changed);
    assert_eq!(changed.iter().filter(|note| note.contains("X-Forwarded-*")).count(), 1, "{changed:#?}");
    // The comment is at both listeners.
    assert_eq!(translation.toml.matches("backends get X-Forwarded-*").count(), 2, "{}", translation.toml);
    assert!(!translation.toml.contains("8404"), "{}", translation.toml);
    parse(&translation.toml);
}
