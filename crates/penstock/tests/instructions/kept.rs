//! The kept counts in `bench/instructions.toml`: what they are compared with, and what is said about it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::{env, fs, io};

/// How to write measured counts into the file.
const UPDATE: &str = "UPDATE_INSTRUCTIONS=1 cargo test --locked --package penstock --test instructions";

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The file and the circumstances; held by one test at a time.
pub(crate) struct Gate {
    path: PathBuf,
    kept: Kept,
    toolchain: Toolchain,
    _turn: MutexGuard<'static, ()>,
}

impl Gate {
    /// Reads the file.
    #[track_caller]
    pub(crate) fn open() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let path = root().join("bench/instructions.toml");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, kept: Kept::parse(&text), toolchain: Toolchain::in_use(), _turn: turn }
    }

    /// Compares measured counts, or writes them down if that is asked for.
    #[track_caller]
    pub(crate) fn check(mut self, measured: &[(String, u64)]) {
        if env::var_os("UPDATE_INSTRUCTIONS").is_some_and(|value| value == "1") {
            for (name, count) in measured {
                self.kept.set(name, &count.to_string());
            }
            self.kept.set("rustc", &format!("\"{}\"", self.toolchain.rustc));
            self.kept.set("target", &format!("\"{}\"", self.toolchain.target));
            fs::write(&self.path, &self.kept.text).unwrap();
            return;
        }
        let judgement = judge(&self.kept, &self.toolchain, measured);
        // Around the capture of the test harness: a passed test has this to say too.
        let _ = io::stderr().write_all(judgement.remarks.as_bytes());
        // No person reads the remarks of a machine.
        let on_a_machine = env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false");
        assert!(judgement.faults.is_empty(), "{}", judgement.faults);
        assert!(
            judgement.compared == Compared::Yes || !on_a_machine,
            "nothing was compared: {}",
            judgement.remarks
        );
    }
}

/// What came of a comparison.
#[derive(Debug)]
pub(crate) struct AnswerState {
    /// Why the test fails; empty if it does not.
    faults: String,
    /// What is worth to be known; lines.
    remarks: String,
    compared: Compared,
}

/// Whether there was something to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// There was.
    Yes,
    /// The counts are of another kind of processor or system.
    No,
}

/// Compares counts with those that are kept.
fn judge(kept: &Kept, toolchain: &Toolchain, measured: &[(String, u64)]) -> AnswerState {
    let mut judgement =
        AnswerState { faults: String::new(), remarks: String::new(), compared: Compared::Yes };
    let mut tolerance = kept.number("tolerance-percent").expect("the file names its tolerance");
    let (rustc, target) = (kept.word("rustc"), kept.word("target"));
    if target != toolchain.target {
        judgement.compared = Compared::No;
        let _ = writeln!(
            judgement.remarks,
            "instructions: bench/instructions.toml is for {target}, not for {}",
            toolchain.target
        );
        for (name, count) in measured {
            let _ = writeln!(judgement.remarks, "instructions: {name} = {count}, not compared");
        }
        return judgement;
    }
    if rustc != toolchain.rustc {
        tolerance *= OTHER_COMPILER;
        let _ = writeln!(
            judgement.remarks,
            "instructions: kept for rustc {rustc}, measured with {}: compared within {tolerance} %",
            toolchain.rustc
        );
    }
    for (name, count) in measured {
        let Some(kept) = kept.number(name) else {
            let _ = writeln!(judgement.faults, "{name}: {count} instructions, and no kept count; {UPDATE}");
            continue;
        };
        let change = (*count as f64 / kept as f64 - 1.0) * 100.0;
        if count * 100 > kept * (100 + tolerance) {
            let _ = writeln!(
                judgement.faults,
                "{name}: {count} instructions, kept are {kept} ({change:+.1} %, {tolerance} % are tolerated).\n  \
                 See where they go with the commands at the top of crates/penstock/tests/instructions/main.rs.\n  \
                 If they are worth it: {UPDATE}\n  writes the new counts; say why in the commit"
            );
        } else if count * 100 < kept * 100_u64.saturating_sub(tolerance) {
            let _ = writeln!(
                judgement.remarks,
                "instructions: {name} is better: {count}, kept are {kept} ({change:+.1} %). Keep it: {UPDATE}"
            );
        }
    }
    judgement
}

/// Another compiler makes other code of the same text: the tolerance is so many times as large.
const OTHER_COMPILER: u64 = 3;

/// What compiles the programs that are counted.
struct Toolchain {
    rustc: String,
    target: String,
}

