//! Counter of a load: units of work within a window.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::time::ClockId;
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, Recorder};
use crate::meter::{Cpu, Processes, interrupts};
use crate::sample::Sample;

/// Time window in which units are counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Time before the window, whose work is not counted.
    pub warm_up: Duration,
    pub duration: Duration,
}

/// A process tree whose CPU time is read at both ends of the window.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Metered {
    /// Key in [`Tally::cpu`].
    pub name: String,
    /// Root of the tree; 0 is the load process itself, [`INTERRUPTS`] no process.
    pub pid: i32,
}

/// Stands for the time of all interrupts of the machine, in place of a process.
pub const INTERRUPTS: i32 = -1;

/// Counts of a load process in its window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub units: u64,
    /// Bytes of payload, for loads that transfer data.
    pub bytes: u64,
    /// Actual length of the window in seconds.
    pub seconds: f64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub latency: Latency,
    /// CPU time of the metered trees within the window.
    pub cpu: BTreeMap<String, Cpu>,
    /// Load-specific figures by name.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
}

#[derive(Debug)]
pub struct Gauge {
    window: Window,
    metered: Vec<Metered>,
    phase: Cell<Phase>,
    created: Instant,
    begun: Cell<Instant>,
    /// Start time from which units have a latency.
    settled: Cell<Instant>,
    before: RefCell<Vec<Cpu>>,
    /// Open loop: intended start times of unfinished units.
    owed: RefCell<BTreeSet<Instant>>,
    latency: RefCell<Recorder>,
    tally: RefCell<Tally>,
    units: Cell<u64>,
    bytes: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Units are not counted yet.
    WarmUp,
    /// Units are counted.
    Open,
    /// The window is over: loads stop.
    Over,
}

impl Window {
    /// Length of warm-up and window together.
    pub fn whole(&self) -> Duration {
        self.warm_up + self.duration
    }
}

impl Tally {
    /// Converts the tally to a sample. The trees named in `targets` are the target; the CPU time of other trees becomes
    /// figures (`NAME-cpu`, in seconds per unit).
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
    /// Makes a gauge and begins the warm-up.
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

    /// Counts one unit that began (in an open loop, was intended to begin) at `start` and was finished at `now`.
    ///
    /// Its latency is recorded only if the unit began after the settling time at the start of the window: units that
    /// were due during the reading of the meters are delayed by it.
    pub fn unit(&self, start: Instant, now: Instant) {
        self.forgive(start);
        if self.phase.get() == Phase::Open {
            self.units.set(self.units.get() + 1);
            if start >= self.settled.get() {
                self.latency.borrow_mut().record(now.saturating_duration_since(start));
            }
        }
    }

    /// Counts units that were finished together, without latencies.
    pub fn units(&self, count: u64) {
        if self.phase.get() == Phase::Open {
            self.units.set(self.units.get() + count);
        }
    }

    /// Open loop: registers a unit with the intended start time `start`. If it is neither [finished](Self::unit) nor
    /// [failed](Self::forgive) at the end of the window, the time until then is recorded as its latency: too small, but
    /// better than ignoring clients of a stalled server.
    pub fn owe(&self, start: Instant) {
        self.owed.borrow_mut().insert(start);
    }

    /// Removes a failed unit without recording a latency.
    pub fn forgive(&self, start: Instant) {
        self.owed.borrow_mut().remove(&start);
    }

    /// Counts bytes of payload.
    pub fn bytes(&self, count: usize) {
        if self.phase.get() == Phase::Open {
            self.bytes.set(self.bytes.get() + count as u64);
        }
    }

    /// Counts a failed unit. Failures during the warm-up count too, because they show a fault.
    pub fn error(&self, text: impl ToString) {
        if self.phase.get() != Phase::Over {
            let mut tally = self.tally.borrow_mut();
            tally.errors += 1;
            tally.first_error.get_or_insert_with(|| text.to_string());
        }
    }

    /// Adds a load-specific figure.
    pub fn figure(&self, name: &str, value: f64) {
        self.tally.borrow_mut().figures.insert(name.to_owned(), value);
    }

    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// For blocking loads, between units: begins or ends the window when its time has come.
    pub fn advance(&self, now: Instant) -> Phase {
        match self.phase.get() {
            Phase::WarmUp if now >= self.created + self.window.warm_up => self.begin(),
            Phase::Open if self.is_due(now) => self.end(),
            _ => {}
        }
        self.phase.get()
    }

    /// Whether [`Gauge::advance`] would end the window: for loads that look at something else just before.
    pub fn is_due(&self, now: Instant) -> bool {
        self.phase.get() == Phase::Open && now >= self.begun.get() + self.window.duration
    }

    /// For asynchronous loads: waits through warm-up and window while their tasks run.
    pub async fn run(&self) {
        tokio::time::sleep(self.window.warm_up).await;
        self.begin();
        tokio::time::sleep(self.window.duration).await;
        self.end();
    }

    /// Counts after the end of the window.
    pub fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    fn begin(&self) {
        let start = Instant::now();
        self.before.replace(self.read_meters());
        let now = Instant::now();
        self.begun.set(now);
        // The backlog of a pause takes less time than the pause, unless the machine is overloaded.
        self.settled.set(now + now.duration_since(start));
        self.phase.set(Phase::Open);
    }

    fn end(&self) {
        let now = Instant::now();
        let (seconds, clock) = (now.duration_since(self.begun.get()).as_secs_f64(), own_clock());
        let mut after = self.read_meters();
        // Exclude the reading of the meters from the load's CPU time. At the start, this process's meter was read last.
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
        let read = |metered: &Metered| match metered.pid {
            INTERRUPTS => interrupts(),
            _ => processes.cpu_of_tree(root(metered)),
        };
        self.metered.iter().map(read).collect()
    }
}

/// CPU time of this process in seconds.
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
        // The unit began before the window opened: it counts, but its latency is not recorded.
        gauge.unit(start, at(105));
        gauge.unit(at(110), at(112));
        gauge.bytes(7);
        // `begin` uses the real clock, so the window opened at the real time.
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
        // Parallel tests use the same CPU clock, so repeat the measurement; one reading is half of the total.
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
