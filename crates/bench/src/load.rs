//! What a load process (`penstock bench-load`) can be told to do, and how it counts.
//!
//! Every kind of load has a file in `load/`. It calls [`Gauge`] for each unit of work and does not care about warm-up,
//! clocks or CPU: the gauge opens and closes the window in which units count, and reads the meters at both ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, Recorder};
use crate::meter::{Cpu, Processes};
use crate::sample::Sample;

pub mod aead;
pub mod http;
pub mod idle;
pub mod message;
pub mod pipe;
pub mod tcp;
pub mod tls;
pub mod truststore;

/// What a load process does. Servers say where they listen and run until their standard input ends; loads run through
/// their window and give a [`Tally`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Answers every message: see `load/message.rs`.
    MessageServer(message::Server),
    /// Asks for messages.
    MessageClient(message::Client),
    /// A small HTTP/1.1 server: see `target/backend.rs`.
    HttpBackend(crate::target::backend::HttpBackend),
    /// HTTP/1.1 requests: see `load/http.rs`.
    Http(http::Load),
    /// The same over TLS: see `load/tls.rs`.
    Https(tls::Requests),
    /// TLS handshakes: see `load/tls.rs`.
    Handshakes(tls::Load),
    /// The end behind a relay of bytes: see `load/tcp.rs`.
    TcpServer(tcp::Server),
    /// The end before it.
    Tcp(tcp::Load),
    /// Connections that are held: see `load/idle.rs`.
    Idle(idle::Load),
    /// Loads CA certificates once: see `load/truststore.rs`. It looks at no window.
    TrustStore(truststore::TrustStore),
    /// One end of a program's pipe: see `load/pipe.rs`.
    Pipe(pipe::Pipe),
    /// A cipher alone: see `load/aead.rs`.
    Aead(aead::Aead),
    /// Takes all the time of its core that nobody else takes. On the target's core it makes a target always have a
    /// backlog, as it has under full load: a proxy that wakes up for every single request costs more for each.
    Spin,
}

/// When units count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Before it: work is done and not counted.
    pub warm_up: Duration,
    /// Its length.
    pub duration: Duration,
}

/// A process tree whose CPU time is read at both ends of the window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Metered {
    /// Key in [`Tally::cpu`].
    pub name: String,
    /// Root of the tree; 0 is the load process itself.
    pub pid: i32,
}

/// What a load process counted in its window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Units of work.
    pub units: u64,
    /// Bytes of payload, where that is meant.
    pub bytes: u64,
    /// Length of the window as it really was, in seconds.
    pub seconds: f64,
    /// Units that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
    /// How long the units took.
    pub latency: Latency,
    /// CPU time of the metered trees within the window.
    pub cpu: BTreeMap<String, Cpu>,
    /// Further figures, by name.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
}

/// Counts units of work within a window.
#[derive(Debug)]
pub struct Gauge {
    window: Window,
    metered: Vec<Metered>,
    phase: Cell<Phase>,
    created: Instant,
    begun: Cell<Instant>,
    /// Units that begin from here on have a latency.
    settled: Cell<Instant>,
    before: RefCell<Vec<Cpu>>,
    /// Open loop: when units that are not done yet were meant to begin.
    owed: RefCell<BTreeSet<Instant>>,
    latency: RefCell<Recorder>,
    tally: RefCell<Tally>,
    units: Cell<u64>,
    bytes: Cell<u64>,
}

/// Where in its window a gauge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Work is done and not counted.
    WarmUp,
    /// Work counts.
    Open,
    /// There is no need for more work.
    Over,
}

impl Window {
    /// All of it, with what comes before.
    pub fn whole(&self) -> Duration {
        self.warm_up + self.duration
    }
}