impl Toolchain {
    #[track_caller]
    fn in_use() -> Self {
        let output = Command::new("rustc").arg("-Vv").current_dir(root()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = |key: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(key))
                .expect("rustc -Vv names it")
                .trim()
                .to_owned()
        };
        Self { rustc: value("release:"), target: value("host:") }
    }
}

/// The file: lines of `key = value`, comments and empty lines. TOML has more; this file does not need it.
struct Kept {
    text: String,
}

impl Kept {
    #[track_caller]
    fn parse(text: &str) -> Self {
        for line in text.lines() {
            let plain = line.is_empty() || line.starts_with('#') || line.contains(" = ");
            assert!(plain, "bench/instructions.toml: not `key = value`: {line:?}");
        }
        Self { text: text.to_owned() }
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))
    }

    fn number(&self, key: &str) -> Option<u64> {
        let value = self.value(key)?;
        let number = value.parse().ok().filter(|number| *number > 0);
        Some(number.unwrap_or_else(|| panic!("bench/instructions.toml: {key}: not a number: {value}")))
    }

    fn word(&self, key: &str) -> &str {
        self.value(key).unwrap_or_default().trim_matches('"')
    }

    /// Replaces a value where it stands, or adds a line.
    fn set(&mut self, key: &str, value: &str) {
        let new = format!("{key} = {value}");
        let mut lines: Vec<&str> = self.text.lines().collect();
        let of_key = |line: &&str| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(" = "));
        match lines.iter().position(of_key) {
            Some(at) => lines[at] = &new,
            None => lines.push(&new),
        }
        self.text = lines.join("\n") + "\n";
    }
}

mod tests {
    use super::*;

    const FILE: &str = "# why\nrustc = \"1.95.0\"\ntarget = \"x86_64-unknown-linux-gnu\"\ntolerance-percent = 5\n\n\
                        # one\nhttp-kept = 1000\n# more\nhttp-kept-log = 2000\n";

    fn toolchain(rustc: &str, target: &str) -> Toolchain {
        Toolchain { rustc: rustc.to_owned(), target: target.to_owned() }
    }

    fn judged(name: &str, count: u64, toolchain: &Toolchain) -> AnswerState {
        judge(&Kept::parse(FILE), toolchain, &[(name.to_owned(), count)])
    }

    #[test]
    fn a_count_above_the_tolerance_fails_and_the_message_says_what_to_do() {
        let same = toolchain("1.95.0", "x86_64-unknown-linux-gnu");
        for count in [1000, 1050, 950] {
            let judgement = judged("http-kept", count, &same);
            assert!(judgement.faults.is_empty() && judgement.remarks.is_empty(), "{count}: {judgement:?}");
        }
        let worse = judged("http-kept", 1051, &same);
        for part in ["http-kept: 1051 ", "kept are 1000", "+5.1 %", UPDATE, "say why in the commit"] {
            assert!(worse.faults.contains(part), "{part}: {worse:?}");
        }
        assert!(judged("http-kept-log", 2101, &same).faults.contains("kept are 2000"));
        assert!(judged("https-kept", 1, &same).faults.contains("no kept count"));
    }

    #[test]
    fn a_count_far_below_the_kept_one_passes_and_is_named() {
        let better = judged("http-kept", 949, &toolchain("1.95.0", "x86_64-unknown-linux-gnu"));
        assert!(better.faults.is_empty(), "{better:?}");
        assert!(better.remarks.contains("http-kept is better: 949, kept are 1000"), "{better:?}");
    }

    #[test]
    fn another_compiler_has_more_tolerance_and_another_target_is_not_compared() {
        let newer = toolchain("1.96.0", "x86_64-unknown-linux-gnu");
        let within = judged("http-kept", 1150, &newer);
        assert!(within.faults.is_empty() && within.remarks.contains("1.96.0"), "{within:?}");
        assert!(!judged("http-kept", 1151, &newer).faults.is_empty());
        let elsewhere = judged("http-kept", 9000, &toolchain("1.95.0", "aarch64-unknown-linux-gnu"));
        assert!(elsewhere.compared == Compared::No && elsewhere.faults.is_empty(), "{elsewhere:?}");
        assert!(elsewhere.remarks.contains("http-kept = 9000, not compared"), "{elsewhere:?}");
    }

    #[test]
    fn an_update_changes_the_lines_of_its_counts_and_nothing_else() {
        let mut kept = Kept::parse(FILE);
        kept.set("http-kept", "900");
        kept.set("tcp-session", "7");
        assert_eq!(kept.text, FILE.replace("http-kept = 1000", "http-kept = 900") + "tcp-session = 7\n");
    }
}
