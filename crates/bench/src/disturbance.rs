//! Detection of outside influence on a round: other processes, the host of a virtual machine, the clock rate of cores.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::context::Cores;
use crate::meter::{self, Processes};

/// Observations during one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// CPU time of foreign processes on the run's cores, as a share of the cores' total time.
    pub other_cpu: f64,
    /// CPU time of kernel threads in seconds, which includes work that a target caused there.
    pub kernel_threads: f64,
    /// Steal time, as a share of the cores' total time.
    pub steal: f64,
    /// Smallest and largest round-trip time of a cache line between two cores, in nanoseconds. Empty with one core.
    pub cache_line_ns: Vec<f64>,
    /// Smallest and largest time of a fixed computation on the target's core, in nanoseconds.
    pub calibration_ns: [f64; 2],
    /// Reasons why the round is disturbed; empty if it is not.
    pub reasons: Vec<String>,
}

/// Observer of one round.
#[derive(Debug)]
pub struct Watch {
    cores: Cores,
    elsewhere: Vec<i32>,
    start: Instant,
    times: Times,
    own: f64,
    kernel_threads: f64,
    cache_lines: Vec<f64>,
    calibrations: Vec<f64>,
}

impl Watch {
    /// Begins to observe `cores`. `elsewhere` lists the roots of process trees that belong to the run but are not
    /// descendants of this process.
    pub fn begin(cores: &Cores, elsewhere: Vec<i32>) -> Self {
        let mut watch = Watch {
            cores: cores.clone(),
            elsewhere,
            start: Instant::now(),
            times: Times::default(),
            own: 0.0,
            kernel_threads: 0.0,
            cache_lines: Vec::new(),
            calibrations: Vec::new(),
        };
        watch.look();
        watch.start = Instant::now();
        (watch.own, watch.kernel_threads) = known_cpu(&watch.elsewhere);
        watch.times = Times::read(cores);
        watch
    }

    /// Measures cache-line time and core speed between two trials.
    pub fn look(&mut self) {
        let cores = &self.cores;
        if let (Some(target), Some(load)) = (cores.target.first(), cores.load.first()) {
            self.cache_lines.extend(cache_line_ns(*target, *load));
        }
        self.calibrations.extend(calibration_ns(cores.target.first().copied()));
    }

    pub fn end(mut self) -> Disturbance {
        let times = Times::read(&self.cores);
        let (own, kernel_threads) = known_cpu(&self.elsewhere);
        let (own, kernel_threads) = (own - self.own, kernel_threads - self.kernel_threads);
        let cores = match self.cores.target.len() + self.cores.load.len() {
            0 => sys::cpu::count(),
            count => count,
        };
        let capacity = self.start.elapsed().as_secs_f64() * cores as f64;
        self.look();
        let mut disturbance = Disturbance {
            other_cpu: ((times.busy - self.times.busy - own - kernel_threads) / capacity).max(0.0),
            kernel_threads,
            steal: ((times.steal - self.times.steal) / capacity).max(0.0),
            cache_line_ns: ends(&self.cache_lines).map(Vec::from).unwrap_or_default(),
            calibration_ns: ends(&self.calibrations).unwrap_or_default(),
            reasons: Vec::new(),
        };
        disturbance.reasons = disturbance.judge();
        disturbance
    }
}

impl Disturbance {
    pub fn is_disturbed(&self) -> bool {
        !self.reasons.is_empty()
    }

    /// Degree of the disturbance, for selecting the calmest of disturbed rounds.
    pub fn severity(&self) -> f64 {
        let change = |ends: &[f64]| match ends {
            [low, high] if *low > 0.0 => high / low - 1.0,
            _ => 0.0,
        };
        self.other_cpu / OTHER_CPU
            + self.steal / STEAL
            + change(&self.cache_line_ns) / CACHE_LINE
            + change(&self.calibration_ns) / CALIBRATION
    }

