//! Properties of the machine that affect the figures: figures of unlike machines cannot be compared.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::process;
use crate::target::{Program, gunicorn};
use crate::version;

/// Relevant properties of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Instructions of the processor on which the speed of ciphers and hashes depends, by their names in /proc/cpuinfo.
    #[serde(default)]
    pub features: Vec<String>,
    /// Number of usable cores, then of all cores.
    pub cores: [usize; 2],
    /// Kernel's state of simultaneous multithreading, where two logical cores share a physical one: the content of
    /// /sys/devices/system/cpu/smt/control.
    pub smt: String,
    pub memory: u64,
    pub kernel: String,
    pub system: String,
    /// Hypervisor or container technology; `None` if none is detected.
    pub virtualization: Option<String>,
    /// Frequency governor of core 0, if the kernel shows one.
    pub governor: Option<String>,
    /// Current frequency of core 0 in MHz.
    pub megahertz: Option<f64>,
    /// Active setting of transparent huge pages.
    pub huge_pages: Option<String>,
    /// Active CPU mitigations, by vulnerability.
    pub mitigations: Vec<(String, String)>,
    /// Programs found, with their versions; this program is the first.
    pub programs: Vec<(String, String)>,
    /// Round-trip time of a cache line between the target's and the load's core at the start, in nanoseconds.
    pub cache_line_ns: Option<f64>,
}

impl Machine {
    /// State of simultaneous multithreading in words (`Documentation/ABI/testing/sysfs-devices-system-cpu` of Linux).
    pub fn smt_words(&self) -> &str {
        match self.smt.as_str() {
            "forceoff" => "off until the next start",
            "notsupported" => "not supported by this processor",
            "notimplemented" => "not supported by this kernel",
            other => other,
        }
    }

    /// Reads the properties of this machine and the version of `program`. Unreadable properties are left out.
    pub fn look(program: &Path) -> Self {
        let info = read("/proc/cpuinfo");
        let usable = sys::cpu::usable().unwrap_or_default();
        let [target, load] = [usable.first(), usable.get(1)];
        Machine {
            cpu: field(&info, "model name")
                .or_else(|| field(&info, "CPU part"))
                .unwrap_or_else(|| "unknown".into()),
            features: features(&info),
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
            cache_line_ns: target
                .zip(load)
                .and_then(|(target, load)| crate::disturbance::cache_line_ns(*target, *load)),
        }
    }

    /// Lists the properties whose difference makes figures of two machines incomparable.
    pub fn differences(&self, other: &Machine) -> Vec<String> {
        let facts = [
            ("processor", &self.cpu, &other.cpu),
            ("kernel", &self.kernel, &other.kernel),
            ("system", &self.system, &other.system),
            ("simultaneous multithreading", &self.smt, &other.smt),
        ];
        let differ = facts.iter().filter(|(_, a, b)| a != b);
        let mut found: Vec<_> = differ.map(|(what, a, b)| format!("{what}: {a} / {b}")).collect();
        // Results of earlier versions have no features.
        if self.features != other.features && !self.features.is_empty() && !other.features.is_empty() {
            let [one, two] = [self, other].map(|one| one.features.join(" "));
            found.push(format!("processor's features: {one} / {two}"));
        }
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

fn programs(own: &Path) -> Vec<(String, String)> {
    let named = |name: &str, version: Option<String>| Some((name.to_owned(), version?));
    let own = named("penstock", version::of(own, &["--version"]));
    let pen = named("pen", version::of_package("pen"));
    let stack = gunicorn::find().ok().map(|path| gunicorn::versions(&path)).unwrap_or_default();
    own.into_iter().chain(PROGRAMS.iter().filter_map(program)).chain(pen).chain(stack).collect()
}

fn program((name, arguments): &(&str, &[&str])) -> Option<(String, String)> {
    let peer = PEERS.iter().find(|peer| peer.name() == *name);
    let path = peer.map_or_else(|| process::find(name, ""), |peer| peer.peer()).ok()?;
    Some(((*name).to_owned(), version::of(&path, arguments)?))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn one_line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

/// Reads `name : value` in the format of /proc/cpuinfo.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find_map(|(key, value)| (key.trim() == name).then(|| value.trim().to_owned()))
}

/// Reads `NAME="value"` in the format of os-release(5).
fn quoted(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once('='));
    lines.find_map(|(key, value)| (key == name).then(|| value.trim_matches('"').to_owned()))
}

/// Reads the word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn features(cpuinfo: &str) -> Vec<String> {
    // The second name is that of 64-bit ARM.
    let flags = field(cpuinfo, "flags").or_else(|| field(cpuinfo, "Features")).unwrap_or_default();
    let known = flags.split_whitespace().filter(|flag| FEATURES.contains(flag));
    known.map(str::to_owned).collect()
}

/// On x86-64 vector AES (`vaes`, `vpclmulqdq`) decides AES-GCM, and `sha_ni` decides HMAC-SHA-256; the last three are of ARM.
const FEATURES: &[&str] =
    &["aes", "pclmulqdq", "avx2", "vaes", "vpclmulqdq", "sha_ni", "avx512f", "pmull", "sha2", "sha512"];

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

/// Programs that a variable can replace.
const PEERS: [Program; 3] = [Program::Haproxy, Program::Nginx, Program::Hitch];

/// Programs whose version affects the figures, with the arguments that print it.
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
        assert_eq!(features("flags\t\t: fpu aes avx2 sha_ni vaes\n"), ["aes", "avx2", "sha_ni", "vaes"]);
        assert_eq!(features("Features\t: fp asimd aes pmull sha2\n"), ["aes", "pmull", "sha2"]);
        assert_eq!(
            quoted("ID=debian\nPRETTY_NAME=\"Debian 12\"\n", "PRETTY_NAME").as_deref(),
            Some("Debian 12")
        );
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(memory("MemTotal:       4042164 kB\n"), 4_042_164 * 1024);
    }

    #[test]
    fn machines_differ_in_what_decides_speed() {
        let features = vec!["aes".into()];
        let one =
            Machine { cpu: "a".into(), features, kernel: "6.1".into(), cores: [2, 2], ..Machine::default() };
        let mut other = one.clone();
        other.governor = Some("powersave".into());
        assert!(one.differences(&other).is_empty());
        other.kernel = "6.2".into();
        other.cores = [4, 4];
        other.features = vec!["vaes".into()];
        let differences = ["kernel: 6.1 / 6.2", "processor's features: aes / vaes", "cores: 2 / 4"];
        assert_eq!(one.differences(&other), differences);
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
