//! `retry-budget`: in an outage of a whole pool, retries do not multiply the load.

use std::sync::atomic::Ordering::SeqCst;

use testing::{Scripted, Server, eventually, port, secs};

/// A backend that closes every connection after the request.
fn closing() -> Scripted {
    Scripted::start(|talk| drop(talk.request()))
}

/// An address at which nothing listens.
fn gone() -> String {
    format!("127.0.0.1:{}", port::free())
}

/// A front door with one worker, whose budget is one.
fn front(protocol: &str, backends: &[String], pool: &str) -> Server {
    Server::start(&format!(
        "[process]\nworkers = 1\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"stdout\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\npool = \"app\"\n\
         [pool.app]\nbackends = {backends:?}\npassive = \"off\"\n{pool}\n"
    ))
}

fn attempts(all: &[Scripted]) -> usize {
    all.iter().map(|backend| backend.accepted.load(SeqCst)).sum()
}

fn refused(server: &Server) -> u64 {
    server.ctl_json(&["status"])["pools"][0]["retries_refused"].as_u64().unwrap()
}

#[test]
fn retries_stay_within_their_share_of_the_requests_and_what_is_refused_is_said() {
    let all = [closing(), closing(), closing()];
    let addresses: Vec<String> = all.iter().map(|backend| backend.address.clone()).collect();
    let server = front("http", &addresses, "retry-budget = 20\nretry-least-rate = 0");
    for _ in 0..100 {
        assert_eq!(server.client("web").get("/", &[]).status, 502);
    }
    assert_eq!(attempts(&all), 120, "a fifth of the requests was tried again");
    // Each request is tried again at most once here, and the others end with their first failure.
    assert_eq!(refused(&server), 100, "every request ends when its next retry is refused");
    let shown = server.ctl(&["status"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("100 retries refused"), "{shown:?}");
    let metrics = server.metrics();
    assert!(metrics.contains("penstock_pool_retries_refused_total{pool=\"app\"} 100\n"), "{metrics}");
    let events = String::from_utf8_lossy(&server.ctl(&["events"]).stdout).into_owned();
    assert_eq!(events.matches("the retry budget is spent").count(), 1, "{events}");
    // What has failed is said, not that it was not tried again.
    eventually("every request has its line", secs(10), || {
        (server.stdout.count(" 502 backend-closed ") == 100).then_some(())
    });
}

#[test]
fn a_few_retries_are_allowed_whatever_the_number_of_requests_is() {
    let all = [closing(), closing(), closing()];
    let addresses: Vec<String> = all.iter().map(|backend| backend.address.clone()).collect();
    let server = front("http", &addresses, "retry-budget = 1\nretry-least-rate = 1");
    for _ in 0..5 {
        assert_eq!(server.client("web").get("/", &[]).status, 502);
    }
    assert_eq!(attempts(&all), 15);
    assert_eq!(refused(&server), 0);
}

#[test]
fn connections_have_the_same_budget() {
    let addresses = [gone(), gone(), gone()];
    let server = front("tcp", &addresses, "retry-budget = 50\nretry-least-rate = 0");
    for _ in 0..20 {
        server.client("web").read_to_end();
    }
    let failures: u64 =
        addresses.iter().map(|address| server.backend(address)["failures"].as_u64().unwrap()).sum();
    assert_eq!(failures, 30);
    assert_eq!(refused(&server), 20);
}

#[test]
fn a_session_whose_retry_is_refused_goes_to_the_fallback_only_if_nothing_was_sent() {
    let sorry = Scripted::answering("sorry");
    let rules = format!(
        "retry-budget = 0\nretry-least-rate = 0\nfallback = \"sorry\"\n[pool.sorry]\nbackends = [\"{}\"]",
        sorry.address
    );
    let unreachable = [gone(), gone()];
    let server = front("http", &unreachable, &rules);
    for _ in 0..4 {
        assert_eq!(server.client("web").get("/", &[]).text(), "sorry");
    }
    assert_eq!(refused(&server), 4, "each left after its first attempt");
    let server = front("tcp", &unreachable, &rules);
    let mut client = server.client("web");
    assert_eq!(client.get("/", &[]).text(), "sorry");
    assert_eq!(refused(&server), 1);
    let taken = [closing(), closing()];
    let server = front("http", &taken.each_ref().map(|backend| backend.address.clone()), &rules);
    assert_eq!(server.client("web").get("/", &[]).status, 502, "the backend may have done what it was asked");
    assert_eq!((attempts(&taken), refused(&server)), (1, 1));
}