    fn judge(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.other_cpu > OTHER_CPU {
            reasons.push(format!("other processes used {:.0} % of the cores", self.other_cpu * 100.0));
        }
        if self.steal > STEAL {
            reasons.push(format!("the host took {:.1} % of the cores (steal time)", self.steal * 100.0));
        }
        if let [low, high] = self.cache_line_ns[..]
            && high > low * (1.0 + CACHE_LINE)
        {
            reasons
                .push(format!("the virtual cores moved: a cache line took {low:.0} ns, then {high:.0} ns"));
        }
        let [low, high] = self.calibration_ns;
        if high > low * (1.0 + CALIBRATION) {
            reasons.push(format!("the core's speed changed by {:.0} %", (high / low - 1.0) * 100.0));
        }
        reasons
    }
}

/// Measures the round-trip time of a cache line between two cores, in nanoseconds. `None` if a core is unusable.
///
/// The host of a virtual machine moves its virtual cores: they may be neighbours at one time and far apart later. The
/// cost of all communication between two processes changes accordingly, and a measurement on one core does not show it.
pub fn cache_line_ns(first: usize, second: usize) -> Option<f64> {
    let ball = AtomicU32::new(0);
    let batches = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = sys::cpu::pin_current_thread(second).is_ok();
            pinned.then(|| (0..BATCHES * PASSES).all(|pass| await_turn(&ball, 2 * pass + 1) == Turn::Mine))
        });
        let times: Option<Vec<f64>> = scope
            .spawn(|| {
                sys::cpu::pin_current_thread(first).ok()?;
                (0..BATCHES).map(|batch| one_batch(&ball, batch)).collect()
            })
            .join()
            .ok()
            .flatten();
        other.join().ok().flatten().filter(|passed| *passed).and(times)
    })?;
    // Use the smallest time: interrupts only increase it.
    batches.into_iter().reduce(f64::min)
}

fn one_batch(ball: &AtomicU32, batch: u32) -> Option<f64> {
    let start = Instant::now();
    for pass in batch * PASSES..(batch + 1) * PASSES {
        if await_turn(ball, 2 * pass) == Turn::GaveUp {
            return None;
        }
    }
    Some(start.elapsed().as_nanos() as f64 / f64::from(PASSES))
}

/// Waits until `ball` has the value `turn`, then increments it. Gives up after `GIVE_UP` attempts.
fn await_turn(ball: &AtomicU32, turn: u32) -> Turn {
    for spin in 0_u64.. {
        if ball.load(Ordering::Acquire) == turn {
            ball.store(turn + 1, Ordering::Release);
            return Turn::Mine;
        }
        if spin > GIVE_UP {
            break;
        }
        std::hint::spin_loop();
    }
    Turn::GaveUp
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Mine,
    GaveUp,
}

/// Measures the CPU time of a fixed computation on a core, in nanoseconds: the inverse is the core's real speed, also
/// on machines without frequency files.
fn calibration_ns(core: Option<usize>) -> Option<f64> {
    let measure = move || {
        if let Some(core) = core {
            sys::cpu::pin_current_thread(core).ok()?;
        }
        (0..5).filter_map(|_| one_calibration()).reduce(f64::min)
    };
    thread::spawn(measure).join().ok().flatten()
}

fn one_calibration() -> Option<f64> {
    let now = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Duration::from);
    let start = now()?;
    let mut value = std::hint::black_box(1_u64);
    for _ in 0..100_000 {
        // Each step depends on the one before, so the loop measures clock cycles and not parallel execution.
        value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7);
    }
    std::hint::black_box(value);
    Some((now()? - start).as_nanos() as f64)
}

/// Returns the CPU time of the run (this process, its descendants and `elsewhere`), and that of kernel threads.
fn known_cpu(elsewhere: &[i32]) -> (f64, f64) {
    let processes = Processes::read();
    let roots = std::iter::once(std::process::id() as i32).chain(elsewhere.iter().copied());
    (roots.map(|root| processes.cpu_of_tree(root).total).sum(), processes.kernel_threads())
}

