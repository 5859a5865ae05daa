//! What is known of a running tunnel: counted while it runs, and told on its control socket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use logic::tunnel::mounts::MountEntry;
use logic::tunnel::plan::{Check, Listen, Tunnel};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

/// A running tunnel, as `penstock tunnel status --json` has it. Times are seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub tunnel: String,
    /// The SSH host.
    pub host: String,
    /// The process that keeps it.
    pub process: u32,
    /// What it is doing: `connecting`, `proof`, `mount`, `job`, `up`, `unmount`, ...
    pub step: String,
    /// `connecting`, `up`, or `waiting` for the next attempt.
    pub connection: String,
    /// For how long the connection has stood, or has not.
    pub since: f64,
    /// When the next attempt to connect is made, while one is waited for.
    #[serde(default)]
    pub next_attempt: Option<f64>,
    /// Connections that were made so far.
    pub connections: u64,
    /// Why the last one that ended, or could not be made, did so.
    pub error: Option<String>,
    /// How long ago that was.
    #[serde(default)]
    pub error_age: Option<f64>,
    /// Whether there was a connection since.
    #[serde(default)]
    pub error_mended: bool,
    /// For how long there has been, then.
    #[serde(default)]
    pub error_mended_age: Option<f64>,
    /// What is mounted through it.
    pub mounted: Option<String>,
    /// In the order of the configuration.
    pub forwards: Vec<ForwardStatus>,
}

/// One forward.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForwardStatus {
    /// Its name.
    pub name: String,
    /// `local`, `remote` or `dynamic`.
    pub kind: String,
    /// Where it listens, on either side.
    pub listen: String,
    /// Where connections go.
    pub connect: Option<String>,
    /// `tcp`, `banner`, ...
    pub check: String,
    /// `answers`, `fails`, `unknown` before the first check on the connection that stands, `unchecked`.
    pub service: String,
    /// For how long it has been that.
    pub since: f64,
    /// What the service said, or why it fails.
    pub said: String,
    /// Connections that are open.
    pub open: u64,
    /// Connections so far.
    pub total: u64,
    /// Bytes from the side that connected.
    pub sent: u64,
    /// Bytes to it.
    pub received: u64,
    /// Why the last connection that failed did so.
    pub error: Option<String>,
    /// How long ago that was.
    #[serde(default)]
    pub error_age: Option<f64>,
    /// Whether another connection was carried since, or the service answered.
    #[serde(default)]
    pub error_mended: bool,
    /// How long ago that was first.
    #[serde(default)]
    pub error_mended_age: Option<f64>,
}

impl Status {
    /// Whether the connection stands and every service that is asked answers.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.connection == "up"
            && self.forwards.iter().all(|it| matches!(it.service.as_str(), "answers" | "unchecked"))
    }
}

/// Where a run writes what happens.
pub(crate) struct Board {
    pub(crate) tunnel: Tunnel,
    state: Mutex<State>,
    pub(crate) meters: Vec<Meter>,
    standing: watch::Sender<Standing>,
    trouble: Arc<Notify>,
}

/// How a connection stands, for programs that live on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It was not tried yet.
    Opening,
    /// It stands.
    Up,
    /// It does not, and why.
    Down(String),
}

struct State {
    step: String,
    connection: Connection,
    since: Instant,
    next_attempt: Option<Instant>,
    connections: u64,
    error: Option<Trouble>,
    mounted: Option<MountEntry>,
}

/// What went wrong last.
struct Trouble {
    text: String,
    at: Instant,
    /// When it first went well again.
    mended: Option<Instant>,
}

impl Trouble {
    fn new(text: String) -> Self {
        Self { text, at: Instant::now(), mended: None }
    }

    fn mend(&mut self, at: Instant) {
        self.mended.get_or_insert(at);
    }
}

/// The connection to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    Connecting,
    Up,
    Waiting,
}

/// The counters of one forward.
pub(crate) struct Meter {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) total: AtomicU64,
    told: Mutex<Told>,
    /// Told of connections that fail.
    trouble: Option<Arc<Notify>>,
}

struct Told {
    listen: Listen,
    error: Option<Trouble>,
    /// What the last check came to.
    service: Option<Result<String, String>>,
    since: Instant,
    asked: Asked,
}

