//! Facts about the machine that decide what figures mean: without them no figure can be compared with another.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::process;
use crate::target::gunicorn;

/// The machine, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that may be used, of those that there are.
    pub cores: [usize; 2],
    /// Threads share a core where two logical cores are one physical.
    pub smt: String,
    /// Memory in bytes.
    pub memory: u64,
    /// Kernel release.
    pub kernel: String,
    /// Distribution.
    pub system: String,
    /// Who runs this virtual machine or container; none on bare metal, as far as can be seen.
    pub virtualization: Option<String>,
    /// Frequency governor of core 0, where there is one to see.
    pub governor: Option<String>,
    /// Present frequency of core 0 in MHz.
    pub megahertz: Option<f64>,
    /// Transparent huge pages: the setting in force.
    pub huge_pages: Option<String>,
    /// Mitigations in force, by flaw.
    pub mitigations: Vec<(String, String)>,
    /// Programs found, with their versions; this one is the first.
    pub programs: Vec<(String, String)>,
    /// Time in nanoseconds for a cache line from the target's core to the load's and back, at the start.
    pub distance: Option<f64>,
}

impl Machine {
    /// Looks at this machine, and at this very `program`. Nothing it cannot see is an error.
    pub fn look(program: &Path) -> Self {
        let info = read("/proc/cpuinfo");
        let usable = sys::cpu::usable().unwrap_or_default();
        let [target, load] = [usable.first(), usable.get(1)];
        Machine {
            cpu: field(&info, "model name")
                .or_else(|| field(&info, "CPU part"))
                .unwrap_or_else(|| "unknown".into()),
            cores: [usable.len(), info.lines().filter(|line| line.starts_with("processor")).count()],
            smt: one_line("/sys/devices/system/cpu/smt/control").unwrap_or_else(|| "unknown".into()),
            memory: memory(&read("/proc/meminfo")),
            kernel: one_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            system: quoted(&read("/etc/os-release"), "PRETTY_NAME").unwrap_or_else(|| "unknown".into()),
            virtualization: virtualization(&info),
            governor: one_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            megahertz: field(&info, "cpu MHz").and_then(|text| text.parse().ok()),
            huge_pages: one_line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| chosen(&text)),
            mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
            programs: programs(program),
            distance: target
                .zip(load)
                .and_then(|(target, load)| crate::disturbance::distance(*target, *load)),
        }
    }

    /// What differs between two machines in a way that forbids comparing their figures.
    pub fn differences(&self, other: &Machine) -> Vec<String> {
        let facts = [
            ("processor", &self.cpu, &other.cpu),
            ("kernel", &self.kernel, &other.kernel),
            ("system", &self.system, &other.system),
            ("simultaneous multithreading", &self.smt, &other.smt),
        ];
        let differ = facts.iter().filter(|(_, a, b)| a != b);
        let mut found: Vec<_> = differ.map(|(what, a, b)| format!("{what}: {a} / {b}")).collect();
        if self.cores != other.cores {
            found.push(format!("cores: {} / {}", self.cores[0], other.cores[0]));
        }
        if self.virtualization != other.virtualization {
            let [one, two] = [self, other].map(|one| one.virtualization.as_deref().unwrap_or("no"));
            found.push(format!("virtual machine: {one} / {two}"));
        }
        found
    }
}

/// The first line of what a program says about its version; none if it is not here.
pub fn version(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text.lines().find(|line| line.chars().any(|c| c.is_ascii_digit()))?;
    Some(line.trim().to_owned())
}

fn programs(own: &Path) -> Vec<(String, String)> {
    let named = |name: &str, version: Option<String>| Some((name.to_owned(), version?));
    let own = named("penstock", version(own, &["--version"]));
    let pen = named("pen", package_version("pen"));
    let stack = gunicorn::find().ok().map(|path| gunicorn::versions(&path)).unwrap_or_default();
    own.into_iter().chain(PROGRAMS.iter().filter_map(program)).chain(pen).chain(stack).collect()
}

/// The version of an installed Debian package: for programs that do not tell theirs.
pub fn package_version(package: &str) -> Option<String> {
    let query =
        Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]).stderr(Stdio::null()).output();
    let output = query.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|version| !version.is_empty())
}

fn program((name, arguments): &(&str, &[&str])) -> Option<(String, String)> {
    let path = process::find(name, "").ok()?;
    Some(((*name).to_owned(), version(&path, arguments)?))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn one_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

/// `name : value` in the style of /proc/cpuinfo.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find_map(|(key, value)| (key.trim() == name).then(|| value.trim().to_owned()))
}

/// `NAME="value"` in the style of os-release(5).
fn quoted(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once('='));
    lines.find_map(|(key, value)| (key == name).then(|| value.trim_matches('"').to_owned()))
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn memory(text: &str) -> u64 {
    let kilobytes =
        field(text, "MemTotal").and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1024
}

fn virtualization(cpuinfo: &str) -> Option<String> {
    let vendor = one_line("/sys/class/dmi/id/sys_vendor");
    let product = one_line("/sys/class/dmi/id/product_name");
    let guest = field(cpuinfo, "flags")?.split_whitespace().any(|flag| flag == "hypervisor");
    let name = [vendor, product].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let name = if name.is_empty() { "virtual machine".to_owned() } else { name };
    guest.then_some(name)
}

fn mitigations(directory: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let text = fs::read_to_string(entry.path()).ok()?;
            let name = entry.file_name().into_string().ok()?;
            Some((name, text.trim().to_owned()))
        })
        .filter(|(_, text)| text != "Not affected")
        .collect();
    found.sort();
    found
}

/// Programs whose version belongs beside the figures, and how to ask for it.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("haproxy", &["-v"]),
    ("nginx", &["-v"]),
    ("hitch", &["--version"]),
    ("openssl", &["version"]),
    ("certtool", &["--version"]),
    ("docker", &["--version"]),
    ("nft", &["--version"]),
    ("socat", &["-V"]),
    ("python3", &["--version"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_forms_that_the_kernel_and_distributions_use() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2596.124\n";
        assert_eq!(field(info, "model name").as_deref(), Some("AMD EPYC"));
        assert_eq!(
            quoted("ID=debian\nPRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME").as_deref(),
            Some("Debian 12")
        );
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(memory("MemTotal:       4042164 kB\n"), 4_042_164 * 1024);
    }

    #[test]
    fn machines_differ_in_what_decides_speed() {
        let one = Machine { cpu: "a".into(), kernel: "6.1".into(), cores: [2, 2], ..Machine::default() };
        let mut other = one.clone();
        other.governor = Some("powersave".into());
        assert!(one.differences(&other).is_empty());
        other.kernel = "6.2".into();
        other.cores = [4, 4];
        assert_eq!(one.differences(&other), ["kernel: 6.1 / 6.2", "cores: 2 / 4"]);
    }

    #[test]
    fn this_machine_has_a_kernel_and_cores() {
        let machine = Machine::look(Path::new("/nonexistent"));
        assert!(machine.cores[0] >= 1 && machine.memory > 0 && machine.kernel != "unknown", "{machine:?}");
    }

    #[test]
    fn this_program_is_the_first_of_those_with_a_version() {
        let env = process::find("env", "coreutils").unwrap();
        let (name, version) = Machine::look(&env).programs.swap_remove(0);
        assert!(name == "penstock" && version.starts_with("env "), "{name}: {version}");
    }
}
