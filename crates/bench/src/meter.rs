//! CPU time and memory of process trees, as counted by the kernel.
//!
//! The total is the CPU clock of each process, in nanoseconds and including ended threads. User and system time are
//! counted in ticks of 10 ms, so they only divide the total approximately. Ended children are counted in their parent.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::{Add, Sub};
use std::path::Path;

use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    pub total: f64,
    /// Time in user space, rounded to ticks.
    pub user: f64,
    /// Time in the kernel, rounded to ticks.
    pub system: f64,
}

/// All processes at one moment. Reading them takes a millisecond or more: to measure several trees, read them once.
#[derive(Debug)]
pub struct Processes(BTreeMap<i32, Process>);

impl Processes {
    pub fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter(|entry| entry.file_name().to_string_lossy().parse::<i32>().is_ok());
        let processes = numbers
            .filter_map(|entry| Process::parse(&fs::read_to_string(entry.path().join("stat")).ok()?))
            .map(|process| (process.pid, process));
        Processes(processes.collect())
    }

    /// Returns the process ids of `root` and its descendants. Empty if `root` has ended.
    pub fn tree(&self, root: i32) -> Vec<i32> {
        self.below(root).iter().map(|process| process.pid).collect()
    }

    /// CPU time of the process tree of `root` since its start.
    pub fn cpu_of_tree(&self, root: i32) -> Cpu {
        self.below(root).into_iter().map(Process::cpu).fold(Cpu::default(), Add::add)
    }

    /// Process id of kthreadd, the parent of all kernel threads. `None` in a container, where process 2 is not
    /// kthreadd.
    pub fn kthreadd(&self) -> Option<i32> {
        self.0.get(&2).filter(|process| process.name == "kthreadd").map(|process| process.pid)
    }

    /// CPU time of kernel threads in seconds, rounded to ticks, which includes work that a target caused there. 0 if
    /// kernel threads are not visible.
    pub fn kernel_threads(&self) -> f64 {
        let threads = self.kthreadd().map(|root| self.below(root)).unwrap_or_default();
        threads.into_iter().map(|process| process.user + process.system).fold(0.0, Add::add)
    }

    /// Process ids of the kernel threads that handle packets of network interfaces when they become too many for the
    /// process that sent them. Empty if kernel threads are not visible.
    pub fn softirq_threads(&self) -> Vec<i32> {
        let threads = self.kthreadd().map(|root| self.below(root)).unwrap_or_default();
        let handlers = threads.into_iter().filter(|process| process.name.starts_with("ksoftirqd/"));
        handlers.map(|process| process.pid).collect()
    }

    fn below(&self, root: i32) -> Vec<&Process> {
        let mut children: BTreeMap<i32, Vec<&Process>> = BTreeMap::new();
        for process in self.0.values() {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found: Vec<_> = self.0.get(&root).into_iter().collect();
        let mut next = 0;
        while let Some(process) = found.get(next) {
            found.extend(children.get(&process.pid).into_iter().flatten());
            next += 1;
        }
        found
    }
}

/// CPU time of all interrupts of the machine since its start, rounded to ticks (proc_stat(5)).
pub fn interrupts() -> Cpu {
    interrupts_in(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn interrupts_in(text: &str) -> Cpu {
    // Columns: user, nice, system, idle, iowait, irq, softirq
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks = line.split_whitespace().skip(5).take(2).filter_map(|word| word.parse::<f64>().ok());
    let system = ticks.sum::<f64>() / TICKS;
    Cpu { total: system, user: 0.0, system }
}

/// Whether the time of interrupts is missing in that of the processes that they interrupt, which is where the work on a
/// packet is done (CONFIG_IRQ_TIME_ACCOUNTING): the kernel then shows the pressure of interrupts.
pub fn interrupts_are_apart() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let options = fs::read_to_string(format!("/boot/config-{}", release.trim())).unwrap_or_default();
    let is_set = options.lines().any(|line| line == "CONFIG_IRQ_TIME_ACCOUNTING=y");
    is_set || Path::new("/proc/pressure/irq").exists()
}

/// Memory of the process tree of `root` in bytes: each page divided by the number of its users (PSS).
pub fn pss_of_tree(root: i32) -> io::Result<u64> {
    let mut sum = 0;
    for pid in Processes::read().tree(root) {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        sum += number.ok_or_else(|| io::Error::other("no Pss in smaps_rollup"))? * 1024;
    }
    Ok(sum)
}

/// Memory of the process tree of `root` in bytes: the peak of the root (VmHWM, with its program text), plus the current
/// private memory of its descendants. Much faster than [`pss_of_tree`], and for descendants never larger.
pub fn footprint_of_tree(root: i32) -> u64 {
    let own = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let mut pages = text.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
        Some(pages.next()?.saturating_sub(pages.next()?) * PAGE)
    };
    let most = fs::read_to_string(format!("/proc/{root}/status")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    });
    // An ended process uses no memory.
    let others = Processes::read().tree(root).into_iter().filter(|pid| *pid != root).filter_map(own);
    most.unwrap_or(0) + others.sum::<u64>()
}

impl Add for Cpu {
    type Output = Cpu;