/// On which connection the last check was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// The one that stands, or stood last.
    Last,
    /// One before that.
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
        let standing = watch::Sender::new(Standing::Opening);
        Self { tunnel, state: Mutex::new(state), meters, standing, trouble }
    }

    /// Waits until a connection has failed whose service can be asked.
    pub(crate) async fn trouble(&self) {
        self.trouble.notified().await;
    }

    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    pub(crate) fn step(&self, step: String) {
        self.state().step = step;
    }

    pub(crate) fn connection(&self, connection: Connection, error: Option<String>) {
        let standing = match connection {
            Connection::Up => Some(Standing::Up),
            Connection::Waiting => Some(Standing::Down(error.clone().unwrap_or_default())),
            Connection::Connecting => None,
        };
        if let Some(standing) = standing {
            self.standing.send_if_modified(|before| std::mem::replace(before, standing.clone()) != standing);
        }
        if connection == Connection::Up {
            // While there was none, nobody asked.
            self.meters.iter().for_each(|meter| meter.told().asked = Asked::Before);
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
            (Some(text), error) => *error = Some(Trouble::new(text)),
            (None, Some(error)) if connection == Connection::Up => error.mend(now),
            (None, _) => {}
        }
    }

    /// The next attempt to connect is made after this time.
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
            let told = meter.told();
            let (service, said) = match (&forward.check, &told.service) {
                (Check::None, _) => ("unchecked", ""),
                (_, None) => ("unknown", ""),
                (_, Some(_)) if up && told.asked == Asked::Before => ("unknown", ""),
                (_, Some(Ok(said))) => ("answers", said.as_str()),
                (_, Some(Err(why))) => ("fails", why.as_str()),
            };
            ForwardStatus {
                name: forward.name.to_string(),
                kind: forward.way.word().to_owned(),
                listen: told.listen.to_string(),
                connect: forward.way.connect().map(ToString::to_string),
                check: forward.check.word().to_owned(),
                service: service.to_owned(),
                since: seconds(told.since),
                said: said.to_owned(),
                open: meter.open.load(Relaxed),
                total: meter.total.load(Relaxed),
                sent: meter.sent.load(Relaxed),
                received: meter.received.load(Relaxed),
                error: told.error.as_ref().map(|error| error.text.clone()),
                error_age: told.error.as_ref().map(|error| seconds(error.at)),
                error_mended: told.error.as_ref().is_some_and(|error| error.mended.is_some()),
                error_mended_age: told.error.as_ref().and_then(|error| error.mended).map(seconds),
            }
        });
        let forwards = forwards.collect();
        let state = self.state();
        let connection = match state.connection {
            Connection::Connecting => "connecting",
            Connection::Up => "up",
            Connection::Waiting => "waiting",
        };
        let mounted = state.mounted.as_ref();
        Status {
            tunnel: self.tunnel.name.to_string(),
            host: self.tunnel.host.clone(),
            process: std::process::id(),
            step: state.step.clone(),
            connection: connection.to_owned(),
            since: seconds(state.since),
            next_attempt: state.next_attempt.map(|at| at.saturating_duration_since(now).as_secs_f64()),
            connections: state.connections,
            error: state.error.as_ref().map(|error| error.text.clone()),
            error_age: state.error.as_ref().map(|error| seconds(error.at)),
            error_mended: state.error.as_ref().is_some_and(|error| error.mended.is_some()),
            error_mended_age: state.error.as_ref().and_then(|error| error.mended).map(seconds),
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
            told: Mutex::new(Told { listen, error: None, service: None, since: now, asked: Asked::Last }),
            trouble,
        }
    }

    pub(crate) fn listens(&self, at: Listen) {
        self.told().listen = at;
    }

    pub(crate) fn failed(&self, why: String) {
        self.told().error = Some(Trouble::new(why));
        if let Some(trouble) = &self.trouble {
            trouble.notify_one();
        }
    }

    /// A connection stands from end to end.
    pub(crate) fn carried(&self) {
        self.told().mended();
    }

    /// What a check came to; whether that is news.
    pub(crate) fn checked(&self, outcome: Result<String, String>) -> News {
        let mut told = self.told();
        let (before, now) = (&told.service, &outcome);
        let turned = before.as_ref().is_none_or(|before| before.is_ok() != now.is_ok());
        // Why it fails is news; what a service that answers says may be different each time.
        let same = !turned && (now.is_ok() || before.as_ref() == Some(now));
        // What it was while nobody could ask is not known.
        let again = std::mem::replace(&mut told.asked, Asked::Last) == Asked::Before;
        if turned || again {
            told.since = Instant::now();
        }
        if outcome.is_ok() {
            told.mended();
        }
        told.service = Some(outcome);
        if same { News::None } else { News::Changed }
    }

    pub(crate) fn listen(&self) -> Listen {
        self.told().listen.clone()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn mended(&mut self) {
        if let Some(error) = &mut self.error {
            error.mend(Instant::now());
        }
    }
}

/// Whether something has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    None,
    Changed,
}
