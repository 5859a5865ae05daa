//! The picture of `penstock ctl top`: the state as lines of at most so many columns and rows. Text from the server is
//! escaped here: it may come from peers.

use std::time::Duration;

use serde_json::Value;
use text::terminal::line;
use text::units;

use super::state::{Focus, Mode, Size, View, text};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) look: Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Title,
    Selected,
}

/// Most listeners that have a line.
const LISTENERS: usize = 4;

/// Lines beside the tables: the head, three titles, and the last line.
const AROUND: usize = 5;

/// The picture as text, without blank lines, trailing blanks and the line that names keys.
pub(super) fn picture(view: &View, size: Size) -> String {
    let mut lines = lines(view, size);
    lines.pop();
    let texts = lines.iter().map(|line| line.text.trim_end()).filter(|text| !text.is_empty());
    texts.map(|text| format!("{text}\n")).collect()
}

/// The lines from the top to the bottom of the screen.
pub(super) fn lines(view: &View, size: Size) -> Vec<Line> {
    let waits: Vec<_> =
        view.status["pending"]["lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let room = size.height.saturating_sub(AROUND + waits.len());
    let listeners = view.status["listeners"].as_array().map_or(0, Vec::len).min(LISTENERS).min(room / 4);
    let backends = view.backends.len().min((room - listeners) / 3);
    let sessions = room - listeners - backends;
    let mut all = vec![Line { text: head(&view.status), look: Look::Title }];
    all.extend(waits.iter().map(|waits| plain_line(line(waits))));
    all.push(title(LISTENER, size));
    let rows = view.status["listeners"].as_array().into_iter().flatten().take(listeners);
    all.extend(rows.map(|row| plain_line(cells(LISTENER, row, size))));
    all.push(title(BACKEND, size));
    let choice = Choice { at: view.backend, has_focus: view.focus == Focus::Backends };
    let rows: Vec<_> = view.backends.iter().map(|backend| with_pool(&backend.value, &backend.pool)).collect();
    all.extend(page(&rows, backends, choice, |row| cells(BACKEND, row, size)));
    all.push(title(SESSION, size));
    let choice = Choice { at: view.session, has_focus: view.focus == Focus::Sessions };
    let shown = page(&view.sessions, sessions, choice, |row| cells(SESSION, row, size));
    all.extend(shown);
    all.truncate(size.height.saturating_sub(1));
    all.resize(size.height.saturating_sub(1), plain_line(String::new()));
    all.push(Line { text: last(view), look: Look::Title });
    for one in &mut all {
        one.text = fitted(&one.text, size.width);
    }
    all
}

#[derive(Clone, Copy)]
struct Choice {
    at: usize,
    has_focus: bool,
}

/// The rows around the selected one.
fn page(rows: &[Value], room: usize, choice: Choice, show: impl Fn(&Value) -> String) -> Vec<Line> {
    let first = match room {
        0 => return Vec::new(),
        room => (choice.at / room) * room,
    };
    let shown = rows.iter().enumerate().skip(first).take(room);
    let line = |(at, row): (usize, &Value)| Line {
        text: show(row),
        look: if choice.has_focus && at == choice.at { Look::Selected } else { Look::Plain },
    };
    shown.map(line).collect()
}

fn plain_line(text: String) -> Line {
    Line { text, look: Look::Plain }
}

fn with_pool(backend: &Value, pool: &str) -> Value {
    let mut row = backend.clone();
    row["pool"] = Value::from(pool);
    row
}

fn head(status: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let connections = &status["connections"];
    let up = units::duration(Duration::from_secs(number(&status["uptime_seconds"])));
    let degraded = match status["degraded"].as_array().map_or(0, Vec::len) {
        0 => String::new(),
        some => format!(", {some} degraded (ctl status)"),
    };
    format!(
        "penstock {}  pid {}  {} for {up}  {} of {} connections{degraded}",
        line(text(status, "version")),
        number(&status["pid"]),
        line(text(status, "phase")),
        number(&connections["now"]),
        number(&connections["max"]),
    )
}

fn last(view: &View) -> String {
    match &view.mode {
        Mode::Type(typed) => format!("listener, backend or client's network: {}_", line(typed)),
        Mode::Ask { question, .. } => format!("{question} y/n"),
        Mode::Look if !view.said.is_empty() => line(&view.said),
        Mode::Look => {
            let shown = match (view.sessions.len() as u64, view.matched) {
                (shown, all) if shown < all => format!("{shown} of {all}"),
                (_, all) => all.to_string(),
            };
            let noun = if view.matched == 1 { "session" } else { "sessions" };
            let filter = match view.filter.as_str() {
                "" => String::new(),
                filter => format!(" with {}", line(filter)),
            };
            format!(
                "{shown} {noun}{filter} by {}  q end  s sort  / filter  k end it  d drain  Tab switch",
                view.sort()
            )
        }
    }
}

/// A column of a table.
struct Column {
    title: &'static str,
    width: usize,
    side: Side,
    /// Narrowest screen that has it.
    from: usize,
    cell: fn(&Value) -> String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// On the left, and as wide as the others leave room for.
    Rest,
}

const LISTENER: &[Column] = &[
    Column { title: "LISTENER", width: 14, side: Side::Rest, from: 0, cell: |row| line(text(row, "name")) },
    Column {
        title: "PROTOCOL",
        width: 15,
        side: Side::Left,
        from: 0,
        cell: |row| line(text(row, "protocol")),
    },
    Column { title: "OPEN", width: 8, side: Side::Right, from: 0, cell: |row| count(&row["connections"]) },
    Column { title: "SESSIONS", width: 10, side: Side::Right, from: 0, cell: |row| count(&row["sessions"]) },
    Column { title: "IN", width: 6, side: Side::Right, from: 60, cell: |row| size(&row["bytes_in"]) },
    Column { title: "OUT", width: 6, side: Side::Right, from: 60, cell: |row| size(&row["bytes_out"]) },
    Column {
        title: "P99 MS",
        width: 8,
        side: Side::Right,
        from: 70,
        cell: |row| decimal(&row["latency"]["p99_ms"]),
    },
];

const BACKEND: &[Column] = &[
    Column { title: "BACKEND", width: 14, side: Side::Rest, from: 0, cell: |row| line(text(row, "name")) },
    Column { title: "POOL", width: 12, side: Side::Left, from: 60, cell: |row| line(text(row, "pool")) },
    Column { title: "STATE", width: 9, side: Side::Left, from: 0, cell: state },
    Column { title: "OPEN", width: 8, side: Side::Right, from: 0, cell: |row| count(&row["in_flight"]) },
    Column { title: "SESSIONS", width: 10, side: Side::Right, from: 0, cell: |row| count(&row["sessions"]) },
    Column { title: "FAILED", width: 8, side: Side::Right, from: 70, cell: |row| count(&row["failures"]) },
    Column {
        title: "P99 MS",
        width: 8,
        side: Side::Right,
        from: 80,
        cell: |row| decimal(&row["latency"]["p99_ms"]),
    },
];

const SESSION: &[Column] = &[
    Column { title: "ID", width: 7, side: Side::Right, from: 0, cell: number },
    Column { title: "CLIENT", width: 21, side: Side::Left, from: 0, cell: |row| line(text(row, "client")) },
    Column {
        title: "LISTENER",
        width: 10,
        side: Side::Left,
        from: 100,
        cell: |row| line(text(row, "listener")),
    },
    Column {
        title: "PROTOCOL",
        width: 10,
        side: Side::Left,
        from: 100,
        cell: |row| line(text(row, "protocol")),
    },
    Column { title: "OPEN", width: 4, side: Side::Right, from: 120, cell: |row| count(&row["requests"]) },
    Column { title: "BACKEND", width: 10, side: Side::Rest, from: 0, cell: backends },
    Column { title: "BYTES", width: 6, side: Side::Right, from: 0, cell: bytes },
    Column { title: "/S", width: 6, side: Side::Right, from: 50, cell: |row| size(&row["rate"]) },
    Column { title: "AGE", width: 4, side: Side::Right, from: 60, cell: |row| time(&row["age_seconds"]) },
    Column { title: "IDLE", width: 4, side: Side::Right, from: 110, cell: |row| time(&row["idle_seconds"]) },
    Column {
        title: "RTT MS",
        width: 6,
        side: Side::Right,
        from: 80,
        cell: |row| decimal(&row["client_tcp"]["rtt_ms"]),
    },
    Column { title: "RETR", width: 4, side: Side::Right, from: 80, cell: retransmits },
];

fn state(row: &Value) -> String {
    match text(row, "admission") {
        "draining" => "draining".to_owned(),
        _ => line(text(row, "state")),
    }
}

fn backends(row: &Value) -> String {
    let all = row["backends"].as_array().map_or(&[][..], Vec::as_slice);
    match all {
        [] => "-".to_owned(),
        [one] => line(text(one, "name")),
        [first, rest @ ..] => format!("{} +{}", line(text(first, "name")), rest.len()),
    }
}

fn bytes(row: &Value) -> String {
    let number = |key: &str| row[key].as_u64().unwrap_or(0);
    size(&Value::from(number("bytes_in").saturating_add(number("bytes_out"))))
}

fn retransmits(row: &Value) -> String {
    let of = |side: &str| row[side]["retransmits"].as_u64();
    match (of("client_tcp"), of("backend_tcp")) {
        (None, None) => "-".to_owned(),
        (client, backend) => client.unwrap_or(0).saturating_add(backend.unwrap_or(0)).to_string(),
    }
}

fn count(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// The number of a session; of a long one, as flows of UDP have it, the end, in which they differ.
fn number(row: &Value) -> String {
    let number = count(&row["id"]);
    match number.len().checked_sub(6) {
        Some(cut @ 2..) => format!("~{}", &number[cut..]),
        _ => number,
    }
}

fn decimal(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(number) if number >= 100.0 => format!("{number:.0}"),
        Some(number) if number >= 1.0 => format!("{number:.1}"),
        Some(number) => format!("{number:.2}"),
    }
}

/// Bytes in at most five characters: `999`, `1.2K`, `34M`.
fn size(value: &Value) -> String {
    let Some(count) = value.as_u64() else { return "-".to_owned() };
    let (mut number, mut units) = (count as f64, "KMGTPE".chars());
    let mut unit = None;
    while number >= 999.5 {
        number /= 1024.0;
        unit = units.next();
    }
    match unit {
        None => count.to_string(),
        Some(unit) if number < 9.95 => format!("{number:.1}{unit}"),
        Some(unit) => format!("{number:.0}{unit}"),
    }
}

/// A time in at most four characters: `59s`, `12m`, `23h`, `365d`.
fn time(value: &Value) -> String {
    let Some(seconds) = value.as_f64() else { return "-".to_owned() };
    match seconds.max(0.0) as u64 {
        seconds if seconds < 60 => format!("{seconds}s"),
        seconds if seconds < 3600 => format!("{}m", seconds / 60),
        seconds if seconds < 86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

fn title(columns: &[Column], size: Size) -> Line {
    Line { text: joined(columns, size, |column| column.title.to_owned()), look: Look::Title }
}

fn cells(columns: &[Column], row: &Value, size: Size) -> String {
    joined(columns, size, |column| (column.cell)(row))
}

fn joined(columns: &[Column], size: Size, cell: impl Fn(&Column) -> String) -> String {
    let shown = || columns.iter().filter(|column| column.from <= size.width);
    let fixed: usize =
        shown().filter(|column| column.side != Side::Rest).map(|column| column.width + 1).sum();
    let mut out = String::new();
    for column in shown() {
        let width = match column.side {
            Side::Rest => size.width.saturating_sub(fixed).max(column.width),
            Side::Left | Side::Right => column.width,
        };
        let text = cell(column);
        let text = fitted(&text, width);
        let pad = " ".repeat(width - columns_of(&text));
        let (before, after) =
            if column.side == Side::Right { (pad.as_str(), "") } else { ("", pad.as_str()) };
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&format!("{before}{text}{after}"));
    }
    out
}

/// Columns that a text takes at most: characters that are not ASCII may take two.
fn columns_of(text: &str) -> usize {
    text.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum()
}

/// Cuts a text to so many columns.
fn fitted(text: &str, width: usize) -> String {
    if columns_of(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let mut cut: String = text
        .chars()
        .take_while(|c| {
            let takes = if c.is_ascii() { 1 } else { 2 };
            let fits = takes <= left;
            left = left.saturating_sub(takes);
            fits
        })
        .collect();
    if width > 0 {
        cut.push('~');
    }
    cut
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::state::Key;
    use super::*;

    const SMALL: Size = Size { width: 80, height: 24 };

    fn view(count: u64) -> View {
        let mut view = View::default();
        view.take_status(json!({
            "version": "1.2.3", "pid": 77, "phase": "serving", "uptime_seconds": 3700,
            "connections": { "now": 3, "max": 10_000 }, "degraded": [],
            "listeners": [{ "name": "web", "protocol": "http", "connections": 3, "sessions": 40, "bytes_in": 1_300_000,
                "bytes_out": 12, "latency": { "p99_ms": 12.34 } }],
            "pools": [{ "name": "app", "backends": [{ "name": "10.0.0.1:8000", "state": "up", "admission": "ready",
                "in_flight": 2, "sessions": 40, "failures": 1, "latency": { "p99_ms": 0.5 } }] }],
        }));
        let session = |id: u64| {
            json!({ "id": id, "client": "203.0.113.200:54321", "listener": "web", "protocol": "http/1.1", "requests": 1,
                "backends": [{ "pool": "app", "name": "10.0.0.1:8000" }], "bytes_in": 1_000_000, "bytes_out": 48_576,
                "rate": 2048, "age_seconds": 61.5, "idle_seconds": 0.2,
                "client_tcp": { "rtt_ms": 0.125, "retransmits": 3 }, "backend_tcp": { "rtt_ms": 1.0, "retransmits": 4 } })
        };
        let all: Vec<_> = (1..=count).map(session).collect();
        view.take_sessions(json!({ "matched": count + 5, "sessions": all }));
        view
    }

    #[test]
    fn a_small_terminal_has_everything_of_a_session() {
        let view = view(2);
        let shown = lines(&view, SMALL);
        let lines: Vec<&str> = shown.iter().map(|line| line.text.trim_end()).collect();
        assert_eq!(lines.len(), 24, "{lines:#?}");
        assert_eq!(lines[0], "penstock 1.2.3  pid 77  serving for 1 h 1 min  3 of 10000 connections");
        let title = lines.iter().position(|line| line.contains("CLIENT")).unwrap();
        assert_eq!(
            lines[title],
            "     ID CLIENT                BACKEND              BYTES     /S  AGE RTT MS RETR"
        );
        assert_eq!(
            lines[title + 1],
            "      1 203.0.113.200:54321   10.0.0.1:8000         1.0M   2.0K   1m   0.12    7"
        );
        assert!(lines[23].starts_with("2 of 7 sessions by age  q end"), "{lines:#?}");
        let text = picture(&view, SMALL);
        assert!(text.lines().count() == 8 && !text.contains("q end"), "{text}");
    }

    #[test]
    fn long_numbers_of_sessions_are_told_apart() {
        let number = |id: u64| number(&json!({ "id": id }));
        let all = [9_999_999, 10_000_000_000_001, 10_000_000_000_023].map(number);
        assert_eq!(all, ["9999999", "~000001", "~000023"]);
    }

    #[test]
    fn what_waits_for_a_confirmation_is_on_the_screen() {
        let mut view = view(2);
        let mut status = view.status.clone();
        status["pending"] = json!({ "lines": ["change 10 of root is undone in 24 s unless confirmed"] });
        view.take_status(status);
        let shown = lines(&view, SMALL);
        assert_eq!(shown.len(), 24);
        assert_eq!(shown[1].text, "change 10 of root is undone in 24 s unless confirmed");
    }

    #[test]
    fn no_line_is_longer_and_no_picture_higher_than_the_screen() {
        let mut view = view(300);
        view.say(&"w\u{4e16}".repeat(200));
        for width in [0, 1, 10, 40, 80, 81, 119, 120, 300] {
            for height in [0, 1, 2, 5, 8, 24, 60] {
                let size = Size { width, height };
                let lines = lines(&view, size);
                assert!(lines.len() <= height.max(1), "{size:?}");
                for line in &lines {
                    assert!(columns_of(&line.text) <= width, "{size:?}: {:?}", line.text);
                }
            }
        }
    }

    #[test]
    fn the_selected_line_is_always_on_the_screen() {
        let mut view = view(300);
        for key in [Key::End, Key::PageUp, Key::Up, Key::Home, Key::PageDown] {
            view.key(key, SMALL);
            let lines = lines(&view, SMALL);
            let selected: Vec<_> = lines.iter().filter(|line| line.look == Look::Selected).collect();
            assert_eq!(selected.len(), 1, "{key:?}");
            let id: usize = selected[0].text.split_whitespace().next().unwrap().parse().unwrap();
            assert_eq!(id, view.session + 1);
        }
    }

    #[test]
    fn text_of_peers_cannot_move_the_cursor() {
        let evil = "a\u{1b}[2J\u{9b}31m\r\n\u{202e}b";
        let mut view = view(0);
        view.take_status(json!({
            "version": evil, "phase": evil, "listeners": [{ "name": evil, "protocol": evil }],
            "pools": [{ "name": evil, "backends": [{ "name": evil, "state": evil }] }],
        }));
        view.take_sessions(json!({ "matched": 1, "sessions": [
            { "id": 1, "client": evil, "listener": evil, "protocol": evil, "backends": [{ "name": evil }] }] }));
        let check = |view: &View| {
            for line in lines(view, Size { width: 200, height: 30 }) {
                assert!(line.text.chars().all(text::terminal::is_printable), "{line:?}");
            }
        };
        check(&view);
        view.fail(evil);
        check(&view);
        for key in [Key::Char('k'), Key::Escape, Key::Tab, Key::Char('d'), Key::Escape, Key::Char('/')] {
            view.key(key, SMALL);
            check(&view);
        }
        view.key(Key::Char('\u{202e}'), SMALL);
        check(&view);
    }

    #[test]
    fn numbers_are_short() {
        for (bytes, short) in [(0, "0"), (999, "999"), (1000, "1.0K"), (35_000, "34K"), (u64::MAX, "16E")] {
            assert_eq!(size(&json!(bytes)), short);
        }
        for (seconds, short) in [(0.9, "0s"), (60.0, "1m"), (7_300.0, "2h"), (400_000.0, "4d")] {
            assert_eq!(time(&json!(seconds)), short);
        }
        assert_eq!((size(&Value::Null), time(&Value::Null)), ("-".to_owned(), "-".to_owned()));
    }
}
