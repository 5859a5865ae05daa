//! The status of a running tunnel, for its control socket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hosts::tunnel::mounts::MountEntry;
use hosts::tunnel::plan::{Check, Listen, Tunnel};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

/// A running tunnel, in the format of `penstock tunnel status --json`. Times are seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    pub tunnel: String,
    pub host: String,
    /// Id of the process that runs the tunnel.
    pub pid: u32,
    /// Current step: `connecting`, `check`, `mount`, `job`, `up`, `unmount`, ...
    pub step: String,
    /// `connecting`, `connected`, or `retrying` while it waits for the next attempt.
    pub connection: String,
    /// Age of the current state of the connection.
    pub since_seconds: f64,
    /// Time until the next attempt to connect, if one is scheduled.
    #[serde(default)]
    pub retry_in_seconds: Option<f64>,
    /// Number of connections that were made so far.
    pub connects: u64,
    /// Why the last connection ended or failed.
    pub error: Option<String>,
    /// Age of `error`.
    #[serde(default)]
    pub error_age_seconds: Option<f64>,
    /// Whether a connection was made after `error`.
    #[serde(default)]
    pub recovered: bool,
    /// Time since the first connection after `error`.
    #[serde(default)]
    pub recovered_seconds: Option<f64>,
    pub mounted: Option<String>,
    pub forwards: Vec<ForwardStatus>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForwardStatus {
    pub name: String,
    pub kind: String,
    /// Address of the listener, on this machine or on the host.
    pub listen: String,
    pub connect: Option<String>,
    pub check: String,
    /// `ok`, `failed`, `unknown` before the first check on the current connection, or `unchecked`.
    pub service: String,
    /// Age of `service`.
    pub since_seconds: f64,
    /// Answer of the service, or why its check failed.
    pub detail: String,
    pub connections: u64,
    pub accepted: u64,
    /// Bytes from the side that opened the connection.
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Why the last failed connection failed.
    pub error: Option<String>,
    /// Age of `error`.
    #[serde(default)]
    pub error_age_seconds: Option<f64>,
    /// Whether a later connection was carried, or the service answered later.
    #[serde(default)]
    pub recovered: bool,
    /// Time since the first success after `error`.
    #[serde(default)]
    pub recovered_seconds: Option<f64>,
}

impl Status {
    /// Whether the tunnel is connected and every checked service answers.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.connection == "connected"
            && self.forwards.iter().all(|it| matches!(it.service.as_str(), "ok" | "unchecked"))
    }
}

/// The live status of a run.
pub(crate) struct Board {
    pub(crate) tunnel: Tunnel,
    state: Mutex<State>,
    pub(crate) meters: Vec<Meter>,
    standing: watch::Sender<ConnectionState>,
    trouble: Arc<Notify>,
}

/// The state of the connection, for programs that depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// No attempt was made yet.
    Opening,
    Up,
    /// The last attempt failed or the connection was lost; the reason.
    Down(String),
}

struct State {
    step: String,
    connection: Connection,
    since: Instant,
    next_attempt: Option<Instant>,
    connections: u64,
    error: Option<LastError>,
    mounted: Option<MountEntry>,
}

struct LastError {
    text: String,
    at: Instant,
    /// First success after the error.
    recovered: Option<Instant>,
}

impl LastError {
    fn new(text: String) -> Self {
        Self { text, at: Instant::now(), recovered: None }
    }

    fn recover(&mut self, at: Instant) {
        self.recovered.get_or_insert(at);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    Connecting,
    Up,
    Waiting,
}

pub(crate) struct Meter {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) total: AtomicU64,
    /// Connections that were carried, and checks that the service answered.
    served: AtomicU64,
    told: Mutex<ForwardState>,
    /// Notified when a connection fails.
    trouble: Option<Arc<Notify>>,
}