impl Tally {
    /// The sample of a trial whose target was metered under these names; other metered trees become figures
    /// (`NAME-cpu`, in seconds for each unit).
    pub fn sample(self, targets: &[&str]) -> Sample {
        let units = self.units as f64;
        let mut figures = self.figures;
        let mut cpu = Cpu::default();
        for (name, used) in &self.cpu {
            if targets.contains(&name.as_str()) {
                cpu = cpu + *used;
            } else {
                figures.insert(format!("{name}-cpu"), used.total / units.max(1.0));
            }
        }
        let measured = self.cpu.keys().any(|name| targets.contains(&name.as_str()));
        Sample {
            units,
            seconds: self.seconds,
            cpu: measured.then_some(cpu),
            latency: (self.latency.count() > 0).then_some(self.latency),
            errors: self.errors,
            first_error: self.first_error,
            figures,
        }
    }
}

impl Gauge {
    /// A gauge whose warm-up begins now.
    pub fn new(window: Window, metered: Vec<Metered>) -> Rc<Self> {
        let now = Instant::now();
        Rc::new(Gauge {
            window,
            metered,
            phase: Cell::new(Phase::WarmUp),
            created: now,
            begun: Cell::new(now),
            settled: Cell::new(now),
            before: RefCell::default(),
            owed: RefCell::default(),
            latency: RefCell::default(),
            tally: RefCell::default(),
            units: Cell::new(0),
            bytes: Cell::new(0),
        })
    }

    /// Counts one unit that began (or, in an open loop, was meant to begin) at `start` and is done at `now`.
    ///
    /// Its latency counts if it began within the window, and not right at its beginning: what was due before waited while
    /// the meters were read, and is made up for then.
    pub fn unit(&self, start: Instant, now: Instant) {
        self.forgive(start);
        if self.phase.get() == Phase::Open {
            self.units.set(self.units.get() + 1);
            if start >= self.settled.get() {
                self.latency.borrow_mut().record(now.saturating_duration_since(start));
            }
        }
    }

    /// For open loops: a unit is meant to begin at `start`. If it is neither [done](Self::unit) nor
    /// [given up](Self::forgive) at the end of the window, the time until then is its latency: less than it will be, but
    /// more than leaving out whoever waits for a server that has stalled.
    pub fn owe(&self, start: Instant) {
        self.owed.borrow_mut().insert(start);
    }

    /// A unit that was owed failed: it has no latency.
    pub fn forgive(&self, start: Instant) {
        self.owed.borrow_mut().remove(&start);
    }

    /// Counts payload.
    pub fn bytes(&self, count: usize) {
        if self.phase.get() == Phase::Open {
            self.bytes.set(self.bytes.get() + count as u64);
        }
    }

    /// Counts a unit that failed. Failures of the warm-up count too: they say that something is wrong.
    pub fn error(&self, text: impl ToString) {
        if self.phase.get() != Phase::Over {
            let mut tally = self.tally.borrow_mut();
            tally.errors += 1;
            tally.first_error.get_or_insert_with(|| text.to_string());
        }
    }

    /// Adds a figure of the load's own.
    pub fn figure(&self, name: &str, value: f64) {
        self.tally.borrow_mut().figures.insert(name.to_owned(), value);
    }

    /// Where in its window it is.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// For loads that block: moves on when it is time. Call it between units.
    pub fn advance(&self, now: Instant) -> Phase {
        match self.phase.get() {
            Phase::WarmUp if now >= self.created + self.window.warm_up => self.begin(),
            Phase::Open if now >= self.begun.get() + self.window.duration => self.end(),
            _ => {}
        }
        self.phase.get()
    }

    /// For loads in tasks: waits through the window while they work.
    pub async fn run(&self) {
        tokio::time::sleep(self.window.warm_up).await;
        self.begin();
        tokio::time::sleep(self.window.duration).await;
        self.end();
    }

    /// What was counted, after the end.
    pub fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    fn begin(&self) {
        let start = Instant::now();
        self.before.replace(self.read_meters());
        let now = Instant::now();
        self.begun.set(now);
        // Making up for a pause takes less time than the pause, unless the load is too much for somebody anyway.
        self.settled.set(now + now.duration_since(start));
        self.phase.set(Phase::Open);
    }

