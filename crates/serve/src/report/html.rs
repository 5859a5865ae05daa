//! The status page: the report of `penstock ctl status` and the last events as HTML, for a browser, a telephone, lynx.
//!
//! It has no script, loads nothing and refreshes itself. Every text from outside goes through `Text`.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};
use std::time::Duration;

use state::events::{Event, Level};
use text::terminal::is_printable;
use text::units;

use super::tables::{condition, milliseconds, rank, rare};
use super::{BackendReport, ListenerReport, Phase, PoolReport, Status};

/// What a browser may do with the page: nothing but use its own style. The hash is that of `STYLE` (CSP3 section 2.3.1).
pub const POLICY: &str = "default-src 'none'; style-src 'sha256-P5d9CDB8UTRswsXXawwnRg/dOgGc7vtE41kXKchOf1E='; base-uri 'none'; form-action 'none'; \
                          frame-ancestors 'none'";

/// Seconds after which the page loads itself again.
const REFRESH: u32 = 5;

const STYLE: &str = "\
body{font:15px/1.4 system-ui,sans-serif;margin:1em;color:#111;background:#fff}\
h1{font-size:1.2em}h2{font-size:1.05em;margin:1.2em 0 .3em}\
div{overflow-x:auto}\
table{border-collapse:collapse;min-width:50%}\
th,td{text-align:left;padding:.2em .6em;border-bottom:1px solid #ddd;vertical-align:top;overflow-wrap:anywhere}\
.n{text-align:right;white-space:nowrap}\
.bad{background:#fdd}.warn{background:#ffc}\
@media(prefers-color-scheme:dark){body{color:#eee;background:#111}th,td{border-color:#444}.bad{background:#622}.warn{background:#540}}";

/// Writes the page. The newest events come first.
pub fn page(status: &Status, events: &[Event]) -> String {
    let mut page = Page { out: String::with_capacity(16 * 1024) };
    let troubles = status.degraded.len();
    let mark = if troubles == 0 { String::new() } else { format!("({troubles}) ") };
    page.push(format_args!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{mark}Penstock</title>\n\
         <meta http-equiv=\"refresh\" content=\"{REFRESH}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <style>{STYLE}</style>\n</head>\n<body>\n"
    ));
    page.head(status);
    page.degraded(status);
    // Pools that cannot serve come first.
    let mut pools: Vec<_> = status.pools.iter().collect();
    pools.sort_by_key(|pool| pool.serves());
    pools.into_iter().for_each(|pool| page.pool(pool));
    page.listeners(&status.listeners);
    page.counters(status);
    page.events(events);
    page.push(format_args!("</body>\n</html>\n"));
    page.out
}

struct Page {
    out: String,
}

/// How a row is marked.
#[derive(Clone, Copy)]
enum Mark {
    None,
    Warn,
    Bad,
}

impl Page {
    fn push(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.out.write_fmt(text);
    }

    fn head(&mut self, status: &Status) {
        let uptime = Duration::from_secs(status.uptime_seconds);
        let phase = match status.phase {
            Phase::Serving => format!("serving {}", units::lasting(uptime)),
            Phase::Draining => format!("DRAINING, started {}", units::ago(uptime)),
        };
        let limit = status.connections.max.map_or(String::new(), |max| format!(" of {max}"));
        self.push(format_args!(
            "<h1>Penstock {}: {phase}</h1>\n<p>pid {}, generation {}, {}, {}{limit} connections",
            status.version,
            status.pid,
            status.generation,
            units::count(status.workers, "worker"),
            status.connections.now,
        ));
        if status.unsaved_changes > 0 {
            let unsaved = units::count(status.unsaved_changes, "unsaved change");
            self.push(format_args!(", {unsaved}"));
        }
        self.push(format_args!("</p>\n"));
        for pending in &status.pending.lines {
            self.push(format_args!("<p class=\"warn\">{}</p>\n", Text(pending)));
        }
        self.push(format_args!("<p>{}</p>\n", Text(&status.confinement.line())));
        for stored in status.stored_lines() {
            self.push(format_args!("<p>{}</p>\n", Text(&stored)));
        }
    }