struct ForwardState {
    listen: Listen,
    error: Option<LastError>,
    /// Result of the last check.
    service: Option<Result<String, String>>,
    since: Instant,
    asked: Asked,
}

/// The connection on which the last check was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The current connection, or the last one if it was lost.
    Last,
    Before,
}

impl Board {
    pub(crate) fn new(tunnel: Tunnel) -> Self {
        let now = Instant::now();
        let trouble = Arc::new(Notify::new());
        let meters = tunnel.forwards.iter().map(|forward| {
            let trouble = (forward.check != Check::None).then(|| Arc::clone(&trouble));
            Meter::new(forward.way.listen().clone(), now, trouble)
        });
        let meters = meters.collect();
        let state = State {
            step: String::new(),
            connection: Connection::Connecting,
            since: now,
            next_attempt: None,
            connections: 0,
            error: None,
            mounted: None,
        };
        let standing = watch::Sender::new(ConnectionState::Opening);
        Self { tunnel, state: Mutex::new(state), meters, standing, trouble }
    }

    /// Number of connections that were carried, and of checks that a service answered.
    pub(crate) fn served(&self) -> u64 {
        self.meters.iter().map(|meter| meter.served.load(Relaxed)).sum()
    }

    /// Waits until a connection has failed whose service can be checked.
    pub(crate) async fn trouble(&self) {
        self.trouble.notified().await;
    }

    pub(crate) fn standing(&self) -> watch::Receiver<ConnectionState> {
        self.standing.subscribe()
    }

    pub(crate) fn step(&self, step: String) {
        self.state().step = step;
    }

    pub(crate) fn connection(&self, connection: Connection, error: Option<String>) {
        let standing = match connection {
            Connection::Up => Some(ConnectionState::Up),
            Connection::Waiting => Some(ConnectionState::Down(error.clone().unwrap_or_default())),
            Connection::Connecting => None,
        };
        if let Some(standing) = standing {
            self.standing.send_if_modified(|before| std::mem::replace(before, standing.clone()) != standing);
        }
        if connection == Connection::Up {
            // No check was made while the connection was lost.
            self.meters.iter().for_each(|meter| meter.forward_state().asked = Asked::Before);
        }
        let now = Instant::now();
        let mut state = self.state();
        if (state.connection == Connection::Up) != (connection == Connection::Up) {
            state.since = now;
        }
        state.next_attempt = None;
        state.connection = connection;
        state.connections += u64::from(connection == Connection::Up);
        match (error, &mut state.error) {
            (Some(text), error) => *error = Some(LastError::new(text)),
            (None, Some(error)) if connection == Connection::Up => error.recover(now),
            (None, _) => {}
        }
    }

    /// Sets the time until the next attempt to connect.
    pub(crate) fn waits(&self, wait: Duration) {
        self.state().next_attempt = Some(Instant::now() + wait);
    }

    pub(crate) fn mounted(&self, mounted: Option<MountEntry>) {
        self.state().mounted = mounted;
    }