/// CPU times in seconds from `/proc/stat` (proc_stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    busy: f64,
    steal: f64,
}

impl Times {
    fn read(cores: &Cores) -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default(), cores)
    }

    fn parse(text: &str, cores: &Cores) -> Self {
        let names: Vec<_> = cores.target.iter().chain(&cores.load).map(|core| format!("cpu{core}")).collect();
        let mut sum = Times::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            let wanted = if names.is_empty() { name == "cpu" } else { names.iter().any(|core| core == name) };
            if wanted {
                let ticks: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
                let at = |index: usize| ticks.get(index).copied().unwrap_or_default() / meter::TICKS;
                // Columns: user, nice, system, idle, iowait, irq, softirq, steal
                sum.busy += at(0) + at(1) + at(2) + at(5) + at(6);
                sum.steal += at(7);
            }
        }
        sum
    }
}

fn ends(values: &[f64]) -> Option<[f64; 2]> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    Some([low, high])
}

/// Largest share of the cores' time for foreign processes.
const OTHER_CPU: f64 = 0.06;
/// Largest share of the cores' time for steal.
const STEAL: f64 = 0.01;
/// Largest relative change of the cache-line time within a round.
const CACHE_LINE: f64 = 0.6;
/// Largest relative change of the core's speed within a round.
const CALIBRATION: f64 = 0.08;

const BATCHES: u32 = 8;
const PASSES: u32 = 500;
/// About one second of spinning: far longer than any pass.
const GIVE_UP: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cores_of_the_run_are_looked_at() {
        let text = "cpu 900 0 900 0 0 0 0 50\ncpu0 100 20 30 999 9 5 7 11\ncpu1 10 0 10 0 0 0 0 1\ncpu10 500 0 0 0 0 0 0 9\n";
        let cores = Cores { target: vec![0], load: vec![1] };
        let times = Times::parse(text, &cores);
        assert!((times.busy - 1.82).abs() < 1e-9 && (times.steal - 0.12).abs() < 1e-9, "{times:?}");
        let all = Times::parse(text, &Cores::default());
        assert!((all.busy - 18.0).abs() < 1e-9, "{all:?}");
    }

    #[test]
    fn each_kind_of_disturbance_is_named() {
        let calm = Disturbance {
            cache_line_ns: vec![60.0, 65.0],
            calibration_ns: [100.0, 101.0],
            ..Disturbance::default()
        };
        assert!(calm.judge().is_empty());
        let cases = [
            (Disturbance { other_cpu: 0.2, ..calm.clone() }, "other processes used 20 %"),
            (Disturbance { steal: 0.05, ..calm.clone() }, "steal"),
            (Disturbance { cache_line_ns: vec![63.0, 300.0], ..calm.clone() }, "63 ns, then 300 ns"),
            (Disturbance { calibration_ns: [100.0, 120.0], ..calm }, "speed changed by 20 %"),
        ];
        for (disturbance, expected) in cases {
            let reasons = disturbance.judge();
            assert!(reasons.len() == 1 && reasons[0].contains(expected), "{reasons:?}");
            assert!(disturbance.severity() > 1.0);
        }
    }

    #[test]
    fn what_runs_for_a_run_elsewhere_is_not_counted_as_other_load() {
        // The parent of the test process: not a descendant, with some CPU time.
        let parent = nix::unistd::getppid().as_raw();
        let (alone, _) = known_cpu(&[]);
        let (both, _) = known_cpu(&[parent]);
        assert!(both > alone, "{both} {alone}");
    }

    #[test]
    fn a_cache_line_takes_some_nanoseconds_to_travel() {
        let cores = sys::cpu::usable().unwrap();
        if let [first, second, ..] = cores[..] {
            let found = cache_line_ns(first, second);
            assert!(found.is_none_or(|found| found > 5.0), "{found:?}");
        }
    }
}