    fn end(&self) {
        let now = Instant::now();
        let (seconds, clock) = (now.duration_since(self.begun.get()).as_secs_f64(), own_clock());
        let mut after = self.read_meters();
        // Reading the meters is no part of the load. At the beginning it was over before this process's own was read.
        let reading = own_clock() - clock;
        for (_, cpu) in self.metered.iter().zip(&mut after).filter(|(metered, _)| metered.pid == 0) {
            cpu.total -= reading;
        }
        self.phase.set(Phase::Over);
        for start in self.owed.borrow().range(self.settled.get()..) {
            self.latency.borrow_mut().record(now.saturating_duration_since(*start));
        }
        let mut tally = self.tally.borrow_mut();
        let before = self.before.borrow();
        let used = self.metered.iter().zip(after.iter().zip(before.iter()));
        tally.cpu = used.map(|(metered, (after, before))| (metered.name.clone(), *after - *before)).collect();
        tally.seconds = seconds;
        tally.units = self.units.get();
        tally.bytes = self.bytes.get();
        tally.latency = self.latency.borrow().finish();
    }

    fn read_meters(&self) -> Vec<Cpu> {
        if self.metered.is_empty() {
            return Vec::new();
        }
        let own = std::process::id() as i32;
        let root = |metered: &Metered| if metered.pid == 0 { own } else { metered.pid };
        let processes = Processes::read();
        self.metered.iter().map(|metered| processes.cpu_of_tree(root(metered))).collect()
    }
}

/// CPU time of this process, in seconds.
fn own_clock() -> f64 {
    ClockId::CLOCK_PROCESS_CPUTIME_ID.now().map_or(0.0, |time| Duration::from(time).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_units_inside_the_window_count() {
        let window = Window { warm_up: Duration::from_secs(100), duration: Duration::from_secs(100) };
        let gauge = Gauge::new(window, vec![Metered { name: "load".into(), pid: 0 }]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        gauge.unit(at(0), at(1));
        assert_eq!(gauge.advance(at(99)), Phase::WarmUp);
        assert_eq!(gauge.advance(at(101)), Phase::Open);
        // Under way when the window opened: it counts, but nobody knows how long it would have taken.
        gauge.unit(start, at(105));
        gauge.unit(at(110), at(112));
        gauge.bytes(7);
        // The window opened when the meters were read, which is real time.
        assert_eq!(gauge.advance(at(101) + Duration::from_secs(100)), Phase::Over);
        gauge.unit(at(301), at(302));
        gauge.error("late");
        let tally = gauge.tally();
        assert_eq!((tally.units, tally.bytes, tally.errors), (2, 7, 0));
        assert_eq!(tally.latency.count(), 1);
        assert!((tally.latency.quantile(1.0).unwrap() - 2.0).abs() < 0.03);
        assert!(tally.cpu.contains_key("load"));
    }

    #[test]
    fn reading_the_meters_is_no_part_of_the_load() {
        let share = || {
            let window = Window { warm_up: Duration::ZERO, duration: Duration::ZERO };
            let gauge = Gauge::new(window, vec![Metered { name: "load".into(), pid: 0 }]);
            let clock = own_clock();
            gauge.begin();
            gauge.end();
            gauge.tally().cpu["load"].total.abs() / (own_clock() - clock)
        };
        // The tests beside this one use the same clock, so a single attempt says nothing; a reading is half of it all.
        let shares: Vec<_> = (0..30).map(|_| share()).collect();
        assert!(shares.iter().any(|share| *share < 0.1), "{shares:?}");
    }

    #[test]
    fn what_is_owed_at_the_end_has_waited_until_then() {
        let window = Window { warm_up: Duration::ZERO, duration: Duration::from_secs(100) };
        let gauge = Gauge::new(window, Vec::new());
        let early = Instant::now();
        gauge.begin();
        let [done, failed, waiting] =
            [1, 2, 3].map(|number| gauge.settled.get() + Duration::from_nanos(number));
        for start in [early, done, failed, waiting] {
            gauge.owe(start);
        }
        gauge.unit(done, done + Duration::from_secs(1));
        gauge.forgive(failed);
        gauge.end();
        let tally = gauge.tally();
        assert_eq!((tally.units, tally.latency.count()), (1, 2));
        assert!(tally.latency.quantile(0.5).unwrap() < 0.9);
    }
}