    fn degraded(&mut self, status: &Status) {
        if status.degraded.is_empty() {
            return;
        }
        self.table("Degraded", &["what", "why"]);
        for degraded in &status.degraded {
            self.row(Mark::Bad, [text(&degraded.subject), text(&degraded.reason)]);
        }
        self.end();
    }

    fn pool(&mut self, pool: &PoolReport) {
        let queued = if pool.queued == 0 { String::new() } else { format!(", {} queued", pool.queued) };
        let fallback = pool.fallback.as_ref().map_or(String::new(), |fallback| {
            format!(", {} sessions to fallback {}", fallback.sessions, fallback.pool)
        });
        let title = format!(
            "Pool {} ({}): {}{queued}{fallback}{}",
            pool.name,
            pool.balance,
            pool.availability(),
            pool.limited(),
        );
        self.table(
            &title,
            &["backend", "state", "for", "#weight", "#now", "#sessions", "#failed", "#p50", "#p99", "why"],
        );
        let mut backends: Vec<_> = pool.backends.iter().collect();
        backends.sort_by_key(|backend| rank(backend));
        for backend in backends {
            let mark = match rank(backend) {
                0 | 1 => Mark::Bad,
                2 | 3 => Mark::Warn,
                _ => Mark::None,
            };
            self.row(
                mark,
                [
                    text(&backend.name),
                    text(backend.standing()),
                    text(units::or_just_now(Duration::from_secs(backend.state_seconds))),
                    number(backend.weight_override.unwrap_or(backend.weight)),
                    number(backend.in_flight),
                    number(backend.sessions),
                    number(backend.failures),
                    number(milliseconds(backend.latency.p50_ms)),
                    number(milliseconds(backend.latency.p99_ms)),
                    text(why(backend)),
                ],
            );
        }
        self.end();
    }

    fn listeners(&mut self, listeners: &[ListenerReport]) {
        let columns = [
            "name",
            "protocol",
            "bound",
            "#now",
            "#sessions",
            "#2xx",
            "#3xx",
            "#4xx",
            "#5xx",
            "#in",
            "#out",
            "#p50",
            "#p99",
            "ended with an error",
        ];
        self.table("Listeners", &columns);
        for listener in listeners {
            let endings: Vec<_> =
                listener.endings.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            self.row(
                if listener.bound.is_empty() { Mark::Bad } else { Mark::None },
                [
                    text(&listener.name),
                    text(listener.protocol),
                    text(listener.bound.join(" ")),
                    number(listener.connections),
                    number(listener.sessions),
                    number(listener.statuses.success),
                    number(listener.statuses.redirect),
                    number(listener.statuses.client_error),
                    number(listener.statuses.server_error),
                    number(units::bytes(listener.bytes_in)),
                    number(units::bytes(listener.bytes_out)),
                    number(milliseconds(listener.latency.p50_ms)),
                    number(milliseconds(listener.latency.p99_ms)),
                    text(endings.join(", ")),
                ],
            );
        }
        self.end();
    }

    fn counters(&mut self, status: &Status) {
        let rare = rare(&status.counters);
        if rare.is_empty() {
            return;
        }
        self.table("Totals", &["what", "#count"]);
        for (name, count) in rare {
            self.row(Mark::None, [text(name), number(count)]);
        }
        self.end();
    }

    fn events(&mut self, events: &[Event]) {
        self.table("Last events", &["at", "level", "what", "message"]);
        for event in events.iter().rev() {
            let (mark, level) = match event.level {
                Level::Info => (Mark::None, "info"),
                Level::Warning => (Mark::Warn, "warning"),
                Level::Error => (Mark::Bad, "error"),
            };
            self.row(mark, [text(&event.at), text(level), text(&event.subject), text(&event.message)]);
        }
        self.end();
    }