    fn add(self, other: Cpu) -> Cpu {
        Cpu {
            total: self.total + other.total,
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }
}

impl Sub for Cpu {
    type Output = Cpu;

    fn sub(self, other: Cpu) -> Cpu {
        Cpu {
            total: self.total - other.total,
            user: self.user - other.user,
            system: self.system - other.system,
        }
    }
}

/// A line of `/proc/PID/stat` (proc_pid_stat(5)); times in seconds.
#[derive(Debug, PartialEq)]
struct Process {
    pid: i32,
    name: String,
    parent: i32,
    user: f64,
    system: f64,
    children_user: f64,
    children_system: f64,
}

impl Process {
    fn parse(text: &str) -> Option<Self> {
        // The process name is in parentheses and may itself contain parentheses and spaces.
        let (start, rest) = (text.find('(')?, text.rfind(')')?);
        let pid = text[..start].trim().parse().ok()?;
        let fields: Vec<_> = text.get(rest + 2..)?.split_whitespace().collect();
        let ticks = |index: usize| Some(fields.get(index)?.parse::<u64>().ok()? as f64 / TICKS);
        Some(Process {
            pid,
            name: text[start + 1..rest].to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            user: ticks(11)?,
            system: ticks(12)?,
            children_user: ticks(13)?,
            children_system: ticks(14)?,
        })
    }

    /// CPU time of the process and of its ended children.
    fn cpu(&self) -> Cpu {
        let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(self.pid)).and_then(ClockId::now);
        let own = match clock {
            Ok(time) => time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9,
            // The process has ended since the snapshot, and the snapshot of its parent does not yet contain its time.
            Err(_) => self.user + self.system,
        };
        let user = self.user + self.children_user;
        let system = self.system + self.children_system;
        Cpu { total: own + self.children_user + self.children_system, user, system }
    }
}

/// Page size in bytes on the measured machines.
const PAGE: u64 = 4096;

/// USER_HZ, which is 100 on every supported architecture.
pub(crate) const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_name_with_parentheses_and_spaces_is_no_trap() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 150 250 10 20 20 0 1 0 99 0 0";
        let process = Process::parse(line).unwrap();
        let expected = Process {
            pid: 7,
            name: "a) b (c".to_owned(),
            parent: 3,
            user: 1.5,
            system: 2.5,
            children_user: 0.1,
            children_system: 0.2,
        };
        assert_eq!(process, expected);
    }

    #[test]
    fn work_of_this_process_is_counted_to_the_millisecond() {
        let pid = std::process::id() as i32;
        let used = || Processes::read().cpu_of_tree(pid).total;
        // By the clock of this thread: on a busy machine much time may pass in which it does not run.
        let worked = || {
            let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap();
            time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9
        };
        let before = used();
        let begun = worked();
        while worked() - begun < 0.03 {
            std::hint::black_box(begun);
        }
        let used = used() - before;
        assert!(used > 0.029, "{used}");
    }

    #[test]
    fn process_2_is_the_parent_of_kernel_threads_only_if_it_says_so() {
        let books = |name: &str| {
            let line = |pid: i32, name: &str, parent: i32| {
                format!("{pid} ({name}) S {parent} 0 0 0 0 0 0 0 0 0 100 100 0 0 20 0 1 0 99 0 0")
            };
            let lines = [line(2, name, 0), line(3, "worker", 2), line(9, "other", 1)];
            let processes = lines.iter().filter_map(|line| Process::parse(line));
            Processes(processes.map(|process| (process.pid, process)).collect())
        };
        assert_eq!(books("kthreadd").kernel_threads(), 4.0);
        assert_eq!(books("sh").kernel_threads(), 0.0);
    }

    #[test]
    fn threads_and_time_of_interrupts_are_found() {
        let line = |pid: i32, name: &str, parent: i32| {
            format!("{pid} ({name}) S {parent} 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0")
        };
        let lines = [
            line(2, "kthreadd", 0),
            line(3, "ksoftirqd/0", 2),
            line(4, "kworker/0", 2),
            line(9, "ksoftirqd/", 1),
        ];
        let processes = lines.iter().filter_map(|line| Process::parse(line));
        let processes = Processes(processes.map(|process| (process.pid, process)).collect());
        assert_eq!(processes.softirq_threads(), [3]);
        let text = "cpu  900 1 900 5000 7 30 20 50 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(interrupts_in(text).total, 0.5);
    }

    #[test]
    fn a_process_that_ends_after_the_look_is_counted_with_what_the_look_saw() {
        // Greater than the largest process id (PID_MAX_LIMIT).
        let gone = "4194999 (x) S 1 0 0 0 0 0 0 0 0 0 100 50 0 0 20 0 1 0 99 0 0";
        assert_eq!(Process::parse(gone).unwrap().cpu().total, 1.5);
    }

    #[test]
    fn a_tree_holds_children_of_children() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & echo x; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 1];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let pids = Processes::read().tree(child.id() as i32);
        assert_eq!(pids.len(), 2, "{pids:?}");
        for pid in pids.iter().rev() {
            nix::sys::signal::kill(Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        child.wait().unwrap();
    }
}
