//! CPU time and memory of process trees, from the kernel's own books.
//!
//! The total is the CPU clock of each process (nanoseconds, threads that have ended included); user and system time
//! are kept in ticks of 10 ms, so they only say how the total divides. Children that ended count through their parent.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::{Add, Sub};

use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// All of it.
    pub total: f64,
    /// The share of user space, to the nearest tick.
    pub user: f64,
    /// The share of the kernel, to the nearest tick.
    pub system: f64,
}

/// The processes below `root`, itself included. Empty if it is gone.
pub fn tree(root: i32) -> Vec<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let mut found = Vec::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process.pid);
        if process.pid == root {
            found.push(root);
        }
    }
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(children.get(&pid).into_iter().flatten());
        next += 1;
    }
    found
}

/// CPU time that the process tree of `root` has used so far.
pub fn cpu_of_tree(root: i32) -> Cpu {
    tree(root).into_iter().map(cpu_of).fold(Cpu::default(), Add::add)
}

/// CPU time of kernel threads so far, in seconds, to the nearest tick: work that a target caused elsewhere.
pub fn kernel_threads() -> f64 {
    let kernel = processes().filter(|process| process.parent == 2 || process.pid == 2);
    kernel.map(|process| process.user + process.system).fold(0.0, Add::add)
}

/// Memory of the process tree of `root` in bytes: each page divided by the number of its users (PSS).
pub fn pss_of_tree(root: i32) -> io::Result<u64> {
    let mut sum = 0;
    for pid in tree(root) {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        sum += number.ok_or_else(|| io::Error::other("no Pss in smaps_rollup"))? * 1024;
    }
    Ok(sum)
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

/// CPU time of one process and of its children that have ended.
fn cpu_of(pid: i32) -> Cpu {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|text| Process::parse(&text));
    let Some(stat) = stat else { return Cpu::default() };
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).and_then(ClockId::now);
    let own = match clock {
        Ok(time) => time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9,
        Err(_) => stat.user + stat.system,
    };
    let user = stat.user + stat.children_user;
    let system = stat.system + stat.children_system;
    Cpu { total: own + stat.children_user + stat.children_system, user, system }
}

/// A line of `/proc/PID/stat` (proc_pid_stat(5)); times in seconds.
#[derive(Debug, PartialEq)]
struct Process {
    pid: i32,
    parent: i32,
    user: f64,
    system: f64,
    children_user: f64,
    children_system: f64,
}

impl Process {
    fn parse(text: &str) -> Option<Self> {
        // The name is in parentheses and may hold any of these and spaces.
        let (start, rest) = (text.find('(')?, text.rfind(')')?);
        let pid = text[..start].trim().parse().ok()?;
        let fields: Vec<_> = text.get(rest + 2..)?.split_whitespace().collect();
        let ticks = |index: usize| Some(fields.get(index)?.parse::<u64>().ok()? as f64 / TICKS);
        Some(Process {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            user: ticks(11)?,
            system: ticks(12)?,
            children_user: ticks(13)?,
            children_system: ticks(14)?,
        })
    }
}

fn processes() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter(|entry| entry.file_name().to_string_lossy().parse::<i32>().is_ok());
    numbers.filter_map(|entry| Process::parse(&fs::read_to_string(entry.path().join("stat")).ok()?))
}

/// USER_HZ, which is 100 on every architecture that we build for.
pub(crate) const TICKS: f64 = 100.0;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_name_with_parentheses_and_spaces_is_no_trap() {
        let line = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 150 250 10 20 20 0 1 0 99 0 0";
        let process = Process::parse(line).unwrap();
        let expected =
            Process { pid: 7, parent: 3, user: 1.5, system: 2.5, children_user: 0.1, children_system: 0.2 };
        assert_eq!(process, expected);
    }

    #[test]
    fn work_of_this_process_is_counted_to_the_millisecond() {
        let pid = std::process::id() as i32;
        let before = cpu_of(pid);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::black_box(start);
        }
        let used = (cpu_of(pid) - before).total;
        assert!(used > 0.001, "{used}");
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
        let pids = tree(child.id() as i32);
        assert_eq!(pids.len(), 2, "{pids:?}");
        for pid in pids.iter().rev() {
            nix::sys::signal::kill(Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        child.wait().unwrap();
    }
}
