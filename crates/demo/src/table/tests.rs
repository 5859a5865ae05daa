use hdrhistogram::Histogram;
use serde_json::json;

use super::*;

fn status(uptime: u64, requests: u64, first: &str) -> Status {
    let backend = |name: &str, state: &str| {
        json!({
            "name": name, "state": state, "state_seconds": 75, "admission": "ready", "sessions": requests / 2,
            "failures": 3, "latency": { "p50_ms": 0.25, "p99_ms": null }, "unknown": "ignored",
        })
    };
    serde_json::from_value(json!({
        "uptime_seconds": uptime,
        "connections": { "now": 4, "max": 100 },
        "degraded": [{ "subject": "pool.x", "reason": "y" }],
        "listeners": [{ "name": "web", "sessions": requests }, { "name": "secure", "sessions": 0 }],
        "pools": [{ "backends": [backend("127.0.0.1:1", first), backend("unix:/tmp/x.sock", "up")] }],
    }))
    .unwrap()
}

fn table() -> Table {
    Table::new(vec![("127.0.0.1:1".into(), "tcp-1"), ("unix:/tmp/x.sock".into(), "unix-1")])
}

fn window(answered: u64, failed: u64) -> Window {
    let mut latency = Histogram::new_with_bounds(1, 10_000_000, 3).unwrap();
    latency.record_n(500, answered).unwrap();
    Window { answered, failed, latency }
}

/// A table after two readings, with two seconds and 80 requests between them.
fn shown() -> Table {
    let mut table = table();
    let at = Instant::now();
    table.update(Sample { at, status: Ok(status(10, 100, "up")) }, Some(window(50, 1)));
    let at = at + Duration::from_secs(2);
    table.update(Sample { at, status: Ok(status(12, 180, "down")) }, Some(window(80, 0)));
    table
}

#[test]
fn rates_come_from_two_looks_and_backends_have_their_names() {
    let lines = shown().lines();
    assert_eq!(
        lines,
        [
            "",
            "front door  up 12 s, 180 requests, 40.0/s, 4 connections, 1 degraded",
            "clients     80 answered, 0 failed now, 1 in all, p50 0.50 ms, p99 0.50 ms",
            "",
            "backend     health          for  requests    req/s  failed    p50 ms    p99 ms",
            "tcp-1       down      1 min 15 s        90     20.0       3      0.25         -",
            "unix-1      up        1 min 15 s        90     20.0       3      0.25         -",
        ]
    );
}

#[test]
fn first_look_has_no_rates_and_invents_none() {
    let mut table = table();
    table.update(Sample { at: Instant::now(), status: Ok(status(1, 100, "up")) }, None);
    assert_eq!(table.line(), "demo: 100 requests, - requests/s | tcp-1 up -/s | unix-1 up -/s\n");
}

#[test]
fn line_without_a_terminal_says_what_clients_met() {
    assert_eq!(
        shown().line(),
        "demo: 180 requests, 40.0 requests/s, 0 failed, p50 0.50 ms, p99 0.50 ms \
         | tcp-1 down 20.0/s | unix-1 up 20.0/s\n"
    );
}

#[test]
fn log_gets_a_line_when_something_changed_or_after_a_minute() {
    let mut table = table();
    let start = Instant::now();
    let look = |table: &mut Table, seconds: u64, requests: u64, first: &str| {
        let at = start + Duration::from_secs(seconds);
        table.update(Sample { at, status: Ok(status(seconds, requests, first)) }, None);
        table.news(at).is_some()
    };
    assert!(look(&mut table, 5, 0, "up"), "the first look");
    assert!(!look(&mut table, 10, 0, "up"), "nothing happened");
    assert!(look(&mut table, 15, 0, "down"), "a backend failed");
    assert!(look(&mut table, 20, 8, "down"), "somebody came");
    assert!(!look(&mut table, 75, 8, "down"), "nothing happened");
    assert!(look(&mut table, 80, 8, "down"), "still there");
}

#[test]
fn table_is_drawn_over_the_one_before() {
    let mut table = shown();
    let first = table.draw();
    assert!(!first.contains('A'), "nothing to go up over yet");
    let second = table.draw();
    assert!(second.starts_with("\x1b[?7l\x1b[7A"), "{second:?}");
    table.note("one".into());
    assert!(table.draw().starts_with("\x1b[?7l\x1b[7A"), "the table before had 7 lines");
    assert!(table.draw().starts_with("\x1b[?7l\x1b[9A"), "a blank line and the note are new");
}

#[test]
fn no_line_is_wider_than_the_terminal_whatever_the_numbers() {
    let mut huge = status(u64::MAX, u64::MAX, "ejected");
    huge.pools[0].backends[0].name = "unix:/a/very/long/path/".repeat(20);
    huge.pools[0].backends[1].failures = u64::MAX;
    huge.listeners.truncate(1);
    let mut table = table();
    table.update(Sample { at: Instant::now(), status: Ok(huge) }, None);
    table.note("n".repeat(500));
    assert!(table.lines().iter().all(|line| line.chars().count() <= WIDTH));
}

#[test]
fn trouble_is_shown_with_the_last_known_backends_and_cannot_steer_the_terminal() {
    let mut table = shown();
    table.update(Sample { at: Instant::now(), status: Err("gone\x1b[2J".into()) }, None);
    let lines = table.lines();
    assert!(lines.contains(&"no status   gone\u{fffd}[2J".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("tcp-1 ")));
}

#[test]
fn only_the_last_notes_stay() {
    let mut table = table();
    (0..10).for_each(|number| table.note(format!("note {number}")));
    let lines = table.lines();
    let notes: Vec<_> = lines.iter().filter(|line| line.starts_with("note")).collect();
    assert_eq!(notes, ["note 6", "note 7", "note 8", "note 9"]);
}
