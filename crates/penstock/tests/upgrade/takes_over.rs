//! What the next process has, and what the one before keeps.

use testing::client::{End, get, request};
use testing::{Client, Scripted, eventually, secs};

use crate::front::{Front, config, is_running};
use crate::many::echo;
use crate::sessions::{connect, say};

fn metric(front: &Front, name: &str) -> u64 {
    let metrics = front.server.metrics();
    let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_next_process_has_sockets_counters_and_marks_and_the_old_one_ends_with_its_last_client() {
    let backend = Scripted::answering("x");
    let mut front = Front::start(&config("", &backend.address));
    let address = front.server.address("web");
    let old = front.pid();
    for _ in 0..5 {
        assert_eq!(get(&address, "/").text(), "x");
    }
    front.server.said(&["drain", &backend.address, "--for", "1h"]);
    front.server.said(&["ready", &backend.address]);
    front.server.said(&["weight", &backend.address, "7"]);
    let mut idle = Client::connect(&address);
    assert_eq!(idle.get("/", &[]).header("connection"), None);
    const SESSIONS: &str = "penstock_listener_sessions_total{listener=\"web\"}";
    let before = metric(&front, SESSIONS);

    let answer = front.upgrade(&[]);
    assert_eq!(answer["old"]["pid"], old);
    assert_eq!(front.serving(), front.pid());
    assert!(metric(&front, SESSIONS) >= before);
    assert_eq!(front.server.backend(&backend.address)["weight_override"], 7);
    assert_eq!(get(&address, "/").text(), "x");

    // The client that was between two requests loses nothing: its next one is its last there.
    assert!(is_running(old));
    idle.send(request("GET", "/", &[], b""));
    let last = idle.response();
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert_eq!(idle.read_to_end().1, End::Closed);
    front.wait_gone(old);
    eventually("the events say it", secs(10), || {
        front.server.said(&["events"]).contains("has ended: every session of it was over").then_some(())
    });
    assert_eq!(get(&address, "/").text(), "x");
    // Six before the upgrade, two of the new process, and the last one of the old.
    eventually("all are counted", secs(10), || (metric(&front, SESSIONS) == 9).then_some(()));
}

#[test]
fn an_upgrade_can_follow_an_upgrade_and_a_check_changes_nothing() {
    let backend = Scripted::answering("x");
    let mut front = Front::start(&config("", &backend.address));
    let address = front.server.address("web");
    for _ in 0..3 {
        let checked = front.server.ctl_json(&["upgrade", "--check"]);
        assert_eq!(checked["upgraded"], false);
        assert_eq!(front.serving(), front.pid());
        let before = front.pid();
        front.upgrade(&[]);
        front.wait_gone(before);
        assert_eq!(get(&address, "/").text(), "x");
    }
    let said = front.server.said(&["events"]);
    assert!(!said.contains("another process stores its state"), "{said}");
}

#[test]
fn a_process_at_its_limit_still_passes_on_what_the_one_before_it_counts() {
    let backend = echo();
    // Sessions with a limit of bandwidth stay in their process.
    let mut front = Front::start(&format!(
        "[process]\nworkers = 2\n[control]\nsocket = \"@DIR@/control.sock\"\n[admin]\nbind = \"127.0.0.1:0\"\n\
         [access-log]\ntarget = \"off\"\n[listener.raw]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"db\"\n\
         bandwidth = {{ down = \"1MiB/s\" }}\n[pool.db]\nhealth = \"off\"\nbackends = [\"{backend}\"]\n"
    ));
    const SESSIONS: &str = "penstock_listener_sessions_total{listener=\"raw\"}";
    let address = front.server.address("raw");
    let first = front.pid();
    let mut of_first = connect(&address);
    say(&mut of_first, "first");
    front.upgrade(&["--drain-for", "1h"]);
    let second = front.pid();
    let mut of_second = connect(&address);
    say(&mut of_second, "second");
    front.upgrade(&["--drain-for", "1s"]);

    // The limit of the second process: its session is cut off, and counted.
    assert!(!matches!(std::io::Read::read(&mut of_second, &mut [0]), Ok(1)));
    eventually("it is counted", secs(20), || (metric(&front, SESSIONS) == 1).then_some(()));
    say(&mut of_first, "still");
    assert!(is_running(first) && is_running(second));
    drop(of_first);
    front.wait_gone(first);
    front.wait_gone(second);
    eventually("both are counted", secs(20), || (metric(&front, SESSIONS) == 2).then_some(()));
}