    /// Begins a table. A column of numbers begins with `#`.
    fn table(&mut self, title: &str, columns: &[&str]) {
        self.push(format_args!("<h2>{}</h2>\n<div><table>\n<tr>", Text(title)));
        for column in columns {
            match column.strip_prefix('#') {
                Some(column) => self.push(format_args!("<th class=\"n\">{column}</th>")),
                None => self.push(format_args!("<th>{column}</th>")),
            }
        }
        self.push(format_args!("</tr>\n"));
    }

    fn row<const N: usize>(&mut self, mark: Mark, cells: [Cell<'_>; N]) {
        self.push(format_args!(
            "{}",
            match mark {
                Mark::None => "<tr>",
                Mark::Warn => "<tr class=\"warn\">",
                Mark::Bad => "<tr class=\"bad\">",
            }
        ));
        for cell in cells {
            match cell {
                Cell::Number(number) => self.push(format_args!("<td class=\"n\">{}</td>", Text(&number))),
                Cell::Text(text) => self.push(format_args!("<td>{}</td>", Text(&text))),
            }
        }
        self.push(format_args!("</tr>\n"));
    }

    fn end(&mut self) {
        self.push(format_args!("</table></div>\n"));
    }
}

enum Cell<'a> {
    Text(Cow<'a, str>),
    Number(String),
}

fn text<'a>(text: impl Into<Cow<'a, str>>) -> Cell<'a> {
    Cell::Text(text.into())
}

fn number(value: impl Display) -> Cell<'static> {
    Cell::Number(value.to_string())
}

/// Why a backend is as it is: the newest verdict, and what an ejected one waits for.
fn why(backend: &BackendReport) -> String {
    let returns = backend.returns_after.map(|needed| format!("returns {}", condition(needed)));
    let verdict = backend
        .last_verdicts
        .first()
        .map(|verdict| format!("{} {}: {}", verdict.source, verdict.outcome, verdict.cause));
    returns.into_iter().chain(verdict).collect::<Vec<_>>().join("; ")
}

/// Escapes a text for HTML, and control characters that a terminal browser would obey.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                '\n' => out.write_str("<br>")?,
                c if is_printable(c) => out.write_char(c)?,
                _ => out.write_char('\u{fffd}')?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn what_limits_have_stopped_and_what_is_stored_is_on_the_page() {
        let front = fixture::front("backends = ['127.0.0.1:1']");
        let pool = front.snapshot.load().pools[0].state.clone();
        pool.ejections_stopped.store(2, std::sync::atomic::Ordering::Relaxed);
        pool.retries_refused.store(1, std::sync::atomic::Ordering::Relaxed);
        front.state.kept.wait_for_another("another process <stores>");
        let status = Status::read(&front);
        let page = page(&status, &[]);
        assert!(page.contains("1 backend available, 2 ejections stopped, 1 retry refused</h2>"), "{page}");
        assert!(page.contains("<p>another process &lt;stores&gt;</p>"), "{page}");
        assert!(super::super::tables::status(&status).contains(", 2 ejections stopped, 1 retry refused\n"));
    }

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let front = fixture::front("backends = ['127.0.0.1:1']");
        front.state.degrade("pool.app", "<script>alert('1')</script>&\u{1b}[31m\u{202e}");
        front.state.events.record(Level::Error, "x\"y", "first <b>\nsecond");
        let page = page(&Status::read(&front), &front.state.events.last(50));
        assert!(
            page.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;\u{fffd}[31m\u{fffd}"),
            "{page}"
        );
        assert!(page.contains("<td>x&quot;y</td><td>first &lt;b&gt;<br>second</td>"), "{page}");
        assert!(!page.contains("<script"), "{page}");
        assert!(page.contains("<title>(1) Penstock</title>"), "{page}");
        let (degraded, pool) = (page.find("<h2>Degraded").unwrap(), page.find("<h2>Pool app").unwrap());
        assert!(degraded < pool && pool < page.find("<h2>Listeners").unwrap());
    }
}
