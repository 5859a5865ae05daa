//! Open sessions, for `penstock ctl sessions`.

use std::time::Duration;

use serde::Serialize;
use sys::tcp_info::TcpInfo;
use text::table::Table;
use text::terminal::line;
use text::units;

use super::milliseconds;
use crate::sessions::{Found, Session};

#[derive(Clone, Debug, Serialize)]
pub struct SessionsReport {
    /// Number of open sessions that match.
    pub matched: usize,
    /// The first of them, in the order asked for.
    pub sessions: Vec<SessionReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    pub id: u64,
    pub listener: String,
    /// Address and port, or `unix`.
    pub client: String,
    /// `handshake`, `tcp`, `tls-passthrough`, `http/1.1`, `http/2`, `websocket` or `upgraded`.
    pub protocol: &'static str,
    /// Requests that run; a TCP session counts as one.
    pub requests: u32,
    /// Backends of these, that of the newest first.
    pub backends: Vec<SessionBackend>,
    /// Id of the newest request.
    pub request_id: Option<String>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Bytes a second in both directions, since the last look.
    pub rate: Option<u64>,
    pub age_seconds: f64,
    /// Time since data was sent or received.
    pub idle_seconds: Option<f64>,
    pub client_tcp: Option<TcpReport>,
    pub backend_tcp: Option<TcpReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct SessionBackend {
    pub pool: String,
    pub name: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct TcpReport {
    pub rtt_ms: f64,
    pub retransmits: u32,
}

impl From<TcpInfo> for TcpReport {
    fn from(info: TcpInfo) -> Self {
        Self { rtt_ms: milliseconds(info.rtt), retransmits: info.retransmits }
    }
}

/// Sessions that one command shows at most.
pub const MOST_SHOWN: usize = 10_000;

impl SessionsReport {
    pub(crate) fn read(found: Found) -> Self {
        Self { matched: found.matched, sessions: found.sessions.into_iter().map(of_session).collect() }
    }
}

fn of_session(Session { row, client, backend }: Session) -> SessionReport {
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    // The kernel knows it of TCP; a client of a Unix socket is known to wait between two requests.
    let idle = [client, backend].into_iter().flatten().map(|info| info.idle).min().or(row.idle);
    SessionReport {
        id: row.place.number.0,
        listener: row.listener.to_string(),
        client: row.client.to_string(),
        protocol: row.speaks.word(),
        requests: row.requests,
        backends: row
            .backends
            .iter()
            .map(|backend| SessionBackend { pool: backend.pool.to_string(), name: backend.name.to_string() })
            .collect(),
        request_id: row.request_id,
        bytes_in: row.bytes_in,
        bytes_out: row.bytes_out,
        rate: row.rate,
        age_seconds: seconds(row.age),
        idle_seconds: idle.map(seconds),
        client_tcp: client.map(TcpReport::from),
        backend_tcp: backend.map(TcpReport::from),
    }
}

/// The sessions for people.
pub fn text(report: &SessionsReport) -> String {
    if report.matched == 0 {
        return "no open session matches".to_owned();
    }
    let mut table = Table::indented("");
    table.header([
        ">id",
        "listener",
        "client",
        "protocol",
        "backend",
        ">in",
        ">out",
        ">rate",
        ">age",
        ">idle",
        ">rtt",
        ">retransmits",
    ]);
    for session in &report.sessions {
        let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), whole);
        let rate = session.rate.map_or_else(|| "-".to_owned(), |rate| format!("{}/s", units::bytes(rate)));
        table.row([
            session.id.to_string(),
            line(&session.listener),
            line(&session.client),
            protocol(session),
            backend(session),
            units::bytes(session.bytes_in),
            units::bytes(session.bytes_out),
            rate,
            time(Some(session.age_seconds)),
            time(session.idle_seconds),
            pair(session, |tcp| units::duration(Duration::from_secs_f64((tcp.rtt_ms / 1e3).max(0.0)))),
            pair(session, |tcp| tcp.retransmits.to_string()),
        ]);
    }
    let mut out = table.render();
    match report.matched - report.sessions.len().min(report.matched) {
        0 => {}
        more if report.matched <= MOST_SHOWN => {
            out.push_str(&format!("and {more} more: --limit {} shows all\n", report.matched));
        }
        more => out.push_str(&format!(
            "and {more} more: --limit {MOST_SHOWN} is the most; --listener, --backend or --client shows a part\n"
        )),
    }
    out
}

/// A time in whole seconds: `1 s` from half a second on.
fn whole(seconds: f64) -> String {
    let seconds = Duration::from_secs_f64(seconds.max(0.0).round());
    if seconds.is_zero() { "<1 s".to_owned() } else { units::duration(seconds) }
}

fn protocol(session: &SessionReport) -> String {
    match (session.protocol, session.requests) {
        (word @ "http/2", requests) => format!("{word} ({requests} open)"),
        (word @ "http/1.1", 0) => format!("{word} (idle)"),
        (word, _) => word.to_owned(),
    }
}

fn backend(session: &SessionReport) -> String {
    match &session.backends[..] {
        [] => "-".to_owned(),
        [one] => line(&one.name),
        [first, rest @ ..] => format!("{} +{}", line(&first.name), rest.len()),
    }
}

/// What is known of the connection of the client, then of that to the backend.
fn pair(session: &SessionReport, show: impl Fn(&TcpReport) -> String) -> String {
    let one = |tcp: &Option<TcpReport>| tcp.as_ref().map_or_else(|| "-".to_owned(), &show);
    match (&session.client_tcp, &session.backend_tcp) {
        (None, None) => "-".to_owned(),
        (client, backend) => format!("{} {}", one(client), one(backend)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_whole_seconds() {
        let shown = [0.0, 0.2, 0.999, 1.004, 61.2].map(whole);
        assert_eq!(shown, ["<1 s", "<1 s", "1 s", "1 s", "1 min 1 s"]);
    }

    #[test]
    fn what_is_known_of_the_client_alone_does_not_stand_where_the_backend_does() {
        let tcp = |retransmits| Some(TcpReport { rtt_ms: 1.0, retransmits });
        let shown = |client_tcp, backend_tcp| {
            let session = SessionReport { client_tcp, backend_tcp, ..session() };
            pair(&session, |tcp| tcp.retransmits.to_string())
        };
        assert_eq!(shown(tcp(7), None), "7 -");
        assert_eq!(shown(None, tcp(7)), "- 7");
        assert_eq!(shown(tcp(7), tcp(8)), "7 8");
        assert_eq!(shown(None, None), "-");
    }

    fn session() -> SessionReport {
        SessionReport {
            id: 1,
            listener: "web".to_owned(),
            client: "192.0.2.7:1".to_owned(),
            protocol: "http/1.1",
            requests: 0,
            backends: Vec::new(),
            request_id: None,
            bytes_in: 0,
            bytes_out: 0,
            rate: None,
            age_seconds: 0.0,
            idle_seconds: None,
            client_tcp: None,
            backend_tcp: None,
        }
    }

    #[test]
    fn the_hint_to_show_more_is_one_that_works() {
        let mut report = SessionsReport { matched: MOST_SHOWN, sessions: Vec::new() };
        assert!(text(&report).ends_with("and 10000 more: --limit 10000 shows all\n"));
        report.matched += 1;
        assert!(text(&report).contains("and 10001 more: --limit 10000 is the most; --listener, "));
    }
}