    pub(crate) fn status(&self) -> Status {
        let now = Instant::now();
        let seconds = |since: Instant| now.saturating_duration_since(since).as_secs_f64();
        let up = self.state().connection == Connection::Up;
        let forwards = self.tunnel.forwards.iter().zip(&self.meters).map(|(forward, meter)| {
            let told = meter.forward_state();
            let (service, said) = match (&forward.check, &told.service) {
                (Check::None, _) => ("unchecked", ""),
                (_, None) => ("unknown", ""),
                (_, Some(_)) if up && told.asked == Asked::Before => ("unknown", ""),
                (_, Some(Ok(said))) => ("ok", said.as_str()),
                (_, Some(Err(why))) => ("failed", why.as_str()),
            };
            ForwardStatus {
                name: forward.name.to_string(),
                kind: forward.way.word().to_owned(),
                listen: told.listen.to_string(),
                connect: forward.way.connect().map(ToString::to_string),
                check: forward.check.word().to_owned(),
                service: service.to_owned(),
                since_seconds: seconds(told.since),
                detail: said.to_owned(),
                connections: meter.open.load(Relaxed),
                accepted: meter.total.load(Relaxed),
                bytes_in: meter.sent.load(Relaxed),
                bytes_out: meter.received.load(Relaxed),
                error: told.error.as_ref().map(|error| error.text.clone()),
                error_age_seconds: told.error.as_ref().map(|error| seconds(error.at)),
                recovered: told.error.as_ref().is_some_and(|error| error.recovered.is_some()),
                recovered_seconds: told.error.as_ref().and_then(|error| error.recovered).map(seconds),
            }
        });
        let forwards = forwards.collect();
        let state = self.state();
        let connection = match state.connection {
            Connection::Connecting => "connecting",
            Connection::Up => "connected",
            Connection::Waiting => "retrying",
        };
        let mounted = state.mounted.as_ref();
        Status {
            tunnel: self.tunnel.name.to_string(),
            host: self.tunnel.host.clone(),
            pid: std::process::id(),
            step: state.step.clone(),
            connection: connection.to_owned(),
            since_seconds: seconds(state.since),
            retry_in_seconds: state.next_attempt.map(|at| at.saturating_duration_since(now).as_secs_f64()),
            connects: state.connections,
            error: state.error.as_ref().map(|error| error.text.clone()),
            error_age_seconds: state.error.as_ref().map(|error| seconds(error.at)),
            recovered: state.error.as_ref().is_some_and(|error| error.recovered.is_some()),
            recovered_seconds: state.error.as_ref().and_then(|error| error.recovered).map(seconds),
            mounted: mounted.map(|it| format!("{} of {} on {}", it.kind, it.source, it.point.display())),
            forwards,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Meter {
    fn new(listen: Listen, now: Instant, trouble: Option<Arc<Notify>>) -> Self {
        Self {
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            open: AtomicU64::new(0),
            total: AtomicU64::new(0),
            served: AtomicU64::new(0),
            told: Mutex::new(ForwardState {
                listen,
                error: None,
                service: None,
                since: now,
                asked: Asked::Last,
            }),
            trouble,
        }
    }

    pub(crate) fn listens(&self, at: Listen) {
        self.forward_state().listen = at;
    }

    pub(crate) fn failed(&self, why: String) {
        self.forward_state().error = Some(LastError::new(why));
        if let Some(trouble) = &self.trouble {
            trouble.notify_one();
        }
    }

    /// Counts a connection that is open on both sides.
    pub(crate) fn carried(&self) {
        self.served.fetch_add(1, Relaxed);
        self.forward_state().recovered();
    }

    /// Stores the result of a check. Returns whether the user should be told.
    pub(crate) fn checked(&self, outcome: Result<String, String>) -> StatusChange {
        let mut told = self.forward_state();
        let (before, now) = (&told.service, &outcome);
        let turned = before.as_ref().is_none_or(|before| before.is_ok() != now.is_ok());
        // A new reason of a failure is reported; a new answer of a working service is not, since each answer may
        // differ.
        let same = !turned && (now.is_ok() || before.as_ref() == Some(now));
        // The state during a lost connection is unknown, so the first check after it is reported.
        let again = std::mem::replace(&mut told.asked, Asked::Last) == Asked::Before;
        if turned || again {
            told.since = Instant::now();
        }
        if outcome.is_ok() {
            self.served.fetch_add(1, Relaxed);
            told.recovered();
        }
        told.service = Some(outcome);
        if same { StatusChange::None } else { StatusChange::Changed }
    }

    pub(crate) fn listen(&self) -> Listen {
        self.forward_state().listen.clone()
    }

    fn forward_state(&self) -> MutexGuard<'_, ForwardState> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ForwardState {
    fn recovered(&mut self) {
        if let Some(error) = &mut self.error {
            error.recover(Instant::now());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusChange {
    None,
    Changed,
}
